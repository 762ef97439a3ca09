/* all_reduce in parts over rails: many layouts of hosts, even and uneven; every algorithm between hosts, type and
 * reduction; counts from 1 on; the same bits on all ranks; a rank that dies, and one that does not come. */
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
#include "base/testing/parts_test_support.h"
#include "comm/hierarchy/collective_check_test_support.h"
#include "comm/hierarchy/hierarchy.h"
#include "comm/hierarchy/hierarchy_impl.h"
#include "comm/p2p/p2p_test_support.h"
#include "comm/reduce/reduce.h"

/* Per rank its host, numbered in the order of first ranks; rails: members of the emptiest host, or one where ranks
 * outnumber the cores. */
struct world {
    uint32_t size, most, rails;
    uint32_t hosts[10];
    bool is_crowded;
};

static const struct world worlds[] = {
    {4, 2, 2, {0, 0, 1, 1}, false},
    {4, 2, 2, {0, 1, 0, 1}, false},
    {4, 3, 1, {0, 1, 1, 1}, false},
    {4, 3, 1, {0, 0, 0, 1}, false},
    {5, 3, 2, {0, 0, 1, 1, 1}, false},
    {6, 2, 2, {0, 0, 1, 1, 2, 2}, false},
    {6, 3, 3, {0, 1, 1, 0, 1, 0}, false},
    {7, 4, 1, {0, 1, 2, 1, 1, 0, 1}, false},
    {8, 2, 2, {0, 1, 2, 3, 3, 2, 1, 0}, false},
    {10, 2, 2, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, false},
    {6, 3, 1, {0, 0, 1, 1, 0, 1}, true},
};
enum { WORLD_COUNT = sizeof worlds / sizeof *worlds };
static size_t world_stride; /* every so-manieth of these worlds */

static const enum schedule_algorithm algorithms[] = {SCHEDULE_FLAT, SCHEDULE_RECURSIVE_DOUBLING, SCHEDULE_RABENSEIFNER,
                                                     SCHEDULE_RING};
enum { ALGORITHM_COUNT = sizeof algorithms / sizeof *algorithms };

/* A table with one rule, which says how large a share of a part is. */
static struct choice *make_choice(enum schedule_algorithm algorithm, uint64_t piece_bytes) {
    struct choice *choice = calloc(1, sizeof *choice);
    job_check(choice);
    choice->rule_count = 1;
    choice->rules[0] = (struct choice_rule){.operation = COMM_ALL_REDUCE,
                                            .medium = CHOICE_MESSAGES,
                                            .ranks_max = UINT32_MAX,
                                            .load = CHOICE_ANY_LOAD,
                                            .bytes_max = UINT64_MAX,
                                            .algorithm = algorithm,
                                            .piece_bytes = piece_bytes};
    return choice;
}

static struct hierarchy *make_hierarchy(struct job_rank *rank, const struct choice *choice, bool is_crowded) {
    uint32_t peers[JOB_RANKS_MAX];
    for (uint32_t i = 0; i < rank->size; i++) {
        peers[i] = i;
    }
    const struct hierarchy_config config = {.p2p = rank->p2p,
                                            .waiter = &rank->waiter,
                                            .node = rank->node,
                                            .choice = choice,
                                            .group = 9,
                                            .name = "test",
                                            .rank = rank->rank,
                                            .size = rank->size,
                                            .peers = peers,
                                            .hosts = rank->hosts,
                                            .is_crowded = is_crowded};
    struct hierarchy *hierarchy = NULL;
    job_check(hierarchy_create(&config, &hierarchy) == 0);
    return hierarchy;
}

static void run_world(const struct world *world, job_body *body, const struct world *argument, bool as_threads) {
    const struct job_options options = {.has_nodes = true,
                                        .as_threads = as_threads,
                                        .may_read_peers = !as_threads,
                                        .ranks_per_host = world->most,
                                        .host_of = world->hosts};
    job_run(world->size, body, (void *)(uintptr_t)argument, &options);
}

/* ---- right results ---- */

struct caller {
    struct hierarchy *hierarchy;
    uint32_t size, number;
    bool used_rails; /* in the last call */
};

static int call_it(void *context, const struct comm_call *call) {
    struct caller *caller = context;
    struct comm_call prepared = *call;
    comm_call_prepare(&prepared, caller->size);
    caller->hierarchy->call = &prepared;
    caller->used_rails = hierarchy_uses_rails(caller->hierarchy);
    return hierarchy_run(caller->hierarchy, &prepared, caller->number++, job_deadline());
}

