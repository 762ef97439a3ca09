/* The CUDA driver's library, opened at run time: a process that touches no memory of a GPU never opens it, and starts
 * where there is none. */
#ifndef COMM_CUDA_LIBRARY_H
#define COMM_CUDA_LIBRARY_H

#include <stdatomic.h>

#include "comm/device/cuda_abi.h"

#define CUDA_LIBRARY_NAME "libcuda.so.1"
enum { CUDA_DRIVER_VERSION_MIN = 11000 }; /* 1000 * major + 10 * minor; CUDA 11.0: the oldest for which NCCL 2.18 is */

struct cuda_library {
#define CUDA_MEMBER(member, symbol, parameters) unsigned(*member) parameters; /* NOLINT(bugprone-macro-parentheses) */
    CUDA_FUNCTION_TABLE(CUDA_MEMBER)
#undef CUDA_MEMBER
    char name[256]; /* of its file, for sentences */
    int version;    /* as CUDA_DRIVER_VERSION_MIN */
    int devices;
};

/* Opened and initialised by the first call that succeeds, and kept. MUSTER_CUDA_LIBRARY names another file than
 * libcuda.so.1 (for tests). NULL with MUSTER_EUNSUPPORTED and a sentence: no driver, one that is too old, no device.
 * Any thread. */
const struct cuda_library *cuda_library(void);

/* The same, if that call has succeeded before: else NULL, at the cost of one load. Any thread. */
static inline const struct cuda_library *cuda_library_if_open(void) {
    extern const struct cuda_library *_Atomic cuda_library_opened;
    return atomic_load_explicit(&cuda_library_opened, memory_order_acquire);
}

/* What cuda_library() does, without keeping it. MUSTER_EUNSUPPORTED. */
int cuda_library_open(struct cuda_library *out);

/* Fails with "WHAT: CUDA_ERROR_NAME (the driver's words)": MUSTER_ENOMEM for a device without memory, else
 * MUSTER_ESYSTEM. */
int cuda_fail(const struct cuda_library *cuda, unsigned result, const char *what);

#endif
