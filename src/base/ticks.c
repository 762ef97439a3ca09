/* Measuring the rate of the processor's counter; see ticks.h. */
#include "base/ticks.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The rate is not believed before this much time has been measured: then it is right to 0.1 %, and soon to 10^-6. */
#define MEASURE_NS INT64_C(1000000)
/* Slower counters than 1 GHz would need another scale. */
#define NS_PER_TICK_32_MAX (UINT64_C(1) << 32)

static bool counts_at_a_constant_rate(void) {
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) && (edx & (1u << 8));
#else
    return false;
#endif
}

void ticks_init(struct ticks_clock *clock) {
    memset(clock, 0, sizeof *clock);
    if (counts_at_a_constant_rate()) {
        clock->first_ticks = clock->base_ticks = ticks_read();
    }
    clock->first_ns = clock->base_ns = clock_monotonic_ns();
}

int64_t ticks_look(struct ticks_clock *clock) {
    uint64_t now_ticks = ticks_read();
    int64_t now_ns = clock_monotonic_ns(), passed_ns = now_ns - clock->first_ns;
    uint64_t passed_ticks = now_ticks - clock->first_ticks;
    if (clock->first_ticks == 0 || passed_ns < MEASURE_NS) {
        return now_ns;
    }
    double rate = (double)passed_ns / (double)passed_ticks * 4294967296.0;
    clock->ns_per_tick_32 = rate < (double)NS_PER_TICK_32_MAX ? (uint64_t)rate : 0;
    clock->base_ticks = now_ticks;
    clock->base_ns = now_ns;
    return now_ns;
}
