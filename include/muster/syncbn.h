/* Synchronised batch normalisation: as torch.nn.BatchNorm2d, but in training mean and variance are those of the batches
 * of all ranks together. So P ranks with n images each compute what one process with P*n images would.
 *
 * Shapes: x and y are [n, channels, plane] float32, row-major (NCHW; plane is height * width, or 1 for [n, channels]).
 *
 *     y = (x - mean) / sqrt(variance + eps) * weight + bias          (Ioffe & Szegedy 2015, one mean a channel)
 *
 * Each rank may have another n, 0 included. Sums are kept in float64, so the result differs from one process over the
 * whole batch only by rounding. It has the same bits in every run. Mean and variance have the same bits on every rank.
 *
 * Threads: one thread at a time for one layer. Forward and backward are collective calls on the group, one small
 * all_reduce each: all ranks make them in the same order. Use a group of its own (muster_group_subset()) beside a ddp
 * whose backward pass does not run in the same order on every rank.
 *
 * Memory: all arrays of a layer are in one memory, on all ranks: that of the host, or that of the group's GPU (engine
 * "nccl"; docs/ddp.md, "Batch norm on GPUs"). The first array of the options decides; a layer without any is on the
 * host. On a GPU the calls give work to the stream of muster_group_set_stream(), begin behind what it has been given,
 * and borrow their arrays until it has done that work. In such a group create and free, too, are calls on the group, by
 * the thread that makes its calls.
 *
 * Errors: MUSTER_EINVAL (an array is in the other memory, too), MUSTER_ENOMEM, those of the collectives
 * (muster/collective.h), and on a GPU MUSTER_ESYSTEM (the driver). Where a call fails on one rank alone on a GPU, the
 * others get MUSTER_EABORTED, with its sentence. */
#ifndef MUSTER_SYNCBN_H
#define MUSTER_SYNCBN_H

#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_SYNCBN_CHANNELS_MAX ((size_t)1 << 20)

struct muster_syncbn;

/* The layer. Arrays have `channels` elements, are borrowed until muster_syncbn_free(), and may be changed by the caller
 * between calls. Start from MUSTER_SYNCBN_OPTIONS_INIT. */
struct muster_syncbn_options {
    size_t size; /* of this struct, set by the initializer: lets it grow later */
    size_t channels;
    const float *weight, *bias; /* NULL: 1 and 0 */
    /* Updated by each training forward: new = (1 - momentum) * old + momentum * this batch's, the variance with n - 1
     * in the denominator. The caller initialises them (0 and 1). Both NULL: not kept, and there is no evaluating. */
    float *running_mean, *running_variance;
    int64_t *batches_tracked; /* counts training forwards; may be NULL if momentum >= 0 */
    double momentum;          /* < 0: the average over all batches so far */
    double eps;
};
#define MUSTER_SYNCBN_OPTIONS_INIT                                                                                     \
    { sizeof(struct muster_syncbn_options), 0, NULL, NULL, NULL, NULL, NULL, 0.1, 1e-5 }

/* Does not block; in a group with the engine "nccl" blocks until all ranks have called it. The group is borrowed until
 * muster_syncbn_free(). MUSTER_EUNSUPPORTED: arrays are on a GPU, and the group has another engine, or this rank has no
 * NVRTC (docs/engines.md); MUSTER_EINVAL: arrays are in both memories, or on another GPU than the group's;
 * MUSTER_EMISMATCH: ranks have other numbers of channels, or other memories, or another rank is refused. */
int muster_syncbn_create(struct muster_group *group, const struct muster_syncbn_options *options,
                         struct muster_syncbn **out);
/* NULL is accepted. The group must still be there. On a GPU: waits until that has done what it was given, so
 * the group's stream must still be there, too. */
void muster_syncbn_free(struct muster_syncbn *layer);

/* Training: normalises with the statistics of all ranks' batches, keeps them for the backward pass, and updates the
 * running ones. x: borrowed until return; y may be x only if there will be no backward pass. Blocks until all ranks
 * have called it. MUSTER_EINVAL (on every rank) if there are fewer than 2 values a channel in all. */
int muster_syncbn_forward(struct muster_syncbn *layer, const float *x, size_t n, size_t plane, float *y);

/* The gradients of the last training forward; pass its x again. dy, dx: as x; dx may be dy. dx is the derivative of the
 * sum of all ranks' losses by this rank's x. weight_gradient and bias_gradient (each may be NULL; overwritten) are this
 * rank's share: reduce them with the other gradients. Blocks until all ranks have called it. */
int muster_syncbn_backward(struct muster_syncbn *layer, const float *x, const float *dy, float *dx,
                           float *weight_gradient, float *bias_gradient);

/* Evaluation: normalises with the running statistics. No communication. y may be x. */
int muster_syncbn_evaluate(struct muster_syncbn *layer, const float *x, size_t n, size_t plane, float *y);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
