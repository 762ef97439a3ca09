/* Wall times of moments that have passed, with clocks that go on between any two readings. */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

enum { STEP_NS = 10000000 };

static int64_t passed_ns;

/* In place of the C library's, whose names for parameters are reserved ones.
 * NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
int clock_gettime(clockid_t id, struct timespec *out) {
    passed_ns += STEP_NS;
    int64_t epoch_s = id == CLOCK_REALTIME ? 1000000 : 50;
    *out = (struct timespec){.tv_sec = epoch_s + passed_ns / CLOCK_NS_PER_S, .tv_nsec = passed_ns % CLOCK_NS_PER_S};
    return 0;
}

static void wall_times_keep_the_order_of_moments(void **state) {
    (void)state;
    int64_t before_us = clock_realtime_us();
    int64_t at_ns = clock_monotonic_ns();
    int64_t seen_us = clock_realtime_at_us(at_ns);
    assert_true(seen_us > before_us);
    assert_true(seen_us <= clock_realtime_us());
    assert_true(clock_realtime_at_us(at_ns) > before_us);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(wall_times_keep_the_order_of_moments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
