/* The double of libcuda.so.1; see cuda_double_test_support.h. Memory and contexts first, then streams, events, kernels,
 * and the functions of the driver at the end. */
#include "comm/device/cuda_double_test_support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/device/fault_test_support.h"

#define ARENA_BYTES ((size_t)4 << 30) /* of addresses; memory is taken as it is used */
enum {
    ALIGNMENT = 512,
    BLOCKS_MAX = 4096,
    DEVICES_MAX = 64,
    KERNELS_MAX = 32,
    ARGUMENTS_MAX = 16,
    ARGUMENT_BYTES_MAX = 64,
    GARBAGE = 0xA5
};

static struct faults faults = {.variable = "MUSTER_DOUBLE_CUDA"};
static _Atomic unsigned live;
static _Atomic unsigned sticky; /* an error that all calls give from now on */

/* ---- contexts ---- */

struct CUctx_st {
    int device;
    _Atomic unsigned retained;
};

static struct CUctx_st contexts[DEVICES_MAX];
static _Atomic bool is_initialised;
static __thread struct CUctx_st *current;

static int number_of(const char *variable, int otherwise) {
    const char *value = getenv(variable);
    return value && *value ? (int)strtol(value, NULL, 10) : otherwise;
}

static int device_count(void) {
    int count = number_of("MUSTER_DOUBLE_DEVICES", 8);
    return count < DEVICES_MAX ? count : DEVICES_MAX;
}

/* What a function of the driver needs. */
enum need { NEED_NOTHING, NEED_CONTEXT, NEED_WORKING_DEVICE };

/* At the head of a function of the driver: it may be made to fail. */
static unsigned enter(const char *function, enum need need) {
    struct fault fault = fault_call(&faults, function);
    if (fault.kind == FAULT_ERROR) {
        return fault.value;
    }
    if (!atomic_load(&is_initialised)) {
        return CUDA_NOT_INITIALIZED;
    }
    if (need != NEED_NOTHING && !current) {
        return CUDA_INVALID_CONTEXT;
    }
    return need == NEED_WORKING_DEVICE ? atomic_load(&sticky) : (unsigned)CUDA_OK;
}

#define ENTER(need)                                                                                                    \
    do {                                                                                                               \
        unsigned entered_ = enter(__func__, need);                                                                     \
        if (entered_ != CUDA_OK) {                                                                                     \
            return entered_;                                                                                           \
        }                                                                                                              \
    } while (0)

/* ---- memory ---- */

struct block {
    size_t begin, bytes;
    int device; /* whose context was the current one */
};

static struct arena {
    pthread_mutex_t mutex;
    int fd;
    char *addresses; /* nobody may touch them */
    char *contents;
    struct block blocks[BLOCKS_MAX]; /* by their begin */
    unsigned count;
} arena = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

struct pinned {
    char *memory;
    size_t bytes;
    struct pinned *next;
};
static struct pinned *pinned;

/* With the mutex held. */
static bool arena_open(void) {
    if (arena.fd >= 0) {
        return true;
    }
    int fd = memfd_create("cuda-double", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)ARENA_BYTES) != 0) {
        return false;
    }
    arena.addresses = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    arena.contents = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (arena.addresses == MAP_FAILED || arena.contents == MAP_FAILED) { /* NOLINT(performance-no-int-to-ptr) */
        abort();
    }
    arena.fd = fd;
    return true;
}

