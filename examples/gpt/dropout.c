/* Dropout (Srivastava et al. 2014) by random numbers that are functions of the place alone: the backward pass draws the
 * same ones again, and nothing is kept. See layers.h. */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "random.h"
#include "vector.h"

VECTORISED static void drop(uint64_t key, uint32_t bound, float scale, int width, const float *x, float *y) {
    SIMD for (int i = 0; i < width; i++) {
        y[i] = random_element(key, (uint32_t)i) < bound ? 0 : x[i] * scale;
    }
}

void dropout_row(const struct dropout *dropout, uint64_t row, int width, const float *x, float *y) {
    uint32_t bound = (uint32_t)((double)dropout->rate * 0x1p32);
    drop(random_mix(dropout->key, row), bound, 1 / (1 - dropout->rate), width, x, y);
}

void dropout_rows(const struct dropout *dropout, uint64_t first_row, int rows, int width, const float *x, float *y) {
    if (dropout->rate == 0) {
        if (x != y) {
            memcpy(y, x, (size_t)rows * (size_t)width * sizeof *y);
        }
        return;
    }
    for (int row = 0; row < rows; row++) {
        size_t at = (size_t)row * (size_t)width;
        dropout_row(dropout, first_row + (uint64_t)row, width, x + at, y + at);
    }
}

VECTORISED static void add(size_t count, const float *x, const float *z, float *y) {
    SIMD for (size_t i = 0; i < count; i++) {
        y[i] = x[i] + z[i];
    }
}

void dropout_add(const struct dropout *dropout, uint64_t first_row, int rows, int width, const float *x, float *z,
                 float *y) {
    dropout_rows(dropout, first_row, rows, width, z, z);
    add((size_t)rows * (size_t)width, x, z, y);
}
