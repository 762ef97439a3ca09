/* When calls were begun: never another call's time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdbool.h>

#include "comm/engine/call_time.h"

enum { CHANGES = 50000, LOOKS_MAX = 20000000, TIME_PER_CALL = 10 };

static struct call_time place;
static _Atomic bool has_ended;

static void only_the_call_of_that_number_has_a_time(void **state) {
    (void)state;
    memset(&place, 0, sizeof place);
    assert_int_equal(call_time_of(&place, 1), 0);
    call_time_note(&place, 1, 500);
    assert_int_equal(call_time_of(&place, 1), 500);
    assert_int_equal(call_time_of(&place, 9), 0);
    call_time_note(&place, 9, 700);
    assert_int_equal(call_time_of(&place, 1), 0);
    assert_int_equal(call_time_of(&place, 9), 700);
}

static void *note_calls(void *argument) {
    for (uint64_t number = 1; !atomic_load_explicit(&has_ended, memory_order_relaxed); number++) {
        call_time_note(&place, number, (int64_t)number * TIME_PER_CALL);
    }
    return argument;
}

/* The owner is ahead and uses the place again while another looks. */
static void a_place_that_changes_has_no_wrong_time(void **state) {
    (void)state;
    pthread_t owner;
    memset(&place, 0, sizeof place);
    atomic_store(&has_ended, false);
    assert_int_equal(pthread_create(&owner, NULL, note_calls, NULL), 0);
    size_t wrong = 0, changes = 0;
    uint64_t last = 0;
    for (size_t look = 0; look < LOOKS_MAX && changes < CHANGES; look++) { /* few changes are seen with one core */
        uint64_t number = atomic_load(&place.number);
        int64_t begun_ns = number > 0 ? call_time_of(&place, number) : 0;
        wrong += begun_ns != 0 && begun_ns != (int64_t)number * TIME_PER_CALL;
        changes += number != last;
        last = number;
    }
    atomic_store(&has_ended, true);
    (void)pthread_join(owner, NULL);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_call_of_that_number_has_a_time),
        cmocka_unit_test(a_place_that_changes_has_no_wrong_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
