/* Layer normalisation (Ba, Kiros, Hinton 2016). See layers.h. With h = (x - mean) / deviation of a row:
 *
 *     y = weight * h + bias
 *     dx = (d - mean(d) - h * mean(d * h)) / deviation, where d = weight * dy
 *     dweight = sum of dy * h over rows, dbias = sum of dy over rows */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "vector.h"

static const float EPSILON = 1e-5F;

VECTORISED void layer_norm_forward(const struct layer_norm *norm, int rows, int width, const float *x,
                                   const float *weight, const float *bias, float *y) {
    for (int row = 0; row < rows; row++, x += width, y += width) {
        float sum = 0, squares = 0;
        SIMD_SUM(sum)
        for (int i = 0; i < width; i++) {
            sum += x[i];
        }
        float mean = sum / (float)width;
        SIMD_SUM(squares)
        for (int i = 0; i < width; i++) {
            squares += (x[i] - mean) * (x[i] - mean);
        }
        float inverse = 1 / sqrtf(squares / (float)width + EPSILON);
        SIMD for (int i = 0; i < width; i++) {
            y[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
        }
        norm->mean[row] = mean;
        norm->inverse_deviation[row] = inverse;
    }
}

/* One row. */
static inline __attribute__((always_inline)) void backward_row(float mean, float inverse, int width, const float *x,
                                                               const float *weight, const float *dy, float *dx,
                                                               const struct layer_norm_gradients *gradients) {
    float *dweight = gradients->weight, *dbias = gradients->bias;
    float sum = 0, sum_h = 0;
    SIMD_SUMS(sum, sum_h)
    for (int i = 0; i < width; i++) {
        float h = (x[i] - mean) * inverse, d = dy[i] * weight[i];
        sum += d;
        sum_h += d * h;
        dweight[i] += dy[i] * h;
        dbias[i] += dy[i];
    }
    float mean_d = sum / (float)width, mean_dh = sum_h / (float)width;
    SIMD for (int i = 0; i < width; i++) {
        float h = (x[i] - mean) * inverse;
        dx[i] += (dy[i] * weight[i] - mean_d - h * mean_dh) * inverse;
    }
}

VECTORISED void layer_norm_backward(const struct layer_norm *norm, int rows, int width, const float *x,
                                    const float *weight, const float *dy, float *dx,
                                    const struct layer_norm_gradients *gradients) {
    if (!gradients->add) {
        memset(gradients->weight, 0, (size_t)width * sizeof(float));
        memset(gradients->bias, 0, (size_t)width * sizeof(float));
    }
    for (int row = 0; row < rows; row++, x += width, dy += width, dx += width) {
        backward_row(norm->mean[row], norm->inverse_deviation[row], width, x, weight, dy, dx, gradients);
    }
}
