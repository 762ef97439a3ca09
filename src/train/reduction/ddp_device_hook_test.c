/* What computes with gradients in memory of GPUs, by kernels, on doubles of the driver, of NCCL and of NVRTC:
 * conversions to 16-bit floats, the hooks that use them, and averages over the ranks that have data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device_kernels.h"
#include "comm/group/group_device.h"
#include "train/reduction/ddp_device_test_support.h"
#include "train/reduction/ddp_impl.h"
#include "train/reduction/narrow.h"

/* ---- conversions ---- */

enum { HALVES = 65536 };

struct arrays {
    struct device_rank d;
    struct device_kernels *kernels;
    struct device_stream stream;
    void *in, *out;
};

static bool is_nan(enum muster_type half, uint16_t bits) {
    return (bits & 0x7fff) > (half == MUSTER_FLOAT16 ? 0x7c00 : 0x7f80);
}

/* Every half becomes the wide number that it is, and that becomes the half again. */
static void check_all_halves(struct arrays *a, enum muster_type half, enum muster_type wide) {
    static uint16_t halves[HALVES], back[HALVES];
    static double wides[HALVES], expected[HALVES]; /* room for float32, too */
    size_t bytes = HALVES * muster_type_bytes(wide);
    for (uint32_t i = 0; i < HALVES; i++) {
        halves[i] = is_nan(half, (uint16_t)i) ? 0 : (uint16_t)i;
    }
    device_rank_put(&a->d, a->in, halves, sizeof halves);
    rank_check_code(a->d.rank, device_kernels_widen(a->kernels, &a->stream, wide, a->out, half, a->in, HALVES), 0);
    device_rank_get(&a->d, wides, a->out, bytes);
    widen_floats(wide, expected, half, halves, HALVES);
    rank_check(a->d.rank, memcmp(wides, expected, bytes) == 0);
    rank_check_code(a->d.rank, device_kernels_narrow(a->kernels, &a->stream, half, a->in, wide, a->out, HALVES), 0);
    device_rank_get(&a->d, back, a->in, sizeof back);
    rank_check(a->d.rank, memcmp(back, halves, sizeof back) == 0);
}

/* Numbers of every exponent, with drawn fractions, and those between two halves. */
static void check_rounding(struct arrays *a, enum muster_type half, enum muster_type wide) {
    static float floats[HALVES];
    static double doubles[HALVES];
    static uint16_t halves[HALVES], expected[HALVES];
    uint32_t seed = 12345;
    for (uint32_t i = 0; i < HALVES; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t bits = i % 2 ? seed : (seed & 0xffff0000u) | 0x8000u; /* the latter: ties of bfloat16 */
        bits = i % 4 == 2 ? (seed & 0xffffe000u) | 0x1000u : bits;     /* of float16 */
        bits = (bits & 0x7fffffffu) > 0x7f800000u ? bits & 0x3fffffffu : bits;
        memcpy(&floats[i], &bits, sizeof bits);
        doubles[i] = (double)floats[i] * (1 + 1e-9);
    }
    bool is_double = wide == MUSTER_FLOAT64;
    const void *values = is_double ? (const void *)doubles : floats;
    device_rank_put(&a->d, a->out, values, HALVES * muster_type_bytes(wide));
    rank_check_code(a->d.rank, device_kernels_narrow(a->kernels, &a->stream, half, a->in, wide, a->out, HALVES), 0);
    device_rank_get(&a->d, halves, a->in, sizeof halves);
    narrow_floats(half, expected, wide, values, HALVES);
    rank_check(a->d.rank, memcmp(halves, expected, sizeof halves) == 0);
}

