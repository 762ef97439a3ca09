/* The coordinator's rules for rounds, changes, spares and the end of a job, on a virtual clock. */
#include "rendezvous/coordinator/coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"

/* ---- the first round ---- */

static void first_round_closes_when_all_are_there(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 3, false);
    peers_join_many(f, 2);
    peers_hear_nothing(f);
    peers_join(f, 2);
    for (uint32_t i = 0; i < 3; i++) {
        peers_hear_world(f, i, 1, i, 3);
    }
    peers_hear_nothing(f);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    assert_int_equal(peers_look(f).active_count, 3);
}

static void first_round_closes_after_the_last_call(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 4, false);
    peers_join(f, 0);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    peers_pass_ms(f, 100000);
    peers_join(f, 1);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + PEERS_LAST_CALL_MS);
    peers_pass_ms(f, 20000);
    peers_join(f, 2);
    peers_pass_ms(f, PEERS_LAST_CALL_MS - 20001);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    for (uint32_t i = 0; i < 3; i++) {
        peers_hear_world(f, i, 1, i, 3);
    }
}

static void last_call_begins_anew_when_too_few_remain(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 4, false);
    peers_join_many(f, 2);
    peers_lose(f, 1);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    peers_hear_nothing(f);
    peers_join(f, 2);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + PEERS_LAST_CALL_MS);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    peers_hear_world(f, 0, 1, 0, 2);
    peers_hear_world(f, 2, 1, 1, 2);
    peers_hear_nothing(f);
}

static void joining_twice_counts_once(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 2, false);
    peers_join(f, 0);
    f->list[0].node.local_world_size = 5;
    peers_join(f, 0);
    assert_int_equal(peers_look(f).joined_count, 1);
    peers_hear_nothing(f);
    peers_join(f, 1);
    assert_int_equal(peers_hear(f, 0, COORDINATOR_WORLD)->world.global_world_size, 7);
    /* One that was on its way when the world was told breaks nothing. */
    f->list[0].round = 0;
    peers_join(f, 0);
    peers_hear_world(f, 1, 1, 1, 2);
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_RUNNING);
}

static void round_numbers_go_on_after_another_coordinator(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 2, false);
    f->list[1].round = 41;
    peers_join_many(f, 2);
    peers_hear_world(f, 0, 42, 0, 2);
    peers_hear_world(f, 1, 42, 1, 2);
}

/* ---- later rounds ---- */

static void failure_is_told_at_once_and_once(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 3, 3);
    peers_report_failure(f, 1);
    peers_hear_change(f, 0, COORDINATOR_NODE_FAILED, "node host1 (pid 7) failed: rank 3 has died");
    peers_hear_change(f, 2, COORDINATOR_NODE_FAILED, "node host1 (pid 7) failed: rank 3 has died");
    peers_hear_nothing(f);
    peers_report_failure(f, 2);
    peers_join(f, 2);
    peers_join(f, 0);
    peers_hear_nothing(f);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    peers_join(f, 1); /* the last answer: no timer */
    peers_hear_world(f, 0, 2, 0, 3);
    peers_hear_world(f, 1, 2, 1, 3);
    assert_string_equal(peers_hear(f, 2, COORDINATOR_WORLD)->text, "node host1 (pid 7) failed: rank 3 has died; "
                                                                   "node host2 (pid 7) failed: rank 3 has died; "
                                                                   "charged 1 failure (1 so far)");
    peers_hear_nothing(f);
}

static void departure_and_loss_are_told(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 3, 3);
    peers_leave(f, 0, "SIGTERM");
    peers_hear_change(f, 1, COORDINATOR_NODE_LEFT, "node host0 (pid 7) has left: SIGTERM");
    peers_hear(f, 2, COORDINATOR_CHANGE);
    peers_join(f, 2);
    peers_hear_nothing(f);
    peers_lose(f, 1);
    assert_string_equal(peers_hear(f, 2, COORDINATOR_WORLD)->text,
                        "node host0 (pid 7) has left: SIGTERM; node host1 (pid 7) is lost (its connection has ended); "
                        "charged 1 pre-emption (1 so far)");
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).active_count, 1);
    assert_int_equal(peers_look(f).member_count, 1);
}

