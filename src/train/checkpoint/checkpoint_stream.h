/* A file that is written from its beginning to its end, in pieces. While a thread hands one piece to the disk, the
 * caller makes the next one: checksums cost no time then, and the disk never waits.
 *
 * Pieces go past the page cache where the file system allows that (snapshot_io.h). Through the cache each byte is
 * copied once more, and a checkpoint drives data that the training reads out of it. On one disk of 2.3 GB/s the gain in
 * time was a few hundredths.
 */
#ifndef TRAIN_CHECKPOINT_STREAM_H
#define TRAIN_CHECKPOINT_STREAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/state/snapshot_files.h"

enum { CHECKPOINT_STREAM_PIECES = 2 };

/* How fast a stream may write. */
struct checkpoint_pace {
    uint64_t bytes_per_second;    /* 0: as fast as the disk takes it */
    const atomic_bool *is_lifted; /* set by another thread: from then on as fast as that. NULL: never */
};

struct checkpoint_stream {
    const struct snapshot_folder *folder; /* borrowed, with what follows */
    const char *name;
    int file;
    uint64_t bytes; /* added so far */

    /* The caller's. */
    size_t piece_bytes; /* of each of the pieces in `memory` */
    void *memory;
    uint8_t *pieces[CHECKPOINT_STREAM_PIECES];
    size_t filled; /* of the piece that is being made */
    bool has_thread;
    pthread_t thread;

    /* Of both, by the lock: counts of pieces made and written. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t made, written;
    size_t sizes[CHECKPOINT_STREAM_PIECES];
    bool is_ending;
    int64_t error; /* -errno of the first call that failed; no more are made */

    /* Of who writes. */
    uint64_t offset;
    bool is_direct, may_be_direct;
    struct checkpoint_pace pace;
    int64_t began_ms; /* of the first write, for the pace */
};

/* A new file, of `bytes` bytes in all. piece_bytes: a multiple of the table's direct_bytes. A file of one piece is
 * written by the caller, through the page cache. The pace may be set right after. MUSTER_ENOMEM; after a failure there
 * is nothing to end. */
int checkpoint_stream_begin(struct checkpoint_stream *stream, const struct snapshot_folder *folder, const char *name,
                            int file, uint64_t bytes, size_t piece_bytes);

/* Appends: copies. May report a failure of bytes that were added before. */
int checkpoint_stream_add(struct checkpoint_stream *stream, const void *bytes, size_t count);

/* Waits until all has been written, which does not mean that it is on the disk, and frees what the stream has. After
 * every begin that succeeded. */
int checkpoint_stream_end(struct checkpoint_stream *stream);

#endif
