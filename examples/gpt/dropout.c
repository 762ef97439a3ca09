/* Dropout (Srivastava et al. 2014) by random numbers that are functions of the place alone: the backward pass draws the
 * same ones again, and nothing is kept. See layers.h. */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "random.h"
#include "vector.h"

/* A value of x after dropout. */
static inline __attribute__((always_inline)) float kept(uint64_t key, uint32_t bound, float scale, int i, float x) {
    return random_element(key, (uint32_t)i) < bound ? 0 : x * scale;
}

static uint32_t bound_of(const struct dropout *dropout) {
    return (uint32_t)((double)dropout->rate * 0x1p32);
}

VECTORISED static void drop(uint64_t key, uint32_t bound, float scale, int width, const float *x, float *y) {
    SIMD for (int i = 0; i < width; i++) {
        y[i] = kept(key, bound, scale, i, x[i]);
    }
}

VECTORISED static void drop_and_add(uint64_t key, uint32_t bound, float scale, int width, const float *x,
                                    const float *z, float *y) {
    SIMD for (int i = 0; i < width; i++) {
        y[i] = x[i] + kept(key, bound, scale, i, z[i]);
    }
}

void dropout_row(const struct dropout *dropout, uint64_t row, int width, const float *x, float *y) {
    drop(random_mix(dropout->key, row), bound_of(dropout), 1 / (1 - dropout->rate), width, x, y);
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

void dropout_add(const struct dropout *dropout, uint64_t first_row, int rows, int width, const float *x, const float *z,
                 float *y) {
    for (int row = 0; row < rows; row++, x += width, z += width, y += width) {
        drop_and_add(random_mix(dropout->key, first_row + (uint64_t)row), bound_of(dropout), 1 / (1 - dropout->rate),
                     width, x, z, y);
    }
}
