/* See net.h. Convolutions are in conv.c, normalisation with pooling in norm_pool.c; the dense layers are products of
 * matrices (oneDNN's sgemm, row-major) and stand here, as do the loss and the random start. */
#include "net.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "fail.h"

enum {
    CONV1_SIDE = NET_SIDE - 2,   /* 26 */
    POOL1_SIDE = CONV1_SIDE / 2, /* 13 */
    CONV2_SIDE = POOL1_SIDE - 2, /* 11 */
    POOL2_SIDE = CONV2_SIDE / 2, /* 5 */
    POOL2_PIXELS = POOL2_SIDE * POOL2_SIDE,
    CHANNELS1 = 32,
    CHANNELS2 = 64,
    FEATURES = CHANNELS2 * POOL2_PIXELS, /* 1600 */
    HIDDEN = 128,
};

/* ---- Making a network ---- */

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [-bound, bound): 24 random bits, which a float holds exactly. */
static float random_uniform(uint64_t *state, double bound) {
    return (float)(((double)(random_next(state) >> 40) / (1 << 23) - 1) * bound);
}

/* torch.nn.Conv2d and Linear: kaiming_uniform(a = sqrt(5)), which comes to 1 / sqrt(inputs of a neuron) for the weight,
 * and the same bound for the bias. */
static void randomise(struct net *net, enum net_parameter weight, uint64_t *state) {
    const struct net_tensor *w = &net->parameters[weight], *b = &net->parameters[weight + 1];
    size_t inputs = w->count / w->shape[0];
    double bound = 1.0 / sqrt((double)inputs);
    for (size_t i = 0; i < w->count; i++) {
        w->value[i] = random_uniform(state, bound);
    }
    for (size_t i = 0; i < b->count; i++) {
        b->value[i] = random_uniform(state, bound);
    }
}

static void fill(const struct net_tensor *tensor, float value) {
    for (size_t i = 0; i < tensor->count; i++) {
        tensor->value[i] = value;
    }
}

/* Each parameter begins on a cache line of its own. */
static size_t padded(size_t floats) {
    return (floats + 15) / 16 * 16;
}

static void tensors_describe(struct net *net) {
#define NET_PARAMETER_ENTRY(id, name, a, b, c, d) {name, 0, {a, b, c, d}, 0, NULL, NULL},
    static const struct net_tensor table[NET_PARAMETER_COUNT] = {NET_PARAMETER_TABLE(NET_PARAMETER_ENTRY)};
#undef NET_PARAMETER_ENTRY
    static const struct net_tensor buffers[NET_BUFFER_COUNT] = {
        {"norm1.running_mean", CHANNELS1, {CHANNELS1}, 1, NULL, NULL},
        {"norm1.running_var", CHANNELS1, {CHANNELS1}, 1, NULL, NULL},
        {"norm2.running_mean", CHANNELS2, {CHANNELS2}, 1, NULL, NULL},
        {"norm2.running_var", CHANNELS2, {CHANNELS2}, 1, NULL, NULL}};
    memcpy(net->parameters, table, sizeof table);
    memcpy(net->buffers, buffers, sizeof buffers);
    for (int i = 0; i < NET_PARAMETER_COUNT; i++) {
        struct net_tensor *tensor = &net->parameters[i];
        tensor->count = strncmp(tensor->name, "norm", 4) == 0 && !net->normalise ? 0 : 1;
        for (; tensor->shape_count < 4 && tensor->shape[tensor->shape_count] != 0; tensor->shape_count++) {
            tensor->count *= tensor->shape[tensor->shape_count];
        }
    }
    for (int i = 0; !net->normalise && i < NET_BUFFER_COUNT; i++) {
        net->buffers[i].count = 0;
    }
}

static void values_place(struct net *net, float *values) {
    net->values = values;
    for (int i = 0; i < NET_PARAMETER_COUNT; values += padded(net->parameters[i++].count)) {
        net->parameters[i].value = values;
    }
}

static void tensors_place(struct net *net) {
    net->own_values = allocate(net_parameter_floats(net), sizeof(float));
    values_place(net, net->own_values);
    net->statistics = allocate(2 * CHANNELS1 + 2 * CHANNELS2, sizeof(float));
    float *next = net->statistics;
    for (int i = 0; i < NET_BUFFER_COUNT; next += net->buffers[i++].count) {
        net->buffers[i].value = next;
    }
}

