/* Checkpoints that are saved while training goes on: what is saved is the committed state, however the thread and the
 * steps interleave; what falls due meanwhile is skipped; a failed save is everybody's news and nobody's end. The disk
 * is the system's, but for a gate in its way, which the test opens. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/checkpoint.h>
#include <muster/collective.h>

#include "base/folder_test_support.h"
#include "train/background/slow_disk_test_support.h"
#include "train/memory/holder.h"
#include "train/units/fsdp_impl.h"
#include "train/units/fsdp_snapshot_test_support.h"

static struct added added;

static void use_slow_disk(struct rank *rank, struct muster_fsdp *fsdp, bool is_shut) {
    fsdp->disk = slow_disk_init(rank, is_shut);
}

/* ---- steps ---- */

static struct muster_background_statistics numbers_of(struct rank *rank, const struct muster_fsdp *fsdp) {
    struct muster_background_statistics numbers;
    rank_check_code(rank, muster_fsdp_background_statistics(fsdp, &numbers), 0);
    rank_check(rank,
               numbers.started == numbers.completed + numbers.failed + numbers.given_up + (numbers.is_running ? 1 : 0));
    return numbers;
}

static int keep(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    int64_t step = 99;
    (void)job;
    added_init(&added, 0);
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, NULL, &step), 0);
    rank_check(rank, step == -1);
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, NULL, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_commit(fsdp, 0, &added.state), 0);
    return 0;
}

static void commit(struct rank *rank, struct muster_fsdp *fsdp) {
    added_init(&added, added.step + 1);
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step, &added.state), 0);
}

static void forget_memory(struct rank *rank) {
    static const char *const names[] = {"training/rank 0", "training/host ", "training/host host-0",
                                        "training/host host-1", "training/host host-2"};
    struct holder *holder = NULL;
    rank_check_code(rank, holder_open(&holder), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rank_check_code(rank, holder_drop(holder, names[i]), 0);
    }
    holder_close(holder);
}

/* A job that trains to its end with saves, and one that goes on from the newest of them, compared with one process. */
struct pair {
    struct job first, second;
};

static int run_pair(struct rank *rank, void *argument) {
    const struct pair *pair = argument;
    struct muster_group *group = rank_group(rank, NULL);
    job_run(rank, &pair->first, group);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    forget_memory(rank);
    job_run(rank, &pair->second, group);
    muster_group_free(group);
    return 0;
}

static int load(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    struct muster_checkpoint_found found;
    struct added loaded, wanted;
    added_init(&loaded, 0);
    added_init(&wanted, job->first_step);
    rank_check_code(rank, muster_fsdp_load_newest_checkpoint(fsdp, optimizer, folder, &loaded.state, NULL, &found), 0);
    rank_check(rank, found.step == job->first_step && found.passed_over == 0 && loaded.step == found.step);
    rank_check(rank, memcmp(loaded.marks, wanted.marks, sizeof wanted.marks) == 0);
    return 0;
}

static void run_at(const struct place *place, job_hook *after_step, const void *context, uint32_t saved) {
    struct pair pair = {.first = job_at(place), .second = next_job_at(place, place)};
    pair.first.prepare = keep;
    pair.first.after_step = after_step;
    pair.first.context = context;
    pair.first.steps = TRAINED;
    pair.second.prepare = load;
    pair.second.first_step = saved;
    pair.second.steps = TRAINED;
    ranks_run_with(place->size, run_pair, &pair, &place->ranks);
    (void)folder_remove(folder);
}

/* ---- what is saved ---- */

/* Each step is saved when the one before has been, and the first of them is still not read when the next is made. */
static int save_each(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                     struct muster_optimizer *optimizer) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    bool is_started = false;
    (void)optimizer;
    options.overlap = *(const enum muster_background_overlap *)job->context;
    commit(rank, fsdp);
    if (added.step > SAVED) {
        return 0;
    }
    options.must_start = true;
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, &options, &is_started), 0);
    rank_check(rank, is_started && numbers_of(rank, fsdp).started == (uint64_t)added.step);
    added.marks[0] ^= 1; /* the program's own: it was copied */
    if (added.step == SAVED) {
        rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
        rank_check(rank, numbers_of(rank, fsdp).completed == SAVED && numbers_of(rank, fsdp).last_step == SAVED);
    }
    return 0;
}

