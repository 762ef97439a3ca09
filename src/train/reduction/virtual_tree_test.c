/* The tree over virtual ranks: the same sum for every split of them, for all numbers of virtual ranks up to 64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/reduction/virtual_tree.h"

enum { MOST = 64 };

/* Stands for an addition, in which neither order nor brackets may be changed. */
static uint64_t add(uint64_t left, uint64_t right) {
    uint64_t x = left * UINT64_C(0x9e3779b97f4a7c15) + (right ^ (right >> 31)) + 1;
    return (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
}

static uint64_t leaf(uint32_t v) {
    return v * UINT64_C(0x94d049bb133111eb) + 12345;
}

/* The tree as the header says, from above. */
static uint64_t tree(uint32_t begin, uint32_t width, uint32_t virtual_ranks) {
    if (width == 1) {
        return leaf(begin);
    }
    uint64_t left = tree(begin, width / 2, virtual_ranks);
    uint32_t middle = begin + width / 2;
    return middle >= virtual_ranks ? left : add(left, tree(middle, width / 2, virtual_ranks));
}

static void merge(uint64_t *values, uint32_t *depth, uint32_t additions) {
    for (; additions > 0; additions--) {
        --*depth;
        values[*depth - 1] = add(values[*depth - 1], values[*depth]);
    }
}

/* What a rank of an interval has in the end; its nodes and their values. */
static void compute(struct virtual_interval interval, struct virtual_stack *nodes, uint64_t *values) {
    uint32_t depth = 0, most = 0, deepest = 0;
    nodes->count = 0;
    for (uint32_t i = 0; i < interval.count; i++) {
        most = depth > most ? depth : most;
        values[depth++] = leaf(interval.first + i);
        merge(values, &depth, virtual_stack_push(nodes, (struct virtual_node){0, interval.first + i}));
        assert_int_equal(depth, nodes->count);
    }
    struct virtual_stack again;
    virtual_interval_nodes(interval, &again, &deepest);
    assert_int_equal(deepest, most);
    assert_int_equal(again.count, nodes->count);
    assert_memory_equal(again.nodes, nodes->nodes, nodes->count * sizeof *nodes->nodes);
}

static uint64_t sum_of_ranks(uint32_t virtual_ranks, const struct virtual_interval *intervals, uint32_t ranks) {
    struct virtual_stack whole = {.count = 0}, nodes;
    uint64_t values[VIRTUAL_NODES_MAX] = {0}, own[VIRTUAL_NODES_MAX] = {0};
    uint32_t depth = 0, next = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        assert_int_equal(intervals[rank].first, next);
        assert_true(intervals[rank].count > 0);
        next += intervals[rank].count;
        compute(intervals[rank], &nodes, own);
        for (uint32_t i = 0; i < nodes.count; i++) {
            values[depth++] = own[i];
            merge(values, &depth, virtual_stack_push(&whole, nodes.nodes[i]));
        }
    }
    assert_int_equal(next, virtual_ranks);
    merge(values, &depth, virtual_stack_close(&whole));
    assert_true(depth == 1 && whole.count == 1);
    return values[0];
}

static void sum_is_the_same_in_every_world(void **state) {
    (void)state;
    struct virtual_interval intervals[MOST];
    for (uint32_t virtual_ranks = 1; virtual_ranks <= MOST; virtual_ranks++) {
        uint64_t expected = tree(0, MOST, virtual_ranks);
        for (uint32_t ranks = 1; ranks <= virtual_ranks; ranks++) {
            for (uint32_t rank = 0; rank < ranks; rank++) {
                intervals[rank] = virtual_interval_of(virtual_ranks, rank, ranks);
                assert_true(intervals[rank].count >= virtual_ranks / ranks);
                assert_true(intervals[rank].count <= (virtual_ranks + ranks - 1) / ranks);
            }
            assert_true(sum_of_ranks(virtual_ranks, intervals, ranks) == expected);
        }
    }
}

/* Not only even ones: all splits into three. */
static void nor_does_it_depend_on_where_ranks_begin(void **state) {
    (void)state;
    for (uint32_t virtual_ranks = 3; virtual_ranks <= 40; virtual_ranks++) {
        uint64_t expected = tree(0, MOST, virtual_ranks);
        for (uint32_t a = 1; a < virtual_ranks - 1; a++) {
            for (uint32_t b = a + 1; b < virtual_ranks; b++) {
                struct virtual_interval intervals[] = {{0, a}, {a, b - a}, {b, virtual_ranks - b}};
                assert_true(sum_of_ranks(virtual_ranks, intervals, 3) == expected);
            }
        }
    }
}

static void largest_tree_fits(void **state) {
    (void)state;
    struct virtual_stack nodes;
    uint32_t deepest = 0;
    virtual_interval_nodes((struct virtual_interval){1, 4094}, &nodes, &deepest);
    assert_int_equal(nodes.count, 22); /* 1, 2-3, 4-7 ... and as many on the other side */
    virtual_interval_nodes((struct virtual_interval){0, 4096}, &nodes, &deepest);
    assert_true(nodes.count == 1 && nodes.nodes[0].level == 12 && deepest == 12);
}

/* Of an fsdp: after each round as many values wait as the number of virtual ranks so far has binary digits that are 1.
 */
static void rounds_wait_for_little(void **state) {
    (void)state;
    for (uint32_t virtual_ranks = 1; virtual_ranks <= 64; virtual_ranks++) {
        for (uint32_t each = 1; each <= virtual_ranks; each++) {
            uint32_t expected = 0;
            for (uint32_t done = each; done < virtual_ranks; done += each) {
                uint32_t ones = (uint32_t)__builtin_popcount(done);
                expected = ones > expected ? ones : expected;
            }
            assert_int_equal(virtual_rounds_deepest(virtual_ranks, each), expected);
        }
    }
    assert_int_equal(virtual_rounds_deepest(4096, 1), 12);
    for (uint32_t rank = 0, all = 0; rank < 5; rank++) {
        all += virtual_turns_of(13, rank, 5);
        assert_int_equal(virtual_turns_of(13, rank, 5), rank < 3 ? 3 : 2);
        assert_true(rank < 4 || all == 13);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_is_the_same_in_every_world),
        cmocka_unit_test(nor_does_it_depend_on_where_ranks_begin),
        cmocka_unit_test(largest_tree_fits),
        cmocka_unit_test(rounds_wait_for_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
