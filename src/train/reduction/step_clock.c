/* Counting the time of calls; see step_clock.h. */
#include "train/reduction/step_clock.h"

#include <stddef.h>

#include "base/clock.h"
#include "comm/observe/trace.h"

int64_t step_clock_enter(struct step_clock *clock) {
    int64_t now_ns = clock_monotonic_ns();
    if (clock->first_ns == 0) {
        clock->first_ns = now_ns;
    }
    return now_ns;
}

void step_clock_leave(struct step_clock *clock, int64_t entered_ns, const char *category, const char *traced_name) {
    int64_t now_ns = clock_monotonic_ns();
    clock->inside_ns += now_ns - entered_ns;
    clock->elapsed_ns = now_ns - clock->first_ns;
    if (traced_name && trace_enabled()) {
        trace_span(traced_name, category, entered_ns, now_ns, NULL, 0);
    }
}
