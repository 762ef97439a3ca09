/* Copies on a stream; see device_work.h. */
#include "comm/device/device_work.h"

#include <sched.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"

enum { QUICK_LOOKS = 32, PAUSE_US = 20 };

int device_work_copy(const struct device_stream *stream, void *to, const void *from, size_t bytes) {
    const struct cuda_library *cuda = stream->device->cuda;
    struct CUctx_st *previous = NULL;
    int code = bytes > 0 ? device_enter(stream->device, &previous) : 0;
    if (code || bytes == 0) {
        return code;
    }
    unsigned result = cuda->copy_on_device(device_address(to), device_address(from), bytes, stream->stream);
    code = result == CUDA_OK ? 0 : cuda_fail(cuda, result, "copy on the GPU");
    device_leave(stream->device, previous);
    return code;
}

int device_work_clear(const struct device_stream *stream, void *memory, size_t bytes) {
    const struct cuda_library *cuda = stream->device->cuda;
    struct CUctx_st *previous = NULL;
    int code = bytes > 0 ? device_enter(stream->device, &previous) : 0;
    if (code || bytes == 0) {
        return code;
    }
    unsigned result = cuda->set_bytes(device_address(memory), 0, bytes, stream->stream);
    code = result == CUDA_OK ? 0 : cuda_fail(cuda, result, "clear memory of the GPU");
    device_leave(stream->device, previous);
    return code;
}

int device_work_read(const struct device_stream *stream, void *to, const void *from, size_t bytes) {
    const struct cuda_library *cuda = stream->device->cuda;
    struct CUctx_st *previous = NULL;
    int code = device_enter(stream->device, &previous);
    if (code) {
        return code;
    }
    unsigned result = cuda->copy_to_host(to, device_address(from), bytes, stream->stream);
    code = result == CUDA_OK ? 0 : cuda_fail(cuda, result, "copy a number from the GPU");
    device_leave(stream->device, previous);
    return code;
}

/* With the context entered. */
static int await_event(const struct device_stream *stream, struct CUevent_st *event) {
    const struct cuda_library *cuda = stream->device->cuda;
    const struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
    int64_t until_ns = clock_monotonic_ns() + stream->patience_ns;
    unsigned result = cuda->event_record(event, stream->stream);
    result = result ? result : cuda->event_query(event);
    for (int looks = 0; result == CUDA_NOT_READY; looks++) {
        if (clock_monotonic_ns() >= until_ns) {
            return status_fail(MUSTER_ETIMEOUT, "the GPU did not do in time what the stream has been given");
        }
        if (looks < QUICK_LOOKS) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&pause, NULL);
        }
        result = cuda->event_query(event);
    }
    return result == CUDA_OK ? 0 : cuda_fail(cuda, result, "wait for the stream");
}

int device_work_await(const struct device_stream *stream) {
    const struct cuda_library *cuda = stream->device->cuda;
    struct CUctx_st *previous = NULL;
    struct CUevent_st *event = NULL;
    int code = device_enter(stream->device, &previous);
    if (code) {
        return code;
    }
    unsigned result = cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING);
    if (result == CUDA_OK) {
        code = await_event(stream, event);
        (void)cuda->event_destroy(event);
    } else {
        code = cuda_fail(cuda, result, "make an event");
    }
    device_leave(stream->device, previous);
    return code;
}
