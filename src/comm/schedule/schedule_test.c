/* Schedules, carried out by a simulator for all ranks at once: every operation and algorithm, sizes 1 to 17, 31 to 33
 * and 64, every root, many counts, in place and not. Results, races, locking up, and the costs that are promised. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "comm/schedule/schedule.h"
#include "comm/schedule/schedule_simulator_test_support.h"

enum { GUARD_COUNT = 8 };

/* ---- calls ---- */

struct shape { /* of one case */
    enum comm_operation operation;
    uint32_t root;
    size_t count;
    bool has_counts, in_place;
};

/* counts_of[a][b]: what a has for b in all_to_all, the block of b elsewhere. */
static size_t counts_sent[SIMULATOR_SIZE_MAX][SIMULATOR_SIZE_MAX],
    counts_received[SIMULATOR_SIZE_MAX][SIMULATOR_SIZE_MAX];

static size_t sum_of(const size_t *counts, uint32_t end) {
    size_t sum = 0;
    for (uint32_t i = 0; i < end; i++) {
        sum += counts[i];
    }
    return sum;
}

static void counts_make(const struct shape *shape) {
    for (uint32_t a = 0; a < world.size; a++) {
        for (uint32_t b = 0; b < world.size; b++) {
            size_t uneven = shape->operation == COMM_ALL_TO_ALL ? (a * 3 + b * 5 + a * b) % 4 : (b * 7 + 3) % 5;
            uneven = shape->count == 0 ? (size_t)(b == world.size / 2) * 3 : uneven * shape->count;
            counts_sent[a][b] = shape->has_counts ? uneven : shape->count;
            counts_received[b][a] = counts_sent[a][b];
        }
    }
    if (shape->operation != COMM_ALL_TO_ALL) {
        memcpy(counts_received, counts_sent, sizeof counts_sent);
    }
}

static void rank_make(uint32_t number, const struct shape *shape) {
    struct rank *rank = &world.ranks[number];
    bool is_root = number == shape->root, aliased = shape->in_place;
    size_t blocks = sum_of(counts_sent[number], world.size), own = counts_sent[number][number], own_begin = 0;
    rank->send_count = rank->receive_count = shape->count;
    switch (shape->operation) {
    case COMM_REDUCE:
        rank->receive_count = is_root ? shape->count : 0;
        aliased = aliased && is_root;
        break;
    case COMM_BROADCAST:
        rank->send_count = 0;
        break;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        rank->send_count = own;
        rank->receive_count = shape->operation == COMM_GATHER && !is_root ? 0 : blocks;
        aliased = aliased && rank->receive_count > 0;
        own_begin = sum_of(counts_sent[number], number);
        break;
    case COMM_SCATTER:
    case COMM_REDUCE_SCATTER:
        rank->send_count = shape->operation == COMM_SCATTER && !is_root ? 0 : blocks;
        rank->receive_count = own;
        aliased = aliased && rank->send_count > 0;
        own_begin = sum_of(counts_sent[number], number);
        break;
    case COMM_ALL_TO_ALL:
        rank->send_count = blocks;
        rank->receive_count = sum_of(counts_received[number], world.size);
        break;
    case COMM_EXSCAN: /* rank 0 is given nothing */
        rank->receive_count = number > 0 ? shape->count : 0;
        aliased = aliased && number > 0;
        break;
    case COMM_SCAN:
    case COMM_ALL_REDUCE:
        break;
    default:
        rank->send_count = rank->receive_count = 0;
    }
    rank->memory_count = rank->send_count + rank->receive_count + 4 * GUARD_COUNT;
    rank->memory = malloc((rank->memory_count) * sizeof *rank->memory);
    assert_non_null(rank->memory);
    for (size_t i = 0; i < rank->memory_count; i++) {
        rank->memory[i] = SYMBOL_NOTHING;
    }
    rank->send = rank->memory + GUARD_COUNT;
    rank->receive = rank->send + rank->send_count + GUARD_COUNT;
    if (aliased && rank->send_count > rank->receive_count) {
        rank->receive = rank->send + own_begin;
    } else if (aliased) {
        rank->send = rank->receive + own_begin;
    }
    for (size_t i = 0; i < rank->send_count; i++) {
        rank->send[i] = symbol_input(number, i);
    }
    for (size_t i = 0; shape->operation == COMM_BROADCAST && is_root && i < shape->count; i++) {
        rank->receive[i] = symbol_input(number, i);
    }
    rank->call = (struct comm_call){.operation = shape->operation,
                                    .type = MUSTER_INT32,
                                    .root = shape->root,
                                    .count = shape->has_counts ? 0 : shape->count,
                                    .send = rank->send_count > 0 ? rank->send : NULL,
                                    .receive = rank->receive_count > 0 ? rank->receive : NULL};
    if (shape->has_counts && (shape->operation == COMM_SCATTER || shape->operation == COMM_ALL_TO_ALL)) {
        rank->call.send_counts = counts_sent[number];
    }
    if (shape->has_counts && shape->operation != COMM_SCATTER) {
        rank->call.receive_counts = counts_received[number];
    }
    comm_call_prepare(&rank->call, world.size);
    world_schedule(rank, number);
}

