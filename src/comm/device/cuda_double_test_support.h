/* A double of libcuda.so.1 for tests, a shared library of its own: MUSTER_CUDA_LIBRARY names it. It is no driver and
 * knows no GPU. What it has of one:
 *
 * - Memory "of the device" lies at addresses that the CPU cannot read or write (PROT_NONE): a library that touches it
 *   from outside dies at once. Its contents lie elsewhere. Fresh memory is full of 0xA5.
 * - A stream is a thread that carries out its work in order; streams run side by side. Copies with host memory are
 *   always carried out by that thread, so whoever does not wait for them is found out.
 * - Events, contexts (current per thread, needed by nearly all calls), and errors that stay, as with an illegal
 *   address.
 * - Kernels are C functions, by name.
 *
 * Faults: MUSTER_DOUBLE_CUDA (fault_test_support.h). MUSTER_DOUBLE_DEVICES: how many devices there are (8, at most 64).
 * MUSTER_DOUBLE_DRIVER: the driver's version (12040). MUSTER_DOUBLE_JITTER_US: each piece of work of a stream begins
 * after a pause of up to so many microseconds, so that streams overtake each other. */
#ifndef COMM_CUDA_DOUBLE_TEST_SUPPORT_H
#define COMM_CUDA_DOUBLE_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/device/cuda_abi.h"

#define CUDA_DOUBLE_API __attribute__((visibility("default")))

/* Where the contents of `bytes` of the device's memory lie; NULL: they are not all within one allocation. */
CUDA_DOUBLE_API void *cuda_double_contents(unsigned long long pointer, size_t bytes);

/* All memory of this process's devices: the descriptor of a memfd, its first address and its size. Whoever maps the
 * descriptor (/proc/PID/fd/N, from another process) sees the contents, at the same offsets. */
CUDA_DOUBLE_API int cuda_double_arena(unsigned long long *out_base, size_t *out_bytes);

/* Appends work to a stream (NULL: the default one). `run` is called by the stream's thread. */
CUDA_DOUBLE_API void cuda_double_enqueue(struct CUstream_st *stream, void (*run)(void *argument), void *argument);

/* A kernel that modules have from now on; `argument_bytes`: of each of its arguments. */
typedef void cuda_double_kernel(void **arguments);
CUDA_DOUBLE_API void cuda_double_register(const char *name, cuda_double_kernel *kernel, const size_t *argument_bytes,
                                          unsigned argument_count);

/* How many allocations of device memory, of pinned memory, streams and events there are: to find leaks. */
CUDA_DOUBLE_API unsigned cuda_double_live(void);

#endif
