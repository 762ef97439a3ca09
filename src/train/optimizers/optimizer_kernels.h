/* The loops of the optimizers, one parameter at a time; formulas in muster/optimizer.h. Pure.
 *
 * `p` is the parameter, `g` its gradient, both of `n` elements; what is remembered does not overlap them. */
#ifndef TRAIN_OPTIMIZER_KERNELS_H
#define TRAIN_OPTIMIZER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

struct sgd_factors {
    float rate, momentum, undamped, decay; /* undamped: 1 - dampening */
    bool nesterov;
};
/* b: NULL without momentum. first: b is not yet set. */
void kernel_sgd(float *p, const float *g, float *b, size_t n, const struct sgd_factors *factors, bool first);

struct adadelta_factors {
    float rate, rho, one_minus_rho, epsilon, decay;
};
void kernel_adadelta(float *p, const float *g, float *s, float *a, size_t n, const struct adadelta_factors *factors);

struct adamw_factors {
    float shrink; /* 1 - rate * decay */
    float one_minus_beta1, beta2, one_minus_beta2;
    float rate;      /* rate / (1 - beta1^t) */
    float root_bias; /* sqrt(1 - beta2^t) */
    float epsilon;
};
void kernel_adamw(float *p, const float *g, float *m, float *v, size_t n, const struct adamw_factors *factors);

#endif