static void check_call(struct job_rank *rank, const struct world *world, struct caller *caller,
                       const struct check_case *check) {
    int status = check_run(check, rank->rank, rank->size, call_it, caller);
    if (status != 0) {
        (void)fprintf(stderr, "%s, %d elements: %d %s\n", muster_type_name(check->call.type), (int)check->call.count,
                      status, muster_detail());
    }
    job_check(status == 0);
    bool is_on_rail = caller->hierarchy->member < (caller->used_rails ? world->rails : 1);
    job_check((hierarchy_algorithm(caller->hierarchy) == CHOICE_NO_ALGORITHM) == !is_on_rail);
}

/* Counts below the number of ranks, about a share, and of many parts, the last of which is not full. A world takes
 * every third type and reduction: all of them have come after three. */
static int every_type_and_reduction(struct job_rank *rank, void *argument) {
    static const size_t counts[] = {1, 9, 200, 1003, 5000};
    static const uint64_t pieces[] = {8, 256, 4096};
    const struct world *world = argument;
    uint32_t number = 0;
    for (int i = 0; i < MUSTER_TYPE_COUNT * MUSTER_REDUCTION_COUNT; i++) {
        struct check_case check = {.call = {.operation = COMM_ALL_REDUCE,
                                            .type = (enum muster_type)(i / MUSTER_REDUCTION_COUNT),
                                            .reduction = (enum muster_reduction)(i % MUSTER_REDUCTION_COUNT)},
                                   .seed = 77 + (uint64_t)i};
        bool is_rounded = muster_type_bytes(check.call.type) == 2 &&
                          (check.call.reduction == MUSTER_OP_PRODUCT || check.call.reduction == MUSTER_OP_AVERAGE);
        bool is_next = i % 3 == (int)(world - worlds) % 3;
        if (!is_next || !reduce_is_defined(check.call.type, check.call.reduction) || is_rounded) {
            continue;
        }
        struct choice *choice = make_choice(algorithms[i % ALGORITHM_COUNT], pieces[i / 3 % 3]);
        struct caller caller = {
            .hierarchy = make_hierarchy(rank, choice, world->is_crowded), .size = rank->size, .number = number};
        for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
            check.call.count = counts[j];
            check.in_place = (i + (int)j) % 2 == 0;
            check_call(rank, world, &caller, &check);
        }
        number = caller.number;
        hierarchy_free(caller.hierarchy);
        free(choice);
    }
    return 0;
}

static void every_layout_as_processes(void **state) {
    (void)state;
    for (size_t i = 0; i < WORLD_COUNT; i += world_stride) {
        run_world(&worlds[i], every_type_and_reduction, &worlds[i], false);
    }
}

static void every_layout_as_threads(void **state) {
    (void)state;
    for (size_t i = 0; i < WORLD_COUNT; i += world_stride == 1 ? 4 : 6) {
        run_world(&worlds[i], every_type_and_reduction, &worlds[i], true);
    }
}

/* With the built-in table: several parts of a mebibyte or two a rail. */
static int long_calls(struct job_rank *rank, void *argument) {
    const struct world *world = argument;
    struct caller caller = {.hierarchy = make_hierarchy(rank, NULL, world->is_crowded), .size = rank->size};
    struct check_case check = {
        .call = {.operation = COMM_ALL_REDUCE, .type = MUSTER_FLOAT32, .reduction = MUSTER_OP_SUM}, .seed = 5};
    static const size_t counts[] = {(256 << 10) / 4, 1000003, 3 << 20};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        check.call.count = counts[i];
        check.in_place = i % 2 == 0;
        check_call(rank, world, &caller, &check);
    }
    job_check(caller.used_rails);
    hierarchy_free(caller.hierarchy);
    return 0;
}

static void long_calls_have_several_parts_under_way(void **state) {
    (void)state;
    for (size_t i = 0; i < WORLD_COUNT; i += world_stride + 1) {
        run_world(&worlds[i], long_calls, &worlds[i], false);
    }
}

/* ---- the same bits everywhere, and in a second run ---- */

enum { INEXACT_COUNT = 30001 };

static void check_same_bits(struct job_rank *rank, struct hierarchy *hierarchy, uint32_t number, const float *sum) {
    float *all = malloc(INEXACT_COUNT * sizeof *all * rank->size);
    struct comm_call gather = {
        .operation = COMM_ALL_GATHER, .type = MUSTER_FLOAT32, .count = INEXACT_COUNT, .send = sum, .receive = all};
    comm_call_prepare(&gather, rank->size);
    job_check(all && hierarchy_run(hierarchy, &gather, number, job_deadline()) == 0);
    for (uint32_t other = 0; other < rank->size; other++) {
        job_check(job_same_bits(sum, all + (size_t)other * INEXACT_COUNT, INEXACT_COUNT * sizeof *all));
    }
    free(all);
}

