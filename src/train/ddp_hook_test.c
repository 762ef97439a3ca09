/* Communication hooks: 16-bit gradients, to the bit, and a hook of the program's own. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/ddp.h>

#include "comm/ranks_test_support.h"
#include "train/ddp_test_support.h"
#include "train/narrow.h"

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

static void hooks_compress(void **state) {
    (void)state;
    struct muster_ddp_hook hooks[] = {muster_ddp_hook_bfloat16, muster_ddp_hook_float16};
    ranks_run(2, compress, &hooks[0]);
    ranks_run(2, compress, &hooks[1]);
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
    return muster_all_reduce(group, bucket->scratch, bucket->scratch, bucket->count, bucket->type, MUSTER_MAX, NULL);
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
    const struct muster_ddp_hook hook = {"largest", sizeof(float), largest_start, largest_finish, &calls};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hooks_compress),
        cmocka_unit_test(a_hook_of_ones_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
