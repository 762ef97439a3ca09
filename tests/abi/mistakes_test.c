/* A user's mistakes: NULL and indices out of range, in every public call that could meet them. Each is an error with a
 * sentence, none the end of the process. (Questions that give a value have no code: questions_test.c.) A world of one
 * rank, through the public interface of the shared library. */
#include <muster/muster.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct muster_group *group;

/* Leaves another sentence behind, so that each mistake has to write its own. */
static void spoil_detail(void) {
    struct muster_store *store = NULL;
    (void)muster_store_open_file("/nowhere/at/all", 1, 1000, &store);
}

#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        spoil_detail();                                                                                                \
        assert_int_equal((call), MUSTER_EINVAL);                                                                       \
        assert_null(strstr(muster_detail(), "nowhere"));                                                               \
        assert_true(muster_detail()[0] != '\0');                                                                       \
    } while (0)

static void of_groups(void **state) {
    (void)state;
    struct muster_group *out = NULL;
    void *memory = NULL;
    const uint32_t ranks[] = {0};
    REFUSED(muster_group_create_env(NULL, NULL));
    REFUSED(muster_group_create_store(NULL, 0, 1, NULL, &out));
    REFUSED(muster_group_create_file(NULL, 0, 1, NULL, &out));
    REFUSED(muster_group_create_file("/tmp/x", 0, 1, NULL, NULL));
    REFUSED(muster_group_create_tcp("127.0.0.1", 1, 1, 1, NULL, &out));
    REFUSED(muster_group_create_tcp("127.0.0.1", 1, 0, 1, NULL, NULL));
    REFUSED(muster_group_subset(NULL, ranks, 1, NULL, &out));
    REFUSED(muster_group_subset(group, NULL, 1, NULL, &out));
    REFUSED(muster_group_subset(group, ranks, 1, NULL, NULL));
    REFUSED(muster_group_split(NULL, 0, 0, NULL, &out));
    REFUSED(muster_group_split(group, 0, 0, NULL, NULL));
    REFUSED(muster_group_shrink(NULL, 1000, &out));
    REFUSED(muster_group_shrink(group, 1000, NULL));
    REFUSED(muster_group_status(NULL));
    REFUSED(muster_alloc(NULL, 1, &memory));
    REFUSED(muster_alloc(group, 1, NULL));
    assert_true(muster_group_rank(NULL) == MUSTER_NO_RANK);
    assert_true(muster_group_size(NULL) == 0);
    assert_true(strcmp(muster_group_name(NULL), "") == 0);
    assert_true(muster_group_host_count(NULL) == 0);
    assert_true(muster_group_local_rank(NULL) == MUSTER_NO_RANK);
    assert_true(muster_group_local_size(NULL) == 0);
    assert_true(muster_group_root_rank(NULL, 0) == MUSTER_NO_RANK);
    assert_true(muster_group_root_rank(group, 1) == MUSTER_NO_RANK);
    assert_true(muster_group_host_of(group, 7) == MUSTER_NO_RANK);
    muster_group_abort(NULL, NULL);
    muster_group_free(NULL);
    muster_free(NULL, NULL);
    muster_free(group, NULL);
    assert_int_equal(muster_group_status(group), 0);
}

