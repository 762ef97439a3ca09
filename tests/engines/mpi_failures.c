/* What happens on the engine 'mpi' where the other engine goes on, or says more: ranks that are killed or stopped,
 * abort, shrink, calls that differ; and where MPI cannot be used at all. test_failures.py runs it with each MPI. */
#include <muster/collective.h>
#include <muster/group.h>

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/group/ranks_test_support.h"
#include "comm/mpi/mpi_world.h"

enum { SIZE = 3, VICTIM = 1, LONG = 1 << 20, MARK_READY = 1, MARK_IN_CALL, MARK_OVER };
enum { NOTICE_MS_MAX = 20000 }; /* some 20 ms on a quiet machine; without news MPI waits for ever */

static const struct ranks_options one_host = {.ranks_per_host = 0}, own_hosts = {.ranks_per_host = 1};

/* ---- a death at a chosen place ---- */

static int begins_until_death, runs_until_death; /* 0: none. Of the rank's process. */

static void die_at(int *count) {
    if (*count > 0 && --*count == 0) {
        (void)raise(SIGKILL);
    }
}

/* The linker puts them before those of comm/mpi. */
int __real_mpi_begin(const struct mpi *mpi, enum mpi_threads needed, bool *out_is_ours);
int __wrap_mpi_begin(const struct mpi *mpi, enum mpi_threads needed, bool *out_is_ours);
int __wrap_mpi_begin(const struct mpi *mpi, enum mpi_threads needed, bool *out_is_ours) {
    die_at(&begins_until_death);
    return __real_mpi_begin(mpi, needed, out_is_ours);
}

int __real_mpi_world_run(int (*task)(void *argument), void *argument, struct comm_waiter *waiter, int64_t deadline_ns,
                         bool *out_left_behind);
int __wrap_mpi_world_run(int (*task)(void *argument), void *argument, struct comm_waiter *waiter, int64_t deadline_ns,
                         bool *out_left_behind);
int __wrap_mpi_world_run(int (*task)(void *argument), void *argument, struct comm_waiter *waiter, int64_t deadline_ns,
                         bool *out_left_behind) {
    die_at(&runs_until_death);
    return __real_mpi_world_run(task, argument, waiter, deadline_ns, out_left_behind);
}

/* ---- a mark when a call is under way in MPI, and a call that does not come back ---- */

static struct rank *_Atomic to_mark; /* NULL: nobody */
static struct rank *_Atomic to_keep; /* likewise */

void __real_mpi_world_leave(const struct mpi_world *world);
void __wrap_mpi_world_leave(const struct mpi_world *world);
void __wrap_mpi_world_leave(const struct mpi_world *world) {
    struct rank *kept = atomic_load(&to_keep);
    if (kept) {
        rank_mark(kept, MARK_IN_CALL);
        for (;;) {
            (void)pause();
        }
    }
    __real_mpi_world_leave(world);
    struct rank *rank = atomic_exchange(&to_mark, NULL);
    if (rank) {
        rank_mark(rank, MARK_IN_CALL);
    }
}

/* ---- ways to need the victim ---- */

static float numbers[LONG], results[LONG];

static int in_barrier(struct muster_group *group) {
    return muster_barrier(group, NULL);
}