static int convert(struct rank *rank, void *argument) {
    static const enum muster_type halves[] = {MUSTER_BFLOAT16, MUSTER_FLOAT16},
                                  wides[] = {MUSTER_FLOAT32, MUSTER_FLOAT64};
    struct arrays a = {.kernels = NULL};
    (void)argument;
    device_rank_start(rank, &a.d);
    rank_check_code(rank, muster_group_set_stream(a.d.group, a.d.stream), 0);
    rank_check_code(rank, group_device(a.d.group, &a.stream), 0);
    rank_check_code(rank, device_kernels_acquire(a.stream.device, &a.kernels), 0);
    a.in = device_rank_allocate(&a.d, HALVES * sizeof(uint16_t), 1);
    a.out = device_rank_allocate(&a.d, HALVES * sizeof(double), 1);
    for (int i = 0; i < 4; i++) {
        check_all_halves(&a, halves[i / 2], wides[i % 2]);
        check_rounding(&a, halves[i / 2], wides[i % 2]);
    }
    device_kernels_release(a.kernels, true);
    device_rank_release(&a.d, a.in, 1);
    device_rank_release(&a.d, a.out, 1);
    device_rank_end(&a.d);
    rank_check(rank, cuda_double_live() == 0);
    return 0;
}

static void kernels_convert_as_the_host_does(void **state) {
    (void)state;
    ranks_run(1, convert, NULL);
}

/* ---- hooks ---- */

static float narrowed(enum muster_type half, float value) {
    uint16_t bits;
    float back;
    narrow_floats(half, &bits, MUSTER_FLOAT32, &value, 1);
    widen_floats(MUSTER_FLOAT32, &back, half, &bits, 1);
    return back;
}

/* As NCCL does: each part multiplied by 1/size, which is exact here, then rounded after each addition. */
static float narrow_average(enum muster_type half, uint32_t size, uint32_t step, size_t parameter, size_t at) {
    float sum = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        float part = narrowed(half, narrowed(half, gradient_of(rank, step, parameter, at)) / (float)size);
        sum = rank == 0 ? part : narrowed(half, sum + part);
    }
    return sum;
}

static int compress(struct rank *rank, void *argument) {
    const enum muster_type half = *(const enum muster_type *)argument;
    struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "200", 1);
    options.hook = half == MUSTER_BFLOAT16 ? muster_ddp_hook_bfloat16() : muster_ddp_hook_float16();
    device_model_make(rank, &options, true, &model);
    for (uint32_t step = 0; step < 4; step++) {
        rank_check_code(rank, device_step_run(&model, rank->rank, step, rank->rank + step), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            float gradient[COUNT_MAX];
            device_gradient_get(&model, i, gradient);
            for (size_t at = 0; at < model_counts[i]; at++) {
                rank_check(rank, gradient[at] == narrow_average(half, rank->size, step, i, at));
            }
        }
    }
    device_model_end(&model);
    return 0;
}

static void hooks_narrow_on_the_gpu(void **state) {
    (void)state;
    enum muster_type halves[] = {MUSTER_BFLOAT16, MUSTER_FLOAT16};
    for (uint32_t size = 1; size <= 8; size *= 2) {
        ranks_run(size, compress, &halves[0]);
        ranks_run(size, compress, &halves[1]);
    }
}

/* A hook of the program's own that leaves a bucket to one of the library's. */
static int wrapped_start(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                         struct muster_work **work) {
    return muster_ddp_hook_bfloat16()->start(context, group, bucket, work);
}

static int wrap(struct rank *rank, void *argument) {
    struct muster_ddp_options options = several_buckets();
    struct muster_ddp_hook wrapped = *muster_ddp_hook_bfloat16();
    static struct device_model model;
    (void)argument;
    wrapped.start = wrapped_start;
    options.hook = &wrapped;
    device_model_make(rank, &options, false, &model);
    rank_check_code(rank, device_step_run(&model, rank->rank, 0, 0), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "work only as options.hook itself, not from within another hook"));
    device_model_end(&model);
    return 0;
}

static void a_hook_within_a_hook_has_no_kernels(void **state) {
    (void)state;
    ranks_run(1, wrap, NULL);
}

