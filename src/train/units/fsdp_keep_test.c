/* State that outlives its processes: jobs that end anywhere in a step, and go on in another life, are compared with one
 * process that was never disturbed. Lives are of the same processes, which hold the memory themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "train/memory/holder.h"
#include "train/units/fsdp_snapshot_test_support.h"

/* ---- hooks ---- */

static struct added added;

/* Goes on where the life before ended: at the job's first step. */
static int keep(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    int64_t step = 99;
    added_init(&added, 0);
    added.alphabet[0] = '\0';
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, NULL, &step), 0);
    if (job->first_step == 0) {
        rank_check(rank, step == -1);
        added_init(&added, 0);
        rank_check_code(rank, muster_fsdp_commit(fsdp, 0, &added.state), 0);
        return 0;
    }
    rank_check(rank, step == job->first_step);
    rank_check(rank, added.step == step && added.marks[4] == step && strcmp(added.alphabet, "abc") == 0);
    return 0;
}

static int commit(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                  struct muster_optimizer *optimizer) {
    (void)job;
    (void)optimizer;
    added_init(&added, added.step + 1);
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step, &added.state), 0);
    return 0;
}

/* Rank 1 is ended before it commits the job's last step. */
static int commit_but_the_last(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                               struct muster_optimizer *optimizer) {
    bool is_ended = rank->rank == 1 && added.step + 1 == job->steps;
    return is_ended ? 0 : commit(rank, job, fsdp, optimizer);
}

static int leave(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                 struct muster_optimizer *optimizer) {
    (void)rank;
    (void)job;
    (void)fsdp;
    (void)optimizer;
    return 1;
}

/* As if the launchers had been lost. */
static void forget(struct rank *rank) {
    static const char *const names[] = {"training/rank 0", "training/host ", "training/host host-0",
                                        "training/host host-1", "training/host host-2"};
    struct holder *holder = NULL;
    rank_check_code(rank, holder_open(&holder), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rank_check_code(rank, holder_drop(holder, names[i]), 0);
    }
    holder_close(holder);
}

/* ---- the same ranks ---- */

static int live_twice(struct rank *rank, void *argument) {
    struct job job = *(const struct job *)argument;
    if (job.environment) {
        rank_check(rank, putenv((char *)(uintptr_t)job.environment) == 0);
    }
    struct muster_group *group = rank_group(rank, NULL);
    for (int dies = 0; dies < 2; dies++) {
        struct job first = job, second = job;
        first.steps = SAVED;
        first.prepare = second.prepare = keep;
        first.after_step = dies ? commit_but_the_last : commit;
        first.conclude = leave;
        second.after_step = commit;
        second.first_step = dies && rank->size > 1 ? SAVED - 1 : SAVED;
        second.first_size = rank->size;
        second.steps = TRAINED;
        job_run(rank, &first, group);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        job_run(rank, &second, group);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        forget(rank);
    }
    muster_group_free(group);
    return 0;
}

static void run_twice(uint32_t size, const struct job *job) {
    ranks_run_with(size, live_twice, (void *)(uintptr_t)job, &job->ranks);
}

static void a_job_goes_on_wherever_it_runs(void **state) {
    (void)state;
    for (size_t i = 0; i < PLACES; i++) {
        struct job job = job_at(&places[i]);
        run_twice(places[i].size, &job);
    }
}

static void a_job_goes_on_however_it_trains(void **state) {
    (void)state;
    const size_t where[] = {ONE_HOST, TWO_HOSTS, HYBRID};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        const struct place *place = &places[where[i]];
        struct job job = job_at(place);
        job.frozen = 1u << 1 | 1u << 6;
        run_twice(place->size, &job);
        job.frozen = 0;
        job.options.compute_type = MUSTER_BFLOAT16;
        job.tolerance = 2e-2;
        run_twice(place->size, &job);
        job = job_at(place);
        job.before[0] = MUSTER_FSDP_NO_SYNC;
        job.before[1] = MUSTER_FSDP_ACCUMULATE;
        job.before_count = 2;
        job.tolerance = 4e-6;
        run_twice(place->size, &job);
        job = job_at(place);
        job.norm_max = 0.5;
        job.tolerance = 4e-6;
        run_twice(place->size, &job);
        job = job_at(place);
        job.options.find_unused = true;
        job.skipped = 2;
        run_twice(place->size, &job);
    }
}

/* ---- a host is lost ---- */

/* With hybrid sharding the other host has all of it; with full sharding half of it is gone. */
static int lose_a_host(struct rank *rank, void *argument) {
    const struct place *place = argument;
    bool is_hybrid = place->sharding == MUSTER_FSDP_HYBRID;
    struct muster_group *group = rank_group(rank, NULL);
    struct job first = job_at(place), second = next_job_at(place, place);
    first.prepare = second.prepare = keep;
    first.after_step = second.after_step = commit;
    first.conclude = leave;
    if (!is_hybrid) { /* from the beginning */
        second = job_at(place);
        second.prepare = keep;
        second.after_step = commit;
    }
    job_run(rank, &first, group);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank < 2) {
        forget(rank);
    }
    job_run(rank, &second, group);
    muster_group_free(group);
    return 0;
}

static void a_lost_host_is_replaced_where_another_has_its_state(void **state) {
    (void)state;
    const size_t where[] = {HYBRID, TWO_HOSTS};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        const struct place *place = &places[where[i]];
        ranks_run_with(place->size, lose_a_host, (void *)(uintptr_t)place, &place->ranks);
    }
}

/* ---- more ranks, and fewer ---- */