static size_t rounded(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The first gap that is large enough. With the mutex held. */
static bool block_place(size_t bytes, unsigned *out_index, size_t *out_begin) {
    size_t end = 0;
    for (unsigned i = 0; i <= arena.count; i++) {
        size_t next = i < arena.count ? arena.blocks[i].begin : ARENA_BYTES;
        if (next - end >= rounded(bytes)) {
            *out_index = i;
            *out_begin = end;
            return arena.count < BLOCKS_MAX;
        }
        end = i < arena.count ? next + rounded(arena.blocks[i].bytes) : end;
    }
    return false;
}

static unsigned block_add(size_t bytes, unsigned long long *out) {
    unsigned index = 0;
    size_t begin = 0;
    if (!arena_open() || !block_place(bytes, &index, &begin)) {
        return CUDA_OUT_OF_MEMORY;
    }
    memmove(&arena.blocks[index + 1], &arena.blocks[index], (arena.count - index) * sizeof *arena.blocks);
    arena.blocks[index] = (struct block){begin, bytes, current ? current->device : 0};
    arena.count++;
    memset(arena.contents + begin, GARBAGE, bytes);
    *out = (unsigned long long)(uintptr_t)(arena.addresses + begin);
    return CUDA_OK;
}

static struct block *block_find(unsigned long long pointer, size_t bytes) {
    unsigned long long base = (unsigned long long)(uintptr_t)arena.addresses;
    for (unsigned i = 0; arena.addresses && i < arena.count; i++) {
        struct block *block = &arena.blocks[i];
        if (pointer >= base + block->begin && pointer - base - block->begin < block->bytes &&
            bytes <= block->bytes - (size_t)(pointer - base - block->begin)) {
            return block;
        }
    }
    return NULL;
}

void *cuda_double_contents(unsigned long long pointer, size_t bytes) {
    pthread_mutex_lock(&arena.mutex);
    bool is_known = block_find(pointer, bytes) != NULL;
    void *contents =
        is_known ? arena.contents + (size_t)(pointer - (unsigned long long)(uintptr_t)arena.addresses) : NULL;
    pthread_mutex_unlock(&arena.mutex);
    return contents;
}

static int block_device(unsigned long long pointer) {
    pthread_mutex_lock(&arena.mutex);
    const struct block *block = block_find(pointer, 0);
    int device = block ? block->device : 0;
    pthread_mutex_unlock(&arena.mutex);
    return device;
}

int cuda_double_arena(unsigned long long *out_base, size_t *out_bytes) {
    pthread_mutex_lock(&arena.mutex);
    (void)arena_open();
    *out_base = (unsigned long long)(uintptr_t)arena.addresses;
    *out_bytes = ARENA_BYTES;
    pthread_mutex_unlock(&arena.mutex);
    return arena.fd;
}

static bool is_pinned(unsigned long long pointer) {
    bool found = false;
    pthread_mutex_lock(&arena.mutex);
    for (struct pinned *p = pinned; p && !found; p = p->next) {
        found = pointer >= (unsigned long long)(uintptr_t)p->memory &&
                pointer < (unsigned long long)(uintptr_t)p->memory + p->bytes;
    }
    pthread_mutex_unlock(&arena.mutex);
    return found;
}

unsigned cuda_double_live(void) {
    return atomic_load(&live);
}

/* ---- streams ---- */

struct job {
    void (*run)(void *argument);
    void *argument;
    struct job *next;
};

struct CUstream_st {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    struct job *first, **last;
    uint64_t queued, done;
    bool is_closing;
    unsigned random;
};

static void pause_at_random(struct CUstream_st *stream) {
    int most_us = number_of("MUSTER_DOUBLE_JITTER_US", 0);
    if (most_us > 0) {
        stream->random = stream->random * 1103515245u + 12345u;
        fault_pause_us((stream->random >> 8) % (unsigned)most_us);
    }
}

static void *stream_run(void *argument) {
    struct CUstream_st *stream = argument;
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (!stream->first && !stream->is_closing) {
            pthread_cond_wait(&stream->changed, &stream->mutex);
        }
        struct job *job = stream->first;
        if (!job) {
            break;
        }
        stream->first = job->next;
        stream->last = stream->first ? stream->last : &stream->first;
        pthread_mutex_unlock(&stream->mutex);
        pause_at_random(stream);
        job->run(job->argument);
        free(job);
        pthread_mutex_lock(&stream->mutex);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

static struct CUstream_st *stream_new(void) {
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (!stream) {
        abort();
    }
    (void)pthread_mutex_init(&stream->mutex, NULL);
    (void)pthread_cond_init(&stream->changed, NULL);
    stream->last = &stream->first;
    stream->random = (unsigned)getpid() ^ (unsigned)(uintptr_t)stream;
    if (pthread_create(&stream->thread, NULL, stream_run, stream) != 0) {
        abort();
    }
    return stream;
}

static struct CUstream_st *default_stream;

static void make_default_stream(void) {
    default_stream = stream_new();
}

static struct CUstream_st *stream_of(struct CUstream_st *stream) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!stream) {
        (void)pthread_once(&once, make_default_stream);
    }
    return stream ? stream : default_stream;
}

