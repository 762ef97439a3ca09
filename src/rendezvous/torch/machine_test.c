/* The rules of the rendezvous machine for members, later rounds and the end, on hand-made states and a virtual clock.
 * Those for joining are in machine_join_test.c. */
#include "rendezvous/torch/machine_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ---- members ---- */

static void missing_member_is_told_once(void **state) {
    struct fixture *f = *state;
    become_member(f);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    drop(f, "a");
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    pass_ms(f, 5000); /* still a participant, so still alive */
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->actions.write);
}

static void arrival_is_told_only_if_there_is_a_place(void **state) {
    struct fixture *f = *state;
    become_member(f);
    put(f, "c", RDZV_SPARE);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    put(f, "c", RDZV_WAITING);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_ARRIVED);

    struct rdzv_settings two = settings;
    two.max_nodes = 2;
    begin(f, &two);
    f->stored.member_count = 0;
    become_member(f);
    put(f, "c", RDZV_WAITING);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

/* Between completion and ranks, and in the exit barrier, only the departure counts. */
static void departure_is_told_after_an_arrival(void **state) {
    struct fixture *f = *state;
    become_member(f);
    put(f, "c", RDZV_WAITING);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_ARRIVED);
    drop(f, "a");
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    put(f, "d", RDZV_WAITING);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

static void dropped_member_notices_and_rejoins(void **state) {
    struct fixture *f = *state;
    become_member(f);
    drop(f, "self");
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    event(f, RDZV_EVENT_JOIN);
    assert_list(f, "self", RDZV_WAITING);
}

static void next_round_without_us_is_noticed(void **state) {
    struct fixture *f = *state;
    become_member(f);
    f->stored.round++;
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
}

static void closed_job_tells_who_leaves(void **state) {
    struct fixture *f = *state;
    become_member(f);
    f->stored.closed = true;
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    drop(f, "a");
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT); /* what that means is for others to say */
}

static void excused_members_are_not_missed(void **state) {
    struct fixture *f = *state;
    become_member(f);
    drop(f, "a");
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    rdzv_machine_excuse(&f->machine);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

static void become_member_from_one(struct fixture *f) {
    struct rdzv_settings from_one = settings;
    from_one.min_nodes = 1;
    begin(f, &from_one);
    become_member(f);
}

static void silence_of_a_member_is_asked_about_then_judged(void **state) {
    struct fixture *f = *state;
    become_member_from_one(f);
    pass_ms(f, 15001);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->actions.read || f->actions.write); /* its own heartbeat is due as well */
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    assert_list(f, "a", 0);
}

/* This node was away for 60 s, which its clock does not count, and others may have been, too. */
static void silence_is_not_judged_right_after_an_absence(void **state) {
    struct fixture *f = *state;
    become_member_from_one(f);
    f->now.wall_us += 60 * SECOND_US;
    f->now.monotonic_ms += 14000;
    f->now.judges_from_ms = f->now.monotonic_ms + 5000;
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    pass_ms(f, 4999); /* 18,999 ms of silence by the clock */
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    assert_list(f, "a", RDZV_PARTICIPANT);
    assert_true(f->actions.wake_ms <= f->now.judges_from_ms);
    pass_ms(f, 1);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
}

/* The store was away for 60 s: the first answer still has the old heartbeats. */
static void silence_of_the_store_is_not_the_members(void **state) {
    struct fixture *f = *state;
    become_member_from_one(f);
    pass_ms(f, 1000);
    put(f, "a", RDZV_PARTICIPANT);
    sync_state(f);
    pass_ms(f, 62000);
    rdzv_roster_excuse(&f->machine.roster, 60000, f->now);
    f->now.judges_from_ms = f->now.monotonic_ms + 6000;
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    pass_ms(f, 12999); /* with the two seconds before, less than the silence that is judged */
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    assert_list(f, "a", RDZV_PARTICIPANT);
    pass_ms(f, 2);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
}

static void member_that_is_needed_keeps_its_place(void **state) {
    struct fixture *f = *state;
    become_member(f);
    pass_ms(f, 20000);
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    assert_list(f, "a", RDZV_PARTICIPANT);
    assert_true(f->machine.has_silent);
    put(f, "a", RDZV_PARTICIPANT); /* it is back */
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    assert_false(f->machine.has_silent);
}

static void place_of_a_silent_member_is_kept_as_long_as_a_world_is_waited_for(void **state) {
    struct fixture *f = *state;
    become_member(f);
    pass_ms(f, settings.expiry_ms + settings.join_timeout_ms - 1);
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    pass_ms(f, 1);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
}

