/* Optimizers for float32 parameters: SGD, Adadelta, Adam and AdamW, with PyTorch's formulas, options and defaults.
 *
 * An optimizer works on ranges of elements, which are registered once: whole parameters, or the parts that a rank of
 * sharded training has. Each step is handed where their gradients are, since those of a ddp may move (muster/ddp.h).
 * What an optimizer remembers between steps is as large as the ranges. muster_optimizer_tensors() describes it as named
 * tensors, for snapshots.
 *
 * Every element is computed by itself: the bits do not depend on how parameters are split into ranges, or on what is
 * beside them. They are the same on every x86-64 machine and on every rank that has the same inputs: loops are
 * vectorised, but no operation is fused or reordered. They agree with PyTorch's to rounding.
 *
 * All memory is the host's; that of a GPU is refused (MUSTER_EINVAL).
 *
 * Threads: one thread at a time for one optimizer. No call blocks, but for those with a group. Errors: MUSTER_EINVAL,
 * MUSTER_ENOMEM, MUSTER_ELIMIT.
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

#define MUSTER_OPTIMIZER_PARAMETERS_MAX ((size_t)4096) /* parameters or ranges */
#define MUSTER_OPTIMIZER_GROUPS_MAX ((size_t)256)

struct muster_optimizer;

/* One parameter. The name is copied, the memory is borrowed until muster_optimizer_free(). */
struct muster_optimizer_parameter {
    const char *name; /* unique: "conv1.weight" */
    float *data;
    size_t count;
};

/* Options of the four kinds. Start from the initializers, which hold PyTorch's defaults; `size` is that of the struct.
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

/* g += weight_decay * p;  m += (1 - beta1) * (g - m);  v = beta2 * v + (1 - beta2) * g^2;
 * p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon), t = 1 in the first step.
 * (Kingma and Ba 2015.) Remembers m ("exp_avg") and v ("exp_avg_sq"). */
struct muster_adam_options {
    size_t size;
    double learning_rate, beta1, beta2, epsilon, weight_decay;
};
#define MUSTER_ADAM_OPTIONS_INIT                                                                                       \
    { sizeof(struct muster_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0 }

/* The decay apart from the gradient: p *= 1 - learning_rate * weight_decay; then as Adam without a decay.
 * (Loshchilov and Hutter 2019.) Remembers the same as Adam. */
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

int muster_optimizer_create_adam_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                       size_t count, const struct muster_adam_options *options,
                                       struct muster_optimizer **out);
static inline int muster_optimizer_create_adam(const struct muster_optimizer_parameter *parameters, size_t count,
                                               const struct muster_adam_options *options,
                                               struct muster_optimizer **out) {
    return muster_optimizer_create_adam_sized(parameters, sizeof *parameters, count, options, out);
}

int muster_optimizer_create_adamw_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                        size_t count, const struct muster_adamw_options *options,
                                        struct muster_optimizer **out);
static inline int muster_optimizer_create_adamw(const struct muster_optimizer_parameter *parameters, size_t count,
                                                const struct muster_adamw_options *options,
                                                struct muster_optimizer **out) {
    return muster_optimizer_create_adamw_sized(parameters, sizeof *parameters, count, options, out);
}

/* A range of elements with the options of a group. The name is copied, the memory is borrowed until
 * muster_optimizer_free() or until muster_optimizer_move() says that it is elsewhere. */
struct muster_optimizer_range {
    const char *name; /* unique: "conv1.weight", or "conv1.weight.3" for the part that a rank has */
    float *data;      /* any part of a parameter; NULL if it is empty */
    size_t count;     /* may be 0 */
    size_t group;     /* below group_count */
};

/* Options of a group: one member is set, the same in all groups; the others are NULL. The options are copied. */
struct muster_optimizer_group {
    const struct muster_sgd_options *sgd;
    const struct muster_adadelta_options *adadelta;
    const struct muster_adam_options *adam;
    const struct muster_adamw_options *adamw;
};

/* For ranges in groups. count: 1 to MUSTER_OPTIMIZER_PARAMETERS_MAX; group_count: 1 to MUSTER_OPTIMIZER_GROUPS_MAX.
 * Allocates what is remembered, zeros. */
int muster_optimizer_create_sized(const struct muster_optimizer_range *ranges, size_t range_bytes, size_t count,
                                  const struct muster_optimizer_group *groups, size_t group_bytes, size_t group_count,
                                  struct muster_optimizer **out);
static inline int muster_optimizer_create(const struct muster_optimizer_range *ranges, size_t count,
                                          const struct muster_optimizer_group *groups, size_t group_count,
                                          struct muster_optimizer **out) {
    return muster_optimizer_create_sized(ranges, sizeof *ranges, count, groups, sizeof *groups, group_count, out);
}

/* NULL is accepted. */
void muster_optimizer_free(struct muster_optimizer *optimizer);

/* One step in place. gradients: for each range, in the order of registration, where its gradient is (`count` floats,
 * not changed). With NULL the range and its state stay as they are, and the step does not count in its t. */
int muster_optimizer_step(struct muster_optimizer *optimizer, const float *const *gradients);

