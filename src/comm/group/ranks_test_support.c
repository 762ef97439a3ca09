/* Ranks as forked processes for tests; see ranks_test_support.h.
 *
 * The test and the ranks share one anonymous page area with marks, signals and reports, and wait there by futex.
 * Results come by waitid(). */
#include "comm/group/ranks_test_support.h"

#include <errno.h>
#include <linux/futex.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/str.h"
#include "comm/context/bootstrap.h"
#include "comm/group/group_impl.h"
#include "comm/group/starter_test_support.h"
#include "comm/host/bell.h"
#include "comm/schedule/choice.h"

enum { RESULT_FAILED = 101, RESULT_NONE = INT32_MIN, LOOK_MS = 20, PORT_DIGITS = 8 };

struct rank_line {
    _Atomic uint32_t mark;
    _Atomic int64_t mark_time_ns[RANK_MARKS_MAX];
    char report[RANKS_REPORT_BYTES];
};

struct rank_shared {
    _Atomic uint32_t news; /* raised with every change: what everybody sleeps on */
    _Atomic uint32_t signal;
    struct rank_line lines[RANKS_MAX];
};

struct ranks {
    uint32_t size;
    struct rank_shared *shared;
    pid_t pids[RANKS_MAX];
    int results[RANKS_MAX];
    int file;      /* in which they meet; without a name, so that nothing of it is left, however the test ends */
    char path[64]; /* by which they open it */
    struct ranks_store store; /* with use_tcp; else its pid is 0 */
    struct starter *starter;  /* NULL: none */
};

/* ---- waiting ---- */

/* MUSTER_TEST_PATIENCE_MS: another one, for runs in which hangs are expected (tests/engines/run). */
static int64_t patience_ms(void) {
    const char *text = getenv("MUSTER_TEST_PATIENCE_MS");
    return text ? strtoll(text, NULL, 10) : RANKS_PATIENCE_MS;
}

