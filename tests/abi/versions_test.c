/* Programs of other versions: structs that lack the members that were added last, and structs that have members which
 * this library does not know. Each public struct that grows is met in both forms. */
#include <muster/muster.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder_test_support.h"

static struct muster_group *group;

/* What a newer version could have made of a struct. */
#define NEWER(name)                                                                                                    \
    struct {                                                                                                           \
        struct name now;                                                                                               \
        uint64_t added;                                                                                                \
    }

static void group_options(void **state) {
    (void)state;
    struct {
        size_t size;
        int64_t timeout_ms;
    } older = {sizeof older, 5000};
    NEWER(muster_group_options) newer = {{sizeof newer, 5000, "newer", NULL, NULL, NULL}, 0};
    struct muster_group *made = NULL;
    assert_int_equal(muster_group_create_env((const struct muster_group_options *)(const void *)&older, &made), 0);
    assert_string_equal(muster_group_name(made), "world");
    muster_group_free(made);
    assert_int_equal(muster_group_create_env(&newer.now, &made), 0);
    assert_string_equal(muster_group_name(made), "newer");
    muster_group_free(made);
    assert_int_equal(muster_group_split(group, 0, 0, &newer.now, &made), 0);
    muster_group_free(made);
    newer.added = 1;
    made = NULL;
    assert_int_equal(muster_group_create_env(&newer.now, &made), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_group_split(group, 0, 0, &newer.now, &made), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "struct muster_group_options"));
    assert_null(made);
}

static void store_options(void **state) {
    (void)state;
    struct {
        size_t size;
        const char *host;
        uint16_t port;
        uint32_t world_size;
        bool is_host;
        const char *bind_host;
    } older = {sizeof older, NULL, 0, 0, true, "127.0.0.1"};
    NEWER(muster_store_options) newer = {MUSTER_STORE_OPTIONS_INIT, 0};
    struct muster_store *store = NULL;
    assert_int_equal(muster_store_open_tcp((const struct muster_store_options *)(const void *)&older, &store), 0);
    muster_store_close(store);
    newer.now.size = sizeof newer;
    newer.now.is_host = true;
    newer.now.bind_host = "127.0.0.1";
    assert_int_equal(muster_store_open_tcp(&newer.now, &store), 0);
    muster_store_close(store);
    newer.added = 1;
    assert_int_equal(muster_store_open_tcp(&newer.now, &store), MUSTER_EUNSUPPORTED);
}

/* A ddp of one parameter, made with structs of these sizes. */
static int try_ddp(const void *parameters, size_t parameter_bytes, const void *buffers, size_t buffer_bytes,
                   const void *options, struct muster_ddp **out) {
    return muster_ddp_create_sized(group, parameters, parameter_bytes, 2, buffers, buffer_bytes, 2, options, out);
}