static int inexact_averages(struct job_rank *rank, void *argument) {
    const struct world *world = argument;
    float *send = malloc(INEXACT_COUNT * sizeof *send), *receive = malloc(INEXACT_COUNT * sizeof *receive);
    float *again = malloc(INEXACT_COUNT * sizeof *again);
    job_check(send && receive && again);
    for (uint32_t i = 0; i < INEXACT_COUNT; i++) {
        again[i] = send[i] = 1.0F / (float)(1 + (i * 31 + rank->rank * 17) % 1013) - 0.001F * (float)rank->rank;
    }
    uint32_t number = 0;
    for (size_t a = 0; a < ALGORITHM_COUNT; a++) {
        struct choice *choice = make_choice(algorithms[a], 8192);
        struct hierarchy *hierarchy = make_hierarchy(rank, choice, world->is_crowded);
        struct comm_call average = {.operation = COMM_ALL_REDUCE,
                                    .type = MUSTER_FLOAT32,
                                    .reduction = MUSTER_OP_AVERAGE,
                                    .count = INEXACT_COUNT,
                                    .send = send,
                                    .receive = receive};
        comm_call_prepare(&average, rank->size);
        job_check(hierarchy_run(hierarchy, &average, number++, job_deadline()) == 0);
        memcpy(again, send, INEXACT_COUNT * sizeof *again);
        average.send = average.receive = again;
        job_check(hierarchy_run(hierarchy, &average, number++, job_deadline()) == 0);
        job_check(job_same_bits(receive, again, INEXACT_COUNT * sizeof *again));
        check_same_bits(rank, hierarchy, number++, receive);
        hierarchy_free(hierarchy);
        free(choice);
    }
    free(send);
    free(receive);
    free(again);
    return 0;
}

static void averages_have_the_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < WORLD_COUNT; i += world_stride) {
        run_world(&worlds[i], inexact_averages, &worlds[i], false);
    }
}

/* ---- failures ---- */

enum { BEFORE_DEATH, NEVER, AFTER_DEATH, VICTIM = 0, FAILING_COUNT = 300000 };

static int stop_when_told(void *context) {
    struct job_rank *rank = context;
    return atomic_load(&rank->notice_count) > 0 ? status_fail(MUSTER_EPEER, "%s", rank->notices[0].sentence) : 0;
}

/* The victim is alone on its host, so that TCP tells of its death those on its rail. There is no context here by which
 * their neighbours hear of it: these wait until the deadline. */
static int until_death(struct job_rank *rank, void *argument) {
    (void)argument;
    struct choice *choice = make_choice(SCHEDULE_RING, 64 << 10);
    struct hierarchy *hierarchy = make_hierarchy(rank, choice, false);
    bool is_on_rail = hierarchy->member == 0;
    float *data = calloc(FAILING_COUNT, sizeof *data);
    struct comm_call call = {
        .operation = COMM_ALL_REDUCE, .type = MUSTER_FLOAT32, .count = FAILING_COUNT, .send = data, .receive = data};
    rank->waiter.stopped = stop_when_told;
    rank->waiter.context = rank;
    comm_call_prepare(&call, rank->size);
    uint32_t number = 0;
    for (; number < 3; number++) {
        job_check(hierarchy_run(hierarchy, &call, number, job_deadline()) == 0);
    }
    job_mark(rank->job, BEFORE_DEATH);
    if (rank->rank == VICTIM) {
        job_await(rank->job, NEVER, 1); /* it is killed here */
    }
    int code = 0;
    while (code == 0) {
        int64_t soon_ns = clock_deadline_ns(clock_monotonic_ns(), is_on_rail ? JOB_DEADLINE_MS : 2000);
        code = hierarchy_run(hierarchy, &call, number++, soon_ns);
    }
    job_check(code == (is_on_rail ? MUSTER_EPEER : MUSTER_ETIMEOUT));
    memset(data, 0, FAILING_COUNT * sizeof *data);
    free(data); /* nothing refers to it any more */
    job_mark(rank->job, AFTER_DEATH);
    job_await(rank->job, AFTER_DEATH, rank->size - 1);
    hierarchy_free(hierarchy);
    free(choice);
    return 0;
}

static void the_others_hear_of_a_death(void **state) {
    (void)state;
    static const uint32_t hosts[] = {0, 1, 2, 1};
    const struct job_options options = {.has_nodes = true, .ranks_per_host = 2, .host_of = hosts};
    struct job *job = job_start(4, until_death, NULL, &options);
    job_await(job_shared(job), BEFORE_DEATH, 4);
    job_kill(job, VICTIM);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(job_wait(job, rank), rank == VICTIM ? -1009 : 0);
    }
    job_free(job);
}

/* Two hosts of two ranks. The last one does not come: who is on its rail, and not its neighbour, waits for its
 * messages. */
