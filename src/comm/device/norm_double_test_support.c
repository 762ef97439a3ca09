/* Kernels of batch norm, as C; see norm_double_test_support.h. Each pointer must have room for what the kernel does. */
#include "comm/device/norm_double_test_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device_kernels.h"

/* A few threads, one after the other, the last one first: none may need what another one does. */
enum { THREADS = 3 };
static __thread unsigned long long thread_number;

#define EACH_THREAD for (thread_number = THREADS; thread_number-- > 0;)
#define KERNEL static
#define PART static
#define FIRST thread_number
#define STEP THREADS
#define CODE(...) __VA_ARGS__
#include "comm/device/norm_template.h"
#undef CODE

enum { ARGUMENTS = 12 };

static unsigned long long count_of(void *argument) {
    unsigned long long count = 0;
    memcpy(&count, argument, sizeof count);
    return count;
}

static double double_of(void *argument) {
    double value = 0;
    memcpy(&value, argument, sizeof value);
    return value;
}

/* What an argument points to; NULL: nothing, as the kernel is told. */
static void *memory_of(void *argument, unsigned long long count, size_t width) {
    unsigned long long address = count_of(argument);
    void *contents = address ? cuda_double_contents(address, (size_t)count * width) : NULL;
    if (address && !contents) {
        abort(); /* the kernel touches what is not its own */
    }
    return contents;
}

#define DOUBLES(i, count) memory_of(a[i], count, sizeof(double))
#define FLOATS(i, count) memory_of(a[i], count, sizeof(float))

static void run_muster_norm_sums(void **a) {
    unsigned long long images = count_of(a[5]), channels = count_of(a[6]), plane = count_of(a[7]),
                       slices = count_of(a[8]), count = images * channels * plane;
    EACH_THREAD {
        muster_norm_sums(DOUBLES(0, 2 * channels * slices), DOUBLES(1, 1), FLOATS(2, count), FLOATS(3, count),
                         FLOATS(4, channels), images, channels, plane, slices);
    }
}

static void run_muster_norm_fold(void **a) {
    unsigned long long width = count_of(a[2]), slices = count_of(a[3]), groups = count_of(a[4]);
    EACH_THREAD {
        muster_norm_fold(DOUBLES(0, width * groups), DOUBLES(1, width * slices), width, slices, groups);
    }
}

static void run_muster_norm_count(void **a) {
    unsigned long long count = count_of(a[1]);
    EACH_THREAD {
        muster_norm_count(memory_of(a[0], count, sizeof(long long)), count);
    }
}

static void run_muster_norm_statistics(void **a) {
    unsigned long long channels = count_of(a[9]);
    EACH_THREAD {
        muster_norm_statistics(DOUBLES(0, 2 * channels + 1), DOUBLES(1, 2 * channels + 1), FLOATS(2, channels),
                               FLOATS(3, 4 * channels), FLOATS(4, channels), FLOATS(5, channels), FLOATS(6, channels),
                               FLOATS(7, channels), memory_of(a[8], 1, sizeof(long long)), channels, double_of(a[10]),
                               double_of(a[11]));
    }
}

static void run_muster_norm_evaluation(void **a) {
    unsigned long long channels = count_of(a[5]);
    EACH_THREAD {
        muster_norm_evaluation(FLOATS(0, 4 * channels), FLOATS(1, channels), FLOATS(2, channels), FLOATS(3, channels),
                               FLOATS(4, channels), channels, double_of(a[6]));
    }
}

static void run_muster_norm_gradients(void **a) {
    unsigned long long channels = count_of(a[4]);
    EACH_THREAD {
        muster_norm_gradients(DOUBLES(0, 2 * channels), DOUBLES(1, 2 * channels + 1), FLOATS(2, channels),
                              FLOATS(3, channels), channels);
    }
}

static void run_muster_norm_slopes(void **a) {
    unsigned long long channels = count_of(a[5]);
    EACH_THREAD {
        muster_norm_slopes(FLOATS(0, 4 * channels), DOUBLES(1, 2 * channels), DOUBLES(2, 2 * channels + 1),
                           FLOATS(3, channels), FLOATS(4, channels), channels);
    }
}

static void run_muster_norm_apply(void **a) {
    unsigned long long count = count_of(a[3]), channels = count_of(a[4]);
    EACH_THREAD {
        muster_norm_apply(FLOATS(0, count), FLOATS(1, count), FLOATS(2, 4 * channels), count, channels, count_of(a[5]));
    }
}

static void run_muster_norm_apply_backward(void **a) {
    unsigned long long count = count_of(a[4]), channels = count_of(a[5]);
    EACH_THREAD {
        muster_norm_apply_backward(FLOATS(0, count), FLOATS(1, count), FLOATS(2, count), FLOATS(3, 4 * channels), count,
                                   channels, count_of(a[6]));
    }
}

struct known {
    const char *name;
    cuda_double_kernel *run;
};

static const struct known kernels[] = {
#define KNOWN(id, name) {#name, run_##name},
    DEVICE_NORM_TABLE(KNOWN)
#undef KNOWN
        {NULL, NULL}};

/* In the order of the table. */
static const unsigned argument_counts[] = {9, 5, 2, 12, 7, 5, 6, 6, 7};

void norm_double_register(void) {
    static const size_t argument_bytes[ARGUMENTS] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
    for (size_t i = 0; kernels[i].name; i++) {
        cuda_double_register(kernels[i].name, kernels[i].run, argument_bytes, argument_counts[i]);
    }
}

const char *norm_double_name(size_t i) {
    return kernels[i].name;
}
