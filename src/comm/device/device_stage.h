/* Bytes of a buffer, wherever it is: read and written a piece at a time by code of the host. Memory of the host is
 * passed through as it is. Memory of a GPU goes through two chunks of pinned memory: while the GPU copies into one, the
 * caller works with the other.
 *
 * The first buffer on a GPU opens what this needs there: in the calling thread's current context, or, if it has none,
 * in that of the buffer's GPU. Copies go over a stream of the stage's own. The first one begins when the caller's
 * stream has done what it has been given by then. There is no deadline: a GPU that hangs holds the caller.
 *
 * A stage belongs to one thread, and to one call of the program. A failure leaves a sentence with the driver's words.
 * Errors: MUSTER_ENOMEM, MUSTER_ESYSTEM. */
#ifndef COMM_DEVICE_STAGE_H
#define COMM_DEVICE_STAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "comm/device/device.h"

enum { DEVICE_STAGE_CHUNKS = 2 };
#define DEVICE_STAGE_CHUNK_BYTES ((size_t)4 << 20) /* at most */

/* What lies in a chunk, or is on its way from or to it. */
struct device_chunk {
    char *memory;
    struct CUevent_st *copied;
    bool is_under_way;
    size_t filled, taken; /* of a read: bytes that are in it, and those that the caller has had */
};

struct device_stage {
    struct CUstream_st *behind; /* the caller's; NULL: the default one */
    size_t chunk_bytes;
    struct device device;
    bool is_open; /* a buffer on a GPU has been met; what follows counts only then */
    struct CUstream_st *stream;
    struct CUevent_st *before;
    struct device_chunk chunks[DEVICE_STAGE_CHUNKS];
    unsigned turn; /* the chunk that is next */

    /* A read. */
    bool reads_device;
    const char *at; /* what has yet to be asked for (of the host: to be passed on), */
    size_t left;    /* and how much that is */
};

/* behind: a stream, borrowed. bytes: about so many will be copied; it decides how large the chunks are. Touches
 * no driver. */
void device_stage_init(struct device_stage *stage, void *behind, size_t bytes);
/* Waits for copies that are under way, and frees all. Also after a failure. Keeps the detail. */
void device_stage_done(struct device_stage *stage);

/* ---- reading ---- */

/* Begins to read `count` bytes, which are borrowed until the next read, put or done. */
int device_stage_read(struct device_stage *stage, const void *from, size_t count);
/* The next of them: at least one, at most `most` (> 0). They are borrowed until the next call on the stage. Not to be
 * asked for more than the read has. */
int device_stage_next(struct device_stage *stage, size_t most, const void **out, size_t *out_count);
/* All of it, into memory of the host. */
int device_stage_copy_out(struct device_stage *stage, void *to, const void *from, size_t count);

/* ---- writing ---- */

/* Writes bytes of the host's memory to a buffer, and has taken them when it returns. They have come to a GPU when
 * device_stage_settle() has returned 0: then work on any stream that is given after that finds them. */
int device_stage_put(struct device_stage *stage, void *to, const void *from, size_t count);
int device_stage_settle(struct device_stage *stage);

#endif
