/* Collectives over messages: random calls with every algorithm that they have, in worlds of up to 8 ranks, over TCP and
 * over rings, as processes and as threads; the same bits everywhere; calls that do not match; a rank that dies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/hierarchy/collective_check_test_support.h"
#include "comm/hierarchy/executor.h"
#include "comm/p2p/p2p_test_support.h"

struct work {
    uint64_t seed;
    uint32_t case_count;
    size_t bytes_max;
};

struct caller {
    struct executor *executor;
    enum schedule_algorithm algorithm;
    uint32_t size, number;
};

static struct executor *make_executor(struct job_rank *rank, uint32_t group) {
    uint32_t peers[JOB_RANKS_MAX];
    for (uint32_t i = 0; i < rank->size; i++) {
        peers[i] = i;
    }
    const struct executor_config config = {.p2p = rank->p2p,
                                           .waiter = &rank->waiter,
                                           .group = {.id = group, .name = "test"},
                                           .rank = rank->rank,
                                           .size = rank->size,
                                           .peers = peers};
    struct executor *executor = NULL;
    job_check(executor_create(&config, &executor) == 0);
    return executor;
}

static int call_it(void *context, const struct comm_call *call) {
    struct caller *caller = context;
    struct comm_call prepared = *call;
    comm_call_prepare(&prepared, caller->size);
    return executor_run(caller->executor, &prepared, caller->algorithm, 128 << 10, caller->number++, job_deadline());
}

static int random_calls(struct job_rank *rank, void *argument) {
    const struct work *work = argument;
    struct caller caller = {.executor = make_executor(rank, 3), .size = rank->size};
    uint64_t random = work->seed;
    for (uint32_t i = 0; i < work->case_count; i++) {
        struct check_case check;
        check_draw(&random, rank->size, work->bytes_max, &check);
        for (int algorithm = 1; algorithm < SCHEDULE_ALGORITHM_END; algorithm++) {
            caller.algorithm = (enum schedule_algorithm)algorithm;
            if (!schedule_is_defined(check.call.operation, check.has_counts, caller.algorithm)) {
                continue;
            }
            int status = check_run(&check, rank->rank, rank->size, call_it, &caller);
            if (status != 0) {
                (void)fprintf(stderr, "case %u of seed %llu, %s: %d %s\n", i, (unsigned long long)work->seed,
                              schedule_algorithm_name(caller.algorithm), status, muster_detail());
            }
            job_check(status == 0);
        }
    }
    executor_free(caller.executor);
    return 0;
}

static void run_sizes(const struct job_options *options, uint32_t case_count, size_t bytes_max) {
    for (uint32_t size = 1; size <= 8; size++) {
        struct work work = {.seed = 4711 + size, .case_count = case_count, .bytes_max = bytes_max};
        job_run(size, random_calls, &work, options);
    }
}

static void every_algorithm_over_tcp(void **state) {
    (void)state;
    run_sizes(NULL, 40, 300000);
}

static void every_algorithm_over_several_connections(void **state) {
    (void)state;
    run_sizes(&(struct job_options){.stream_count = 3}, 12, 1500000);
}

static void every_algorithm_over_rings(void **state) {
    (void)state;
    run_sizes(&(struct job_options){.ranks_per_host = 8}, 25, 300000);
    run_sizes(&(struct job_options){.ranks_per_host = 8, .may_read_peers = true}, 25, 300000);
}

static void every_algorithm_as_threads(void **state) {
    (void)state;
    run_sizes(&(struct job_options){.as_threads = true}, 10, 200000);
    run_sizes(&(struct job_options){.as_threads = true, .ranks_per_host = 3}, 10, 200000);
}

/* ---- the bits are the same everywhere ---- */