/* One that waits or is a spare can take its place. */
static void place_of_a_silent_member_is_for_another(void **state) {
    struct fixture *f = *state;
    become_member(f);
    pass_ms(f, 20000);
    put(f, "self", RDZV_PARTICIPANT);
    put(f, "c", RDZV_WAITING);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    assert_list(f, "a", 0);
}

/* Who joins takes the place of a silent node: members see that it is gone. */
static void node_that_joins_does_not_keep_a_silent_one(void **state) {
    struct fixture *f = *state;
    f->stored.round = 4;
    put(f, "b", RDZV_PARTICIPANT);
    put(f, "c", RDZV_PARTICIPANT);
    put_aged(f, "a", RDZV_PARTICIPANT, 16);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_true(f->actions.write);
    assert_list(f, "a", 0);
    assert_list(f, "self", RDZV_WAITING);
}

/* ---- the next round ---- */

static void restart_leaves_and_waits_in_one_write(void **state) {
    struct fixture *f = *state;
    become_member(f);
    event(f, RDZV_EVENT_JOIN);
    assert_list(f, "self", RDZV_WAITING);
    assert_int_equal(f->machine.state.round, 4);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE); /* not JOINED: round 4 is the one it left */
}

/* An answer of the store may be older than what this node has seen. Alone it would complete round after round, to leave
 * each as an old one. */
static void old_state_of_a_lonely_node_is_left_at_once(void **state) {
    struct fixture *f = *state;
    struct rdzv_settings alone = settings;
    alone.min_nodes = alone.max_nodes = 1;
    begin(f, &alone);
    put(f, "self", RDZV_PARTICIPANT);
    rdzv_state_complete(&f->stored);
    f->stored.round = 9;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
    f->stored.round = 2;
    sync_state(f);
    event(f, RDZV_EVENT_JOIN);
    assert_turn(f, true, RDZV_VERDICT_NONE);
    assert_int_equal(f->machine.state.round, 10);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}

static void round_after_a_departure_closes_when_all_alive_are_in(void **state) {
    struct fixture *f = *state;
    struct rdzv_settings from_one = settings;
    from_one.min_nodes = 1;
    begin(f, &from_one);
    become_member(f);
    struct rdzv_node a = node("a");
    assert_true(rdzv_state_remove_dead(&f->stored, &a, 1));
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    event(f, RDZV_EVENT_JOIN);
    assert_int_equal(f->machine.state.round, 5);
    assert_true(f->machine.state.complete); /* nobody else is alive: one write, no last call */
    assert_null(rdzv_state_find(&f->machine.state, &a));
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}

static void round_after_a_failure_waits_for_the_living(void **state) {
    struct fixture *f = *state;
    struct rdzv_settings from_one = settings;
    from_one.min_nodes = 1;
    begin(f, &from_one);
    become_member(f);
    drop(f, "a"); /* has left to join again: in no list for a moment */
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    event(f, RDZV_EVENT_JOIN);
    assert_false(f->machine.state.complete);
    commit(f);
    put(f, "a", RDZV_PARTICIPANT);
    sync_state(f);
    assert_true(f->machine.state.complete);
}

static void absent_node_is_not_waited_for_longer_than_the_grace(void **state) {
    struct fixture *f = *state;
    struct rdzv_settings from_one = settings;
    from_one.min_nodes = 1;
    begin(f, &from_one);
    become_member(f);
    drop(f, "a");
    sync_state(f);
    event(f, RDZV_EVENT_JOIN);
    commit(f);
    assert_int_equal(f->actions.wake_ms, f->now.monotonic_ms + RDZV_ABSENT_GRACE_MS);
    pass_ms(f, RDZV_ABSENT_GRACE_MS);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->machine.state.complete);
}

static void waiting_and_spare_nodes_belong_to_the_next_round(void **state) {
    struct fixture *f = *state;
    become_member(f);
    put(f, "b", RDZV_WAITING);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_ARRIVED);
    f->stored.complete = false;
    f->stored.round = 5;
    put(f, "self", 0);
    drop(f, "self");
    put(f, "a", RDZV_PARTICIPANT);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_list(f, "self", RDZV_PARTICIPANT);
    assert_false(f->machine.state.complete); /* two of three are enough, but b is known to be coming */
    commit(f);
    put(f, "b", RDZV_PARTICIPANT);
    sync_state(f);
    assert_true(f->machine.state.complete);
}