/* ---- divisors ---- */

static int run_out_of_data(struct rank *rank, void *argument) {
    static const uint32_t batches[] = {2, 4, 3, 1};
    const bool *with_hook = argument;
    struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    options.uneven_inputs = options.divide_by_active = true;
    options.hook = *with_hook ? muster_ddp_hook_bfloat16() : NULL;
    device_model_make(rank, &options, true, &model);
    bool stepped = true;
    for (uint32_t step = 0; stepped; step++) {
        uint32_t present = 0, active = 0;
        for (uint32_t other = 0; other < rank->size; other++) {
            present |= (uint32_t)(step < batches[other]) << other;
            active += step < batches[other];
        }
        if (step < batches[rank->rank]) {
            rank_check_code(rank, device_step_run(&model, rank->rank, step, rank->rank), MUSTER_OK);
        } else {
            rank_check_code(rank, muster_ddp_shadow(model.ddp, &stepped), MUSTER_OK);
        }
        for (size_t i = 0; stepped && i < PARAMETERS; i++) {
            float gradient[COUNT_MAX];
            device_gradient_get(&model, i, gradient);
            for (size_t at = 0; at < model_counts[i]; at++) {
                float expected = average_of(rank->size, present, active, step, i, at);
                float tolerance = active == rank->size ? 1e-6F : 0; /* NCCL's average, then, and a sum of ours */
                rank_check(rank, fabsf(gradient[at] - expected) <= (*with_hook ? 0.05F : tolerance));
            }
        }
    }
    device_model_end(&model);
    return 0;
}

static void averages_are_over_ranks_that_have_data(void **state) {
    (void)state;
    bool with_hook = false;
    ranks_run(4, run_out_of_data, &with_hook);
    with_hook = true;
    ranks_run(4, run_out_of_data, &with_hook);
}

/* ---- without NVRTC ---- */

/* One rank lacks it: no rank waits for that one. */
static int lack(struct rank *rank, void *argument) {
    struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    bool is_here = rank->rank == 1;
    (void)argument;
    if (is_here) {
        (void)setenv("MUSTER_NVRTC_LIBRARY", "libno-such-compiler.so.12", 1);
    }
    options.hook = muster_ddp_hook_float16();
    device_model_begin(rank, false, &model);
    rank_check_code(rank, device_model_register(&model, &options), is_here ? MUSTER_EUNSUPPORTED : MUSTER_EABORTED);
    rank_check(rank, strstr(muster_detail(), "float16 in memory of a GPU: kernels need NVRTC, which cannot be opened"));
    rank_check(rank, !model.ddp);
    device_model_end(&model);
    return 0;
}

static void a_rank_without_nvrtc_lets_nobody_wait(void **state) {
    (void)state;
    ranks_run(3, lack, NULL);
}

/* And what needs no kernel does not ask for it. */
static int do_without(struct rank *rank, void *argument) {
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    (void)argument;
    (void)setenv("MUSTER_NVRTC_LIBRARY", "libno-such-compiler.so.12", 1);
    device_model_make(rank, &options, false, &model);
    rank_check_code(rank, device_step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    device_check_averages(rank, &model, 3, 2, 0);
    device_model_end(&model);
    return 0;
}

static void plain_averages_need_no_nvrtc(void **state) {
    (void)state;
    ranks_run(2, do_without, NULL);
}

int main(void) {
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    (void)setenv("MUSTER_NVRTC_LIBRARY", NVRTC_DOUBLE, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_convert_as_the_host_does),
        cmocka_unit_test(hooks_narrow_on_the_gpu),
        cmocka_unit_test(a_hook_within_a_hook_has_no_kernels),
        cmocka_unit_test(averages_are_over_ranks_that_have_data),
        cmocka_unit_test(a_rank_without_nvrtc_lets_nobody_wait),
        cmocka_unit_test(plain_averages_need_no_nvrtc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