static void ddp_structs(void **state) {
    (void)state;
    float data[4] = {1, 2, 3, 4}, kept[2] = {0};
    struct {
        const char *name;
        enum muster_type type;
        size_t count;
        void *data;
    } older[2] = {{"a", MUSTER_FLOAT32, 1, data}, {"b", MUSTER_FLOAT32, 1, data + 1}};
    struct {
        size_t size, bucket_bytes;
    } older_options = {sizeof older_options, 4096};
    NEWER(muster_ddp_parameter)
    newer[2] = {{{"a", MUSTER_FLOAT32, 1, data, kept}, 0}, {{"b", MUSTER_FLOAT32, 1, data + 1, kept + 1}, 0}};
    NEWER(muster_ddp_buffer)
    buffers[2] = {{{"m", MUSTER_FLOAT32, 1, data + 2}, 0}, {{"v", MUSTER_FLOAT32, 1, data + 3}, 0}};
    NEWER(muster_ddp_options) newer_options = {MUSTER_DDP_OPTIONS_INIT, 0};
    NEWER(muster_ddp_hook) hook = {*muster_ddp_hook_bfloat16(), 0};
    struct muster_ddp *ddp = NULL;
    assert_int_equal(try_ddp(older, sizeof *older, buffers, sizeof *buffers, &older_options, &ddp), 0);
    assert_int_equal(muster_ddp_begin(ddp), 0);
    assert_int_equal(muster_ddp_ready(ddp, 1), 0);
    assert_int_equal(muster_ddp_ready(ddp, 0), 0);
    assert_int_equal(muster_ddp_finish(ddp), 0);
    NEWER(muster_ddp_statistics) numbers;
    memset(&numbers, 0xff, sizeof numbers);
    uint64_t steps = 0; /* the oldest that there could be */
    assert_int_equal(muster_ddp_statistics_sized(ddp, &numbers.now, sizeof numbers), 0);
    assert_int_equal(muster_ddp_statistics_sized(ddp, (struct muster_ddp_statistics *)(void *)&steps, sizeof steps), 0);
    assert_true(numbers.now.step_count == 1 && numbers.added == 0 && steps == 1);
    muster_ddp_free(ddp);
    newer_options.now.size = sizeof newer_options;
    newer_options.now.hook = &hook.now;
    hook.now.size = sizeof hook;
    assert_int_equal(try_ddp(newer, sizeof *newer, buffers, sizeof *buffers, &newer_options, &ddp), 0);
    assert_ptr_equal(muster_ddp_gradient(ddp, 1), kept + 1);
    muster_ddp_free(ddp);
    hook.added = 1;
    assert_int_equal(try_ddp(newer, sizeof *newer, buffers, sizeof *buffers, &newer_options, &ddp),
                     MUSTER_EUNSUPPORTED);
    hook.added = 0;
    buffers[1].added = 1;
    assert_int_equal(try_ddp(newer, sizeof *newer, buffers, sizeof *buffers, &newer_options, &ddp),
                     MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "struct muster_ddp_buffer"));
    assert_int_equal(try_ddp(older, 8, buffers, sizeof *buffers, NULL, &ddp), MUSTER_EINVAL);
}

static void steps_of_ranges(void) {
    float data[4] = {1, 2, 3, 4}, other[4], gradient[4] = {1, 1, 1, 1}, *const parameters[] = {other};
    const float *const gradients[] = {gradient};
    struct muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    NEWER(muster_optimizer_range) ranges[2] = {{{"v", data, 2, 0}, 0}, {{"w", data + 2, 2, 1}, 0}};
    NEWER(muster_optimizer_group) groups[2] = {{{&sgd, NULL, NULL, NULL}, 0}, {{&sgd, NULL, NULL, NULL}, 0}};
    NEWER(muster_optimizer_memory) memory = {MUSTER_OPTIMIZER_MEMORY_INIT, 0};
    NEWER(muster_optimizer_step_options) options = {MUSTER_OPTIMIZER_STEP_OPTIONS_INIT, 0};
    struct {
        size_t size;
        double gradient_scale;
    } older = {sizeof older, 2};
    struct muster_optimizer *optimizer = NULL;
    sgd.learning_rate = 0.5;
    assert_int_equal(
        muster_optimizer_create_sized(&ranges[0].now, sizeof *ranges, 1, &groups[0].now, sizeof *groups, 2, &optimizer),
        0);
    assert_int_equal(muster_optimizer_step_into(optimizer, gradients,
                                                (const struct muster_optimizer_step_options *)(const void *)&older),
                     0);
    assert_true(data[0] == 0 && data[1] == 1 && data[2] == 3);
    memory.now.size = sizeof memory;
    memory.now.parameters = parameters;
    options.now.size = sizeof options;
    options.now.out = &memory.now;
    assert_int_equal(muster_optimizer_step_into(optimizer, gradients, &options.now), 0);
    assert_true(data[0] == 0 && other[0] == -0.5F);
    memory.added = 1;
    assert_int_equal(muster_optimizer_step_into(optimizer, gradients, &options.now), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_optimizer_move(optimizer, &memory.now), MUSTER_EUNSUPPORTED);
    muster_optimizer_free(optimizer);
    groups[1].added = 1;
    assert_int_equal(
        muster_optimizer_create_sized(&ranges[0].now, sizeof *ranges, 2, &groups[0].now, sizeof *groups, 2, &optimizer),
        MUSTER_EUNSUPPORTED);
}

