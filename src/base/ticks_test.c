/* The cheap clock agrees with the kernel's. */
#include "base/ticks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Both clocks are read in turn; what lies between two readings of the kernel's must lie there by the cheap one, too,
 * give or take what the rate may be wrong by. */
static void agrees_with_the_kernel(void **state) {
    (void)state;
    const int64_t slack_ns = 100 * 1000;
    struct ticks_clock clock;
    ticks_init(&clock);
    int64_t end_ns = clock_monotonic_ns() + 20 * CLOCK_NS_PER_MS;
    for (int64_t before = 0; before < end_ns;) {
        before = clock_monotonic_ns();
        int64_t ns = ticks_monotonic_ns(&clock);
        int64_t after = clock_monotonic_ns();
        assert_true(ns >= before - slack_ns);
        assert_true(ns <= after + slack_ns);
    }
}

static void looks_again_when_the_last_look_is_old(void **state) {
    (void)state;
    struct ticks_clock clock = {.ns_per_tick_32 = UINT64_C(1) << 31, .base_ticks = ticks_read() - 2 * TICKS_TRUSTED};
    int64_t before = clock_monotonic_ns(), ns = ticks_monotonic_ns(&clock);
    assert_true(ns >= before && ns <= clock_monotonic_ns());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_kernel),
        cmocka_unit_test(looks_again_when_the_last_look_is_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