/* ---- what must come out ---- */

static uint64_t everybody(void) {
    return world.size == 64 ? ~UINT64_C(0) : (UINT64_C(1) << world.size) - 1;
}

static void check_sums(uint32_t number, size_t first_position, const symbol *model) {
    const struct rank *rank = &world.ranks[number];
    for (size_t i = 0; i < rank->receive_count; i++) {
        symbol got = rank->receive[i];
        if (got == SYMBOL_NOTHING || symbol_ranks(got) != everybody() || symbol_position(got) != first_position + i ||
            (model && got != model[i])) {
            fail_msg("%s: rank %u, element %zu: not everybody's, or in another order than elsewhere", world.doing,
                     number, i);
        }
    }
}

/* Of the ranks before `end`, all. */
static void check_prefix(uint32_t number, uint32_t end) {
    const struct rank *rank = &world.ranks[number];
    uint64_t expected = end == 64 ? ~UINT64_C(0) : (UINT64_C(1) << end) - 1;
    for (size_t i = 0; i < rank->receive_count; i++) {
        symbol got = rank->receive[i];
        if (got == SYMBOL_NOTHING || symbol_ranks(got) != expected || symbol_position(got) != i ||
            !symbol_is_ordered(got)) {
            fail_msg("%s: rank %u, element %zu: not that of the first %u ranks in their order", world.doing, number, i,
                     end);
        }
    }
}

static void check_block(uint32_t number, size_t at, uint32_t from, size_t position, size_t count) {
    const struct rank *rank = &world.ranks[number];
    for (size_t i = 0; i < count; i++) {
        if (rank->receive[at + i] != symbol_input(from, position + i)) {
            fail_msg("%s: rank %u, element %zu is %x", world.doing, number, at + i, rank->receive[at + i]);
        }
    }
}

static void check_result(uint32_t number, const struct shape *shape) {
    const struct rank *rank = &world.ranks[number];
    switch (shape->operation) {
    case COMM_ALL_REDUCE:
    case COMM_REDUCE:
        check_sums(number, 0, shape->operation == COMM_REDUCE ? NULL : world.ranks[0].receive);
        break;
    case COMM_REDUCE_SCATTER:
        check_sums(number, sum_of(counts_sent[number], number), NULL);
        break;
    case COMM_SCAN:
        check_prefix(number, number + 1);
        break;
    case COMM_EXSCAN:
        check_prefix(number, number);
        break;
    case COMM_BROADCAST:
        check_block(number, 0, shape->root, 0, shape->count);
        break;
    case COMM_SCATTER:
        check_block(number, 0, shape->root, sum_of(counts_sent[number], number), rank->receive_count);
        break;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        for (uint32_t from = 0, at = 0; rank->receive_count > 0 && from < world.size; from++) {
            check_block(number, at, from, 0, counts_sent[number][from]);
            at += (uint32_t)counts_sent[number][from];
        }
        break;
    default:
        for (uint32_t from = 0, at = 0; rank->receive_count > 0 && from < world.size; from++) {
            check_block(number, at, from, sum_of(counts_sent[from], number), counts_received[number][from]);
            at += (uint32_t)counts_received[number][from];
        }
    }
}

