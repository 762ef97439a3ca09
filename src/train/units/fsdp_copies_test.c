/* Copies on peer hosts: jobs that lose a host, or whose hosts change places, go on from a copy, and end with the bits
 * of one process that was never disturbed. Lives are of the same processes, which hold the memory themselves. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "base/str.h"
#include "train/memory/holder.h"
#include "train/memory/state_region.h"
#include "train/peers/peer_copies_impl.h"
#include "train/units/fsdp_snapshot_test_support.h"

static struct added added;
static uint64_t every = 1;
static int64_t copied; /* the newest step that is known to be copied on this rank */

/* ---- hooks ---- */

static struct muster_fsdp_copy_statistics numbers_of(struct rank *rank, const struct muster_fsdp *fsdp) {
    struct muster_fsdp_copy_statistics numbers;
    rank_check_code(rank, muster_fsdp_copy_statistics(fsdp, &numbers), 0);
    return numbers;
}

/* Whatever this rank has started it has whole; the others wait for theirs, too. */
static void await_copy(struct rank *rank, const struct muster_fsdp *fsdp) {
    struct muster_fsdp_copy_statistics numbers = numbers_of(rank, fsdp);
    while (numbers.completed < numbers.started) {
        rank_check(rank, numbers.failed == 0);
        (void)poll(NULL, 0, 1);
        numbers = numbers_of(rank, fsdp);
    }
    rank_check(rank, numbers.started == 0 || (numbers.age_ns >= 0 && numbers.last_step >= 0));
    copied = numbers.last_step;
}

static void commit_step(struct rank *rank, struct muster_fsdp *fsdp, int64_t step) {
    added_init(&added, step);
    rank_check_code(rank, muster_fsdp_commit(fsdp, step, &added.state), 0);
    await_copy(rank, fsdp);
}

/* context: what the note says, or NULL where the committed memory is to be found. */
static int keep(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    struct muster_fsdp_keep_options options = MUSTER_FSDP_KEEP_OPTIONS_INIT;
    struct muster_fsdp_memory memory;
    const char *wanted = job->context;
    int64_t step = 99;
    options.copies_every = every;
    added_init(&added, 0);
    added.alphabet[0] = '\0';
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, &options, &step), 0);
    rank_check_code(rank, muster_fsdp_memory(fsdp, &memory), 0);
    rank_check(rank, memory.peer_bytes > 0 && memory.rank_bytes > memory.peer_bytes);
    const char *note = muster_fsdp_keep_note(fsdp);
    rank_check(rank, wanted ? strstr(note, wanted) != NULL : note[0] == '\0');
    if (job->first_step == 0) {
        rank_check(rank, step == -1);
        commit_step(rank, fsdp, 0);
        rank_check(rank, copied == 0); /* the first is copied, whatever the number of steps between two */
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
    commit_step(rank, fsdp, added.step + 1);
    return 0;
}

/* Rank 1 is ended before it commits the job's last step. */
static int commit_but_the_last(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                               struct muster_optimizer *optimizer) {
    bool is_ended = rank->rank == 1 && added.step + 1 == job->steps;
    return is_ended ? 0 : commit(rank, job, fsdp, optimizer);
}

/* Rank 2's host is told to end after the job's last step. What has a copy already is not copied again. */
static int commit_and_hand_over(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                                struct muster_optimizer *optimizer) {
    (void)optimizer;
    added_init(&added, added.step + 1);
    rank_check_code(rank, muster_fsdp_hand_over(fsdp), MUSTER_EINVAL); /* not committed */
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step, &added.state), 0);
    if (added.step == job->steps) {
        for (int i = 0; i < 2; i++) {
            rank_check_code(rank, muster_fsdp_hand_over(fsdp), 0);
            rank_check(rank, numbers_of(rank, fsdp).last_step == added.step);
        }
        rank_check(rank, numbers_of(rank, fsdp).started <= 2);
    }
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

/* ---- the memory ---- */

static void drop(struct rank *rank, const char *what) {
    struct holder *holder = NULL;
    char name[64];
    rank_check_code(rank, holder_open(&holder), 0);
    (void)str_format(name, sizeof name, "training/%s", what);
    rank_check_code(rank, holder_drop(holder, name), 0);
    holder_close(holder);
}