void cuda_double_enqueue(struct CUstream_st *given, void (*run)(void *argument), void *argument) {
    struct CUstream_st *stream = stream_of(given);
    struct job *job = malloc(sizeof *job);
    if (!job) {
        abort();
    }
    *job = (struct job){.run = run, .argument = argument};
    pthread_mutex_lock(&stream->mutex);
    *stream->last = job;
    stream->last = &job->next;
    stream->queued++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
}

static void stream_await(struct CUstream_st *stream) {
    pthread_mutex_lock(&stream->mutex);
    for (uint64_t until = stream->queued; stream->done < until;) {
        pthread_cond_wait(&stream->changed, &stream->mutex);
    }
    pthread_mutex_unlock(&stream->mutex);
}

/* ---- events ---- */

struct CUevent_st {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t recorded, completed;
    unsigned users; /* who works with it: the program, and work of streams */
};

struct event_job {
    struct CUevent_st *event;
    uint64_t number;
};

static void event_release(struct CUevent_st *event) {
    pthread_mutex_lock(&event->mutex);
    bool is_last = --event->users == 0;
    pthread_mutex_unlock(&event->mutex);
    if (is_last) {
        (void)pthread_mutex_destroy(&event->mutex);
        (void)pthread_cond_destroy(&event->changed);
        free(event);
    }
}

static struct event_job *event_job_new(struct CUevent_st *event, bool is_record) {
    struct event_job *job = malloc(sizeof *job);
    if (!job) {
        abort();
    }
    pthread_mutex_lock(&event->mutex);
    event->recorded += is_record ? 1 : 0;
    event->users++;
    *job = (struct event_job){event, event->recorded};
    pthread_mutex_unlock(&event->mutex);
    return job;
}

static void event_complete(void *argument) {
    struct event_job *job = argument;
    pthread_mutex_lock(&job->event->mutex);
    job->event->completed = job->number > job->event->completed ? job->number : job->event->completed;
    pthread_cond_broadcast(&job->event->changed);
    pthread_mutex_unlock(&job->event->mutex);
    event_release(job->event);
    free(job);
}

static void event_wait_until(struct CUevent_st *event, uint64_t number) {
    pthread_mutex_lock(&event->mutex);
    while (event->completed < number) {
        pthread_cond_wait(&event->changed, &event->mutex);
    }
    pthread_mutex_unlock(&event->mutex);
}

static void event_wait_job(void *argument) {
    struct event_job *job = argument;
    event_wait_until(job->event, job->number);
    event_release(job->event);
    free(job);
}

/* ---- work of streams ---- */

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value; /* >= 0: to be filled with it */
};

static void copy_run(void *argument) {
    struct copy *copy = argument;
    if (copy->value >= 0) {
        memset(copy->to, copy->value, copy->bytes);
    } else {
        memmove(copy->to, copy->from, copy->bytes);
    }
    free(copy);
}

static unsigned enqueue_copy(struct CUstream_st *stream, void *to, const void *from, size_t bytes, int value) {
    if (bytes > 0 && (!to || !from)) {
        return CUDA_INVALID_VALUE;
    }
    struct copy *copy = malloc(sizeof *copy);
    if (!copy) {
        abort();
    }
    *copy = (struct copy){to, from, bytes, value};
    cuda_double_enqueue(stream, copy_run, copy);
    return CUDA_OK;
}

/* ---- kernels ---- */

struct CUfunc_st {
    char name[64];
    cuda_double_kernel *kernel;
    size_t bytes[ARGUMENTS_MAX];
    unsigned count;
};

struct CUmod_st {
    int unused;
};

static struct CUfunc_st kernels[KERNELS_MAX];
static unsigned kernel_count;

void cuda_double_register(const char *name, cuda_double_kernel *kernel, const size_t *argument_bytes,
                          unsigned argument_count) {
    if (kernel_count == KERNELS_MAX || argument_count > ARGUMENTS_MAX) {
        abort();
    }
    struct CUfunc_st *function = &kernels[kernel_count++];
    (void)snprintf(function->name, sizeof function->name, "%s", name);
    function->kernel = kernel;
    function->count = argument_count;
    memcpy(function->bytes, argument_bytes, argument_count * sizeof *argument_bytes);
}

struct launch {
    cuda_double_kernel *kernel;
    void *arguments[ARGUMENTS_MAX];
    unsigned char values[ARGUMENTS_MAX][ARGUMENT_BYTES_MAX];
};

static void launch_run(void *argument) {
    struct launch *launch = argument;
    launch->kernel(launch->arguments);
    free(launch);
}

