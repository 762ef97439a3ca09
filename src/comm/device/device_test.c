/* The CUDA driver, opened at run time, and places of buffers: on a double of the driver (cuda_double_test_support.h),
 * since tests run where there is no GPU. */
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

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"

static void use_double(void) {
    assert_int_equal(setenv("MUSTER_CUDA_LIBRARY", CUDA_DOUBLE, 1), 0);
}

/* ---- opening ---- */

static void expect_refusal(const char *part) {
    struct cuda_library library;
    assert_int_equal(cuda_library_open(&library), MUSTER_EUNSUPPORTED);
    if (!strstr(muster_detail(), part)) {
        fail_msg("'%s' lacks '%s'", muster_detail(), part);
    }
}

static void without_a_driver_the_sentence_says_what_to_install(void **state) {
    (void)state;
    (void)setenv("MUSTER_CUDA_LIBRARY", "libno-such-driver.so.1", 1);
    expect_refusal("NVIDIA's driver, which cannot be opened (libno-such-driver.so.1");
    (void)setenv("MUSTER_CUDA_LIBRARY", "libm.so.6", 1); /* a library, but no driver */
    expect_refusal("libm.so.6 has no cuInit");
    use_double();
}

static void a_driver_that_is_too_old_is_refused(void **state) {
    (void)state;
    (void)setenv("MUSTER_DOUBLE_DRIVER", "10020", 1);
    expect_refusal("is that of 10.2: install a newer driver");
    (void)unsetenv("MUSTER_DOUBLE_DRIVER");
}

static void without_a_device_the_sentence_says_so(void **state) {
    (void)state;
    (void)setenv("MUSTER_DOUBLE_DEVICES", "0", 1);
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
    expect_refusal("the CUDA driver sees no GPU");
    (void)setenv("CUDA_VISIBLE_DEVICES", "", 1);
    expect_refusal("the CUDA driver sees no GPU (CUDA_VISIBLE_DEVICES='')");
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
    (void)unsetenv("MUSTER_DOUBLE_DEVICES");
}

