/* Exact sums of squares: against integers, at the ends of the range, in every order. */
#include "train/optimizers/exact_squares.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MANY = 300001 }; /* several blocks, and a part of one */

static double value_of(const float *values, size_t count) {
    struct exact_squares sum = {.infinite = 0};
    exact_squares_add(&sum, values, count);
    return exact_squares_value(&sum);
}

static void single_squares_are_exact(void **state) {
    (void)state;
    const float values[] = {0, -0.0F, 1, -3, 0.1F, 16777215, FLT_MIN, FLT_MAX, FLT_TRUE_MIN, 3 * FLT_TRUE_MIN};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        assert_true(value_of(&values[i], 1) == (double)values[i] * values[i]);
    }
    for (int exponent = -149; exponent < 128; exponent++) {
        float value = ldexpf(1, exponent);
        assert_true(value_of(&value, 1) == ldexp(1, 2 * exponent));
    }
}

/* Whole numbers, whose squares fit into 64 bits together. */
static void sums_are_those_of_integers(void **state) {
    (void)state;
    float *values = malloc(MANY * sizeof *values);
    uint64_t expected = 0;
    assert_non_null(values);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t number = (i * 2654435761U >> 10) >> i % 22;
        values[i] = (float)number * (i % 3 == 0 ? -1 : 1);
        expected += (uint64_t)number * number;
    }
    assert_true(value_of(values, MANY) == (double)expected);
    for (uint32_t i = 0; i < MANY; i++) {
        values[i] = 16777215; /* all in one place of the table, the largest of all */
    }
    assert_true(fabs(value_of(values, MANY) / MANY / 16777215 / 16777215 - 1) < 1e-15);
    free(values);
}

static void nothing_small_is_lost(void **state) {
    (void)state;
    float values[9] = {FLT_MAX};
    for (int i = 1; i < 9; i++) {
        values[i] = FLT_TRUE_MIN;
    }
    struct exact_squares all = {.infinite = 0}, tiny = {.infinite = 0};
    exact_squares_add(&all, values, 9);
    exact_squares_add(&tiny, values + 1, 8);
    assert_true(exact_squares_value(&tiny) == 8 * ldexp(1, -298));
    assert_int_equal(all.limbs[0], 8);
}

static void neither_order_nor_split_matters(void **state) {
    (void)state;
    float values[1000];
    struct exact_squares forwards = {.infinite = 0}, backwards = {.infinite = 0}, parts = {.infinite = 0};
    for (uint32_t i = 0; i < 1000; i++) {
        values[i] = ldexpf((float)(int32_t)(i * 2654435761U), (int)(i * 37 % 220) - 150);
    }
    exact_squares_add(&forwards, values, 1000);
    for (size_t i = 1000; i-- > 0;) {
        exact_squares_add(&backwards, &values[i], 1);
    }
    for (size_t at = 0; at < 1000;) { /* each of a rank of its own, and then added */
        struct exact_squares one = {.infinite = 0};
        size_t count = at % 7 + 1 < 1000 - at ? at % 7 + 1 : 1000 - at;
        exact_squares_add(&one, values + at, count);
        for (size_t i = 0; i < EXACT_LIMBS; i++) {
            parts.limbs[i] += one.limbs[i];
        }
        at += count;
    }
    assert_memory_equal(&forwards, &backwards, sizeof forwards);
    assert_true(exact_squares_value(&parts) == exact_squares_value(&forwards));
}

static void what_is_no_number_is_told(void **state) {
    (void)state;
    float values[3] = {1, INFINITY, 2};
    assert_true(value_of(values, 3) == INFINITY);
    values[1] = -INFINITY;
    assert_true(value_of(values, 3) == INFINITY);
    values[2] = NAN;
    assert_true(isnan(value_of(values, 3)));
    assert_true(value_of(values, 0) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_squares_are_exact),  cmocka_unit_test(sums_are_those_of_integers),
        cmocka_unit_test(nothing_small_is_lost),     cmocka_unit_test(neither_order_nor_split_matters),
        cmocka_unit_test(what_is_no_number_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
