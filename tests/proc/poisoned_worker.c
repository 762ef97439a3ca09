/* A worker whose state goes bad: in the first attempt a NaN gets into step 7, which is committed. From then on the last
 * rank fails in each attempt that goes on from there, and the others because of it. A snapshot of step 5 is good.
 *
 *     poisoned_worker SNAPSHOTS [kill]
 *
 * It ends at step 10. With "kill", nothing goes bad, but rank 1 is killed in step 8 in the first five
 * attempts. Each rank says what it goes on from. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>
#include <muster/snapshot.h>
#include <muster/state.h>

enum { COUNT = 8, GOOD_STEP = 5, BAD_STEP = 7, LAST_STEP = 10, KILLS = 5 };

struct worker {
    struct muster_group *group;
    struct muster_state *state;
    const char *folder;
    bool is_killed;  /* rank 1 is, rather than that a NaN comes in */
    int64_t attempt; /* of rank 0's node: those of others may differ */
    int64_t step;
    float first[COUNT];
};

static void check(int code, const char *what) {
    if (code != MUSTER_OK) {
        (void)fprintf(stderr, "%s: %s: %s\n", what, muster_strerror(code), muster_detail());
        exit(3);
    }
}

static void snapshot(struct worker *w, bool saves) {
    float values[COUNT];
    struct muster_tensor tensor = {
        .name = "weight", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {COUNT}, .data = values};
    struct muster_value step = muster_value_integer("step", &w->step);
    struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(&tensor, 1, &step, 1);
    if (saves) {
        memcpy(values, muster_state_block_data(w->state, 0), sizeof values);
        if (muster_group_rank(w->group) == 0) {
            check(muster_snapshot_save(w->folder, w->step, &state, NULL), "save");
        }
        return;
    }
    int code = muster_snapshot_load_group(w->group, w->folder, &state, NULL);
    if (code == MUSTER_ENOENT) {
        w->step = 0;
        return;
    }
    check(code, "load");
    memcpy((void *)(uintptr_t)muster_state_block_data(w->state, 0), values,
           sizeof values); /* nothing is committed yet */
}

static void go_on(struct worker *w) {
    bool is_there = w->step >= 0;
    if (!is_there) {
        snapshot(w, false);
        check(muster_state_commit(w->state, w->step, NULL), "commit");
    }
    printf("rank %u, attempt %" PRId64 ": from step %" PRId64 " %s\n", muster_group_rank(w->group), w->attempt, w->step,
           is_there      ? "in memory"
           : w->step > 0 ? "of the snapshot"
                         : "of nothing");
    (void)fflush(stdout);
    check(muster_barrier(w->group, NULL), "barrier"); /* all have said it */
}

static void make_step(struct worker *w) {
    float gradient[COUNT];
    const float *gradients[] = {gradient}, *weight = muster_state_block_data(w->state, 0);
    for (int i = 0; i < COUNT; i++) {
        gradient[i] = weight[i] - (float)i;
    }
    if (w->step == BAD_STEP) {
        check(muster_barrier(w->group, NULL), "barrier"); /* all have committed it */
    }
    if (w->step == BAD_STEP && w->is_killed && w->attempt < KILLS && muster_group_rank(w->group) == 1) {
        (void)raise(SIGKILL);
    }
    if (isnan(weight[0]) && muster_group_rank(w->group) == muster_group_size(w->group) - 1) {
        (void)fprintf(stderr, "the loss is not a number\n");
        exit(1);
    }
    w->step++;
    if (w->step == BAD_STEP && w->attempt == 0 && !w->is_killed) {
        gradient[0] = NAN;
    }
    check(muster_all_reduce(w->group, gradient, gradient, COUNT, MUSTER_FLOAT32, MUSTER_OP_AVERAGE, NULL), "average");
    check(muster_state_step(w->state, gradients, NULL), "step");
    check(muster_state_commit(w->state, w->step, NULL), "commit");
    if (w->step == GOOD_STEP) {
        snapshot(w, true);
    }
}

int main(int argc, char **argv) {
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    if (argc < 2 || !attempt) {
        (void)fprintf(stderr, "usage: muster run ... poisoned_worker SNAPSHOTS [kill]\n");
        return 2;
    }
    struct worker w = {.folder = argv[1], .is_killed = argc > 2, .attempt = strtoll(attempt, NULL, 10)};
    struct muster_optimizer *optimizer = NULL;
    const struct muster_optimizer_parameter parameter = {"weight", w.first, COUNT};
    const struct muster_state_block block = {w.first, COUNT};
    check(muster_group_create_env(NULL, &w.group), "join the group");
    check(muster_broadcast(w.group, &w.attempt, 1, MUSTER_INT64, 0, NULL), "share the attempt's number");
    check(muster_optimizer_create_adamw(&parameter, 1, NULL, &optimizer), "make an optimizer");
    check(muster_state_create(w.group, optimizer, &block, 1, NULL, NULL, &w.state, &w.step), "keep the state");
    go_on(&w);
    while (w.step < LAST_STEP) {
        make_step(&w);
    }
    printf("rank %u: done, weight %.3f\n", muster_group_rank(w.group), (double)muster_state_block_data(w.state, 0)[1]);
    muster_state_free(w.state);
    muster_optimizer_free(optimizer);
    muster_group_free(w.group);
    return 0;
}