static int in_reduction(struct muster_group *group) {
    return muster_all_reduce(group, numbers, results, LONG, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
}

static int in_wait(struct muster_group *group) {
    struct muster_work *work = NULL;
    int code = muster_all_reduce(group, numbers, results, 8, MUSTER_FLOAT32, MUSTER_OP_SUM, &work);
    return code ? code : muster_work_wait(&work);
}

static int in_receive(struct muster_group *group) {
    return muster_receive(group, numbers, 1, MUSTER_FLOAT32, VICTIM, 0, NULL, NULL);
}

static int in_receive_from_any(struct muster_group *group) {
    return muster_receive(group, numbers, 1, MUSTER_FLOAT32, MUSTER_ANY_RANK, 0, NULL, NULL);
}

static int in_send(struct muster_group *group) {
    return muster_send(group, numbers, LONG, MUSTER_FLOAT32, VICTIM, 0, NULL);
}

struct way {
    const char *name;
    int (*call)(struct muster_group *group);
};
static const struct way ways[] = {{"barrier", in_barrier},
                                  {"all_reduce", in_reduction},
                                  {"wait", in_wait},
                                  {"receive", in_receive},
                                  {"receive from any", in_receive_from_any},
                                  {"send", in_send}};

/* ---- afterwards ---- */

/* The world, and a group of the ranks that survive. */
static void make_groups(struct rank *rank, struct muster_group **out_world, struct muster_group **out_others) {
    static const uint32_t others[] = {0, 2};
    *out_world = rank_group(rank, NULL);
    *out_others = NULL;
    rank_check_code(rank, muster_group_subset(*out_world, others, 2, NULL, out_others), 0);
    rank_check_code(rank, muster_barrier(*out_world, NULL), 0);
}

static void check_over(struct rank *rank, int code) {
    rank_check_code(rank, code, MUSTER_EUNSUPPORTED);
    rank_check(rank, strstr(muster_detail(), "MPI cannot be used any more in this process"));
    rank_check(rank, strstr(muster_detail(), "can report it, and end"));
}

/* Nothing of MPI works any more: not the group, not another one, and no smaller one is made. */
static void check_end(struct rank *rank, struct muster_group *world, struct muster_group *others) {
    struct muster_group *smaller = NULL;
    int code = muster_barrier(world, NULL);
    rank_check(rank, code == MUSTER_EGROUP || code == MUSTER_EPEER);
    check_over(rank, muster_group_shrink(world, RANKS_PATIENCE_MS, &smaller));
    rank_check(rank, smaller == NULL);
    code = muster_barrier(others, NULL);
    if (code == MUSTER_EGROUP) { /* the other one has been here before */
        code = muster_group_status(others);
    }
    check_over(rank, code);
    muster_group_free(others);
    muster_group_free(world);
}

/* ---- deaths ---- */

static int lose_a_rank(struct rank *rank, void *argument) {
    const struct way *way = argument;
    struct muster_group *world, *others;
    make_groups(rank, &world, &others);
    rank_mark(rank, MARK_READY);
    if (rank->rank == VICTIM) {
        rank_await_signal(rank, UINT32_MAX);
    }
    rank_mark(rank, MARK_IN_CALL);
    int code = way->call(world);
    rank_mark(rank, MARK_OVER);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_EPEER);
    check_end(rank, world, others);
    return 0;
}

static void expect_survivors(struct ranks *ranks, const char *name, const char *words) {
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != VICTIM && (ranks_wait(ranks, rank) != 0 || !strstr(ranks_report(ranks, rank), words))) {
            fail_msg("%s: rank %u ended with %d: '%s', expected '%s'", name, rank, ranks_wait(ranks, rank),
                     ranks_report(ranks, rank), words);
        }
    }
}

static void lose_in(const struct way *given, const struct ranks_options *options) {
    struct way way = *given;
    struct ranks *ranks = ranks_start(SIZE, lose_a_rank, &way, options);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        ranks_await(ranks, rank, rank == VICTIM ? MARK_READY : MARK_IN_CALL);
    }
    int64_t killed_ns = clock_monotonic_ns();
    ranks_kill(ranks, VICTIM);
    expect_survivors(ranks, way.name, options->ranks_per_host ? "rank 1 " : "was killed by signal 9");
    for (uint32_t rank = 0; rank < SIZE; rank += 2) {
        int64_t took_ns = ranks_mark_time_ns(ranks, rank, MARK_OVER) - killed_ns;
        print_message("%s, %s: rank %u told after %lld us, ended by %lld us\n", way.name,
                      options->ranks_per_host ? "own hosts" : "one host", rank, (long long)(took_ns / 1000),
                      (long long)((clock_monotonic_ns() - killed_ns) / 1000));
        assert_true(took_ns < NOTICE_MS_MAX * CLOCK_NS_PER_MS);
    }
    ranks_free(ranks);
}

