/* AdamW (Loshchilov and Hutter 2019) with PyTorch's formula, and the norm of all gradients. A simple one for one
 * process. */
#ifndef EXAMPLES_GPT_ADAMW_H
#define EXAMPLES_GPT_ADAMW_H

#include <stddef.h>
#include <stdint.h>

struct adamw {
    double beta1, beta2, epsilon;
    int64_t steps; /* that were begun */
};

/* What is the same for all parameters of one step. */
struct adamw_step {
    double learning_rate;
    double weight_decay;
    double gradient_scale; /* by which gradients are multiplied first: clipping */
};

/* One step for `count` parameters; adamw->steps counts it already. mean and square are remembered between steps and
 * start as 0. */
void adamw_update(const struct adamw *adamw, const struct adamw_step *step, size_t count, float *parameters,
                  const float *gradients, float *mean, float *square);

/* Square root of the sum of all squares. */
double gradient_norm(size_t count, const float *gradients);

#endif
