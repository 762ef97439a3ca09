/* A 3x3 convolution without padding, forward and backward, by oneDNN (2.6 and later, 3.x too).
 *
 * Images are NHWC: (batch, height, width, channels), channels fastest. Weights are as PyTorch keeps them, OIHW: (out
 * channels, in channels, 3, 3); oneDNN wants them in blocks that suit the processor, and conv.c converts them at each
 * call, which costs microseconds.
 *
 * Every call computes all images of `batch`; who has fewer leaves the rest of x as it is and the rest of dy zero. */
#ifndef EXAMPLES_MNIST_CONV_H
#define EXAMPLES_MNIST_CONV_H

enum { CONV_KERNEL = 3 };

struct conv_shape {
    int batch;
    int in_channels;
    int out_channels;
    int in_side;  /* height and width of an input image */
    int out_side; /* in_side - 2 */
};

struct conv;

/* Compiles the three computations for this shape and processor. Fails the program (fail.h) where oneDNN cannot. */
struct conv *conv_create(struct conv_shape shape);
void conv_free(struct conv *conv);

/* y = weight * x + bias. x (batch, in_side, in_side, in_channels), weight (out_channels, in_channels, 3, 3), bias
 * (out_channels), y (batch, out_side, out_side, out_channels). */
void conv_forward(struct conv *conv, const float *x, const float *weight, const float *bias, float *y);

/* dweight, dbias: gradients of the loss by weight and bias, given dy, the one by y, and the x of the forward call. */
void conv_backward_weights(struct conv *conv, const float *x, const float *dy, float *dweight, float *dbias);

/* dx: the gradient by x. Only of a conv with more than one input channel: the first layer has no use for it. */
void conv_backward_data(struct conv *conv, const float *dy, const float *weight, float *dx);

#endif
