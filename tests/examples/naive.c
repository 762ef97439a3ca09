/* See naive.h. */
#include "naive.h"

#include <math.h>
#include <string.h>

static int at(int image, int row, int column, int channel, int side, int channels) {
    return ((image * side + row) * side + column) * channels + channel;
}

static int weight_at(const struct naive_conv *s, int out, int in, int row, int column) {
    return ((out * s->in_channels + in) * 3 + row) * 3 + column;
}

/* Runs `body` for every output (image, row, column, out) and every input of it (in, i, j in the 3x3 window). */
#define EACH_OUTPUT(s)                                                                                                 \
    for (int image = 0; image < (s)->batch; image++)                                                                   \
        for (int row = 0; row < (s)->out_side; row++)                                                                  \
            for (int column = 0; column < (s)->out_side; column++)                                                     \
                for (int out = 0; out < (s)->out_channels; out++)
#define EACH_INPUT(s)                                                                                                  \
    for (int in = 0; in < (s)->in_channels; in++)                                                                      \
        for (int i = 0; i < 3; i++)                                                                                    \
            for (int j = 0; j < 3; j++)

void naive_conv_forward(const struct naive_conv *s, const float *x, const float *weight, const float *bias, double *y) {
    EACH_OUTPUT(s) {
        double sum = (double)bias[out];
        EACH_INPUT(s) {
            sum += (double)x[at(image, row + i, column + j, in, s->in_side, s->in_channels)] *
                   (double)weight[weight_at(s, out, in, i, j)];
        }
        y[at(image, row, column, out, s->out_side, s->out_channels)] = sum;
    }
}

void naive_conv_backward(const struct naive_conv *s, const float *x, const float *weight, const float *dy, double *dx,
                         double *dweight, double *dbias) {
    if (dx != NULL) {
        memset(dx, 0, sizeof *dx * (size_t)(s->batch * s->in_side * s->in_side * s->in_channels));
    }
    memset(dweight, 0, sizeof *dweight * (size_t)(s->out_channels * s->in_channels * 9));
    memset(dbias, 0, sizeof *dbias * (size_t)s->out_channels);
    EACH_OUTPUT(s) {
        double gradient = (double)dy[at(image, row, column, out, s->out_side, s->out_channels)];
        dbias[out] += gradient;
        EACH_INPUT(s) {
            int from = at(image, row + i, column + j, in, s->in_side, s->in_channels);
            dweight[weight_at(s, out, in, i, j)] += gradient * (double)x[from];
            if (dx != NULL) {
                dx[from] += gradient * (double)weight[weight_at(s, out, in, i, j)];
            }
        }
    }
}

void naive_moments(int pixels, int channels, const float *x, double *mean, double *variance) {
    for (int c = 0; c < channels; c++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < pixels; i++) {
            sum += (double)x[i * channels + c];
        }
        mean[c] = sum / pixels;
        for (int i = 0; i < pixels; i++) {
            double distance = (double)x[i * channels + c] - mean[c];
            squares += distance * distance;
        }
        variance[c] = squares / pixels;
    }
}

void naive_norm_forward(const struct naive_norm *n, const float *x, double *z) {
    for (int i = 0; i < n->pixels * n->channels; i++) {
        int c = i % n->channels;
        z[i] = (double)x[i];
        if (n->gamma != NULL) {
            z[i] = (z[i] - n->mean[c]) / sqrt(n->variance[c] + 1e-5) * (double)n->gamma[c] + (double)n->beta[c];
        }
    }
}

void naive_norm_backward(const struct naive_norm *n, const float *x, const double *dz, double *dx, double *dgamma,
                         double *dbeta) {
    for (int c = 0; c < n->channels; c++) {
        double inverse = 1 / sqrt(n->variance[c] + 1e-5), scale = (double)n->gamma[c];
        dgamma[c] = dbeta[c] = 0;
        for (int i = c; i < n->pixels * n->channels; i += n->channels) {
            dgamma[c] += dz[i] * ((double)x[i] - n->mean[c]) * inverse;
            dbeta[c] += dz[i];
        }
        for (int i = c; i < n->pixels * n->channels; i += n->channels) {
            double h = ((double)x[i] - n->mean[c]) * inverse;
            dx[i] = scale * inverse * (dz[i] - dbeta[c] / n->pixels - h * dgamma[c] / n->pixels);
        }
    }
}

/* The first largest of a window; -1 when none is above 0. */
static int window_largest(const double *z, int image, int row, int column, int c, int side, int channels) {
    int largest = -1;
    for (int k = 0; k < 4; k++) {
        int here = at(image, 2 * row + k / 2, 2 * column + k % 2, c, side, channels);
        if (z[here] > (largest < 0 ? 0 : z[largest])) {
            largest = here;
        }
    }
    return largest;
}

#define EACH_WINDOW                                                                                                    \
    for (int image = 0; image < batch; image++)                                                                        \
        for (int row = 0; row < side / 2; row++)                                                                       \
            for (int column = 0; column < side / 2; column++)                                                          \
                for (int c = 0; c < channels; c++)

void naive_relu_pool_forward(int batch, int side, int channels, const double *z, double *y) {
    EACH_WINDOW {
        int largest = window_largest(z, image, row, column, c, side, channels);
        y[at(image, row, column, c, side / 2, channels)] = largest < 0 ? 0 : z[largest];
    }
}

void naive_relu_pool_backward(int batch, int side, int channels, const double *z, const float *dy, double *dz) {
    memset(dz, 0, sizeof *dz * (size_t)(batch * side * side * channels));
    EACH_WINDOW {
        int largest = window_largest(z, image, row, column, c, side, channels);
        if (largest >= 0) {
            dz[largest] = (double)dy[at(image, row, column, c, side / 2, channels)];
        }
    }
}
