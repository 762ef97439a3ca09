/* Several endpoints: the stop of the whole job goes on at the next coordinator when the one that has told it dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"

enum { GRACE_MS = 60000, WORLD = 4 /* nodes of round 4, which the node of rank 0 has served */ };

static void come(struct peers *f, size_t i, uint64_t stop_ms, bool is_done) {
    struct peer *peer = &f->list[i];
    peer->round = peer->node.known_round = 4;
    peer->node.last_world_size = WORLD;
    peer->node.last_group_rank = (uint32_t)i;
    peer->node.fate = COORDINATOR_DEAD;
    peer->node.stop_ms = stop_ms;
    peer->node.is_done = is_done;
    peers_join(f, i);
}

static void hear_stop(struct peers *f, size_t i, uint64_t grace_ms) {
    const struct heard *heard = peers_hear(f, i, COORDINATOR_STOP);
    assert_int_equal(heard->grace_ms, grace_ms);
    assert_non_null(strstr(heard->text, "node host1 (pid 7) says that the job stops"));
}

/* Node 1 has heard it before the host died, node 2 waits for the next world, node 3 comes later. */
static void who_has_not_heard_it_hears_it_at_the_next(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, WORLD, 1);
    come(f, 2, 0, false);
    peers_hear_nothing(f);
    come(f, 1, GRACE_MS, false);
    hear_stop(f, 1, GRACE_MS);
    hear_stop(f, 2, GRACE_MS);
    peers_leave(f, 2, "the job stops");
    peers_pass_ms(f, 1000);
    come(f, 3, 0, false);
    hear_stop(f, 3, GRACE_MS - 1000);
    peers_hear_nothing(f);
    assert_true(peers_look(f).is_stopping);
    peers_done(f, 1);
    peers_hear(f, 1, COORDINATOR_ALL_DONE); /* nobody else can come */
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
    assert_int_equal(peers_look(f).charges.changes, 0);
}

/* Those who are done wait for those who still save, and who may need the stores of others for it. */
static void survivors_wait_for_the_last(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, WORLD, WORLD, 1);
    come(f, 1, GRACE_MS, true);
    hear_stop(f, 1, GRACE_MS);
    come(f, 2, GRACE_MS, false);
    hear_stop(f, 2, GRACE_MS);
    peers_done(f, 2);
    peers_hear_nothing(f);
    come(f, 3, GRACE_MS, false);
    hear_stop(f, 3, GRACE_MS);
    come(f, 3, GRACE_MS, false); /* says more of its coordinator: told already */
    peers_hear_nothing(f);
    peers_done(f, 3);
    for (size_t i = 1; i < WORLD; i++) {
        peers_hear(f, i, COORDINATOR_ALL_DONE);
    }
    peers_hear_nothing(f);
}

static void who_never_comes_is_not_waited_for_long(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, WORLD, WORLD, 1);
    come(f, 1, GRACE_MS, true);
    hear_stop(f, 1, GRACE_MS);
    come(f, 2, GRACE_MS, false);
    hear_stop(f, 2, GRACE_MS);
    peers_lose(f, 2);
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + 1);
    peers_pass_ms(f, 1);
    peers_hear(f, 1, COORDINATOR_ALL_DONE);
    peers_hear_nothing(f);
}

static void who_comes_after_the_end_hears_of_it(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 2, 1);
    come(f, 1, GRACE_MS, true);
    hear_stop(f, 1, GRACE_MS);
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS);
    peers_hear(f, 1, COORDINATOR_ALL_DONE);
    come(f, 2, 0, false);
    assert_int_equal(peers_hear(f, 2, COORDINATOR_STOP)->grace_ms, GRACE_MS - PEERS_SILENCE_MS - PEERS_STOP_MS);
    come(f, 3, GRACE_MS, false); /* knows, and need not wait for anybody */
    peers_hear_change(f, 3, COORDINATOR_NODE_LEFT, "");
    peers_join(f, 4);
    peers_hear_refusal(f, 4, MUSTER_EABORTED, "had no part in the job: the job is over");
    peers_hear_nothing(f);
}

/* The one that was taken away has left its workers behind, has told of it, and is gone before anybody else comes. */
static void a_stop_outlives_who_has_brought_it(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, WORLD, 1);
    come(f, 1, GRACE_MS, true);
    hear_stop(f, 1, GRACE_MS);
    peers_leave(f, 1, "its node is taken away");
    peers_pass_ms(f, 1000);
    come(f, 2, 0, false);
    hear_stop(f, 2, GRACE_MS - 1000);
    peers_hear_nothing(f);
}

static void a_world_that_has_gone_on_does_not_stop(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, WORLD, 1);
    come(f, 2, 0, false);
    come(f, 3, 0, false);
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS);
    peers_hear_world(f, 2, 5, 0, 2);
    peers_hear_world(f, 3, 5, 1, 2);
    come(f, 1, GRACE_MS, false);
    peers_hear_change(f, 1, COORDINATOR_NODE_LEFT, "");
    peers_hear_nothing(f);
    assert_false(peers_look(f).is_stopping);
    assert_int_equal(peers_look(f).phase, COORDINATOR_RUNNING);
}

static void spares_are_let_go(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 2, 1);
    peers_join(f, 4);
    peers_join(f, 5);
    peers_join(f, 6);
    peers_hear_world(f, 4, 2, 0, 2);
    peers_hear_world(f, 5, 2, 1, 2);
    peers_hear(f, 6, COORDINATOR_SPARE);
    peers_preempt(f, 4, GRACE_MS);
    peers_hear(f, 4, COORDINATOR_STOP);
    peers_hear(f, 5, COORDINATOR_STOP);
    peers_hear(f, 6, COORDINATOR_STOP);
    peers_hear_nothing(f);
}

/* With one endpoint whoever serves it now may be another job's. */
static void one_endpoint_takes_no_stop(void **state) {
    struct peers *f = *state;
    peers_begin(f, 1, 2, false);
    f->list[1].node.last_host_rank = 0;
    come(f, 1, GRACE_MS, false);
    peers_hear_change(f, 1, COORDINATOR_NODE_LEFT, "");
    peers_hear_nothing(f);
    assert_false(peers_look(f).is_stopping);
}

#define PEERS_TEST(name) cmocka_unit_test_setup_teardown(name, peers_setup, peers_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        PEERS_TEST(who_has_not_heard_it_hears_it_at_the_next),
        PEERS_TEST(survivors_wait_for_the_last),
        PEERS_TEST(who_never_comes_is_not_waited_for_long),
        PEERS_TEST(who_comes_after_the_end_hears_of_it),
        PEERS_TEST(a_stop_outlives_who_has_brought_it),
        PEERS_TEST(a_world_that_has_gone_on_does_not_stop),
        PEERS_TEST(spares_are_let_go),
        PEERS_TEST(one_endpoint_takes_no_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
