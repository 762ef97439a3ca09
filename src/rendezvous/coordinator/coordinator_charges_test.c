/* What the coordinator charges a job with, and what it does when that is more than is allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"

static void limit(struct peers *f, enum coordinator_charge charge, uint32_t allowed) {
    f->limits.is_limited[charge] = true;
    f->limits.allowed[charge] = allowed;
}

static void assert_charges(struct coordinator_charges charges, uint32_t failures, uint32_t changes) {
    assert_int_equal(charges.failures, failures);
    assert_int_equal(charges.changes, changes);
    assert_int_equal(charges.preemptions, 0);
}

/* All `count` nodes are told the same end. */
static void hear_the_end(struct peers *f, size_t count, const char *why) {
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(peers_hear(f, i, COORDINATOR_CLOSED)->text, why);
    }
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
}

static void failures_of_a_round_are_charged_once_and_spend_the_budget(void **state) {
    struct peers *f = *state;
    limit(f, COORDINATOR_CHARGE_FAILURE, 1);
    peers_form(f, 3, 3, 3);
    peers_report_failure(f, 1);
    peers_report_failure(f, 2);
    peers_join_many(f, 3);
    peers_hear(f, 0, COORDINATOR_CHANGE);
    peers_hear(f, 2, COORDINATOR_CHANGE);
    for (size_t i = 0; i < 3; i++) {
        const struct heard *heard = peers_hear(f, i, COORDINATOR_WORLD);
        assert_non_null(strstr(heard->text, "; charged 1 failure (1 of 1)"));
        assert_charges(heard->world.charges, 1, 0);
        assert_int_equal(heard->world.max_restarts, 1);
    }
    peers_pass_ms(f, 7000);
    peers_report_failure(f, 0);
    hear_the_end(f, 3,
                 "its budget is spent: 2 failures within 7 s, and 1 is allowed (--max-restarts raises that); the last: "
                 "node host0 (pid 7) failed: rank 3 has died");
    assert_charges(peers_look(f).charges, 2, 0);
}

static void first_thing_that_ends_a_world_is_charged(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 3, 3);
    peers_lose(f, 2);
    peers_report_failure(f, 0); /* it may well be why */
    peers_join_many(f, 2);
    assert_charges(peers_look(f).charges, 0, 1);
    peers_report_failure(f, 0);
    peers_lose(f, 1);
    peers_join(f, 0);
    assert_charges(peers_look(f).charges, 1, 1);
}

static void departure_spends_the_budget_of_changes(void **state) {
    struct peers *f = *state;
    limit(f, COORDINATOR_CHARGE_CHANGE, 0);
    peers_form(f, 1, 3, 3);
    peers_lose(f, 2);
    hear_the_end(f, 2,
                 "its budget is spent: 1 membership change, and 0 are allowed (--rdzv-conf max_membership_changes "
                 "raises that); the last: node host2 (pid 7) is lost (its connection has ended)");
}

/* A node that leaves in good order was taken away: that is charged apart. */
static void departure_in_good_order_is_a_preemption(void **state) {
    struct peers *f = *state;
    limit(f, COORDINATOR_CHARGE_CHANGE, 0);
    limit(f, COORDINATOR_CHARGE_PREEMPTION, 1);
    peers_form(f, 1, 3, 3);
    peers_leave(f, 2, "SIGTERM");
    peers_hear(f, 0, COORDINATOR_CHANGE);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_join_many(f, 2);
    peers_hear_world(f, 0, 2, 0, 2);
    const struct heard *heard = peers_hear(f, 1, COORDINATOR_WORLD);
    assert_int_equal(heard->world.charges.preemptions, 1);
    assert_int_equal(heard->world.charges.changes, 0);
    assert_string_equal(heard->text, "node host2 (pid 7) has left: SIGTERM; charged 1 pre-emption (1 of 1)");
    peers_leave(f, 1, "SIGTERM");
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
    assert_non_null(strstr(peers_hear(f, 0, COORDINATOR_CLOSED)->text, "--rdzv-conf max_preemptions raises that"));
}

