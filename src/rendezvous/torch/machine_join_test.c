/* The rules of the rendezvous machine for joining, row by row, on hand-made states and a virtual clock. */
#include "rendezvous/torch/machine_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void first_node_participates_and_waits(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    assert_turn(f, false, RDZV_VERDICT_NONE); /* nothing is known yet */
    sync_state(f);
    assert_list(f, "self", RDZV_PARTICIPANT);
    assert_false(f->machine.state.has_deadline); /* one of two */
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

static void minimum_starts_the_last_call(void **state) {
    struct fixture *f = *state;
    put(f, "a", RDZV_PARTICIPANT);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_true(f->machine.state.has_deadline);
    assert_int_equal(f->machine.state.deadline_us, f->now.wall_us + 30 * SECOND_US);
    assert_false(f->machine.state.complete); /* a first round: others may be coming */
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    for (int i = 0; i < 6; i++) { /* heartbeats go on meanwhile */
        pass_ms(f, 5000);
        put(f, "a", RDZV_PARTICIPANT);
        event(f, RDZV_EVENT_TIMER);
        if (!f->machine.state.complete) {
            struct rdzv_node a = node("a");
            rdzv_state_find(&f->machine.state, &a)->heartbeat_us = f->now.wall_us;
            commit(f);
        }
    }
    pass_ms(f, 1);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->machine.state.complete);
    assert_false(f->machine.state.has_deadline);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
    struct rdzv_node self = node("self");
    assert_int_equal(rdzv_state_find(&f->machine.state, &self)->rank, 1);
}

static void maximum_completes_at_once(void **state) {
    struct fixture *f = *state;
    put(f, "z", RDZV_PARTICIPANT);
    put(f, "a", RDZV_PARTICIPANT);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_true(f->machine.state.complete);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}

static void single_node_needs_one_write(void **state) {
    struct fixture *f = *state;
    struct rdzv_settings one = settings;
    one.min_nodes = one.max_nodes = 1;
    begin(f, &one);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_true(f->machine.state.complete);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
    event(f, RDZV_EVENT_JOIN); /* a restart: out of round 0 and into round 1 in one write too */
    assert_true(f->machine.state.complete);
    assert_int_equal(f->machine.state.round, 1);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}

static void complete_round_with_place_is_waited_for(void **state) {
    struct fixture *f = *state;
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_PARTICIPANT);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_list(f, "self", RDZV_WAITING);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

static void fill_up(struct fixture *f) {
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_PARTICIPANT);
    put(f, "c", RDZV_PARTICIPANT);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_list(f, "self", RDZV_SPARE);
}

static void full_round_makes_a_spare(void **state) {
    struct fixture *f = *state;
    fill_up(f);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    drop(f, "b"); /* a place: into the wait list, which the members see */
    sync_state(f);
    assert_list(f, "self", RDZV_WAITING);
    commit(f);
    f->stored.round++; /* the others have left */
    f->stored.complete = false;
    drop(f, "a");
    drop(f, "c");
    sync_state(f);
    assert_list(f, "self", RDZV_PARTICIPANT);
}

static void spare_never_times_out(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_PARTICIPANT);
    put(f, "c", RDZV_PARTICIPANT);
    put(f, "self", RDZV_SPARE);
    rdzv_state_complete(&f->stored);
    pass_ms(f, settings.join_timeout_ms + 10000);
    f->stored.member_count = 0;
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_PARTICIPANT);
    put(f, "c", RDZV_PARTICIPANT);
    put(f, "self", RDZV_SPARE);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    drop(f, "a"); /* and its deadline starts anew when a place comes */
    sync_state(f);
    assert_list(f, "self", RDZV_WAITING);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

/* {a, b, c} are the world, self is a spare, for longer than join_timeout; its last heartbeat is `age_ms` old. */
static void be_spare_for_long(struct fixture *f, int64_t age_ms) {
    event(f, RDZV_EVENT_JOIN);
    for (int64_t ms = 0; ms <= settings.join_timeout_ms; ms += settings.join_timeout_ms / 2) {
        pass_ms(f, settings.join_timeout_ms / 2 - age_ms);
        rdzv_state_done(&f->stored);
        put(f, "self", RDZV_SPARE);
        pass_ms(f, age_ms);
        put(f, "a", RDZV_PARTICIPANT);
        put(f, "b", RDZV_PARTICIPANT);
        put(f, "c", RDZV_PARTICIPANT);
        rdzv_state_complete(&f->stored);
        sync_state(f);
        assert_turn(f, false, RDZV_VERDICT_NONE);
    }
}

