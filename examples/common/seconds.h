/* The clock by which the trainers tell how fast they are. */
#ifndef EXAMPLES_COMMON_SECONDS_H
#define EXAMPLES_COMMON_SECONDS_H

#include <time.h>

static inline double seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
