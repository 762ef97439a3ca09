/* The layers of examples/mnist as their definitions read, one loop a dimension, in double: what the fast ones are
 * checked against. Shapes are NHWC, weights OIHW, as in conv.h and norm_pool.h. */
#ifndef TESTS_EXAMPLES_NAIVE_H
#define TESTS_EXAMPLES_NAIVE_H

#include <stdbool.h>

struct naive_conv {
    int batch, in_channels, out_channels, in_side, out_side;
};

void naive_conv_forward(const struct naive_conv *s, const float *x, const float *weight, const float *bias, double *y);
/* dx may be NULL. */
void naive_conv_backward(const struct naive_conv *s, const float *x, const float *weight, const float *dy, double *dx,
                         double *dweight, double *dbias);

/* mean and variance (biased) of each channel. */
void naive_moments(int pixels, int channels, const float *x, double *mean, double *variance);

/* z = (x - mean) / sqrt(variance + 1e-5) * gamma + beta. gamma NULL: z = x. */
struct naive_norm {
    int pixels, channels;
    const double *mean, *variance;
    const float *gamma, *beta;
};
void naive_norm_forward(const struct naive_norm *n, const float *x, double *z);
/* Through the mean and the variance, too. */
void naive_norm_backward(const struct naive_norm *n, const float *x, const double *dz, double *dx, double *dgamma,
                         double *dbeta);

/* The largest of relu(z) in each 2x2 window; the gradient goes to the first largest, if that is above 0. */
void naive_relu_pool_forward(int batch, int side, int channels, const double *z, double *y);
void naive_relu_pool_backward(int batch, int side, int channels, const double *z, const float *dy, double *dz);

#endif