static void announce(struct rank_shared *shared) {
    atomic_fetch_add(&shared->news, 1);
    (void)syscall(SYS_futex, &shared->news, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Sleeps until something is announced; at most LOOK_MS, since the end of a process is announced by nobody. */
static void await_news(struct rank_shared *shared, uint32_t seen) {
    struct timespec pause = {.tv_nsec = LOOK_MS * CLOCK_NS_PER_MS};
    (void)syscall(SYS_futex, &shared->news, FUTEX_WAIT, seen, &pause, NULL, 0);
}

/* ---- the test's side ---- */

static void collect(struct ranks *ranks, uint32_t rank, int status) {
    ranks->results[rank] = WIFSIGNALED(status) ? RANKS_KILLED - WTERMSIG(status) : WEXITSTATUS(status);
    ranks->pids[rank] = 0;
}

/* Has the rank ended? */
static bool reap(struct ranks *ranks, uint32_t rank) {
    int status = 0;
    if (ranks->pids[rank] > 0 && waitpid(ranks->pids[rank], &status, WNOHANG) > 0) {
        collect(ranks, rank, status);
    }
    return ranks->pids[rank] == 0;
}

static void be_rank(struct ranks *ranks, uint32_t rank, rank_function *function, void *argument,
                    const struct ranks_options *options) {
    struct rank self = {rank, ranks->size, ranks, ranks->shared};
    char host[32];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm((unsigned)(2 * patience_ms() / 1000));
    if (options && (options->host_of || options->ranks_per_host > 0)) {
        (void)snprintf(host, sizeof host, "host-%u",
                       options->host_of ? options->host_of[rank] : rank / options->ranks_per_host);
        (void)setenv("MUSTER_HOST_ID", host, 1);
        comm_cores_are_shared = ranks->size > (uint32_t)get_nprocs();
    }
    exit(function(&self, argument)); /* so that a sanitizer looks for leaks */
}

void ranks_store_start(struct ranks_store *out) {
    int port_pipe[2], end_pipe[2];
    assert_int_equal(pipe(port_pipe), 0);
    assert_int_equal(pipe(end_pipe), 0);
    out->pid = fork();
    assert_true(out->pid >= 0);
    if (out->pid == 0) {
        struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
        struct muster_store *store = NULL;
        char byte;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(end_pipe[1]);
        options.is_host = true;
        options.bind_host = "127.0.0.1";
        uint16_t port = muster_store_open_tcp(&options, &store) == 0 ? muster_store_port(store) : 0;
        if (write(port_pipe[1], &port, sizeof port) == sizeof port) {
            while (read(end_pipe[0], &byte, 1) > 0) { /* until the test closes its end */
            }
        }
        muster_store_close(store);
        _exit(0);
    }
    assert_int_equal(read(port_pipe[0], &out->port, sizeof out->port), sizeof out->port);
    assert_int_not_equal(out->port, 0);
    (void)close(port_pipe[0]);
    (void)close(port_pipe[1]);
    (void)close(end_pipe[0]);
    out->end = end_pipe[1];
}

void ranks_store_stop(struct ranks_store *store) {
    (void)close(store->end);
    (void)waitpid(store->pid, NULL, 0);
}

struct ranks *ranks_start(uint32_t size, rank_function *function, void *argument, const struct ranks_options *options) {
    struct ranks *ranks = calloc(1, sizeof *ranks);
    assert_non_null(ranks);
    assert_in_range(size, 1, RANKS_MAX);
    ranks->size = size;
    ranks->shared = mmap(NULL, sizeof *ranks->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(ranks->shared, MAP_FAILED);
    ranks->file = memfd_create("ranks-store", MFD_CLOEXEC);
    assert_true(ranks->file >= 0);
    (void)snprintf(ranks->path, sizeof ranks->path, "/proc/%d/fd/%d", (int)getpid(), ranks->file);
    if (options && options->use_tcp) {
        ranks_store_start(&ranks->store);
    }
    ranks->starter = starter_start(size);
    (void)fflush(NULL);
    for (uint32_t rank = 0; rank < size; rank++) {
        ranks->results[rank] = RESULT_NONE;
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            if (ranks->store.pid > 0) {
                (void)close(ranks->store.end);
            }
            if (ranks->starter) {
                starter_take(ranks->starter, rank);
            }
            be_rank(ranks, rank, function, argument, options);
        }
        ranks->pids[rank] = pid;
    }
    return ranks;
}

pid_t ranks_pid(const struct ranks *ranks, uint32_t rank) {
    return ranks->pids[rank];
}

void ranks_kill(struct ranks *ranks, uint32_t rank) {
    assert_true(ranks->pids[rank] > 0);
    assert_int_equal(kill(ranks->pids[rank], SIGKILL), 0);
}

void ranks_stop(struct ranks *ranks, uint32_t rank) {
    siginfo_t info = {0};
    assert_true(ranks->pids[rank] > 0);
    assert_int_equal(kill(ranks->pids[rank], SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)ranks->pids[rank], &info, WSTOPPED | WEXITED | WNOWAIT), 0);
    assert_int_equal(info.si_code, CLD_STOPPED);
}

void ranks_continue(struct ranks *ranks, uint32_t rank) {
    assert_true(ranks->pids[rank] > 0);
    assert_int_equal(kill(ranks->pids[rank], SIGCONT), 0);
}

static void be_patient(const struct ranks *ranks, int64_t deadline_ns, const char *awaited, uint32_t rank) {
    if (clock_monotonic_ns() > deadline_ns) {
        for (uint32_t r = 0; r < ranks->size; r++) {
            print_error("rank %u: %s, mark %u, '%.300s'\n", r, ranks->pids[r] > 0 ? "runs" : "has ended",
                        atomic_load(&ranks->shared->lines[r].mark), ranks->shared->lines[r].report);
        }
        fail_msg("waited too long for %s of rank %u", awaited, rank);
    }
}

void ranks_await(struct ranks *ranks, uint32_t rank, uint32_t mark) {
    int64_t deadline_ns = clock_monotonic_ns() + patience_ms() * CLOCK_NS_PER_MS;
    for (;;) {
        uint32_t seen = atomic_load(&ranks->shared->news);
        if (atomic_load(&ranks->shared->lines[rank].mark) >= mark) {
            return;
        }
        if (reap(ranks, rank) && atomic_load(&ranks->shared->lines[rank].mark) < mark) {
            fail_msg("rank %u ended with %d before mark %u", rank, ranks->results[rank], mark);
        }
        be_patient(ranks, deadline_ns, "a mark", rank);
        await_news(ranks->shared, seen);
    }
}

void ranks_await_all(struct ranks *ranks, uint32_t mark) {
    for (uint32_t rank = 0; rank < ranks->size; rank++) {
        ranks_await(ranks, rank, mark);
    }
}

void ranks_signal(struct ranks *ranks, uint32_t signal) {
    atomic_store(&ranks->shared->signal, signal);
    announce(ranks->shared);
}

int ranks_wait(struct ranks *ranks, uint32_t rank) {
    int64_t deadline_ns = clock_monotonic_ns() + patience_ms() * CLOCK_NS_PER_MS;
    while (!reap(ranks, rank)) {
        uint32_t seen = atomic_load(&ranks->shared->news);
        be_patient(ranks, deadline_ns, "the end", rank);
        await_news(ranks->shared, seen);
    }
    return ranks->results[rank];
}

const char *ranks_report(const struct ranks *ranks, uint32_t rank) {
    return ranks->shared->lines[rank].report;
}

int64_t ranks_mark_time_ns(const struct ranks *ranks, uint32_t rank, uint32_t mark) {
    return atomic_load(&ranks->shared->lines[rank].mark_time_ns[mark]);
}

void ranks_free(struct ranks *ranks) {
    for (uint32_t rank = 0; rank < ranks->size; rank++) {
        int status = 0;
        if (ranks->pids[rank] > 0 && kill(ranks->pids[rank], SIGKILL) == 0 &&
            waitpid(ranks->pids[rank], &status, 0) > 0) {
            collect(ranks, rank, status);
        }
    }
    starter_stop(ranks->starter);
    if (ranks->store.pid > 0) {
        ranks_store_stop(&ranks->store);
    }
    (void)close(ranks->file);
    (void)munmap(ranks->shared, sizeof *ranks->shared);
    free(ranks);
}

uint32_t ranks_wished_size(void) {
    const char *text = getenv("MUSTER_TEST_SIZE");
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* As soon as one fails: those that wait for it would take all their patience. */
void ranks_run_with(uint32_t size, rank_function *function, void *argument, const struct ranks_options *options) {
    struct ranks *ranks = ranks_start(size, function, argument, options);
    int64_t deadline_ns = clock_monotonic_ns() + patience_ms() * CLOCK_NS_PER_MS;
    for (uint32_t ended = 0; ended < size;) {
        uint32_t seen = atomic_load(&ranks->shared->news), last = 0;
        ended = 0;
        for (uint32_t rank = 0; rank < size; rank++) {
            if (!reap(ranks, rank)) {
                last = rank;
                continue;
            }
            ended++;
            if (ranks->results[rank] != 0) {
                fail_msg("rank %u of %u ended with %d: %s", rank, size, ranks->results[rank],
                         ranks_report(ranks, rank));
            }
        }
        if (ended < size) {
            be_patient(ranks, deadline_ns, "the end", last);
            await_news(ranks->shared, seen);
        }
    }
    ranks_free(ranks);
}

void ranks_run(uint32_t size, rank_function *function, void *argument) {
    ranks_run_with(size, function, argument, NULL);
}

/* ---- the ranks' side ---- */

void rank_mark(struct rank *rank, uint32_t mark) {
    struct rank_line *line = &rank->shared->lines[rank->rank];
    atomic_store(&line->mark_time_ns[mark], clock_monotonic_ns());
    atomic_store(&line->mark, mark);
    announce(rank->shared);
}

void rank_await(struct rank *rank, uint32_t other, uint32_t mark) {
    for (;;) {
        uint32_t seen = atomic_load(&rank->shared->news);
        if (atomic_load(&rank->shared->lines[other].mark) >= mark) {
            return;
        }
        await_news(rank->shared, seen);
    }
}

void rank_await_signal(struct rank *rank, uint32_t signal) {
    for (;;) {
        uint32_t seen = atomic_load(&rank->shared->news);
        if (atomic_load(&rank->shared->signal) >= signal) {
            return;
        }
        await_news(rank->shared, seen);
    }
}

void rank_report(struct rank *rank, const char *text) {
    (void)snprintf(rank->shared->lines[rank->rank].report, RANKS_REPORT_BYTES, "%s", text);
}

bool ranks_use_engine(const char *name) {
    const char *text = getenv("MUSTER_ENGINE");
    return strcmp(text && *text ? text : "muster", name) == 0;
}

/* The rank's to the end of its process. */
static struct muster_store *store;

struct muster_store *rank_store(struct rank *rank) {
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    if (rank->all->store.port == 0) {
        rank_check_code(rank, muster_store_open_file(rank->all->path, 0, RANKS_PATIENCE_MS, &store), 0);
        return store;
    }
    options.host = "127.0.0.1";
    options.port = rank->all->store.port;
    options.timeout_ms = RANKS_PATIENCE_MS;
    rank_check_code(rank, muster_store_open_tcp(&options, &store), 0);
    return store;
}

struct muster_group *rank_group(struct rank *rank, const struct muster_group_options *options) {
    struct muster_group *group = NULL;
    rank_check_code(rank, muster_group_create_store(rank_store(rank), rank->rank, rank->size, options, &group), 0);
    return group;
}

void rank_hurry(struct muster_group *group, int64_t timeout_ms) {
    if (muster_group_set_timeout(group, timeout_ms) != 0) {
        abort(); /* a test's mistake */
    }
}

void rank_die_while_meeting(struct rank *rank, int exit_code) {
    const struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    enum engine_kind wish = ENGINE_AUTO;
    struct muster_store *prefixed = NULL;
    struct bootstrap bootstrap;
    char prefix[64];
    (void)str_format(prefix, sizeof prefix, "muster/world/%u-ranks", rank->size);
    rank_check_code(rank, group_engine_wish(&options, &wish), 0);
    rank_check_code(rank, muster_store_prefix(rank_store(rank), prefix, &prefixed), 0);
    const struct bootstrap_terms terms = {.choice_hash = choice_hash(NULL), .engine_wish = (uint8_t)wish};
    struct comm_kv kv = comm_kv_of_store(prefixed);
    rank_check_code(rank, bootstrap_run(&kv, rank->rank, rank->size, &terms, INT64_MAX / 2, &bootstrap), 0);
    _exit(exit_code);
}

void rank_failed(struct rank *rank, const char *file, int line, const char *condition) {
    (void)fprintf(stderr, "%s:%d: rank %u: %s (last detail: %s)\n", file, line, rank->rank, condition, muster_detail());
    _exit(RESULT_FAILED);
}

void rank_failed_code(struct rank *rank, const char *file, int line, const char *call, int code, int expected) {
    (void)fprintf(stderr, "%s:%d: rank %u: %s gave '%s' (%s), expected '%s'\n", file, line, rank->rank, call,
                  muster_strerror(code), code ? muster_detail() : "", muster_strerror(expected));
    _exit(RESULT_FAILED);
}
