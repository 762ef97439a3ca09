/* See checkpoint_stream.h. */
#include "train/checkpoint/checkpoint_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"
#include "base/system/thread.h"

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* ---- the pace ---- */

/* A limit is kept over so long. */
enum { PACE_MS = 100, MS_PER_S = 1000 };

static bool has_limit(const struct checkpoint_pace *pace) {
    return pace->bytes_per_second > 0 &&
           !(pace->is_lifted && atomic_load_explicit(pace->is_lifted, memory_order_relaxed));
}

/* What of `count` bytes to write at once. */
static size_t limit(const struct checkpoint_stream *stream, size_t count) {
    if (!has_limit(&stream->pace)) {
        return count;
    }
    size_t unit = stream->folder->io->direct_bytes;
    uint64_t most = stream->pace.bytes_per_second / (MS_PER_S / PACE_MS) / unit * unit;
    most = most < unit ? unit : most;
    return count < most ? count : (size_t)most;
}

/* Until what has been written is no more than what may have been by now. */
static void wait_for_pace(struct checkpoint_stream *stream) {
    const struct snapshot_io *io = stream->folder->io;
    while (has_limit(&stream->pace)) {
        double due_ms = (double)stream->offset / (double)stream->pace.bytes_per_second * MS_PER_S;
        double left_ms = due_ms - (double)(io->now_ms(io->ctx) - stream->began_ms);
        if (left_ms < 1) {
            return;
        }
        io->pause(io->ctx, left_ms < PACE_MS ? (int64_t)left_ms : PACE_MS);
    }
}

/* ---- writing ---- */

/* What does not begin or end at a multiple of direct_bytes goes through the cache: the end of a file. */
static size_t choose_way(struct checkpoint_stream *stream, size_t count) {
    const struct snapshot_io *io = stream->folder->io;
    size_t whole = count / io->direct_bytes * io->direct_bytes;
    bool is_direct = stream->may_be_direct && stream->offset % io->direct_bytes == 0 && whole > 0;
    if (is_direct != stream->is_direct) {
        if (io->set_direct(io->ctx, stream->file, is_direct) == 0) {
            stream->is_direct = is_direct;
        } else {
            stream->may_be_direct = false; /* and it is not: what was set can be unset */
        }
    }
    return stream->is_direct ? whole : count;
}

/* 0 or -errno. */
static int64_t write_some(struct checkpoint_stream *stream, const uint8_t *bytes, size_t count, size_t *out_put) {
    const struct snapshot_io *io = stream->folder->io;
    size_t most = choose_way(stream, count);
    int64_t put = io->write(io->ctx, stream->file, bytes, most);
    if (put == -EINVAL && stream->is_direct) { /* it cannot after all */
        stream->may_be_direct = false;
        most = choose_way(stream, count);
        put = io->write(io->ctx, stream->file, bytes, most);
    }
    if (put <= 0) { /* 0 is no answer that a file gives; it must not loop */
        return put < 0 ? put : -EIO;
    }
    if (!stream->is_direct) {
        io->start_sync(io->ctx, stream->file, stream->offset, (uint64_t)put);
    }
    stream->offset += (uint64_t)put;
    if (put % (int64_t)io->direct_bytes != 0) {
        stream->may_be_direct = false; /* a short write: nothing that follows is aligned */
    }
    *out_put = (size_t)put;
    return 0;
}

static int64_t write_piece(struct checkpoint_stream *stream, const uint8_t *bytes, size_t count) {
    int64_t error = 0;
    for (size_t done = 0, put = 0; done < count && error == 0; done += put) {
        put = 0;
        wait_for_pace(stream);
        error = write_some(stream, bytes + done, limit(stream, count - done), &put);
    }
    return error;
}

/* ---- the thread ---- */

/* Waits for a piece; false: all have been written, or one has failed. */
static bool await_piece(struct checkpoint_stream *stream) {
    (void)pthread_mutex_lock(&stream->lock);
    while (stream->written == stream->made && !stream->is_ending && stream->error == 0) {
        (void)pthread_cond_wait(&stream->changed, &stream->lock);
    }
    bool has = stream->written < stream->made && stream->error == 0;
    (void)pthread_mutex_unlock(&stream->lock);
    return has;
}

static void *write_pieces(void *argument) {
    struct checkpoint_stream *stream = argument;
    while (await_piece(stream)) {
        size_t index = stream->written % CHECKPOINT_STREAM_PIECES;
        int64_t error = write_piece(stream, stream->pieces[index], stream->sizes[index]);
        (void)pthread_mutex_lock(&stream->lock);
        stream->written++;
        stream->error = error;
        (void)pthread_cond_signal(&stream->changed);
        (void)pthread_mutex_unlock(&stream->lock);
    }
    return NULL;
}

