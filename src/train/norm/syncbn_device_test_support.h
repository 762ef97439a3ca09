/* For the tests of batch norm in memory of a GPU, on the doubles: a layer on the host and the same on the GPU, in one
 * group, which are given the same numbers. */
#ifndef TRAIN_SYNCBN_DEVICE_TEST_SUPPORT_H
#define TRAIN_SYNCBN_DEVICE_TEST_SUPPORT_H

#include <muster/syncbn.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/nccl/device_ranks_test_support.h"

enum { CHANNELS = 3, VALUES_MAX = 24 * CHANNELS * 64 };
/* Arrays that the options have. */
enum { NORM_WEIGHT = 1, NORM_BIAS = 2, NORM_RUNNING = 4, NORM_TRACKED = 8, NORM_ALL = 15 };

/* The layer on the host, and its arrays; also those of the GPU, once they have been read. */
struct norm {
    float x[VALUES_MAX], y[VALUES_MAX], dy[VALUES_MAX], dx[VALUES_MAX], evaluated[VALUES_MAX];
    float weight[CHANNELS], bias[CHANNELS], mean[CHANNELS], variance[CHANNELS];
    float weight_gradient[CHANNELS], bias_gradient[CHANNELS];
    int64_t tracked;
    struct muster_syncbn_options options;
    struct muster_syncbn *layer;
};

/* The same on the GPU. */
struct norm_there {
    float *x, *y, *dy, *dx, *evaluated, *weight, *bias, *mean, *variance, *weight_gradient, *bias_gradient;
    int64_t *tracked;
    struct muster_syncbn_options options;
    struct muster_syncbn *layer;
};

struct norms {
    struct device_rank d;
    struct norm host;
    struct norm_there there;
};

/* The group, whose stream becomes the test's, and arrays. */
void norms_begin(struct rank *rank, struct norms *out);
/* Options for both layers, which are yet to be made. */
void norms_describe(struct norms *norms, unsigned arrays, double momentum);
/* Both layers, too. */
void norms_make(struct norms *norms, unsigned arrays, double momentum);
/* Frees all of it; then nothing may be left on the GPU. */
void norms_end(struct norms *norms);

/* Copies x and dy to the GPU, and all arrays from there, waited for. */
void norms_put(struct norms *norms);
void norms_get(struct norms *norms, struct norm *out);

int norm_forward(struct norm *host, size_t images, size_t plane);
int norm_backward(struct norm *host);
/* On the GPU. Nothing waits for the stream. */
int norms_forward(struct norms *norms, size_t images, size_t plane);
int norms_backward(struct norms *norms);

#endif
