/* A kept state (muster/state.h) whose statistics are on a GPU, on the double of the driver: they are copied at each
 * commit, found again, and saved in the background as they were in the call. Blocks must be on the host. */
#include <muster/state.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/checkpoint.h>
#include <muster/collective.h>

#include "base/folder_test_support.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/nccl/device_ranks_test_support.h"
#include "comm/nccl/nccl_double_test_support.h"
#include "train/commit/state_test_support.h"

enum { RANKS = 3, STEPS = 6 };

static char folder[64];

/* The model's statistics on the GPU; `last` is what they were last given. */
struct statistics {
    float *memory, last[STATISTICS];
};

static void begin_device(struct rank *rank, struct statistics *s) {
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    unsigned long long address = 0;
    rank_check_code(rank, device_open(rank->rank, &device), 0);
    rank_check_code(rank, device_enter(&device, &previous), 0);
    rank_check(rank, device.cuda->memory_allocate(&address, sizeof s->last) == CUDA_OK);
    s->memory = (float *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

/* After the group, whose engine may have memory there as well. */
static void end_device(struct rank *rank, struct statistics *s) {
    rank_check(rank, cuda_library_if_open()->memory_free(device_address(s->memory)) == CUDA_OK);
    rank_check(rank, cuda_double_live() == 0);
}

/* The default stream gives them their new values some time later. */
static void update_late(struct rank *rank, struct statistics *s, const struct model *model) {
    const struct cuda_library *cuda = cuda_library_if_open();
    rank_check(rank, cuda->stream_synchronize(NULL) == CUDA_OK); /* `last` is free */
    memcpy(s->last, model->statistics, sizeof s->last);
    rank_check(rank, cuda->set_bytes(device_address(s->memory), 0xff, sizeof s->last, NULL) == CUDA_OK);
    rank_check(rank, cuda->copy_to_device(device_address(s->memory), s->last, sizeof s->last, NULL) == CUDA_OK);
}

static void check_contents(struct rank *rank, const struct statistics *s, const struct model *model) {
    rank_check(rank, cuda_library_if_open()->stream_synchronize(NULL) == CUDA_OK);
    const float *there = cuda_double_contents(device_address(s->memory), sizeof s->last);
    for (size_t i = 0; i < STATISTICS; i++) {
        rank_check(rank, there[i] == model->statistics[i]);
    }
}

/* As model_begin(), with the statistics on the GPU. */
static struct muster_state *begin(struct rank *rank, struct muster_group *group, struct model *model,
                                  struct statistics *s, int64_t expected) {
    struct muster_state *state = NULL;
    int64_t step = 99;
    model_init(rank, model);
    model->tensor.data = s->memory;
    const struct muster_state_block blocks[2] = {{model->first, FIRST}, {model->second, SECOND}};
    update_late(rank, s, model);
    rank_check_code(rank, muster_state_create(group, model->optimizer, blocks, 2, &model->extra, NULL, &state, &step),
                    0);
    rank_check(rank, step == expected);
    model_follow(model, state);
    if (step < 0) {
        rank_check_code(rank, muster_state_commit(state, 0, &model->extra), 0);
        model_follow(model, state);
    } else {
        memcpy(model->statistics, cuda_double_contents(device_address(s->memory), sizeof s->last), sizeof s->last);
    }
    model_compare(rank, model, step < 0 ? 0 : step);
    return state;
}

static int make_step(struct rank *rank, struct muster_group *group, struct model *model, struct statistics *s,
                     struct muster_state *state) {
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, model_step(model, state), 0);
    update_late(rank, s, model);
    int code = muster_state_commit(state, model->step, &model->extra);
    if (code == 0) {
        model_follow(model, state);
    }
    return code;
}

/* ---- commits ---- */

static int live_twice(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    struct statistics s;
    struct model model;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "2000", 1);
    begin_device(rank, &s);
    struct muster_state *state = begin(rank, group, &model, &s, -1);
    while (model.step < 3) {
        rank_check_code(rank, make_step(rank, group, &model, &s, state), 0);
    }
    model_end(rank, group, &model, state);
    state = begin(rank, group, &model, &s, 3);
    while (model.step < STEPS) {
        rank_check_code(rank, make_step(rank, group, &model, &s, state), 0);
    }
    model_compare(rank, &model, STEPS);
    check_contents(rank, &s, &model);
    model_end(rank, group, &model, state);
    muster_group_free(group);
    end_device(rank, &s);
    return 0;
}

static void statistics_on_a_device_are_found_again(void **state) {
    (void)state;
    ranks_run(1, live_twice, NULL);
    ranks_run(RANKS, live_twice, NULL);
}

