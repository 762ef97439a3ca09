/* Bytes to and from memory of a GPU, on the double of the driver: every size around the borders of chunks, streams that
 * are late, errors of each call of the driver; and a driver that the program has started itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device_stage.h"

enum { KIB = 1024, FUNCTION_CALLS_MAX = 40 };

unsigned cuInit(unsigned flags); /* the double's, as a program would call it */

static unsigned char pattern(size_t i) {
    return (unsigned char)(i * 7 + i / 251);
}

/* Memory of the GPU, with a pattern in it if `is_filled`. */
static char *device_memory(const struct cuda_library *cuda, size_t bytes, bool is_filled) {
    unsigned long long address = 0;
    assert_int_equal(cuda->memory_allocate(&address, bytes), CUDA_OK);
    unsigned char *contents = cuda_double_contents(address, bytes);
    for (size_t i = 0; is_filled && i < bytes; i++) {
        contents[i] = pattern(i);
    }
    return (char *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

static void device_release(const struct cuda_library *cuda, const char *memory) {
    assert_int_equal(cuda->memory_free(device_address(memory)), CUDA_OK);
    assert_int_equal(cuda_double_live(), 0);
}

/* The driver, open, and a current context, which this thread keeps. */
static const struct cuda_library *begin(void) {
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    assert_int_equal(device_open(0, &device), 0);
    assert_int_equal(device_enter(&device, &previous), 0);
    return device.cuda;
}

/* ---- without a driver, and with one that the program has started: in this order ---- */

static void memory_of_the_host_passes_through(void **state) {
    (void)state;
    struct device_stage stage;
    char from[100], to[100] = "";
    const void *bytes = NULL;
    size_t count = 0;
    memset(from, 'x', sizeof from);
    device_stage_init(&stage, NULL, 0);
    assert_int_equal(device_stage_read(&stage, from, sizeof from), 0);
    assert_int_equal(device_stage_next(&stage, 30, &bytes, &count), 0);
    assert_true(bytes == from && count == 30);
    assert_int_equal(device_stage_next(&stage, 1000, &bytes, &count), 0);
    assert_true(bytes == from + 30 && count == 70);
    assert_int_equal(device_stage_put(&stage, to, from, sizeof to), 0);
    assert_memory_equal(to, from, sizeof to);
    assert_int_equal(device_stage_read(&stage, NULL, 0), 0);
    assert_int_equal(device_stage_put(&stage, NULL, NULL, 0), 0);
    assert_int_equal(device_stage_settle(&stage), 0);
    device_stage_done(&stage);
    assert_null(cuda_library_if_open());
}

static void a_driver_is_adopted_when_the_program_has_started_it(void **state) {
    (void)state;
    (void)setenv("MUSTER_CUDA_LIBRARY", "libno-such-driver.so.1", 1);
    cuda_library_adopt();
    assert_null(cuda_library_if_open());
    (void)setenv("MUSTER_CUDA_LIBRARY", CUDA_DOUBLE, 1);
    cuda_library_adopt(); /* it is loaded, and that is all */
    assert_null(cuda_library_if_open());
    assert_int_equal(cuInit(0), CUDA_OK);
    cuda_library_adopt();
    assert_non_null(cuda_library_if_open());
}

/* ---- every size ---- */

static void read_all(struct device_stage *stage, const char *from, size_t first, size_t count) {
    size_t done = 0, most = 1;
    assert_int_equal(device_stage_read(stage, from + first, count), 0);
    while (done < count) {
        const void *bytes = NULL;
        size_t got = 0;
        assert_int_equal(device_stage_next(stage, most, &bytes, &got), 0);
        assert_true(got > 0 && got <= most && got <= count - done);
        for (size_t i = 0; i < got; i++) {
            if (((const unsigned char *)bytes)[i] != pattern(first + done + i)) {
                fail_msg("byte %zu of %zu is another", done + i, count);
            }
        }
        done += got;
        most = most * 3 + 1;
    }
}

static void write_all(struct device_stage *stage, const struct cuda_library *cuda, size_t first, size_t count) {
    char *to = device_memory(cuda, first + count + 8, false);
    unsigned char *from = malloc(count + 1), *contents = cuda_double_contents(device_address(to), first + count + 8);
    assert_true(from && contents);
    for (size_t i = 0; i < count; i++) {
        from[i] = pattern(i);
    }
    size_t half = count / 3;
    assert_int_equal(device_stage_put(stage, to + first, from, half), 0);
    assert_int_equal(device_stage_put(stage, to + first + half, from + half, count - half), 0);
    memset(from, 0, count); /* it has been taken */
    assert_int_equal(device_stage_settle(stage), 0);
    for (size_t i = 0; i < count; i++) {
        if (contents[first + i] != pattern(i)) {
            fail_msg("byte %zu of %zu is another", i, count);
        }
    }
    for (size_t i = 0; i < first + 8; i++) { /* nothing beside it was written */
        assert_int_equal(contents[i < first ? i : count + i], 0xA5);
    }
    free(from);
    assert_int_equal(cuda->memory_free(device_address(to)), CUDA_OK);
}

static void every_size_goes_both_ways(void **state) {
    (void)state;
    static const size_t sizes[] = {1,         7,         64 * KIB - 1,  64 * KIB,      64 * KIB + 1,
                                   128 * KIB, 192 * KIB, 192 * KIB + 5, 300 * KIB + 1, 9 * KIB * KIB + 3};
    const struct cuda_library *cuda = begin();
    char *memory = device_memory(cuda, 10 * KIB * KIB, true);
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "500", 1);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct device_stage stage;
        device_stage_init(&stage, NULL, s % 2 ? sizes[s] : 0); /* chunks of the least size, or fewer */
        read_all(&stage, memory, s % 5, sizes[s]);
        write_all(&stage, cuda, s % 5, sizes[s]);
        const void *bytes = NULL;
        size_t got = 0;
        assert_int_equal(device_stage_read(&stage, memory, sizes[s]), 0); /* and is given up */
        assert_int_equal(device_stage_next(&stage, 1, &bytes, &got), 0);
        read_all(&stage, memory, s % 3, sizes[s]);
        device_stage_done(&stage);
    }
    (void)unsetenv("MUSTER_DOUBLE_JITTER_US");
    device_release(cuda, memory);
}

