/* Comparing clocks by common calls; see trace_clock.h. */
#include "cli/trace/trace_clock.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"

/* What is known of the offset that takes clock `b` to clock `a`. */
struct bounds {
    int64_t lower, upper;
    uint32_t call_count;
};

struct table {
    struct bounds *pairs; /* clock_count * clock_count, by a * clock_count + b */
    uint32_t clock_count;
};

static int compare_parts(const void *left, const void *right) {
    const struct trace_part *a = left, *b = right;
    if (a->call != b->call) {
        return a->call < b->call ? -1 : 1;
    }
    return (a->clock > b->clock) - (a->clock < b->clock);
}

static void narrow(struct table *table, const struct trace_part *a, const struct trace_part *b) {
    struct bounds *pair = &table->pairs[(size_t)a->clock * table->clock_count + b->clock];
    int64_t lower = a->begin_ns - b->end_ns, upper = a->end_ns - b->begin_ns;
    pair->lower = lower > pair->lower ? lower : pair->lower;
    pair->upper = upper < pair->upper ? upper : pair->upper;
    pair->call_count++;
}

/* The parts of one call, sorted by clock: those of a clock become one, from its last begin to its first end; then
 * every pair of clocks is compared. */
static void use_call(struct table *table, const struct trace_part *parts, size_t count) {
    struct trace_part one[TRACE_CLOCKS_MAX]; /* a clock */
    size_t clocks = 0;
    for (size_t i = 0; i < count; i++) {
        struct trace_part *last = clocks > 0 ? &one[clocks - 1] : NULL;
        if (last == NULL || last->clock != parts[i].clock) {
            one[clocks++] = parts[i];
            continue;
        }
        last->begin_ns = parts[i].begin_ns > last->begin_ns ? parts[i].begin_ns : last->begin_ns;
        last->end_ns = parts[i].end_ns < last->end_ns ? parts[i].end_ns : last->end_ns;
    }
    for (size_t a = 0; a < clocks; a++) {
        for (size_t b = 0; b < clocks; b++) {
            if (a != b) {
                narrow(table, &one[a], &one[b]);
            }
        }
    }
}

/* Half the width of the interval that the offset lies in, or by how much its ends contradict each other. */
static int64_t uncertainty(const struct bounds *pair) {
    int64_t width = pair->upper - pair->lower;
    return (width < 0 ? -width : width) / 2;
}

/* Nonsense in damaged files must not overflow. */
static int64_t bounded(int64_t ns) {
    return ns > TRACE_OFFSET_MAX_NS ? TRACE_OFFSET_MAX_NS : ns < -TRACE_OFFSET_MAX_NS ? -TRACE_OFFSET_MAX_NS : ns;
}

/* Takes the clock that can be placed most surely through one that is placed already; false when none is left. */
static bool place_next(const struct table *table, bool *placed, struct trace_offset *out) {
    const struct bounds *best = NULL;
    uint32_t from = 0, to = 0;
    int64_t best_ns = 0;
    for (uint32_t a = 0; a < table->clock_count; a++) {
        for (uint32_t b = 0; b < table->clock_count; b++) {
            const struct bounds *pair = &table->pairs[(size_t)a * table->clock_count + b];
            if (!placed[a] || placed[b] || pair->call_count == 0) {
                continue;
            }
            int64_t sum_ns = out[a].uncertainty_ns + uncertainty(pair);
            if (best == NULL || sum_ns < best_ns) {
                best = pair, best_ns = sum_ns, from = a, to = b;
            }
        }
    }
    if (best == NULL) {
        return false;
    }
    placed[to] = true;
    out[to].offset_ns = bounded(out[from].offset_ns + best->lower + (best->upper - best->lower) / 2);
    out[to].uncertainty_ns = bounded(best_ns);
    out[to].call_count = best->call_count;
    return true;
}

int trace_clock_align(struct trace_part *parts, size_t part_count, uint32_t clock_count, struct trace_offset *out) {
    assert(clock_count > 0 && clock_count <= TRACE_CLOCKS_MAX);
    struct table table = {.clock_count = clock_count};
    bool placed[TRACE_CLOCKS_MAX] = {true};
    size_t pair_count = (size_t)clock_count * clock_count;
    table.pairs = calloc(pair_count, sizeof *table.pairs);
    if (table.pairs == NULL) {
        return status_fail(MUSTER_ENOMEM, "out of memory while comparing %u clocks", clock_count);
    }
    for (size_t i = 0; i < pair_count; i++) {
        table.pairs[i] = (struct bounds){.lower = INT64_MIN / 4, .upper = INT64_MAX / 4};
    }
    if (part_count > 0) {
        qsort(parts, part_count, sizeof *parts, compare_parts);
    }
    for (size_t from = 0, to; from < part_count; from = to) {
        for (to = from; to < part_count && parts[to].call == parts[from].call; to++) {
            assert(parts[to].clock < clock_count);
        }
        use_call(&table, parts + from, to - from);
    }
    for (uint32_t i = 0; i < clock_count; i++) {
        out[i] = (struct trace_offset){0};
    }
    while (place_next(&table, placed, out)) {
    }
    free(table.pairs);
    return MUSTER_OK;
}