/* The third copy of all is that of step 2: its commit fails, may be made again, and nothing is lost. */
static int fail_once(struct rank *rank, void *argument) {
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_CUDA", "error:cuMemcpyDtoHAsync_v2:3:700", 1); /* before the first call of the driver */
    struct muster_group *group = rank_group(rank, NULL);
    struct statistics s;
    struct model model;
    begin_device(rank, &s);
    struct muster_state *state = begin(rank, group, &model, &s, -1);
    rank_check_code(rank, make_step(rank, group, &model, &s, state), 0);
    rank_check_code(rank, make_step(rank, group, &model, &s, state), MUSTER_ESYSTEM);
    rank_check(rank, strstr(muster_detail(), "muster_state_commit: tensor statistics: copy from the GPU: "
                                             "CUDA_ERROR_ILLEGAL_ADDRESS (as the double says)"));
    rank_check_code(rank, muster_state_commit(state, model.step, &model.extra), 0);
    model_follow(&model, state);
    model_compare(rank, &model, 2);
    model_end(rank, group, &model, state);
    state = begin(rank, group, &model, &s, 2);
    model_end(rank, group, &model, state);
    muster_group_free(group);
    end_device(rank, &s);
    return 0;
}

static void a_commit_whose_copy_fails_may_be_made_again(void **state) {
    (void)state;
    ranks_run(2, fail_once, NULL);
}

/* ---- in the background ---- */

enum { TENSORS = 3 + 2 * RANGES + 1 };

static struct muster_tensor block_tensor(const char *name, float *data, size_t count) {
    return (struct muster_tensor){.name = name, .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {count}, .data = data};
}

static struct muster_snapshot_state describe(struct rank *rank, struct model *model, struct muster_tensor *out) {
    size_t remembered = muster_optimizer_tensor_count(model->optimizer);
    rank_check(rank, 3 + remembered <= TENSORS);
    out[0] = block_tensor("first", model->blocks[0], FIRST);
    out[1] = block_tensor("second", model->blocks[1], SECOND);
    out[2] = model->tensor;
    rank_check_code(rank, muster_optimizer_tensors(model->optimizer, &out[3]), 0);
    return (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(out, 3 + remembered, &model->value, 1);
}

/* The statistics change as soon as the call has returned. What is saved is what they were when the group's stream had
 * done its work of before. */
static int save_behind(struct rank *rank, void *argument) {
    struct device_rank d;
    struct statistics s;
    struct model model, loaded;
    struct muster_tensor tensors[TENSORS];
    bool is_started = false;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "2000", 1);
    device_rank_start(rank, &d);
    begin_device(rank, &s);
    struct muster_state *state = begin(rank, d.group, &model, &s, -1);
    rank_check_code(rank, make_step(rank, d.group, &model, &s, state), 0);
    update_late(rank, &s, &model);
    struct muster_snapshot_state saved = describe(rank, &model, tensors);
    rank_check_code(rank, muster_state_start_checkpoint(state, d.group, folder, &saved, NULL, &is_started), 0);
    rank_check(rank, is_started);
    rank_check(rank, nccl_double_live() == 1); /* the thread's group has none */
    memset(cuda_double_contents(device_address(s.memory), sizeof s.last), 0xee, sizeof s.last);
    rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
    model_init(rank, &loaded);
    saved = describe(rank, &loaded, tensors);
    const struct muster_checkpoint_state all =
        MUSTER_CHECKPOINT_STATE(saved.tensors, saved.tensor_count, NULL, 0, saved.values, 1);
    rank_check_code(rank, muster_checkpoint_load_newest(d.group, folder, &all, NULL, NULL), 0);
    model_compare(rank, &loaded, 1);
    muster_optimizer_free(loaded.optimizer);
    model_end(rank, d.group, &model, state);
    rank_check(rank, cuda_library_if_open()->memory_free(device_address(s.memory)) == CUDA_OK);
    device_rank_end(&d);
    rank_check(rank, cuda_double_live() == 0);
    return 0;
}

static void a_checkpoint_has_what_a_device_had_in_the_call(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/muster-state-device-%d", (int)getpid());
    ranks_run(2, save_behind, NULL);
    assert_int_equal(folder_remove(folder), 2 + 2);
}

/* ---- mistakes ---- */

static int keep_blocks(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    struct statistics s;
    struct model model;
    struct muster_state *state = NULL;
    int64_t step = 0;
    (void)argument;
    begin_device(rank, &s);
    model_init(rank, &model);
    const struct muster_state_block blocks[2] = {{model.first, FIRST}, {s.memory, STATISTICS}};
    rank_check_code(rank, muster_state_create(group, model.optimizer, blocks, 2, &model.extra, NULL, &state, &step),
                    MUSTER_EUNSUPPORTED);
    rank_check(rank,
               strstr(muster_detail(), "muster_state_create: block 1 is in memory of the GPU: the blocks of a kept "
                                       "state must be in memory of the host"));
    muster_optimizer_free(model.optimizer);
    muster_group_free(group);
    end_device(rank, &s);
    return 0;
}

static void blocks_on_a_device_are_refused(void **state) {
    (void)state;
    ranks_run(2, keep_blocks, NULL);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_on_a_device_are_found_again),
        cmocka_unit_test(a_commit_whose_copy_fails_may_be_made_again),
        cmocka_unit_test(a_checkpoint_has_what_a_device_had_in_the_call),
        cmocka_unit_test(blocks_on_a_device_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