/* Nothing but the results and scratch has been written. */
static void check_rest(uint32_t number, const struct shape *shape) {
    const struct rank *rank = &world.ranks[number];
    for (size_t i = 0; i < rank->memory_count; i++) {
        const symbol *at = rank->memory + i;
        bool in_receive = at >= rank->receive && at < rank->receive + rank->receive_count;
        bool in_send = at >= rank->send && at < rank->send + rank->send_count;
        symbol expected = in_send ? symbol_input(number, (size_t)(at - rank->send)) : SYMBOL_NOTHING;
        if (!in_receive && *at != expected) {
            fail_msg("%s: rank %u writes outside of its result (%d)", world.doing, number, shape->in_place);
        }
    }
}

static uint32_t log2_above(uint32_t size) {
    uint32_t bits = 0;
    while (UINT64_C(1) << bits < size) {
        bits++;
    }
    return bits;
}

/* The steps that the comments at the implementations promise. */
static uint32_t steps_promised(const struct shape *shape) {
    uint32_t size = world.size, up = log2_above(size), is_power = (size & (size - 1)) == 0;
    uint32_t halvings = is_power ? up : up - 1, fold = is_power ? 0 : 2;
    uint32_t moves_aside = shape->operation == COMM_ALL_TO_ALL && shape->in_place && shape->count > 0 ? 1 : 0;
    bool sums = shape->operation == COMM_ALL_REDUCE || shape->operation == COMM_REDUCE;
    switch (world.algorithm) {
    case SCHEDULE_FLAT:
        return shape->operation == COMM_ALL_REDUCE ? size : sums ? size - 1 : 1 + moves_aside;
    case SCHEDULE_RECURSIVE_DOUBLING:
        if (comm_is_prefix(shape->operation)) {
            return shape->operation == COMM_SCAN ? up : 1 + log2_above(size - 1);
        } /* all_gather has its copies in step 0 */
        return shape->operation == COMM_ALL_GATHER ? 1 + halvings + (fold > 0) : halvings + fold;
    case SCHEDULE_RABENSEIFNER:
        return 2 * halvings + fold;
    case SCHEDULE_RECURSIVE_HALVING:
        return halvings + fold;
    case SCHEDULE_RING:
        return shape->operation == COMM_ALL_REDUCE  ? 2 * (size - 1)
               : shape->operation == COMM_REDUCE    ? size
               : shape->operation == COMM_BROADCAST ? up + size - 1
                                                    : size - 1;
    case SCHEDULE_PAIRWISE:
        return size - 1 + moves_aside;
    case SCHEDULE_BRUCK:
        return up + 1;
    default:
        return up;
    }
}

/* Elements that the busiest rank sends or receives, as the comments promise for equal counts; parts are rounded up. */
static size_t most_promised(const struct shape *shape) {
    size_t size = world.size, n = shape->count, part = (n + size - 1) / size, up = log2_above(world.size);
    size_t power = (size_t)1 << (up - ((size & (size - 1)) != 0)), halvings = up - ((size & (size - 1)) != 0);
    size_t fold = size == power ? 0 : 1, folded_blocks = fold ? size + 2 * (power - 1) : size - 1;
    switch (world.algorithm) {
    case SCHEDULE_FLAT:
    case SCHEDULE_PAIRWISE:
        return (size - 1) * n;
    case SCHEDULE_BINOMIAL:
        return shape->operation == COMM_BROADCAST || shape->operation == COMM_REDUCE ? n * up : (size - 1) * n;
    case SCHEDULE_RECURSIVE_DOUBLING:
        return comm_is_prefix(shape->operation)      ? n * (up + 1)
               : shape->operation == COMM_ALL_GATHER ? folded_blocks * n
                                                     : n * (halvings + fold);
    case SCHEDULE_RECURSIVE_HALVING:
        return folded_blocks * n;
    case SCHEDULE_RABENSEIFNER:
        return 2 * (power - 1) * ((n + power - 1) / power) + fold * n;
    case SCHEDULE_RING:
        return shape->operation == COMM_ALL_REDUCE  ? 2 * (size - 1) * part
               : shape->operation == COMM_REDUCE    ? 2 * (size - 1) * part
               : shape->operation == COMM_BROADCAST ? 2 * (size - 1) * part
                                                    : (size - 1) * n;
    case SCHEDULE_BRUCK:
        return up * (size / 2) * n;
    default:
        return 0;
    }
}