/* As if its launcher had been lost. */
static void forget(struct rank *rank) {
    const char *host = getenv("MUSTER_HOST_ID");
    char name[64];
    drop(rank, "rank 0");
    (void)str_format(name, sizeof name, "host %s", host ? host : "");
    drop(rank, name);
    (void)str_format(name, sizeof name, "peer %s 0", host ? host : "");
    drop(rank, name);
}

/* A bit of this rank's own share in that slot flips; or the program has written a number over the slot's step. */
static void damage(struct rank *rank, size_t slot, bool is_wild) {
    struct holder *holder = NULL;
    struct state_region region;
    char name[64];
    int fd = -1;
    (void)str_format(name, sizeof name, "training/peer %s 0", getenv("MUSTER_HOST_ID"));
    rank_check_code(rank, holder_open(&holder), 0);
    rank_check_code(rank, holder_get(holder, name, &fd), 0);
    rank_check_code(rank, state_region_adopt(fd, 0, &region), 0);
    size_t bytes = region.segment.bytes - SEGMENT_HEADER_BYTES, page = 4096, room = (bytes - page) / 4;
    if (is_wild) {
        ((struct peer_table *)region.memory)->slots[slot].step = INT64_MAX;
    } else {
        ((char *)region.memory)[page + 2 * slot * room + 100] ^= 1;
    }
    state_region_free(&region);
    (void)close(fd);
    holder_close(holder);
}

/* ---- lives ---- */

struct lives {
    const struct place *place;
    job_hook *after_step; /* in the first life */
    uint64_t every;
    uint32_t lost_from, lost; /* ranks whose host is lost */
    uint32_t damaged;         /* slot of the others that is damaged, from 1; 0: none */
    bool is_wild;             /* its step alone */
    uint32_t from;            /* the step of the second life */
    const char *note;         /* what it says */
    bool swaps;               /* ranks come in the opposite order */
};

static int live(struct rank *rank, void *argument) {
    const struct lives *lives = argument;
    struct muster_group *group = rank_group(rank, NULL), *second_group = group;
    struct job first = job_at(lives->place), second = next_job_at(lives->place, lives->place);
    every = lives->every;
    first.prepare = second.prepare = keep;
    first.after_step = lives->after_step;
    second.after_step = commit;
    first.conclude = leave;
    second.first_step = lives->from;
    second.context = lives->note;
    job_run(rank, &first, group);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    bool is_lost = rank->rank >= lives->lost_from && rank->rank < lives->lost_from + lives->lost;
    if (is_lost) {
        forget(rank);
    } else if (lives->damaged > 0) {
        damage(rank, lives->damaged - 1, lives->is_wild);
    }
    if (lives->swaps) {
        rank_check_code(rank, muster_group_split(group, 0, -(int32_t)rank->rank, NULL, &second_group), 0);
        rank->rank = muster_group_rank(second_group);
    }
    job_run(rank, &second, second_group);
    if (second_group != group) {
        muster_group_free(second_group);
    }
    muster_group_free(group);
    return 0;
}

static void run(const struct lives *lives) {
    ranks_run_with(lives->place->size, live, (void *)(uintptr_t)lives, &lives->place->ranks);
}

static const char note[] = "the committed state of a host is gone: this is step ";

/* ---- tests ---- */

static void a_job_goes_on_from_the_copy_of_a_lost_host(void **state) {
    (void)state;
    const size_t where[] = {TWO_HOSTS, THREE_HOSTS};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        const struct place *place = &places[where[i]];
        uint32_t each = place->ranks.ranks_per_host;
        for (uint32_t host = 0; host < place->size / each; host++) {
            struct lives lives = {.place = place, .after_step = commit, .every = 1, .from = SAVED, .note = note};
            lives.lost_from = host * each;
            lives.lost = each;
            run(&lives);
            lives.every = 2; /* of steps 0 and 2 */
            lives.from = SAVED - 1;
            run(&lives);
            lives.after_step = commit_but_the_last; /* which no copy is made of */
            run(&lives);
        }
    }
}

static void what_is_handed_over_is_the_last_step(void **state) {
    (void)state;
    struct lives lives = {
        .place = &places[TWO_HOSTS], .after_step = commit_and_hand_over, .every = 99, .from = SAVED, .note = note};
    lives.lost_from = 2;
    lives.lost = 2;
    run(&lives);
}