static void chunks_are_as_large_as_what_is_copied_and_no_larger_than_4_mib(void **state) {
    (void)state;
    struct device_stage stage;
    device_stage_init(&stage, NULL, 0);
    assert_int_equal(stage.chunk_bytes, 64 * KIB);
    device_stage_init(&stage, NULL, 600 * KIB);
    assert_int_equal(stage.chunk_bytes, 300 * KIB);
    device_stage_init(&stage, NULL, SIZE_MAX);
    assert_int_equal(stage.chunk_bytes, DEVICE_STAGE_CHUNK_BYTES);
}

/* ---- streams and contexts ---- */

struct gate {
    sem_t open;
    unsigned char *contents;
    size_t bytes;
};

static void fill_when_open(void *argument) {
    struct gate *gate = argument;
    while (sem_wait(&gate->open) != 0) {
    }
    for (size_t i = 0; i < gate->bytes; i++) {
        gate->contents[i] = pattern(i);
    }
}

/* Stays in the stream until the gate opens. Another read, behind another stream, comes to its end meanwhile. */
static void a_read_waits_for_the_callers_stream(void **state) {
    (void)state;
    enum { BYTES = 200 * KIB };
    const struct cuda_library *cuda = begin();
    char *other = device_memory(cuda, BYTES, true);
    struct CUstream_st *streams[2];
    assert_int_equal(cuda->stream_create(&streams[0], CUDA_STREAM_NON_BLOCKING), CUDA_OK);
    assert_int_equal(cuda->stream_create(&streams[1], CUDA_STREAM_NON_BLOCKING), CUDA_OK);
    for (int is_default = 0; is_default < 2; is_default++) {
        struct device_stage late, meanwhile;
        struct gate gate = {.bytes = BYTES};
        char *memory = device_memory(cuda, BYTES, false);
        gate.contents = cuda_double_contents(device_address(memory), BYTES);
        (void)sem_init(&gate.open, 0, 0);
        cuda_double_enqueue(is_default ? NULL : streams[0], fill_when_open, &gate);
        device_stage_init(&late, is_default ? NULL : streams[0], 0);
        assert_int_equal(device_stage_read(&late, memory, BYTES), 0);
        device_stage_init(&meanwhile, streams[1], 0);
        read_all(&meanwhile, other, 0, BYTES);
        device_stage_done(&meanwhile);
        assert_int_equal(cuda->stream_query(late.stream), CUDA_NOT_READY);
        (void)sem_post(&gate.open);
        read_all(&late, memory, 0, BYTES);
        device_stage_done(&late);
        assert_int_equal(cuda->memory_free(device_address(memory)), CUDA_OK);
    }
    assert_int_equal(cuda->stream_destroy(streams[0]), CUDA_OK);
    assert_int_equal(cuda->stream_destroy(streams[1]), CUDA_OK);
    device_release(cuda, other);
}

