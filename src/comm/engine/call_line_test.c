/* Lines of calls: the first call that differs is named, as long as both lines keep it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "comm/engine/call_line.h"
#include "comm/host/bell.h"

static struct call_line own, other;

static int clear(void **state) {
    (void)state;
    memset(&own, 0, sizeof own);
    memset(&other, 0, sizeof other);
    return 0;
}

/* Calls `from` to `to`, all with the same fingerprint but one. */
static void make_calls(struct call_line *line, uint64_t from, uint64_t to, uint64_t odd) {
    for (uint64_t number = from; number <= to; number++) {
        call_line_begin(line, number, number == odd ? 99 : 7, 1000);
        call_line_finish(line, number);
    }
}

static void equal_calls_do_not_differ(void **state) {
    (void)state;
    assert_int_equal(call_line_difference(&own, &other), 0);
    make_calls(&own, 1, 1000, 0);
    assert_int_equal(call_line_difference(&own, &other), 0); /* it has made none */
    make_calls(&other, 1, 1000, 0);
    assert_int_equal(call_line_difference(&own, &other), 0);
    assert_int_equal(call_line_begun(&own), 1000);
    assert_int_equal(call_line_finished(&own), 1000);
    assert_int_equal(call_line_fingerprint(&own, 1000), 7);
    assert_int_equal(call_line_fingerprint(&own, 0), 0);
}

static void the_first_difference_is_named_from_both_sides(void **state) {
    (void)state;
    make_calls(&own, 1, 300, 290);
    make_calls(&other, 1, 295, 0);
    assert_int_equal(call_line_difference(&own, &other), 290);
    assert_int_equal(call_line_difference(&other, &own), 290);
}

/* Who is ahead has calls that the other has not begun: they are not compared with what stands in their place. */
static void only_calls_that_both_have_begun_are_compared(void **state) {
    (void)state;
    make_calls(&other, 1, 10, 0);
    make_calls(&own, 1, 10 + CALL_LINE_HISTORY - 2, 11);
    assert_int_equal(call_line_difference(&own, &other), 0);
    make_calls(&other, 11, 11, 0);
    assert_int_equal(call_line_difference(&own, &other), 11);
}

static void what_is_not_kept_any_more_is_not_compared(void **state) {
    (void)state;
    make_calls(&own, 1, 1000, 500);
    make_calls(&other, 1, 1000, 0);
    assert_int_equal(call_line_difference(&own, &other), 0);
}

enum { ROUNDS = 50000, AHEAD_MAX = 128 /* NODE_LINES */, CALLS_PER_ROUND = 64 };
static atomic_bool has_ended;

/* Makes the calls that it may be ahead. All calls are equal, and each has a fingerprint of its own. */
static void *run_ahead(void *argument) {
    uint64_t number = call_line_begun(&other);
    while (!atomic_load(&has_ended)) {
        if (number < call_line_begun(&own) + AHEAD_MAX) {
            number++;
            call_line_begin(&other, number, number, 1000);
        } else {
            (void)sched_yield();
        }
    }
    return argument;
}

/* What the other notes meanwhile takes the place of old calls. That is no difference. */
static void a_member_that_goes_on_meanwhile_makes_no_difference(void **state) {
    (void)state;
    pthread_t thread;
    size_t wrong = 0;
    atomic_store(&has_ended, false);
    assert_int_equal(pthread_create(&thread, NULL, run_ahead, NULL), 0);
    for (uint64_t number = 1; number <= (uint64_t)ROUNDS * CALLS_PER_ROUND; number++) {
        call_line_begin(&own, number, number, 1000);
        if (number % CALLS_PER_ROUND == 0) {
            wrong += call_line_difference(&own, &other) != 0;
            while (call_line_begun(&other) < number) {
                wrong += call_line_difference(&own, &other) != 0;
                (void)sched_yield();
            }
        }
    }
    atomic_store(&has_ended, true);
    (void)pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
}

static void a_print_is_known_from_its_call_on_while_it_is_kept(void **state) {
    (void)state;
    make_calls(&other, 1, 300, 0);
    assert_true(call_line_known_print(&other, 300) == call_line_fingerprint(&other, 300));
    assert_true(call_line_known_print(&other, 299) != 0);
    assert_int_equal(call_line_known_print(&other, 301), 0);
    assert_int_equal(call_line_known_print(&other, 300 - CALL_LINE_HISTORY), 0);
}

/* Of several, one's other call is enough; who has not begun it, or has it no more, is no mismatch. */
static void one_line_of_several_may_be_mismatched(void **state) {
    (void)state;
    static struct call_line third;
    const struct call_line *const lines[] = {&own, &other, &third};
    memset(&third, 0, sizeof third);
    make_calls(&own, 1, 10, 0);
    make_calls(&other, 1, 9, 0);
    make_calls(&third, 1, 12, 0);
    assert_false(call_line_is_mismatched(&own, lines, 3, 10)); /* the second one has not begun it */
    assert_false(call_line_is_mismatched(NULL, NULL, 0, 10));
    make_calls(&other, 10, 10, 10);
    assert_true(call_line_is_mismatched(&own, lines, 3, 10));
    assert_false(call_line_is_mismatched(&own, lines, 1, 10)); /* itself alone */
    assert_false(call_line_is_mismatched(&own, lines, 3, 9));
    make_calls(&other, 11, 10 + CALL_LINE_HISTORY, 0);
    assert_false(call_line_is_mismatched(&own, lines, 3, 10)); /* another call is in its place */
}

enum { LOOKS_MAX = 5000000, PAUSES = 20 };

/* Begins one call after the other, each with its number for a fingerprint. */
static void *go_on_and_on(void *argument) {
    for (uint64_t number = 1; !atomic_load(&has_ended); number++) {
        call_line_begin(&other, number, number, 1000);
        for (int i = 0; i < PAUSES; i++) {
            comm_pause();
        }
    }
    return argument;
}

/* Asked about the call that begins next, until it has: a line never tells the print of an older call, or a later one.
 */
static void a_known_print_is_that_of_its_call(void **state) {
    (void)state;
    pthread_t thread;
    size_t wrong = 0;
    uint64_t number = 1;
    atomic_store(&has_ended, false);
    assert_int_equal(pthread_create(&thread, NULL, go_on_and_on, NULL), 0);
    for (size_t i = 0; i < LOOKS_MAX; i++) {
        uint64_t print = call_line_known_print(&other, number);
        wrong += print != 0 && print != number;
        if (print != 0 || call_line_begun(&other) > number) {
            number = call_line_begun(&other) + 1;
        }
    }
    atomic_store(&has_ended, true);
    (void)pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(equal_calls_do_not_differ, clear),
        cmocka_unit_test_setup(the_first_difference_is_named_from_both_sides, clear),
        cmocka_unit_test_setup(only_calls_that_both_have_begun_are_compared, clear),
        cmocka_unit_test_setup(what_is_not_kept_any_more_is_not_compared, clear),
        cmocka_unit_test_setup(a_member_that_goes_on_meanwhile_makes_no_difference, clear),
        cmocka_unit_test_setup(a_print_is_known_from_its_call_on_while_it_is_kept, clear),
        cmocka_unit_test_setup(one_line_of_several_may_be_mismatched, clear),
        cmocka_unit_test_setup(a_known_print_is_that_of_its_call, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
