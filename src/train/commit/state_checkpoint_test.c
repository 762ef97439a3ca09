/* Checkpoints of a state (muster/state.h) that are saved while training goes on: what is saved is the committed state,
 * each rank a share of it; what falls due meanwhile is skipped; a failed save is everybody's news and nobody's end. */
#include <muster/state.h>

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/checkpoint.h>
#include <muster/collective.h>

#include "base/folder_test_support.h"
#include "train/background/slow_disk_test_support.h"
#include "train/commit/state_impl.h"
#include "train/commit/state_test_support.h"

enum { STEPS = 6, TENSORS = 3 + 2 * RANGES + 1 };

static char folder[64];

/* ---- what is saved ---- */

/* All that a checkpoint is to hold, where it is now. */
struct described {
    struct muster_tensor tensors[TENSORS];
    struct muster_snapshot_state state;
};

static struct muster_tensor block_tensor(const char *name, float *data, size_t count) {
    return (struct muster_tensor){.name = name, .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {count}, .data = data};
}

static void describe(struct rank *rank, struct model *model, struct described *out) {
    size_t remembered = muster_optimizer_tensor_count(model->optimizer);
    rank_check(rank, 3 + remembered <= TENSORS);
    out->tensors[0] = block_tensor("first", model->blocks[0], FIRST);
    out->tensors[1] = block_tensor("second", model->blocks[1], SECOND);
    out->tensors[2] = model->tensor;
    rank_check_code(rank, muster_optimizer_tensors(model->optimizer, &out->tensors[3]), 0);
    out->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(out->tensors, 3 + remembered, &model->value, 1);
}

/* What `run` has of one start. */
static bool start(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
                  const struct muster_background_options *options) {
    struct described described;
    bool is_started = false;
    describe(rank, model, &described);
    rank_check_code(rank, muster_state_start_checkpoint(state, group, folder, &described.state, options, &is_started),
                    0);
    return is_started;
}

static struct muster_background_statistics numbers_of(struct rank *rank, const struct muster_state *state) {
    struct muster_background_statistics numbers;
    rank_check_code(rank, muster_state_background_statistics(state, &numbers), 0);
    rank_check(rank,
               numbers.started == numbers.completed + numbers.failed + numbers.given_up + (numbers.is_running ? 1 : 0));
    return numbers;
}

/* A new job, without memory of the old one, loads step `step` and trains on. */
static void load_and_go_on(struct rank *rank, struct muster_group *group, int64_t step) {
    struct model model;
    struct described described;
    struct muster_checkpoint_found found;
    model_init(rank, &model);
    describe(rank, &model, &described);
    const struct muster_checkpoint_state state = MUSTER_CHECKPOINT_STATE(
        described.state.tensors, described.state.tensor_count, NULL, 0, described.state.values, 1);
    rank_check_code(rank, muster_checkpoint_load_newest(group, folder, &state, NULL, &found), 0);
    rank_check(rank, found.step == step && found.passed_over == 0 && found.part_count > 0);
    model_compare(rank, &model, step);
    while (model.step < STEPS) {
        rank_check_code(rank, model_step(&model, NULL), 0);
    }
    model_compare(rank, &model, STEPS);
    muster_optimizer_free(model.optimizer);
}

/* ---- jobs ---- */

/* A job of STEPS steps. after_step is called after each commit. */
struct job {
    void (*after_step)(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
                       const struct job *job);
    enum muster_background_overlap overlap;
    int64_t saved; /* the step that the folder has at the end */
};

static int run_job(struct rank *rank, void *argument) {
    const struct job *job = argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct muster_state *state = model_begin(rank, group, &model, -1);
    while (model.step < STEPS) {
        model_run(rank, group, &model, state, model.step + 1);
        job->after_step(rank, group, &model, state, job);
    }
    model_compare(rank, &model, STEPS);
    model_end(rank, group, &model, state);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    load_and_go_on(rank, group, job->saved);
    muster_group_free(group);
    return 0;
}

static int run_next_job(struct rank *rank, void *argument) {
    const struct job *job = argument;
    struct muster_group *group = rank_group(rank, NULL);
    load_and_go_on(rank, group, job->saved);
    muster_group_free(group);
    return 0;
}

static const struct ranks_options one_host = {.ranks_per_host = 0}, two_hosts = {.ranks_per_host = 2};

static void run_at(uint32_t size, const struct ranks_options *where, struct job job) {
    ranks_run_with(size, run_job, &job, where);
    ranks_run(size == 2 ? 3 : 2, run_next_job, &job);
    (void)folder_remove(folder);
}