static void explicit_last_call_is_honoured_in_every_round(void **state) {
    struct fixture *f = *state;
    struct rdzv_settings given = settings;
    given.min_nodes = 1;
    given.last_call_given = true;
    begin(f, &given);
    become_member(f);
    struct rdzv_node a = node("a");
    assert_true(rdzv_state_remove_dead(&f->stored, &a, 1));
    sync_state(f);
    event(f, RDZV_EVENT_JOIN);
    assert_false(f->machine.state.complete);
    assert_true(f->machine.state.has_deadline);
    commit(f);
    pass_ms(f, 30001);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->machine.state.complete);
}

static void newcomer_to_an_open_round_waits_as_in_a_first_round(void **state) {
    struct fixture *f = *state;
    f->stored.round = 9; /* what an earlier job left behind */
    put(f, "a", RDZV_PARTICIPANT);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_false(f->machine.state.complete);
    assert_true(f->machine.state.has_deadline);
}

static void last_participant_to_leave_opens_the_round(void **state) {
    struct fixture *f = *state;
    become_member(f);
    put(f, "a", RDZV_WAITING);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    event(f, RDZV_EVENT_JOIN);
    assert_int_equal(f->machine.state.round, 5);
    assert_list(f, "self", RDZV_PARTICIPANT);
}

static void falling_below_the_minimum_ends_the_last_call(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    put(f, "a", RDZV_PARTICIPANT);
    sync_state(f);
    commit(f);
    assert_true(f->machine.state.has_deadline);
    pass_ms(f, 15001); /* a has fallen silent */
    put(f, "self", RDZV_PARTICIPANT);
    f->stored.has_deadline = true;
    sync_state(f);
    assert_list(f, "a", 0);
    assert_false(f->machine.state.has_deadline);
}

/* ---- silence and clocks ---- */

/* self and a are enough, the deadline has been seen, and 29.9 of the last call's 30 s have passed. a ticks. */
static void wait_for_the_last_call(struct fixture *f, int64_t deadline_us) {
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "self", RDZV_PARTICIPANT);
    f->stored.has_deadline = true;
    f->stored.deadline_us = deadline_us;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    for (int i = 0; i < 3; i++) {
        assert_turn(f, false, RDZV_VERDICT_NONE);
        assert_true(f->actions.wake_ms > f->now.monotonic_ms);
        pass_ms(f, i < 2 ? 10000 : 9900);
        put(f, "a", RDZV_PARTICIPANT);
        put(f, "self", RDZV_PARTICIPANT);
        sync_state(f);
    }
    assert_turn(f, false, RDZV_VERDICT_NONE);
    assert_true(f->actions.wake_ms <= f->now.monotonic_ms + 101);
}

/* A clock that is ahead by more than the last call takes, the writer's behind or ours ahead, does not end it at once.
 */
static void last_call_is_not_cut_short_by_a_wrong_clock(void **state) {
    struct fixture *f = *state;
    wait_for_the_last_call(f, WALL_US - 3600 * SECOND_US);
    f->now.wall_us += 7200 * SECOND_US; /* it jumps in the middle, too */
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "self", RDZV_PARTICIPANT);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    pass_ms(f, 101);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->machine.state.complete);
}

/* Whoever wrote it had a clock that was ahead, and is gone: the others do not wait until theirs say the same. */
static void last_call_is_not_drawn_out_by_a_wrong_clock(void **state) {
    struct fixture *f = *state;
    wait_for_the_last_call(f, WALL_US + 3600 * SECOND_US);
    f->now.wall_us -= 7200 * SECOND_US;
    pass_ms(f, 101);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->machine.state.complete);
}

static void each_last_call_has_its_own_time(void **state) {
    struct fixture *f = *state;
    wait_for_the_last_call(f, WALL_US);
    f->stored.deadline_us += SECOND_US; /* too few were left meanwhile, and then enough again */
    sync_state(f);
    pass_ms(f, 4000);
    event(f, RDZV_EVENT_TIMER);
    assert_turn(f, false, RDZV_VERDICT_NONE);
}

static void stale_state_is_swept_at_first_sight(void **state) {
    struct fixture *f = *state;
    put_aged(f, "a", RDZV_PARTICIPANT, 16);
    put_aged(f, "b", RDZV_PARTICIPANT, 3600);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_int_equal(f->machine.state.round, 1);
    assert_list(f, "a", 0);
    assert_list(f, "b", 0);
    assert_list(f, "self", RDZV_PARTICIPANT);
}

