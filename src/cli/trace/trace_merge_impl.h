/* What `muster trace merge` and `muster trace report` share: the survey of a folder (trace_survey.c), its clocks
 * (trace_align.c). */
#ifndef CLI_TRACE_MERGE_IMPL_H
#define CLI_TRACE_MERGE_IMPL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "cli/trace/trace_clock.h"
#include "cli/trace/trace_read.h"

enum { TRACE_PARTS_MAX = 1 << 20 };

struct source {
    char *path;
    char host[TRACE_HEADER_TEXT_MAX];
    int64_t rank, process; /* rank: -1 when unknown */
    int64_t wall_minus_monotonic_ns, first_ns;
    uint32_t clock, number; /* number: its process id in the joined trace; not 0, which viewers keep for the kernel */
    uint64_t event_count, damaged_count;
    bool has_header, has_end;
    size_t lane_count;
};

struct merge {
    struct source *sources;
    size_t source_count;
    char clocks[TRACE_CLOCKS_MAX][TRACE_HEADER_TEXT_MAX];
    struct trace_offset offsets[TRACE_CLOCKS_MAX];
    uint32_t clock_count, lane_total;
    struct trace_part *parts; /* a sample of the synchronizing calls */
    size_t part_count;
    uint64_t sample_mask; /* calls whose hash has none of these bits are taken */
    int64_t begin_ns;     /* the first event of all, by clock 0 */
    FILE *out;
    bool wrote_any;
    struct buf *notes;
};

/* A line for people; what does not fit into the notes is dropped. */
int trace_merge_note(struct merge *merge, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Calls `take` with every whole line, without its end; a line too long, or cut at the end of the file, counts as
 * damaged. */
typedef int trace_line_taker(struct merge *merge, struct source *source, const char *line, size_t length);
int trace_merge_read_lines(struct merge *merge, struct source *source, trace_line_taker *take);

/* The time of an event. */
int64_t trace_merge_ns(const json_t *event);

/* Surveys the folder and aligns the clocks of its traces; `merge` is closed with trace_merge_close() whatever comes of
 * it. `notes` (borrowed until then) gets lines for people. Errors as trace_merge(). */
int trace_merge_open(struct merge *merge, const char *folder, struct buf *notes);
void trace_merge_close(struct merge *merge);

/* The first pass: reads all files of the folder, keeps those that are traces, in the order of the ranks, and a sample
 * of the synchronizing calls. */
int trace_merge_survey(struct merge *merge, const char *folder);

#endif