struct reading {
    struct CUctx_st *context; /* NULL: the thread has none */
    const char *memory;
    size_t bytes;
    struct CUctx_st *context_after;
};

static void *read_in_thread(void *argument) {
    struct reading *reading = argument;
    const struct cuda_library *cuda = cuda_library_if_open();
    struct device_stage stage;
    assert_int_equal(cuda->context_set_current(reading->context), CUDA_OK);
    device_stage_init(&stage, NULL, reading->bytes);
    read_all(&stage, reading->memory, 0, reading->bytes);
    device_stage_done(&stage);
    assert_int_equal(cuda->context_current(&reading->context_after), CUDA_OK);
    return NULL;
}

static void a_thread_keeps_its_context(void **state) {
    (void)state;
    const struct cuda_library *cuda = begin();
    struct CUctx_st *chosen = NULL;
    assert_int_equal(cuda->primary_context_retain(&chosen, 3), CUDA_OK);
    struct reading readings[] = {{.context = chosen}, {.context = NULL}};
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        readings[i].bytes = 1000;
        readings[i].memory = device_memory(cuda, 1000, true);
        assert_int_equal(pthread_create(&thread, NULL, read_in_thread, &readings[i]), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_ptr_equal(readings[i].context_after, readings[i].context);
        device_release(cuda, readings[i].memory);
    }
    assert_int_equal(cuda->primary_context_release(3), CUDA_OK);
}

/* ---- errors ---- */

enum { WORKED = 10, TOLD = 11, WRONG = 12 };

/* Both directions, with one call of the driver that fails: TOLD with the driver's words, or WORKED where it is not made
 * so often. */
static int copy_with_fault(void) {
    struct device_stage stage;
    const struct cuda_library *cuda = cuda_library();
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    unsigned long long address = 0;
    enum { BYTES = 400 * KIB };
    static char host[BYTES];
    if (!cuda || device_open(0, &device) || device_enter(&device, &previous) ||
        cuda->memory_allocate(&address, BYTES)) {
        return WRONG;
    }
    char *memory = (char *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    device_stage_init(&stage, NULL, 0);
    status_clear();
    int code = device_stage_put(&stage, memory, host, BYTES);
    code = code ? code : device_stage_settle(&stage);
    code = code ? code : device_stage_copy_out(&stage, host, memory, BYTES);
    device_stage_done(&stage);
    bool has_words = strstr(muster_detail(), ": CUDA_ERROR_LAUNCH_FAILED (as the double says)") != NULL;
    bool is_clean = cuda->memory_free(address) == CUDA_OK && cuda_double_live() == 0;
    return !is_clean ? WRONG : code == 0 ? WORKED : code == MUSTER_ESYSTEM && has_words ? TOLD : WRONG;
}

static int run_with_fault(const char *function, unsigned number) {
    int status = 0;
    pid_t pid = fork(); /* a double reads its faults once */
    assert_true(pid >= 0);
    if (pid == 0) {
        char rule[100];
        (void)snprintf(rule, sizeof rule, "error:%s:%u:%d", function, number, CUDA_LAUNCH_FAILED);
        (void)setenv("MUSTER_DOUBLE_CUDA", rule, 1);
        (void)setenv("MUSTER_CUDA_LIBRARY", CUDA_DOUBLE, 1);
        _exit(copy_with_fault());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void an_error_of_any_call_is_told_and_leaves_nothing(void **state) {
    (void)state;
    static const char *const functions[] = {"cuStreamCreate",       "cuEventCreate",     "cuMemAllocHost_v2",
                                            "cuStreamWaitEvent",    "cuEventRecord",     "cuMemcpyDtoHAsync_v2",
                                            "cuMemcpyHtoDAsync_v2", "cuEventSynchronize"};
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        unsigned number = 1;
        int outcome = TOLD;
        for (; outcome == TOLD && number < FUNCTION_CALLS_MAX; number++) {
            outcome = run_with_fault(functions[f], number);
        }
        if (outcome != WORKED || number < 3) { /* each is called once at least */
            fail_msg("%s, call %u: %d", functions[f], number - 1, outcome);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_of_any_call_is_told_and_leaves_nothing),
        cmocka_unit_test(memory_of_the_host_passes_through),
        cmocka_unit_test(a_driver_is_adopted_when_the_program_has_started_it),
        cmocka_unit_test(every_size_goes_both_ways),
        cmocka_unit_test(chunks_are_as_large_as_what_is_copied_and_no_larger_than_4_mib),
        cmocka_unit_test(a_read_waits_for_the_callers_stream),
        cmocka_unit_test(a_thread_keeps_its_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