static void tensors_start(struct net *net, uint64_t seed) {
    uint64_t state = seed;
    randomise(net, CONV1_WEIGHT, &state);
    randomise(net, CONV2_WEIGHT, &state);
    randomise(net, DENSE1_WEIGHT, &state);
    randomise(net, DENSE2_WEIGHT, &state);
    fill(&net->parameters[NORM1_WEIGHT], 1);
    fill(&net->parameters[NORM2_WEIGHT], 1);
    fill(&net->buffers[NORM1_VARIANCE], 1);
    fill(&net->buffers[NORM2_VARIANCE], 1);
}

/* What depends on the number of images. */
static void batch_allocate(struct net *net, int batch) {
    size_t n = (size_t)batch;
    net->batch = batch;
    net->conv1 = conv_create((struct conv_shape){batch, 1, CHANNELS1, NET_SIDE, CONV1_SIDE});
    net->conv2 = conv_create((struct conv_shape){batch, CHANNELS1, CHANNELS2, POOL1_SIDE, CONV2_SIDE});
    norm_pool_create(&net->block1, batch, CONV1_SIDE, CHANNELS1);
    norm_pool_create(&net->block2, batch, CONV2_SIDE, CHANNELS2);
    net->labels = allocate(n, 1);
    net->images = allocate(n * NET_PIXELS, sizeof(float));
    net->conv1_out = allocate(n * CONV1_SIDE * CONV1_SIDE * CHANNELS1, sizeof(float));
    net->pool1 = allocate(n * POOL1_SIDE * POOL1_SIDE * CHANNELS1, sizeof(float));
    net->conv2_out = allocate(n * CONV2_SIDE * CONV2_SIDE * CHANNELS2, sizeof(float));
    net->pool2 = allocate(n * FEATURES, sizeof(float));
    net->features = allocate(n * FEATURES, sizeof(float));
    net->hidden = allocate(n * HIDDEN, sizeof(float));
    net->logits = allocate(n * NET_CLASSES, sizeof(float));
    net->dlogits = allocate(n * NET_CLASSES, sizeof(float));
    net->dhidden = allocate(n * HIDDEN, sizeof(float));
    net->dpool1 = allocate(n * POOL1_SIDE * POOL1_SIDE * CHANNELS1, sizeof(float));
}

static void batch_free(struct net *net) {
    conv_free(net->conv1);
    conv_free(net->conv2);
    norm_pool_free(&net->block1);
    norm_pool_free(&net->block2);
    float *floats[] = {net->images, net->conv1_out, net->pool1,   net->conv2_out, net->pool2, net->features,
                       net->hidden, net->logits,    net->dlogits, net->dhidden,   net->dpool1};
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        free(floats[i]);
    }
    free(net->labels);
}

struct net *net_create(int batch, bool normalise, uint64_t seed) {
    struct net *net = allocate(1, sizeof *net);
    net->normalise = normalise;
    net->weight = 1;
    tensors_describe(net);
    tensors_place(net);
    tensors_start(net, seed);
    batch_allocate(net, batch);
    return net;
}

void net_resize(struct net *net, int batch) {
    norm_pool_join join = net->block1.join;
    void *context = net->block1.join_context;
    batch_free(net);
    batch_allocate(net, batch);
    net_synchronise(net, join, context);
}

void net_free(struct net *net) {
    if (net == NULL) {
        return;
    }
    batch_free(net);
    free(net->own_values);
    free(net->statistics);
    free(net->spare);
    free(net);
}

size_t net_parameter_floats(const struct net *net) {
    size_t floats = 0;
    for (int i = 0; i < NET_PARAMETER_COUNT; i++) {
        floats += padded(net->parameters[i].count);
    }
    return floats;
}

void net_move(struct net *net, float *values) {
    values_place(net, values);
    free(net->own_values);
    net->own_values = NULL;
}

void net_set_gradients(struct net *net, float *gradients) {
    for (int i = 0; i < NET_PARAMETER_COUNT; gradients += padded(net->parameters[i++].count)) {
        net->parameters[i].gradient = gradients;
    }
}

void net_synchronise(struct net *net, norm_pool_join join, void *context) {
    net->block1.join = net->block2.join = join;
    net->block1.join_context = net->block2.join_context = context;
}

/* ---- Values and gradients ---- */

static float *value(const struct net *net, enum net_parameter parameter) {
    return net->parameters[parameter].value;
}

/* Where a layer writes a gradient: in its place, or aside when it is to be added to what is there. */
static float *gradient(struct net *net, enum net_parameter parameter) {
    struct net_tensor *tensor = &net->parameters[parameter];
    return net->accumulate ? net->spare + (tensor->value - net->values) : tensor->gradient;
}