/* ---- saves ---- */

/* Each step is saved when the one before has been. The program's own values change right after. */
static void save_each(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
                      const struct job *job) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    options.overlap = job->overlap;
    options.must_start = true;
    if (model->step > job->saved) {
        return;
    }
    rank_check(rank, start(rank, group, model, state, &options));
    rank_check(rank, numbers_of(rank, state).started == (uint64_t)model->step);
    float statistic = model->statistics[0];
    model->statistics[0] = -1;
    if (model->step == job->saved) {
        rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
        rank_check(rank, numbers_of(rank, state).completed == (uint64_t)job->saved);
        rank_check(rank, numbers_of(rank, state).last_step == job->saved);
        size_t all = muster_state_bytes(state), own = muster_state_background_bytes(state);
        rank_check(rank, job->overlap == MUSTER_BACKGROUND_OVERLAP_COPY ? own > 0 && own < all : own == 0);
    }
    model->statistics[0] = statistic;
}

static void the_committed_state_is_saved_wherever_it_runs(void **state) {
    (void)state;
    static const enum muster_background_overlap ways[] = {MUSTER_BACKGROUND_OVERLAP_COPY,
                                                          MUSTER_BACKGROUND_OVERLAP_WAIT};
    for (size_t way = 0; way < 2; way++) {
        const struct job job = {save_each, ways[way], 4};
        run_at(1, &one_host, job);
        run_at(3, &one_host, job);
        run_at(4, &two_hosts, job);
    }
}

/* Step 1 is saved through a shut gate. Steps are made meanwhile, and what falls due is skipped. */
static void train_meanwhile(struct rank *rank, struct muster_group *group, struct model *model,
                            struct muster_state *state, const struct job *job) {
    (void)job;
    if (model->step == 1) {
        state->disk = slow_disk_init(rank, true);
        rank_check(rank, start(rank, group, model, state, NULL));
        slow_disk_await();
    } else if (model->step < 5) {
        rank_check(rank, !start(rank, group, model, state, NULL));
        rank_check(rank, numbers_of(rank, state).is_running);
        rank_check(rank, numbers_of(rank, state).skipped == (uint64_t)model->step - 1);
        if (model->step == 4) {
            slow_disk_open();
            rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
            rank_check(rank, numbers_of(rank, state).completed == 1 && numbers_of(rank, state).last_step == 1);
        }
    }
}

static void training_goes_on_while_a_disk_stands_still(void **state) {
    (void)state;
    const struct job job = {.after_step = train_meanwhile, .saved = 1};
    run_at(3, &one_host, job);
    run_at(4, &two_hosts, job);
}

/* ---- without a copy ---- */

static void *open_gate_later(void *argument) {
    const struct muster_state *state = argument;
    const struct timespec pause = {.tv_nsec = 1000000};
    struct muster_background_statistics numbers;
    while (muster_state_background_statistics(state, &numbers) == 0 && numbers.waited_count == 0) {
        (void)nanosleep(&pause, NULL);
    }
    slow_disk_open();
    return NULL;
}

/* Step 2 is saved through a shut gate. Step 3 is written elsewhere, step 4 into the copy that is read: it waits, or the
 * save is given up. Step 4 is a commit alone, which copies. */
static void overlap(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
                    const struct job *job) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    bool gives_up = job->overlap == MUSTER_BACKGROUND_OVERLAP_GIVE_UP;
    static pthread_t opener;
    options.overlap = job->overlap;
    if (model->step == 1) {
        state->disk = slow_disk_init(rank, false);
        rank_check(rank, start(rank, group, model, state, &options));
        rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
    } else if (model->step == 2) {
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        slow.is_shut = true;
        rank_check(rank, start(rank, group, model, state, &options));
        slow_disk_await();
    } else if (model->step == 3) {
        rank_check(rank, numbers_of(rank, state).is_running && numbers_of(rank, state).waited_count == 0);
        rank_check(rank, pthread_create(&opener, NULL, open_gate_later, state) == 0);
    } else if (model->step == 4) {
        rank_check(rank, pthread_join(opener, NULL) == 0);
        rank_check(rank, numbers_of(rank, state).waited_count == 1 && numbers_of(rank, state).waited_ns > 0);
        rank_check_code(rank, muster_state_wait_checkpoint(state), gives_up ? MUSTER_ECANCELED : 0);
        rank_check(rank, numbers_of(rank, state).given_up == gives_up && numbers_of(rank, state).failed == 0);
        rank_check(rank, numbers_of(rank, state).last_step == (gives_up ? 1 : 2));
    }
}

