/* Loading kernels, and giving them to streams; see device_kernels.h. */
#include "comm/device/device_kernels.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/device/nvrtc_library.h"

enum { NAME_MAX_BYTES = 64, BLOCK = 256, BLOCKS_MAX = 4096 };

static const enum muster_type halves[] = {MUSTER_BFLOAT16, MUSTER_FLOAT16};
static const enum muster_type wides[] = {MUSTER_FLOAT32, MUSTER_FLOAT64};
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* Indices: of halves, of wides; for divide of halves, then wides. */
struct device_kernels {
    struct device_kernels *next; /* of the process's */
    unsigned users;
    bool is_kept; /* for good: a kernel of theirs may be under way */
    struct device device;
    struct CUmod_st *module;
    struct CUfunc_st *narrow[COUNT_OF(halves)][COUNT_OF(wides)], *widen[COUNT_OF(halves)][COUNT_OF(wides)];
    struct CUfunc_st *divide[COUNT_OF(halves) + COUNT_OF(wides)];
    struct CUfunc_st *norm[DEVICE_NORM_END];
};

static struct {
    pthread_mutex_t mutex;
    struct device_kernels *first; /* with users; those that are kept are not among them */
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- loading: with the device's context entered ---- */

static int find_named(struct device_kernels *kernels, const char *name, struct CUfunc_st **out) {
    unsigned result = kernels->device.cuda->module_function(out, kernels->module, name);
    return result == CUDA_OK ? 0 : cuda_fail(kernels->device.cuda, result, name);
}

static int find(struct device_kernels *kernels, const char *verb, enum muster_type wide, const char *half,
                struct CUfunc_st **out) {
    char name[NAME_MAX_BYTES];
    (void)str_format(name, sizeof name, "muster_%s_%s%s%s", verb, muster_type_name(wide), half ? "_" : "",
                     half ? half : "");
    return find_named(kernels, name, out);
}

static int find_all(struct device_kernels *kernels) {
    static const char *const norms[] = {
#define NAME(id, name) #name,
        DEVICE_NORM_TABLE(NAME)
#undef NAME
    };
    int code = 0;
    for (size_t h = 0; h < COUNT_OF(halves); h++) {
        const char *half = muster_type_name(halves[h]);
        for (size_t w = 0; w < COUNT_OF(wides); w++) {
            code = code ? code : find(kernels, "narrow", wides[w], half, &kernels->narrow[h][w]);
            code = code ? code : find(kernels, "widen", wides[w], half, &kernels->widen[h][w]);
        }
        code = code ? code : find(kernels, "divide", halves[h], NULL, &kernels->divide[h]);
    }
    for (size_t w = 0; w < COUNT_OF(wides); w++) {
        code = code ? code : find(kernels, "divide", wides[w], NULL, &kernels->divide[COUNT_OF(halves) + w]);
    }
    for (size_t i = 0; i < DEVICE_NORM_END; i++) {
        code = code ? code : find_named(kernels, norms[i], &kernels->norm[i]);
    }
    return code;
}

static int name_architecture(const struct device *device, char *out, size_t max) {
    int major = 0, minor = 0;
    unsigned result = device->cuda->device_attribute(&major, CUDA_CAPABILITY_MAJOR, device->number);
    result = result ? result : device->cuda->device_attribute(&minor, CUDA_CAPABILITY_MINOR, device->number);
    (void)str_format(out, max, "sm_%d%d", major, minor);
    return result == CUDA_OK ? 0 : cuda_fail(device->cuda, result, "ask for the GPU's architecture");
}

static int load(struct device_kernels *kernels) {
    const struct cuda_library *cuda = kernels->device.cuda;
    struct nvrtc_library nvrtc;
    char architecture[NAME_MAX_BYTES], *image = NULL;
    size_t bytes = 0;
    int code = nvrtc_library_open(cuda->version, &nvrtc);
    code = code ? code : name_architecture(&kernels->device, architecture, sizeof architecture);
    code = code ? code : device_kernels_compile(&nvrtc, architecture, &image, &bytes);
    if (code == 0) {
        unsigned result = cuda->module_load(&kernels->module, image);
        code = result == CUDA_OK ? find_all(kernels) : cuda_fail(cuda, result, "load kernels");
    }
    free(image);
    return code;
}

static void unload(struct device_kernels *kernels) {
    struct CUctx_st *previous = NULL;
    if (kernels->module && device_enter(&kernels->device, &previous) == 0) {
        (void)kernels->device.cuda->module_unload(kernels->module);
        device_leave(&kernels->device, previous);
    }
    free(kernels);
}

static int create(const struct device *device, struct device_kernels **out) {
    struct CUctx_st *previous = NULL;
    struct device_kernels *kernels = calloc(1, sizeof *kernels);
    if (!kernels) {
        return status_fail(MUSTER_ENOMEM, "no memory for kernels");
    }
    kernels->device = *device;
    kernels->device.is_retained = false; /* by its owner */
    int code = device_enter(device, &previous);
    if (code == 0) {
        code = load(kernels);
        device_leave(device, previous);
    }
    if (code) {
        unload(kernels);
        return code;
    }
    *out = kernels;
    return 0;
}

/* ---- users: with the mutex ---- */

static struct device_kernels *find_shared(const struct device *device) {
    struct device_kernels *kernels = process.first;
    while (kernels && kernels->device.context != device->context) {
        kernels = kernels->next;
    }
    return kernels;
}

static void forget(const struct device_kernels *kernels) {
    struct device_kernels **at = &process.first;
    while (*at && *at != kernels) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = kernels->next;
    }
}

