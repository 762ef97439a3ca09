/* Synchronised batch norm in memory of a GPU: kernels on the group's stream, and NCCL's sum over ranks between them.
 * The arithmetic is the host's, but for the order in which a rank adds up its own values. */
#ifndef TRAIN_SYNCBN_DEVICE_H
#define TRAIN_SYNCBN_DEVICE_H

#include <muster/syncbn.h>

struct syncbn_device;

/* Borrows the options, whose arrays are in memory of the group's GPU. This rank alone: the others may yet fail.
 * MUSTER_EUNSUPPORTED (no NVRTC), MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int syncbn_device_create(struct muster_group *group, const struct muster_syncbn_options *options,
                         struct syncbn_device **out);
/* Waits until the GPU has done what was begun. What it may still use after the wait is left to it. NULL is accepted. */
void syncbn_device_free(struct syncbn_device *device);

/* As those of muster/syncbn.h, with arguments that have been checked. A rank that fails lets nobody wait: it aborts the
 * group, if that has not failed. */
int syncbn_device_forward(struct syncbn_device *device, const float *x, size_t n, size_t plane, float *y);
int syncbn_device_backward(struct syncbn_device *device, const float *x, const float *dy, float *dx,
                           float *weight_gradient, float *bias_gradient);
int syncbn_device_evaluate(struct syncbn_device *device, const float *x, size_t n, size_t plane, float *y);

#endif