static void a_killed_rank_ends_every_call(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        lose_in(&ways[i], &one_host);
    }
    lose_in(&ways[0], &own_hosts);
    lose_in(&ways[3], &own_hosts);
}

static int call_after_a_death(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world, *others;
    make_groups(rank, &world, &others);
    rank_mark(rank, MARK_READY);
    rank_await_signal(rank, 1);
    rank_check_code(rank, muster_barrier(world, NULL), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    check_end(rank, world, others);
    return 0;
}

static void a_death_between_calls_fails_the_next(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, call_after_a_death, NULL, NULL);
    ranks_await_all(ranks, MARK_READY);
    ranks_kill(ranks, VICTIM);
    assert_int_equal(ranks_wait(ranks, VICTIM), RANKS_KILLED - SIGKILL);
    ranks_signal(ranks, 1);
    expect_survivors(ranks, "between calls", "rank 1 (pid ");
    ranks_free(ranks);
}

/* Small calls, one after the other, until the victim is killed in one of them. */
static int call_for_ever(struct rank *rank, void *argument) {
    (void)argument;
    int code = 0;
    struct muster_group *world, *others;
    make_groups(rank, &world, &others);
    rank_mark(rank, MARK_READY);
    while (code == 0) {
        code = muster_all_reduce(world, numbers, results, 16, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
    }
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_EPEER);
    check_end(rank, world, others);
    return 0;
}

static void a_rank_may_be_killed_within_small_calls(void **state) {
    (void)state;
    for (int turn = 0; turn < 3; turn++) {
        struct ranks *ranks = ranks_start(SIZE, call_for_ever, NULL, NULL);
        ranks_await_all(ranks, MARK_READY);
        ranks_kill(ranks, VICTIM);
        expect_survivors(ranks, "small calls", "rank 1 (pid ");
        ranks_free(ranks);
    }
}

/* ---- a rank that MPI does not give back ---- */

static int told[2]; /* a pipe for what rank 0 writes to stderr */

static int be_kept(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world, *others;
    make_groups(rank, &world, &others);
    if (rank->rank == VICTIM) {
        rank_mark(rank, MARK_READY);
        rank_await_signal(rank, UINT32_MAX);
    }
    if (rank->rank == 0) {
        (void)dup2(told[1], STDERR_FILENO);
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        atomic_store(&to_keep, rank);
    }
    rank_check_code(rank, muster_barrier(world, NULL), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    check_end(rank, world, others);
    return 0;
}

static void read_all(int fd, char *out, size_t max) {
    size_t length = 0;
    for (ssize_t got = 1; got > 0 && length + 1 < max; length += got > 0 ? (size_t)got : 0) {
        got = read(fd, out + length, max - length - 1);
    }
    out[length] = '\0';
}

static void a_rank_that_MPI_keeps_aborts(void **state) {
    (void)state;
    char text[4096];
    assert_int_equal(pipe(told), 0);
    (void)setenv("MUSTER_MPI_STUCK_S", "1", 1);
    struct ranks *ranks = ranks_start(SIZE, be_kept, NULL, NULL);
    (void)close(told[1]);
    ranks_await(ranks, VICTIM, MARK_READY);
    ranks_await(ranks, 0, MARK_IN_CALL);
    ranks_kill(ranks, VICTIM);
    assert_int_equal(ranks_wait(ranks, 2), 0);
    assert_int_equal(ranks_wait(ranks, 0), RANKS_KILLED - SIGABRT);
    assert_non_null(strstr(ranks_report(ranks, 2), "rank 1 (pid "));
    ranks_free(ranks);
    (void)unsetenv("MUSTER_MPI_STUCK_S");
    read_all(told[0], text, sizeof text);
    (void)close(told[0]);
    if (!strstr(text, "MPI does not come back: a call of it has lasted for 1 s, and rank 1 (pid ") ||
        !strstr(text, "was killed by signal 9")) {
        fail_msg("rank 0 has said '%s'", text);
    }
}

/* ---- deaths while MPI begins, and while a group is made ---- */

static int die_in_init(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = NULL;
    begins_until_death = rank->rank == VICTIM;
    rank_check_code(rank, muster_group_create_store(rank_store(rank), rank->rank, rank->size, NULL, &group),
                    MUSTER_EPEER);
    rank_report(rank, muster_detail());
    return 0;
}

static int die_while_splitting(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world, *others, *part = NULL;
    make_groups(rank, &world, &others);
    runs_until_death = rank->rank == VICTIM;
    rank_check_code(rank, muster_group_split(world, 0, 0, NULL, &part), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    rank_check(rank, part == NULL);
    check_end(rank, world, others);
    return 0;
}

/* Open MPI 5 may crash in the thread that is left behind in MPI_Init, when the process ends. It has told all by then.
 */
static void a_death_while_MPI_begins_is_told(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, die_in_init, NULL, NULL);
    for (uint32_t rank = 0; rank < SIZE; rank += 2) {
        int result = ranks_wait(ranks, rank);
        if ((result != 0 && result != RANKS_KILLED - SIGSEGV) || !strstr(ranks_report(ranks, rank), "rank 1 (pid ")) {
            fail_msg("in MPI_Init: rank %u ended with %d: '%s'", rank, result, ranks_report(ranks, rank));
        }
    }
    ranks_free(ranks);
}

static void a_death_while_a_group_is_made_is_told(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, die_while_splitting, NULL, NULL);
    expect_survivors(ranks, "while a group is made", "rank 1 (pid ");
    ranks_free(ranks);
}