static int inexact_sums(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { COUNT = 40000 };
    struct executor *executor = make_executor(rank, 1);
    float *send = malloc(COUNT * sizeof *send), *receive = malloc(COUNT * sizeof *receive);
    float *all = malloc(COUNT * sizeof *all * rank->size);
    static const enum schedule_algorithm algorithms[] = {SCHEDULE_FLAT, SCHEDULE_RECURSIVE_DOUBLING,
                                                         SCHEDULE_RABENSEIFNER, SCHEDULE_RING};
    for (uint32_t i = 0; i < COUNT; i++) {
        send[i] = 1.0F / (float)(1 + (i * 31 + rank->rank * 17) % 1013) - 0.001F * (float)rank->rank;
    }
    uint32_t number = 0;
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
        struct comm_call sum = {.operation = COMM_ALL_REDUCE,
                                .type = MUSTER_FLOAT32,
                                .reduction = MUSTER_OP_AVERAGE,
                                .count = COUNT,
                                .send = send,
                                .receive = receive};
        comm_call_prepare(&sum, rank->size);
        job_check(executor_run(executor, &sum, algorithms[a], 0, number++, job_deadline()) == 0);
        struct comm_call gather = {
            .operation = COMM_ALL_GATHER, .type = MUSTER_FLOAT32, .count = COUNT, .send = receive, .receive = all};
        comm_call_prepare(&gather, rank->size);
        job_check(executor_run(executor, &gather, SCHEDULE_RING, 0, number++, job_deadline()) == 0);
        for (uint32_t other = 0; other < rank->size; other++) {
            job_check(job_same_bits(receive, all + (size_t)other * COUNT, COUNT * sizeof *all));
        }
    }
    free(send);
    free(receive);
    free(all);
    executor_free(executor);
    return 0;
}

static void all_ranks_get_the_same_bits(void **state) {
    (void)state;
    for (uint32_t size = 2; size <= 7; size++) {
        job_run(size, inexact_sums, NULL, NULL);
    }
}

/* ---- pieces that are handed over ---- */

/* Counts of all kinds, more pieces than may be under way; the caller waits for them one or several behind. */
static int hand_pieces(struct job_rank *rank, void *argument) {
    static const size_t counts[] = {1000, 0, 1, 70001, 3, 0, 40000, 17, 9000, 20000, 1};
    enum { PIECES = sizeof counts / sizeof *counts, TOTAL = 140023 };
    const enum schedule_algorithm *algorithm = argument;
    struct executor *executor = make_executor(rank, 4);
    int32_t *data = malloc(TOTAL * sizeof *data);
    struct comm_call call = {.operation = COMM_ALL_REDUCE, .type = MUSTER_INT32, .count = TOTAL};
    comm_call_prepare(&call, rank->size);
    for (uint32_t behind = 0, number = 7; behind < 7; behind += 2, number++) {
        size_t at = 0, awaited = 0;
        for (size_t i = 0; i < TOTAL; i++) {
            data[i] = (int32_t)(i + rank->rank);
        }
        job_check(executor_open(executor, &call, *algorithm, number, job_deadline()) == 0);
        for (size_t piece = 0; piece < PIECES; at += counts[piece++]) {
            job_check(executor_hand(executor, data + at, data + at, counts[piece]) == 0);
            if (piece >= behind) {
                job_check(executor_await(executor, awaited++) == 0);
            }
        }
        while (awaited < PIECES) {
            job_check(executor_await(executor, awaited++) == 0);
        }
        job_check(executor_close(executor, 0) == 0 && at == TOTAL);
        for (size_t i = 0; i < TOTAL; i++) {
            job_check(data[i] == (int32_t)(i * rank->size + rank->size * (rank->size - 1) / 2));
        }
    }
    free(data);
    executor_free(executor);
    return 0;
}

static void pieces_may_be_handed_over(void **state) {
    (void)state;
    static const enum schedule_algorithm algorithms[] = {SCHEDULE_FLAT, SCHEDULE_RECURSIVE_DOUBLING,
                                                         SCHEDULE_RABENSEIFNER, SCHEDULE_RING};
    for (uint32_t size = 1; size <= 5; size++) {
        for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++) {
            enum schedule_algorithm algorithm = algorithms[i];
            job_run(size, hand_pieces, &algorithm, NULL);
        }
    }
}

/* ---- calls that do not match ---- */

