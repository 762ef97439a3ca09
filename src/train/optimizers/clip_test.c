/* Clipping by the norm of all gradients; values of PyTorch 2.13's clip_grad_norm_. */
#include <muster/optimizer.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"

enum { COUNT = 1003 };

static void a_long_gradient_is_made_shorter(void **state) {
    (void)state;
    float a[2] = {3, 0}, b[1] = {4};
    float *const gradients[] = {a, NULL, b};
    const size_t counts[] = {2, 7, 1};
    double norm = 0;
    assert_int_equal(muster_clip_gradients(NULL, gradients, counts, 3, 10, &norm), 0);
    assert_true(norm == 5 && a[0] == 3 && b[0] == 4); /* short enough */
    assert_int_equal(muster_clip_gradients(NULL, gradients, counts, 3, 1, &norm), 0);
    /* torch.nn.utils.clip_grad_norm_ of [3, 0] and [4] to 1: 0.6 and 0.8, by 1 / (5 + 1e-6). */
    assert_true(norm == 5 && fabsf(a[0] - 0.59999988f) < 1e-6f && a[1] == 0 && fabsf(b[0] - 0.79999984f) < 1e-6f);
    assert_int_equal(muster_clip_gradients(NULL, NULL, NULL, 0, 1, NULL), 0);
}

static void what_is_no_number_is_left_alone(void **state) {
    (void)state;
    float a[2] = {INFINITY, 2};
    float *const gradients[] = {a};
    const size_t counts[] = {2};
    double norm = 0;
    assert_int_equal(muster_clip_gradients(NULL, gradients, counts, 1, 1, &norm), 0);
    assert_true(isinf(norm) && isinf(a[0]) && a[1] == 2);
    a[0] = NAN;
    assert_int_equal(muster_clip_gradients(NULL, gradients, counts, 1, 1, &norm), 0);
    assert_true(isnan(norm) && a[1] == 2);
}

static void mistakes_are_told(void **state) {
    (void)state;
    float a[1] = {1};
    float *const gradients[] = {a};
    const size_t counts[] = {1};
    assert_int_equal(muster_clip_gradients(NULL, NULL, counts, 1, 1, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_clip_gradients(NULL, gradients, NULL, 1, 1, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_clip_gradients(NULL, gradients, counts, 1, 0, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_clip_gradients(NULL, gradients, counts, 1, (double)NAN, NULL), MUSTER_EINVAL);
}

/* Rank r has the elements r, r + 2 ... of one gradient of ones. */
static int clip_together(struct rank *rank, void *argument) {
    (void)argument;
    static float mine[COUNT];
    float *const gradients[] = {mine};
    const size_t counts[] = {COUNT / 2 + (rank->rank == 0 ? 1 : 0)};
    struct muster_group *group = rank_group(rank, NULL);
    double norm = 0, sum = 0;
    for (size_t i = 0; i < counts[0]; i++) {
        mine[i] = 1;
    }
    rank_check_code(rank, muster_squared_norm(group, (const float *const *)gradients, counts, 1, &sum), 0);
    rank_check(rank, sum == COUNT);
    rank_check_code(rank, muster_clip_gradients(group, gradients, counts, 1, 2, &norm), 0);
    rank_check(rank, norm == sqrt((double)COUNT));
    rank_check(rank, mine[0] == (float)(2 / (sqrt((double)COUNT) + 1e-6)));
    muster_group_free(group);
    return 0;
}

static void ranks_with_parts_add_their_squares(void **state) {
    (void)state;
    ranks_run(2, clip_together, NULL);
}

enum { PARTS = 7, MOST_RANKS = 4 };

/* Numbers of many sizes, whose squares no float64 adds up exactly. */
static float value_of(size_t i) {
    uint32_t x = (uint32_t)(i + 1) * 0x2c1b3c6dU;
    x = (x ^ x >> 12) * 0x297a2d39U;
    return ldexpf((float)(int32_t)x, -(int)(i % 50) - 20);
}

static void measure(struct muster_group *group, size_t begin, size_t count, double *exact, double *plain) {
    static const size_t cuts[] = {0, 1, 17, 300, 301, 640, 1000, COUNT};
    float values[COUNT];
    const float *ranges[PARTS];
    size_t counts[PARTS];
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = value_of(i);
    }
    for (size_t i = 0; i < PARTS; i++) { /* what lies in [begin, begin + count), in pieces */
        size_t from = cuts[i] > begin ? cuts[i] : begin;
        size_t to = cuts[i + 1] < begin + count ? cuts[i + 1] : begin + count;
        ranges[i] = from < to ? values + from : NULL;
        counts[i] = from < to ? to - from : 5; /* of what is left out */
    }
    assert_int_equal(muster_exact_squared_norm(group, ranges, counts, PARTS, exact), 0);
    assert_int_equal(muster_squared_norm(group, ranges, counts, PARTS, plain), 0);
}

static int measure_together(struct rank *rank, void *argument) {
    const double *alone = argument;
    struct muster_group *group = rank_group(rank, NULL);
    size_t begin = (size_t)COUNT * rank->rank / rank->size, end = (size_t)COUNT * (rank->rank + 1) / rank->size;
    double exact = 0, plain = 0;
    measure(group, begin, end - begin, &exact, &plain);
    rank_check(rank, exact == alone[0]);
    rank_check(rank, fabs(plain - exact) < 1e-12 * exact);
    muster_group_free(group);
    return 0;
}

static void the_exact_norm_does_not_depend_on_the_world(void **state) {
    (void)state;
    double alone[2] = {0}, whole[2] = {0};
    float values[COUNT];
    const float *const range = values;
    const size_t count = COUNT;
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = value_of(i);
    }
    measure(NULL, 0, COUNT, &alone[0], &alone[1]);
    assert_int_equal(muster_exact_squared_norm(NULL, &range, &count, 1, &whole[0]), 0);
    assert_int_equal(muster_squared_norm(NULL, &range, &count, 1, &whole[1]), 0);
    assert_true(alone[0] == whole[0] && alone[1] != whole[1]);
    for (uint32_t ranks = 1; ranks <= MOST_RANKS; ranks++) {
        ranks_run(ranks, measure_together, alone);
    }
    assert_int_equal(muster_exact_squared_norm(NULL, NULL, &count, 1, whole), MUSTER_EINVAL);
    assert_int_equal(muster_exact_squared_norm(NULL, &range, &count, 1, NULL), MUSTER_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_gradient_is_made_shorter),
        cmocka_unit_test(what_is_no_number_is_left_alone),
        cmocka_unit_test(mistakes_are_told),
        cmocka_unit_test(ranks_with_parts_add_their_squares),
        cmocka_unit_test(the_exact_norm_does_not_depend_on_the_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
