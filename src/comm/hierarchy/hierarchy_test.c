/* Collectives of ranks on several hosts: random calls for many layouts, even and uneven, contiguous and not, with every
 * rank as a process or as a thread; averages with the same bits everywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/hierarchy/collective_check_test_support.h"
#include "comm/hierarchy/hierarchy.h"
#include "comm/hierarchy/hierarchy_impl.h"
#include "comm/p2p/p2p_test_support.h"

/* Per rank its host, numbered in the order of first ranks. */
struct world {
    uint32_t size, most; /* ranks, and of these on one host */
    uint32_t hosts[8];
};

static const struct world worlds[] = {
    {2, 1, {0, 1}},
    {2, 2, {0, 0}},
    {3, 2, {0, 0, 1}},
    {3, 2, {0, 1, 1}},
    {3, 2, {0, 1, 0}},
    {4, 2, {0, 0, 1, 1}},
    {4, 2, {0, 1, 0, 1}},
    {5, 3, {0, 1, 1, 0, 1}},
    {6, 3, {0, 0, 0, 1, 1, 2}},
    {7, 4, {0, 1, 2, 1, 1, 0, 1}},
    {8, 4, {0, 0, 0, 0, 1, 1, 1, 1}},
    {8, 2, {0, 1, 2, 3, 3, 2, 1, 0}},
};
enum { WORLD_COUNT = sizeof worlds / sizeof *worlds };

struct caller {
    struct hierarchy *hierarchy;
    uint32_t size;
    uint32_t number;
};

/* Has each host as many ranks? Then blocks of hosts need no counts. */
static bool is_uniform(const struct job_rank *rank) {
    uint32_t counts[JOB_RANKS_MAX] = {0};
    bool result = true;
    for (uint32_t i = 0; i < rank->size; i++) {
        counts[rank->hosts[i]]++;
    }
    for (uint32_t host = 0; host < rank->size; host++) {
        result = result && (counts[host] == 0 || counts[host] == counts[0]);
    }
    return result;
}

static struct hierarchy *make_hierarchy(struct job_rank *rank) {
    uint32_t peers[JOB_RANKS_MAX];
    for (uint32_t i = 0; i < rank->size; i++) {
        peers[i] = i;
    }
    const struct hierarchy_config config = {.p2p = rank->p2p,
                                            .waiter = &rank->waiter,
                                            .node = rank->node,
                                            .group = 9,
                                            .name = "test",
                                            .rank = rank->rank,
                                            .size = rank->size,
                                            .peers = peers,
                                            .hosts = rank->hosts};
    struct hierarchy *hierarchy = NULL;
    job_check(hierarchy_create(&config, &hierarchy) == 0);
    job_check(hierarchy->is_uniform == is_uniform(rank));
    return hierarchy;
}

static int call_it(void *context, const struct comm_call *call) {
    struct caller *caller = context;
    struct comm_call prepared = *call;
    comm_call_prepare(&prepared, caller->size);
    return hierarchy_run(caller->hierarchy, &prepared, caller->number++, job_deadline());
}

static int random_calls(struct job_rank *rank, void *argument) {
    const uint32_t *case_count = argument;
    struct caller caller = {.hierarchy = make_hierarchy(rank), .size = rank->size};
    uint64_t random = 815;
    for (uint32_t i = 0; i < *case_count; i++) {
        struct check_case check;
        check_draw(&random, rank->size, 600000, &check);
        int status = check_run(&check, rank->rank, rank->size, call_it, &caller);
        if (status != 0) {
            (void)fprintf(stderr, "case %u: %d %s\n", i, status, muster_detail());
        }
        job_check(status == 0);
    }
    hierarchy_free(caller.hierarchy);
    return 0;
}

static void run_worlds(const struct job_options *options, uint32_t case_count) {
    for (size_t i = 0; i < WORLD_COUNT; i++) {
        struct job_options here = *options;
        here.has_nodes = true;
        here.ranks_per_host = worlds[i].most;
        here.host_of = worlds[i].hosts;
        job_run(worlds[i].size, random_calls, &case_count, &here);
    }
}

