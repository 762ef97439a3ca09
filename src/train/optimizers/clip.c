/* The norm of gradients, and clipping them by it; see muster/optimizer.h. */
#include <muster/optimizer.h>

#include <math.h>

#include <muster/collective.h>

#include "base/status.h"
#include "comm/device/device.h"
#include "train/optimizers/exact_squares.h"
#include "train/optimizers/optimizer_kernels.h"

#define SMALL 1e-6 /* PyTorch's */

/* The first one tells for all: to ask costs a call of the driver. */
static int check_host(const float *const *ranges, size_t count) {
    size_t first = 0;
    while (first < count && !ranges[first]) {
        first++;
    }
    int gpu = first < count ? device_number_of(ranges[first]) : -1;
    return gpu < 0
               ? 0
               : status_fail(MUSTER_EINVAL,
                             "range %zu is in memory of GPU %d: norms are computed in memory of the host", first, gpu);
}

static int squares_of_all(struct muster_group *group, const float *const *ranges, const size_t *counts, size_t count,
                          double *out_sum) {
    double sum = 0;
    int code = check_host(ranges, count);
    if (code) {
        return code;
    }
    for (size_t i = 0; i < count; i++) {
        sum += ranges[i] ? optimizer_squares(ranges[i], counts[i]) : 0;
    }
    code = group ? muster_all_reduce(group, &sum, &sum, 1, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL) : 0;
    if (code == 0) {
        *out_sum = sum;
    }
    return code;
}

static int exact_squares_of_all(struct muster_group *group, const float *const *ranges, const size_t *counts,
                                size_t count, double *out_sum) {
    struct exact_squares sum = {.infinite = 0};
    int code = check_host(ranges, count);
    if (code) {
        return code;
    }
    for (size_t i = 0; i < count; i++) {
        exact_squares_add(&sum, ranges[i], ranges[i] ? counts[i] : 0);
    }
    code = group
               ? muster_all_reduce(group, &sum, &sum, sizeof sum / sizeof(uint64_t), MUSTER_UINT64, MUSTER_OP_SUM, NULL)
               : 0;
    if (code == 0) {
        *out_sum = exact_squares_value(&sum);
    }
    return code;
}

static int check_norm(const char *call, const float *const *ranges, const size_t *counts, size_t count,
                      const double *out_sum) {
    return !out_sum || (count > 0 && (!ranges || !counts)) ? status_fail_null(call, !out_sum ? "out_sum"
                                                                                    : ranges ? "counts"
                                                                                             : "ranges")
                                                           : 0;
}

int muster_squared_norm(struct muster_group *group, const float *const *ranges, const size_t *counts, size_t count,
                        double *out_sum) {
    int code = check_norm("muster_squared_norm", ranges, counts, count, out_sum);
    if (code == 0) {
        code = squares_of_all(group, ranges, counts, count, out_sum);
        code = code ? status_prefix(code, "muster_squared_norm") : 0;
    }
    return code;
}

int muster_exact_squared_norm(struct muster_group *group, const float *const *ranges, const size_t *counts,
                              size_t count, double *out_sum) {
    int code = check_norm("muster_exact_squared_norm", ranges, counts, count, out_sum);
    if (code == 0) {
        code = exact_squares_of_all(group, ranges, counts, count, out_sum);
        code = code ? status_prefix(code, "muster_exact_squared_norm") : 0;
    }
    return code;
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
