/* Linear layers. See layers.h. */
#include <string.h>

#include "layers.h"
#include "product.h"
#include "vector.h"

/* Each row starts as the bias, or as that and the row of the base. The product is added. */
VECTORISED static void begin_rows(int rows, int width, const float *bias, const float *base, float *y) {
    for (int row = 0; row < rows; row++, y += width) {
        if (base == NULL) {
            memcpy(y, bias, (size_t)width * sizeof *y);
            continue;
        }
        SIMD for (int i = 0; i < width; i++) {
            y[i] = base[i] + bias[i];
        }
        base += width;
    }
}

void linear_forward(struct linear shape, const float *x, const float *w, const float *bias, float *y) {
    linear_add(shape, x, w, bias, NULL, y);
}

void linear_add(struct linear shape, const float *x, const float *w, const float *bias, const float *base, float *y) {
    if (bias != NULL) {
        begin_rows(shape.rows, shape.out, bias, base, y);
    }
    product((struct product){shape.rows, shape.out, shape.in, 1, bias != NULL}, plain(x, shape.in),
            transposed(w, shape.in), y, shape.out);
}

void linear_backward_input(struct linear shape, const float *dy, const float *w, float *dx) {
    product((struct product){shape.rows, shape.in, shape.out, 1, false}, plain(dy, shape.out), plain(w, shape.in), dx,
            shape.in);
}

/* sum += all rows, four at a time: a fourth of the loads and stores of the sum. */
VECTORISED static void add_rows(int rows, int width, const float *restrict y, float *restrict sum) {
    size_t stride = (size_t)width;
    int row = 0;
    for (; row + 4 <= rows; row += 4, y += 4 * stride) {
        SIMD for (size_t i = 0; i < stride; i++) {
            sum[i] += (y[i] + y[stride + i]) + (y[2 * stride + i] + y[3 * stride + i]);
        }
    }
    for (; row < rows; row++, y += stride) {
        SIMD for (size_t i = 0; i < stride; i++) {
            sum[i] += y[i];
        }
    }
}

void linear_backward_weight(struct linear shape, const float *x, const float *dy, float *dw, float *dbias, bool add) {
    product((struct product){shape.out, shape.in, shape.rows, 1, add}, transposed(dy, shape.out), plain(x, shape.in),
            dw, shape.in);
    if (dbias != NULL) {
        if (!add) {
            memset(dbias, 0, (size_t)shape.out * sizeof *dbias);
        }
        add_rows(shape.rows, shape.out, dy, dbias);
    }
}