static void of_collectives(void **state) {
    (void)state;
    float one = 1;
    size_t counts[] = {1};
    struct muster_work *work = NULL;
    REFUSED(muster_barrier(NULL, NULL));
    REFUSED(muster_monitored_barrier(NULL, 1000));
    REFUSED(muster_all_reduce(NULL, &one, &one, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL));
    REFUSED(muster_all_reduce(group, NULL, &one, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL));
    REFUSED(muster_all_reduce(group, &one, NULL, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL));
    REFUSED(muster_all_reduce(group, &one, &one, 1, (enum muster_type)99, MUSTER_OP_SUM, NULL));
    REFUSED(muster_all_reduce(group, &one, &one, 1, MUSTER_FLOAT32, (enum muster_reduction)99, NULL));
    REFUSED(muster_scan(NULL, &one, &one, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL));
    REFUSED(muster_scan(group, &one, NULL, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL));
    REFUSED(muster_scan(group, &one, &one, 1, MUSTER_FLOAT32, MUSTER_OP_AVERAGE, NULL));
    REFUSED(muster_exscan(NULL, &one, &one, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL));
    REFUSED(muster_exscan(group, NULL, &one, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL));
    REFUSED(muster_broadcast(group, &one, 1, MUSTER_FLOAT32, 1, NULL));
    REFUSED(muster_broadcast(group, NULL, 1, MUSTER_FLOAT32, 0, NULL));
    REFUSED(muster_all_gather_v(group, &one, &one, NULL, MUSTER_FLOAT32, NULL));
    REFUSED(muster_all_to_all_v(group, &one, counts, &one, NULL, MUSTER_FLOAT32, NULL));
    REFUSED(muster_send(NULL, &one, 1, MUSTER_FLOAT32, 0, 0, NULL));
    REFUSED(muster_send(group, &one, 1, MUSTER_FLOAT32, 5, 0, NULL));
    REFUSED(muster_receive(group, NULL, 1, MUSTER_FLOAT32, MUSTER_ANY_RANK, 0, NULL, NULL));
    REFUSED(muster_coalesce_begin(NULL));
    REFUSED(muster_coalesce_end(NULL, NULL));
    REFUSED(muster_stop_requested(NULL, NULL));
    assert_int_equal(muster_work_wait(NULL), 0);
    assert_int_equal(muster_work_wait(&work), 0);
    assert_true(muster_work_done(NULL));
    muster_work_free(NULL);
    muster_work_free(&work);
    size_t index = 7;
    REFUSED(muster_work_wait_any(NULL, 1, 0, &index));
    REFUSED(muster_work_wait_any(&work, 1, 0, NULL));
    REFUSED(muster_work_wait_all(NULL, 1, 0));
    assert_int_equal(muster_work_wait_any(&work, 1, 0, &index), 0); /* of no handle: none */
    assert_int_equal(index, 1);
    assert_int_equal(muster_work_wait_any(NULL, 0, -1, &index), 0);
    assert_int_equal(index, 0);
    assert_int_equal(muster_work_wait_all(&work, 1, 0), 0);
}

static void of_stores(void **state) {
    (void)state;
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *store = NULL, *view = NULL;
    struct muster_store_value value = {0};
    const char *const keys[] = {"k"};
    int64_t number = 0;
    bool yes = false;
    options.is_host = true;
    options.bind_host = "127.0.0.1";
    REFUSED(muster_store_open_tcp(NULL, &store));
    REFUSED(muster_store_open_tcp(&options, NULL));
    REFUSED(muster_store_open_file(NULL, 1, 1000, &store));
    REFUSED(muster_store_open_env(1000, NULL));
    assert_int_equal(muster_store_open_tcp(&options, &store), 0);
    REFUSED(muster_store_prefix(NULL, "p", &view));
    REFUSED(muster_store_prefix(store, NULL, &view));
    REFUSED(muster_store_prefix(store, "p", NULL));
    REFUSED(muster_store_set(NULL, "k", "v", 1));
    REFUSED(muster_store_set(store, NULL, "v", 1));
    REFUSED(muster_store_get(store, "k", 0, NULL));
    REFUSED(muster_store_get(store, NULL, 0, &value));
    REFUSED(muster_store_add(store, "k", 1, NULL));
    REFUSED(muster_store_append(store, NULL, "v", 1));
    REFUSED(muster_store_compare_set(store, "k", NULL, 0, "v", 1, NULL));
    REFUSED(muster_store_delete(store, "k", NULL));
    REFUSED(muster_store_check(store, NULL, 1, &yes));
    REFUSED(muster_store_check(store, keys, 1, NULL));
    REFUSED(muster_store_wait(NULL, keys, 1, 0));
    REFUSED(muster_store_multi_set(store, keys, NULL, 1));
    REFUSED(muster_store_num_keys(NULL, &number));
    REFUSED(muster_store_num_keys(store, NULL));
    REFUSED(muster_store_list_keys(store, NULL, NULL));
    REFUSED(muster_store_queue_push(store, NULL, "v", 1));
    REFUSED(muster_store_queue_pop(store, "q", 0, NULL));
    REFUSED(muster_store_queue_length(NULL, "q", &number));
    REFUSED(muster_store_barrier(store, NULL, 1, 1000));
    assert_int_equal(muster_store_port(NULL), 0);
    muster_store_value_free(NULL);
    muster_store_close(NULL);
    muster_store_close(store);
}