/* ---- stopped ranks, abort ---- */

static int miss_a_rank(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world, *others;
    make_groups(rank, &world, &others);
    rank_hurry(world, 500);
    rank_mark(rank, MARK_READY);
    rank_await_signal(rank, 1);
    int code = muster_barrier(world, NULL);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_ETIMEOUT);
    check_end(rank, world, others);
    return 0;
}

static void a_stopped_rank_is_named_at_the_deadline(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, miss_a_rank, NULL, NULL);
    ranks_await_all(ranks, MARK_READY);
    ranks_stop(ranks, VICTIM);
    ranks_signal(ranks, 1);
    expect_survivors(ranks, "stopped", "did not come: 1");
    ranks_free(ranks);
}

static int be_aborted(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world, *others;
    make_groups(rank, &world, &others);
    if (rank->rank == VICTIM) {
        rank_await_signal(rank, 1);
        muster_group_abort(world, "the disk is full");
        rank_check_code(rank, muster_group_status(world), MUSTER_EABORTED);
        rank_report(rank, muster_detail());
        muster_group_free(others);
        muster_group_free(world);
        return 0;
    }
    atomic_store(&to_mark, rank); /* an abort that finds no call under way leaves other groups as they are */
    rank_check_code(rank, muster_barrier(world, NULL), MUSTER_EABORTED);
    rank_report(rank, muster_detail());
    check_end(rank, world, others);
    return 0;
}

static void an_abort_is_told_with_its_reason(void **state) {
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        struct ranks *ranks = ranks_start(SIZE, be_aborted, NULL, turn ? &own_hosts : &one_host);
        ranks_await(ranks, 0, MARK_IN_CALL);
        ranks_await(ranks, 2, MARK_IN_CALL);
        ranks_signal(ranks, 1);
        expect_survivors(ranks, "abort", "rank 1 aborted group 'world': the disk is full");
        assert_int_equal(ranks_wait(ranks, VICTIM), 0);
        ranks_free(ranks);
    }
}

