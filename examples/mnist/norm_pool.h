/* Batch normalisation, ReLU and 2x2 max pooling as one layer, forward and backward.
 *
 * Apart they would read and write the large output of a convolution seven times; together they read it three times and
 * write it once, in cache-sized pieces. The formulas are PyTorch's (BatchNorm2d: Ioffe and Szegedy 2015):
 *
 *     z = (x - mean) / sqrt(variance + 1e-5) * gamma + beta      per channel
 *     y = the largest of relu(z) in each 2x2 window
 *
 * Shapes are NHWC. x is (batch, side, side, channels); y is (batch, side/2, side/2, channels), where the last row and
 * column of an odd side are in no window. channels is a multiple of NORM_POOL_LANES. */
#ifndef EXAMPLES_MNIST_NORM_POOL_H
#define EXAMPLES_MNIST_NORM_POOL_H

#include <stddef.h>
#include <stdint.h>

enum { NORM_POOL_LANES = 32 };

#define NORM_POOL_EPSILON 1e-5
#define NORM_POOL_MOMENTUM 0.1 /* of the running statistics, which evaluation uses */

/* Adds numbers[0..count) up over all workers, in place. */
typedef void (*norm_pool_join)(void *context, double *numbers, size_t count);

struct norm_pool {
    int batch, side, channels;
    norm_pool_join join; /* not NULL: the statistics are those of all workers' batches together */
    void *join_context;
    uint8_t *chosen; /* (batch, side/2, side/2, channels): which of the window's four was largest; 4: none above 0 */
    double *sums;    /* (2, channels), and a count: of a pass over the batch */
    double pixels;   /* of one channel in the last batch */
    double *mean;    /* (channels), of the last batch */
    double *inverse_deviation;
    float *factors; /* (3, channels): what a pass over pixels multiplies and adds */
};

/* The layer's parameters and running statistics, (channels) each; the network's. */
struct norm_pool_values {
    const float *gamma, *beta;
    float *running_mean, *running_variance;
};

/* What the forward call normalises by. */
enum norm_pool_mode {
    NORM_POOL_TRAIN, /* the first `count` images' statistics, which also move the running ones */
    NORM_POOL_TEST,  /* the running statistics */
    NORM_POOL_NONE,  /* nothing: z = x, and no values are used */
};

/* Without join. */
void norm_pool_create(struct norm_pool *layer, int batch, int side, int channels);
void norm_pool_free(struct norm_pool *layer);

/* y of the first `count` images of x. */
void norm_pool_forward(struct norm_pool *layer, enum norm_pool_mode mode, int count, const float *x,
                       const struct norm_pool_values *values, float *y);

/* Given dy, the gradient by y, replaces x by the gradient by x (of all `batch` images: zero from `count` on), and
 * writes those by gamma and beta (of this worker's loss). mode: that of the forward call, NORM_POOL_TEST excluded. */
void norm_pool_backward(struct norm_pool *layer, enum norm_pool_mode mode, int count, const float *dy,
                        const float *gamma, float *x_to_dx, float *dgamma, float *dbeta);

#endif