static void of_ddp(void **state) {
    (void)state;
    float data[4] = {0};
    const struct muster_ddp_parameter parameters[] = {{"w", MUSTER_FLOAT32, 4, data, NULL}};
    struct muster_ddp_statistics numbers;
    struct muster_ddp *ddp = NULL;
    bool stepped = false;
    REFUSED(muster_ddp_create(NULL, parameters, 1, NULL, 0, NULL, &ddp));
    REFUSED(muster_ddp_create(group, NULL, 1, NULL, 0, NULL, &ddp));
    REFUSED(muster_ddp_create(group, parameters, 1, NULL, 1, NULL, &ddp));
    REFUSED(muster_ddp_create(group, parameters, 1, NULL, 0, NULL, NULL));
    assert_int_equal(muster_ddp_create(group, parameters, 1, NULL, 0, NULL, &ddp), 0);
    assert_true(muster_ddp_gradient(ddp, 7) == NULL);
    assert_true(muster_ddp_gradient(NULL, 0) == NULL);
    assert_true(!muster_ddp_was_used(ddp, 1));
    REFUSED(muster_ddp_ready(ddp, 0));
    REFUSED(muster_ddp_begin(NULL));
    REFUSED(muster_ddp_begin_no_sync(NULL));
    REFUSED(muster_ddp_ready(NULL, 0));
    REFUSED(muster_ddp_finish(NULL));
    REFUSED(muster_ddp_shadow(NULL, &stepped));
    REFUSED(muster_ddp_shadow(ddp, NULL));
    REFUSED(muster_ddp_rebind(ddp, NULL));
    REFUSED(muster_ddp_zero_gradients(NULL));
    REFUSED(muster_ddp_statistics(ddp, NULL));
    REFUSED(muster_ddp_statistics(NULL, &numbers));
    muster_ddp_free(NULL);
    muster_ddp_free(ddp);
}

static void of_fsdp(void **state) {
    (void)state;
    const struct muster_fsdp_parameter parameters[] = {{.name = "w", .count = 4}};
    const struct muster_fsdp_unit units[] = {{"u", parameters, 1}}, empty[] = {{"u", NULL, 1}};
    struct muster_fsdp_options zeroed = {0};
    struct muster_fsdp_view view;
    struct muster_fsdp_memory memory;
    struct muster_fsdp *fsdp = NULL;
    struct muster_optimizer *optimizer = NULL;
    REFUSED(muster_fsdp_create(NULL, units, 1, NULL, &fsdp));
    REFUSED(muster_fsdp_create(group, NULL, 1, NULL, &fsdp));
    REFUSED(muster_fsdp_create(group, empty, 1, NULL, &fsdp));
    REFUSED(muster_fsdp_create(group, units, 1, NULL, NULL));
    REFUSED(muster_fsdp_create(group, units, 1, &zeroed, &fsdp));
    assert_non_null(strstr(muster_detail(), "MUSTER_FSDP_OPTIONS_INIT"));
    REFUSED(muster_fsdp_plan(units, 1, NULL, 1, 1, 2, NULL));
    REFUSED(muster_fsdp_plan(NULL, 1, NULL, 1, 1, 2, &memory));
    assert_int_equal(muster_fsdp_create(group, units, 1, NULL, &fsdp), 0);
    REFUSED(muster_fsdp_begin(NULL, MUSTER_FSDP_STEP));
    REFUSED(muster_fsdp_acquire(fsdp, 0, MUSTER_FSDP_FORWARD, NULL));
    REFUSED(muster_fsdp_acquire(fsdp, 1, MUSTER_FSDP_FORWARD, &view));
    REFUSED(muster_fsdp_release(fsdp, 0, MUSTER_FSDP_FORWARD));
    REFUSED(muster_fsdp_finish(fsdp));
    REFUSED(muster_fsdp_shadow(fsdp, NULL));
    REFUSED(muster_fsdp_optimizer(fsdp, NULL, NULL, 1, &optimizer));
    REFUSED(muster_fsdp_step(fsdp, NULL, 1));
    REFUSED(muster_fsdp_squared_norm(fsdp, NULL));
    REFUSED(muster_fsdp_range(fsdp, 1, NULL));
    REFUSED(muster_fsdp_memory(fsdp, NULL));
    REFUSED(muster_fsdp_statistics(fsdp, NULL));
    assert_true(muster_fsdp_range_count(NULL) == 0);
    assert_true(muster_fsdp_offset(fsdp, 1) == SIZE_MAX);
    muster_fsdp_free(NULL);
    muster_fsdp_free(fsdp);
}