/* ---- the driver's functions, in the order of the table ---- */

#define CUDA_PROTOTYPE(member, symbol, parameters) CUDA_DOUBLE_API unsigned symbol parameters;
CUDA_FUNCTION_TABLE(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

unsigned cuInit(unsigned flags) {
    struct fault fault = fault_call(&faults, __func__);
    if (fault.kind == FAULT_ERROR || flags != 0) {
        return fault.kind == FAULT_ERROR ? fault.value : (unsigned)CUDA_INVALID_VALUE;
    }
    for (int i = 0; i < DEVICES_MAX; i++) {
        contexts[i].device = i;
    }
    atomic_store(&is_initialised, true);
    return device_count() > 0 ? CUDA_OK : CUDA_NO_DEVICE;
}

unsigned cuDriverGetVersion(int *out) {
    *out = number_of("MUSTER_DOUBLE_DRIVER", 12040);
    return CUDA_OK;
}

static const char *const result_names[][2] = {
#define CUDA_RESULT_NAME(name, value, theirs) {#value, #theirs},
    CUDA_RESULT_TABLE(CUDA_RESULT_NAME)
#undef CUDA_RESULT_NAME
};

unsigned cuGetErrorName(unsigned result, const char **out) {
    for (size_t i = 0; i < sizeof result_names / sizeof *result_names; i++) {
        if (strtoul(result_names[i][0], NULL, 10) == result) {
            *out = result_names[i][1];
            return CUDA_OK;
        }
    }
    *out = NULL;
    return CUDA_INVALID_VALUE;
}

unsigned cuGetErrorString(unsigned result, const char **out) {
    unsigned known = cuGetErrorName(result, out);
    *out = known == CUDA_OK ? "as the double says" : NULL;
    return known;
}

unsigned cuDeviceGetCount(int *out) {
    ENTER(NEED_NOTHING);
    *out = device_count();
    return CUDA_OK;
}

unsigned cuDeviceGet(int *out, int ordinal) {
    ENTER(NEED_NOTHING);
    *out = ordinal;
    return ordinal >= 0 && ordinal < device_count() ? CUDA_OK : CUDA_INVALID_DEVICE;
}

/* Of compute capability 9.0. */
unsigned cuDeviceGetAttribute(int *out, unsigned attribute, int device) {
    ENTER(NEED_NOTHING);
    *out = attribute == CUDA_CAPABILITY_MAJOR ? 9 : 0;
    return device >= 0 && device < device_count() &&
                   (attribute == CUDA_CAPABILITY_MAJOR || attribute == CUDA_CAPABILITY_MINOR)
               ? CUDA_OK
               : CUDA_INVALID_VALUE;
}

unsigned cuCtxGetCurrent(struct CUctx_st **out) {
    ENTER(NEED_NOTHING);
    *out = current;
    return CUDA_OK;
}

unsigned cuCtxSetCurrent(struct CUctx_st *context) {
    ENTER(NEED_NOTHING);
    current = context;
    return CUDA_OK;
}

unsigned cuCtxGetDevice(int *out) {
    ENTER(NEED_CONTEXT);
    *out = current->device;
    return CUDA_OK;
}

unsigned cuDevicePrimaryCtxRetain(struct CUctx_st **out, int device) {
    ENTER(NEED_NOTHING);
    if (device < 0 || device >= device_count()) {
        return CUDA_INVALID_DEVICE;
    }
    atomic_fetch_add(&contexts[device].retained, 1);
    *out = &contexts[device];
    return CUDA_OK;
}

unsigned cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(NEED_NOTHING);
    if (atomic_load(&contexts[device].retained) == 0) {
        return CUDA_INVALID_CONTEXT;
    }
    atomic_fetch_sub(&contexts[device].retained, 1);
    return CUDA_OK;
}

unsigned cuPointerGetAttribute(void *out, unsigned attribute, unsigned long long pointer) {
    ENTER(NEED_NOTHING);
    bool is_device = cuda_double_contents(pointer, 0) != NULL;
    if (!is_device && !is_pinned(pointer)) {
        return CUDA_INVALID_VALUE;
    }
    switch (attribute) {
    case CUDA_POINTER_CONTEXT:
        *(struct CUctx_st **)out = current;
        return CUDA_OK;
    case CUDA_POINTER_MEMORY_TYPE:
        *(unsigned *)out = is_device ? CUDA_MEMORY_DEVICE : CUDA_MEMORY_HOST;
        return CUDA_OK;
    case CUDA_POINTER_DEVICE_ORDINAL:
        *(int *)out = is_device ? block_device(pointer) : current ? current->device : 0;
        return CUDA_OK;
    case CUDA_POINTER_IS_MANAGED:
        *(unsigned *)out = 0;
        return CUDA_OK;
    default:
        return CUDA_INVALID_VALUE;
    }
}

