/* See norm_pool.h. Passes over pixels handle NORM_POOL_LANES channels at a time: loops of a fixed length over
 * neighbouring floats, which the compiler turns into vector instructions. Sums are kept in float within one image and
 * in double over images. */
#include "norm_pool.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

/* The widest vectors that the processor has, chosen when the program starts. Sanitizers cannot live with that. */
#if defined(__x86_64__) && !defined(MUSTER_EXAMPLE_PLAIN)
#define PIXEL_PASS __attribute__((target_clones("avx512f", "avx2", "default"))) static
#else
#define PIXEL_PASS static
#endif

#define LANES NORM_POOL_LANES
#define EACH_LANE _Pragma("omp simd") for (int lane = 0; lane < LANES; lane++)

void norm_pool_create(struct norm_pool *layer, int batch, int side, int channels) {
    size_t c = (size_t)channels, half = (size_t)(side / 2);
    *layer = (struct norm_pool){.batch = batch, .side = side, .channels = channels};
    layer->chosen = allocate((size_t)batch * half * half * c, sizeof *layer->chosen);
    layer->sums = allocate(2 * c + 1, sizeof *layer->sums);
    layer->mean = allocate(c, sizeof *layer->mean);
    layer->inverse_deviation = allocate(c, sizeof *layer->inverse_deviation);
    layer->factors = allocate(3 * c, sizeof *layer->factors);
}

void norm_pool_free(struct norm_pool *layer) {
    free(layer->chosen);
    free(layer->sums);
    free(layer->mean);
    free(layer->inverse_deviation);
    free(layer->factors);
}

/* ---- Statistics ---- */

/* mean[lane] of one image's pixels, and the sum of squared distances from it. pixels are `stride` floats apart. */
PIXEL_PASS void image_moments(const float *x, int pixels, int stride, float *mean, float *squares) {
    float sum[LANES] = {0}, sum_squares[LANES] = {0};
    for (int i = 0; i < pixels; i++) {
        const float *pixel = x + (size_t)i * (size_t)stride;
        EACH_LANE sum[lane] += pixel[lane];
    }
    EACH_LANE sum[lane] /= (float)pixels;
    for (int i = 0; i < pixels; i++) {
        const float *pixel = x + (size_t)i * (size_t)stride;
        EACH_LANE {
            float distance = pixel[lane] - sum[lane];
            sum_squares[lane] += distance * distance;
        }
    }
    memcpy(mean, sum, sizeof sum);
    memcpy(squares, sum_squares, sizeof sum_squares);
}

/* Means and sums of squared distances of parts joined into those of the whole (Chan, Golub, LeVeque 1979): no
 * difference of large squares, so nothing cancels. mean and squares are for LANES channels, of `images` images so far.
 */
static void moments_join(double *mean, double *squares, int images, int pixels, const float *image_mean,
                         const float *image_squares) {
    double part = 1.0 / (images + 1);
    EACH_LANE {
        double distance = (double)image_mean[lane] - mean[lane];
        mean[lane] += distance * part;
        squares[lane] += (double)image_squares[lane] + distance * distance * (double)pixels * (double)images * part;
    }
}

/* mean, sums[0..channels) (of squared distances from it) and pixels of this worker's batch. */
static void own_moments(struct norm_pool *layer, int count, const float *x) {
    int pixels = layer->side * layer->side, channels = layer->channels;
    memset(layer->mean, 0, (size_t)channels * sizeof *layer->mean);
    memset(layer->sums, 0, (size_t)channels * sizeof *layer->sums);
    layer->pixels = (double)count * pixels;
    for (int image = 0; image < count; image++) {
        for (int c = 0; c < channels; c += LANES) {
            float mean[LANES], squares[LANES];
            image_moments(x + (size_t)image * (size_t)(pixels * channels) + c, pixels, channels, mean, squares);
            moments_join(layer->mean + c, layer->sums + c, image, pixels, mean, squares);
        }
    }
}

/* From those of each worker's batch to those of all together: counts, sums and sums of squares can be added. */
static void join_moments(struct norm_pool *layer) {
    int channels = layer->channels;
    double *squares = layer->sums, *sums = squares + channels, *pixels = sums + channels;
    *pixels = layer->pixels;
    for (int c = 0; c < channels; c++) {
        squares[c] += *pixels * layer->mean[c] * layer->mean[c];
        sums[c] = *pixels * layer->mean[c];
    }
    layer->join(layer->join_context, layer->sums, 2 * (size_t)channels + 1);
    layer->pixels = *pixels;
    for (int c = 0; c < channels; c++) {
        layer->mean[c] = sums[c] / *pixels;
        squares[c] = fmax(0, squares[c] - *pixels * layer->mean[c] * layer->mean[c]);
    }
}

