/* A member whose heartbeats stop: until when its place is kept, and its workers run; see machine.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/torch/machine_test_support.h"

enum { SILENCE_MS = 15000, HOLD_MS = 180000, STOP_MS = 30000 };

/* Nobody can be spared. */
static const struct rdzv_settings fixed = {.min_nodes = 2,
                                           .max_nodes = 2,
                                           .join_timeout_ms = 600000,
                                           .last_call_timeout_ms = 30000,
                                           .close_timeout_ms = 30000,
                                           .keep_alive_interval_ms = 5000,
                                           .expiry_ms = SILENCE_MS,
                                           .hold_ms = HOLD_MS,
                                           .stop_ms = STOP_MS};

/* An agent of ours, whose heartbeat says so. */
static void put_ours(struct fixture *f, const char *addr, unsigned lists, enum rdzv_lease lease) {
    struct rdzv_node n = node(addr);
    put(f, addr, lists);
    struct rdzv_member *member = rdzv_state_find(&f->stored, &n);
    member->heartbeat_us += lease - member->heartbeat_us % 1000;
}

static void become_one_of_two(struct fixture *f) {
    begin(f, &fixed);
    put_ours(f, "a", RDZV_PARTICIPANT, RDZV_LEASE_HOLD);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    commit(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}

/* This node's heartbeats are stored. The verdict that comes of it is left. */
static void beat(struct fixture *f) {
    event(f, RDZV_EVENT_TIMER);
    while (f->actions.write) {
        commit(f);
    }
}

static void beat_for_ms(struct fixture *f, int64_t ms) {
    for (int64_t left = ms; left > 0 && f->actions.verdict == RDZV_VERDICT_NONE; left -= 1000) {
        pass_ms(f, left < 1000 ? left : 1000);
        beat(f);
        if (f->actions.verdict == RDZV_VERDICT_NONE) {
            sync_state(f);
        }
    }
}

static void a_place_is_kept_for_the_lease_and_the_time_to_stop(void **state) {
    struct fixture *f = *state;
    become_one_of_two(f);
    f->actions.verdict = RDZV_VERDICT_NONE;
    beat_for_ms(f, HOLD_MS + STOP_MS - 1000);
    assert_int_equal(f->actions.verdict, RDZV_VERDICT_NONE);
    assert_true(f->machine.has_silent);
    beat_for_ms(f, 2000);
    assert_int_equal(f->actions.verdict, RDZV_VERDICT_NODE_LEFT);
}

/* It counts on its place, whoever comes: it does not know of that. */
static void a_newcomer_waits_for_the_place(void **state) {
    struct fixture *f = *state;
    begin(f, &fixed);
    put_ours(f, "a", RDZV_PARTICIPANT, RDZV_LEASE_HOLD);
    put_ours(f, "b", RDZV_PARTICIPANT, RDZV_LEASE_HOLD);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    commit(f);
    assert_list(f, "self", RDZV_SPARE);
    for (int64_t at_ms = 0; at_ms < HOLD_MS + STOP_MS - 1000; at_ms += 1000) {
        pass_ms(f, 1000);
        put_ours(f, "b", RDZV_PARTICIPANT, RDZV_LEASE_SILENCE);
        sync_state(f);
        while (f->actions.write) {
            commit(f);
        }
        assert_list(f, "a", RDZV_PARTICIPANT);
    }
    pass_ms(f, 1000);
    put_ours(f, "b", RDZV_PARTICIPANT, RDZV_LEASE_SILENCE);
    sync_state(f);
    assert_list(f, "a", 0);
}

static void who_knows_that_others_can_go_on_has_a_silence(void **state) {
    struct fixture *f = *state;
    become_one_of_two(f);
    put_ours(f, "a", RDZV_PARTICIPANT, RDZV_LEASE_SILENCE);
    put_ours(f, "c", RDZV_SPARE, RDZV_LEASE_SILENCE);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_NONE);
    pass_ms(f, SILENCE_MS);
    put_ours(f, "c", RDZV_SPARE, RDZV_LEASE_SILENCE);
    sync_state(f);
    assert_list(f, "a", 0);
}

