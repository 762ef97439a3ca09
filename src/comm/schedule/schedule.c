/* Which generator an operation and an algorithm name; calls in place; a group of one. */
#include "comm/schedule/schedule.h"

#include <assert.h>

#include <muster/status.h>

#include "base/status.h"
#include "comm/schedule/schedule_impl.h"

typedef void generator(struct schedule *schedule);

static generator *const generators[][SCHEDULE_ALGORITHM_END] = {
    [COMM_BARRIER] = {[SCHEDULE_DISSEMINATION] = schedule_dissemination},
    [COMM_MONITORED_BARRIER] = {[SCHEDULE_DISSEMINATION] = schedule_dissemination},
    [COMM_ALL_REDUCE] = {[SCHEDULE_FLAT] = schedule_flat_all_reduce,
                         [SCHEDULE_RECURSIVE_DOUBLING] = schedule_doubling_all_reduce,
                         [SCHEDULE_RABENSEIFNER] = schedule_rabenseifner_all_reduce,
                         [SCHEDULE_RING] = schedule_ring_all_reduce},
    [COMM_REDUCE] = {[SCHEDULE_FLAT] = schedule_flat_reduce,
                     [SCHEDULE_BINOMIAL] = schedule_binomial_reduce,
                     [SCHEDULE_RING] = schedule_ring_reduce},
    [COMM_BROADCAST] = {[SCHEDULE_FLAT] = schedule_flat_broadcast,
                        [SCHEDULE_BINOMIAL] = schedule_binomial_broadcast,
                        [SCHEDULE_RING] = schedule_ring_broadcast},
    [COMM_ALL_GATHER] = {[SCHEDULE_FLAT] = schedule_flat_all_gather,
                         [SCHEDULE_RECURSIVE_DOUBLING] = schedule_doubling_all_gather,
                         [SCHEDULE_RING] = schedule_ring_all_gather},
    [COMM_GATHER] = {[SCHEDULE_FLAT] = schedule_flat_gather, [SCHEDULE_BINOMIAL] = schedule_binomial_gather},
    [COMM_SCATTER] = {[SCHEDULE_FLAT] = schedule_flat_scatter, [SCHEDULE_BINOMIAL] = schedule_binomial_scatter},
    [COMM_REDUCE_SCATTER] = {[SCHEDULE_FLAT] = schedule_flat_reduce_scatter,
                             [SCHEDULE_RECURSIVE_HALVING] = schedule_halving_reduce_scatter,
                             [SCHEDULE_RING] = schedule_ring_reduce_scatter},
    [COMM_SCAN] = {[SCHEDULE_RECURSIVE_DOUBLING] = schedule_doubling_scan},
    [COMM_EXSCAN] = {[SCHEDULE_RECURSIVE_DOUBLING] = schedule_doubling_scan},
    [COMM_ALL_TO_ALL] = {[SCHEDULE_FLAT] = schedule_flat_all_to_all,
                         [SCHEDULE_PAIRWISE] = schedule_pairwise_all_to_all,
                         [SCHEDULE_BRUCK] = schedule_bruck_all_to_all},
};

const char *schedule_algorithm_name(enum schedule_algorithm algorithm) {
    switch ((int)algorithm) {
#define ALGORITHM_CASE(name, value, text)                                                                              \
    case name:                                                                                                         \
        return text;
        SCHEDULE_ALGORITHM_TABLE(ALGORITHM_CASE)
#undef ALGORITHM_CASE
    default:
        return "unknown algorithm";
    }
}

static generator *generator_of(enum comm_operation operation, bool has_counts, enum schedule_algorithm algorithm) {
    size_t rows = sizeof generators / sizeof *generators;
    if ((size_t)operation >= rows || (size_t)algorithm >= SCHEDULE_ALGORITHM_END ||
        (has_counts && algorithm == SCHEDULE_BRUCK)) {
        return NULL;
    }
    return generators[operation][algorithm];
}

bool schedule_is_defined(enum comm_operation operation, bool has_counts, enum schedule_algorithm algorithm) {
    return generator_of(operation, has_counts, algorithm) != NULL;
}

/* ---- calls ---- */

/* The block of the larger buffer, of `blocks`, that the smaller one may be. */
static uint32_t own_block(const struct comm_call *call, uint32_t rank) {
    switch (call->operation) {
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER:
        return rank;
    case COMM_GATHER:
    case COMM_SCATTER:
        return call->root;
    default:
        return 0; /* the buffers are alike */
    }
}

static bool is_in_place(const struct comm_call *call, const struct blocks *blocks, uint32_t rank) {
    if (!call->send || !call->receive) {
        return false;
    }
    bool sends_more = call->operation == COMM_SCATTER || call->operation == COMM_REDUCE_SCATTER;
    uintptr_t larger = (uintptr_t)(sends_more ? call->send : call->receive);
    uintptr_t smaller = (uintptr_t)(sends_more ? call->receive : call->send);
    return larger + blocks_begin(blocks, own_block(call, rank)) * call->type_bytes == smaller;
}

/* A group of one: its data is the result. */
static void generate_alone(struct schedule *schedule) {
    bool has_input = schedule->call->operation != COMM_BARRIER && schedule->call->operation != COMM_MONITORED_BARRIER &&
                     schedule->call->operation != COMM_BROADCAST && schedule->call->operation != COMM_EXSCAN;
    if (has_input) {
        schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, 0), schedule_at(SCHEDULE_SEND, 0),
                      schedule->blocks.total);
    }
}

int schedule_generate(const struct comm_call *call, enum schedule_algorithm algorithm, uint32_t rank, uint32_t size,
                      schedule_sink *sink, void *context) {
    assert(size > 0 && rank < size && call->root < size);
    generator *generate = generator_of(call->operation, call->send_counts || call->receive_counts, algorithm);
    if (!generate) {
        return status_fail(MUSTER_EINVAL, "%s has no %s algorithm", comm_operation_name(call->operation),
                           schedule_algorithm_name(algorithm));
    }
    struct schedule schedule = {.call = call,
                                .rank = rank,
                                .size = size,
                                .blocks = blocks_equal(size, call->count, comm_call_counts(call)),
                                .sink = sink,
                                .context = context};
    schedule.in_place = is_in_place(call, &schedule.blocks, rank);
    (size == 1 ? generate_alone : generate)(&schedule);
    return schedule.result;
}
