/* The time that the caller's thread spends in the calls of an object that takes steps (a ddp): counted for its
 * statistics, and traced where a call may wait. */
#ifndef TRAIN_STEP_CLOCK_H
#define TRAIN_STEP_CLOCK_H

#include <stdint.h>

struct step_clock {
    int64_t first_ns;   /* of the first call, monotonic clock; 0: there was none */
    int64_t elapsed_ns; /* from then to the end of the last call */
    int64_t inside_ns;  /* within calls, all together */
};

/* At the beginning of a call. Returns the time. */
int64_t step_clock_enter(struct step_clock *clock);
/* At its end. traced_name: of its span in a trace, in `category`; NULL: it has none. */
void step_clock_leave(struct step_clock *clock, int64_t entered_ns, const char *category, const char *traced_name);

#endif