static void of_steps(struct muster_optimizer *optimizer) {
    const struct muster_optimizer_range ranges[] = {{"w", NULL, 0, 0}};
    const struct muster_optimizer_group groups[] = {{NULL, NULL, NULL, NULL}};
    struct muster_optimizer *other = NULL;
    const struct muster_optimizer_memory memory = MUSTER_OPTIMIZER_MEMORY_INIT;
    const struct muster_optimizer_memory zeroed = {0, NULL, NULL, NULL};
    struct muster_optimizer_step_options step = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    const float *const gradients[] = {NULL};
    const size_t counts[] = {1};
    double number = 0;
    REFUSED(muster_optimizer_create(NULL, 1, groups, 1, &other));
    REFUSED(muster_optimizer_create(ranges, 1, NULL, 1, &other));
    REFUSED(muster_optimizer_create(ranges, 1, groups, 1, &other));
    REFUSED(muster_optimizer_create(ranges, 1, groups, 1, NULL));
    REFUSED(muster_optimizer_step_into(NULL, gradients, NULL));
    REFUSED(muster_optimizer_step_into(optimizer, NULL, NULL));
    step.out = &zeroed;
    REFUSED(muster_optimizer_step_into(optimizer, gradients, &step));
    assert_non_null(strstr(muster_detail(), "MUSTER_OPTIMIZER_MEMORY_INIT"));
    REFUSED(muster_optimizer_move(NULL, &memory));
    REFUSED(muster_optimizer_move(optimizer, NULL));
    REFUSED(muster_optimizer_move(optimizer, &zeroed));
    REFUSED(muster_optimizer_set_group_learning_rate(NULL, 0, 1));
    assert_true(muster_optimizer_group_learning_rate(NULL, 0) == 0);
    REFUSED(muster_squared_norm(NULL, NULL, counts, 1, &number));
    REFUSED(muster_squared_norm(NULL, gradients, NULL, 1, &number));
    REFUSED(muster_squared_norm(NULL, gradients, counts, 1, NULL));
}

