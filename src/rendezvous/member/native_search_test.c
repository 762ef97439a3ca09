/* Which endpoint an agent joins, and when that is decided, on a virtual clock. */
#include "rendezvous/member/native_search.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <muster/status.h>

enum { A, B, C };

static const struct coordinator_service nobody = {.is_serving = false};

static struct native_search begin(void) {
    struct native_search s;
    native_search_init(&s, 3);
    assert_int_equal(native_search_begin(&s, 0), 7);
    return s;
}

static unsigned refuse(struct native_search *s, size_t place) {
    return native_search_answered(s, place, NATIVE_REFUSED, NULL, 1);
}

static unsigned stand_by(struct native_search *s, size_t place) {
    return native_search_answered(s, place, NATIVE_STANDS_BY, &nobody, 1);
}

static unsigned serve(struct native_search *s, size_t place, bool is_running, uint64_t round) {
    const struct coordinator_service service = {
        .is_serving = true, .is_running = is_running, .round = round, .member_count = 1};
    return native_search_answered(s, place, NATIVE_SERVES, &service, 1);
}

static void new_node_takes_the_first_of_the_list(void **state) {
    (void)state;
    struct native_search s = begin();
    assert_int_equal(stand_by(&s, B), 0);
    assert_int_equal(stand_by(&s, A), 0);
    assert_int_equal(stand_by(&s, C), NATIVE_SEARCH_DECIDE | NATIVE_SEARCH_COMPLETE);
    assert_int_equal(native_search_best(&s), A);
}

static void new_node_takes_the_next_when_the_first_is_absent(void **state) {
    (void)state;
    struct native_search s = begin();
    refuse(&s, A);
    stand_by(&s, B);
    stand_by(&s, C);
    assert_int_equal(native_search_best(&s), B);
    assert_true(native_search_is_alone(&s, B));
}

static void running_world_comes_first(void **state) {
    (void)state;
    struct native_search s = begin();
    serve(&s, A, false, 7);
    stand_by(&s, B);
    serve(&s, C, true, 3);
    assert_int_equal(native_search_best(&s), C);
    assert_false(native_search_is_alone(&s, B));
    assert_int_equal(native_search_known_round(&s), 7);
}

static void survivors_take_the_next_after_the_lost_one(void **state) {
    (void)state;
    for (size_t lost = 0; lost < 3; lost++) {
        struct native_search s;
        native_search_init(&s, 3);
        native_search_served(&s, lost + 1);
        (void)native_search_begin(&s, 0);
        refuse(&s, lost);
        /* Whether somebody has come there before makes no difference. */
        serve(&s, (lost + 2) % 3, false, lost + 1);
        stand_by(&s, (lost + 1) % 3);
        assert_int_equal(native_search_best(&s), (int)((lost + 1) % 3));
    }
}

static void stragglers_and_newcomers_follow_the_latest_round(void **state) {
    (void)state;
    for (uint64_t last = 0; last <= 4; last += 4) {
        struct native_search s;
        native_search_init(&s, 3);
        native_search_served(&s, last);
        (void)native_search_begin(&s, 0);
        serve(&s, A, false, last);
        stand_by(&s, B);
        serve(&s, C, false, 7); /* a round that A has told: its members go to B */
        assert_int_equal(native_search_best(&s), B);
    }
}

static void some_answers_and_a_grace_are_enough(void **state) {
    (void)state;
    struct native_search s = begin();
    stand_by(&s, B);
    assert_int_equal(native_search_wake_ms(&s), NATIVE_SEARCH_GRACE_MS);
    assert_int_equal(native_search_tick(&s, NATIVE_SEARCH_GRACE_MS - 1), 0);
    assert_int_equal(native_search_tick(&s, NATIVE_SEARCH_GRACE_MS), NATIVE_SEARCH_DECIDE);
    assert_int_equal(native_search_best(&s), B);
    assert_int_equal(native_search_wake_ms(&s), NATIVE_SEARCH_PATIENCE_MS);
    assert_int_equal(native_search_tick(&s, NATIVE_SEARCH_PATIENCE_MS), NATIVE_SEARCH_COMPLETE);
    assert_int_equal(s.places[A].answer, NATIVE_SILENT);
    assert_false(native_search_is_alone(&s, B)); /* somebody may be served at A */
    assert_int_equal(native_search_wake_ms(&s), INT64_MAX);
}

