/* How long a step of AdamW takes: optimizer_bench [ELEMENTS [STEPS]], 10,700,000 and 30 if left out.
 *
 * One line for each way of stepping: its name, then the median and the least time of a step in milliseconds. The ways
 * take turns, so that what disturbs one disturbs all. bench/optimizer runs this beside PyTorch. */
#include <muster/optimizer.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/optimizers/optimizer_kernels.h"

enum { STEPS_MAX = 1000, SLOTS = 2, GRADIENT = 0, NOW = 1, NEXT = 4, ARRAYS = 7 };

/* What a step reads and writes: the gradient, then parameter and slots, now and next. */
struct bench {
    size_t count;
    float *arrays[ARRAYS];
    uint16_t *bfloat16;
    struct muster_optimizer *optimizer;
    int64_t steps[1];
};

enum way { IN_PLACE, SECOND, SECOND_PLAIN, IN_PLACE_BFLOAT16, SECOND_BFLOAT16, NORM, WAY_COUNT };
static const char *const way_names[WAY_COUNT] = {
    "in place",           "second buffer",           "second buffer, through the caches",
    "in place, bfloat16", "second buffer, bfloat16", "squared norm of the gradient"};

static int64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void check(int code, const char *what) {
    if (code) {
        (void)fprintf(stderr, "optimizer_bench: %s: %s\n", what, muster_detail());
        exit(1);
    }
}

/* Pages that are there, with numbers in them. */
static void bench_init(struct bench *bench, size_t count) {
    *bench = (struct bench){.count = count};
    for (int i = 0; i < ARRAYS; i++) {
        bench->arrays[i] = aligned_alloc(64, (count + 15) / 16 * 64);
        if (!bench->arrays[i]) {
            check(-1, "memory");
        }
        for (size_t k = 0; k < count; k++) {
            bench->arrays[i][k] = i % 3 == 0 ? (float)(k % 1000) * 1e-6F : (float)(k % 977) * 1e-3F;
        }
    }
    bench->bfloat16 = aligned_alloc(64, (count + 31) / 32 * 64);
    if (!bench->bfloat16) {
        check(-1, "memory");
    }
    memset(bench->bfloat16, 1, count * sizeof *bench->bfloat16);
    const struct muster_optimizer_parameter parameter = {"p", bench->arrays[NOW], count};
    const struct muster_optimizer_memory now = {sizeof now, &bench->arrays[NOW], &bench->arrays[NOW + 1], bench->steps};
    check(muster_optimizer_create_adamw(&parameter, 1, NULL, &bench->optimizer), "optimizer");
    check(muster_optimizer_move(bench->optimizer, &now), "move");
}

static void bench_done(struct bench *bench) {
    muster_optimizer_free(bench->optimizer);
    free(bench->bfloat16);
    for (int i = 0; i < ARRAYS; i++) {
        free(bench->arrays[i]);
    }
}

/* What a step would do that did not know about caches. */
static void step_plain(const struct bench *bench) {
    const struct optimizer_factors factors = {.scale = 1,
                                              .rate = 1e-3F,
                                              .shrink = 0.99F,
                                              .epsilon = 1e-8F,
                                              .one_minus_beta1 = 0.1F,
                                              .beta2 = 0.999F,
                                              .one_minus_beta2 = 0.001F,
                                              .root_bias = 0.5F};
    const struct optimizer_span span = {.count = bench->count,
                                        .gradient = bench->arrays[GRADIENT],
                                        .parameter = bench->arrays[NOW],
                                        .slots = {bench->arrays[NOW + 1], bench->arrays[NOW + 2]},
                                        .parameter_out = bench->arrays[NEXT],
                                        .slots_out = {bench->arrays[NEXT + 1], bench->arrays[NEXT + 2]}};
    optimizer_span_step(RULE_ADAMW, &span, &factors, false);
}

static void step(struct bench *bench, enum way way) {
    const float *const gradients[] = {bench->arrays[GRADIENT]};
    int64_t steps[1];
    const struct muster_optimizer_memory next = {sizeof next, &bench->arrays[NEXT], &bench->arrays[NEXT + 1], steps};
    struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    double sum = 0;
    options.out = way == SECOND || way == SECOND_BFLOAT16 ? &next : NULL;
    options.bfloat16 = way == IN_PLACE_BFLOAT16 || way == SECOND_BFLOAT16 ? &bench->bfloat16 : NULL;
    if (way == NORM) {
        check(muster_squared_norm(NULL, gradients, &bench->count, 1, &sum), "norm");
    } else if (way == SECOND_PLAIN) {
        step_plain(bench);
    } else {
        check(muster_optimizer_step_into(bench->optimizer, gradients, &options), "step");
    }
}

static int compare(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    static int64_t times[WAY_COUNT][STEPS_MAX];
    size_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : 10700000;
    size_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 30;
    if (count == 0 || rounds == 0 || rounds > STEPS_MAX) {
        (void)fprintf(stderr, "usage: optimizer_bench [ELEMENTS [STEPS]], at most %d steps\n", STEPS_MAX);
        return 2;
    }
    struct bench bench;
    bench_init(&bench, count);
    for (size_t round = 0; round < rounds + 1; round++) { /* the first is to warm up */
        for (int way = 0; way < WAY_COUNT; way++) {
            int64_t begin = now_ns();
            step(&bench, (enum way)way);
            times[way][round > 0 ? round - 1 : 0] = now_ns() - begin;
        }
    }
    for (int way = 0; way < WAY_COUNT; way++) {
        qsort(times[way], rounds, sizeof times[way][0], compare);
        int64_t median = times[way][rounds / 2], least = times[way][0];
        printf("%-34s %8.3f %8.3f\n", way_names[way], (double)median / 1e6, (double)least / 1e6);
    }
    bench_done(&bench);
    return 0;
}