static void of_layers_and_optimizers(void **state) {
    (void)state;
    struct muster_syncbn_options norm = MUSTER_SYNCBN_OPTIONS_INIT;
    struct muster_syncbn *layer = NULL;
    float data[4] = {0};
    const struct muster_optimizer_parameter parameters[] = {{"w", data, 4}};
    struct muster_optimizer *optimizer = NULL;
    norm.channels = 2;
    REFUSED(muster_syncbn_create(NULL, &norm, &layer));
    REFUSED(muster_syncbn_create(group, NULL, &layer));
    REFUSED(muster_syncbn_create(group, &norm, NULL));
    assert_int_equal(muster_syncbn_create(group, &norm, &layer), 0);
    REFUSED(muster_syncbn_forward(NULL, data, 1, 2, data));
    REFUSED(muster_syncbn_forward(layer, NULL, 1, 2, data));
    REFUSED(muster_syncbn_backward(NULL, data, data, data, NULL, NULL));
    REFUSED(muster_syncbn_evaluate(layer, data, 1, 2, NULL));
    muster_syncbn_free(layer);
    REFUSED(muster_optimizer_create_sgd(NULL, 1, NULL, &optimizer));
    REFUSED(muster_optimizer_create_adamw(parameters, 1, NULL, NULL));
    struct muster_adamw_options zeroed = {0};
    REFUSED(muster_optimizer_create_adamw(parameters, 1, &zeroed, &optimizer));
    assert_non_null(strstr(muster_detail(), "MUSTER_ADAMW_OPTIONS_INIT"));
    assert_int_equal(muster_optimizer_create_adadelta(parameters, 1, NULL, &optimizer), 0);
    REFUSED(muster_optimizer_step(NULL, NULL));
    REFUSED(muster_optimizer_step(optimizer, NULL));
    REFUSED(muster_optimizer_set_learning_rate(NULL, 1));
    REFUSED(muster_optimizer_set_learning_rate(optimizer, -1));
    assert_true(muster_optimizer_learning_rate(NULL) == 0);
    assert_true(muster_optimizer_tensor_count(NULL) == 0);
    REFUSED(muster_optimizer_tensors(optimizer, NULL));
    of_steps(optimizer);
    muster_optimizer_free(optimizer);
    muster_optimizer_free(NULL);
    const struct muster_schedule schedule = MUSTER_SCHEDULE_INIT;
    double rate = 0;
    REFUSED(muster_schedule_rate(NULL, 0, &rate));
    REFUSED(muster_schedule_rate(&schedule, 0, NULL));
}

static void of_samplers_and_snapshots(void **state) {
    (void)state;
    struct muster_sampler *sampler = NULL;
    struct muster_snapshot_found found;
    const struct muster_snapshot_state nothing = MUSTER_SNAPSHOT_STATE_INIT, zeroed = {0};
    struct muster_snapshot_state lists = MUSTER_SNAPSHOT_STATE_INIT;
    uint64_t index = 0;
    REFUSED(muster_sampler_create(NULL, &sampler));
    REFUSED(muster_sampler_set_epoch(NULL, 0));
    REFUSED(muster_sampler_resume(NULL, 0, 0));
    assert_true(muster_sampler_epoch(NULL) < 0);
    assert_true(muster_sampler_consumed(NULL) == 0);
    assert_true(muster_sampler_left(NULL) == 0);
    assert_true(muster_sampler_take(NULL, &index, 1) == 0);
    REFUSED(muster_snapshot_save(NULL, 1, &nothing, NULL));
    REFUSED(muster_snapshot_save("/tmp", 1, NULL, NULL));
    REFUSED(muster_snapshot_save("/tmp", 1, &zeroed, NULL));
    REFUSED(muster_snapshot_save("/tmp", -1, &nothing, NULL));
    lists.tensor_count = 1;
    REFUSED(muster_snapshot_save("/tmp", 1, &lists, NULL));
    lists.tensor_count = 0;
    lists.value_count = 1;
    REFUSED(muster_snapshot_load("/tmp", 1, 0, &lists));
    REFUSED(muster_snapshot_find(NULL, 1, &found));
    REFUSED(muster_snapshot_find("/tmp", 1, NULL));
    REFUSED(muster_snapshot_load_newest(NULL, &nothing, &found));
    char folder[] = "/tmp/muster-mistakes-XXXXXX";
    assert_non_null(mkdtemp(folder));
    REFUSED(muster_snapshot_save_group(NULL, true, folder, 1, &nothing, NULL));
    assert_int_equal(rmdir(folder), 0); /* nothing was written before it was refused */
    REFUSED(muster_snapshot_load_group(group, NULL, &nothing, &found));
    REFUSED(muster_safetensors_load(NULL, NULL, 0));
    REFUSED(muster_safetensors_load("/tmp/x", NULL, 1));
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
        cmocka_unit_test(of_groups),
        cmocka_unit_test(of_collectives),
        cmocka_unit_test(of_stores),
        cmocka_unit_test(of_ddp),
        cmocka_unit_test(of_fsdp),
        cmocka_unit_test(of_layers_and_optimizers),
        cmocka_unit_test(of_samplers_and_snapshots),
    };
    return cmocka_run_group_tests(tests, make_group, free_group);
}