static int different_calls(struct job_rank *rank, void *argument) {
    (void)argument;
    struct executor *executor = make_executor(rank, 5);
    int32_t numbers[16] = {0}, sums[16];
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = MUSTER_INT32,
                             .count = rank->rank == 1 ? 8 : 16,
                             .send = numbers,
                             .receive = sums};
    /* A rank may have all it needs before the news arrives: then its next call fails. */
    int code = 0;
    comm_call_prepare(&call, rank->size);
    for (uint32_t number = 1; code == 0 && number < 3; number++) {
        code = executor_run(executor, &call, SCHEDULE_RECURSIVE_DOUBLING, 0, number, job_deadline());
    }
    job_check(code == MUSTER_EMISMATCH);
    job_check(strstr(muster_detail(), "all_reduce of 8 int32") && strstr(muster_detail(), "all_reduce of 16 int32"));
    job_mark(rank->job, 0);
    job_await(rank->job, 0, rank->size);
    executor_free(executor);
    return 0;
}

static void different_calls_fail_on_all_ranks(void **state) {
    (void)state;
    for (uint32_t size = 2; size <= 4; size++) {
        job_run(size, different_calls, NULL, NULL);
    }
}

/* ---- a rank that dies ---- */

struct death {
    enum comm_operation operation;
    enum schedule_algorithm algorithm;
};

enum { BEFORE_DEATH, NEVER, AFTER_DEATH };

static int stop_when_told(void *context) {
    struct job_rank *rank = context;
    return atomic_load(&rank->notice_count) > 0 ? status_fail(MUSTER_EPEER, "%s", rank->notices[0].sentence) : 0;
}

/* Rank 1 is killed while the others are in calls that need it. */
static int until_death(struct job_rank *rank, void *argument) {
    const struct death *death = argument;
    enum { COUNT = 60000 };
    struct executor *executor = make_executor(rank, 2);
    rank->waiter.stopped = stop_when_told;
    rank->waiter.context = rank;
    int32_t *send = calloc(COUNT * rank->size, sizeof *send), *receive = calloc(COUNT * rank->size, sizeof *receive);
    struct comm_call call = {.operation = death->operation,
                             .type = MUSTER_INT32,
                             .root = 2,
                             .count = COUNT,
                             .send = send,
                             .receive = receive};
    comm_call_prepare(&call, rank->size);
    uint32_t number = 0;
    for (; number < 5; number++) {
        job_check(executor_run(executor, &call, death->algorithm, 0, number, job_deadline()) == 0);
    }
    job_mark(rank->job, BEFORE_DEATH);
    if (rank->rank == 1) {
        job_await(rank->job, NEVER, 1); /* it is killed here */
    }
    int code = 0;
    while (code == 0) {
        code = executor_run(executor, &call, death->algorithm, 0, number++, job_deadline());
    }
    job_check(code == MUSTER_EPEER);
    job_mark(rank->job, AFTER_DEATH);
    job_await(rank->job, AFTER_DEATH, rank->size - 1); /* everybody has failed because of rank 1 and nobody else */
    int64_t deadline = job_deadline();
    while (atomic_load(&rank->notice_count) == 0) { /* the thread that found out may not have come to it yet */
        job_check(clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 1);
    }
    job_check(rank->notices[0].subject == 1);
    free(send);
    free(receive);
    executor_free(executor);
    return 0;
}

static void the_others_hear_of_a_death(void **state) {
    (void)state;
    static const struct death deaths[] = {
        {COMM_ALL_REDUCE, SCHEDULE_RING},     {COMM_ALL_REDUCE, SCHEDULE_RECURSIVE_DOUBLING},
        {COMM_BROADCAST, SCHEDULE_BINOMIAL},  {COMM_ALL_GATHER, SCHEDULE_RING},
        {COMM_ALL_TO_ALL, SCHEDULE_PAIRWISE}, {COMM_REDUCE_SCATTER, SCHEDULE_RING}};
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        struct death death = deaths[i];
        struct job *job = job_start(4, until_death, &death, NULL);
        job_await(job_shared(job), BEFORE_DEATH, 4);
        job_kill(job, 1);
        for (uint32_t rank = 0; rank < 4; rank++) {
            assert_int_equal(job_wait(job, rank), rank == 1 ? -1009 : 0);
        }
        job_free(job);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_over_tcp),          cmocka_unit_test(every_algorithm_over_several_connections),
        cmocka_unit_test(every_algorithm_over_rings),        cmocka_unit_test(every_algorithm_as_threads),
        cmocka_unit_test(all_ranks_get_the_same_bits),       cmocka_unit_test(pieces_may_be_handed_over),
        cmocka_unit_test(different_calls_fail_on_all_ranks), cmocka_unit_test(the_others_hear_of_a_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