unsigned cuMemAlloc_v2(unsigned long long *out, size_t bytes) {
    ENTER(NEED_WORKING_DEVICE);
    if (bytes == 0) {
        return CUDA_INVALID_VALUE;
    }
    pthread_mutex_lock(&arena.mutex);
    unsigned result = block_add(bytes, out);
    pthread_mutex_unlock(&arena.mutex);
    atomic_fetch_add(&live, result == CUDA_OK ? 1 : 0);
    return result;
}

unsigned cuMemFree_v2(unsigned long long pointer) {
    ENTER(NEED_CONTEXT);
    pthread_mutex_lock(&arena.mutex);
    struct block *block = block_find(pointer, 0);
    bool is_begin = block && pointer == (unsigned long long)(uintptr_t)arena.addresses + block->begin;
    if (is_begin) {
        size_t after = (size_t)(&arena.blocks[arena.count] - block) - 1;
        memmove(block, block + 1, after * sizeof *block);
        arena.count--;
        atomic_fetch_sub(&live, 1);
    }
    pthread_mutex_unlock(&arena.mutex);
    return is_begin ? CUDA_OK : CUDA_INVALID_VALUE;
}

unsigned cuMemAllocHost_v2(void **out, size_t bytes) {
    ENTER(NEED_WORKING_DEVICE);
    struct pinned *new = malloc(sizeof *new);
    void *memory = NULL;
    if (bytes == 0 || !new || posix_memalign(&memory, 4096, bytes) != 0) {
        free(new);
        return bytes == 0 ? CUDA_INVALID_VALUE : CUDA_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&arena.mutex);
    *new = (struct pinned){memory, bytes, pinned};
    pinned = new;
    pthread_mutex_unlock(&arena.mutex);
    atomic_fetch_add(&live, 1);
    *out = memory;
    return CUDA_OK;
}

unsigned cuMemFreeHost(void *memory) {
    ENTER(NEED_CONTEXT);
    pthread_mutex_lock(&arena.mutex);
    struct pinned **at = &pinned;
    while (*at && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    struct pinned *found = *at;
    if (found) {
        *at = found->next;
        atomic_fetch_sub(&live, 1);
    }
    pthread_mutex_unlock(&arena.mutex);
    free(found ? found->memory : NULL);
    free(found);
    return found ? CUDA_OK : CUDA_INVALID_VALUE;
}

unsigned cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream) {
    ENTER(NEED_WORKING_DEVICE);
    return enqueue_copy(stream, cuda_double_contents(to, bytes), from, bytes, -1);
}

unsigned cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream) {
    ENTER(NEED_WORKING_DEVICE);
    return enqueue_copy(stream, to, cuda_double_contents(from, bytes), bytes, -1);
}

unsigned cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes,
                              struct CUstream_st *stream) {
    ENTER(NEED_WORKING_DEVICE);
    return enqueue_copy(stream, cuda_double_contents(to, bytes), cuda_double_contents(from, bytes), bytes, -1);
}

unsigned cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream) {
    ENTER(NEED_WORKING_DEVICE);
    void *contents = cuda_double_contents(to, bytes);
    return enqueue_copy(stream, contents, contents, bytes, value);
}

unsigned cuStreamCreate(struct CUstream_st **out, unsigned flags) {
    ENTER(NEED_WORKING_DEVICE);
    (void)flags;
    *out = stream_new();
    atomic_fetch_add(&live, 1);
    return CUDA_OK;
}

/* Work that is still there is carried out, as by a driver. */
unsigned cuStreamDestroy_v2(struct CUstream_st *stream) {
    ENTER(NEED_CONTEXT);
    pthread_mutex_lock(&stream->mutex);
    stream->is_closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    (void)pthread_join(stream->thread, NULL);
    (void)pthread_mutex_destroy(&stream->mutex);
    (void)pthread_cond_destroy(&stream->changed);
    free(stream);
    atomic_fetch_sub(&live, 1);
    return CUDA_OK;
}

