/* Stamps: one line a happening, written with one write() to the channel that the harness reads.
 *
 * The channel is a FIFO (or any file): lines stay under PIPE_BUF, so those of several processes never mix.
 * Format: `name ns=<CLOCK_MONOTONIC> pid=<pid> key=value ...`. Reading them is the harness's business. */
#ifndef BENCH_STAMP_H
#define BENCH_STAMP_H

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC, the clock that Python's time.monotonic_ns() reads too. */
int64_t stamp_now_ns(void);

/* Opens the channel for appending; a FIFO is opened for both ways, so that nobody waits for a reader that is gone.
 * -1 with errno set when it cannot be opened. */
int stamp_open(const char *path);

/* Writes one stamp. `when_ns` is the time to report, `more` further ` key=value` pairs or "". Async-signal-safe
 * but for snprintf. A stamp that cannot be written is lost silently: its reader is gone. */
void stamp_write(int fd, const char *name, int64_t when_ns, const char *more);

#endif