static void without_a_copy_the_optimizer_waits_or_the_save_ends(void **state) {
    (void)state;
    run_at(3, &one_host, (struct job){overlap, MUSTER_BACKGROUND_OVERLAP_WAIT, 2});
    run_at(3, &one_host, (struct job){overlap, MUSTER_BACKGROUND_OVERLAP_GIVE_UP, 1});
}

/* A commit without a step copies the state into the copy that is read: it waits, too. */
static int commit_alone(struct rank *rank, void *argument) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct muster_state *state = model_begin(rank, group, &model, -1);
    pthread_t opener;
    (void)argument;
    options.overlap = MUSTER_BACKGROUND_OVERLAP_WAIT;
    state->disk = slow_disk_init(rank, true);
    rank_check(rank, start(rank, group, &model, state, &options));
    slow_disk_await();
    rank_check(rank, pthread_create(&opener, NULL, open_gate_later, state) == 0);
    for (int64_t step = 1; step <= 2; step++) {
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        rank_check_code(rank, muster_state_commit(state, step, &model.extra), 0);
    }
    rank_check(rank, pthread_join(opener, NULL) == 0);
    rank_check(rank, numbers_of(rank, state).waited_count == 1);
    rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
    model_end(rank, group, &model, state);
    muster_group_free(group);
    return 0;
}

static void a_commit_that_copies_waits_too(void **state) {
    (void)state;
    ranks_run(2, commit_alone, NULL);
    (void)folder_remove(folder);
}

/* ---- failures ---- */

/* The last rank's disk is full for one save. */
static void fill_a_disk(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
                        const struct job *job) {
    if (model->step == 1) {
        state->disk = slow_disk_init(rank, false);
    }
    if (model->step > job->saved) {
        return;
    }
    bool fails = model->step == 2;
    slow.error = fails && rank->rank + 1 == rank->size ? ENOSPC : 0;
    rank_check(rank, start(rank, group, model, state, NULL));
    rank_check_code(rank, muster_state_wait_checkpoint(state), fails ? MUSTER_ESYSTEM : 0);
    rank_check(rank, !fails || strstr(muster_detail(), "muster_state_wait_checkpoint: save step 2: rank 2: ") != NULL);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    struct muster_background_statistics numbers = numbers_of(rank, state);
    rank_check(rank, numbers.failed == (model->step > 1) && numbers.last_step == (fails ? 1 : model->step));
    rank_check(rank, (strstr(numbers.last_failure, "save step 2: rank 2: create ") != NULL) == fails);
}

static void a_failed_save_is_told_to_all_and_the_next_is_a_new_try(void **state) {
    (void)state;
    run_at(3, &one_host, (struct job){.after_step = fill_a_disk, .saved = 3});
}

/* ---- deaths ---- */

enum { MARK_GATE = 1 };

/* Step 1 is saved. While step 2 is, its files not yet made, rank 1 is killed. The others have step 2 in memory, and
 * step 1 on the disk. */
static int survive(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL), *smaller = NULL;
    struct model model;
    struct muster_checkpoint_found found;
    struct muster_state *state = model_begin(rank, group, &model, -1);
    (void)argument;
    state->disk = slow_disk_init(rank, false);
    model_run(rank, group, &model, state, 1);
    rank_check(rank, start(rank, group, &model, state, NULL));
    rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
    model_run(rank, group, &model, state, 2);
    slow.is_shut = rank->rank == 1;
    rank_check(rank, start(rank, group, &model, state, NULL));
    if (rank->rank == 1) {
        slow_disk_await();
        rank_mark(rank, MARK_GATE);
        _exit(0);
    }
    rank_check(rank, muster_state_wait_checkpoint(state) != 0);
    rank_check(rank, numbers_of(rank, state).failed == 1 && !numbers_of(rank, state).is_running);
    rank_await(rank, 1, MARK_GATE);
    rank_check_code(rank, muster_group_shrink(group, RANKS_PATIENCE_MS, &smaller), 0);
    muster_state_free(state);
    muster_optimizer_free(model.optimizer);
    muster_group_free(group);
    rank_check_code(rank, muster_checkpoint_find(folder, INT64_MAX, &found), 0);
    rank_check(rank, found.step == 1);
    state = model_begin(rank, smaller, &model, 2);
    model_run(rank, smaller, &model, state, 3);
    rank_check(rank, start(rank, smaller, &model, state, NULL));
    rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
    model_end(rank, smaller, &model, state);
    load_and_go_on(rank, smaller, 3);
    muster_group_free(smaller);
    return 0;
}