/* The gradients of a layer's weight and bias are written. */
static void gradient_done(struct net *net, enum net_parameter weight) {
    for (enum net_parameter i = weight; i <= weight + 1; i++) {
        struct net_tensor *tensor = &net->parameters[i];
        const float *part = gradient(net, i);
        for (size_t j = 0; net->accumulate && j < tensor->count; j++) {
            tensor->gradient[j] += part[j];
        }
        if (net->ready != NULL && tensor->count > 0) {
            net->ready(net->ready_context, i);
        }
    }
}

/* ---- Dense layers: y (n, outputs) = x (n, inputs) weight^T + bias, with weight (outputs, inputs) ---- */

struct dense {
    int inputs, outputs;
    enum net_parameter weight; /* and after it the bias */
};

static const struct dense DENSE1 = {FEATURES, HIDDEN, DENSE1_WEIGHT}, DENSE2 = {HIDDEN, NET_CLASSES, DENSE2_WEIGHT};

/* c (rows, columns) = a b, where a is (rows, inner), or (inner, rows) with transpose_a 'T'; b likewise. */
static void multiply(char transpose_a, char transpose_b, int rows, int columns, int inner, const float *a,
                     const float *b, float *c) {
    dnnl_status_t status =
        dnnl_sgemm(transpose_a, transpose_b, rows, columns, inner, 1, a, transpose_a == 'T' ? rows : inner, b,
                   transpose_b == 'T' ? inner : columns, 0, c, columns);
    if (status != dnnl_success) {
        fail("oneDNN: sgemm: status %d", (int)status);
    }
}

static void dense_forward(const struct net *net, const struct dense *layer, const float *x, float *y) {
    const float *bias = value(net, layer->weight + 1);
    multiply('N', 'T', net->count, layer->outputs, layer->inputs, x, value(net, layer->weight), y);
    for (int i = 0; i < net->count; i++, y += layer->outputs) {
        for (int j = 0; j < layer->outputs; j++) {
            y[j] += bias[j];
        }
    }
}

static void dense_backward(struct net *net, const struct dense *layer, const float *x, const float *dy, float *dx) {
    int n = net->count, inputs = layer->inputs, outputs = layer->outputs;
    float *dbias = gradient(net, layer->weight + 1);
    multiply('T', 'N', outputs, inputs, n, dy, x, gradient(net, layer->weight));
    multiply('N', 'N', n, inputs, outputs, dy, value(net, layer->weight), dx);
    memset(dbias, 0, (size_t)outputs * sizeof *dbias);
    for (int i = 0; i < n; i++, dy += outputs) {
        for (int j = 0; j < outputs; j++) {
            dbias[j] += dy[j];
        }
    }
    gradient_done(net, layer->weight);
}

/* ---- Forward ---- */

/* (n, pixels, channels) -> (n, channels, pixels): PyTorch's flatten() of NCHW, which the columns of dense1 go by. */
static void channels_first(int n, const float *x, float *y) {
    for (int i = 0; i < n; i++, x += FEATURES, y += FEATURES) {
        for (int pixel = 0; pixel < POOL2_PIXELS; pixel++) {
            for (int c = 0; c < CHANNELS2; c++) {
                y[c * POOL2_PIXELS + pixel] = x[pixel * CHANNELS2 + c];
            }
        }
    }
}

static void channels_last(int n, const float *x, float *y) {
    for (int i = 0; i < n; i++, x += FEATURES, y += FEATURES) {
        for (int pixel = 0; pixel < POOL2_PIXELS; pixel++) {
            for (int c = 0; c < CHANNELS2; c++) {
                y[pixel * CHANNELS2 + c] = x[c * POOL2_PIXELS + pixel];
            }
        }
    }
}

static enum norm_pool_mode norm_mode(const struct net *net, enum net_mode mode) {
    return !net->normalise ? NORM_POOL_NONE : mode == NET_TRAIN ? NORM_POOL_TRAIN : NORM_POOL_TEST;
}

static struct norm_pool_values norm_values(const struct net *net, enum net_parameter gamma, enum net_buffer mean) {
    return (struct norm_pool_values){value(net, gamma), value(net, gamma + 1), net->buffers[mean].value,
                                     net->buffers[mean + 1].value};
}

