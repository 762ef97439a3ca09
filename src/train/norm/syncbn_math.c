/* Loops for the compiler to make vectors of: several sums side by side, in a fixed order. */
#include "train/norm/syncbn_math.h"

enum { LANES = 8 };

static double add_up(const double lanes[LANES]) {
    double sum = 0;
    for (size_t lane = 0; lane < LANES; lane++) {
        sum += lanes[lane];
    }
    return sum;
}

/* *sum += a[i] and *product += a[i] * (b[i] - centre). */
static void add_plane(const float *a, const float *b, double centre, size_t count, double *sum, double *product) {
    double sums[LANES] = {0}, products[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (size_t lane = 0; lane < LANES; lane++) {
            double value = (double)a[i + lane];
            sums[lane] += value;
            products[lane] += value * ((double)b[i + lane] - centre);
        }
    }
    for (size_t lane = 0; i + lane < count; lane++) {
        double value = (double)a[i + lane];
        sums[lane] += value;
        products[lane] += value * ((double)b[i + lane] - centre);
    }
    *sum += add_up(sums);
    *product += add_up(products);
}

void syncbn_forward_sums(const float *x, struct syncbn_shape shape, double *sums, double *squares) {
    for (size_t c = 0; c < shape.channels; c++) {
        sums[c] = squares[c] = 0;
        for (size_t n = 0; n < shape.n; n++) {
            const float *plane = x + (n * shape.channels + c) * shape.plane;
            add_plane(plane, plane, 0, shape.plane, &sums[c], &squares[c]);
        }
    }
}

void syncbn_backward_sums(const float *x, const float *dy, struct syncbn_shape shape, const float *centre, double *sums,
                          double *products) {
    for (size_t c = 0; c < shape.channels; c++) {
        sums[c] = products[c] = 0;
        for (size_t n = 0; n < shape.n; n++) {
            size_t at = (n * shape.channels + c) * shape.plane;
            add_plane(dy + at, x + at, (double)centre[c], shape.plane, &sums[c], &products[c]);
        }
    }
}

void syncbn_apply(const float *x, float *y, struct syncbn_shape shape, size_t channel, struct syncbn_line line) {
    for (size_t n = 0; n < shape.n; n++) {
        size_t at = (n * shape.channels + channel) * shape.plane;
        for (size_t i = 0; i < shape.plane; i++) {
            y[at + i] = (x[at + i] - line.centre) * line.scale + line.shift;
        }
    }
}

void syncbn_apply_backward(const float *x, const float *dy, float *dx, struct syncbn_shape shape, size_t channel,
                           struct syncbn_line line) {
    for (size_t n = 0; n < shape.n; n++) {
        size_t at = (n * shape.channels + channel) * shape.plane;
        for (size_t i = 0; i < shape.plane; i++) {
            dx[at + i] = (dy[at + i] - line.shift - (x[at + i] - line.centre) * line.slope) * line.scale;
        }
    }
}