static void wrong_clock_that_ticks_is_alive(void **state) {
    struct fixture *f = *state;
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    commit(f);
    for (int i = 0; i < 10; i++) { /* a's clock is ten minutes behind, its heartbeats come */
        pass_ms(f, 5000);
        put_aged(f, "a", RDZV_WAITING, 600);
        put(f, "self", RDZV_PARTICIPANT);
        sync_state(f);
        assert_list(f, "a", i == 0 ? 0 : RDZV_WAITING);
    }
    for (int i = 0; i < 4; i++) { /* another's is ahead, and it has died */
        put_aged(f, "z", RDZV_WAITING, i == 0 ? -600 : -600 + 5 * i);
        put(f, "self", RDZV_PARTICIPANT);
        sync_state(f);
        assert_list(f, "z", i < 3 ? RDZV_WAITING : 0);
        pass_ms(f, 5000);
        put_aged(f, "a", RDZV_WAITING, 600);
    }
}

/* Nobody is seen as a stranger twice: it would be removed from every complete round anew, and never take part. */
static void removed_node_with_a_slow_clock_is_known_when_it_is_back(void **state) {
    struct fixture *f = *state;
    become_member(f);
    pass_ms(f, 5000);
    put(f, "a", RDZV_PARTICIPANT);
    put_aged(f, "b", RDZV_WAITING, 600); /* its clock is ten minutes behind */
    sync_state(f);
    assert_list(f, "b", 0);
    commit(f); /* without b */
    pass_ms(f, 5000);
    put(f, "a", RDZV_PARTICIPANT);
    put_aged(f, "b", RDZV_WAITING, 600);
    sync_state(f);
    assert_list(f, "b", RDZV_WAITING);
}

static void never_sweeps_itself(void **state) {
    struct fixture *f = *state;
    become_member(f);
    pass_ms(f, 60000); /* suspended, say */
    put(f, "a", RDZV_PARTICIPANT);
    sync_state(f);
    assert_list(f, "self", RDZV_PARTICIPANT);
    assert_true(f->actions.write); /* a heartbeat at once */
}

static void emptied_store_starts_over(void **state) {
    struct fixture *f = *state;
    become_member(f);
    rdzv_state_done(&f->stored);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NODE_LEFT);
    event(f, RDZV_EVENT_JOIN);
    commit(f);
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_PARTICIPANT);
    rdzv_state_complete(&f->stored);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED); /* round 0, though it once was in round 4 */
}

/* ---- ending ---- */

static void close_marks_and_is_done(void **state) {
    struct fixture *f = *state;
    become_member(f);
    event(f, RDZV_EVENT_CLOSE);
    assert_true(f->machine.state.closed);
    assert_list(f, "self", RDZV_PARTICIPANT);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_DONE);
    event(f, RDZV_EVENT_CLOSE); /* closed already */
    assert_turn(f, false, RDZV_VERDICT_DONE);
}

static void leave_buries_this_node(void **state) {
    struct fixture *f = *state;
    become_member(f);
    event(f, RDZV_EVENT_LEAVE);
    assert_list(f, "self", 0);
    struct rdzv_node self = node("self");
    assert_int_equal(rdzv_state_find(&f->machine.state, &self)->heartbeat_us, RDZV_GRAVE_US);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_DONE);
}

/* Leaves a round whose other member only looks at the wait list. */
static void leave_lingering(struct fixture *f) {
    become_member(f);
    f->machine.lingers = true;
    event(f, RDZV_EVENT_LEAVE);
    assert_list(f, "self", RDZV_WAITING);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    assert_true(f->actions.wake_ms <= f->now.monotonic_ms + 3000);
}

static void lingering_ends_when_the_others_leave_the_round(void **state) {
    struct fixture *f = *state;
    leave_lingering(f);
    sync_state(f); /* seen again, unchanged */
    assert_turn(f, false, RDZV_VERDICT_NONE);
    struct rdzv_node a = node("a");
    (void)rdzv_state_remove(&f->stored, &a, RDZV_PARTICIPANT | RDZV_HEARTBEAT);
    rdzv_state_epilogue(&f->stored, settings.min_nodes);
    sync_state(f);
    assert_list(f, "self", 0);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_DONE);
}

static void lingering_ends_in_time(void **state) {
    struct fixture *f = *state;
    leave_lingering(f);
    pass_ms(f, f->actions.wake_ms - f->now.monotonic_ms);
    event(f, RDZV_EVENT_TIMER);
    assert_list(f, "self", 0);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_DONE);
}

static void last_member_does_not_linger(void **state) {
    struct fixture *f = *state;
    become_member(f);
    drop(f, "a");
    sync_state(f);
    f->machine.lingers = true;
    event(f, RDZV_EVENT_LEAVE);
    assert_list(f, "self", 0);
    assert_int_equal(f->machine.state.round, 5);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_DONE);
}

