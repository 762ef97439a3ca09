/* Measuring the rate of the processor's counter; see ticks.h. */
#include "base/ticks.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The rate is not believed before this much time has been measured: then it is right to 0.1 %, and soon to 10^-6. */
#define MEASURE_NS INT64_C(1000000)
/* Two readings of the kernel's clock that are no further apart are one moment: a thousandth of that. */
#define TOGETHER_NS INT64_C(1000)
enum { ATTEMPTS_MAX = 20 };
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

/* Both clocks at one moment. A thread that loses its processor between the two readings would pair moments that are
 * milliseconds apart; false: that happened every time, or the kernel's clock is slow, and *ns alone counts. */
static bool read_both(uint64_t *ticks, int64_t *ns) {
    bool together = false;
    for (int attempt = 0; attempt < ATTEMPTS_MAX && !together; attempt++) {
        int64_t before_ns = clock_monotonic_ns();
        *ticks = ticks_read();
        *ns = clock_monotonic_ns();
        together = *ns - before_ns <= TOGETHER_NS;
    }
    return together;
}

void ticks_init(struct ticks_clock *clock) {
    memset(clock, 0, sizeof *clock);
    bool together = read_both(&clock->first_ticks, &clock->first_ns);
    if (!together || !counts_at_a_constant_rate()) {
        clock->first_ticks = 0;
    }
    clock->base_ticks = clock->first_ticks;
    clock->base_ns = clock->first_ns;
}

int64_t ticks_look(struct ticks_clock *clock) {
    uint64_t now_ticks;
    int64_t now_ns;
    bool together = read_both(&now_ticks, &now_ns);
    int64_t passed_ns = now_ns - clock->first_ns;
    uint64_t passed_ticks = now_ticks - clock->first_ticks;
    if (clock->first_ticks == 0 || passed_ns < MEASURE_NS) {
        return now_ns;
    }
    if (!together) { /* the rate of the last look would have to last for longer than it is trusted */
        clock->ns_per_tick_32 = 0;
        return now_ns;
    }
    double rate = (double)passed_ns / (double)passed_ticks * 4294967296.0;
    clock->ns_per_tick_32 = rate < (double)NS_PER_TICK_32_MAX ? (uint64_t)rate : 0;
    clock->base_ticks = now_ticks;
    clock->base_ns = now_ns;
    return now_ns;
}