static void committed_memory_that_is_whole_is_newer(void **state) {
    (void)state;
    const struct lives lives = {.place = &places[TWO_HOSTS], .after_step = commit, .every = 2, .from = SAVED};
    run(&lives);
}

static void without_a_copy_a_job_begins_anew(void **state) {
    (void)state;
    struct lives lives = {.place = &places[TWO_HOSTS], .after_step = commit, .every = 1, .from = 0};
    lives.lost = places[TWO_HOSTS].size;
    run(&lives);
    lives.place = &places[THREE_HOSTS]; /* a rank and its server */
    lives.lost = 2;
    run(&lives);
}

static void a_damaged_copy_is_not_used(void **state) {
    (void)state;
    /* Copies of steps 0, 1, 2 and 3 lie in slots 0, 1, 0 and 1: that of step 2 is left. */
    struct lives lives = {.place = &places[TWO_HOSTS],
                          .after_step = commit,
                          .every = 1,
                          .lost_from = 2,
                          .lost = 2,
                          .damaged = 2,
                          .from = SAVED - 1,
                          .note = note};
    run(&lives);
    lives.is_wild = true;
    run(&lives);
}

/* What is committed moves; where a host is lost as well, its copy does. */
static void hosts_may_change_places(void **state) {
    (void)state;
    const size_t where[] = {TWO_HOSTS, THREE_HOSTS};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        struct lives lives = {
            .place = &places[where[i]], .after_step = commit, .every = 1, .from = SAVED, .swaps = true};
        run(&lives);
        lives.lost_from = 1;
        lives.lost = where[i] == THREE_HOSTS;
        lives.note = lives.lost ? note : NULL;
        run(&lives);
    }
}

/* ---- where there is nothing to copy to ---- */

static int keep_without(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                        struct muster_optimizer *optimizer) {
    struct muster_fsdp_keep_options options = MUSTER_FSDP_KEEP_OPTIONS_INIT;
    struct muster_fsdp_copy_statistics numbers = numbers_of(rank, fsdp);
    struct muster_fsdp_memory memory;
    int64_t step = 0;
    (void)job;
    rank_check(rank, numbers.last_step == -1 && numbers.started == 0);
    options.copies_every = 1;
    added_init(&added, 0);
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, &options, &step), 0);
    rank_check_code(rank, muster_fsdp_commit(fsdp, 0, &added.state), 0);
    rank_check_code(rank, muster_fsdp_memory(fsdp, &memory), 0);
    rank_check_code(rank, muster_fsdp_hand_over(fsdp), MUSTER_EUNSUPPORTED);
    rank_check_code(rank, muster_fsdp_hand_over(NULL), MUSTER_EINVAL);
    rank_check(rank, memory.peer_bytes == 0 && numbers_of(rank, fsdp).started == 0);
    rank_check_code(rank, muster_fsdp_copy_statistics(NULL, &numbers), MUSTER_EINVAL);
    rank_check_code(rank, muster_fsdp_copy_statistics(fsdp, NULL), MUSTER_EINVAL);
    return 0;
}

static int commit_plain(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                        struct muster_optimizer *optimizer) {
    (void)job;
    (void)optimizer;
    added_init(&added, added.step + 1);
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step, &added.state), 0);
    return 0;
}

static void nothing_is_copied_where_it_is_of_no_use(void **state) {
    (void)state;
    static const uint32_t lopsided[] = {0, 0, 1};
    const struct place rare = {.size = 3, .ranks = {.host_of = lopsided}, .is_close = true};
    const struct place *where[] = {&places[ONE_HOST], &places[HYBRID], &rare};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        struct job job = job_at(where[i]);
        job.prepare = keep_without;
        job.after_step = commit_plain;
        job_check(where[i]->size, &job);
    }
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_goes_on_from_the_copy_of_a_lost_host),
        cmocka_unit_test(what_is_handed_over_is_the_last_step),
        cmocka_unit_test(committed_memory_that_is_whole_is_newer),
        cmocka_unit_test(without_a_copy_a_job_begins_anew),
        cmocka_unit_test(a_damaged_copy_is_not_used),
        cmocka_unit_test(hosts_may_change_places),
        cmocka_unit_test(nothing_is_copied_where_it_is_of_no_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