static void unasked_join_is_a_change(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_join(f, 1);
    peers_hear_change(f, 0, COORDINATOR_NODE_LEFT, "node host1 (pid 7) joins anew");
    peers_hear_nothing(f);
    peers_join(f, 0);
    peers_hear_world(f, 0, 2, 0, 2);
    peers_hear_world(f, 1, 2, 1, 2);
}

/* Whatever else happens while a round is open. */
static void later_troubles_are_the_same_change(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 5, 5);
    peers_lose(f, 4);
    for (size_t i = 0; i < 4; i++) {
        peers_hear(f, i, COORDINATOR_CHANGE);
    }
    peers_join(f, 0);
    peers_report_failure(f, 1);
    peers_leave(f, 2, "SIGINT");
    peers_lose(f, 0); /* had answered */
    peers_join(f, 5);
    peers_join(f, 1);
    peers_hear_nothing(f);
    peers_join(f, 3);
    peers_hear_world(f, 1, 2, 0, 3);
    peers_hear_world(f, 3, 2, 1, 3);
    peers_hear_world(f, 5, 2, 2, 3);
}

/* A repeated JOIN that was on its way when the world was told does not answer the change that follows. */
static void stale_join_is_no_answer(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 3, 3);
    peers_lose(f, 2);
    peers_hear(f, 0, COORDINATOR_CHANGE);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    f->list[0].round = 0;
    peers_join(f, 0);
    peers_join(f, 1);
    peers_hear_nothing(f);
    f->list[0].round = 1;
    peers_join(f, 0);
    peers_hear_world(f, 0, 2, 0, 2);
    peers_hear_world(f, 1, 2, 1, 2);
}

static void round_waits_for_enough(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_lose(f, 0);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_join(f, 1);
    peers_pass_ms(f, 10 * PEERS_LAST_CALL_MS);
    peers_hear_nothing(f);
    peers_join(f, 2);
    peers_hear_world(f, 1, 2, 0, 2);
    peers_hear_world(f, 2, 2, 1, 2);
}

static void given_last_call_is_obeyed_in_every_round(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 3, true);
    peers_join_many(f, 3);
    peers_lose(f, 2);
    peers_join_many(f, 2);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + PEERS_LAST_CALL_MS);
    peers_pass_ms(f, PEERS_LAST_CALL_MS - 1);
    assert_int_equal(peers_look(f).phase, COORDINATOR_FORMING);
    peers_pass_ms(f, 1);
    assert_int_equal(peers_look(f).round, 2);
    peers_lose(f, 1);
    peers_join(f, 0);
    peers_join(f, 1);
    peers_join(f, 2); /* full: nobody else can come */
    assert_int_equal(peers_look(f).round, 3);
}

static void round_to_which_nobody_came_back_is_like_a_first_one(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 3, 3);
    for (size_t i = 0; i < 3; i++) {
        peers_lose(f, i);
    }
    assert_int_equal(peers_look(f).phase, COORDINATOR_FORMING);
    f->list[1].looked_at = f->list[1].heard_count;
    f->list[2].looked_at = f->list[2].heard_count;
    peers_join(f, 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1000);
    peers_join(f, 2);
    peers_hear_nothing(f);
    peers_pass_ms(f, PEERS_LAST_CALL_MS - 1000);
    peers_hear_world(f, 1, 2, 0, 2);
    peers_hear_world(f, 2, 2, 1, 2);
}

static void round_whose_last_returning_node_goes_needs_a_last_call(void **state) {
    struct peers *f = *state;
    peers_begin(f, 3, 4, false);
    peers_join_many(f, 4);
    peers_lose(f, 3);
    peers_lose(f, 2);
    peers_join_many(f, 2); /* two of three that are needed */
    peers_lose(f, 0);
    peers_join(f, 4);
    peers_lose(f, 1); /* only newcomers are left */
    for (size_t i = 5; i < 7; i++) {
        peers_join(f, i);
    }
    assert_int_equal(peers_look(f).phase, COORDINATOR_FORMING);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + PEERS_LAST_CALL_MS);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    assert_int_equal(peers_look(f).round, 2);
}

/* ---- newcomers and spares ---- */

