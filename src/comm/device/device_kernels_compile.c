/* The text of the kernels, and its way through NVRTC; see device_kernels.h. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/device/device_kernels.h"

enum { SOURCE_BYTES_MAX = 65536, LOG_BYTES_MAX = 65536 };
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static const char *const source[] = {
    "#define KERNEL extern \"C\" __global__\n"
    "#define PART static __device__\n"
    "#define BITS_OF(value) __float_as_uint(value)\n"
    "#define FLOAT_OF(bits) __uint_as_float(bits)\n"
    "#define FIRST ((unsigned long long)blockIdx.x * blockDim.x + threadIdx.x)\n"
    "#define STEP ((unsigned long long)gridDim.x * blockDim.x)\n",
#define CODE(...) #__VA_ARGS__ "\n",
#include "comm/device/kernels_template.h"
#include "comm/device/norm_template.h"
#undef CODE
};

static int join_source(struct buf *text) {
    int code = 0;
    buf_init(text, SOURCE_BYTES_MAX);
    for (size_t i = 0; code == 0 && i < COUNT_OF(source); i++) {
        code = buf_append(text, source[i], strlen(source[i]));
    }
    return code ? code : buf_append(text, "", 1);
}

static int refuse(const struct nvrtc_library *nvrtc, struct _nvrtcProgram *program, unsigned result,
                  const char *architecture) {
    size_t bytes = 0;
    char *log = NULL;
    if (program && nvrtc->log_bytes(program, &bytes) == NVRTC_OK && bytes > 1 && bytes <= LOG_BYTES_MAX) {
        log = calloc(1, bytes + 1);
    }
    if (log && nvrtc->log(program, log) != NVRTC_OK) {
        log[0] = '\0';
    }
    const char *words = nvrtc->error_string(result);
    int code = status_fail(MUSTER_EUNSUPPORTED,
                           "NVRTC %d.%d (%s) does not compile kernels for %s: %s%s%s. A newer one may know this GPU",
                           nvrtc->major, nvrtc->minor, nvrtc->name, architecture, words ? words : "unknown error",
                           log && *log ? ": " : "", log && *log ? log : "");
    free(log);
    return code;
}

static int take_image(const struct nvrtc_library *nvrtc, struct _nvrtcProgram *program, const char *architecture,
                      char **out, size_t *out_bytes) {
    size_t bytes = 0;
    unsigned result = nvrtc->image_bytes(program, &bytes);
    if (result != NVRTC_OK || bytes == 0) {
        return refuse(nvrtc, program, result ? result : NVRTC_COMPILATION, architecture);
    }
    char *image = malloc(bytes);
    if (!image) {
        return status_fail(MUSTER_ENOMEM, "no memory for kernels of %zu bytes", bytes);
    }
    result = nvrtc->image(program, image);
    if (result != NVRTC_OK) {
        free(image);
        return refuse(nvrtc, program, result, architecture);
    }
    *out = image;
    *out_bytes = bytes;
    return 0;
}

static int compile(const struct nvrtc_library *nvrtc, const char *text, const char *architecture, char **out,
                   size_t *out_bytes) {
    char option[64];
    const char *options[] = {option, "--fmad=false"};
    (void)str_format(option, sizeof option, "--gpu-architecture=%s", architecture);
    struct _nvrtcProgram *program = NULL;
    unsigned result = nvrtc->create(&program, text, "muster.cu", 0, NULL, NULL);
    result = result ? result : nvrtc->compile(program, COUNT_OF(options), options);
    int code = result ? refuse(nvrtc, program, result, architecture)
                      : take_image(nvrtc, program, architecture, out, out_bytes);
    if (program) {
        (void)nvrtc->destroy(&program);
    }
    return code;
}

int device_kernels_compile(const struct nvrtc_library *nvrtc, const char *architecture, char **out, size_t *out_bytes) {
    struct buf text;
    int code = join_source(&text);
    code = code ? code : compile(nvrtc, (const char *)buf_bytes(&text), architecture, out, out_bytes);
    buf_done(&text);
    return code;
}
