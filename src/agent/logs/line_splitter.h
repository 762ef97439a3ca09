/* Cutting a stream of bytes into pieces that may be shown, and joining the pieces of many streams on one output.
 *
 * Pure: bytes in, lengths out; no I/O and no memory of its own. A line ends at '\n' and nowhere else (in the output
 * the bytes of a line are exactly those that the worker wrote: '\r', NUL and invalid UTF-8 are ordinary bytes). A line
 * longer than `piece_max` comes in pieces of exactly that many bytes. */
#ifndef AGENT_LINE_SPLITTER_H
#define AGENT_LINE_SPLITTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longest line that is kept whole. */
#define LINE_PIECE_MAX ((size_t)8 * 1024 * 1024)

struct line_splitter {
    size_t piece_max;
    size_t scanned_bytes; /* of the pending bytes: known to hold no end */
    bool carriage_return_cuts;
};

/* carriage_return_cuts: a lone '\r' ends a piece too, so that a progress bar is seen as it moves; for streams
 * that are passed on unchanged. "\r\n" stays in one piece. piece_max > 0. */
void line_splitter_init(struct line_splitter *splitter, size_t piece_max, bool carriage_return_cuts);

/* Length of the first piece at the front of the `count` pending bytes, or 0 when more bytes are needed. The caller
 * removes a returned piece before the next call and otherwise only appends. `at_end`: nothing follows, so the
 * rest is a piece, whole or not. */
size_t line_splitter_next(struct line_splitter *splitter, const uint8_t *bytes, size_t count, bool at_end);

/* Length of the longest run of whole pieces at the front: for streams whose pieces need no prefix. */
size_t line_splitter_run(struct line_splitter *splitter, const uint8_t *bytes, size_t count, bool at_end);

/* What stands at the end of an output that several streams share. */
struct line_joint {
    const void *owner; /* the stream that wrote last */
    bool open;         /* its text does not end with '\n' */
};

enum line_joint_need {
    LINE_JOINT_NEWLINE = 1, /* another stream's unfinished line must be completed first */
    LINE_JOINT_PREFIX = 2,  /* a new line of the output begins */
};

/* What must be written before a piece of `owner`: a set of enum line_joint_need. */
unsigned line_joint_before(const struct line_joint *joint, const void *owner);

/* Notes that a piece of `owner` has been written. count > 0. */
void line_joint_after(struct line_joint *joint, const void *owner, const uint8_t *piece, size_t count);

#endif
