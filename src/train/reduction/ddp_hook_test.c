/* Communication hooks: 16-bit gradients, to the bit, and a hook of the program's own. */
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/ddp.h>

#include "base/status.h"
#include "comm/group/ranks_test_support.h"
#include "train/reduction/ddp_test_support.h"
#include "train/reduction/narrow.h"

static int compress(struct rank *rank, void *argument) {
    const struct muster_ddp_hook *hook = argument;
    enum muster_type type = strcmp(hook->name, "bfloat16") == 0 ? MUSTER_BFLOAT16 : MUSTER_FLOAT16;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.hook = hook;
    static struct model model;
    model_make(rank, group, &options, true, &model);
    for (uint32_t step = 0; step < 3; step++) {
        rank_check_code(rank, step_run(&model, rank->rank, step, 1), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            const float *gradient = muster_ddp_gradient(model.ddp, i);
            for (size_t at = 0; at < model_counts[i]; at++) {
                /* Each rank's gradient rounded, the average of them in float32, rounded once more. */
                float terms[2], expected;
                for (uint32_t other = 0; other < 2; other++) {
                    uint16_t half;
                    float exact = gradient_of(other, step, i, at);
                    narrow_floats(type, &half, MUSTER_FLOAT32, &exact, 1);
                    widen_floats(MUSTER_FLOAT32, &terms[other], type, &half, 1);
                }
                uint16_t half;
                float average = (terms[0] + terms[1]) / 2;
                narrow_floats(type, &half, MUSTER_FLOAT32, &average, 1);
                widen_floats(MUSTER_FLOAT32, &expected, type, &half, 1);
                rank_check(rank, same_bits(&gradient[at], &expected, sizeof expected));
            }
        }
    }
    model_free(&model, group);
    return 0;
}

/* Rank 0 has one batch, rank 1 two: in the second step the divisor is 1, and the sum is what rank 1 sent. */
static int compress_unevenly(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.hook = muster_ddp_hook_bfloat16();
    options.uneven_inputs = options.divide_by_active = true;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    bool stepped = true;
    int status = rank->rank == 1 ? step_run(&model, 1, 1, 0) : muster_ddp_shadow(model.ddp, &stepped);
    rank_check_code(rank, status, MUSTER_OK);
    rank_check(rank, stepped);
    for (size_t i = 0; i < PARAMETERS; i++) {
        const float *gradient = muster_ddp_gradient(model.ddp, i);
        for (size_t at = 0; at < model_counts[i]; at++) {
            uint16_t half;
            float expected = gradient_of(1, 1, i, at);
            narrow_floats(MUSTER_BFLOAT16, &half, MUSTER_FLOAT32, &expected, 1);
            widen_floats(MUSTER_FLOAT32, &expected, MUSTER_BFLOAT16, &half, 1);
            rank_check(rank, gradient[at] == expected);
        }
    }
    rank_check_code(rank, muster_ddp_shadow(model.ddp, &stepped), MUSTER_OK);
    rank_check(rank, !stepped);
    model_free(&model, group);
    return 0;
}

static void hooks_compress(void **state) {
    (void)state;
    struct muster_ddp_hook hooks[] = {*muster_ddp_hook_bfloat16(), *muster_ddp_hook_float16()};
    ranks_run(2, compress, &hooks[0]);
    ranks_run(2, compress, &hooks[1]);
    ranks_run(2, compress_unevenly, NULL);
}

/* A hook of one's own: the largest gradient of any rank, in two calls; done when it is started. */
struct calls {
    uint32_t started, finished;
};

static int largest_start(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                         struct muster_work **work) {
    (void)work;
    struct calls *calls = context;
    if (bucket->index != calls->started % bucket->bucket_count || bucket->divisor != 2) {
        return MUSTER_EINVAL;
    }
    calls->started++;
    memcpy(bucket->scratch, bucket->gradients, bucket->count * sizeof(float));
    return muster_all_reduce(group, bucket->scratch, bucket->scratch, bucket->count, bucket->type, MUSTER_OP_MAX, NULL);
}

static int largest_finish(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket) {
    (void)group;
    ((struct calls *)context)->finished++;
    memcpy(bucket->gradients, bucket->scratch, bucket->count * sizeof(float));
    return MUSTER_OK;
}

static int use_own_hook(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct calls calls = {0};
    const struct muster_ddp_hook hook = {sizeof hook, "largest", sizeof(float), largest_start, largest_finish, &calls};
    struct muster_ddp_options options = several_buckets();
    options.hook = &hook;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    for (size_t i = 0; i < PARAMETERS; i++) {
        const float *gradient = muster_ddp_gradient(model.ddp, i);
        for (size_t at = 0; at < model_counts[i]; at++) {
            rank_check(rank, gradient[at] == fmaxf(gradient_of(0, 0, i, at), gradient_of(1, 0, i, at)));
        }
    }
    struct muster_ddp_statistics numbers;
    muster_ddp_statistics(model.ddp, &numbers);
    rank_check(rank, calls.started == numbers.bucket_count && calls.finished == numbers.bucket_count);
    model_free(&model, group);
    return 0;
}

static void a_hook_of_ones_own(void **state) {
    (void)state;
    ranks_run(2, use_own_hook, NULL);
}

/* ---- what a hook can show ---- */

/* The average, whose handle the test keeps an eye on. */
static int watched_start(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                         struct muster_work **work) {
    int status = muster_all_reduce(group, bucket->gradients, bucket->gradients, bucket->count, bucket->type,
                                   MUSTER_OP_AVERAGE, work);
    if (bucket->index == 0) {
        *(struct muster_work **)context = *work;
    }
    return status;
}

