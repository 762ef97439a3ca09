/* The products of examples/gpt against three loops: all transpositions, strides, scales and sums. Built once for each
 * library that is there. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "product.h"

enum { ROWS = 37, COLUMNS = 21, SHORT = 50, LONG = 1100, SIDE = 64, ROOM = LONG * (LONG + 1) };

static float at(struct factor factor, int row, int column) {
    return factor.is_transposed ? factor.values[column * factor.stride + row]
                                : factor.values[row * factor.stride + column];
}

static void fill(float *values, int count, uint32_t seed) {
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        values[i] = (float)(seed >> 16) / 65536.0F - 0.5F;
    }
}

static float a_values[ROOM], b_values[ROOM];

static void compare(bool a_transposed, bool b_transposed, bool add, int inner) {
    static float c[SIDE * SIDE], before[SIDE * SIDE];
    fill(c, SIDE * SIDE, 3);
    fill(before, SIDE * SIDE, 3);
    struct factor a = {a_values, LONG, a_transposed}, b = {b_values, LONG + 1, b_transposed};
    product((struct product){ROWS, COLUMNS, inner, 0.5F, add}, a, b, c, SIDE);
    for (int i = 0; i < SIDE; i++) {
        for (int j = 0; j < SIDE; j++) {
            double expected = (double)before[i * SIDE + j];
            if (i < ROWS && j < COLUMNS) {
                expected = add ? expected : 0;
                for (int k = 0; k < inner; k++) {
                    expected += 0.5 * (double)at(a, i, k) * (double)at(b, k, j);
                }
            }
            if (!(fabs((double)c[i * SIDE + j] - expected) < 1e-5)) {
                fail_msg("row %d, column %d: %g, not %g", i, j, (double)c[i * SIDE + j], expected);
            }
        }
    }
}

static void products_are_those_of_three_loops(void **state) {
    (void)state;
    fill(a_values, ROOM, 1);
    fill(b_values, ROOM, 2);
    for (int i = 0; i < 16; i++) {
        compare((i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0 ? LONG : SHORT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_those_of_three_loops)};
    product_set_threads(false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