static void every_layout_as_processes(void **state) {
    (void)state;
    run_worlds(&(struct job_options){.may_read_peers = true}, 120);
}

static void every_layout_as_threads(void **state) {
    (void)state;
    run_worlds(&(struct job_options){.as_threads = true}, 30);
}

/* ---- the same bits everywhere, and in a second run ---- */

static int inexact_average(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { COUNT = 30000 };
    struct hierarchy *hierarchy = make_hierarchy(rank);
    float *send = malloc(COUNT * sizeof *send), *receive = malloc(COUNT * sizeof *receive);
    float *again = malloc(COUNT * sizeof *again), *all = malloc(COUNT * sizeof *all * rank->size);
    for (uint32_t i = 0; i < COUNT; i++) {
        send[i] = 1.0F / (float)(1 + (i * 31 + rank->rank * 17) % 1013) - 0.001F * (float)rank->rank;
    }
    struct comm_call average = {.operation = COMM_ALL_REDUCE,
                                .type = MUSTER_FLOAT32,
                                .reduction = MUSTER_OP_AVERAGE,
                                .count = COUNT,
                                .send = send,
                                .receive = receive};
    comm_call_prepare(&average, rank->size);
    job_check(hierarchy_run(hierarchy, &average, 1, job_deadline()) == 0);
    average.receive = again;
    job_check(hierarchy_run(hierarchy, &average, 2, job_deadline()) == 0);
    job_check(job_same_bits(receive, again, COUNT * sizeof *again));
    struct comm_call gather = {
        .operation = COMM_ALL_GATHER, .type = MUSTER_FLOAT32, .count = COUNT, .send = receive, .receive = all};
    comm_call_prepare(&gather, rank->size);
    job_check(hierarchy_run(hierarchy, &gather, 3, job_deadline()) == 0);
    for (uint32_t other = 0; other < rank->size; other++) {
        job_check(job_same_bits(receive, all + (size_t)other * COUNT, COUNT * sizeof *all));
    }
    free(send);
    free(receive);
    free(again);
    free(all);
    hierarchy_free(hierarchy);
    return 0;
}

static void averages_have_the_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < WORLD_COUNT; i++) {
        const struct job_options options = {
            .has_nodes = true, .ranks_per_host = worlds[i].most, .host_of = worlds[i].hosts};
        job_run(worlds[i].size, inexact_average, NULL, &options);
    }
}

/* ---- whom a rank has waited for ---- */

/* Two hosts of two ranks, and a call whose root has not come: on its host it is the one that leads. */
static int await_the_root(struct job_rank *rank, void *argument) {
    enum { ROOT = 3, MARK = 1 };
    static const enum comm_operation operations[] = {COMM_BROADCAST, COMM_SCATTER};
    (void)argument;
    for (uint32_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (rank->rank == 0) {
            struct hierarchy *hierarchy = make_hierarchy(rank);
            char data[4] = {0};
            struct comm_call call = {
                .operation = operations[i], .type = MUSTER_UINT8, .root = ROOT, .count = 1, .receive = data};
            comm_call_prepare(&call, rank->size);
            job_check(hierarchy_run(hierarchy, &call, i + 1, clock_monotonic_ns()) == MUSTER_ETIMEOUT);
            for (uint32_t other = 0; other < rank->size; other++) {
                job_check(hierarchy_awaits(hierarchy, other) == (other == ROOT));
            }
            hierarchy_free(hierarchy);
        }
    }
    job_mark(rank->job, MARK);
    job_await(rank->job, MARK, rank->size);
    return 0;
}

static void an_absent_root_is_named(void **state) {
    (void)state;
    static const uint32_t hosts[] = {0, 0, 1, 1};
    job_run(4, await_the_root, NULL, &(struct job_options){.has_nodes = true, .ranks_per_host = 2, .host_of = hosts});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_as_processes),
        cmocka_unit_test(every_layout_as_threads),
        cmocka_unit_test(averages_have_the_same_bits),
        cmocka_unit_test(an_absent_root_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