/* A newcomer is no reason to end the job: it waits until the world ends anyway. */
static void newcomer_does_not_spend_what_is_not_there(void **state) {
    struct peers *f = *state;
    limit(f, COORDINATOR_CHARGE_CHANGE, 1);
    peers_form(f, 2, 4, 4);
    peers_lose(f, 3);
    for (size_t i = 0; i < 3; i++) {
        peers_hear(f, i, COORDINATOR_CHANGE);
    }
    peers_join_many(f, 3);
    for (uint32_t i = 0; i < 3; i++) {
        peers_hear_world(f, i, 2, i, 3);
    }
    peers_join(f, 4);
    peers_hear(f, 4, COORDINATOR_SPARE);
    peers_hear_nothing(f);
    peers_report_failure(f, 0);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_hear(f, 2, COORDINATOR_CHANGE);
    peers_join_many(f, 3);
    peers_hear(f, 4, COORDINATOR_LET_IN);
    peers_hear_world(f, 4, 3, 3, 4);
    assert_charges(peers_look(f).charges, 1, 1);
}

/* Another coordinator's numbers come with the members; that it is gone is a change of membership. */
static void numbers_go_on_after_another_coordinator(void **state) {
    struct peers *f = *state;
    limit(f, COORDINATOR_CHARGE_FAILURE, 5);
    peers_begin(f, 2, 2, false);
    f->list[0].round = 40;
    f->list[0].node.charges = (struct coordinator_charges){.failures = 3, .changes = 36};
    f->list[1].round = 41;
    f->list[1].node.charges = (struct coordinator_charges){.failures = 4, .changes = 36};
    peers_join_many(f, 2);
    const struct heard *heard = peers_hear(f, 0, COORDINATOR_WORLD);
    assert_int_equal(heard->world.round, 42);
    assert_charges(heard->world.charges, 4, 37);
    assert_string_equal(heard->text, "charged 1 membership change (37 so far)");
    f->list[0].node.charges = (struct coordinator_charges){.failures = 4, .changes = 37};
    peers_report_failure(f, 1);
    peers_join_many(f, 2);
    assert_charges(peers_look(f).charges, 5, 37);
    peers_report_failure(f, 0);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
}

static void loss_of_a_coordinator_can_spend_the_budget(void **state) {
    struct peers *f = *state;
    limit(f, COORDINATOR_CHARGE_CHANGE, 36);
    peers_begin(f, 2, 2, false);
    f->list[0].round = 41;
    f->list[0].node.charges = (struct coordinator_charges){.changes = 36};
    peers_join_many(f, 2);
    hear_the_end(f, 2,
                 "its budget is spent: 37 membership changes, and 36 are allowed (--rdzv-conf max_membership_changes "
                 "raises that)");
}

static void window_forgives(void **state) {
    struct peers *f = *state;
    limit(f, COORDINATOR_CHARGE_FAILURE, 1);
    f->limits.window_ms = 60000;
    peers_form(f, 2, 2, 2);
    for (int i = 0; i < 4; i++) {
        peers_report_failure(f, 0);
        peers_hear(f, 1, COORDINATOR_CHANGE);
        peers_join_many(f, 2);
        peers_hear(f, 0, COORDINATOR_WORLD);
        assert_non_null(strstr(peers_hear(f, 1, COORDINATOR_WORLD)->text, "charged 1 failure (1 of 1 within 60 s)"));
        peers_pass_ms(f, 60000);
    }
    peers_report_failure(f, 0);
    peers_join_many(f, 2);
    peers_pass_ms(f, 59999);
    peers_report_failure(f, 0);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
    assert_charges(peers_look(f).charges, 6, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(failures_of_a_round_are_charged_once_and_spend_the_budget, peers_setup,
                                        peers_teardown),
        cmocka_unit_test_setup_teardown(first_thing_that_ends_a_world_is_charged, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(departure_spends_the_budget_of_changes, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(departure_in_good_order_is_a_preemption, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(newcomer_does_not_spend_what_is_not_there, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(numbers_go_on_after_another_coordinator, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(loss_of_a_coordinator_can_spend_the_budget, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(window_forgives, peers_setup, peers_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