/* Nothing of MPI is given up then: other groups go on. */
static int be_aborted_between_calls(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world, *others, *smaller = NULL;
    make_groups(rank, &world, &others);
    rank_mark(rank, MARK_READY);
    rank_await_signal(rank, 1);
    if (rank->rank == VICTIM) {
        muster_group_abort(world, "the disk is full");
    } else {
        const struct timespec nap = {0, 1000000};
        while (muster_group_status(world) == 0) {
            (void)nanosleep(&nap, NULL);
        }
        rank_check_code(rank, muster_barrier(world, NULL), MUSTER_EGROUP);
        rank_check_code(rank, muster_barrier(others, NULL), 0);
        rank_check_code(rank, muster_group_shrink(world, RANKS_PATIENCE_MS, &smaller), MUSTER_EUNSUPPORTED);
        rank_check(rank, smaller == NULL);
        rank_check_code(rank, muster_barrier(others, NULL), 0);
    }
    muster_group_free(others);
    muster_group_free(world);
    return 0;
}

static void an_abort_between_calls_leaves_other_groups(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, be_aborted_between_calls, NULL, NULL);
    ranks_await_all(ranks, MARK_READY);
    ranks_signal(ranks, 1);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (ranks_wait(ranks, rank) != 0) {
            fail_msg("rank %u ended with %d", rank, ranks_wait(ranks, rank));
        }
    }
    ranks_free(ranks);
}

/* ---- calls that differ ---- */

static int make_different_calls(struct rank *rank, void *argument) {
    const int *difference = argument;
    struct muster_group *world = rank_group(rank, NULL);
    bool is_odd = rank->rank == VICTIM;
    rank_check_code(rank, muster_barrier(world, NULL), 0);
    rank_mark(rank, MARK_READY); /* a failed group fails the calls that are under way: all have left the barrier before
                                    one differs */
    rank_await_signal(rank, 1);
    int code = *difference && is_odd
                   ? muster_barrier(world, NULL)
                   : muster_all_reduce(world, numbers, results, is_odd ? 5 : 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_EMISMATCH);
    muster_group_free(world);
    return 0;
}

static void calls_that_differ_are_told(void **state) {
    (void)state;
    assert_int_equal(setenv("MUSTER_COMPARE_CALLS", "1", 1), 0);
    for (int turn = 0; turn < 4; turn++) {
        int difference = turn % 2;
        struct ranks *ranks = ranks_start(SIZE, make_different_calls, &difference, turn < 2 ? &one_host : &own_hosts);
        ranks_await_all(ranks, MARK_READY);
        ranks_signal(ranks, 1);
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            const char *report = ranks_report(ranks, rank);
            if (ranks_wait(ranks, rank) != 0 || !strstr(report, "all_reduce of 4 float32, sum") ||
                !strstr(report, difference ? "barrier" : "all_reduce of 5 float32, sum")) {
                fail_msg("turn %d: rank %u ended with %d: '%s'", turn, rank, ranks_wait(ranks, rank), report);
            }
        }
        ranks_free(ranks);
    }
    assert_int_equal(unsetenv("MUSTER_COMPARE_CALLS"), 0);
}

/* ---- leaving ---- */

/* Rank 1, on another host, frees a part in good order; MPI tells nobody. Nothing else is the worse. */
static int wait_for_a_leaver(struct rank *rank, void *argument) {
    static const uint32_t all[] = {0, 1};
    (void)argument;
    struct muster_group *world = rank_group(rank, NULL), *part = NULL;
    rank_check_code(rank, muster_group_subset(world, all, 2, NULL, &part), 0);
    rank_check_code(rank, muster_barrier(part, NULL), 0);
    if (rank->rank == 0) {
        rank_hurry(part, 300);
        rank_await(rank, 1, MARK_READY);
        int code = muster_receive(part, numbers, 1, MUSTER_FLOAT32, 1, 5, NULL, NULL);
        rank_check_code(rank, code, MUSTER_ETIMEOUT);
    }
    muster_group_free(part);
    rank_mark(rank, MARK_READY);
    rank_check_code(rank, muster_barrier(world, NULL), 0);
    muster_group_free(world);
    return 0;
}

static void a_leaver_of_another_host_is_missed_at_the_deadline(void **state) {
    (void)state;
    ranks_run_with(2, wait_for_a_leaver, NULL, &own_hosts);
}