static void session_that_does_not_get_through_is_left(void **state) {
    (void)state;
    struct native_search s = begin();
    assert_false(native_search_leaves(&s, A, true)); /* nothing better is known */
    stand_by(&s, A);
    assert_true(native_search_leaves(&s, A, true));
    assert_false(native_search_leaves(&s, A, false));
    stand_by(&s, B);
    assert_true(native_search_leaves(&s, B, false)); /* for a better place */
    assert_false(native_search_leaves(&s, C, true));
}

static void nobody_is_nowhere(void **state) {
    (void)state;
    struct native_search s = begin();
    refuse(&s, A);
    assert_int_equal(native_search_wake_ms(&s), NATIVE_SEARCH_PATIENCE_MS);
    assert_int_equal(native_search_tick(&s, NATIVE_SEARCH_PATIENCE_MS), NATIVE_SEARCH_DECIDE | NATIVE_SEARCH_COMPLETE);
    assert_int_equal(native_search_best(&s), -1);
}

static void old_answers_do_not_count(void **state) {
    (void)state;
    struct native_search s = begin();
    stand_by(&s, A);
    refuse(&s, B);
    refuse(&s, C);
    (void)native_search_begin(&s, 10);
    assert_int_equal(native_search_best(&s), -1);
    assert_false(native_search_can_join(&s, A));
    assert_int_equal(native_search_answered(&s, A, NATIVE_SILENT, NULL, 11), 0);
    assert_int_equal(stand_by(&s, A), 0); /* it has answered */
    assert_int_equal(s.places[A].answer, NATIVE_SILENT);
}

static void pauses_grow_until_there_is_a_hurry(void **state) {
    (void)state;
    struct native_search s = begin();
    int64_t last_ms = 0;
    for (int i = 0; i < 20; i++) {
        int64_t pause_ms = native_search_pause_ms(&s);
        assert_true(pause_ms >= last_ms && pause_ms <= NATIVE_SEARCH_PAUSE_MAX_MS);
        last_ms = pause_ms;
    }
    assert_int_equal(last_ms, NATIVE_SEARCH_PAUSE_MAX_MS);
    native_search_hurry(&s);
    assert_int_equal(native_search_pause_ms(&s), NATIVE_SEARCH_PAUSE_MIN_MS);
}

static void lists_are_told_apart(void **state) {
    static const char *const texts[] = {"a:1,b:2", "b:2,a:1", "a:1,b:3", "a:1,b:2,c:3", "a:12,b:2"};
    struct net_endpoint_list list, same;
    uint64_t seen[5];
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(net_endpoint_list_parse(texts[i], 9, &list), MUSTER_OK);
        seen[i] = native_search_digest(&list);
        assert_true(seen[i] != 0);
        for (size_t k = 0; k < i; k++) {
            assert_true(seen[k] != seen[i]);
        }
    }
    assert_int_equal(net_endpoint_list_parse("A:1, b:2", 9, &same), MUSTER_OK);
    assert_true(native_search_digest(&same) == seen[0]);
    assert_int_equal(net_endpoint_list_parse("a:1", 9, &list), MUSTER_OK);
    assert_true(native_search_digest(&list) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_node_takes_the_first_of_the_list),
        cmocka_unit_test(new_node_takes_the_next_when_the_first_is_absent),
        cmocka_unit_test(running_world_comes_first),
        cmocka_unit_test(survivors_take_the_next_after_the_lost_one),
        cmocka_unit_test(stragglers_and_newcomers_follow_the_latest_round),
        cmocka_unit_test(some_answers_and_a_grace_are_enough),
        cmocka_unit_test(session_that_does_not_get_through_is_left),
        cmocka_unit_test(nobody_is_nowhere),
        cmocka_unit_test(old_answers_do_not_count),
        cmocka_unit_test(pauses_grow_until_there_is_a_hurry),
        cmocka_unit_test(lists_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