static void layers_and_optimizers(void **state) {
    (void)state;
    float data[4] = {1, 2, 3, 4}, gradient[4] = {0};
    const float *const gradients[] = {gradient};
    struct {
        size_t size, channels;
    } older_norm = {sizeof older_norm, 1};
    struct {
        size_t size;
        double learning_rate;
    } older_rate = {sizeof older_rate, 0.5};
    NEWER(muster_adamw_options) newer = {MUSTER_ADAMW_OPTIONS_INIT, 0};
    NEWER(muster_optimizer_parameter) parameters[1] = {{{"w", data, 4}, 0}};
    struct muster_syncbn *layer = NULL;
    struct muster_optimizer *optimizer = NULL;
    assert_int_equal(
        muster_syncbn_create(group, (const struct muster_syncbn_options *)(const void *)&older_norm, &layer), 0);
    assert_int_equal(muster_syncbn_forward(layer, data, 4, 1, gradient), 0);
    muster_syncbn_free(layer);
    assert_int_equal(muster_optimizer_create_sgd_sized(&parameters[0].now, sizeof *parameters, 1,
                                                       (const struct muster_sgd_options *)(const void *)&older_rate,
                                                       &optimizer),
                     0);
    assert_true(muster_optimizer_learning_rate(optimizer) == 0.5);
    assert_int_equal(muster_optimizer_step(optimizer, gradients), 0);
    muster_optimizer_free(optimizer);
    newer.now.size = sizeof newer;
    assert_int_equal(
        muster_optimizer_create_adamw_sized(&parameters[0].now, sizeof *parameters, 1, &newer.now, &optimizer), 0);
    NEWER(muster_tensor) tensors[3];
    memset(tensors, 0xff, sizeof tensors);
    assert_int_equal(muster_optimizer_tensor_count(optimizer), 3);
    assert_int_equal(muster_optimizer_tensors_sized(optimizer, &tensors[0].now, sizeof *tensors), 0);
    assert_string_equal(tensors[1].now.name, "optimizer.exp_avg_sq.w");
    assert_string_equal(tensors[2].now.name, "optimizer.steps");
    assert_true(tensors[2].added == 0);
    muster_optimizer_free(optimizer);
    steps_of_ranges();
    newer.added = 1;
    assert_int_equal(
        muster_optimizer_create_adamw_sized(&parameters[0].now, sizeof *parameters, 1, &newer.now, &optimizer),
        MUSTER_EUNSUPPORTED);
    NEWER(muster_schedule) schedule = {MUSTER_SCHEDULE_INIT, 0};
    double rate = 0;
    schedule.now.size = sizeof schedule;
    assert_int_equal(muster_schedule_rate(&schedule.now, 0, &rate), 0);
    assert_true(rate == 1e-3);
    schedule.added = 1;
    assert_int_equal(muster_schedule_rate(&schedule.now, 0, &rate), MUSTER_EUNSUPPORTED);
}

static void results_of_an_fsdp(const struct muster_fsdp *fsdp) {
    NEWER(muster_fsdp_range) range;
    NEWER(muster_fsdp_memory) memory;
    NEWER(muster_fsdp_statistics) numbers;
    struct {
        size_t unit, parameter;
    } older = {7, 7};
    memset(&range, 0xff, sizeof range);
    memset(&memory, 0xff, sizeof memory);
    memset(&numbers, 0xff, sizeof numbers);
    assert_int_equal(muster_fsdp_range_sized(fsdp, 1, &range.now, sizeof range), 0);
    assert_true(range.now.unit == 0 && range.now.count == 3 && range.added == 0);
    assert_int_equal(muster_fsdp_range_sized(fsdp, 1, (struct muster_fsdp_range *)(void *)&older, sizeof older), 0);
    assert_true(older.unit == 0 && older.parameter == 1);
    assert_int_equal(muster_fsdp_memory_sized(fsdp, &memory.now, sizeof memory), 0);
    assert_true(memory.now.parameter_bytes > 0 && memory.added == 0);
    assert_int_equal(muster_fsdp_statistics_sized(fsdp, &numbers.now, sizeof numbers), 0);
    assert_true(numbers.now.step_count == 0 && numbers.added == 0);
}

