/* Memory of GPUs as process groups see it: where a buffer lives, and the one GPU that a process works with. */
#ifndef COMM_DEVICE_H
#define COMM_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/device/cuda_library.h"

enum device_place { DEVICE_PLACE_HOST, DEVICE_PLACE_DEVICE };

/* Where `pointer` points to. Pinned host memory is host memory; managed memory is the device's. Host for NULL, and for
 * everything as long as nobody has called cuda_library() (one load). Any thread. */
enum device_place device_place_of(const void *pointer);

/* The number of the GPU in whose memory it is, as in struct device; -1: in no GPU's alone, or the driver does not say.
 */
int device_number_of(const void *pointer);

/* A GPU, through its context. */
struct device {
    const struct cuda_library *cuda;
    struct CUctx_st *context;
    int number;
    bool is_retained; /* its primary context, by device_open() */
};

/* The GPU of the calling thread's current context, as the program has set it (cudaSetDevice() and a first call, or
 * torch.cuda.set_device()). If it has set none: the only one, or that of the process's place on its host. `local`: that
 * place. The calling thread's current context stays what it is. MUSTER_EUNSUPPORTED (no driver, no GPU for this
 * place), MUSTER_ESYSTEM. */
int device_open(uint32_t local, struct device *out);
void device_close(struct device *device); /* also of a zeroed one */

/* Around calls of the driver, in any thread: the device's context is the current one between them. */
int device_enter(const struct device *device, struct CUctx_st **out_previous);
void device_leave(const struct device *device, struct CUctx_st *previous);

static inline unsigned long long device_address(const void *pointer) {
    return (unsigned long long)(uintptr_t)pointer;
}

#endif
