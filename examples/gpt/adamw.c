/* See adamw.h. */
#include "adamw.h"

#include <math.h>

#include "vector.h"

/* The numbers of one step, as floats. */
struct factors {
    float scale, keep, beta1, beta2, rate, correction, epsilon;
};

/* One pass over memory: all that a parameter needs is read once and written once. */
VECTORISED static void update(const struct factors *f, size_t count, float *restrict p, const float *restrict gradients,
                              float *restrict mean, float *restrict square) {
    const struct factors c = *f;
    SIMD for (size_t i = 0; i < count; i++) {
        float g = gradients[i] * c.scale;
        float m = mean[i] + (1 - c.beta1) * (g - mean[i]);
        float v = c.beta2 * square[i] + (1 - c.beta2) * g * g;
        mean[i] = m;
        square[i] = v;
        p[i] = p[i] * c.keep - c.rate * m / (__builtin_sqrtf(v) * c.correction + c.epsilon);
    }
}

void adamw_update(const struct adamw *adamw, const struct adamw_step *step, size_t count, float *parameters,
                  const float *gradients, float *mean, float *square) {
    double steps = (double)adamw->steps;
    struct factors factors = {
        .scale = (float)step->gradient_scale,
        .keep = (float)(1 - step->learning_rate * step->weight_decay),
        .beta1 = (float)adamw->beta1,
        .beta2 = (float)adamw->beta2,
        .rate = (float)(step->learning_rate / (1 - pow(adamw->beta1, steps))),
        .correction = (float)(1 / sqrt(1 - pow(adamw->beta2, steps))),
        .epsilon = (float)adamw->epsilon,
    };
    update(&factors, count, parameters, gradients, mean, square);
}

VECTORISED static float sum_of_squares(size_t count, const float *x) {
    float sum = 0;
    SIMD_SUM(sum)
    for (size_t i = 0; i < count; i++) {
        sum += x[i] * x[i];
    }
    return sum;
}

double gradient_norm(size_t count, const float *gradients) {
    enum { PART = 4096 }; /* few enough for a float, many enough for the double not to matter */
    double sum = 0;
    for (size_t i = 0; i < count; i += PART) {
        sum += (double)sum_of_squares(count - i < PART ? count - i : PART, gradients + i);
    }
    return sqrt(sum);
}
