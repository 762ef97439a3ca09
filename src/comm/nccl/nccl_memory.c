/* Memory of the engine: what copies need, and what it gives out; see engine_nccl_impl.h. */
#include <stdlib.h>

#include "base/status.h"
#include "comm/nccl/engine_nccl_impl.h"

enum { LEAST_BYTES = 64 * 1024 };

static size_t grown(size_t bytes) {
    return bytes < LEAST_BYTES ? LEAST_BYTES : bytes;
}

int nccl_memory_pin(struct nccl_engine *n, size_t bytes) {
    const struct cuda_library *cuda = n->device.cuda;
    if (n->pinned_bytes >= bytes) {
        return 0;
    }
    if (n->pinned) {
        (void)cuda->host_free(n->pinned);
    }
    n->pinned = NULL;
    n->pinned_bytes = 0;
    unsigned result = cuda->host_allocate(&n->pinned, grown(bytes));
    if (result != CUDA_OK) {
        n->pinned = NULL;
        return cuda_fail(cuda, result, "pin memory for copies");
    }
    n->pinned_bytes = grown(bytes);
    return 0;
}

int nccl_memory_scratch(struct nccl_engine *n, size_t bytes) {
    const struct cuda_library *cuda = n->device.cuda;
    if (n->scratch_bytes >= bytes) {
        return 0;
    }
    if (n->scratch_bytes > 0) {
        (void)cuda->memory_free(n->scratch);
    }
    n->scratch_bytes = 0;
    unsigned result = cuda->memory_allocate(&n->scratch, grown(bytes));
    if (result != CUDA_OK) {
        return cuda_fail(cuda, result, "reserve memory of the GPU for a copy");
    }
    n->scratch_bytes = grown(bytes);
    return 0;
}

/* ---- what is given out ---- */

/* With the mutex held, as all below. A failure costs speed alone. */
static void enroll(struct nccl_engine *n, struct nccl_memory *memory) {
    if (n->comm && n->nccl->comm_register && n->nccl->comm_deregister &&
        n->nccl->comm_register(n->comm, memory->memory, memory->bytes, &memory->registration) != NCCL_OK) {
        memory->registration = NULL;
    }
}

static void withdraw(struct nccl_engine *n, struct nccl_memory *memory) {
    if (n->comm && memory->registration) {
        (void)n->nccl->comm_deregister(n->comm, memory->registration);
    }
    memory->registration = NULL;
}

static void give_back(const struct nccl_engine *n, const struct nccl_memory *memory) {
    if (memory->is_nccls) {
        (void)n->nccl->memory_free(memory->memory);
    } else {
        (void)n->device.cuda->memory_free(device_address(memory->memory));
    }
}

/* By NCCL, which may then use it from other GPUs directly, else by the driver. */
static int reserve(const struct nccl_engine *n, size_t bytes, struct nccl_memory *out) {
    unsigned long long address = 0;
    out->is_nccls =
        n->nccl->memory_allocate && n->nccl->memory_free && n->nccl->memory_allocate(&out->memory, bytes) == NCCL_OK;
    if (out->is_nccls) {
        return 0;
    }
    unsigned result = n->device.cuda->memory_allocate(&address, bytes);
    out->memory = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    return result == CUDA_OK ? 0 : cuda_fail(n->device.cuda, result, "reserve memory of the GPU");
}

static int clear(const struct nccl_engine *n, const struct nccl_memory *memory, size_t bytes) {
    const struct cuda_library *cuda = n->device.cuda;
    unsigned result = cuda->set_bytes(device_address(memory->memory), 0, bytes, n->stream);
    result = result ? result : cuda->stream_synchronize(n->stream);
    return result == CUDA_OK ? 0 : cuda_fail(cuda, result, "clear memory of the GPU");
}

static int allocate(struct nccl_engine *n, size_t bytes, struct nccl_memory *memory) {
    struct CUctx_st *previous = NULL;
    int code = device_enter(&n->device, &previous);
    if (code) {
        return code;
    }
    code = reserve(n, bytes, memory);
    int cleared = code ? 0 : clear(n, memory, bytes);
    if (code == 0 && cleared) {
        give_back(n, memory);
    } else if (code == 0) {
        pthread_mutex_lock(&n->mutex);
        memory->bytes = bytes;
        enroll(n, memory);
        memory->next = n->memories;
        n->memories = memory;
        pthread_mutex_unlock(&n->mutex);
    }
    device_leave(&n->device, previous);
    return code ? code : cleared;
}

int nccl_memory_allocate(struct engine *engine, size_t bytes, void **out) {
    struct nccl_memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        return status_fail(MUSTER_ENOMEM, "no memory");
    }
    int code = allocate(nccl_of(engine), bytes > 0 ? bytes : 1, memory);
    if (code) {
        free(memory);
        return code;
    }
    *out = memory->memory;
    return 0;
}

void nccl_memory_release(struct engine *engine, void *memory) {
    struct nccl_engine *n = nccl_of(engine);
    struct CUctx_st *previous = NULL;
    if (!memory || device_enter(&n->device, &previous) != 0) {
        return;
    }
    pthread_mutex_lock(&n->mutex);
    struct nccl_memory **at = &n->memories;
    while (*at && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    struct nccl_memory *found = *at;
    if (found) {
        *at = found->next;
        withdraw(n, found);
    }
    pthread_mutex_unlock(&n->mutex);
    if (found) {
        give_back(n, found);
    }
    free(found);
    device_leave(&n->device, previous);
}

void nccl_memory_forget_all(struct nccl_engine *n) {
    pthread_mutex_lock(&n->mutex);
    for (struct nccl_memory *memory = n->memories; memory; memory = memory->next) {
        withdraw(n, memory);
    }
    pthread_mutex_unlock(&n->mutex);
}

void nccl_memory_enroll_all(struct nccl_engine *n) {
    for (struct nccl_memory *memory = n->memories; memory; memory = memory->next) {
        memory->registration = NULL; /* it has ended with the old one */
        enroll(n, memory);
    }
}

void nccl_memory_free(struct nccl_engine *n) {
    const struct cuda_library *cuda = n->device.cuda;
    if (n->pinned) {
        (void)cuda->host_free(n->pinned);
    }
    if (n->scratch_bytes > 0) {
        (void)cuda->memory_free(n->scratch);
    }
    n->pinned = NULL;
    n->scratch_bytes = 0;
    for (struct nccl_memory *memory = n->memories, *next; memory; memory = next) {
        next = memory->next; /* the program has not given it back: its memory stays */
        free(memory);
    }
    n->memories = NULL;
}
