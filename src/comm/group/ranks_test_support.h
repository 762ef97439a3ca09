/* For tests: runs a function in several real processes at once, the ranks of a job, on "hosts" as many as wished; kills
 * and stops them; lets the test and the ranks wait for each other's marks, and collects what they end with.
 *
 *     static int body(struct rank *rank, void *argument) {
 *         struct muster_group *group = rank_group(rank, NULL);
 *         rank_check(rank, muster_barrier(group, NULL) == 0);
 *         muster_group_free(group);
 *         return 0;
 *     }
 *     ...
 *     ranks_run(4, body, NULL);             // asserts that all ends well
 *
 * In a body use rank_check() instead of cmocka's assertions, which belong to the test's own process. Nothing of it
 * outlives the test: ranks die with the test's process, and with an alarm that no honest test reaches. */
#ifndef COMM_RANKS_TEST_SUPPORT_H
#define COMM_RANKS_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <muster/group.h>

enum {
    RANKS_MAX = 64,
    RANKS_REPORT_BYTES = 4096,  /* of a rank's report, a text */
    RANKS_PATIENCE_MS = 180000, /* then everything is killed and the test fails: for hangs, not for busy machines */
    RANKS_KILLED = -1000        /* ended by signal n: RANKS_KILLED - n */
};

struct ranks;
struct rank_shared;

/* What a rank's function knows. */
struct rank {
    uint32_t rank, size;
    struct ranks *all;
    struct rank_shared *shared;
};

typedef int rank_function(struct rank *rank, void *argument);

struct ranks_options {
    uint32_t ranks_per_host; /* 0: all on one host; otherwise neighbouring ranks share one (MUSTER_HOST_ID) */
    bool use_tcp;            /* the ranks meet in a store over TCP, which a process of its own serves; else in a file */
    const uint32_t *host_of; /* NULL, or per rank the number of its host, in place of ranks_per_host */
};

/* ---- the test's side ---- */

/* A process that serves a store on loopback: the test's own stays without threads, so that it can fork. */
struct ranks_store {
    pid_t pid;
    int end; /* closing it ends the process */
    uint16_t port;
};
void ranks_store_start(struct ranks_store *out);
void ranks_store_stop(struct ranks_store *store);

/* Starts `size` processes that run `function` and end with what it returns (0 ... 100). options: NULL: none. */
struct ranks *ranks_start(uint32_t size, rank_function *function, void *argument, const struct ranks_options *options);

/* Signals to one rank. ranks_stop() returns when it has stopped. */
void ranks_kill(struct ranks *ranks, uint32_t rank);
void ranks_stop(struct ranks *ranks, uint32_t rank);
void ranks_continue(struct ranks *ranks, uint32_t rank);
pid_t ranks_pid(const struct ranks *ranks, uint32_t rank);

/* Waits until the rank has reached `mark` (rank_mark()); fails the test if it ends before. */
void ranks_await(struct ranks *ranks, uint32_t rank, uint32_t mark);
void ranks_await_all(struct ranks *ranks, uint32_t mark);
/* Lets ranks that are in rank_await_signal(n) go on. */
void ranks_signal(struct ranks *ranks, uint32_t signal);

/* Waits for the end of one rank: its function's result, or RANKS_KILLED - signal. Asked twice it says the same. */
int ranks_wait(struct ranks *ranks, uint32_t rank);
/* The text that the rank left with rank_report(), "" without one. */
const char *ranks_report(const struct ranks *ranks, uint32_t rank);
/* When the rank reached the mark, monotonic clock; 0 if it did not. */
int64_t ranks_mark_time_ns(const struct ranks *ranks, uint32_t rank, uint32_t mark);
/* Kills what still runs, and removes everything. */
void ranks_free(struct ranks *ranks);

/* MUSTER_TEST_SIZE: one more size for tests that hold with any number of ranks (tests/engines/run); 0: none. */
uint32_t ranks_wished_size(void);

/* All of it, for tests in which every rank is to end with 0. */
void ranks_run(uint32_t size, rank_function *function, void *argument);
void ranks_run_with(uint32_t size, rank_function *function, void *argument, const struct ranks_options *options);

/* ---- the ranks' side ---- */

enum { RANK_MARKS_MAX = 16 };

/* Marks are numbers from 1 to RANK_MARKS_MAX - 1 that only rise. */
void rank_mark(struct rank *rank, uint32_t mark);
void rank_await(struct rank *rank, uint32_t other, uint32_t mark);
void rank_await_signal(struct rank *rank, uint32_t signal);
/* Keeps a text for the test (cut to RANKS_REPORT_BYTES). */
void rank_report(struct rank *rank, const char *text);

/* Do the ranks use this engine ("mpi"), as far as MUSTER_ENGINE tells? */
bool ranks_use_engine(const char *name);

/* A store in which all ranks of the test meet; ends the rank on failure. */
struct muster_store *rank_store(struct rank *rank);
/* Makes the root group of all ranks on such a store; ends the rank on failure. */
struct muster_group *rank_group(struct rank *rank, const struct muster_group_options *options);
/* From now on the group's calls have this time-out: after a call of all ranks, so that it does not count how long they
 * took to come. A group that is made with a short one fails on a busy machine. */
void rank_hurry(struct muster_group *group, int64_t timeout_ms);
/* Tells the others who this rank is, as one that makes the root group on rank_store() does, and ends the process with
 * `exit_code` before it shares memory with them. */
_Noreturn void rank_die_while_meeting(struct rank *rank, int exit_code);

/* Ends the rank, saying where and why on stderr, if the condition does not hold. */
#define rank_check(rank, condition)                                                                                    \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            rank_failed((rank), __FILE__, __LINE__, #condition);                                                       \
        }                                                                                                              \
    } while (0)
/* The same for a call that is to give `expected`. */
#define rank_check_code(rank, call, expected)                                                                          \
    do {                                                                                                               \
        int rank_code_ = (call);                                                                                       \
        if (rank_code_ != (expected)) {                                                                                \
            rank_failed_code((rank), __FILE__, __LINE__, #call, rank_code_, (expected));                               \
        }                                                                                                              \
    } while (0)
_Noreturn void rank_failed(struct rank *rank, const char *file, int line, const char *condition);
_Noreturn void rank_failed_code(struct rank *rank, const char *file, int line, const char *call, int code,
                                int expected);

#endif
