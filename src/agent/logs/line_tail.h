/* The last lines of a stream, in bounded memory: what a failure report shows of a worker's stderr.
 *
 * Pure, but for the memory that it allocates as the stream grows. */
#ifndef AGENT_LINE_TAIL_H
#define AGENT_LINE_TAIL_H

#include <stddef.h>
#include <stdint.h>

/* Most that is kept of one stream. */
#define LINE_TAIL_BYTES_MAX ((size_t)16 * 1024)

struct line_tail {
    uint8_t *ring; /* owned; grows to LINE_TAIL_BYTES_MAX, then wraps */
    size_t capacity;
    size_t written_bytes; /* all told */
};

/* Embedded object; all-zero is the empty tail. */
void line_tail_init(struct line_tail *tail);
void line_tail_done(struct line_tail *tail);

/* Takes note of `count` more bytes (copied). Out of memory only makes the tail shorter. */
void line_tail_add(struct line_tail *tail, const uint8_t *bytes, size_t count);

/* Writes the last `lines` lines into `out` (text, terminated, '\n' between lines and after the last only if the stream
 * had it) and returns its length. When they do not fit, whole lines are dropped from the front; the first line
 * kept may lack its beginning where the stream was longer than what is kept. */
size_t line_tail_read(const struct line_tail *tail, size_t lines, char *out, size_t size);

/* The same for bytes in hand (the end of a file). */
size_t line_tail_of_bytes(const uint8_t *bytes, size_t count, size_t lines, char *out, size_t size);

#endif