/* Its writes are under way, and nothing comes back. */
static void fall_silent(struct fixture *f) {
    pass_ms(f, 5000);
    put_ours(f, "a", RDZV_PARTICIPANT, RDZV_LEASE_HOLD);
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->actions.write);
}

static void workers_end_before_the_place_is_given_away(void **state) {
    struct fixture *f = *state;
    become_one_of_two(f); /* its first heartbeat is stored, and counts */
    fall_silent(f);
    pass_ms(f, HOLD_MS / 8 * 7 - 5000 - 1);
    event(f, RDZV_EVENT_TIMER);
    assert_int_equal(f->actions.verdict, RDZV_VERDICT_NONE);
    assert_int_equal(f->actions.wake_ms, f->now.monotonic_ms + 1);
    pass_ms(f, 1);
    event(f, RDZV_EVENT_TIMER);
    assert_int_equal(f->actions.verdict, RDZV_VERDICT_CUT_OFF);
    assert_true(rdzv_machine_is_held(&f->machine)); /* they are given time */
    pass_ms(f, 1000);
    event(f, RDZV_EVENT_TIMER);
    assert_int_equal(f->actions.verdict, RDZV_VERDICT_NONE); /* once */
}

/* The shorter lease counts for the workers as soon as it is heard of, the longer one only when the others know. */
static void a_spare_shortens_the_lease_at_once(void **state) {
    struct fixture *f = *state;
    become_one_of_two(f);
    put_ours(f, "c", RDZV_SPARE, RDZV_LEASE_SILENCE);
    sync_state(f);
    fall_silent(f);
    assert_int_equal(rdzv_machine_lease_end_ms(&f->machine), f->machine.answered_ms + SILENCE_MS / 8 * 7);
    drop(f, "c");
    sync_state(f);
    assert_true(rdzv_machine_is_held(&f->machine)); /* the heartbeat that is stored says so */
    put_ours(f, "c", RDZV_SPARE, RDZV_LEASE_SILENCE);
    sync_state(f);
    pass_ms(f, 5000);
    sync_state(f);
    commit(f);
    drop(f, "c");
    sync_state(f);
    assert_false(rdzv_machine_is_held(&f->machine)); /* not before the others can see it */
    pass_ms(f, 5000);
    put_ours(f, "a", RDZV_PARTICIPANT, RDZV_LEASE_HOLD);
    sync_state(f);
    commit(f);
    assert_true(rdzv_machine_is_held(&f->machine));
}

/* It was away, and its heartbeat is on its way: it listens first. */
static void an_absence_ends_no_lease_before_the_store_is_asked(void **state) {
    struct fixture *f = *state;
    become_one_of_two(f);
    f->now.real_ms += HOLD_MS;
    f->now.wall_us += HOLD_MS * 1000;
    f->now.judges_from_ms = f->now.monotonic_ms + 5000;
    event(f, RDZV_EVENT_TIMER);
    assert_true(f->actions.write);
    commit(f);
    pass_ms(f, 5000);
    put_ours(f, "a", RDZV_PARTICIPANT, RDZV_LEASE_HOLD);
    beat(f);
    assert_int_equal(f->actions.verdict, RDZV_VERDICT_NONE);
}

/* torchrun's agents give places away by rules of their own. */
static void a_job_with_torchrun_has_no_lease(void **state) {
    struct fixture *f = *state;
    become_one_of_two(f);
    put(f, "a", RDZV_PARTICIPANT);
    struct rdzv_node a = node("a");
    rdzv_state_find(&f->stored, &a)->heartbeat_us += 123 - f->now.wall_us % 1000;
    sync_state(f);
    assert_true(rdzv_machine_lease_end_ms(&f->machine) == INT64_MAX);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_place_is_kept_for_the_lease_and_the_time_to_stop),
        TEST(a_newcomer_waits_for_the_place),
        TEST(who_knows_that_others_can_go_on_has_a_silence),
        TEST(workers_end_before_the_place_is_given_away),
        TEST(a_spare_shortens_the_lease_at_once),
        TEST(an_absence_ends_no_lease_before_the_store_is_asked),
        TEST(a_job_with_torchrun_has_no_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