static void check_cost(const struct shape *shape) {
    if (world.size > 1) {
        assert_int_equal(world.step_count, steps_promised(shape));
    }
    for (uint32_t i = 0; world.size > 1 && !shape->has_counts && i < world.size; i++) {
        if (world.ranks[i].sent_count > most_promised(shape) || world.ranks[i].received_count > most_promised(shape)) {
            fail_msg("%s: rank %u sends %zu and receives %zu elements, promised are %zu", world.doing, i,
                     world.ranks[i].sent_count, world.ranks[i].received_count, most_promised(shape));
        }
    }
}

static void run_case(uint32_t size, enum schedule_algorithm algorithm, const struct shape *shape) {
    static char text[256];
    (void)snprintf(text, sizeof text, "%s, %s, size %u, root %u, count %zu%s%s", comm_operation_name(shape->operation),
                   schedule_algorithm_name(algorithm), size, shape->root, shape->count,
                   shape->has_counts ? ", counts per rank" : "", shape->in_place ? ", in place" : "");
    world_begin(size, algorithm, text);
    counts_make(shape);
    for (uint32_t i = 0; i < size; i++) {
        rank_make(i, shape);
    }
    world_run();
    for (uint32_t i = 0; i < size; i++) {
        check_result(i, shape);
        check_rest(i, shape);
    }
    check_cost(shape);
    world_free();
}

/* ---- cases ---- */

static bool may_have_counts(enum comm_operation operation) {
    return operation == COMM_ALL_GATHER || operation == COMM_GATHER || operation == COMM_SCATTER ||
           operation == COMM_REDUCE_SCATTER || operation == COMM_ALL_TO_ALL;
}

static void run_counts(uint32_t size, enum schedule_algorithm algorithm, struct shape shape) {
    const size_t counts[] = {0, 1, 2, size - 1, size, size + 1, 1000};
    bool is_large = size > 17;
    for (int variant = 0; variant < 4; variant++) {
        shape.has_counts = variant & 1;
        shape.in_place = variant & 2;
        if (!schedule_is_defined(shape.operation, shape.has_counts, algorithm) ||
            (shape.has_counts &&
             (!may_have_counts(shape.operation) || (shape.in_place && shape.operation == COMM_ALL_TO_ALL)))) {
            continue;
        }
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            shape.count = counts[i];
            /* What grows with the square of the size is tried with less. */
            bool is_heavy = may_have_counts(shape.operation) && (is_large ? i > 2 : i == 6 && size > 5);
            if (!is_heavy && !(is_large && i == 6)) {
                run_case(size, algorithm, &shape);
            }
        }
    }
}

static void run_operation(enum comm_operation operation) {
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 32, 33, 64};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int algorithm = 1; algorithm < SCHEDULE_ALGORITHM_END; algorithm++) {
            uint32_t roots = comm_has_root(operation) ? sizes[s] : 1, stride = sizes[s] > 17 ? 5 : 1;
            for (uint32_t root = 0; root < roots; root += stride) {
                run_counts(sizes[s], (enum schedule_algorithm)algorithm,
                           (struct shape){.operation = operation, .root = root});
            }
        }
    }
}

#define OPERATION_TEST(name, operation)                                                                                \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        run_operation(operation);                                                                                      \
    }