/* Where the parameters and what is remembered are: the memory of a whole state of training. The lists are read during
 * the call; what they point to is the caller's. A list that is NULL, or a NULL in one, means where it is now. */
struct muster_optimizer_memory {
    size_t size;
    float *const *parameters; /* of each range: `count` floats */
    float *const *state;      /* of each tensor of muster_optimizer_tensors(), in that order, without the steps */
    int64_t *steps;           /* one number for each range */
};
#define MUSTER_OPTIMIZER_MEMORY_INIT                                                                                   \
    { sizeof(struct muster_optimizer_memory), NULL, NULL, NULL }

/* gradient_scale: each gradient is multiplied by it first, as a float32 (muster_clip_scale()). out: where the new
 * values are written; NULL: in place. bfloat16: for each range `count` numbers, or NULL: the new parameters rounded to
 * nearest even (a NaN stays one). All are borrowed for the call. */
struct muster_optimizer_step_options {
    size_t size;
    double gradient_scale;
    const struct muster_optimizer_memory *out;
    uint16_t *const *bfloat16;
};
#define MUSTER_OPTIMIZER_STEP_OPTIONS_INIT                                                                             \
    { sizeof(struct muster_optimizer_step_options), 1, NULL, NULL }

/* One step from where the values are now to where the options say. An output is the memory that it replaces, or does
 * not overlap anything that the step reads or writes. A range without a gradient is copied, so that `out` is whole.
 *
 * If all of `out` is elsewhere, nothing that the optimizer has now is changed: the step has not happened until
 * muster_optimizer_move() adopts it, and it may be made again, with other gradients too. So a program keeps two
 * memories, writes one from the other, and moves when all ranks have written theirs.
 *
 * Where all outputs of a range are elsewhere and large, they are stored past the caches, which is faster than reading
 * what is overwritten. For that they begin alike: at the same distance from a multiple of 64 bytes (bfloat16: half of
 * it from one of 32). All stores are done, and seen by whom the caller tells, when the call returns. */
int muster_optimizer_step_into(struct muster_optimizer *optimizer, const float *const *gradients,
                               const struct muster_optimizer_step_options *options);

/* From now on the values are there. Nothing is copied: the values in `memory` count, which a step or a load has written
 * (before the first step: zeros in state and steps). Tensors that were asked for before point to the old place. What
 * the optimizer had allocated for it is freed when none of it is in use. The caller's memory is borrowed until
 * muster_optimizer_free() or until the next move away from it. */
int muster_optimizer_move(struct muster_optimizer *optimizer, const struct muster_optimizer_memory *memory);

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

/* The sum of the squares of all elements of `count` ranges, of counts[i] floats each; NULL ones are left out. Its root
 * is the norm by which gradients are clipped. group: the squares of all its ranks are added (one all_reduce of 8 bytes,
 * in the order of ranks; every rank calls it; blocks); NULL: those of this rank. The squares are exact. They are added
 * in float64, in an order that lengths and order of the ranges alone decide, not alignment, processor or time. So every
 * run has the same bits, and so have all ranks of the group. Another split into ranges, or over another number of
 * ranks, adds in another order: that changes the last bits. Errors: MUSTER_EINVAL, and those of the collectives. */
int muster_squared_norm(struct muster_group *group, const float *const *ranges, const size_t *counts, size_t count,
                        double *out_sum);

/* The same of the same gradients in any world: nothing is rounded until all squares of all ranks are added, so neither
 * split nor order matters. For a training whose bits do not depend on the number of ranks (muster/virtual_ranks.h),
 * with ddp and fsdp alike. Takes some eight times as long; the all_reduce has 176 bytes. */
int muster_exact_squared_norm(struct muster_group *group, const float *const *ranges, const size_t *counts,
                              size_t count, double *out_sum);

/* The gradient_scale with which a step does what muster_clip_gradients() and a step do, in one pass less:
 * norm_max / (norm + 1e-6) if norm > norm_max, else 1, also for a norm that is infinite or no number (skip that step).
 * norm_max: above 0, else 1 is given. Any thread. */
double muster_clip_scale(double norm, double norm_max);

/* The rate used from the next step on, of all groups or of one; for schedules (muster/schedule.h).
 * muster_optimizer_learning_rate() gives that of group 0. */
int muster_optimizer_set_learning_rate(struct muster_optimizer *optimizer, double learning_rate);
double muster_optimizer_learning_rate(const struct muster_optimizer *optimizer);
int muster_optimizer_set_group_learning_rate(struct muster_optimizer *optimizer, size_t group, double learning_rate);
double muster_optimizer_group_learning_rate(const struct muster_optimizer *optimizer, size_t group);

/* What is remembered, as tensors: "optimizer.square_avg.conv1.weight" of float32 [count] for each range and thing,
 * range by range, and "optimizer.steps", how many steps each range has taken, of int64 [ranges]. Nothing at all for SGD
 * without momentum. Valid as long as the optimizer, or until muster_optimizer_move(). Saving reads the memory they
 * point to, loading writes it; the learning rate is the program's to save. muster_optimizer_tensors() writes
 * muster_optimizer_tensor_count() of them. */
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
