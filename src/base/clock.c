/* Clock reading; see clock.h. */
#include "base/clock.h"

#include <time.h>

int64_t clock_monotonic_ns(void) {
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * CLOCK_NS_PER_S + ts.tv_nsec;
}

int64_t clock_realtime_us(void) {
    struct timespec ts;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * CLOCK_US_PER_S + ts.tv_nsec / 1000;
}

int64_t clock_realtime_at_us(int64_t at_ns) {
    /* In this order: what passes between the two readings makes the answer later, not earlier than the moment. */
    int64_t past_us = (clock_monotonic_ns() - at_ns) / (CLOCK_NS_PER_S / CLOCK_US_PER_S);
    return clock_realtime_us() - past_us;
}

int64_t clock_remaining_ms(int64_t deadline_ns) {
    int64_t left_ns = deadline_ns - clock_monotonic_ns();
    return left_ns > 0 ? left_ns / CLOCK_NS_PER_MS + (left_ns % CLOCK_NS_PER_MS > 0) : 0;
}

int64_t clock_deadline_ns(int64_t now_ns, int64_t timeout_ms) {
    return timeout_ms < (INT64_MAX - now_ns) / CLOCK_NS_PER_MS ? now_ns + timeout_ms * CLOCK_NS_PER_MS : INT64_MAX;
}