/* {a, b} of three places are the world, and c is done: this node may wait for the place as long as the job lasts. */
static void barred_node_is_not_late(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    for (int i = 0; i < 4; i++) {
        rdzv_state_done(&f->stored);
        put(f, "self", RDZV_WAITING);
        put(f, "a", RDZV_PARTICIPANT);
        put(f, "b", RDZV_PARTICIPANT);
        rdzv_state_complete(&f->stored);
        sync_state(f);
        assert_turn(f, false, RDZV_VERDICT_NONE);
        if (i == 0) {
            rdzv_machine_bar(&f->machine, f->now);
        }
        pass_ms(f, settings.join_timeout_ms - 1);
    }
    f->stored.round++; /* the next one has its own time */
    sync_state(f);
    pass_ms(f, 2);
    sync_state(f);
    assert_list(f, "self", 0);
}

static void heartbeat_of_an_old_spare_is_not_late(void **state) {
    struct fixture *f = *state;
    be_spare_for_long(f, 4500);
    assert_int_equal(f->actions.wake_ms, f->now.monotonic_ms + 501);
}

/* Its heartbeats were late on the network, and somebody has struck it: it is a spare again. */
static void old_spare_that_was_struck_comes_back(void **state) {
    struct fixture *f = *state;
    be_spare_for_long(f, 0);
    drop(f, "self");
    sync_state(f);
    assert_list(f, "self", RDZV_SPARE);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

static void waiting_node_becomes_spare_when_the_round_fills_up(void **state) {
    struct fixture *f = *state;
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_PARTICIPANT);
    put(f, "c", RDZV_PARTICIPANT);
    put(f, "self", RDZV_WAITING);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_list(f, "self", RDZV_SPARE);
}

static void closed_is_an_error_unless_spare(void **state) {
    struct fixture *f = *state;
    f->stored.closed = true;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_CLOSED);
    begin(f, &settings);
    put(f, "self", RDZV_SPARE);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_SPARE_RELEASED);
}

static void spare_on_its_way_in_is_released_too(void **state) {
    struct fixture *f = *state;
    full_round_makes_a_spare(state);
    f->stored.closed = true;
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_SPARE_RELEASED);
}

/* The job ended before the store had listed it as one. */
static void spare_that_was_not_stored_is_too_late(void **state) {
    struct fixture *f = *state;
    fill_up(f);
    f->stored.closed = true;
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_CLOSED);
}

static void renew(struct fixture *f, const char *addr) {
    struct rdzv_node n = node(addr);
    pass_ms(f, settings.keep_alive_interval_ms);
    rdzv_state_find(&f->stored, &n)->heartbeat_us = f->now.wall_us;
    sync_state(f);
}

/* "a" has the place of a job of one node, and this node comes. */
static void come_to_a_taken_job(struct fixture *f, bool knows_departures, bool serves_others) {
    struct rdzv_settings alone = settings;
    alone.min_nodes = alone.max_nodes = 1;
    alone.knows_departures = knows_departures;
    alone.serves_others = serves_others;
    begin(f, &alone);
    put(f, "a", RDZV_PARTICIPANT);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
}

static void one_node_job_refuses_another_at_once(void **state) {
    struct fixture *f = *state;
    come_to_a_taken_job(f, true, false);
    assert_turn(f, false, RDZV_VERDICT_TAKEN);
    assert_string_equal(rdzv_machine_holder(&f->machine)->addr, "a");
}

/* The store may list a node that was killed, and of which this is the successor. */
static void one_node_job_refuses_another_when_its_node_is_heard(void **state) {
    struct fixture *f = *state;
    come_to_a_taken_job(f, false, false);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    renew(f, "a");
    assert_list(f, "self", 0);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_TAKEN);
}

static void one_node_job_takes_the_place_of_a_dead_node(void **state) {
    struct fixture *f = *state;
    come_to_a_taken_job(f, false, false);
    commit(f);
    pass_ms(f, settings.expiry_ms + 1);
    sync_state(f);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}

static void host_of_a_one_node_job_stays_as_a_spare(void **state) {
    struct fixture *f = *state;
    come_to_a_taken_job(f, true, true);
    assert_list(f, "self", RDZV_SPARE);
    commit(f);
    assert_true(rdzv_machine_is_spare(&f->machine));
}

/* How many have to succeed: all that were in the world while this node was its spare. */
static void spare_knows_the_size_of_its_world(void **state) {
    struct fixture *f = *state;
    fill_up(f);
    commit(f);
    assert_true(rdzv_machine_is_spare(&f->machine));
    f->stored.closed = true;
    drop(f, "a"); /* it goes when the job is closed */
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_SPARE_RELEASED);
    assert_int_equal(f->machine.awaited_count, 3);
    assert_int_equal(f->machine.awaited_round, f->stored.round);
    assert_false(rdzv_machine_is_spare(&f->machine));
}