/* ---- where MPI cannot be used ---- */

static int fail_to_create(struct rank *rank, void *argument) {
    struct muster_group *group = NULL;
    const char *const *words = argument;
    int code = muster_group_create_store(rank_store(rank), rank->rank, rank->size, NULL, &group);
    rank_report(rank, muster_detail());
    rank_check(rank, code != 0 && group == NULL);
    rank_check(rank, strstr(muster_detail(), words[0]) && strstr(muster_detail(), words[1]));
    return 0;
}

static int differ_in_engines(struct rank *rank, void *argument) {
    rank_check(rank, rank->rank != VICTIM || setenv("MUSTER_ENGINE", "muster", 1) == 0);
    return fail_to_create(rank, argument);
}

static void ranks_with_different_engines_are_refused(void **state) {
    (void)state;
    const char *words[] = {"rank 1 asks for the engine 'muster', rank 0 for 'mpi'", "MUSTER_ENGINE"};
    ranks_run(SIZE, differ_in_engines, words);
}

static int take_the_library(struct rank *rank, void *argument) {
    const char *const *words = argument;
    rank_check(rank, setenv("MUSTER_MPI_LIBRARY", words[2], 1) == 0);
    return fail_to_create(rank, argument);
}

static void without_a_library_it_says_so(void **state) {
    (void)state;
    const char *words[] = {"MUSTER_MPI_LIBRARY=/nowhere/libmpi.so", "/nowhere/libmpi.so", "/nowhere/libmpi.so"};
    ranks_run(2, take_the_library, words);
}

/* An MPI of the other family sees nobody else. */
static void the_mpirun_of_another_MPI_is_told(void **state) {
    (void)state;
    const char *words[] = {"has a world of 1 process, the job one of 2 ranks", "one mpirun or srun that fits this MPI",
                           getenv("MUSTER_TEST_OTHER_MPI")};
    if (!words[2]) {
        print_message("MUSTER_TEST_OTHER_MPI names no library of the other family\n");
        skip();
    }
    ranks_run(2, take_the_library, words);
}

/* ---- a program that has begun MPI itself ---- */

static void *own_mpi(struct rank *rank, int level) {
    static const int standard_levels[] = {0, 1024, 2048, 4096};
    const char *name = getenv("MUSTER_TEST_OWN_MPI");
    rank_check(rank, name);
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    rank_check(rank, library);
    int (*init)(int *, char ***, int, int *) = NULL;
    void *symbol = dlsym(library, "MPI_Init_thread");
    memcpy(&init, &symbol, sizeof init);
    int provided = -1;
    level = strstr(name, "mpi_abi") ? standard_levels[level] : level;
    rank_check(rank, init && init(NULL, NULL, level, &provided) == 0 && provided == level);
    return library;
}

static void finalize(struct rank *rank, void *library) {
    int (*end)(void) = NULL;
    void *symbol = dlsym(library, "MPI_Finalize");
    memcpy(&end, &symbol, sizeof end);
    rank_check(rank, end && end() == 0);
}

