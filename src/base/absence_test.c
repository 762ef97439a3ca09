/* What is noted as time away, and what who judges makes of it. */
#include "base/absence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { INTERVAL = 5000 };

static struct absence at(int64_t now_ms) {
    struct absence a;
    absence_init(&a, now_ms);
    return a;
}

static void on_time_is_not_away(void **state) {
    struct absence a = at(1000);
    absence_wait(&a, 1000, 6000);
    absence_look(&a, 3000); /* something has happened */
    absence_wait(&a, 3001, 6000);
    absence_look(&a, 6000 + ABSENCE_TOLERANCE_MS);
    assert_int_equal(absence_clock_ms(&a, 7000), 7000);
    assert_true(absence_judges_from_ms(&a, INTERVAL) <= 6000);
    (void)state;
}

static void late_turn_is_not_counted(void **state) {
    struct absence a = at(1000);
    absence_wait(&a, 1000, 6000);
    absence_look(&a, 22000);
    assert_int_equal(absence_clock_ms(&a, 22000), 6000);
    assert_int_equal(absence_clock_ms(&a, 23000), 7000);
    (void)state;
}

/* Whoever looks first in a turn sees it, and those after it do not see it again. */
static void one_absence_is_noted_once(void **state) {
    struct absence a = at(0);
    absence_wait(&a, 0, 1000);
    absence_look(&a, 17000);
    absence_look(&a, 17000);
    absence_look(&a, 17100);
    absence_wait(&a, 17100, 18000);
    assert_int_equal(absence_clock_ms(&a, 17100), 1100);
    (void)state;
}

static void turn_that_was_stopped_in_the_middle(void **state) {
    struct absence a = at(0);
    absence_wait(&a, 0, 1000);
    absence_look(&a, 1000);
    absence_wait(&a, 4000, 9000);
    assert_int_equal(absence_clock_ms(&a, 4000), 1000);
    (void)state;
}

static void long_absence_is_followed_by_one_interval(void **state) {
    struct absence a = at(0);
    absence_wait(&a, 0, 1000);
    absence_look(&a, 61000);
    assert_int_equal(absence_judges_from_ms(&a, INTERVAL), 1000 + INTERVAL);
    assert_int_equal(absence_judges_from_ms(&a, 1000), 2000);
    (void)state;
}

static void short_absence_is_followed_by_as_much(void **state) {
    struct absence a = at(0);
    absence_wait(&a, 0, 1000);
    absence_look(&a, 1400);
    assert_int_equal(absence_judges_from_ms(&a, INTERVAL), 1000 + 400);
    (void)state;
}

/* Late in every turn: it listens once, and judges. */
static void overloaded_machine_still_judges(void **state) {
    struct absence a = at(0);
    int64_t now_ms = 0;
    int judged = 0;
    for (int i = 0; i < 20; i++) {
        absence_wait(&a, now_ms, now_ms + 50);
        now_ms += 50 + 400;
        absence_look(&a, now_ms);
        judged += absence_clock_ms(&a, now_ms) >= absence_judges_from_ms(&a, INTERVAL);
    }
    assert_true(judged > 0);
    (void)state;
}

static void short_absence_does_not_end_the_listening_for_a_long_one(void **state) {
    struct absence a = at(0);
    absence_wait(&a, 0, 1000);
    absence_look(&a, 61000); /* clock 1000, listens until 6000 */
    absence_wait(&a, 61000, 62000);
    absence_look(&a, 62300); /* clock 2000 */
    assert_true(absence_judges_from_ms(&a, INTERVAL) >= 6000);
    (void)state;
}

/* What was left of a very long one does not stand in its way. */
static void long_absence_soon_after_a_longer_one(void **state) {
    struct absence a = at(0);
    absence_wait(&a, 0, 1000);
    absence_look(&a, 61000); /* clock 1000 */
    absence_wait(&a, 61000, 68000);
    absence_look(&a, 68000); /* clock 8000 */
    absence_wait(&a, 68000, 69000);
    absence_look(&a, 79000); /* clock 9000 */
    assert_int_equal(absence_judges_from_ms(&a, INTERVAL), 9000 + INTERVAL);
    (void)state;
}

static void waiting_for_an_event_alone_says_nothing(void **state) {
    struct absence a = at(0);
    absence_wait(&a, 0, INT64_MAX);
    absence_look(&a, 1000000);
    assert_int_equal(absence_clock_ms(&a, 1000000), 1000000);
    absence_wait(&a, 1000000, 500); /* was due before it was known */
    absence_look(&a, 1000000);
    assert_int_equal(absence_clock_ms(&a, 1000000), 1000000);
    (void)state;
}

/* 13 s of silence, judged after 15: a pause of the last second is seen, one that is over is not. */
static void who_is_about_to_judge_stays_awake(void **state) {
    assert_int_equal(absence_ask_ms(15000, INTERVAL), 10000);
    assert_int_equal(absence_ask_ms(INTERVAL, INTERVAL), ABSENCE_TOLERANCE_MS);
    assert_int_equal(absence_ask_ms(2000, INTERVAL), ABSENCE_TOLERANCE_MS);
    assert_int_equal(absence_ask_ms(100, INTERVAL), 100);
    assert_int_equal(absence_ask_ms(0, INTERVAL), 0);
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_time_is_not_away),
        cmocka_unit_test(late_turn_is_not_counted),
        cmocka_unit_test(one_absence_is_noted_once),
        cmocka_unit_test(turn_that_was_stopped_in_the_middle),
        cmocka_unit_test(long_absence_is_followed_by_one_interval),
        cmocka_unit_test(short_absence_is_followed_by_as_much),
        cmocka_unit_test(overloaded_machine_still_judges),
        cmocka_unit_test(short_absence_does_not_end_the_listening_for_a_long_one),
        cmocka_unit_test(long_absence_soon_after_a_longer_one),
        cmocka_unit_test(waiting_for_an_event_alone_says_nothing),
        cmocka_unit_test(who_is_about_to_judge_stays_awake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