static void late_participant_takes_itself_out_then_fails(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    commit(f);
    pass_ms(f, settings.join_timeout_ms + 1);
    event(f, RDZV_EVENT_TIMER);
    assert_list(f, "self", 0);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_TIMEOUT);
    assert_int_equal(f->machine.phase, RDZV_PHASE_OVER);
}

static void late_waiting_node_takes_itself_out_then_fails(void **state) {
    struct fixture *f = *state;
    complete_round_with_place_is_waited_for(state);
    pass_ms(f, settings.join_timeout_ms + 1);
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_PARTICIPANT);
    sync_state(f);
    assert_list(f, "self", 0);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_TIMEOUT);
}

static void very_late_node_fails_without_a_write(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    commit(f);
    pass_ms(f, settings.join_timeout_ms + 5001);
    event(f, RDZV_EVENT_TIMER);
    assert_turn(f, false, RDZV_VERDICT_TIMEOUT);
}

static void silent_store_times_out(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    assert_int_equal(f->actions.wake_ms, f->now.monotonic_ms + settings.join_timeout_ms + 1);
    pass_ms(f, settings.join_timeout_ms + 1);
    event(f, RDZV_EVENT_TIMER);
    assert_turn(f, false, RDZV_VERDICT_TIMEOUT);
}

static void lost_write_is_decided_anew(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_true(f->actions.write);
    event(f, RDZV_EVENT_TIMER); /* while it is out, nothing is decided */
    assert_false(f->actions.write);
    put(f, "a", RDZV_PARTICIPANT); /* somebody was faster */
    put(f, "b", RDZV_PARTICIPANT);
    sync_state(f);
    assert_true(f->machine.state.complete); /* third of three */
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}

static void heartbeats_while_joining_and_member(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    commit(f);
    assert_true(f->actions.wake_ms <= f->now.monotonic_ms + 5001);
    pass_ms(f, 4999);
    event(f, RDZV_EVENT_TIMER);
    assert_false(f->actions.write);
    pass_ms(f, 1);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->actions.write);
    struct rdzv_node self = node("self");
    const struct rdzv_member *stored = rdzv_state_find(&f->machine.state, &self);
    assert_in_range(f->now.wall_us - stored->heartbeat_us, 0, 2000);
    assert_int_equal(rdzv_member_lease(stored), RDZV_LEASE_SILENCE); /* an elastic job */
    commit(f);
    f->now.wall_us -= 3600 * SECOND_US; /* the clock is set back: no hour of silence */
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->actions.write);
}

static void round_with_a_hole_is_left(void **state) {
    struct fixture *f = *state;
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "self", RDZV_PARTICIPANT);
    rdzv_state_complete(&f->stored); /* self is rank 1 */
    drop(f, "a");
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_int_equal(f->machine.state.round, 1);
    assert_list(f, "self", RDZV_PARTICIPANT);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

/* Of {a, self, z} z looks silent by our clock, and would be the last rank: no world of two beside the others' of three.
 */
static void round_with_a_member_that_looks_silent_is_left(void **state) {
    struct fixture *f = *state;
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "self", RDZV_PARTICIPANT);
    put_aged(f, "z", RDZV_PARTICIPANT, 16);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_turn(f, true, RDZV_VERDICT_NONE);
    assert_list(f, "self", RDZV_WAITING);
}
int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(first_node_participates_and_waits),
        TEST(minimum_starts_the_last_call),
        TEST(maximum_completes_at_once),
        TEST(single_node_needs_one_write),
        TEST(complete_round_with_place_is_waited_for),
        TEST(full_round_makes_a_spare),
        TEST(spare_never_times_out),
        TEST(heartbeat_of_an_old_spare_is_not_late),
        TEST(barred_node_is_not_late),
        TEST(old_spare_that_was_struck_comes_back),
        TEST(waiting_node_becomes_spare_when_the_round_fills_up),
        TEST(closed_is_an_error_unless_spare),
        TEST(spare_on_its_way_in_is_released_too),
        TEST(spare_that_was_not_stored_is_too_late),
        TEST(one_node_job_refuses_another_at_once),
        TEST(one_node_job_refuses_another_when_its_node_is_heard),
        TEST(one_node_job_takes_the_place_of_a_dead_node),
        TEST(host_of_a_one_node_job_stays_as_a_spare),
        TEST(spare_knows_the_size_of_its_world),
        TEST(late_participant_takes_itself_out_then_fails),
        TEST(late_waiting_node_takes_itself_out_then_fails),
        TEST(very_late_node_fails_without_a_write),
        TEST(silent_store_times_out),
        TEST(lost_write_is_decided_anew),
        TEST(heartbeats_while_joining_and_member),
        TEST(round_with_a_hole_is_left),
        TEST(round_with_a_member_that_looks_silent_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