int device_kernels_acquire(const struct device *device, struct device_kernels **out) {
    pthread_mutex_lock(&process.mutex);
    struct device_kernels *kernels = find_shared(device);
    int code = kernels ? 0 : create(device, &kernels);
    if (code == 0) {
        if (kernels->users++ == 0) {
            kernels->next = process.first;
            process.first = kernels;
        }
        *out = kernels;
    }
    pthread_mutex_unlock(&process.mutex);
    return code;
}

void device_kernels_release(struct device_kernels *kernels, bool is_idle) {
    if (!kernels) {
        return;
    }
    pthread_mutex_lock(&process.mutex);
    kernels->is_kept = kernels->is_kept || !is_idle;
    bool is_last = --kernels->users == 0;
    if (is_last || !is_idle) {
        forget(kernels);
    }
    if (is_last && !kernels->is_kept) {
        unload(kernels);
    }
    pthread_mutex_unlock(&process.mutex);
}

/* ---- giving them to a stream ---- */

static int launch(const struct device_stream *stream, struct CUfunc_st *function, void **parameters, size_t count) {
    const struct cuda_library *cuda = stream->device->cuda;
    struct CUctx_st *previous = NULL;
    size_t blocks = (count + BLOCK - 1) / BLOCK;
    int code = count > 0 ? device_enter(stream->device, &previous) : 0;
    if (code || count == 0) {
        return code;
    }
    unsigned result = cuda->launch(function, (unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX), 1, 1, BLOCK, 1, 1,
                                   0, stream->stream, parameters, NULL);
    code = result == CUDA_OK ? 0 : cuda_fail(cuda, result, "start a kernel");
    device_leave(stream->device, previous);
    return code;
}

static size_t place_of(enum muster_type type, const enum muster_type *types, size_t count) {
    size_t place = 0;
    while (place < count && types[place] != type) {
        place++;
    }
    return place;
}

/* Of conversions. */
static int convert(const struct device_stream *stream, struct CUfunc_st *function, void *out, const void *in,
                   size_t count) {
    unsigned long long to = device_address(out), from = device_address(in), elements = count;
    return launch(stream, function, (void *[]){&to, &from, &elements}, count);
}

int device_kernels_narrow(const struct device_kernels *kernels, const struct device_stream *stream,
                          enum muster_type half, void *out, enum muster_type wide, const void *in, size_t count) {
    size_t h = place_of(half, halves, COUNT_OF(halves)), w = place_of(wide, wides, COUNT_OF(wides));
    assert(h < COUNT_OF(halves) && w < COUNT_OF(wides));
    return convert(stream, kernels->narrow[h][w], out, in, count);
}

int device_kernels_widen(const struct device_kernels *kernels, const struct device_stream *stream,
                         enum muster_type wide, void *out, enum muster_type half, const void *in, size_t count) {
    size_t h = place_of(half, halves, COUNT_OF(halves)), w = place_of(wide, wides, COUNT_OF(wides));
    assert(h < COUNT_OF(halves) && w < COUNT_OF(wides));
    return convert(stream, kernels->widen[h][w], out, in, count);
}

int device_kernels_divide(const struct device_kernels *kernels, const struct device_stream *stream,
                          enum muster_type type, void *data, size_t count, uint32_t divisor) {
    size_t place = place_of(type, halves, COUNT_OF(halves));
    unsigned long long address = device_address(data), elements = count;
    unsigned by = divisor;
    if (place == COUNT_OF(halves)) {
        place += place_of(type, wides, COUNT_OF(wides));
    }
    assert(place < COUNT_OF(kernels->divide) && divisor > 0);
    return launch(stream, kernels->divide[place], (void *[]){&address, &elements, &by}, count);
}

int device_kernels_norm(const struct device_kernels *kernels, const struct device_stream *stream, enum device_norm norm,
                        void **parameters, size_t elements) {
    return launch(stream, kernels->norm[norm], parameters, elements);
}
