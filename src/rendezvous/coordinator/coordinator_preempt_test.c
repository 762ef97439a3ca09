/* A node that will be taken away: the whole job stops, once, and no round forms any more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"

enum { GRACE_MS = 60000 };

static void hear_stop(struct peers *f, size_t i, const char *addr) {
    const struct heard *heard = peers_hear(f, i, COORDINATOR_STOP);
    assert_int_equal(heard->grace_ms, GRACE_MS);
    assert_non_null(strstr(heard->text, addr));
    assert_non_null(strstr(heard->text, "is taken away: SIGUSR1"));
}

static void everybody_stops_and_waits_for_the_last(void **state) {
    struct peers *f = *state;
    peers_form(f, 3, 3, 3);
    peers_preempt(f, 1, GRACE_MS);
    for (size_t i = 0; i < 3; i++) {
        hear_stop(f, i, "node host1");
    }
    peers_preempt(f, 2, 1); /* the scheduler tells all of them: said once */
    peers_hear_nothing(f);
    assert_true(peers_look(f).is_stopping);
    peers_done(f, 1);
    peers_done(f, 0);
    peers_hear_nothing(f); /* node 2 may still need their stores */
    peers_done(f, 2);
    for (size_t i = 0; i < 3; i++) {
        peers_hear(f, i, COORDINATOR_ALL_DONE);
    }
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
    assert_int_equal(peers_look(f).charges.failures + peers_look(f).charges.changes, 0);
}

static void who_was_done_first_hears_it_too(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_done(f, 0);
    peers_preempt(f, 1, GRACE_MS);
    hear_stop(f, 0, "node host1");
    hear_stop(f, 1, "node host1");
    peers_done(f, 1);
    peers_hear(f, 0, COORDINATOR_ALL_DONE);
    peers_hear(f, 1, COORDINATOR_ALL_DONE);
    peers_hear_nothing(f);
}

static void failures_and_losses_end_no_world_any_more(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 4, 4);
    peers_preempt(f, 3, GRACE_MS);
    for (size_t i = 0; i < 4; i++) {
        hear_stop(f, i, "node host3");
    }
    peers_report_failure(f, 0);
    peers_lose(f, 1);
    peers_leave(f, 2, "it was told to");
    peers_join(f, 0); /* had not heard it: a restart that does not come */
    peers_hear_nothing(f);
    peers_done(f, 3);
    peers_hear(f, 3, COORDINATOR_ALL_DONE);
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
    assert_int_equal(peers_look(f).charges.failures + peers_look(f).charges.changes, 0);
}

static void spares_are_let_go_and_newcomers_refused(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_join(f, 2);
    peers_hear(f, 2, COORDINATOR_SPARE);
    peers_preempt(f, 2, GRACE_MS); /* a spare can go: nobody need stop */
    peers_hear_nothing(f);
    peers_preempt(f, 0, GRACE_MS);
    hear_stop(f, 0, "node host0");
    hear_stop(f, 1, "node host0");
    hear_stop(f, 2, "node host0"); /* it ends as they do */
    peers_join(f, 3);
    peers_hear_refusal(f, 3, MUSTER_EABORTED, "had no part in the job: the job is stopping");
    peers_hear_nothing(f);
}

static void a_round_that_is_open_stays_open(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 3, 3);
    peers_report_failure(f, 0);
    peers_hear_change(f, 1, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: rank 3 has died");
    peers_hear_change(f, 2, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: rank 3 has died");
    peers_join(f, 0);
    peers_preempt(f, 0, GRACE_MS);
    hear_stop(f, 0, "node host0");
    hear_stop(f, 1, "node host0");
    hear_stop(f, 2, "node host0");
    peers_join(f, 1);
    peers_done(f, 2); /* its workers had ended well */
    peers_hear(f, 2, COORDINATOR_ALL_DONE);
    peers_hear_nothing(f);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
}

static void a_job_that_has_not_begun_stops_too(void **state) {
    struct peers *f = *state;
    peers_begin(f, 3, 3, false);
    peers_join_many(f, 2);
    peers_preempt(f, 1, GRACE_MS);
    hear_stop(f, 0, "node host1");
    hear_stop(f, 1, "node host1");
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(everybody_stops_and_waits_for_the_last, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(who_was_done_first_hears_it_too, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(failures_and_losses_end_no_world_any_more, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(spares_are_let_go_and_newcomers_refused, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(a_round_that_is_open_stays_open, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(a_job_that_has_not_begun_stops_too, peers_setup, peers_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