void net_forward(struct net *net, enum net_mode mode, int count) {
    enum norm_pool_mode norm = norm_mode(net, mode);
    struct norm_pool_values norm1 = norm_values(net, NORM1_WEIGHT, NORM1_MEAN);
    struct norm_pool_values norm2 = norm_values(net, NORM2_WEIGHT, NORM2_MEAN);
    net->count = count;
    conv_forward(net->conv1, net->images, value(net, CONV1_WEIGHT), value(net, CONV1_BIAS), net->conv1_out);
    norm_pool_forward(&net->block1, norm, count, net->conv1_out, &norm1, net->pool1);
    conv_forward(net->conv2, net->pool1, value(net, CONV2_WEIGHT), value(net, CONV2_BIAS), net->conv2_out);
    norm_pool_forward(&net->block2, norm, count, net->conv2_out, &norm2, net->pool2);
    channels_first(count, net->pool2, net->features);
    dense_forward(net, &DENSE1, net->features, net->hidden);
    for (int i = 0; i < count * HIDDEN; i++) {
        net->hidden[i] = net->hidden[i] > 0 ? net->hidden[i] : 0;
    }
    dense_forward(net, &DENSE2, net->hidden, net->logits);
}

int net_right(const struct net *net) {
    int right = 0;
    for (int i = 0; i < net->count; i++) {
        const float *logits = net->logits + i * NET_CLASSES;
        int best = 0;
        for (int j = 1; j < NET_CLASSES; j++) {
            best = logits[j] > logits[best] ? j : best;
        }
        right += best == net->labels[i];
    }
    return right;
}

/* softmax(z)_j = exp(z_j - max) / sum; loss = -log softmax(z)_label; dloss/dz = softmax(z) - one(label); means of n. */
double net_loss(struct net *net) {
    double loss = 0;
    for (int i = 0; i < net->count; i++) {
        const float *z = net->logits + i * NET_CLASSES;
        float *dz = net->dlogits + i * NET_CLASSES;
        float largest = z[0];
        for (int j = 1; j < NET_CLASSES; j++) {
            largest = z[j] > largest ? z[j] : largest;
        }
        double sum = 0;
        for (int j = 0; j < NET_CLASSES; j++) {
            sum += exp((double)z[j] - largest);
        }
        for (int j = 0; j < NET_CLASSES; j++) {
            double probability = exp((double)z[j] - largest) / sum;
            dz[j] = (float)((probability - (j == net->labels[i])) / net->count * net->weight);
        }
        loss += log(sum) - ((double)z[net->labels[i]] - largest);
    }
    return loss / net->count;
}

/* ---- Backward ---- */

void net_backward(struct net *net) {
    int n = net->count;
    enum norm_pool_mode norm = norm_mode(net, NET_TRAIN);
    if (net->accumulate && net->spare == NULL) {
        net->spare = allocate(net_parameter_floats(net), sizeof(float));
    }
    dense_backward(net, &DENSE2, net->hidden, net->dlogits, net->dhidden);
    for (int i = 0; i < n * HIDDEN; i++) {
        net->dhidden[i] = net->hidden[i] > 0 ? net->dhidden[i] : 0;
    }
    /* The features are needed for the gradient of dense1's weight, the pooled images no more: their place takes the
     * gradient of the features, and the features' place then that of the pooled images. */
    float *dfeatures = net->pool2, *dpool2 = net->features;
    dense_backward(net, &DENSE1, net->features, net->dhidden, dfeatures);
    channels_last(n, dfeatures, dpool2);

    float *dconv2 = net->conv2_out; /* after the call */
    norm_pool_backward(&net->block2, norm, n, dpool2, value(net, NORM2_WEIGHT), dconv2, gradient(net, NORM2_WEIGHT),
                       gradient(net, NORM2_BIAS));
    gradient_done(net, NORM2_WEIGHT);
    conv_backward_weights(net->conv2, net->pool1, dconv2, gradient(net, CONV2_WEIGHT), gradient(net, CONV2_BIAS));
    gradient_done(net, CONV2_WEIGHT);
    conv_backward_data(net->conv2, dconv2, value(net, CONV2_WEIGHT), net->dpool1);

    float *dconv1 = net->conv1_out;
    norm_pool_backward(&net->block1, norm, n, net->dpool1, value(net, NORM1_WEIGHT), dconv1,
                       gradient(net, NORM1_WEIGHT), gradient(net, NORM1_BIAS));
    gradient_done(net, NORM1_WEIGHT);
    conv_backward_weights(net->conv1, net->images, dconv1, gradient(net, CONV1_WEIGHT), gradient(net, CONV1_BIAS));
    gradient_done(net, CONV1_WEIGHT);
}