static void newcomer_with_a_free_place_is_a_change(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 4, 2);
    peers_join(f, 2);
    peers_hear_change(f, 0, COORDINATOR_NODE_ARRIVED, "node host2 (pid 7) has come");
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_join(f, 3); /* part of the same change */
    peers_hear_nothing(f);
    peers_join_many(f, 2);
    for (uint32_t i = 0; i < 4; i++) {
        peers_hear_world(f, i, 2, i, 4);
    }
}

static void spares_are_let_in_in_their_order(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_join(f, 5);
    peers_join(f, 4);
    peers_join(f, 3);
    for (size_t i = 3; i < 6; i++) {
        peers_hear(f, i, COORDINATOR_SPARE);
    }
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).spare_count, 3);
    peers_lose(f, 0);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    assert_int_equal(peers_look(f).spare_count, 2);
    peers_hear(f, 5, COORDINATOR_LET_IN); /* at once: from now on it waits for others, not for a place */
    peers_join(f, 1);
    peers_hear_world(f, 1, 2, 0, 2);
    peers_hear_world(f, 5, 2, 1, 2);
    peers_leave(f, 4, "not needed");
    peers_lose(f, 1);
    peers_hear(f, 5, COORDINATOR_CHANGE);
    peers_hear(f, 3, COORDINATOR_LET_IN);
    peers_lose(f, 3); /* goes before the round closes */
    peers_join(f, 5);
    peers_hear_nothing(f);
    peers_join(f, 6);
    peers_hear_world(f, 5, 3, 0, 2);
    peers_hear_world(f, 6, 3, 1, 2);
}

static void more_spares_than_wanted_are_refused(void **state) {
    struct peers *f = *state;
    f->limits_spares = true;
    f->max_spares = 1;
    peers_form(f, 2, 2, 2);
    peers_join(f, 3);
    peers_hear(f, 3, COORDINATOR_SPARE);
    peers_join(f, 4);
    peers_hear_refusal(f, 4, MUSTER_ELIMIT, "--spares");
    peers_lose(f, 0); /* the spare takes the place, so another one may wait */
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_join(f, 5);
    peers_hear(f, 5, COORDINATOR_SPARE);
    peers_join(f, 1);
    peers_hear_world(f, 1, 2, 0, 2);
    peers_hear(f, 3, COORDINATOR_LET_IN);
    peers_hear_world(f, 3, 2, 1, 2);
    peers_hear_nothing(f);
}

/* Once somebody is done nobody is let in, but a node that there is a place for is not one too many. */
static void a_one_node_job_refuses_another(void **state) {
    struct peers *f = *state;
    peers_begin(f, 1, 1, false);
    peers_join(f, 0);
    peers_hear(f, 0, COORDINATOR_WORLD);
    peers_join(f, 1);
    peers_hear_refusal(f, 1, MUSTER_ELIMIT, "node host0 (pid 7)");
    peers_hear_nothing(f);
}

static void a_one_node_job_may_have_warm_spares(void **state) {
    struct peers *f = *state;
    f->limits_spares = true;
    f->max_spares = 1;
    peers_begin(f, 1, 1, false);
    peers_join(f, 0);
    peers_hear(f, 0, COORDINATOR_WORLD);
    peers_join(f, 1);
    peers_hear(f, 1, COORDINATOR_SPARE);
    peers_hear_nothing(f);
}

static void who_waits_for_an_empty_place_is_no_spare_too_many(void **state) {
    struct peers *f = *state;
    f->limits_spares = true;
    f->max_spares = 1;
    peers_form(f, 2, 3, 2);
    peers_done(f, 0);
    peers_join(f, 2);
    peers_hear(f, 2, COORDINATOR_SPARE);
    peers_join(f, 3);
    peers_hear(f, 3, COORDINATOR_SPARE);
    peers_join(f, 4);
    peers_hear_refusal(f, 4, MUSTER_ELIMIT, "--spares");
}

static void assert_waits(struct peers *f, const char *expected) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    (void)coordinator_waits_for(f->coordinator, f->now_ms, text);
    assert_string_equal(text, expected);
}

