/* Finds how far the clocks of several hosts are apart from what ranks recorded of the calls they made together. Pure.
 *
 * No rank leaves a synchronizing call (barrier, all_reduce, ...) before every rank has entered it. So, for two clocks a
 * and b and each such call, with b's times moved by `offset`: begin_a <= end_b + offset and begin_b + offset <= end_a.
 * Each call bounds the offset from both sides; many calls leave a narrow interval, whose middle is taken and whose half
 * width is the uncertainty. Where the bounds contradict each other (clocks that drift), the middle is the offset that
 * breaks them least, and the uncertainty is by how much. */
#ifndef CLI_TRACE_CLOCK_H
#define CLI_TRACE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_CLOCKS_MAX 256u
#define TRACE_OFFSET_MAX_NS (INT64_MAX / 8) /* a century and a half; times of parts must not be larger either */

/* One rank's part in a synchronizing call, by its own clock. `call` is equal for the parts of one call. */
struct trace_part {
    uint64_t call;
    uint32_t clock;
    uint32_t rank; /* for the caller alone */
    int64_t begin_ns, end_ns;
};

struct trace_offset {
    int64_t offset_ns; /* add it to a time of this clock to have it on clock 0 */
    int64_t uncertainty_ns;
    uint32_t call_count; /* how many calls bound it; 0: nothing is known (and of clock 0) */
};

/* Puts all clocks onto clock 0's time, through other clocks where two share no call. `parts` are sorted in place.
 * `out` has clock_count (1 to TRACE_CLOCKS_MAX) entries. MUSTER_ENOMEM. */
int trace_clock_align(struct trace_part *parts, size_t part_count, uint32_t clock_count, struct trace_offset *out);

#endif
