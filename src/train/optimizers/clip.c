/* Clipping gradients by their norm; see muster/optimizer.h. */
#include <muster/optimizer.h>

#include <math.h>

#include <muster/collective.h>

#include "base/status.h"

enum { LANES = 8 };
#define SMALL 1e-6 /* PyTorch's */

/* In lanes, which the compiler turns into vectors of any width: the bits do not depend on it. */
static double sum_of_squares(const float *values, size_t count) {
    double lanes[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (size_t lane = 0; lane < LANES; lane++) {
            lanes[lane] += (double)values[i + lane] * (double)values[i + lane];
        }
    }
    for (size_t lane = 0; lane < LANES; lane++) {
        sum += lanes[lane];
    }
    for (; i < count; i++) {
        sum += (double)values[i] * (double)values[i];
    }
    return sum;
}

int muster_clip_gradients(struct muster_group *group, float *const *gradients, const size_t *counts, size_t count,
                          double norm_max, double *out_norm) {
    if (count > 0 && (!gradients || !counts)) {
        return status_fail_null("muster_clip_gradients", gradients ? "counts" : "gradients");
    }
    if (!(norm_max > 0)) {
        return status_fail(MUSTER_EINVAL, "gradients are to be clipped to a norm of %g; it must be above 0", norm_max);
    }
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += gradients[i] ? sum_of_squares(gradients[i], counts[i]) : 0;
    }
    int code = group ? muster_all_reduce(group, &sum, &sum, 1, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL) : 0;
    if (code) {
        return status_prefix(code, "muster_clip_gradients");
    }
    double norm = sqrt(sum);
    float factor = (float)(norm_max / (norm + SMALL));
    for (size_t i = 0; isfinite(norm) && norm > norm_max && i < count; i++) {
        for (size_t at = 0; gradients[i] && at < counts[i]; at++) {
            gradients[i][at] *= factor;
        }
    }
    if (out_norm) {
        *out_norm = norm;
    }
    return 0;
}