unsigned cuStreamSynchronize(struct CUstream_st *stream) {
    ENTER(NEED_WORKING_DEVICE);
    stream_await(stream_of(stream));
    return atomic_load(&sticky);
}

unsigned cuStreamQuery(struct CUstream_st *given) {
    ENTER(NEED_WORKING_DEVICE);
    struct CUstream_st *stream = stream_of(given);
    pthread_mutex_lock(&stream->mutex);
    bool is_idle = stream->done == stream->queued;
    pthread_mutex_unlock(&stream->mutex);
    return is_idle ? CUDA_OK : CUDA_NOT_READY;
}

unsigned cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags) {
    ENTER(NEED_WORKING_DEVICE);
    (void)flags;
    cuda_double_enqueue(stream, event_wait_job, event_job_new(event, false));
    return CUDA_OK;
}

unsigned cuEventCreate(struct CUevent_st **out, unsigned flags) {
    ENTER(NEED_WORKING_DEVICE);
    (void)flags;
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (!event) {
        return CUDA_OUT_OF_MEMORY;
    }
    (void)pthread_mutex_init(&event->mutex, NULL);
    (void)pthread_cond_init(&event->changed, NULL);
    event->users = 1;
    atomic_fetch_add(&live, 1);
    *out = event;
    return CUDA_OK;
}

unsigned cuEventDestroy_v2(struct CUevent_st *event) {
    ENTER(NEED_CONTEXT);
    event_release(event);
    atomic_fetch_sub(&live, 1);
    return CUDA_OK;
}

/* "stick": the event never comes, as behind a kernel that hangs. "fail": the device breaks. */
unsigned cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream) {
    struct fault fault = fault_call(&faults, "record");
    ENTER(NEED_WORKING_DEVICE);
    struct event_job *job = event_job_new(event, true);
    if (fault.kind == FAULT_FAIL) {
        atomic_store(&sticky, fault.value);
    }
    if (fault.kind == FAULT_STICK) {
        event_release(event);
        free(job);
    } else {
        cuda_double_enqueue(stream, event_complete, job);
    }
    return CUDA_OK;
}

unsigned cuEventQuery(struct CUevent_st *event) {
    ENTER(NEED_WORKING_DEVICE);
    pthread_mutex_lock(&event->mutex);
    bool is_done = event->completed == event->recorded;
    pthread_mutex_unlock(&event->mutex);
    return is_done ? CUDA_OK : CUDA_NOT_READY;
}

unsigned cuEventSynchronize(struct CUevent_st *event) {
    ENTER(NEED_WORKING_DEVICE);
    pthread_mutex_lock(&event->mutex);
    uint64_t number = event->recorded;
    pthread_mutex_unlock(&event->mutex);
    event_wait_until(event, number);
    return CUDA_OK;
}

unsigned cuModuleLoadData(struct CUmod_st **out, const void *image) {
    ENTER(NEED_WORKING_DEVICE);
    if (!image) {
        return CUDA_INVALID_IMAGE;
    }
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

unsigned cuModuleUnload(struct CUmod_st *module) {
    ENTER(NEED_CONTEXT);
    free(module);
    return CUDA_OK;
}

unsigned cuModuleGetFunction(struct CUfunc_st **out, struct CUmod_st *module, const char *name) {
    ENTER(NEED_WORKING_DEVICE);
    (void)module;
    for (unsigned i = 0; i < kernel_count; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            *out = &kernels[i];
            return CUDA_OK;
        }
    }
    return CUDA_NOT_FOUND;
}

/* NOLINTNEXTLINE(readability-function-size): the driver's parameters */
unsigned cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream,
                        void **parameters, void **extra) {
    ENTER(NEED_WORKING_DEVICE);
    (void)shared_bytes;
    struct launch *launch = calloc(1, sizeof *launch);
    if (!launch || extra || grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0) {
        free(launch);
        return CUDA_INVALID_VALUE;
    }
    launch->kernel = function->kernel;
    for (unsigned i = 0; i < function->count; i++) { /* a driver copies them at the launch, too */
        memcpy(launch->values[i], parameters[i], function->bytes[i]);
        launch->arguments[i] = launch->values[i];
    }
    cuda_double_enqueue(stream, launch_run, launch);
    return CUDA_OK;
}