static void the_committed_state_is_saved_wherever_it_runs(void **state) {
    (void)state;
    static const enum muster_background_overlap ways[] = {MUSTER_BACKGROUND_OVERLAP_COPY,
                                                          MUSTER_BACKGROUND_OVERLAP_WAIT};
    for (size_t i = 0; i < PLACES; i++) {
        for (size_t way = 0; way < 2; way++) {
            run_at(&places[i], save_each, &ways[way], SAVED);
        }
    }
}

/* ---- while steps are made ---- */

/* Step 1 is saved through a shut gate. Steps 2 and 3 are made meanwhile, and what falls due is skipped. */
static int train_meanwhile(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                           struct muster_optimizer *optimizer) {
    bool is_started = true;
    (void)job;
    (void)optimizer;
    commit(rank, fsdp);
    if (added.step == 1) {
        struct muster_fsdp_memory memory;
        use_slow_disk(rank, fsdp, true);
        rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, NULL, &is_started), 0);
        rank_check(rank, is_started);
        slow_disk_await();
        rank_check_code(rank, muster_fsdp_memory(fsdp, &memory), 0);
        rank_check(rank, memory.background_bytes > 0 && memory.background_bytes < memory.rank_bytes);
    } else if (added.step < 5) {
        rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, NULL, &is_started), 0);
        rank_check(rank, !is_started && numbers_of(rank, fsdp).is_running);
        rank_check(rank, numbers_of(rank, fsdp).skipped == (uint64_t)added.step - 1);
        if (added.step == 4) {
            slow_disk_open();
            rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
            rank_check(rank, numbers_of(rank, fsdp).completed == 1 && numbers_of(rank, fsdp).last_step == 1);
        }
    }
    return 0;
}

static void training_goes_on_while_a_disk_stands_still(void **state) {
    (void)state;
    const size_t where[] = {THREE_RANKS, TWO_HOSTS};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        run_at(&places[where[i]], train_meanwhile, NULL, 1);
    }
}

/* Without a copy the step after next waits, or the save is given up. */
static void *open_gate_later(void *argument) {
    const struct muster_fsdp *fsdp = argument;
    const struct timespec pause = {.tv_nsec = 1000000};
    struct muster_background_statistics numbers;
    while (muster_fsdp_background_statistics(fsdp, &numbers) == 0 && numbers.waited_count == 0) {
        (void)nanosleep(&pause, NULL);
    }
    slow_disk_open();
    return NULL;
}

static int overlap(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                   struct muster_optimizer *optimizer) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    static pthread_t opener;
    (void)optimizer;
    options.overlap = *(const enum muster_background_overlap *)job->context;
    bool gives_up = options.overlap == MUSTER_BACKGROUND_OVERLAP_GIVE_UP;
    commit(rank, fsdp);
    if (added.step == 1) {
        use_slow_disk(rank, fsdp, false);
        rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, &options, NULL), 0);
        rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
        rank_check_code(rank, muster_barrier(fsdp->mesh.group, NULL), 0);
    } else if (added.step == 2) {
        slow.is_shut = true;
        rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, &options, NULL), 0);
        slow_disk_await();
    } else if (added.step == 3) { /* was written elsewhere; step 4 is not */
        rank_check(rank, numbers_of(rank, fsdp).is_running && numbers_of(rank, fsdp).waited_count == 0);
        rank_check(rank, pthread_create(&opener, NULL, open_gate_later, fsdp) == 0);
    } else if (added.step == 4) {
        rank_check(rank, pthread_join(opener, NULL) == 0);
        rank_check(rank, numbers_of(rank, fsdp).waited_count == 1 && numbers_of(rank, fsdp).waited_ns > 0);
        rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), gives_up ? MUSTER_ECANCELED : 0);
        rank_check(rank, numbers_of(rank, fsdp).given_up == gives_up && numbers_of(rank, fsdp).failed == 0);
        rank_check(rank, numbers_of(rank, fsdp).last_step == (gives_up ? 1 : 2));
    }
    return 0;
}