static void views_of_an_fsdp(struct muster_fsdp *fsdp) {
    NEWER(muster_fsdp_view) view;
    struct {
        const void *parameters;
    } older = {NULL};
    memset(&view, 0xff, sizeof view);
    assert_int_equal(muster_fsdp_begin(fsdp, MUSTER_FSDP_EVALUATE), 0);
    assert_int_equal(muster_fsdp_acquire_sized(fsdp, 0, MUSTER_FSDP_FORWARD, &view.now, sizeof view), 0);
    assert_true(view.now.parameters && !view.now.gradients && !view.now.add && view.added == 0);
    assert_int_equal(muster_fsdp_acquire_sized(fsdp, 0, MUSTER_FSDP_FORWARD, (struct muster_fsdp_view *)(void *)&older,
                                               sizeof older),
                     0);
    assert_ptr_equal(older.parameters, view.now.parameters);
    assert_int_equal(muster_fsdp_release(fsdp, 0, MUSTER_FSDP_FORWARD), 0);
    assert_int_equal(muster_fsdp_release(fsdp, 0, MUSTER_FSDP_FORWARD), 0);
    assert_int_equal(muster_fsdp_finish(fsdp), 0);
}

static void fsdp_structs(void **state) {
    (void)state;
    struct {
        size_t size;
        enum muster_fsdp_sharding sharding;
    } older = {sizeof older, MUSTER_FSDP_HYBRID};
    NEWER(muster_fsdp_options) newer = {MUSTER_FSDP_OPTIONS_INIT, 0};
    NEWER(muster_fsdp_parameter) parameters[2] = {{{.name = "w", .count = 5}, 0}, {{.name = "b", .count = 3}, 0}};
    NEWER(muster_fsdp_unit) units[2] = {{{"u", &parameters[0].now, 2}, 0}};
    NEWER(muster_fsdp_memory) planned;
    struct muster_fsdp *fsdp = NULL;
    const size_t unit_bytes = sizeof *units, parameter_bytes = sizeof *parameters;
    assert_int_equal(muster_fsdp_create_sized(group, &units[0].now, unit_bytes, 1, parameter_bytes,
                                              (const struct muster_fsdp_options *)(const void *)&older, &fsdp),
                     0);
    results_of_an_fsdp(fsdp);
    views_of_an_fsdp(fsdp);
    muster_fsdp_free(fsdp);
    newer.now.size = sizeof newer;
    memset(&planned, 0xff, sizeof planned);
    assert_int_equal(muster_fsdp_plan_sized(&units[0].now, unit_bytes, 1, parameter_bytes, &newer.now, 1, 1, 2,
                                            &planned.now, sizeof planned),
                     0);
    assert_true(planned.now.host_bytes > 0 && planned.added == 0);
    newer.added = 1;
    fsdp = NULL;
    assert_int_equal(muster_fsdp_create_sized(group, &units[0].now, unit_bytes, 1, parameter_bytes, &newer.now, &fsdp),
                     MUSTER_EUNSUPPORTED);
    parameters[1].added = 1;
    assert_int_equal(muster_fsdp_create_sized(group, &units[0].now, unit_bytes, 1, parameter_bytes, NULL, &fsdp),
                     MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "unit \"u\": "));
    parameters[1].added = 0;
    units[0].added = 1;
    assert_int_equal(muster_fsdp_create_sized(group, &units[0].now, unit_bytes, 1, parameter_bytes, NULL, &fsdp),
                     MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_fsdp_create_sized(group, &units[0].now, 0, 1, parameter_bytes, NULL, &fsdp), MUSTER_EINVAL);
    units[0].added = 0;
    assert_int_equal(muster_fsdp_create_sized(group, &units[0].now, unit_bytes, 1, 8, NULL, &fsdp), MUSTER_EINVAL);
    assert_null(fsdp);
}