static int reduce_in_the_background(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_work *first = NULL;
    const struct muster_ddp_hook hook = {sizeof hook, "watched", 0, watched_start, NULL, &first};
    struct muster_ddp_options options = several_buckets();
    options.hook = &hook;
    options.rebuild = false;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    size_t i = PARAMETERS;
    while (!first) {
        rank_check_code(rank, muster_ddp_ready(model.ddp, --i), MUSTER_OK);
    }
    rank_check(rank, i > 0); /* the backward pass is not over */
    while (!muster_work_done(first)) {
        (void)sched_yield(); /* nobody but the progress thread can end this loop */
    }
    while (i > 0) {
        rank_check_code(rank, muster_ddp_ready(model.ddp, --i), MUSTER_OK);
    }
    rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
    model_free(&model, group);
    return 0;
}

static void buckets_are_reduced_while_the_backward_pass_runs(void **state) {
    (void)state;
    ranks_run(2, reduce_in_the_background, NULL);
}

/* A hook that fails on one rank: the others are told why. */
static int failing_start(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                         struct muster_work **work) {
    if (muster_group_rank(group) == 1 && bucket->index == 1) {
        return status_fail(MUSTER_EUNSUPPORTED, "no codebook");
    }
    return watched_start(context, group, bucket, work);
}

static int fail_in_a_hook(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_work *first = NULL;
    const struct muster_ddp_hook hook = {sizeof hook, "failing", 0, failing_start, NULL, &first};
    struct muster_ddp_options options = several_buckets();
    options.hook = &hook;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_mark(rank, 1);
    rank_await(rank, 1 - rank->rank, 1);
    rank_check_code(rank, step_run(&model, rank->rank, 0, 0), rank->rank == 1 ? MUSTER_EUNSUPPORTED : MUSTER_EABORTED);
    rank_check(rank, strstr(muster_detail(), "bucket 2 of 3 (") && strstr(muster_detail(), "no codebook"));
    model_free(&model, group);
    return 0;
}

static void a_failing_hook_is_told_to_all(void **state) {
    (void)state;
    ranks_run(2, fail_in_a_hook, NULL);
}

/* ---- types side by side ---- */

enum { TYPES = 4, TYPED_COUNT = 33 };
static const enum muster_type types[TYPES] = {MUSTER_FLOAT64, MUSTER_BFLOAT16, MUSTER_FLOAT32, MUSTER_FLOAT16};

static void store(enum muster_type type, void *array, size_t at, float value) {
    double wide = (double)value;
    switch (type) {
    case MUSTER_FLOAT64:
        ((double *)array)[at] = wide;
        break;
    case MUSTER_FLOAT32:
        ((float *)array)[at] = value;
        break;
    default:
        narrow_floats(type, (uint16_t *)array + at, MUSTER_FLOAT32, &value, 1);
    }
}

static int mix_types(struct rank *rank, void *argument) {
    const struct muster_ddp_hook *hook = argument;
    struct muster_group *group = rank_group(rank, NULL);
    static double data[2 * TYPES][TYPED_COUNT];
    struct muster_ddp_parameter parameters[2 * TYPES];
    static const char *const typed_names[2 * TYPES] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    for (size_t i = 0; i < 2 * TYPES; i++) {
        parameters[i] = (struct muster_ddp_parameter){typed_names[i], types[i % TYPES], TYPED_COUNT, data[i], NULL};
    }
    struct muster_ddp_options options = several_buckets();
    options.hook = hook;
    struct muster_ddp *ddp = NULL;
    rank_check_code(rank, muster_ddp_create(group, parameters, 2 * TYPES, NULL, 0, &options, &ddp), MUSTER_OK);
    for (uint32_t step = 0; step < 3; step++) {
        rank_check_code(rank, muster_ddp_begin(ddp), MUSTER_OK);
        for (size_t i = 0; i < 2 * TYPES; i++) {
            for (size_t at = 0; at < TYPED_COUNT; at++) { /* small whole numbers and halves: exact in every type */
                store(types[i % TYPES], muster_ddp_gradient(ddp, i), at,
                      (float)((rank->rank + 1) * (at % 9 + i + step)));
            }
            rank_check_code(rank, muster_ddp_ready(ddp, i), MUSTER_OK);
        }
        rank_check_code(rank, muster_ddp_finish(ddp), MUSTER_OK);
        for (size_t i = 0; i < 2 * TYPES; i++) {
            double expected[TYPED_COUNT];
            for (size_t at = 0; at < TYPED_COUNT; at++) {
                store(types[i % TYPES], expected, at, 1.5F * (float)(at % 9 + i + step));
            }
            rank_check(rank, same_bits(expected, muster_ddp_gradient(ddp, i),
                                       TYPED_COUNT * muster_type_bytes(types[i % TYPES])));
        }
    }
    muster_ddp_free(ddp);
    muster_group_free(group);
    return 0;
}

static void types_live_side_by_side(void **state) {
    (void)state;
    struct muster_ddp_hook hook = *muster_ddp_hook_bfloat16();
    ranks_run(2, mix_types, NULL);
    ranks_run(2, mix_types, &hook);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_compress),
        cmocka_unit_test(a_hook_of_ones_own),
        cmocka_unit_test(buckets_are_reduced_while_the_backward_pass_runs),
        cmocka_unit_test(a_failing_hook_is_told_to_all),
        cmocka_unit_test(types_live_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
