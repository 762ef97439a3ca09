/* Optimizers for float32 parameters: SGD, Adadelta and AdamW, with PyTorch's formulas, options and defaults.
 *
 * The parameters are registered once; each step is handed where their gradients are, since those of a ddp may move
 * (muster/ddp.h). What an optimizer remembers between steps is had as named tensors, for snapshots.
 *
 * Results have the same bits on every x86-64 machine and on every rank that has the same inputs: loops are vectorised,
 * but no operation is fused or reordered. They agree with PyTorch's to rounding.
 *
 * Threads: one thread at a time for one optimizer. No call blocks. Errors: MUSTER_EINVAL, MUSTER_ENOMEM, MUSTER_ELIMIT.
 */
#ifndef MUSTER_OPTIMIZER_H
#define MUSTER_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/snapshot.h>
#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_OPTIMIZER_PARAMETERS_MAX ((size_t)4096)

struct muster_optimizer;

/* One parameter. The name is copied, the memory is borrowed until muster_optimizer_free(). */
struct muster_optimizer_parameter {
    const char *name; /* unique: "conv1.weight" */
    float *data;
    size_t count;
};

/* Options of the three kinds. Start from the initializers, which hold PyTorch's defaults; `size` is that of the struct.
 */

/* d = g + weight_decay * p;  b = momentum * b + (1 - dampening) * d, first b = d;  d = b, with nesterov d + momentum *
 * b; p -= learning_rate * d. Remembers b ("momentum_buffer"); without momentum, nothing. (Sutskever et al. 2013, as
 * PyTorch writes it.) */
struct muster_sgd_options {
    size_t size;
    double learning_rate, momentum, dampening, weight_decay;
    bool nesterov; /* needs a momentum, and no dampening */
};
#define MUSTER_SGD_OPTIONS_INIT                                                                                        \
    { sizeof(struct muster_sgd_options), 1e-3, 0, 0, 0, false }

/* g += weight_decay * p;  s = rho * s + (1 - rho) * g^2;  d = sqrt(a + epsilon) / sqrt(s + epsilon) * g;
 * a = rho * a + (1 - rho) * d^2;  p -= learning_rate * d. (Zeiler 2012.) Remembers s ("square_avg") and a
 * ("acc_delta").
 */
struct muster_adadelta_options {
    size_t size;
    double learning_rate, rho, epsilon, weight_decay;
};
#define MUSTER_ADADELTA_OPTIONS_INIT                                                                                   \
    { sizeof(struct muster_adadelta_options), 1.0, 0.9, 1e-6, 0 }

/* p *= 1 - learning_rate * weight_decay;  m += (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2;
 * p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon), t = 1 in the first step.
 * (Loshchilov and Hutter 2019.) Remembers m ("exp_avg") and v ("exp_avg_sq"). */
struct muster_adamw_options {
    size_t size;
    double learning_rate, beta1, beta2, epsilon, weight_decay;
};
#define MUSTER_ADAMW_OPTIONS_INIT                                                                                      \
    { sizeof(struct muster_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 1e-2 }

/* options: NULL for the defaults. */
int muster_optimizer_create_sgd_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                      size_t count, const struct muster_sgd_options *options,
                                      struct muster_optimizer **out);
static inline int muster_optimizer_create_sgd(const struct muster_optimizer_parameter *parameters, size_t count,
                                              const struct muster_sgd_options *options, struct muster_optimizer **out) {
    return muster_optimizer_create_sgd_sized(parameters, sizeof *parameters, count, options, out);
}

int muster_optimizer_create_adadelta_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                           size_t count, const struct muster_adadelta_options *options,
                                           struct muster_optimizer **out);
static inline int muster_optimizer_create_adadelta(const struct muster_optimizer_parameter *parameters, size_t count,
                                                   const struct muster_adadelta_options *options,
                                                   struct muster_optimizer **out) {
    return muster_optimizer_create_adadelta_sized(parameters, sizeof *parameters, count, options, out);
}

int muster_optimizer_create_adamw_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                        size_t count, const struct muster_adamw_options *options,
                                        struct muster_optimizer **out);
static inline int muster_optimizer_create_adamw(const struct muster_optimizer_parameter *parameters, size_t count,
                                                const struct muster_adamw_options *options,
                                                struct muster_optimizer **out) {
    return muster_optimizer_create_adamw_sized(parameters, sizeof *parameters, count, options, out);
}

/* NULL is accepted. */
void muster_optimizer_free(struct muster_optimizer *optimizer);

/* One step. gradients: for each parameter, in the order of registration, where its gradient is (`count` floats, not
 * changed). With NULL the parameter and its state stay as they are, and the step does not count in its t. */
int muster_optimizer_step(struct muster_optimizer *optimizer, const float *const *gradients);

/* Scales gradients so that the norm of all of them together is at most norm_max (> 0), as
 * torch.nn.utils.clip_grad_norm_ does: norm = sqrt(sum of all squares); where norm > norm_max each is multiplied by
 * norm_max / (norm + 1e-6). gradients: `count` of them, of counts[i] floats each; NULL ones are left out. group: NULL
 * if this rank has all gradients of the model. That is so with a ddp, whose averages are the same everywhere, and needs
 * no communication. Else the squares of all ranks are added (one all_reduce of 8 bytes; every rank calls it; blocks). A
 * norm that is infinite or no number leaves the gradients as they are: look at *out_norm (may be NULL) and skip the
 * step. The sum is kept in float64 and has the same bits in every run. One thread at a time for the same gradients.
 * Errors: MUSTER_EINVAL, and those of the collectives. */
int muster_clip_gradients(struct muster_group *group, float *const *gradients, const size_t *counts, size_t count,
                          double norm_max, double *out_norm);

/* The rate used from the next step on; for schedules. */
int muster_optimizer_set_learning_rate(struct muster_optimizer *optimizer, double learning_rate);
double muster_optimizer_learning_rate(const struct muster_optimizer *optimizer);

/* What is remembered, as tensors: "optimizer.square_avg.conv1.weight" of float32 [count] for each parameter and thing,
 * and "optimizer.steps", how many steps each parameter has taken, of int64 [parameters]. Valid as long as the
 * optimizer. Saving reads the memory they point to, loading writes it; the learning rate is the program's to save.
 * muster_optimizer_tensors() writes muster_optimizer_tensor_count() of them. */
size_t muster_optimizer_tensor_count(const struct muster_optimizer *optimizer);
int muster_optimizer_tensors_sized(struct muster_optimizer *optimizer, struct muster_tensor *out, size_t tensor_bytes);
static inline int muster_optimizer_tensors(struct muster_optimizer *optimizer, struct muster_tensor *out) {
    return muster_optimizer_tensors_sized(optimizer, out, sizeof *out);
}

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
