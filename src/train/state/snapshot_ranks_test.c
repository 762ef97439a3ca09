/* A job of real processes that dies in the middle of an epoch and goes on with another number of ranks, from the
 * snapshot that all agree on: every sample is trained on once, and the optimizer has taken every step. */
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/group/ranks_test_support.h"
#include "train/state/snapshot_io.h"

#include <muster/collective.h>
#include <muster/optimizer.h>
#include <muster/sampler.h>
#include <muster/snapshot.h>

enum { SAMPLES = 96, DIES_IN_STEP = 6, PATH_BYTES = 256 };

/* What a rank trains: a parameter whose gradient is 1 for each sample, and the list of samples seen. */
struct training {
    int64_t seen[SAMPLES]; /* how often, by all ranks */
    float parameter[1];
    int64_t epoch, consumed, step;
    struct muster_optimizer *optimizer;
    struct muster_sampler *sampler;
    struct muster_tensor tensors[2 + 2];
    struct muster_value values[3];
    struct muster_snapshot_state state;
};

static char top[PATH_BYTES / 2];

static void training_init(struct rank *rank, struct training *t) {
    struct muster_optimizer_parameter parameter = {"p", t->parameter, 1};
    struct muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    struct muster_sampler_options order = MUSTER_SAMPLER_OPTIONS_INIT;
    sgd.learning_rate = 1, sgd.momentum = 0.5;
    order.sample_count = SAMPLES, order.rank = rank->rank, order.world_size = rank->size, order.seed = 3;
    memset(t, 0, sizeof *t);
    rank_check_code(rank, muster_optimizer_create_sgd(&parameter, 1, &sgd, &t->optimizer), 0);
    rank_check_code(rank, muster_sampler_create(&order, &t->sampler), 0);
    t->tensors[0] = (struct muster_tensor){
        .name = "seen", .type = MUSTER_INT64, .dim_count = 1, .shape = {SAMPLES}, .data = t->seen};
    t->tensors[1] =
        (struct muster_tensor){.name = "p", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {1}, .data = t->parameter};
    muster_optimizer_tensors(t->optimizer, t->tensors + 2);
    t->values[0] = muster_value_integer("epoch", &t->epoch);
    t->values[1] = muster_value_integer("consumed", &t->consumed);
    t->values[2] = muster_value_integer("step", &t->step);
    t->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(t->tensors, 4, t->values, 3);
}

static void training_done(struct training *t) {
    muster_optimizer_free(t->optimizer);
    muster_sampler_free(t->sampler);
}

/* A life of a rank. mode: see die_and_go_on(). */
struct life {
    struct muster_group *group;
    struct training training;
    char folder[PATH_BYTES]; /* one for each "host" of two ranks, with the snapshots of its own; or one for all */
    bool saves;
};

/* Loads what there is, with `code`. */
static struct muster_snapshot_found life_begin(struct rank *rank, const char *mode, struct life *life, int code) {
    struct muster_snapshot_found found = {0};
    bool is_shared = mode[0] == 's';
    life->group = rank_group(rank, NULL);
    life->saves = is_shared ? rank->rank == 0 : rank->rank % 2 == 0;
    training_init(rank, &life->training);
    (void)snprintf(life->folder, sizeof life->folder, "%s/host%" PRIu32, top, is_shared ? 0 : rank->rank / 2);
    rank_check_code(rank, muster_snapshot_load_group(life->group, life->folder, &life->training.state, &found), code);
    return found;
}

static void life_end(struct life *life) {
    muster_group_free(life->group);
    training_done(&life->training);
}

/* One step of two samples a rank, and a snapshot. Fails when a peer has died. */
static int train_step(struct rank *rank, struct life *life) {
    struct training *t = &life->training;
    uint64_t samples[2];
    int64_t seen[SAMPLES] = {0};
    float gradient = 1;
    const float *gradients[] = {&gradient};
    size_t count = muster_sampler_take(t->sampler, samples, 2);
    for (size_t i = 0; i < count; i++) {
        seen[samples[i]]++;
    }
    int code = muster_all_reduce(life->group, seen, seen, SAMPLES, MUSTER_INT64, MUSTER_OP_SUM, NULL);
    for (size_t i = 0; i < SAMPLES; i++) {
        t->seen[i] += seen[i];
    }
    muster_optimizer_step(t->optimizer, gradients);
    t->step++;
    t->consumed = (int64_t)muster_sampler_consumed(t->sampler);
    code = code ? code : muster_snapshot_save_group(life->group, life->saves, life->folder, t->step, &t->state, NULL);
    rank_check(rank, code == 0 || muster_detail()[0] != '\0');
    return code;
}

static int first_life(struct rank *rank, void *argument) {
    struct life life;
    (void)life_begin(rank, argument, &life, MUSTER_ENOENT);
    const struct training *t = &life.training;
    int code = 0;
    while (code == 0) {
        rank_check(rank, t->step < DIES_IN_STEP);
        if (t->step + 1 == DIES_IN_STEP && rank->rank == 1) {
            (void)raise(SIGKILL);
        }
        code = train_step(rank, &life);
    }
    life_end(&life);
    return 0;
}

static int second_life(struct rank *rank, void *argument) {
    struct life life;
    struct muster_snapshot_found found = life_begin(rank, argument, &life, 0);
    struct training *t = &life.training;
    rank_check(rank, found.step == DIES_IN_STEP - 1 && t->step == found.step);
    muster_sampler_resume(t->sampler, t->epoch, (uint64_t)t->consumed);
    while (muster_sampler_left(t->sampler) > 0) {
        rank_check_code(rank, train_step(rank, &life), 0);
    }
    for (size_t i = 0; i < SAMPLES; i++) {
        rank_check(rank, t->seen[i] == 1);
    }
    /* p -= b, b = 1 + b / 2 from b = 0: after n steps p = -(2n - 2 + 2^(1-n)), exact in float. */
    float wanted = 0, momentum = 0;
    for (int64_t i = 0; i < t->step; i++) {
        momentum = 1 + momentum / 2;
        wanted -= momentum;
    }
    rank_check(rank, t->parameter[0] == wanted);
    life_end(&life);
    return 0;
}

static void remove_folders(void) {
    for (uint32_t host = 0; host < 4; host++) {
        char folder[PATH_BYTES];
        assert_true(str_format(folder, sizeof folder, "%s/host%" PRIu32, top, host));
        assert_true(folder_remove(folder) >= 0);
    }
    assert_int_equal(rmdir(top), 0);
}

/* mode: "shared", one folder; "local", one for each two ranks. 4 ranks consume 5 * 8 samples; the other 56 are dealt to
 * `second` ranks evenly. */
static void die_and_go_on(char *mode, uint32_t second) {
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-lives-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
    struct ranks *ranks = ranks_start(4, first_life, mode, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(ranks_wait(ranks, i), i == 1 ? RANKS_KILLED - SIGKILL : 0);
    }
    ranks_free(ranks);
    ranks_run(second, second_life, mode);
    remove_folders();
}

static void a_shared_folder_and_fewer_ranks(void **state) {
    (void)state;
    die_and_go_on("shared", 2);
}

static void a_shared_folder_and_more_ranks(void **state) {
    (void)state;
    die_and_go_on("shared", 7);
}

/* Ranks 4 to 6 are of hosts that have no snapshots. */
static void folders_of_hosts_and_new_hosts(void **state) {
    (void)state;
    die_and_go_on("local", 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_folder_and_fewer_ranks),
        cmocka_unit_test(a_shared_folder_and_more_ranks),
        cmocka_unit_test(folders_of_hosts_and_new_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
