/* Opening the traces of a folder: the survey, and one clock for all of them. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/trace/trace_merge_impl.h"

static const struct source *first_of_clock(const struct merge *merge, uint32_t clock) {
    for (size_t i = 0; i < merge->source_count; i++) {
        if (merge->sources[i].clock == clock) {
            return &merge->sources[i];
        }
    }
    return NULL;
}

static int align_clocks(struct merge *merge) {
    int code = trace_clock_align(merge->parts, merge->part_count, merge->clock_count, merge->offsets);
    const struct source *reference = first_of_clock(merge, 0);
    for (uint32_t clock = 1; clock < merge->clock_count && code == MUSTER_OK; clock++) {
        struct trace_offset *offset = &merge->offsets[clock];
        const struct source *source = first_of_clock(merge, clock);
        if (source == NULL || reference == NULL) {
            continue; /* its only file was left out */
        }
        if (offset->call_count > 0) {
            code = trace_merge_note(merge, "clock of %s: known to %.1f us, by %u call%s it shared with others",
                                    source->host, (double)offset->uncertainty_ns / 1000, offset->call_count,
                                    str_plural(offset->call_count));
        } else {
            int64_t ns = source->wall_minus_monotonic_ns - reference->wall_minus_monotonic_ns;
            bool is_sane = ns > -TRACE_OFFSET_MAX_NS && ns < TRACE_OFFSET_MAX_NS;
            offset->offset_ns = is_sane ? ns : 0;
            code = trace_merge_note(merge, "clock of %s: no call was shared with others; placed by the time of day",
                                    source->host);
        }
    }
    return code;
}

static int note_summary(struct merge *merge) {
    uint64_t event_count = 0;
    for (size_t i = 0; i < merge->source_count; i++) {
        event_count += merge->sources[i].event_count;
    }
    return trace_merge_note(merge, "%zu trace%s from %u host%s, %" PRIu64 " event%s", merge->source_count,
                            str_plural(merge->source_count), merge->clock_count, str_plural(merge->clock_count),
                            event_count, str_plural(event_count));
}

int trace_merge_open(struct merge *merge, const char *folder, struct buf *notes) {
    *merge = (struct merge){.notes = notes};
    merge->parts = malloc(TRACE_PARTS_MAX * sizeof *merge->parts);
    int code = merge->parts == NULL ? status_fail(MUSTER_ENOMEM, "out of memory while reading traces") : MUSTER_OK;
    code = code ? code : trace_merge_survey(merge, folder);
    code = code ? code : note_summary(merge);
    return code ? code : align_clocks(merge);
}

void trace_merge_close(struct merge *merge) {
    for (size_t i = 0; i < merge->source_count; i++) {
        free(merge->sources[i].path);
    }
    free(merge->sources);
    free(merge->parts);
}