static void a_rank_that_dies_in_a_save_costs_that_save_alone(void **state) {
    (void)state;
    ranks_run(3, survive, NULL);
    (void)folder_remove(folder);
}

/* ---- mistakes ---- */

static void expect(struct rank *rank, int status, const char *sentence) {
    rank_check_code(rank, status, MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), sentence) != NULL);
}

static int make_mistakes(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct described now, before;
    struct muster_state *state = NULL;
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    struct muster_checkpoint_options checkpoint = MUSTER_CHECKPOINT_OPTIONS_INIT;
    int64_t step = 0;
    (void)argument;
    model_init(rank, &model);
    const struct muster_state_block blocks[2] = {{model.first, FIRST}, {model.second, SECOND}};
    rank_check_code(rank, muster_state_create(group, model.optimizer, blocks, 2, &model.extra, NULL, &state, &step), 0);
    model_follow(&model, state);
    describe(rank, &model, &now);
    expect(rank, muster_state_start_checkpoint(state, group, folder, &now.state, NULL, NULL), "no step has been");
    rank_check_code(rank, muster_state_wait_checkpoint(state), 0);
    rank_check(rank, numbers_of(rank, state).last_step == -1);
    rank_check_code(rank, muster_state_commit(state, 0, &model.extra), 0);
    expect(rank, muster_state_start_checkpoint(state, group, folder, &now.state, NULL, NULL),
           "tensor first lies where it was before the last commit");
    model_follow(&model, state);
    describe(rank, &model, &before);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, model_step(&model, state), 0);
    expect(rank, muster_state_start_checkpoint(state, group, folder, &before.state, NULL, NULL),
           "muster_state_commit() first");
    rank_check_code(rank, muster_state_commit(state, 1, &model.extra), 0);
    expect(rank, muster_state_start_checkpoint(state, group, folder, &before.state, NULL, NULL),
           "tensor first lies where it was before the last commit");
    model_follow(&model, state);
    describe(rank, &model, &now);
    expect(rank, muster_state_start_checkpoint(state, group, "", &now.state, NULL, NULL), "no folder");
    options.checkpoint = &checkpoint;
    checkpoint.keep = 0;
    expect(rank, muster_state_start_checkpoint(state, group, folder, &now.state, &options, NULL), "keep 0");
    checkpoint.keep = 1;
    options.overlap = (enum muster_background_overlap)3;
    expect(rank, muster_state_start_checkpoint(state, group, folder, &now.state, &options, NULL), "overlap 3");
    now.tensors[1].name = "first";
    expect(rank, muster_state_start_checkpoint(state, group, folder, &now.state, NULL, NULL), "first");
    expect(rank, muster_state_start_checkpoint(state, group, folder, NULL, NULL, NULL), "saved");
    expect(rank, muster_state_start_checkpoint(state, NULL, folder, &now.state, NULL, NULL), "group");
    expect(rank, muster_state_start_checkpoint(NULL, group, folder, &now.state, NULL, NULL), "state");
    expect(rank, muster_state_wait_checkpoint(NULL), "state");
    expect(rank, muster_state_background_statistics(state, NULL), "out");
    rank_check(rank, muster_state_background_bytes(NULL) == 0 && numbers_of(rank, state).started == 0);
    model_end(rank, group, &model, state);
    muster_group_free(group);
    return 0;
}

static void mistakes_get_a_sentence(void **state) {
    (void)state;
    ranks_run(2, make_mistakes, NULL);
}

/* ---- tests ---- */

static int folder_set_up(void **state) {
    const char *temporary = getenv("TMPDIR");
    (void)state;
    int length = snprintf(folder, sizeof folder, "%.40s/muster-state-XXXXXX", temporary ? temporary : "/tmp");
    return length < (int)sizeof folder && mkdtemp(folder) ? 0 : -1;
}

static int folder_tear_down(void **state) {
    (void)state;
    (void)folder_remove(folder);
    return 0;
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_committed_state_is_saved_wherever_it_runs),
        cmocka_unit_test(training_goes_on_while_a_disk_stands_still),
        cmocka_unit_test(without_a_copy_the_optimizer_waits_or_the_save_ends),
        cmocka_unit_test(a_commit_that_copies_waits_too),
        cmocka_unit_test(a_failed_save_is_told_to_all_and_the_next_is_a_new_try),
        cmocka_unit_test(a_rank_that_dies_in_a_save_costs_that_save_alone),
        cmocka_unit_test(mistakes_get_a_sentence),
    };
    return cmocka_run_group_tests(tests, folder_set_up, folder_tear_down);
}
