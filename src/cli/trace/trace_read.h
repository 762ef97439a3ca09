/* Reading one line of a trace file (docs/profiling.md has the format). Whatever a line holds, the answer is an event
 * that can be passed on, or that it is damaged. Pure. */
#ifndef CLI_TRACE_READ_H
#define CLI_TRACE_READ_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum { TRACE_HEADER_TEXT_MAX = 128, TRACE_READ_LINE_MAX = 65536 };
#define TRACE_TIME_MAX_US 1e15 /* 31 years: sums of a few times in nanoseconds fit 64 bits */

enum trace_line_kind {
    TRACE_LINE_EVENT,
    TRACE_LINE_HEADER,  /* "muster_trace": who wrote the file */
    TRACE_LINE_END,     /* "muster_trace_end": the process ended in good order */
    TRACE_LINE_NOTHING, /* a bracket or a blank line */
    TRACE_LINE_DAMAGED
};

/* Kind of the line (its '\n' and a comma at its end do not count). *out: for an event the object, yours to
 * json_decref(): it has a "ph" of one character, whole "pid" and "tid", a "ts" unless "ph" is "M", and "dur" is a
 * number if it is there. For a header its "args": "version", "rank" (-1: unknown), "world_size", "process",
 * "monotonic_ns", "realtime_us" are whole numbers, "host" and "clock" texts shorter than TRACE_HEADER_TEXT_MAX. NULL
 * otherwise. */
enum trace_line_kind trace_line_read(const char *line, size_t length, json_t **out);

/* What two ranks have in common when they made the same call; 0: the event is no synchronizing call. */
uint64_t trace_event_call(const json_t *event);

#endif