OPERATION_TEST(all_reduce, COMM_ALL_REDUCE)
OPERATION_TEST(reduce, COMM_REDUCE)
OPERATION_TEST(broadcast, COMM_BROADCAST)
OPERATION_TEST(all_gather, COMM_ALL_GATHER)
OPERATION_TEST(gather, COMM_GATHER)
OPERATION_TEST(scatter, COMM_SCATTER)
OPERATION_TEST(reduce_scatter, COMM_REDUCE_SCATTER)
OPERATION_TEST(all_to_all, COMM_ALL_TO_ALL)
OPERATION_TEST(scan, COMM_SCAN)
OPERATION_TEST(exscan, COMM_EXSCAN)

/* Nobody leaves a barrier before everybody has come: what each has heard of travels with the messages. */
static void a_barrier_hears_of_everybody(void **state) {
    (void)state;
    for (uint32_t size = 1; size <= SIMULATOR_SIZE_MAX; size++) {
        struct shape shape = {.operation = COMM_BARRIER};
        uint64_t heard[SIMULATOR_SIZE_MAX], before[SIMULATOR_SIZE_MAX];
        run_case(size, SCHEDULE_DISSEMINATION, &shape);
        world_begin(size, SCHEDULE_DISSEMINATION, "barrier");
        for (uint32_t i = 0; i < size; i++) {
            rank_make(i, &shape);
            heard[i] = UINT64_C(1) << i;
        }
        for (uint32_t step = 0; step < log2_above(size); step++) {
            memcpy(before, heard, sizeof heard);
            for (uint32_t i = 0; i < size; i++) {
                for (size_t k = 0; k < world.ranks[i].action_count; k++) {
                    const struct schedule_action *action = &world.ranks[i].actions[k];
                    if (action->step == step && action->kind == SCHEDULE_DO_RECEIVE) {
                        heard[i] |= before[action->peer];
                    }
                }
            }
        }
        for (uint32_t i = 0; i < size; i++) {
            assert_true(heard[i] == everybody());
        }
        world_free();
    }
}

static int stop_at_three(void *context, const struct schedule_action *action) {
    (void)action;
    return ++*(int *)context == 3 ? 42 : 0;
}

static void a_sink_can_stop(void **state) {
    (void)state;
    struct comm_call call = {.operation = COMM_ALL_REDUCE, .type = MUSTER_INT8, .count = 100};
    int seen = 0;
    assert_int_equal(schedule_generate(&call, SCHEDULE_RING, 3, 1000, stop_at_three, &seen), 42);
    assert_int_equal(seen, 3);
}

static void what_is_not_there_is_refused(void **state) {
    (void)state;
    struct comm_call call = {.operation = COMM_BARRIER};
    int seen = 0;
    assert_int_equal(schedule_generate(&call, SCHEDULE_RING, 0, 2, stop_at_three, &seen), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "barrier has no ring algorithm");
    call.operation = COMM_SEND;
    assert_int_equal(schedule_generate(&call, SCHEDULE_FLAT, 0, 2, stop_at_three, &seen), MUSTER_EINVAL);
    assert_int_equal(seen, 0);
    assert_false(schedule_is_defined(COMM_ALL_TO_ALL, true, SCHEDULE_BRUCK));
    assert_true(schedule_is_defined(COMM_ALL_TO_ALL, false, SCHEDULE_BRUCK));
    assert_string_equal(schedule_algorithm_name((enum schedule_algorithm)99), "unknown algorithm");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce),
        cmocka_unit_test(reduce),
        cmocka_unit_test(broadcast),
        cmocka_unit_test(all_gather),
        cmocka_unit_test(gather),
        cmocka_unit_test(scatter),
        cmocka_unit_test(reduce_scatter),
        cmocka_unit_test(all_to_all),
        cmocka_unit_test(scan),
        cmocka_unit_test(exscan),
        cmocka_unit_test(a_barrier_hears_of_everybody),
        cmocka_unit_test(a_sink_can_stop),
        cmocka_unit_test(what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