static int await_the_last(struct job_rank *rank, void *argument) {
    enum { LAST = 3, MARK = 1 };
    (void)argument;
    if (rank->rank < LAST) {
        struct choice *choice = make_choice(SCHEDULE_RABENSEIFNER, 1024);
        struct hierarchy *hierarchy = make_hierarchy(rank, choice, false);
        int32_t data[3000] = {0};
        struct comm_call call = {
            .operation = COMM_ALL_REDUCE, .type = MUSTER_INT32, .count = 3000, .send = data, .receive = data};
        comm_call_prepare(&call, rank->size);
        job_check(hierarchy_run(hierarchy, &call, 1, clock_deadline_ns(clock_monotonic_ns(), 300)) == MUSTER_ETIMEOUT);
        job_check(hierarchy_awaits(hierarchy, LAST) == (rank->rank == 1));
        hierarchy_free(hierarchy);
        free(choice);
    }
    job_mark(rank->job, MARK);
    job_await(rank->job, MARK, rank->size);
    return 0;
}

static void who_does_not_come_is_named(void **state) {
    (void)state;
    static const uint32_t hosts[] = {0, 0, 1, 1};
    job_run(4, await_the_last, NULL, &(struct job_options){.has_nodes = true, .ranks_per_host = 2, .host_of = hosts});
}

/* ---- when ---- */

/* From how many bytes on a call goes in parts; 0: in none that is looked at. */
struct threshold {
    bool is_crowded;
    size_t bytes;
};

static int short_and_long_calls(struct job_rank *rank, void *argument) {
    const struct threshold *threshold = argument;
    struct hierarchy *hierarchy = make_hierarchy(rank, NULL, threshold->is_crowded);
    struct comm_call call = {.operation = COMM_ALL_REDUCE, .type = MUSTER_UINT8};
    hierarchy->call = &call;
    call.count = threshold->bytes > 0 ? threshold->bytes - 1 : (size_t)64 << 20;
    comm_call_prepare(&call, rank->size);
    job_check(!hierarchy_uses_rails(hierarchy));
    if (threshold->bytes > 0) {
        call.count++;
        job_check(hierarchy_uses_rails(hierarchy));
    }
    hierarchy_free(hierarchy);
    return 0;
}

static void short_calls_and_lone_ranks_need_no_rails(void **state) {
    (void)state;
    static const uint32_t pairs[] = {0, 0, 1, 1}, lone[] = {0, 1};
    struct threshold several = {false, (size_t)128 << 10}, one = {true, (size_t)2 << 20}, none = {false, 0};
    const struct job_options on_pairs = {.has_nodes = true, .ranks_per_host = 2, .host_of = pairs};
    job_run(4, short_and_long_calls, &several, &on_pairs);
    job_run(4, short_and_long_calls, &one, &on_pairs);
    job_run(2, short_and_long_calls, &none,
            &(struct job_options){.has_nodes = true, .ranks_per_host = 1, .host_of = lone});
}

/* Two hosts of two ranks. A table that says nothing about all_reduces between hosts, such as one of links alone. */
static int with_a_table_for_others(struct job_rank *rank, void *argument) {
    enum { COUNT = 1 << 20 };
    (void)argument;
    struct choice *choice = make_choice(SCHEDULE_BINOMIAL, 1 << 20);
    choice->rules[0].operation = COMM_BROADCAST;
    struct hierarchy *hierarchy = make_hierarchy(rank, choice, false);
    uint8_t *data = calloc(1, COUNT);
    struct comm_call call = {
        .operation = COMM_ALL_REDUCE, .type = MUSTER_UINT8, .count = COUNT, .send = data, .receive = data};
    comm_call_prepare(&call, rank->size);
    job_check(hierarchy_run(hierarchy, &call, 0, job_deadline()) == 0);
    job_check(hierarchy->algorithm == SCHEDULE_RING);
    hierarchy_free(hierarchy);
    free(data);
    free(choice);
    return 0;
}

static void a_table_for_others_changes_nothing(void **state) {
    (void)state;
    static const uint32_t hosts[] = {0, 0, 1, 1};
    const struct job_options options = {.has_nodes = true, .ranks_per_host = 2, .host_of = hosts};
    job_run(4, with_a_table_for_others, NULL, &options);
}

int main(void) {
    world_stride = part_stride("whole_matrix", 5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_as_processes),
        cmocka_unit_test(every_layout_as_threads),
        cmocka_unit_test(long_calls_have_several_parts_under_way),
        cmocka_unit_test(averages_have_the_same_bits),
        cmocka_unit_test(the_others_hear_of_a_death),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(short_calls_and_lone_ranks_need_no_rails),
        cmocka_unit_test(a_table_for_others_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
