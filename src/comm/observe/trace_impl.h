/* Between the events (trace.c) and the file that takes them (trace_file.c). */
#ifndef COMM_TRACE_IMPL_H
#define COMM_TRACE_IMPL_H

#include <stdint.h>

#include "comm/observe/trace_line.h"

/* Threads are lanes with their own numbers; those of groups lie above every thread id of Linux. */
enum { LANE_FIRST = (1 << 22) + 1 };

/* This process, in events; valid once trace_enabled() has been true. */
int64_t trace_process(void);

/* Ends the event and takes it into the buffer; `at_ns` is about now. */
void trace_append(struct trace_line *line, int64_t at_ns);

/* The lane of a group's collectives, named in the file when it is new. */
int64_t trace_lane_of_group(const char *group);

/* MUSTER_ESYSTEM, with why the trace was given up as the detail. */
int trace_fail(void);

#endif
