/* The double of NVRTC; see nvrtc_double_test_support.h. The kernels first. */
#include "comm/device/nvrtc_double_test_support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/fault_test_support.h"
#include "comm/device/norm_double_test_support.h"

/* ---- kernels: one thread does all elements ---- */

static unsigned bits_of(float value) {
    unsigned bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(unsigned bits) {
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define KERNEL static
#define PART static
#define BITS_OF(value) bits_of(value)
#define FLOAT_OF(bits) float_of(bits)
#define FIRST 0
#define STEP 1
#define CODE(...) __VA_ARGS__
#include "comm/device/kernels_template.h"
#undef CODE

/* What an argument points to. */
static void *memory_of(void *argument, unsigned long long count, size_t width) {
    unsigned long long address = 0;
    memcpy(&address, argument, sizeof address);
    void *contents = cuda_double_contents(address, (size_t)count * width);
    if (!contents) {
        abort(); /* the kernel touches what is not its own */
    }
    return contents;
}

static unsigned long long count_of(void *argument) {
    unsigned long long count = 0;
    memcpy(&count, argument, sizeof count);
    return count;
}

#define CONVERSION(name, to, from)                                                                                     \
    static void run_##name(void **arguments) {                                                                         \
        unsigned long long count = count_of(arguments[2]);                                                             \
        name(memory_of(arguments[0], count, sizeof(to)), memory_of(arguments[1], count, sizeof(from)), count);         \
    }
#define DIVISION(name, type)                                                                                           \
    static void run_##name(void **arguments) {                                                                         \
        unsigned long long count = count_of(arguments[1]);                                                             \
        unsigned divisor = 0;                                                                                          \
        memcpy(&divisor, arguments[2], sizeof divisor);                                                                \
        name(memory_of(arguments[0], count, sizeof(type)), count, divisor);                                            \
    }

#define CONVERSIONS(X)                                                                                                 \
    X(muster_narrow_float32_bfloat16, unsigned short, float)                                                           \
    X(muster_narrow_float32_float16, unsigned short, float)                                                            \
    X(muster_narrow_float64_bfloat16, unsigned short, double)                                                          \
    X(muster_narrow_float64_float16, unsigned short, double)                                                           \
    X(muster_widen_float32_bfloat16, float, unsigned short)                                                            \
    X(muster_widen_float32_float16, float, unsigned short)                                                             \
    X(muster_widen_float64_bfloat16, double, unsigned short)                                                           \
    X(muster_widen_float64_float16, double, unsigned short)
#define DIVISIONS(X)                                                                                                   \
    X(muster_divide_float32, float)                                                                                    \
    X(muster_divide_float64, double)                                                                                   \
    X(muster_divide_bfloat16, unsigned short)                                                                          \
    X(muster_divide_float16, unsigned short)

CONVERSIONS(CONVERSION)
DIVISIONS(DIVISION)

struct known {
    const char *name;
    cuda_double_kernel *run;
    size_t argument_bytes[3];
};

static const struct known kernels[] = {
#define KNOWN_CONVERSION(name, to, from) {#name, run_##name, {8, 8, 8}},
#define KNOWN_DIVISION(name, type) {#name, run_##name, {8, 8, 4}},
    CONVERSIONS(KNOWN_CONVERSION) DIVISIONS(KNOWN_DIVISION)};

/* ---- NVRTC ---- */

struct _nvrtcProgram {
    char *source, *log;
    bool is_compiled;
};

static struct faults faults = {.variable = "MUSTER_DOUBLE_NVRTC"};

static void register_kernels(void) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        cuda_double_register(kernels[i].name, kernels[i].run, kernels[i].argument_bytes, 3);
    }
    norm_double_register();
}

unsigned nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 4;
    return NVRTC_OK;
}

const char *nvrtcGetErrorString(unsigned result) {
    return result == NVRTC_COMPILATION ? "NVRTC_ERROR_COMPILATION" : result ? "NVRTC_ERROR_OTHER" : "NVRTC_SUCCESS";
}

unsigned nvrtcCreateProgram(struct _nvrtcProgram **out, const char *source, const char *name, int header_count,
                            const char *const *headers, const char *const *header_names) {
    (void)name;
    (void)headers;
    (void)header_names;
    struct _nvrtcProgram *program = calloc(1, sizeof *program);
    if (!program || header_count != 0) {
        abort();
    }
    program->source = strdup(source);
    *out = program;
    return NVRTC_OK;
}

unsigned nvrtcDestroyProgram(struct _nvrtcProgram **program) {
    free((*program)->source);
    free((*program)->log);
    free(*program);
    *program = NULL;
    return NVRTC_OK;
}

static bool has_kernel(const struct _nvrtcProgram *program, const char *name) {
    const char *found = strstr(program->source, name);
    return found && found[strlen(name)] == '(';
}

unsigned nvrtcCompileProgram(struct _nvrtcProgram *program, int option_count, const char *const *options) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct fault fault = fault_call(&faults, __func__);
    bool is_right = option_count > 0 && strcmp(options[0], "--gpu-architecture=sm_90") == 0;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        is_right = is_right && has_kernel(program, kernels[i].name);
    }
    for (size_t i = 0; norm_double_name(i); i++) {
        is_right = is_right && has_kernel(program, norm_double_name(i));
    }
    if (fault.kind == FAULT_ERROR || !is_right) {
        program->log = strdup("muster.cu(1): error: as the double says");
        return fault.kind == FAULT_ERROR ? fault.value : (unsigned)NVRTC_COMPILATION;
    }
    (void)pthread_once(&once, register_kernels);
    program->is_compiled = true;
    return NVRTC_OK;
}

unsigned nvrtcGetCUBINSize(struct _nvrtcProgram *program, size_t *out) {
    *out = program->is_compiled ? sizeof "image" : 0;
    return NVRTC_OK;
}

unsigned nvrtcGetCUBIN(struct _nvrtcProgram *program, char *out) {
    (void)program;
    memcpy(out, "image", sizeof "image");
    return NVRTC_OK;
}

unsigned nvrtcGetProgramLogSize(struct _nvrtcProgram *program, size_t *out) {
    *out = program->log ? strlen(program->log) + 1 : 1;
    return NVRTC_OK;
}

unsigned nvrtcGetProgramLog(struct _nvrtcProgram *program, char *out) {
    memcpy(out, program->log ? program->log : "", program->log ? strlen(program->log) + 1 : 1);
    return NVRTC_OK;
}
