/* The network, that of examples/pytorch/mnist_ddp.py: 225,226 parameters, under PyTorch's names and in its layouts, so
 * that a snapshot of one can be read by the other.
 *
 *     images  (batch, 28, 28, 1)
 *     conv1 3x3, norm1, relu, pool  -> (batch, 13, 13, 32)
 *     conv2 3x3, norm2, relu, pool  -> (batch, 5, 5, 64), seen as (batch, 1600) channel by channel
 *     dense1, relu                  -> (batch, 128)
 *     dense2                        -> (batch, 10), the logits of the ten digits
 *
 * A step: fill images and labels, net_forward(NET_TRAIN), net_loss(), net_backward(). Failures end the program
 * (fail.h). */
#ifndef EXAMPLES_MNIST_NET_H
#define EXAMPLES_MNIST_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conv.h"
#include "norm_pool.h"

enum {
    NET_SIDE = 28,
    NET_PIXELS = NET_SIDE * NET_SIDE,
    NET_CLASSES = 10,
};

/* In the order of the forward pass; backward finishes their gradients in the opposite order. */
#define NET_PARAMETER_TABLE(X)                                                                                         \
    X(CONV1_WEIGHT, "conv1.weight", 32, 1, 3, 3)                                                                       \
    X(CONV1_BIAS, "conv1.bias", 32, 0, 0, 0)                                                                           \
    X(NORM1_WEIGHT, "norm1.weight", 32, 0, 0, 0)                                                                       \
    X(NORM1_BIAS, "norm1.bias", 32, 0, 0, 0)                                                                           \
    X(CONV2_WEIGHT, "conv2.weight", 64, 32, 3, 3)                                                                      \
    X(CONV2_BIAS, "conv2.bias", 64, 0, 0, 0)                                                                           \
    X(NORM2_WEIGHT, "norm2.weight", 64, 0, 0, 0)                                                                       \
    X(NORM2_BIAS, "norm2.bias", 64, 0, 0, 0)                                                                           \
    X(DENSE1_WEIGHT, "dense1.weight", 128, 1600, 0, 0)                                                                 \
    X(DENSE1_BIAS, "dense1.bias", 128, 0, 0, 0)                                                                        \
    X(DENSE2_WEIGHT, "dense2.weight", 10, 128, 0, 0)                                                                   \
    X(DENSE2_BIAS, "dense2.bias", 10, 0, 0, 0)

enum net_parameter {
#define NET_PARAMETER_ENUM(id, name, a, b, c, d) id,
    NET_PARAMETER_TABLE(NET_PARAMETER_ENUM)
#undef NET_PARAMETER_ENUM
        NET_PARAMETER_COUNT
};

/* Running statistics of batch normalisation: part of the model, but not trained. */
enum net_buffer { NORM1_MEAN, NORM1_VARIANCE, NORM2_MEAN, NORM2_VARIANCE, NET_BUFFER_COUNT };

struct net_tensor {
    const char *name;
    size_t count; /* of floats; 0: this network has none (normalisation is off) */
    size_t shape[4];
    size_t shape_count;
    float *value;
    float *gradient; /* of parameters: given by net_set_gradients() */
};

/* Called in backward as soon as a parameter's gradient is complete, so that it can travel while others are computed. */
typedef void (*net_ready)(void *context, enum net_parameter parameter);

enum net_mode { NET_TRAIN, NET_TEST };

struct net {
    int batch;      /* the most images of a call */
    bool normalise; /* has norm1 and norm2 */
    struct net_tensor parameters[NET_PARAMETER_COUNT];
    struct net_tensor buffers[NET_BUFFER_COUNT];
    bool accumulate; /* backward adds to the gradients instead of replacing them */
    double weight;   /* of the loss, in the gradients: 1 until it is set */
    net_ready ready; /* NULL: nobody wants to know */
    void *ready_context;

    float *images;   /* (batch, 28, 28, 1), input */
    uint8_t *labels; /* (batch), input */
    float *logits;   /* (batch, 10), output */

    float *values;     /* all parameters, one after the other */
    float *own_values; /* the same, until they are moved */
    float *statistics; /* all buffers */
    float *spare;      /* as large as all gradients: a contribution before it is added; NULL until it is needed */
    int count;         /* images of the last forward call */
    struct conv *conv1, *conv2;
    struct norm_pool block1, block2;
    /* Activations. Backward turns conv1_out and conv2_out into their own gradients, in place. */
    float *conv1_out; /* (batch, 26, 26, 32) */
    float *pool1;     /* (batch, 13, 13, 32) */
    float *conv2_out; /* (batch, 11, 11, 64) */
    float *pool2;     /* (batch, 5, 5, 64) */
    float *features;  /* (batch, 1600) */
    float *hidden;    /* (batch, 128), after the relu */
    float *dlogits;   /* (batch, 10) */
    float *dhidden;   /* (batch, 128) */
    float *dpool1;    /* (batch, 13, 13, 32) */
};

/* A network for at most `batch` images a call. Parameters are drawn as PyTorch's defaults are (uniform within
 * 1/sqrt(inputs), normalisation 1 and 0) from a generator that `seed` starts: the same seed, the same bits. */
struct net *net_create(int batch, bool normalise, uint64_t seed);
/* From now on at most `batch` images a call. Parameters and buffers stay as and where they are. */
void net_resize(struct net *net, int batch);
void net_free(struct net *net);

/* Floats of all parameters. */
size_t net_parameter_floats(const struct net *net);
/* The parameters are there from now on, as many floats. Their values are what is there. */
void net_move(struct net *net, float *values);
/* Where gradients go: net_parameter_floats() of them, in the order of the parameters, 64-byte aligned; borrowed until
 * net_free(). */
void net_set_gradients(struct net *net, float *gradients);

/* From now on batch normalisation is over the images of all workers: `join` adds numbers up over them. Every worker
 * must then make the same calls. */
void net_synchronise(struct net *net, norm_pool_join join, void *context);

/* logits of the first `count` images. NET_TRAIN normalises by their own statistics. */
void net_forward(struct net *net, enum net_mode mode, int count);

/* Mean cross-entropy of the last forward call's logits against `labels`, and its gradient, times net->weight, in
 * dlogits. */
double net_loss(struct net *net);

/* Gradients of all parameters, from dlogits, after net_forward(NET_TRAIN) and net_loss(). */
void net_backward(struct net *net);

/* How many of the last forward call's images are told right by their largest logit. */
int net_right(const struct net *net);

#endif
