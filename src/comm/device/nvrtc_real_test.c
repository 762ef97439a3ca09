/* The real NVRTC, where there is one: it compiles our kernels, for which it needs no GPU. MUSTER_NVRTC_HOME: the folder
 * with lib/libnvrtc.so.12, or another one (an unpacked nvidia-cuda-nvrtc-cu12: nvidia/cuda_nvrtc). Without it this is
 * skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glob.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "base/str.h"
#include "comm/device/device_kernels.h"

static void find_library(void) {
    const char *home = getenv("MUSTER_NVRTC_HOME");
    char pattern[512];
    glob_t found;
    if (!home || !*home) {
        print_message("MUSTER_NVRTC_HOME names no NVRTC\n");
        skip();
    }
    (void)str_format(pattern, sizeof pattern, "%s/lib/libnvrtc.so.*", home);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(setenv("MUSTER_NVRTC_LIBRARY", found.gl_pathv[0], 1), 0);
    globfree(&found);
}

static bool contains(const char *bytes, size_t count, const char *word) {
    return memmem(bytes, count, word, strlen(word)) != NULL;
}

static void it_compiles_the_kernels(void **state) {
    static const char *const architectures[] = {"sm_75", "sm_80", "sm_90"};
    struct nvrtc_library nvrtc;
    (void)state;
    find_library();
    if (nvrtc_library_open(12000, &nvrtc) != 0) {
        fail_msg("%s", muster_detail());
    }
    print_message("NVRTC %d.%d\n", nvrtc.major, nvrtc.minor);
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        char *image = NULL;
        size_t bytes = 0;
        if (device_kernels_compile(&nvrtc, architectures[i], &image, &bytes) != 0) {
            fail_msg("%s", muster_detail());
        }
        assert_memory_equal(image, "\177ELF", 4);
        assert_true(contains(image, bytes, "muster_narrow_float32_bfloat16"));
        assert_true(contains(image, bytes, "muster_widen_float64_float16"));
        assert_true(contains(image, bytes, "muster_divide_float16"));
        assert_true(contains(image, bytes, "muster_norm_apply_backward"));
        free(image);
    }
}

static void it_says_what_it_does_not_know(void **state) {
    struct nvrtc_library nvrtc;
    char *image = NULL;
    size_t bytes = 0;
    (void)state;
    find_library();
    assert_int_equal(nvrtc_library_open(12000, &nvrtc), 0);
    assert_int_equal(device_kernels_compile(&nvrtc, "sm_999", &image, &bytes), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "does not compile kernels for sm_999: NVRTC_ERROR_INVALID_OPTION"));
    assert_null(image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_compiles_the_kernels),
        cmocka_unit_test(it_says_what_it_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
