/* Kernels in memory of a GPU, on doubles of the CUDA driver and of NVRTC: what they compute (their own text, compiled
 * as C; train's tests compare the conversions), and what is said where there is no NVRTC, or one that refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/clock.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device_kernels.h"
#include "comm/reduce/reduce.h"

enum { BYTES = 1024 };

struct gpu {
    struct device device;
    struct device_stream stream;
    void *memory;
};

static void gpu_begin(struct gpu *gpu) {
    struct CUctx_st *previous = NULL;
    unsigned long long memory = 0;
    *gpu = (struct gpu){.stream = {.device = &gpu->device, .patience_ns = 60 * CLOCK_NS_PER_S}};
    assert_int_equal(device_open(0, &gpu->device), 0);
    assert_int_equal(device_enter(&gpu->device, &previous), 0);
    assert_int_equal(gpu->device.cuda->memory_allocate(&memory, BYTES), CUDA_OK);
    device_leave(&gpu->device, previous);
    gpu->memory = (void *)(uintptr_t)memory; /* NOLINT(performance-no-int-to-ptr) */
}

static void gpu_end(struct gpu *gpu) {
    struct CUctx_st *previous = NULL;
    assert_int_equal(device_enter(&gpu->device, &previous), 0);
    assert_int_equal(gpu->device.cuda->memory_free(device_address(gpu->memory)), CUDA_OK);
    device_leave(&gpu->device, previous);
    device_close(&gpu->device);
    assert_int_equal(cuda_double_live(), 0);
}

static void use_doubles(void) {
    (void)setenv("MUSTER_CUDA_LIBRARY", CUDA_DOUBLE, 1);
    (void)setenv("MUSTER_NVRTC_LIBRARY", NVRTC_DOUBLE, 1);
}

/* ---- division ---- */

static void expect_division(struct gpu *gpu, const struct device_kernels *kernels, enum muster_type type,
                            const void *values, size_t count) {
    size_t bytes = count * muster_type_bytes(type);
    unsigned char expected[BYTES];
    void *contents = cuda_double_contents(device_address(gpu->memory), BYTES);
    assert_true(bytes <= BYTES);
    for (uint32_t divisor = 1; divisor <= 7; divisor++) {
        memcpy(expected, values, bytes);
        reduce_finish(type, MUSTER_OP_AVERAGE, expected, count, divisor);
        memcpy(contents, values, bytes);
        assert_int_equal(device_kernels_divide(kernels, &gpu->stream, type, gpu->memory, count, divisor), 0);
        assert_int_equal(device_work_await(&gpu->stream), 0);
        assert_memory_equal(contents, expected, bytes);
    }
}

static void sums_are_divided_as_on_the_host(void **state) {
    struct gpu gpu;
    struct device_kernels *kernels = NULL;
    float floats[128];
    double doubles[128];
    uint16_t halves[128], wide_halves[128]; /* float16, bfloat16 */
    (void)state;
    for (unsigned i = 0; i < 128; i++) {
        floats[i] = (float)i * 1.7F - 90;
        doubles[i] = (double)i * -3.1 + 77;
        uint16_t bits = (uint16_t)(i * 511); /* with denormals and signs, without NaNs, whose payloads may differ */
        halves[i] = (bits & 0x7fff) > 0x7c00 ? 0x7c00 : bits;
        wide_halves[i] = (bits & 0x7fff) > 0x7f80 ? 0xff80 : bits;
    }
    gpu_begin(&gpu);
    assert_int_equal(device_kernels_acquire(&gpu.device, &kernels), 0);
    expect_division(&gpu, kernels, MUSTER_FLOAT32, floats, 128);
    expect_division(&gpu, kernels, MUSTER_FLOAT64, doubles, 128);
    expect_division(&gpu, kernels, MUSTER_BFLOAT16, wide_halves, 128);
    expect_division(&gpu, kernels, MUSTER_FLOAT16, halves, 128);
    assert_int_equal(device_kernels_divide(kernels, &gpu.stream, MUSTER_FLOAT32, NULL, 0, 2), 0);
    device_kernels_release(kernels, true);
    device_kernels_release(NULL, true);
    gpu_end(&gpu);
}

/* ---- what is refused ---- */

static void without_nvrtc_the_sentence_says_what_to_install(void **state) {
    struct nvrtc_library nvrtc;
    (void)state;
    (void)setenv("MUSTER_NVRTC_LIBRARY", "libno-such-compiler.so.12", 1);
    assert_int_equal(nvrtc_library_open(12040, &nvrtc), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "kernels need NVRTC, which cannot be opened (libno-such-compiler.so.12"));
    (void)setenv("MUSTER_NVRTC_LIBRARY", "libm.so.6", 1);
    assert_int_equal(nvrtc_library_open(12040, &nvrtc), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "libm.so.6 has no nvrtc"));
    (void)unsetenv("MUSTER_NVRTC_LIBRARY");
    assert_int_equal(nvrtc_library_open(10020, &nvrtc), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "the driver is too old"));
    use_doubles();
}

/* In a process of its own, since a double reads its faults once. */
static void expect_refusal(const char *variable, const char *faults, int code, const char *sentence) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct device device = {0};
        struct device_kernels *kernels = NULL;
        (void)setenv(variable, faults, 1);
        bool is_right = device_open(0, &device) == 0 && device_kernels_acquire(&device, &kernels) == code && !kernels &&
                        strstr(muster_detail(), sentence) != NULL;
        _exit(is_right ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void what_nvrtc_or_the_driver_refuses_is_told_in_its_words(void **state) {
    (void)state;
    expect_refusal("MUSTER_DOUBLE_NVRTC", "error:nvrtcCompileProgram:1:6", MUSTER_EUNSUPPORTED,
                   "does not compile kernels for sm_90: NVRTC_ERROR_COMPILATION: muster.cu(1): error: as the double "
                   "says. A newer one may know this GPU");
    expect_refusal("MUSTER_DOUBLE_CUDA", "error:cuModuleLoadData:1:200", MUSTER_ESYSTEM,
                   "load kernels: CUDA_ERROR_INVALID_IMAGE");
    expect_refusal("MUSTER_DOUBLE_CUDA", "error:cuModuleGetFunction:3:500", MUSTER_ESYSTEM,
                   "muster_narrow_float64_bfloat16: CUDA_ERROR_NOT_FOUND");
    expect_refusal("MUSTER_DOUBLE_CUDA", "error:cuDeviceGetAttribute:1:101", MUSTER_ESYSTEM,
                   "ask for the GPU's architecture: CUDA_ERROR_INVALID_DEVICE");
}

int main(void) {
    use_doubles();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_nvrtc_or_the_driver_refuses_is_told_in_its_words), /* before this process has threads */
        cmocka_unit_test(without_nvrtc_the_sentence_says_what_to_install),
        cmocka_unit_test(sums_are_divided_as_on_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