/* mean and inverse_deviation of the batch; the running statistics follow it. */
static void batch_statistics(struct norm_pool *layer, int count, const float *x,
                             const struct norm_pool_values *values) {
    const double old = 1 - NORM_POOL_MOMENTUM, new = NORM_POOL_MOMENTUM;
    own_moments(layer, count, x);
    if (layer->join != NULL) {
        join_moments(layer);
    }
    double n = layer->pixels;
    for (int c = 0; c < layer->channels; c++) {
        float *running_mean = &values->running_mean[c], *running_variance = &values->running_variance[c];
        layer->inverse_deviation[c] = 1.0 / sqrt(layer->sums[c] / n + NORM_POOL_EPSILON);
        *running_mean = (float)(old * (double)*running_mean + new * layer->mean[c]);
        /* As PyTorch: the running variance is the unbiased one. */
        *running_variance = (float)(old * (double)*running_variance + new * layer->sums[c] / (n - 1));
    }
}

/* ---- Forward ---- */

/* The first pixel of window (row, column) of one image; `side` pixels of `stride` floats are a row. */
static inline size_t window_at(int row, int column, int side, int stride) {
    return ((size_t)(2 * row) * (size_t)side + (size_t)(2 * column)) * (size_t)stride;
}

/* y = largest of scale * x + shift and 0 in each window of one image. */
PIXEL_PASS void image_forward(const float *x, int side, int stride, const float *scale, const float *shift, float *y,
                              uint8_t *chosen) {
    for (int row = 0; row < side / 2; row++) {
        for (int column = 0; column < side / 2; column++, y += stride, chosen += stride) {
            const float *window[4] = {x + window_at(row, column, side, stride)};
            window[1] = window[0] + stride;
            window[2] = window[0] + (size_t)side * (size_t)stride;
            window[3] = window[2] + stride;
            float best[LANES];
            int which[LANES]; /* as wide as the floats: one vector of each */
            EACH_LANE best[lane] = 0;
            EACH_LANE which[lane] = 4;
            for (int k = 0; k < 4; k++) {
                EACH_LANE {
                    float z = window[k][lane] * scale[lane] + shift[lane];
                    which[lane] = z > best[lane] ? k : which[lane];
                    best[lane] = z > best[lane] ? z : best[lane];
                }
            }
            EACH_LANE y[lane] = best[lane];
            EACH_LANE chosen[lane] = (uint8_t)which[lane];
        }
    }
}

/* scale and shift, so that z = x * scale + shift. */
static void forward_factors(struct norm_pool *layer, enum norm_pool_mode mode, const struct norm_pool_values *values) {
    float *scale = layer->factors, *shift = layer->factors + layer->channels;
    for (int c = 0; c < layer->channels; c++) {
        if (mode == NORM_POOL_NONE) {
            scale[c] = 1;
            shift[c] = 0;
            continue;
        }
        double mean = layer->mean[c], inverse = layer->inverse_deviation[c];
        if (mode == NORM_POOL_TEST) {
            mean = (double)values->running_mean[c];
            inverse = 1.0 / sqrt((double)values->running_variance[c] + NORM_POOL_EPSILON);
        }
        double factor = inverse * (double)values->gamma[c];
        scale[c] = (float)factor;
        shift[c] = (float)((double)values->beta[c] - mean * factor);
    }
}

void norm_pool_forward(struct norm_pool *layer, enum norm_pool_mode mode, int count, const float *x,
                       const struct norm_pool_values *values, float *y) {
    if (mode == NORM_POOL_TRAIN) {
        batch_statistics(layer, count, x, values);
    }
    forward_factors(layer, mode, values);
    int side = layer->side, half = side / 2, channels = layer->channels;
    const float *scale = layer->factors, *shift = layer->factors + channels;
    for (int image = 0; image < count; image++) {
        const float *from = x + (size_t)image * (size_t)(side * side * channels);
        size_t to = (size_t)image * (size_t)(half * half * channels);
        for (int c = 0; c < channels; c += LANES) {
            image_forward(from + c, side, channels, scale + c, shift + c, y + to + c, layer->chosen + to + c);
        }
    }
}

/* ---- Backward ---- */

/* Over one image: sum[0] = sum of dz, sum[1] = sum of dz * (x - mean), where dz is dy at the chosen pixel of each
 * window, and 0 elsewhere. */
PIXEL_PASS void image_backward_sums(const float *x, int side, int stride, const uint8_t *chosen, const float *dy,
                                    const float *mean, float sum[2][LANES]) {
    float total[LANES] = {0}, total_x[LANES] = {0};
    for (int row = 0; row < side / 2; row++) {
        for (int column = 0; column < side / 2; column++, dy += stride, chosen += stride) {
            const float *window[4] = {x + window_at(row, column, side, stride)};
            window[1] = window[0] + stride;
            window[2] = window[0] + (size_t)side * (size_t)stride;
            window[3] = window[2] + stride;
            EACH_LANE {
                int k = chosen[lane];
                float z = k == 0   ? window[0][lane]
                          : k == 1 ? window[1][lane]
                          : k == 2 ? window[2][lane]
                                   : window[3][lane];
                float dz = k < 4 ? dy[lane] : 0;
                total[lane] += dz;
                total_x[lane] += dz * (z - mean[lane]);
            }
        }
    }
    memcpy(sum[0], total, sizeof total);
    memcpy(sum[1], total_x, sizeof total_x);
}