/* Who is missing, of how many, since when; bounded however many there are. */
static void missing_nodes_are_named(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 8, false);
    assert_waits(f, "0 of 2 to 8 nodes have joined; 2 more must come");
    peers_join(f, 0);
    assert_waits(f, "1 of 2 to 8 nodes have joined: host0 (pid 7); 1 more must come");
    peers_join_many(f, 7);
    peers_pass_ms(f, 1);
    assert_waits(f, "7 of 2 to 8 nodes have joined: host0 (pid 7), host1 (pid 7), host2 (pid 7), host3 (pid 7) and 3 "
                    "more; enough, the last call ends in 30 s");
    peers_join(f, 7);
    assert_waits(f, "");
    peers_report_failure(f, 7);
    peers_pass_ms(f, 12345);
    peers_join_many(f, 6);
    assert_waits(f, "6 of 2 to 8 nodes have joined: host0 (pid 7), host1 (pid 7), host2 (pid 7), host3 (pid 7) and 2 "
                    "more; of round 1, which ended 12 s ago, 2 of 8 have not answered: host6 (pid 7), host7 (pid 7)");
    peers_lose(f, 6);
    assert_waits(f, "6 of 2 to 8 nodes have joined: host0 (pid 7), host1 (pid 7), host2 (pid 7), host3 (pid 7) and 2 "
                    "more; of round 1, which ended 12 s ago, 1 of 8 has not answered: host7 (pid 7)");
}

static void newcomer_takes_no_place_of_a_member_that_will_come_back(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 2, 2);
    peers_report_failure(f, 0);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_join(f, 2);
    peers_hear(f, 2, COORDINATOR_SPARE);
    peers_join_many(f, 2);
    peers_hear_world(f, 0, 2, 0, 2);
    peers_hear_world(f, 1, 2, 1, 2);
    peers_hear_nothing(f);
}

/* ---- the end ---- */

static void all_done_ends_the_job(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 3, 3);
    peers_join(f, 3);
    peers_hear(f, 3, COORDINATOR_SPARE);
    peers_done(f, 0);
    peers_done(f, 2);
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).done_count, 2);
    peers_done(f, 1);
    for (size_t i = 0; i < 3; i++) {
        peers_hear(f, i, COORDINATOR_ALL_DONE);
    }
    assert_string_equal(peers_hear(f, 3, COORDINATOR_CLOSED)->text, "all nodes that took part are done");
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
    assert_int_equal(peers_look(f).member_count, 4);
    coordinator_close(f->coordinator, f->list[0].member, kv_slice_text("late"), true);
    for (size_t i = 0; i < 4; i++) {
        peers_lose(f, i);
    }
    assert_int_equal(peers_look(f).member_count, 0);
    peers_hear_nothing(f);
}

static void the_gone_are_not_waited_for_by_the_done(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 4, 4);
    peers_done(f, 0);
    peers_done(f, 1);
    peers_lose(f, 1); /* a node that is done harms nobody by going */
    peers_hear_nothing(f);
    peers_done(f, 2);
    peers_join(f, 4); /* nor does a newcomer, though there is a place */
    peers_hear(f, 4, COORDINATOR_SPARE);
    peers_lose(f, 3);
    peers_hear(f, 0, COORDINATOR_ALL_DONE);
    peers_hear(f, 2, COORDINATOR_ALL_DONE);
    peers_hear(f, 4, COORDINATOR_CLOSED);
    peers_hear_nothing(f);
}

static void the_done_have_no_part_in_the_next_world(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 4, 4);
    peers_join(f, 4);
    peers_hear(f, 4, COORDINATOR_SPARE);
    peers_done(f, 0);
    peers_report_failure(f, 1);
    for (size_t i = 0; i < 4; i += i == 0 ? 2 : 1) {
        peers_hear(f, i, COORDINATOR_CHANGE);
    }
    peers_hear(f, 4, COORDINATOR_LET_IN);
    peers_done(f, 2); /* its word and the change have crossed */
    peers_hear_nothing(f);
    peers_join(f, 3);
    peers_join(f, 1);
    peers_hear_world(f, 1, 2, 0, 3);
    peers_hear_world(f, 3, 2, 1, 3);
    peers_hear_world(f, 4, 2, 2, 3);
    peers_hear_nothing(f);
    peers_join(f, 0);
    peers_hear_refusal(f, 0, MUSTER_EPROTOCOL, "is done");
    assert_int_equal(peers_look(f).active_count, 3);
}