/* ---- the caller ---- */

/* A disk takes a request of few long runs of memory sooner than one of a thousand pages: on huge pages, if there are
 * any. */
static int allocate(struct checkpoint_stream *stream, size_t pieces) {
    size_t whole = pieces * stream->piece_bytes;
    size_t unit = whole >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : stream->folder->io->direct_bytes;
    stream->memory = malloc(whole + unit);
    if (!stream->memory) {
        return status_fail(MUSTER_ENOMEM, "no memory for pieces of %zu bytes", stream->piece_bytes);
    }
    uint8_t *first = (uint8_t *)stream->memory + (unit - (uintptr_t)stream->memory % unit) % unit;
    if (unit == HUGE_PAGE_BYTES) {
        (void)madvise(first, whole, MADV_HUGEPAGE);
    }
    for (size_t i = 0; i < pieces; i++) {
        stream->pieces[i] = first + i * stream->piece_bytes;
    }
    return 0;
}

int checkpoint_stream_begin(struct checkpoint_stream *stream, const struct snapshot_folder *folder, const char *name,
                            int file, uint64_t bytes, size_t piece_bytes) {
    bool is_long = bytes > piece_bytes;
    *stream = (struct checkpoint_stream){.folder = folder, .name = name, .file = file, .may_be_direct = is_long};
    stream->began_ms = folder->io->now_ms(folder->io->ctx);
    stream->piece_bytes = is_long ? piece_bytes : (size_t)bytes + 1;
    int code = allocate(stream, is_long ? CHECKPOINT_STREAM_PIECES : 1);
    if (code) {
        return code;
    }
    (void)pthread_mutex_init(&stream->lock, NULL);
    (void)pthread_cond_init(&stream->changed, NULL);
    /* Without a thread it takes longer, and that is all. */
    stream->has_thread = is_long && thread_start(&stream->thread, NULL, write_pieces, stream) == 0;
    return 0;
}

static int failure(const struct checkpoint_stream *stream, int64_t error) {
    return error ? snapshot_io_fail(stream->folder, "write", stream->name, error) : 0;
}

/* The piece is the thread's now; waits until the next one may be made. */
static int hand_over(struct checkpoint_stream *stream) {
    size_t index = stream->made % CHECKPOINT_STREAM_PIECES;
    if (!stream->has_thread) {
        stream->error = stream->error ? stream->error : write_piece(stream, stream->pieces[0], stream->filled);
        stream->filled = 0;
        return failure(stream, stream->error);
    }
    (void)pthread_mutex_lock(&stream->lock);
    stream->sizes[index] = stream->filled;
    stream->made++;
    (void)pthread_cond_signal(&stream->changed);
    while (stream->made - stream->written == CHECKPOINT_STREAM_PIECES && stream->error == 0) {
        (void)pthread_cond_wait(&stream->changed, &stream->lock);
    }
    int64_t error = stream->error;
    (void)pthread_mutex_unlock(&stream->lock);
    stream->filled = 0;
    return failure(stream, error);
}

int checkpoint_stream_add(struct checkpoint_stream *stream, const void *bytes, size_t count) {
    int code = 0;
    for (size_t done = 0; done < count && code == 0;) {
        size_t room = stream->piece_bytes - stream->filled;
        size_t part = count - done < room ? count - done : room;
        uint8_t *piece = stream->pieces[stream->has_thread ? stream->made % CHECKPOINT_STREAM_PIECES : 0];
        memcpy(piece + stream->filled, (const uint8_t *)bytes + done, part);
        stream->filled += part;
        stream->bytes += part;
        done += part;
        code = stream->filled == stream->piece_bytes ? hand_over(stream) : 0;
    }
    return code;
}

int checkpoint_stream_end(struct checkpoint_stream *stream) {
    int code = stream->filled > 0 ? hand_over(stream) : 0;
    if (stream->has_thread) {
        (void)pthread_mutex_lock(&stream->lock);
        stream->is_ending = true;
        (void)pthread_cond_signal(&stream->changed);
        (void)pthread_mutex_unlock(&stream->lock);
        (void)pthread_join(stream->thread, NULL);
    }
    code = code ? code : failure(stream, stream->error);
    (void)pthread_cond_destroy(&stream->changed);
    (void)pthread_mutex_destroy(&stream->lock);
    free(stream->memory);
    return code;
}
