/* Work that is given to streams, and events that are used again: on a double of the CUDA driver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "base/clock.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device_work.h"
#include "comm/device/event_pool.h"
#include "comm/device/hold_test_support.h"

enum { BYTES = 4096 };

struct gpu {
    struct device device;
    struct device_stream stream;
    char *memory; /* twice BYTES */
};

static void gpu_begin(struct gpu *gpu) {
    struct CUctx_st *previous = NULL;
    unsigned long long memory = 0;
    *gpu = (struct gpu){.stream = {.device = &gpu->device, .patience_ns = 60 * CLOCK_NS_PER_S}};
    assert_int_equal(device_open(0, &gpu->device), 0);
    assert_int_equal(device_enter(&gpu->device, &previous), 0);
    assert_int_equal(gpu->device.cuda->stream_create(&gpu->stream.stream, CUDA_STREAM_NON_BLOCKING), CUDA_OK);
    assert_int_equal(gpu->device.cuda->memory_allocate(&memory, 2 * BYTES), CUDA_OK);
    device_leave(&gpu->device, previous);
    gpu->memory = (char *)(uintptr_t)memory; /* NOLINT(performance-no-int-to-ptr) */
}

static void gpu_end(struct gpu *gpu) {
    struct CUctx_st *previous = NULL;
    assert_int_equal(device_enter(&gpu->device, &previous), 0);
    assert_int_equal(gpu->device.cuda->memory_free(device_address(gpu->memory)), CUDA_OK);
    assert_int_equal(gpu->device.cuda->stream_destroy(gpu->stream.stream), CUDA_OK);
    device_leave(&gpu->device, previous);
    device_close(&gpu->device);
    assert_int_equal(cuda_double_live(), 0);
}

static const char *contents(const struct gpu *gpu, size_t at) {
    return cuda_double_contents(device_address(gpu->memory + at), 1);
}

static void work_is_done_in_order_and_can_be_awaited(void **state) {
    struct gpu gpu;
    struct hold hold = HOLD_INIT;
    (void)state;
    gpu_begin(&gpu);
    hold_begin(&hold, gpu.stream.stream);
    assert_int_equal(device_work_clear(&gpu.stream, gpu.memory, BYTES), 0);
    assert_int_equal(device_work_copy(&gpu.stream, gpu.memory + BYTES, gpu.memory, BYTES), 0);
    assert_int_equal(device_work_clear(&gpu.stream, gpu.memory, 0), 0);
    assert_int_equal(device_work_copy(&gpu.stream, NULL, NULL, 0), 0);
    assert_int_not_equal(*contents(&gpu, 2 * BYTES - 1), 0); /* the stream has yet to come to it */
    hold_end(&hold);
    assert_int_equal(device_work_await(&gpu.stream), 0);
    for (size_t i = 0; i < 2 * BYTES; i++) {
        assert_int_equal(*contents(&gpu, i), 0);
    }
    unsigned char number = 77;
    assert_int_equal(device_work_read(&gpu.stream, &number, gpu.memory + BYTES, 1), 0);
    assert_int_equal(device_work_await(&gpu.stream), 0);
    assert_int_equal(number, 0);
    gpu_end(&gpu);
}

static void work_that_cannot_be_given_is_told(void **state) {
    struct gpu gpu;
    (void)state;
    gpu_begin(&gpu);
    assert_int_equal(device_work_copy(&gpu.stream, gpu.memory, gpu.memory + BYTES, BYTES + 1), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "copy on the GPU: CUDA_ERROR_INVALID_VALUE"));
    assert_int_equal(device_work_clear(&gpu.stream, gpu.memory, 2 * BYTES + 1), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "clear memory of the GPU: CUDA_ERROR_INVALID_VALUE"));
    assert_int_equal(device_work_read(&gpu.stream, NULL, gpu.memory, 1), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "copy a number from the GPU: CUDA_ERROR_INVALID_VALUE"));
    gpu_end(&gpu);
}

static void a_stream_that_hangs_is_given_up(void **state) {
    struct gpu gpu;
    struct hold hold = HOLD_INIT;
    (void)state;
    gpu_begin(&gpu);
    hold_begin(&hold, gpu.stream.stream);
    gpu.stream.patience_ns = CLOCK_NS_PER_MS;
    assert_int_equal(device_work_await(&gpu.stream), MUSTER_ETIMEOUT);
    hold_end(&hold);
    gpu_end(&gpu);
}

/* Two places in a stream, of which the first comes while the second does not. */
static void an_event_is_a_place_in_a_stream(void **state) {
    struct gpu gpu;
    struct hold hold = HOLD_INIT;
    struct event_pool pool;
    struct pooled_event *before = NULL, *behind = NULL, *again = NULL;
    struct CUctx_st *previous = NULL;
    (void)state;
    gpu_begin(&gpu);
    event_pool_init(&pool);
    assert_int_equal(event_pool_record(&pool, &gpu.device, gpu.stream.stream, &before), 0);
    hold_begin(&hold, gpu.stream.stream);
    assert_int_equal(event_pool_record(&pool, &gpu.device, gpu.stream.stream, &behind), 0);
    assert_ptr_not_equal(before, behind);
    assert_int_equal(device_enter(&gpu.device, &previous), 0);
    assert_int_equal(gpu.device.cuda->event_query(before->event), CUDA_OK);
    assert_int_equal(gpu.device.cuda->event_query(behind->event), CUDA_NOT_READY);
    event_pool_return(&pool, before);
    event_pool_return(&pool, NULL);
    assert_int_equal(event_pool_record(&pool, &gpu.device, gpu.stream.stream, &again), 0);
    assert_ptr_equal(again, before);
    assert_int_equal(gpu.device.cuda->event_query(again->event), CUDA_NOT_READY);
    hold_end(&hold);
    assert_int_equal(device_work_await(&gpu.stream), 0);
    assert_int_equal(gpu.device.cuda->event_query(again->event), CUDA_OK);
    event_pool_return(&pool, again);
    event_pool_return(&pool, behind);
    event_pool_done(&pool, &gpu.device);
    device_leave(&gpu.device, previous);
    gpu_end(&gpu);
}

int main(void) {
    assert_int_equal(setenv("MUSTER_CUDA_LIBRARY", CUDA_DOUBLE, 1), 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_done_in_order_and_can_be_awaited),
        cmocka_unit_test(work_that_cannot_be_given_is_told),
        cmocka_unit_test(a_stream_that_hangs_is_given_up),
        cmocka_unit_test(an_event_is_a_place_in_a_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