/* A member is lost, the others had all succeeded by then: nothing remains to be done. */
static void change_that_finds_everybody_done_ends_the_job(void **state) {
    struct peers *f = *state;
    peers_form(f, 1, 3, 3);
    peers_join(f, 3);
    peers_hear(f, 3, COORDINATOR_SPARE);
    peers_lose(f, 2);
    peers_hear(f, 0, COORDINATOR_CHANGE);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_hear(f, 3, COORDINATOR_LET_IN);
    peers_done(f, 0);
    peers_hear_nothing(f);
    peers_done(f, 1);
    peers_hear(f, 3, COORDINATOR_CLOSED);
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
}

static void closed_job_tells_all_and_refuses(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_join(f, 2);
    peers_hear(f, 2, COORDINATOR_SPARE);
    coordinator_close(f->coordinator, f->list[1].member, kv_slice_text("no restart is left"), true);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(peers_hear(f, i, COORDINATOR_CLOSED)->text, "no restart is left");
    }
    peers_join(f, 3);
    peers_hear_refusal(f, 3, MUSTER_EABORTED, "the job has failed (no restart is left)");
    peers_join(f, 0); /* crossed with CLOSED */
    peers_lose(f, 1);
    peers_report_failure(f, 0);
    peers_done(f, 0);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    peers_hear_nothing(f);
}

static void node_that_closes_is_named(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    coordinator_close(f->coordinator, f->list[1].member, kv_slice_text(""), true);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(peers_hear(f, i, COORDINATOR_CLOSED)->text, "node host1 (pid 7) has ended it");
    }
    peers_join(f, 3);
    peers_hear_refusal(f, 3, MUSTER_EABORTED, "the job has failed (node host1 (pid 7) has ended it)");
}

static void long_reason_is_told_whole_and_cut_where_it_is_a_part(void **state) {
    enum { REPEATS = 300 };
    struct peers *f = *state;
    char why[3 * REPEATS + 1];
    for (size_t i = 0; i < REPEATS; i++) {
        memcpy(why + 3 * i, "\xe2\x82\xac", 4);
    }
    peers_form(f, 1, 1, 1);
    coordinator_close(f->coordinator, f->list[0].member, kv_slice_text(why), true);
    assert_string_equal(peers_hear(f, 0, COORDINATOR_CLOSED)->text, why);
    peers_join(f, 1);
    peers_hear_refusal(f, 1, MUSTER_EABORTED, "\xe2\x82\xac): start it anew");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(first_round_closes_when_all_are_there, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(first_round_closes_after_the_last_call, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(last_call_begins_anew_when_too_few_remain, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(node_that_closes_is_named, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(joining_twice_counts_once, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(round_numbers_go_on_after_another_coordinator, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(failure_is_told_at_once_and_once, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(departure_and_loss_are_told, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(unasked_join_is_a_change, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(later_troubles_are_the_same_change, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(stale_join_is_no_answer, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(round_waits_for_enough, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(given_last_call_is_obeyed_in_every_round, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(round_to_which_nobody_came_back_is_like_a_first_one, peers_setup,
                                        peers_teardown),
        cmocka_unit_test_setup_teardown(round_whose_last_returning_node_goes_needs_a_last_call, peers_setup,
                                        peers_teardown),
        cmocka_unit_test_setup_teardown(newcomer_with_a_free_place_is_a_change, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(spares_are_let_in_in_their_order, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(more_spares_than_wanted_are_refused, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(a_one_node_job_refuses_another, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(a_one_node_job_may_have_warm_spares, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(who_waits_for_an_empty_place_is_no_spare_too_many, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(missing_nodes_are_named, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(newcomer_takes_no_place_of_a_member_that_will_come_back, peers_setup,
                                        peers_teardown),
        cmocka_unit_test_setup_teardown(all_done_ends_the_job, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(the_gone_are_not_waited_for_by_the_done, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(the_done_have_no_part_in_the_next_world, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(change_that_finds_everybody_done_ends_the_job, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(closed_job_tells_all_and_refuses, peers_setup, peers_teardown),
        cmocka_unit_test_setup_teardown(long_reason_is_told_whole_and_cut_where_it_is_a_part, peers_setup,
                                        peers_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
