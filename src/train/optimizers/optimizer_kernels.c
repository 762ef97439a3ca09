/* See optimizer_kernels.h. Compiled with vectorisation, and without fused multiply-add (CMakeLists.txt): each operation
 * is rounded by itself, so that machines with and without such instructions, and loops of any width, give the same
 * bits: ranks of one job stay equal. */
#include "train/optimizers/optimizer_kernels.h"

#include <math.h>

static void sgd_plain(float *restrict p, const float *restrict g, size_t n, float rate, float decay) {
    for (size_t i = 0; i < n; i++) {
        p[i] = p[i] - rate * (g[i] + decay * p[i]);
    }
}

static void sgd_momentum(float *restrict p, const float *restrict g, float *restrict b, size_t n,
                         const struct sgd_factors *factors) {
    const float rate = factors->rate, momentum = factors->momentum, undamped = factors->undamped;
    const float decay = factors->decay;
    for (size_t i = 0; i < n; i++) {
        b[i] = momentum * b[i] + undamped * (g[i] + decay * p[i]);
        p[i] = p[i] - rate * b[i];
    }
}

static void sgd_nesterov(float *restrict p, const float *restrict g, float *restrict b, size_t n,
                         const struct sgd_factors *factors) {
    const float rate = factors->rate, momentum = factors->momentum, undamped = factors->undamped;
    const float decay = factors->decay;
    for (size_t i = 0; i < n; i++) {
        float d = g[i] + decay * p[i];
        b[i] = momentum * b[i] + undamped * d;
        p[i] = p[i] - rate * (d + momentum * b[i]);
    }
}

void kernel_sgd(float *p, const float *g, float *b, size_t n, const struct sgd_factors *factors, bool first) {
    struct sgd_factors now = *factors;
    if (!b) {
        sgd_plain(p, g, n, factors->rate, factors->decay);
        return;
    }
    if (first) { /* b is zero: b = d */
        now.undamped = 1;
    }
    if (factors->nesterov) {
        sgd_nesterov(p, g, b, n, &now);
    } else {
        sgd_momentum(p, g, b, n, &now);
    }
}

void kernel_adadelta(float *restrict p, const float *restrict g, float *restrict s, float *restrict a, size_t n,
                     const struct adadelta_factors *factors) {
    const float rate = factors->rate, rho = factors->rho, one_minus_rho = factors->one_minus_rho;
    const float epsilon = factors->epsilon, decay = factors->decay;
    for (size_t i = 0; i < n; i++) {
        float gradient = g[i] + decay * p[i];
        s[i] = rho * s[i] + one_minus_rho * (gradient * gradient);
        float delta = sqrtf(a[i] + epsilon) / sqrtf(s[i] + epsilon) * gradient;
        a[i] = rho * a[i] + one_minus_rho * (delta * delta);
        p[i] = p[i] - rate * delta;
    }
}

void kernel_adamw(float *restrict p, const float *restrict g, float *restrict m, float *restrict v, size_t n,
                  const struct adamw_factors *factors) {
    const float shrink = factors->shrink, one_minus_beta1 = factors->one_minus_beta1, beta2 = factors->beta2;
    const float one_minus_beta2 = factors->one_minus_beta2, rate = factors->rate;
    const float root_bias = factors->root_bias, epsilon = factors->epsilon;
    for (size_t i = 0; i < n; i++) {
        m[i] = m[i] + one_minus_beta1 * (g[i] - m[i]);
        v[i] = beta2 * v[i] + one_minus_beta2 * (g[i] * g[i]);
        p[i] = shrink * p[i] - rate * (m[i] / (sqrtf(v[i]) / root_bias + epsilon));
    }
}