static void a_driver_that_does_not_start_is_told_with_its_words(void **state) {
    (void)state;
    pid_t pid = fork(); /* a double reads its faults once */
    assert_true(pid >= 0);
    if (pid == 0) {
        struct cuda_library library;
        (void)setenv("MUSTER_DOUBLE_CUDA", "error:cuInit:1:803", 1);
        bool is_right = cuda_library_open(&library) == MUSTER_EUNSUPPORTED &&
                        strstr(muster_detail(), "does not start: as the double says (error 803)") != NULL;
        _exit(is_right ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- places, before and after the driver is open: in this order ---- */

static void everything_is_host_memory_until_the_driver_is_open(void **state) {
    (void)state;
    int here = 0;
    assert_null(cuda_library_if_open());
    assert_int_equal(device_place_of(&here), DEVICE_PLACE_HOST);
    assert_int_equal(device_place_of(NULL), DEVICE_PLACE_HOST);
}

static void the_driver_is_opened_once(void **state) {
    (void)state;
    (void)setenv("MUSTER_CUDA_LIBRARY", "libno-such-driver.so.1", 1);
    assert_null(cuda_library()); /* a failure is not kept */
    use_double();
    const struct cuda_library *cuda = cuda_library();
    assert_non_null(cuda);
    assert_ptr_equal(cuda_library(), cuda);
    assert_ptr_equal(cuda_library_if_open(), cuda);
    assert_int_equal(cuda->version, 12040);
    assert_int_equal(cuda->devices, 8);
}

static void buffers_are_told_apart_by_where_they_live(void **state) {
    (void)state;
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    unsigned long long memory = 0;
    void *pinned = NULL;
    int here = 0;
    assert_int_equal(device_open(0, &device), 0);
    assert_int_equal(device_enter(&device, &previous), 0);
    assert_int_equal(device.cuda->memory_allocate(&memory, 1000), CUDA_OK);
    assert_int_equal(device.cuda->host_allocate(&pinned, 1000), CUDA_OK);
    const char *begin = (const char *)(uintptr_t)memory; /* NOLINT(performance-no-int-to-ptr) */
    assert_int_equal(device_place_of(begin), DEVICE_PLACE_DEVICE);
    assert_int_equal(device_place_of(begin + 999), DEVICE_PLACE_DEVICE);
    assert_int_equal(device_place_of(pinned), DEVICE_PLACE_HOST);
    assert_int_equal(device_place_of(&here), DEVICE_PLACE_HOST);
    assert_int_equal(device_place_of(NULL), DEVICE_PLACE_HOST);
    assert_int_equal(device_number_of(begin + 999), 0);
    assert_int_equal(device_number_of(pinned), -1);
    assert_int_equal(device_number_of(NULL), -1);
    assert_int_equal(device.cuda->memory_free(memory), CUDA_OK);
    assert_int_equal(device_place_of(begin), DEVICE_PLACE_HOST);
    assert_int_equal(device.cuda->host_free(pinned), CUDA_OK);
    device_leave(&device, previous);
    device_close(&device);
    assert_int_equal(cuda_double_live(), 0);
}

/* ---- which GPU ---- */

static void a_gpu_that_the_program_has_chosen_is_taken(void **state) {
    (void)state;
    const struct cuda_library *cuda = cuda_library();
    struct CUctx_st *chosen = NULL;
    struct device device = {0};
    assert_int_equal(cuda->primary_context_retain(&chosen, 5), CUDA_OK);
    assert_int_equal(cuda->context_set_current(chosen), CUDA_OK);
    assert_int_equal(device_open(2, &device), 0);
    assert_int_equal(device.number, 5);
    assert_ptr_equal(device.context, chosen);
    device_close(&device);
    assert_int_equal(cuda->context_set_current(NULL), CUDA_OK);
    assert_int_equal(cuda->primary_context_release(5), CUDA_OK);
    assert_int_not_equal(cuda->primary_context_release(5), CUDA_OK); /* it was not released by us, too */
}

static void without_a_choice_the_place_on_the_host_decides(void **state) {
    (void)state;
    struct device device = {0};
    struct CUctx_st *current = NULL;
    assert_int_equal(device_open(3, &device), 0);
    assert_int_equal(device.number, 3);
    assert_int_equal(device.cuda->context_current(&current), CUDA_OK);
    assert_null(current); /* the thread's own affairs are as they were */
    device_close(&device);
    assert_int_equal(device_open(8, &device), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "this is process 8 of its host (from 0), and the CUDA driver sees 8 GPUs"));
}

static void a_thread_has_its_context_back_afterwards(void **state) {
    (void)state;
    const struct cuda_library *cuda = cuda_library();
    struct CUctx_st *own = NULL, *previous = NULL, *current = NULL;
    struct device device = {0};
    assert_int_equal(device_open(1, &device), 0);
    assert_int_equal(cuda->primary_context_retain(&own, 6), CUDA_OK);
    assert_int_equal(cuda->context_set_current(own), CUDA_OK);
    assert_int_equal(device_enter(&device, &previous), 0);
    assert_int_equal(cuda->context_current(&current), CUDA_OK);
    assert_ptr_equal(current, device.context);
    device_leave(&device, previous);
    assert_int_equal(cuda->context_current(&current), CUDA_OK);
    assert_ptr_equal(current, own);
    assert_int_equal(cuda->context_set_current(NULL), CUDA_OK);
    assert_int_equal(cuda->primary_context_release(6), CUDA_OK);
    device_close(&device);
}

static void an_error_is_told_with_the_drivers_words(void **state) {
    (void)state;
    const struct cuda_library *cuda = cuda_library();
    assert_int_equal(cuda_fail(cuda, CUDA_OUT_OF_MEMORY, "reserve"), MUSTER_ENOMEM);
    assert_string_equal(muster_detail(), "reserve: CUDA_ERROR_OUT_OF_MEMORY (as the double says)");
    assert_int_equal(cuda_fail(cuda, 4242, "wait"), MUSTER_ESYSTEM);
    assert_string_equal(muster_detail(), "wait: unknown error (unknown error)");
}

/* ---- the double itself: streams in order, events between them, kernels ---- */

static void add_kernel(void **arguments) {
    unsigned long long to = *(unsigned long long *)arguments[0];
    unsigned count = *(unsigned *)arguments[1];
    unsigned *contents = cuda_double_contents(to, count * sizeof *contents);
    for (unsigned i = 0; contents && i < count; i++) {
        contents[i] += 1;
    }
}

static void streams_keep_the_order_that_events_give(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    unsigned in[COUNT], out[COUNT];
    const size_t sizes[] = {sizeof(unsigned long long), sizeof(unsigned)};
    const struct cuda_library *cuda = cuda_library();
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    struct CUstream_st *streams[2];
    struct CUevent_st *event = NULL;
    struct CUmod_st *module = NULL;
    struct CUfunc_st *function = NULL;
    unsigned long long memory = 0;
    unsigned count = COUNT;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "2000", 1);
    cuda_double_register("add", add_kernel, sizes, 2);
    assert_int_equal(device_open(0, &device), 0);
    assert_int_equal(device_enter(&device, &previous), 0);
    assert_int_equal(cuda->memory_allocate(&memory, sizeof in), CUDA_OK);
    assert_int_equal(cuda->stream_create(&streams[0], CUDA_STREAM_NON_BLOCKING), CUDA_OK);
    assert_int_equal(cuda->stream_create(&streams[1], CUDA_STREAM_NON_BLOCKING), CUDA_OK);
    assert_int_equal(cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING), CUDA_OK);
    assert_int_equal(cuda->module_load(&module, "any"), CUDA_OK);
    assert_int_equal(cuda->module_function(&function, module, "no such"), CUDA_NOT_FOUND);
    assert_int_equal(cuda->module_function(&function, module, "add"), CUDA_OK);
    for (unsigned i = 0; i < COUNT; i++) {
        in[i] = i;
    }
    assert_int_equal(cuda->copy_to_device(memory, in, sizeof in, streams[0]), CUDA_OK);
    void *parameters[] = {&memory, &count};
    for (int turn = 1; turn <= 6; turn++) { /* each on the other stream, after the one before */
        assert_int_equal(cuda->event_record(event, streams[(turn + 1) % 2]), CUDA_OK);
        assert_int_equal(cuda->stream_wait_event(streams[turn % 2], event, 0), CUDA_OK);
        assert_int_equal(cuda->launch(function, 1, 1, 1, 32, 1, 1, 0, streams[turn % 2], parameters, NULL), CUDA_OK);
    }
    assert_int_equal(cuda->copy_to_host(out, memory, sizeof out, streams[0]), CUDA_OK);
    assert_int_equal(cuda->stream_synchronize(streams[0]), CUDA_OK);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(out[i], i + 6);
    }
    assert_int_equal(cuda->module_unload(module), CUDA_OK);
    assert_int_equal(cuda->event_destroy(event), CUDA_OK);
    assert_int_equal(cuda->stream_destroy(streams[0]), CUDA_OK);
    assert_int_equal(cuda->stream_destroy(streams[1]), CUDA_OK);
    assert_int_equal(cuda->memory_free(memory), CUDA_OK);
    device_leave(&device, previous);
    device_close(&device);
    (void)unsetenv("MUSTER_DOUBLE_JITTER_US");
    assert_int_equal(cuda_double_live(), 0);
}

int main(void) {
    use_double();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_driver_the_sentence_says_what_to_install),
        cmocka_unit_test(a_driver_that_does_not_start_is_told_with_its_words),
        cmocka_unit_test(a_driver_that_is_too_old_is_refused),
        cmocka_unit_test(without_a_device_the_sentence_says_so),
        cmocka_unit_test(everything_is_host_memory_until_the_driver_is_open),
        cmocka_unit_test(the_driver_is_opened_once),
        cmocka_unit_test(buffers_are_told_apart_by_where_they_live),
        cmocka_unit_test(a_gpu_that_the_program_has_chosen_is_taken),
        cmocka_unit_test(without_a_choice_the_place_on_the_host_decides),
        cmocka_unit_test(a_thread_has_its_context_back_afterwards),
        cmocka_unit_test(an_error_is_told_with_the_drivers_words),
        cmocka_unit_test(streams_keep_the_order_that_events_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
