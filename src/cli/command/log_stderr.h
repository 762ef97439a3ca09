/* The program's log: lines on stderr in the form that torchrun's users know. */
#ifndef CLI_LOG_STDERR_H
#define CLI_LOG_STDERR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"

/* Installs the sink. `level_name`: value of LOGLEVEL or NULL; Python's level names in any case. An unknown one is
 * warned about. */
void log_stderr_install(const char *level_name);

/* Text as it is, all of it: reports, events. A stderr that nobody reads must not change the job's result: errors are
 * ignored, and while workers' output passes through it the text takes its turn without blocking (base/log.h). */
void log_stderr_print(const char *text, size_t bytes);

/* Python's name of a level. False when it is none. */
bool log_stderr_level(const char *name, enum log_level *out);

/* One message as it is written: a header and the text for each of its lines. Returns the bytes used of `size`; what
 * does not fit is cut at the end of a line. `time_us` is since 1970 UTC. */
size_t log_stderr_format(char *out, size_t size, enum log_level level, const char *file, int line, const char *text,
                         int64_t time_us, int pid);

#endif