static void without_a_copy_the_optimizer_waits_or_the_save_ends(void **state) {
    (void)state;
    static const enum muster_background_overlap ways[] = {MUSTER_BACKGROUND_OVERLAP_WAIT,
                                                          MUSTER_BACKGROUND_OVERLAP_GIVE_UP};
    for (size_t way = 0; way < 2; way++) {
        run_at(&places[THREE_RANKS], overlap, &ways[way], way == 0 ? 2 : 1);
    }
}

/* A limit of a byte a second: the save is under way until somebody waits for it. */
static int crawl(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                 struct muster_optimizer *optimizer) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    struct muster_checkpoint_options checkpoint = MUSTER_CHECKPOINT_OPTIONS_INIT;
    (void)job;
    (void)optimizer;
    commit(rank, fsdp);
    checkpoint.bytes_per_second = 1;
    options.checkpoint = &checkpoint;
    if (added.step == 1) {
        use_slow_disk(rank, fsdp, false);
        slow.io.direct_bytes = 64; /* which is written at least */
        rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, &options, NULL), 0);
    } else if (added.step == 4) {
        rank_check(rank, numbers_of(rank, fsdp).is_running); /* the optimizer may have waited for the copy */
        rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
        rank_check(rank, numbers_of(rank, fsdp).last_step == 1);
    }
    return 0;
}

static void a_limit_is_lifted_when_somebody_waits(void **state) {
    (void)state;
    run_at(&places[TWO_HOSTS], crawl, NULL, 1);
}

/* ---- failures ---- */

/* The last rank's disk is full for one save. */
static int fill_a_disk(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                       struct muster_optimizer *optimizer) {
    (void)job;
    (void)optimizer;
    commit(rank, fsdp);
    if (added.step == 1) {
        use_slow_disk(rank, fsdp, false);
    }
    if (added.step > 3) {
        return 0;
    }
    slow.error = added.step == 2 && rank->rank + 1 == rank->size ? ENOSPC : 0;
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, NULL, NULL), 0);
    rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), added.step == 2 ? MUSTER_ESYSTEM : 0);
    rank_check_code(rank, muster_barrier(fsdp->mesh.group, NULL), 0);
    struct muster_background_statistics numbers = numbers_of(rank, fsdp);
    rank_check(rank, numbers.failed == (added.step > 1) && numbers.last_step == (added.step == 2 ? 1 : added.step));
    rank_check(rank, (strstr(numbers.last_failure, "save step 2: rank 2: create ") != NULL) == (added.step == 2));
    return 0;
}

static void a_failed_save_is_told_to_all_and_the_next_is_a_new_try(void **state) {
    (void)state;
    run_at(&places[THREE_RANKS], fill_a_disk, NULL, 3);
}

/* ---- deaths ---- */

enum { MARK_GATE = 1 };

/* Step 1 is saved. While step 2 is, its files not yet made, rank 1 is killed. */
static int die_in_a_save(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                         struct muster_optimizer *optimizer) {
    (void)job;
    (void)optimizer;
    commit(rank, fsdp);
    if (added.step == 1) {
        use_slow_disk(rank, fsdp, false);
    }
    slow.is_shut = added.step == 2 && rank->rank == 1;
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, NULL, NULL), 0);
    if (added.step == 1) {
        rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
        rank_check_code(rank, muster_barrier(fsdp->mesh.group, NULL), 0);
        return 0;
    }
    if (rank->rank == 1) {
        slow_disk_await();
        rank_mark(rank, MARK_GATE);
        _exit(0);
    }
    rank_check(rank, muster_fsdp_wait_checkpoint(fsdp) != 0);
    rank_check(rank, numbers_of(rank, fsdp).failed == 1 && !numbers_of(rank, fsdp).is_running);
    return 0;
}

static int leave(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                 struct muster_optimizer *optimizer) {
    (void)rank;
    (void)job;
    (void)fsdp;
    (void)optimizer;
    return 1;
}

