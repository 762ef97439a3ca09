/* Work on memory of a GPU, given to a stream: what the layers above process groups need of the driver. Nothing on
 * a GPU is copied by way of the host, and only device_work_await() waits. */
#ifndef COMM_DEVICE_WORK_H
#define COMM_DEVICE_WORK_H

#include <stddef.h>
#include <stdint.h>

#include "comm/device/device.h"

/* A GPU, and a stream of it. Borrows the device. */
struct device_stream {
    const struct device *device;
    struct CUstream_st *stream;
    int64_t patience_ns; /* of device_work_await() */
};

/* Given to the stream, whose turn comes later; both in memory of the GPU; to and from: apart. Bytes of 0 do nothing.
 * All of these enter the device's context, in any thread. MUSTER_ESYSTEM. */
int device_work_copy(const struct device_stream *stream, void *to, const void *from, size_t bytes);
int device_work_clear(const struct device_stream *stream, void *memory, size_t bytes);
/* To memory of the host, for a number that this process has to know: `to` is borrowed until the stream has done it. */
int device_work_read(const struct device_stream *stream, void *to, const void *from, size_t bytes);

/* Waits until the stream has done what it has been given so far. MUSTER_ETIMEOUT after stream->patience_ns. */
int device_work_await(const struct device_stream *stream);

#endif
