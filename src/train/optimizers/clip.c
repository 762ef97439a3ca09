/* The norm of gradients, and clipping them by it; see muster/optimizer.h. */
#include <muster/optimizer.h>

#include <math.h>

#include <muster/collective.h>

#include "base/status.h"
#include "train/optimizers/optimizer_kernels.h"

#define SMALL 1e-6 /* PyTorch's */

static int squares_of_all(struct muster_group *group, const float *const *ranges, const size_t *counts, size_t count,
                          double *out_sum) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += ranges[i] ? optimizer_squares(ranges[i], counts[i]) : 0;
    }
    int code = group ? muster_all_reduce(group, &sum, &sum, 1, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL) : 0;
    if (code == 0) {
        *out_sum = sum;
    }
    return code;
}

int muster_squared_norm(struct muster_group *group, const float *const *ranges, const size_t *counts, size_t count,
                        double *out_sum) {
    if (!out_sum || (count > 0 && (!ranges || !counts))) {
        return status_fail_null("muster_squared_norm", !out_sum ? "out_sum" : ranges ? "counts" : "ranges");
    }
    int code = squares_of_all(group, ranges, counts, count, out_sum);
    return code ? status_prefix(code, "muster_squared_norm") : 0;
}

double muster_clip_scale(double norm, double norm_max) {
    return norm_max > 0 && isfinite(norm) && norm > norm_max ? norm_max / (norm + SMALL) : 1;
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
    int code = squares_of_all(group, (const float *const *)gradients, counts, count, &sum);
    if (code) {
        return status_prefix(code, "muster_clip_gradients");
    }
    double norm = sqrt(sum);
    float factor = (float)muster_clip_scale(norm, norm_max);
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
