/* A program of the first version: compiled with the headers of 0.1.0, which tests/abi/0.1.0 keeps, run with this tree's
 * library. It uses every struct that may grow and every kind of call. Headers of a released version never change. */
#include <muster/muster.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "folder_test_support.h"

_Static_assert(MUSTER_VERSION == 100, "the headers of 0.1.0");

static struct muster_group *group;

static void groups_and_collectives(void **state) {
    (void)state;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *part = NULL;
    struct muster_work *work = NULL;
    double values[3] = {1, 2, 3};
    void *memory = NULL;
    options.timeout_ms = 60000;
    options.name = "part";
    assert_true(muster_version() >= MUSTER_VERSION);
    assert_int_equal(muster_group_split(group, 0, 0, &options, &part), 0);
    assert_string_equal(muster_group_name(part), "part");
    assert_int_equal(muster_all_reduce(part, values, values, 3, MUSTER_FLOAT64, MUSTER_OP_SUM, &work), 0);
    assert_int_equal(muster_work_wait(&work), 0);
    assert_true(values[2] == 3);
    assert_int_equal(muster_alloc(part, 100, &memory), 0);
    muster_free(part, memory);
    muster_group_free(part);
}

/* Doubles what it is given. */
static int hook_start(void *context, struct muster_group *hook_group, const struct muster_ddp_bucket *bucket,
                      struct muster_work **work) {
    float *gradients = bucket->gradients;
    for (size_t i = 0; i < bucket->count; i++) {
        gradients[i] *= 2;
    }
    assert_true(bucket->size >= sizeof *bucket && hook_group == group);
    *(int *)context += 1;
    *work = NULL;
    return 0;
}

static void data_parallelism(void **state) {
    (void)state;
    int calls = 0;
    float weight[4] = {1, 2, 3, 4}, bias[1] = {5}, mean[2] = {0};
    const struct muster_ddp_parameter parameters[] = {{"weight", MUSTER_FLOAT32, 4, weight, NULL},
                                                      {"bias", MUSTER_FLOAT32, 1, bias, NULL}};
    const struct muster_ddp_buffer buffers[] = {{"mean", MUSTER_FLOAT32, 2, mean}};
    struct muster_ddp_hook hook = MUSTER_DDP_HOOK_INIT;
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    struct muster_ddp_statistics numbers;
    struct muster_ddp *ddp = NULL;
    hook.name = "double";
    hook.start = hook_start;
    hook.context = &calls;
    options.hook = &hook;
    assert_int_equal(muster_ddp_create(group, parameters, 2, buffers, 1, &options, &ddp), 0);
    assert_int_equal(muster_ddp_begin(ddp), 0);
    for (size_t i = 2; i-- > 0;) {
        ((float *)muster_ddp_gradient(ddp, i))[0] = 1.5F;
        assert_int_equal(muster_ddp_ready(ddp, i), 0);
    }
    assert_int_equal(muster_ddp_finish(ddp), 0);
    assert_true(*(const float *)muster_ddp_gradient(ddp, 0) == 3 && calls > 0);
    assert_int_equal(muster_ddp_statistics(ddp, &numbers), 0);
    assert_true(numbers.step_count == 1 && numbers.bucket_count == (uint32_t)calls);
    muster_ddp_free(ddp);
    options.hook = muster_ddp_hook_float16();
    assert_int_equal(muster_ddp_create(group, parameters, 2, buffers, 1, &options, &ddp), 0);
    muster_ddp_free(ddp);
}

static void layers_samplers_and_snapshots(void **state) {
    (void)state;
    struct muster_syncbn_options norm = MUSTER_SYNCBN_OPTIONS_INIT;
    struct muster_sampler_options order = MUSTER_SAMPLER_OPTIONS_INIT;
    struct muster_adamw_options adamw = MUSTER_ADAMW_OPTIONS_INIT;
    struct muster_snapshot_options keep = MUSTER_SNAPSHOT_OPTIONS_INIT;
    float weight[4] = {1, 2, 3, 4}, gradient[4] = {1, 1, 1, 1}, y[4];
    const float *const gradients[] = {gradient};
    const struct muster_optimizer_parameter parameters[] = {{"weight", weight, 4}};
    struct muster_syncbn *layer = NULL;
    struct muster_sampler *sampler = NULL;
    struct muster_optimizer *optimizer = NULL;
    uint64_t indices[8];
    norm.channels = 1;
    assert_int_equal(muster_syncbn_create(group, &norm, &layer), 0);
    assert_int_equal(muster_syncbn_forward(layer, weight, 4, 1, y), 0);
    muster_syncbn_free(layer);
    order.sample_count = 5;
    assert_int_equal(muster_sampler_create(&order, &sampler), 0);
    assert_int_equal(muster_sampler_take(sampler, indices, 8), 5);
    muster_sampler_free(sampler);
    assert_int_equal(muster_optimizer_create_adamw(parameters, 1, &adamw, &optimizer), 0);
    assert_int_equal(muster_optimizer_step(optimizer, gradients), 0);
    struct muster_tensor tensors[4] = {
        {.name = "weight", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {4}, .data = weight}};
    assert_int_equal(muster_optimizer_tensor_count(optimizer), 3);
    assert_int_equal(muster_optimizer_tensors(optimizer, tensors + 1), 0);
    int64_t epoch = 4;
    struct muster_value values[] = {muster_value_integer("epoch", &epoch)};
    const struct muster_snapshot_state all = MUSTER_SNAPSHOT_STATE(tensors, 4, values, 1);
    struct muster_snapshot_found found;
    char folder[] = "/tmp/muster-abi-XXXXXX";
    assert_non_null(mkdtemp(folder));
    assert_int_equal(muster_snapshot_save_group(group, true, folder, 3, &all, &keep), 0);
    epoch = 0;
    assert_int_equal(muster_snapshot_load_group(group, folder, &all, &found), 0);
    assert_true(found.step == 3 && found.passed_over == 0 && epoch == 4);
    assert_int_equal(muster_snapshot_broadcast(group, &all, 0), 0);
    muster_optimizer_free(optimizer);
    remove_folder(folder);
    assert_int_equal(access(folder, F_OK), -1);
}

static int make_group(void **state) {
    (void)state;
    return muster_group_create_env(NULL, &group);
}

static int free_group(void **state) {
    (void)state;
    muster_group_free(group);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_and_collectives),
        cmocka_unit_test(data_parallelism),
        cmocka_unit_test(layers_samplers_and_snapshots),
    };
    return cmocka_run_group_tests(tests, make_group, free_group);
}