static int begin_with_too_little(struct rank *rank, void *argument) {
    const int *level = argument;
    const char *words[] = {*level ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE", "MPI_THREAD_SERIALIZED is needed"};
    void *library = own_mpi(rank, *level);
    int code = fail_to_create(rank, words);
    finalize(rank, library);
    return code;
}

static void who_has_begun_MPI_with_too_little_is_told(void **state) {
    (void)state;
    for (int level = 0; level < 2; level++) {
        ranks_run(2, begin_with_too_little, &level);
    }
}

struct user {
    struct rank *rank;
    struct muster_group *group;
};

/* Collectives, with handles and without, and messages; in several threads at once. */
static void *use(void *argument) {
    const struct user *user = argument;
    struct rank *rank = user->rank;
    uint32_t next = (rank->rank + 1) % rank->size, previous = (rank->rank + rank->size - 1) % rank->size;
    for (int32_t i = 0; i < 100; i++) {
        struct muster_work *works[3] = {NULL};
        int32_t sum = i, out = i * 100 + (int32_t)rank->rank, in = -1;
        rank_check_code(rank, muster_receive(user->group, &in, 1, MUSTER_INT32, previous, 3, NULL, &works[0]), 0);
        rank_check_code(rank, muster_all_reduce(user->group, &sum, &sum, 1, MUSTER_INT32, MUSTER_OP_SUM, &works[1]), 0);
        rank_check_code(rank, muster_send(user->group, &out, 1, MUSTER_INT32, next, 3, &works[2]), 0);
        for (int w = 0; w < 3; w++) {
            rank_check_code(rank, muster_work_wait(&works[w]), 0);
        }
        rank_check(rank, sum == i * (int32_t)rank->size && in == i * 100 + (int32_t)previous);
        rank_check_code(rank, muster_barrier(user->group, NULL), 0);
    }
    return NULL;
}

static int begin_with_enough(struct rank *rank, void *argument) {
    const int *level = argument;
    void *library = own_mpi(rank, *level);
    struct muster_group *world = rank_group(rank, NULL), *part = NULL;
    rank_check_code(rank, muster_group_split(world, 0, 0, NULL, &part), 0);
    struct user users[] = {{rank, world}, {rank, part}};
    pthread_t thread;
    rank_check(rank, pthread_create(&thread, NULL, use, &users[1]) == 0);
    (void)use(&users[0]);
    (void)pthread_join(thread, NULL);
    muster_group_free(part);
    muster_group_free(world);
    finalize(rank, library);
    return 0;
}

static void who_has_begun_MPI_may_share_it(void **state) {
    (void)state;
    for (int level = 2; level < 4; level++) {
        ranks_run(SIZE, begin_with_enough, &level);
    }
}

/* ---- many groups ---- */

/* More than MPICH has communicators at a time (2048), so that each must be given back. Open MPI has room for as many as
 * its numbers reach, and is not slowed down for that. */
static int make_many(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world = rank_group(rank, NULL);
    int count = getenv("OMPI_COMM_WORLD_RANK") ? 200 : 2100;
    for (int i = 0; i < count; i++) {
        struct muster_group *part = NULL;
        rank_check_code(rank, muster_group_split(world, 0, 0, NULL, &part), 0);
        if (i % 100 == 0) {
            rank_check_code(rank, muster_barrier(part, NULL), 0);
        }
        muster_group_free(part);
    }
    muster_group_free(world);
    return 0;
}

static void communicators_are_given_back(void **state) {
    (void)state;
    ranks_run(2, make_many, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_ends_every_call),
        cmocka_unit_test(a_death_between_calls_fails_the_next),
        cmocka_unit_test(a_rank_may_be_killed_within_small_calls),
        cmocka_unit_test(a_rank_that_MPI_keeps_aborts),
        cmocka_unit_test(a_death_while_MPI_begins_is_told),
        cmocka_unit_test(a_death_while_a_group_is_made_is_told),
        cmocka_unit_test(a_stopped_rank_is_named_at_the_deadline),
        cmocka_unit_test(an_abort_is_told_with_its_reason),
        cmocka_unit_test(an_abort_between_calls_leaves_other_groups),
        cmocka_unit_test(calls_that_differ_are_told),
        cmocka_unit_test(a_leaver_of_another_host_is_missed_at_the_deadline),
        cmocka_unit_test(ranks_with_different_engines_are_refused),
        cmocka_unit_test(without_a_library_it_says_so),
        cmocka_unit_test(the_mpirun_of_another_MPI_is_told),
        cmocka_unit_test(who_has_begun_MPI_with_too_little_is_told),
        cmocka_unit_test(who_has_begun_MPI_may_share_it),
        cmocka_unit_test(communicators_are_given_back),
    };
    if (!getenv("MUSTER_TEST_STARTER")) {
        (void)printf("SKIP: MUSTER_TEST_STARTER names nobody who starts ranks\n");
        return 77;
    }
    (void)setenv("MUSTER_ENGINE", "mpi", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