static void samplers_and_snapshots(void **state) {
    (void)state;
    struct {
        size_t size;
        uint64_t sample_count;
    } older = {sizeof older, 10};
    struct muster_sampler *sampler = NULL;
    assert_int_equal(muster_sampler_create((const struct muster_sampler_options *)(const void *)&older, &sampler), 0);
    assert_true(muster_sampler_left(sampler) == 10);
    muster_sampler_free(sampler);

    char folder[] = "/tmp/muster-abi-XXXXXX", path[128];
    float one = 1, two = 2;
    int64_t epoch = 3;
    assert_non_null(mkdtemp(folder));
    NEWER(muster_tensor)
    tensors[2] = {{{"a", MUSTER_FLOAT32, 1, {1}, &one}, 0}, {{"b", MUSTER_FLOAT32, 1, {1}, &two}, 0}};
    struct muster_value values[] = {muster_value_integer("epoch", &epoch)};
    NEWER(muster_snapshot_state) newer = {MUSTER_SNAPSHOT_STATE(&tensors[0].now, 2, values, 1), 0};
    NEWER(muster_snapshot_options) options = {MUSTER_SNAPSHOT_OPTIONS_INIT, 0};
    newer.now.size = sizeof newer;
    newer.now.tensor_bytes = sizeof *tensors;
    options.now.size = sizeof options;
    assert_int_equal(muster_snapshot_save(folder, 5, &newer.now, &options.now), 0);
    one = two = 0;
    epoch = 0;
    NEWER(muster_snapshot_found) found;
    struct {
        int64_t step;
        uint64_t id;
    } older_found;
    memset(&found, 0xff, sizeof found);
    assert_int_equal(muster_snapshot_load_newest_sized(folder, &newer.now, &found.now, sizeof found), 0);
    assert_true(found.now.step == 5 && found.added == 0 && two == 2 && one == 1 && epoch == 3);
    assert_int_equal(muster_snapshot_find_sized(folder, INT64_MAX, (struct muster_snapshot_found *)(void *)&older_found,
                                                sizeof older_found),
                     0);
    assert_true(older_found.step == 5 && older_found.id == found.now.id);
    (void)snprintf(path, sizeof path, "%s/step-5-%016llx.safetensors", folder, (unsigned long long)found.now.id);
    if (access(path, F_OK) == 0) { /* its name is the business of another test */
        assert_int_equal(muster_safetensors_load_sized(path, &tensors[0].now, sizeof *tensors, 2), 0);
    }
    tensors[1].added = 1;
    assert_int_equal(muster_snapshot_save(folder, 6, &newer.now, NULL), MUSTER_EUNSUPPORTED);
    assert_int_equal(muster_snapshot_load_group(group, folder, &newer.now, NULL), MUSTER_EUNSUPPORTED);
    remove_folder(folder);
    assert_int_equal(access(folder, F_OK), -1);
}

/* A group of one that has failed by its own wish. */
static void failures(void **state) {
    (void)state;
    NEWER(muster_failure) newer;
    struct {
        int cause;
        char group[MUSTER_GROUP_NAME_MAX];
    } older;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *failed = NULL;
    options.name = "failed";
    assert_int_equal(muster_group_create_env(&options, &failed), 0);
    muster_group_abort(failed, "the test says so");
    memset(&newer, 0xff, sizeof newer);
    assert_int_equal(muster_group_failure_sized(failed, &newer.now, sizeof newer), MUSTER_EABORTED);
    assert_true(newer.now.cause == MUSTER_EABORTED && newer.now.rank == 0 && newer.now.pid == getpid() &&
                newer.added == 0);
    assert_true(newer.now.host[0] != '\0' && newer.now.call == 0 && newer.now.missing_count == 0);
    assert_int_equal(muster_last_failure_sized((struct muster_failure *)(void *)&older, sizeof older), 0);
    assert_int_equal(older.cause, MUSTER_EABORTED);
    assert_string_equal(older.group, "failed");
    assert_int_equal(muster_group_failure(group, &newer.now), MUSTER_OK);
    assert_true(newer.now.cause == MUSTER_OK && newer.now.rank == MUSTER_NO_RANK && newer.now.group[0] == '\0');
    muster_group_free(failed);
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
        cmocka_unit_test(group_options), cmocka_unit_test(store_options),
        cmocka_unit_test(ddp_structs),   cmocka_unit_test(layers_and_optimizers),
        cmocka_unit_test(fsdp_structs),  cmocka_unit_test(samplers_and_snapshots),
        cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, make_group, free_group);
}
