/* See device_stage.h. */
#include "comm/device/device_stage.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { CHUNK_BYTES_MIN = 64 * 1024 };

void device_stage_init(struct device_stage *stage, void *behind, size_t bytes) {
    size_t chunk_bytes = bytes / DEVICE_STAGE_CHUNKS;
    chunk_bytes = chunk_bytes > CHUNK_BYTES_MIN ? chunk_bytes : CHUNK_BYTES_MIN;
    chunk_bytes = chunk_bytes < DEVICE_STAGE_CHUNK_BYTES ? chunk_bytes : DEVICE_STAGE_CHUNK_BYTES;
    *stage = (struct device_stage){.behind = behind, .chunk_bytes = chunk_bytes};
}

static int fail(const struct device_stage *stage, unsigned result, const char *what) {
    return result == CUDA_OK ? 0 : cuda_fail(stage->device.cuda, result, what);
}

/* ---- what it has on the GPU ---- */

/* The context in which copies are made. A thread that has none borrows the primary one of the buffer's GPU, which is
 * what the program's other threads work in. */
static int find_context(struct device *device, const void *buffer) {
    const struct cuda_library *cuda = device->cuda;
    int ordinal = 0;
    unsigned result = cuda->context_current(&device->context);
    if (result == CUDA_OK && !device->context) {
        result = cuda->pointer_attribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL, device_address(buffer));
        result = result ? result : cuda->device_get(&device->number, ordinal);
        result = result ? result : cuda->primary_context_retain(&device->context, device->number);
        device->is_retained = result == CUDA_OK;
    }
    return result == CUDA_OK ? 0 : cuda_fail(cuda, result, "find the context of the GPU");
}

static int make(struct device_stage *stage) {
    const struct cuda_library *cuda = stage->device.cuda;
    unsigned result = cuda->stream_create(&stage->stream, CUDA_STREAM_NON_BLOCKING);
    result = result ? result : cuda->event_create(&stage->before, CUDA_EVENT_DISABLE_TIMING);
    for (unsigned i = 0; i < DEVICE_STAGE_CHUNKS; i++) {
        result = result ? result : cuda->event_create(&stage->chunks[i].copied, CUDA_EVENT_DISABLE_TIMING);
    }
    int code = fail(stage, result, "make a stream for copies");
    for (unsigned i = 0; i < DEVICE_STAGE_CHUNKS && code == 0; i++) {
        void *memory = NULL;
        code = fail(stage, cuda->host_allocate(&memory, stage->chunk_bytes), "pin memory for copies");
        stage->chunks[i].memory = code ? NULL : memory;
    }
    return code;
}

static int wait_for_caller(struct device_stage *stage) {
    const struct cuda_library *cuda = stage->device.cuda;
    unsigned result = cuda->event_record(stage->before, stage->behind);
    result = result ? result : cuda->stream_wait_event(stage->stream, stage->before, 0);
    return fail(stage, result, "wait for the caller's stream");
}

/* What was made, in the context. */
static void unmake(struct device_stage *stage) {
    const struct cuda_library *cuda = stage->device.cuda;
    if (stage->stream) { /* nothing may write into the chunks any more */
        (void)cuda->stream_synchronize(stage->stream);
        (void)cuda->stream_destroy(stage->stream);
    }
    for (unsigned i = 0; i < DEVICE_STAGE_CHUNKS; i++) {
        if (stage->chunks[i].memory) {
            (void)cuda->host_free(stage->chunks[i].memory);
        }
        if (stage->chunks[i].copied) {
            (void)cuda->event_destroy(stage->chunks[i].copied);
        }
    }
    if (stage->before) {
        (void)cuda->event_destroy(stage->before);
    }
}

void device_stage_done(struct device_stage *stage) {
    struct CUctx_st *previous = NULL;
    char detail[MUSTER_DETAIL_MAX];
    if (!stage->is_open) {
        return;
    }
    const struct muster_failure record = status_failure();
    (void)str_copy(detail, sizeof detail, muster_detail());
    if (device_enter(&stage->device, &previous) == 0) {
        unmake(stage);
        device_leave(&stage->device, previous);
    } else if (record.cause < 0) { /* the first failure counts */
        (void)status_restore(record.cause, detail, &record);
    }
    device_close(&stage->device);
    stage->is_open = false;
}

static int open_for(struct device_stage *stage, const void *buffer) {
    struct CUctx_st *previous = NULL;
    stage->device = (struct device){.cuda = cuda_library_if_open()};
    int code = find_context(&stage->device, buffer);
    if (code) {
        return code;
    }
    stage->is_open = true; /* done() frees what of it there will be */
    code = device_enter(&stage->device, &previous);
    if (code == 0) {
        code = make(stage);
        code = code ? code : wait_for_caller(stage);
        device_leave(&stage->device, previous);
    }
    return code;
}

/* Is the buffer on a GPU? Then the stage is open, or has failed. */
static int look_at(struct device_stage *stage, const void *buffer, size_t count, bool *out_on_device) {
    *out_on_device = count > 0 && device_place_of(buffer) == DEVICE_PLACE_DEVICE;
    return *out_on_device && !stage->is_open ? open_for(stage, buffer) : 0;
}

/* ---- chunks, in the context ---- */

static int await_chunk(struct device_stage *stage, struct device_chunk *chunk, const char *what) {
    int code = chunk->is_under_way ? fail(stage, stage->device.cuda->event_synchronize(chunk->copied), what) : 0;
    chunk->is_under_way = chunk->is_under_way && code != 0;
    return code;
}

