/* The two clocks. Decision code never calls these: it is handed `now`. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds: for deadlines and durations. */
int64_t clock_monotonic_ns(void);

/* Wall clock in microseconds since 1970 UTC: for what other hosts or people read. */
int64_t clock_realtime_us(void);

/* The wall time of a moment `at_ns` (monotonic) that has passed. Never before a wall time that was read by then, nor
 * after one that is read later, unless somebody sets the clock. */
int64_t clock_realtime_at_us(int64_t at_ns);

/* Whole milliseconds from now to `deadline_ns` (monotonic), rounded up; 0 when it has passed. */
int64_t clock_remaining_ms(int64_t deadline_ns);

/* now + timeout_ms, for any timeout_ms >= 0: INT64_MAX where that would overflow. */
int64_t clock_deadline_ns(int64_t now_ns, int64_t timeout_ms);

#define CLOCK_NS_PER_MS INT64_C(1000000)
#define CLOCK_NS_PER_S INT64_C(1000000000)
#define CLOCK_US_PER_S INT64_C(1000000)

#endif
