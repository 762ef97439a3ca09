/* Virtual ranks of real ranks: who has which, sums of small vectors, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/virtual_ranks.h>

#include "comm/group/ranks_test_support.h"

enum { ELEMENTS = 3, MOST = 64 };

/* Numbers whose sum depends on the order. */
static double value_of(uint32_t v, size_t i) {
    uint32_t x = (v * 131 + (uint32_t)i + 7) * 0x2c1b3c6dU;
    x = (x ^ x >> 12) * 0x297a2d39U;
    return (double)(int32_t)(x ^ x >> 15) * (v % 5 == 0 ? 1e10 : 1e-6);
}

/* The sum of `width` virtual ranks from `begin` on, as muster/virtual_ranks.h says. */
static double tree(uint32_t begin, uint32_t width, uint32_t virtual_ranks, size_t i) {
    if (width == 1) {
        return value_of(begin, i);
    }
    double left = tree(begin, width / 2, virtual_ranks, i);
    uint32_t middle = begin + width / 2;
    return middle >= virtual_ranks ? left : left + tree(middle, width / 2, virtual_ranks, i);
}

static int add_up(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t virtual_ranks = rank->size; virtual_ranks <= MOST; virtual_ranks++) {
        uint32_t first = 0, count = 0, stride = 0;
        double values[MOST][ELEMENTS], sum[ELEMENTS];
        rank_check_code(rank, muster_virtual_ranks(group, virtual_ranks, &first, &count), MUSTER_OK);
        for (uint32_t v = 0; v < count; v++) {
            for (size_t i = 0; i < ELEMENTS; i++) {
                values[v][i] = value_of(first + v, i);
            }
        }
        rank_check_code(rank, muster_virtual_sum(group, virtual_ranks, values, sum, ELEMENTS, MUSTER_FLOAT64),
                        MUSTER_OK);
        for (size_t i = 0; i < ELEMENTS; i++) {
            double expected = tree(0, MOST, virtual_ranks, i);
            rank_check(rank, sum[i] == expected);
        }
        rank_check_code(rank, muster_virtual_turns(group, virtual_ranks, &first, &stride, &count), MUSTER_OK);
        rank_check(rank, first == rank->rank && stride == rank->size && first + (count - 1) * stride < virtual_ranks &&
                             first + count * stride >= virtual_ranks);
        for (uint32_t v = 0; v < count; v++) {
            for (size_t i = 0; i < ELEMENTS; i++) {
                values[v][i] = value_of(first + v * stride, i);
            }
        }
        memset(sum, 0, sizeof sum);
        rank_check_code(rank, muster_virtual_turns_sum(group, virtual_ranks, values, sum, ELEMENTS, MUSTER_FLOAT64),
                        MUSTER_OK);
        for (size_t i = 0; i < ELEMENTS; i++) {
            double expected = tree(0, MOST, virtual_ranks, i);
            rank_check(rank, sum[i] == expected);
        }
    }
    muster_group_free(group);
    return 0;
}

static void sums_have_the_same_bits_in_every_world(void **state) {
    (void)state;
    struct ranks_options apart = {.ranks_per_host = 2};
    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
        ranks_run(ranks, add_up, NULL);
    }
    ranks_run_with(3, add_up, NULL, &apart);
}

static int ask_for_the_impossible(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    uint32_t first = 7, count = 7;
    int32_t number = 1, sum = 0;
    rank_check_code(rank, muster_virtual_ranks(group, 1, &first, &count), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "2 ranks, but only 1 virtual ranks") != NULL);
    rank_check_code(rank, muster_virtual_ranks(group, 0, &first, &count), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_ranks(group, MUSTER_VIRTUAL_RANKS_MAX + 1, &first, &count), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_ranks(NULL, 2, &first, &count), MUSTER_EINVAL);
    rank_check(rank, first == 7 && count == 7);
    rank_check_code(rank, muster_virtual_turns(group, 1, &first, &first, &count), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_turns(group, 2, &first, NULL, &count), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "stride") != NULL);
    rank_check_code(rank, muster_virtual_turns_sum(NULL, 2, &number, &sum, 1, MUSTER_INT32), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_turns_sum(group, SIZE_MAX, &number, &sum, 1, MUSTER_INT32), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_sum(group, 2, NULL, &sum, 1, MUSTER_INT32), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_sum(group, 2, &number, &sum, 1, MUSTER_TYPE_COUNT), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_sum(group, 2, &number, &sum, SIZE_MAX / 8, MUSTER_INT32), MUSTER_EINVAL);
    rank_check_code(rank, muster_virtual_sum(group, 2, NULL, NULL, 0, MUSTER_INT32), MUSTER_OK);
    rank_check_code(rank, muster_virtual_sum(group, 2, &number, &sum, 1, MUSTER_INT32), MUSTER_OK);
    rank_check(rank, sum == 2); /* nothing of this was a failure of the group */
    muster_group_free(group);
    return 0;
}

static void wrong_arguments(void **state) {
    (void)state;
    ranks_run(2, ask_for_the_impossible, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_same_bits_in_every_world),
        cmocka_unit_test(wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
