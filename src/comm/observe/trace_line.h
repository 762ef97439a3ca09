/* One event of a trace file: a JSON object on a line of its own. Pure: no clock, file or state in here. */
#ifndef COMM_TRACE_LINE_H
#define COMM_TRACE_LINE_H

#include <stddef.h>
#include <stdint.h>

#include <muster/trace.h>

/* Every part is bounded, so that the longest event fits: a text takes at most TRACE_TEXT_BYTES_MAX. */
enum { TRACE_LINE_BYTES_MAX = 1024, TRACE_TEXT_BYTES_MAX = 2 * MUSTER_TRACE_NAME_MAX };

struct trace_line {
    size_t length;
    char bytes[TRACE_LINE_BYTES_MAX];
};

/* Begins an event of Chrome's `phase` ('X' a span, 'B' and 'E', 'b' and 'e', 'i', 'C', 'M' metadata) on the lane
 * `thread` of process `process`. */
void trace_line_begin(struct trace_line *line, const char *name, char phase, int64_t process, int64_t thread);

/* Appends as printf does. */
void trace_line_put(struct trace_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends ,"key":"text" with at most MUSTER_TRACE_NAME_MAX - 1 bytes of the text, escaped as JSON wants it; control
 * characters and bytes that are not UTF-8 become '?'. */
void trace_line_text(struct trace_line *line, const char *key, const char *text);

/* Appends ,"key":TIME in microseconds with three decimals. A negative time counts as 0. */
void trace_line_time(struct trace_line *line, const char *key, int64_t ns);

/* The whole event, but for its end, that gives a lane ("thread_name") or the process ("process_name") its name. */
void trace_line_name(struct trace_line *line, const char *what, int64_t process, int64_t thread, const char *name);

/* Closes the event: "},\n". */
void trace_line_end(struct trace_line *line);

#endif