static void leave_without_having_joined_writes_nothing(void **state) {
    struct fixture *f = *state;
    sync_state(f);
    event(f, RDZV_EVENT_LEAVE);
    assert_turn(f, false, RDZV_VERDICT_DONE);
}

static void ending_gives_up_in_time(void **state) {
    struct fixture *f = *state;
    for (int leaving = 0; leaving < 2; leaving++) {
        begin(f, &settings);
        event(f, leaving ? RDZV_EVENT_LEAVE : RDZV_EVENT_CLOSE);
        assert_int_equal(f->actions.wake_ms, f->now.monotonic_ms + settings.close_timeout_ms + 1);
        pass_ms(f, settings.close_timeout_ms + 1);
        event(f, RDZV_EVENT_TIMER);
        assert_turn(f, false, RDZV_VERDICT_GIVEN_UP);
    }
}

/* ---- the host's part ---- */

static void writer_is_the_node_whose_heartbeat_changed(void **state) {
    struct fixture *f = *state;
    struct rdzv_state before;
    rdzv_state_init(&before);
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "b", RDZV_WAITING);
    assert_int_equal(rdzv_state_copy(&before, &f->stored), 0);
    assert_null(rdzv_state_writer(&before, &f->stored));
    put(f, "c", RDZV_WAITING); /* arrived */
    assert_string_equal(rdzv_state_writer(&before, &f->stored)->addr, "c");
    put_aged(f, "a", RDZV_PARTICIPANT, -5); /* and another renewed: two cannot be told apart */
    assert_null(rdzv_state_writer(&before, &f->stored));
    drop(f, "c");
    drop(f, "b"); /* what it removes does not count */
    assert_string_equal(rdzv_state_writer(&before, &f->stored)->addr, "a");
    assert_int_equal(rdzv_state_copy(&before, &f->stored), 0);
    struct rdzv_node a = node("a");
    assert_true(rdzv_state_remove_dead(&f->stored, &a, 1));
    assert_null(rdzv_state_writer(&before, &f->stored)); /* a grave is no sign of life */
    assert_false(rdzv_state_remove_dead(&f->stored, &a, 1));
    rdzv_state_done(&before);
}
int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(missing_member_is_told_once),
        TEST(arrival_is_told_only_if_there_is_a_place),
        TEST(departure_is_told_after_an_arrival),
        TEST(dropped_member_notices_and_rejoins),
        TEST(next_round_without_us_is_noticed),
        TEST(closed_job_tells_who_leaves),
        TEST(excused_members_are_not_missed),
        TEST(silence_of_a_member_is_asked_about_then_judged),
        TEST(silence_is_not_judged_right_after_an_absence),
        TEST(silence_of_the_store_is_not_the_members),
        TEST(member_that_is_needed_keeps_its_place),
        TEST(place_of_a_silent_member_is_kept_as_long_as_a_world_is_waited_for),
        TEST(place_of_a_silent_member_is_for_another),
        TEST(node_that_joins_does_not_keep_a_silent_one),
        TEST(old_state_of_a_lonely_node_is_left_at_once),
        TEST(restart_leaves_and_waits_in_one_write),
        TEST(round_after_a_departure_closes_when_all_alive_are_in),
        TEST(round_after_a_failure_waits_for_the_living),
        TEST(absent_node_is_not_waited_for_longer_than_the_grace),
        TEST(waiting_and_spare_nodes_belong_to_the_next_round),
        TEST(explicit_last_call_is_honoured_in_every_round),
        TEST(newcomer_to_an_open_round_waits_as_in_a_first_round),
        TEST(last_participant_to_leave_opens_the_round),
        TEST(falling_below_the_minimum_ends_the_last_call),
        TEST(last_call_is_not_cut_short_by_a_wrong_clock),
        TEST(last_call_is_not_drawn_out_by_a_wrong_clock),
        TEST(each_last_call_has_its_own_time),
        TEST(stale_state_is_swept_at_first_sight),
        TEST(wrong_clock_that_ticks_is_alive),
        TEST(removed_node_with_a_slow_clock_is_known_when_it_is_back),
        TEST(never_sweeps_itself),
        TEST(emptied_store_starts_over),
        TEST(close_marks_and_is_done),
        TEST(leave_buries_this_node),
        TEST(lingering_ends_when_the_others_leave_the_round),
        TEST(lingering_ends_in_time),
        TEST(last_member_does_not_linger),
        TEST(leave_without_having_joined_writes_nothing),
        TEST(ending_gives_up_in_time),
        TEST(writer_is_the_node_whose_heartbeat_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