/* The survivors have step 2 in memory, and step 1 on the disk. Nothing of the save that died holds them up. */
static int go_on(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                 struct muster_optimizer *optimizer) {
    int64_t step = 0;
    struct muster_checkpoint_found found;
    (void)job;
    rank_check_code(rank, muster_checkpoint_find(folder, INT64_MAX, &found), 0);
    rank_check(rank, found.step == 1);
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, NULL, &step), 0);
    rank_check(rank, step == 2 && added.step == 2);
    return 0;
}

static int save_next(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                     struct muster_optimizer *optimizer) {
    (void)job;
    (void)optimizer;
    commit(rank, fsdp);
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, NULL, NULL), 0);
    rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
    rank_check_code(rank, muster_barrier(fsdp->mesh.group, NULL), 0);
    rank_check(rank, numbers_of(rank, fsdp).last_step == added.step);
    return 0;
}

static int survive(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL), *smaller = NULL;
    struct job job = JOB_INIT;
    (void)argument;
    job.prepare = keep;
    job.after_step = die_in_a_save;
    job.conclude = leave;
    job.steps = 2;
    job_run(rank, &job, group);
    rank_await(rank, 1, MARK_GATE);
    rank_check_code(rank, muster_group_shrink(group, RANKS_PATIENCE_MS, &smaller), 0);
    muster_group_free(group);
    job.prepare = go_on;
    job.after_step = save_next;
    job.conclude = NULL;
    job.first_step = 2;
    job.first_size = rank->size;
    job.steps = TRAINED;
    rank->rank = muster_group_rank(smaller);
    rank->size = muster_group_size(smaller);
    job_run(rank, &job, smaller);
    muster_group_free(smaller);
    return 0;
}

static void a_rank_that_dies_in_a_save_costs_that_save_alone(void **state) {
    (void)state;
    ranks_run(3, survive, NULL);
    (void)folder_remove(folder);
}

/* ---- mistakes ---- */

static int make_mistakes(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                         struct muster_optimizer *optimizer) {
    struct muster_background_options options = MUSTER_BACKGROUND_OPTIONS_INIT;
    struct muster_checkpoint_options checkpoint = MUSTER_CHECKPOINT_OPTIONS_INIT;
    struct added other;
    options.checkpoint = &checkpoint;
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, NULL, NULL, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "no step has been committed") != NULL);
    rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
    rank_check(rank, numbers_of(rank, fsdp).last_step == -1);
    rank_check_code(rank, keep(rank, job, fsdp, optimizer), 0);
    added_init(&other, 0);
    other.values[0].name = "steps";
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &other.state, NULL, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, "", &added.state, NULL, NULL), MUSTER_EINVAL);
    checkpoint.keep = 0;
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, &options, NULL), MUSTER_EINVAL);
    checkpoint.keep = 1;
    options.overlap = (enum muster_background_overlap)3;
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, &options, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_start_checkpoint(NULL, folder, &added.state, NULL, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_wait_checkpoint(NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_background_statistics(fsdp, NULL), MUSTER_EINVAL);
    rank_check(rank, numbers_of(rank, fsdp).started == 0);
    return 0;
}

static int forget_to_commit(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                            struct muster_optimizer *optimizer) {
    (void)job;
    (void)optimizer;
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, &added.state, NULL, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "muster_fsdp_commit() first") != NULL);
    commit(rank, fsdp);
    return 0;
}

static void mistakes_get_a_sentence(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.prepare = make_mistakes;
    job.after_step = forget_to_commit;
    job_check(2, &job);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_committed_state_is_saved_wherever_it_runs),
        cmocka_unit_test(training_goes_on_while_a_disk_stands_still),
        cmocka_unit_test(without_a_copy_the_optimizer_waits_or_the_save_ends),
        cmocka_unit_test(a_limit_is_lifted_when_somebody_waits),
        cmocka_unit_test(a_failed_save_is_told_to_all_and_the_next_is_a_new_try),
        cmocka_unit_test(a_rank_that_dies_in_a_save_costs_that_save_alone),
        cmocka_unit_test(mistakes_get_a_sentence),
    };
    return cmocka_run_group_tests(tests, folders_set_up, folders_tear_down);
}
