/* The monotonic clock at the price of reading a register: for code that asks several times a microsecond.
 *
 * Where the processor counts at a constant rate (x86 with an invariant time-stamp counter) a reading is a
 * multiplication away from the last look at the kernel's clock, which is repeated once a second; elsewhere it is the
 * kernel's clock. One thread at a time may use a clock. */
#ifndef BASE_TICKS_H
#define BASE_TICKS_H

#include <stdint.h>

#include "base/clock.h"

struct ticks_clock {
    uint64_t base_ticks;
    int64_t base_ns;
    uint64_t ns_per_tick_32; /* nanoseconds a tick, as a fraction of 2^32; 0: not known (yet), ask the kernel */
    uint64_t first_ticks;    /* the first look: the rate is measured from there */
    int64_t first_ns;
};

/* How long one look lasts. Also keeps the multiplication below 64 bits. */
#define TICKS_TRUSTED (UINT64_C(1) << 31)

void ticks_init(struct ticks_clock *clock);
/* Looks at the kernel's clock and measures the rate anew. */
int64_t ticks_look(struct ticks_clock *clock);

static inline uint64_t ticks_read(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

/* CLOCK_MONOTONIC in nanoseconds, to some microseconds. */
static inline int64_t ticks_monotonic_ns(struct ticks_clock *clock) {
    uint64_t passed = ticks_read() - clock->base_ticks;
    if (__builtin_expect(clock->ns_per_tick_32 == 0 || passed >= TICKS_TRUSTED, 0)) {
        return ticks_look(clock);
    }
    return clock->base_ns + (int64_t)(passed * clock->ns_per_tick_32 >> 32);
}

#endif