static int change_size(struct rank *rank, void *argument) {
    (void)argument;
    const uint32_t sizes[] = {4, 2, 3};
    struct muster_group *group = rank_group(rank, NULL), *some = NULL;
    uint32_t all = rank->size;
    /* The reference has no way to change twice, so the first life makes no step. */
    for (size_t i = 0; i + 1 < sizeof sizes / sizeof *sizes; i++) {
        for (size_t life = 0; life < 2; life++) {
            struct job job = JOB_INIT;
            uint32_t size = sizes[i + life];
            job.prepare = keep;
            job.after_step = commit;
            job.conclude = life == 0 ? leave : NULL;
            job.first_step = life == 0 ? 0 : SAVED;
            job.first_size = sizes[i];
            job.steps = life == 0 ? SAVED : TRAINED;
            rank_check_code(rank, muster_group_split(group, rank->rank < size ? 0 : -1, 0, NULL, &some), 0);
            if (some) {
                rank->size = size;
                job_run(rank, &job, some);
                rank->size = all;
            }
            muster_group_free(some);
            rank_check_code(rank, muster_barrier(group, NULL), 0);
        }
        forget(rank);
    }
    muster_group_free(group);
    return 0;
}

static void on_one_host_parts_get_other_owners(void **state) {
    (void)state;
    ranks_run(4, change_size, NULL);
}

/* ---- survivors ---- */

enum { MARK_WRITTEN = 1 };

/* The last rank, or the first, dies after it has written the job's last step and before it commits it. */
static int die_before_the_last(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                               struct muster_optimizer *optimizer) {
    const uint32_t *victim = job->context;
    if (rank->rank == *victim && added.step + 1 == job->steps) {
        rank_mark(rank, MARK_WRITTEN);
        _exit(0);
    }
    return commit(rank, job, fsdp, optimizer);
}

/* The others go on among themselves, with what they have in memory. */
static int survive(struct rank *rank, void *argument) {
    const uint32_t *victim = argument;
    struct muster_group *group = rank_group(rank, NULL), *smaller = NULL;
    struct job job = JOB_INIT;
    job.prepare = keep;
    job.after_step = die_before_the_last;
    job.conclude = leave;
    job.steps = SAVED;
    job.context = victim;
    job_run(rank, &job, group);
    rank_await(rank, *victim, MARK_WRITTEN);
    rank_check_code(rank, muster_group_shrink(group, RANKS_PATIENCE_MS, &smaller), 0);
    muster_group_free(group);
    job.after_step = commit;
    job.conclude = NULL;
    job.first_step = SAVED - 1;
    job.first_size = rank->size;
    job.steps = TRAINED;
    rank->rank = muster_group_rank(smaller);
    rank->size = muster_group_size(smaller);
    job_run(rank, &job, smaller);
    muster_group_free(smaller);
    return 0;
}

static void survivors_go_on_with_what_they_have(void **state) {
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim += 2) {
        ranks_run(3, survive, &victim);
    }
}

/* ---- mistakes ---- */

static int make_mistakes(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                         struct muster_optimizer *optimizer) {
    (void)job;
    struct muster_fsdp_keep_options options = MUSTER_FSDP_KEEP_OPTIONS_INIT;
    struct muster_fsdp_memory memory;
    struct added other;
    int64_t step = 0;
    added_init(&added, 0);
    added_init(&other, 0);
    other.values[0].name = "steps";
    rank_check_code(rank, muster_fsdp_commit(fsdp, 0, &added.state), MUSTER_EINVAL);
    options.name = "";
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, &options, &step), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, NULL, &step), 0);
    rank_check(rank, step == -1);
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, NULL, &step), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_commit(fsdp, -1, &added.state), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_commit(fsdp, 0, &other.state), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_commit(fsdp, 0, &added.state), 0);
    rank_check_code(rank, muster_fsdp_commit(fsdp, 1, &added.state), MUSTER_EINVAL); /* no step has been made */
    rank_check(rank, strstr(muster_detail(), "no step has been made since step 0") != NULL);
    rank_check_code(rank, muster_fsdp_load_newest(fsdp, optimizer, "/nonexistent", &added.state, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_load_newest_checkpoint(fsdp, optimizer, "/nonexistent", &added.state, NULL, NULL),
                    MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_memory(fsdp, &memory), 0);
    rank_check(rank, memory.kept_bytes >= memory.parameter_bytes + memory.state_bytes);
    rank_check(rank, memory.kept_bytes < memory.parameter_bytes + memory.state_bytes + (1u << 17));
    return 0;
}

/* After a step of the optimizer, before the commit. */
static int forget_to_commit(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                            struct muster_optimizer *optimizer) {
    (void)job;
    added_init(&added, added.step + 1);
    rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_EVALUATE), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "muster_fsdp_commit() first") != NULL);
    rank_check_code(rank, muster_fsdp_step(fsdp, optimizer, 1), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step - 1, &added.state), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step, &added.state), 0);
    rank_check_code(rank, muster_fsdp_step(fsdp, optimizer, 1), MUSTER_EINVAL);
    /* Without a step of the optimizer: the state is copied. */
    rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_EVALUATE), 0);
    rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
    added_init(&added, added.step + 1);
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step, &added.state), 0);
    return 0;
}

static void mistakes_get_a_sentence(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.prepare = make_mistakes;
    job.after_step = forget_to_commit;
    job_check(2, &job);
    job = job_at(&places[TWO_HOSTS]);
    job.prepare = make_mistakes;
    job.after_step = forget_to_commit;
    job_check(4, &job);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_goes_on_wherever_it_runs),
        cmocka_unit_test(a_job_goes_on_however_it_trains),
        cmocka_unit_test(a_lost_host_is_replaced_where_another_has_its_state),
        cmocka_unit_test(on_one_host_parts_get_other_owners),
        cmocka_unit_test(survivors_go_on_with_what_they_have),
        cmocka_unit_test(mistakes_get_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