static int mark_chunk(struct device_stage *stage, struct device_chunk *chunk, unsigned result, const char *what) {
    result = result ? result : stage->device.cuda->event_record(chunk->copied, stage->stream);
    chunk->is_under_way = result == CUDA_OK;
    return fail(stage, result, what);
}

/* Asks for the next bytes of the read. */
static int fetch(struct device_stage *stage, struct device_chunk *chunk) {
    size_t count = stage->left < stage->chunk_bytes ? stage->left : stage->chunk_bytes;
    chunk->filled = count;
    chunk->taken = 0;
    if (count == 0) {
        return 0;
    }
    unsigned result = stage->device.cuda->copy_to_host(chunk->memory, device_address(stage->at), count, stage->stream);
    stage->at += count;
    stage->left -= count;
    return mark_chunk(stage, chunk, result, "copy from the GPU");
}

static int settle(struct device_stage *stage) {
    int code = 0;
    for (unsigned i = 0; i < DEVICE_STAGE_CHUNKS && code == 0; i++) {
        code = await_chunk(stage, &stage->chunks[i], "wait for a copy of the GPU");
    }
    return code;
}

static int begin_read(struct device_stage *stage) {
    int code = settle(stage);
    stage->turn = 0;
    for (unsigned i = 0; i < DEVICE_STAGE_CHUNKS && code == 0; i++) {
        code = fetch(stage, &stage->chunks[i]);
    }
    return code;
}

static int next_chunk(struct device_stage *stage) {
    struct device_chunk *chunk = &stage->chunks[stage->turn];
    int code = 0;
    if (chunk->taken == chunk->filled) { /* the caller has done with it */
        code = fetch(stage, chunk);
        stage->turn = (stage->turn + 1) % DEVICE_STAGE_CHUNKS;
    }
    return code ? code : await_chunk(stage, &stage->chunks[stage->turn], "copy from the GPU");
}

static int put_piece(struct device_stage *stage, char *to, const char *from, size_t count) {
    struct device_chunk *chunk = &stage->chunks[stage->turn];
    int code = await_chunk(stage, chunk, "copy to the GPU");
    if (code) {
        return code;
    }
    memcpy(chunk->memory, from, count);
    stage->turn = (stage->turn + 1) % DEVICE_STAGE_CHUNKS;
    return mark_chunk(stage, chunk,
                      stage->device.cuda->copy_to_device(device_address(to), chunk->memory, count, stage->stream),
                      "copy to the GPU");
}

/* ---- reading ---- */

int device_stage_read(struct device_stage *stage, const void *from, size_t count) {
    struct CUctx_st *previous = NULL;
    int code = look_at(stage, from, count, &stage->reads_device);
    stage->at = from;
    stage->left = count;
    if (code || !stage->reads_device) {
        return code;
    }
    code = device_enter(&stage->device, &previous);
    if (code == 0) {
        code = begin_read(stage);
        device_leave(&stage->device, previous);
    }
    return code;
}

static int next_of_device(struct device_stage *stage, size_t most, const void **out, size_t *out_count) {
    struct CUctx_st *previous = NULL;
    int code = device_enter(&stage->device, &previous);
    if (code) {
        return code;
    }
    code = next_chunk(stage);
    device_leave(&stage->device, previous);
    if (code == 0) {
        struct device_chunk *chunk = &stage->chunks[stage->turn];
        size_t there = chunk->filled - chunk->taken;
        *out = chunk->memory + chunk->taken;
        *out_count = there < most ? there : most;
        assert(*out_count > 0);
        chunk->taken += *out_count;
    }
    return code;
}

int device_stage_next(struct device_stage *stage, size_t most, const void **out, size_t *out_count) {
    if (stage->reads_device) {
        return next_of_device(stage, most, out, out_count);
    }
    *out = stage->at;
    *out_count = stage->left < most ? stage->left : most;
    assert(*out_count > 0);
    stage->at += *out_count;
    stage->left -= *out_count;
    return 0;
}

int device_stage_copy_out(struct device_stage *stage, void *to, const void *from, size_t count) {
    int code = device_stage_read(stage, from, count);
    for (size_t done = 0, piece = 0; done < count && code == 0; done += piece) {
        const void *bytes = NULL;
        piece = 0;
        code = device_stage_next(stage, count - done, &bytes, &piece);
        if (code == 0) {
            memcpy((char *)to + done, bytes, piece);
        }
    }
    return code;
}

/* ---- writing ---- */

static int put_on_device(struct device_stage *stage, char *to, const char *from, size_t count) {
    struct CUctx_st *previous = NULL;
    int code = device_enter(&stage->device, &previous);
    if (code) {
        return code;
    }
    for (size_t done = 0, piece = 0; done < count && code == 0; done += piece) {
        piece = count - done < stage->chunk_bytes ? count - done : stage->chunk_bytes;
        code = put_piece(stage, to + done, from + done, piece);
    }
    device_leave(&stage->device, previous);
    return code;
}

int device_stage_put(struct device_stage *stage, void *to, const void *from, size_t count) {
    bool on_device = false;
    int code = look_at(stage, to, count, &on_device);
    if (code == 0 && on_device) {
        code = put_on_device(stage, to, from, count);
    } else if (code == 0 && count > 0) {
        memcpy(to, from, count);
    }
    return code;
}

int device_stage_settle(struct device_stage *stage) {
    struct CUctx_st *previous = NULL;
    int code = stage->is_open ? device_enter(&stage->device, &previous) : 0;
    if (code == 0 && stage->is_open) {
        code = settle(stage);
        device_leave(&stage->device, previous);
    }
    return code;
}