/* x = factor * dz + offset - slope * x, for all pixels of one image. */
PIXEL_PASS void image_backward(float *x, int side, int stride, const uint8_t *chosen, const float *dy,
                               const float *factor, const float *offset, const float *slope) {
    int half = side / 2;
    for (int row = 0; row < side; row++) {
        for (int column = 0; column < side; column++, x += stride) {
            if (row / 2 == half || column / 2 == half) { /* of an odd side: in no window */
                EACH_LANE x[lane] = offset[lane] - slope[lane] * x[lane];
                continue;
            }
            int k = row % 2 * 2 + column % 2;
            size_t window = ((size_t)(row / 2) * (size_t)half + (size_t)(column / 2)) * (size_t)stride;
            const uint8_t *which = chosen + window;
            const float *gradient = dy + window;
            EACH_LANE {
                float dz = which[lane] == k ? gradient[lane] : 0;
                x[lane] = factor[lane] * dz + (offset[lane] - slope[lane] * x[lane]);
            }
        }
    }
}

/* sums[0..channels) = sum of dz = dbeta, sums[channels..) = sum of dz * (x - mean) = dgamma * deviation. */
static void backward_sums(struct norm_pool *layer, int count, const float *x, const float *dy) {
    int side = layer->side, half = side / 2, channels = layer->channels;
    float *mean = layer->factors;
    for (int c = 0; c < channels; c++) {
        mean[c] = (float)layer->mean[c];
    }
    memset(layer->sums, 0, 2 * (size_t)channels * sizeof *layer->sums);
    for (int image = 0; image < count; image++) {
        const float *pixels = x + (size_t)image * (size_t)(side * side * channels);
        size_t windows = (size_t)image * (size_t)(half * half * channels);
        for (int c = 0; c < channels; c += LANES) {
            float sum[2][LANES];
            image_backward_sums(pixels + c, side, channels, layer->chosen + windows + c, dy + windows + c, mean + c,
                                sum);
            EACH_LANE layer->sums[c + lane] += (double)sum[0][lane];
            EACH_LANE layer->sums[channels + c + lane] += (double)sum[1][lane];
        }
    }
}

/* The derivative of the normalisation (Ioffe and Szegedy 2015, section 3), with h = (x - mean) * inverse and n pixels:
 *     dx = gamma * inverse * (dz - sum(dz) / n - h * sum(dz * h) / n) = factor * dz + offset - slope * x. */
static void backward_factors(struct norm_pool *layer, const float *gamma) {
    int channels = layer->channels;
    double n = layer->pixels;
    for (int c = 0; c < channels; c++) {
        double inverse = layer->inverse_deviation[c], sum = layer->sums[c], sum_x = layer->sums[channels + c];
        double factor = (double)gamma[c] * inverse, slope = factor * sum_x * inverse * inverse / n;
        layer->factors[c] = (float)factor;
        layer->factors[channels + c] = (float)(slope * layer->mean[c] - factor * sum / n);
        layer->factors[2 * channels + c] = (float)slope;
    }
}

void norm_pool_backward(struct norm_pool *layer, enum norm_pool_mode mode, int count, const float *dy,
                        const float *gamma, float *x_to_dx, float *dgamma, float *dbeta) {
    int side = layer->side, half = side / 2, channels = layer->channels;
    float *factor = layer->factors, *offset = factor + channels, *slope = offset + channels;
    if (mode == NORM_POOL_TRAIN) {
        backward_sums(layer, count, x_to_dx, dy);
        for (int c = 0; c < channels; c++) {
            dgamma[c] = (float)(layer->sums[channels + c] * layer->inverse_deviation[c]);
            dbeta[c] = (float)layer->sums[c];
        }
        if (layer->join != NULL) { /* x of one worker moves the statistics, and so the loss, of all */
            layer->join(layer->join_context, layer->sums, 2 * (size_t)channels);
        }
        backward_factors(layer, gamma);
    } else {
        for (int c = 0; c < channels; c++) {
            factor[c] = 1;
            offset[c] = slope[c] = 0;
        }
    }
    size_t image_floats = (size_t)side * (size_t)side * (size_t)channels;
    for (int image = 0; image < count; image++) {
        size_t windows = (size_t)image * (size_t)(half * half * channels);
        for (int c = 0; c < channels; c += LANES) {
            image_backward(x_to_dx + (size_t)image * image_floats + c, side, channels, layer->chosen + windows + c,
                           dy + windows + c, factor + c, offset + c, slope + c);
        }
    }
    memset(x_to_dx + (size_t)count * image_floats, 0, (size_t)(layer->batch - count) * image_floats * sizeof *x_to_dx);
}
