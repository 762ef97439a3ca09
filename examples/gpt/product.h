/* Products of matrices, by oneDNN or OpenBLAS. Matrices are row-major floats. */
#ifndef EXAMPLES_GPT_PRODUCT_H
#define EXAMPLES_GPT_PRODUCT_H

#include <stdbool.h>

/* A factor: rows of memory that are `stride` floats apart, or the transpose of that. */
struct factor {
    const float *values;
    int stride;
    bool is_transposed;
};

static inline struct factor plain(const float *values, int stride) {
    return (struct factor){values, stride, false};
}

static inline struct factor transposed(const float *values, int stride) {
    return (struct factor){values, stride, true};
}

/* c is (rows, columns), a is (rows, inner), b is (inner, columns). */
struct product {
    int rows, columns, inner;
    float scale;
    bool add; /* to what is in c; else it is overwritten */
};

/* c = scale * a b. The rows of c are `stride` apart. */
void product(struct product shape, struct factor a, struct factor b, float *c, int stride);

/* One thread, unless the environment says otherwise: a worker is one of many. always_one: whatever it says, since the
 * last bits depend on the number of threads. Before the first product. */
void product_set_threads(bool always_one);

#endif
