/* Synchronised batch normalisation: the sums of all ranks, and what follows from them. */
#include <muster/syncbn.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include <muster/collective.h>
#include <muster/memory.h>

#include "base/sized.h"
#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/device/device.h"
#include "train/norm/syncbn_math.h"

/* The mean of a channel is kept as the float32 next to it (`centre`, subtracted from each x: exact where x is near the
 * mean) and the rest, which goes into the constant term. */
struct muster_syncbn {
    struct muster_syncbn_options options;
    struct muster_group *group;
    double *exchanged; /* 2 * channels + 1: two sums a channel, then the number of values; muster_alloc() */
    double *rest;      /* mean - centre */
    double *deviation; /* 1 / sqrt(variance + eps) */
    float *centre;
    struct syncbn_shape shape; /* of this rank's last training forward */
    double value_count;        /* of it, per channel, over all ranks; 0: there was none */
};

/* ---- memory of a GPU ---- */

/* An array of a call, for a sentence. */
struct named {
    const char *name;
    const void *data; /* NULL: there is none */
};

/* The sums are made by this process, over all values. */
static int check_places(const struct named *arrays, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (device_place_of(arrays[i].data) == DEVICE_PLACE_DEVICE) {
            return status_fail(MUSTER_EUNSUPPORTED,
                               "batch norm: %s is in memory of the GPU, and this layer computes on the host: copy it, "
                               "or make the sums by kernels of your own, and add them up by muster_all_reduce() in a "
                               "group with the engine 'nccl'",
                               arrays[i].name);
        }
    }
    return 0;
}

static int check_options(const struct muster_syncbn_options *options) {
    const struct named arrays[] = {{"weight", options->weight},
                                   {"bias", options->bias},
                                   {"running_mean", options->running_mean},
                                   {"running_variance", options->running_variance},
                                   {"batches_tracked", options->batches_tracked}};
    cuda_library_adopt();
    return check_places(arrays, sizeof arrays / sizeof *arrays);
}

/* ---- the layer ---- */

int muster_syncbn_create(struct muster_group *group, const struct muster_syncbn_options *options,
                         struct muster_syncbn **out) {
    struct muster_syncbn_options own = MUSTER_SYNCBN_OPTIONS_INIT;
    if (!group || !options || !out) {
        return status_fail_null("syncbn", !group ? "group" : options ? "out" : "options");
    }
    int code = sized_read_options(&own, sizeof own, options, "muster_syncbn_options", "MUSTER_SYNCBN_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (own.channels == 0 || own.channels > MUSTER_SYNCBN_CHANNELS_MAX || !(own.eps > 0) || !(own.momentum <= 1)) {
        return status_fail(
            MUSTER_EINVAL,
            "syncbn: %zu channels, eps %g, momentum %g; 1 to %zu channels, an eps above 0, and a momentum "
            "of at most 1 are possible",
            own.channels, own.eps, own.momentum, MUSTER_SYNCBN_CHANNELS_MAX);
    }
    if (!own.running_mean != !own.running_variance) {
        return status_fail(MUSTER_EINVAL, "syncbn: one of running_mean and running_variance is missing");
    }
    if (own.running_mean && own.momentum < 0 && !own.batches_tracked) {
        return status_fail(MUSTER_EINVAL, "syncbn: an average over all batches (momentum < 0) needs batches_tracked");
    }
    code = check_options(&own);
    if (code) {
        return code;
    }
    size_t channels = own.channels;
    struct muster_syncbn *layer = calloc(1, sizeof *layer + channels * (2 * sizeof(double) + sizeof(float)));
    if (!layer) {
        return status_fail(MUSTER_ENOMEM, "no memory for a batch norm of %zu channels", channels);
    }
    layer->options = own;
    layer->group = group;
    layer->rest = (double *)(layer + 1);
    layer->deviation = layer->rest + channels;
    layer->centre = (float *)(layer->deviation + channels);
    void *exchanged = NULL;
    int status = muster_alloc(group, (2 * channels + 1) * sizeof(double), &exchanged);
    if (status != MUSTER_OK) {
        free(layer);
        return status_prefix(status, "syncbn");
    }
    layer->exchanged = exchanged;
    *out = layer;
    return MUSTER_OK;
}

void muster_syncbn_free(struct muster_syncbn *layer) {
    if (!layer) {
        return;
    }
    muster_free(layer->group, layer->exchanged);
    free(layer);
}

static int exchange(struct muster_syncbn *layer, size_t count, const char *what) {
    int status =
        muster_all_reduce(layer->group, layer->exchanged, layer->exchanged, count, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL);
    return status == MUSTER_OK ? status : status_prefix(status, "batch norm, %s", what);
}

static void track(struct muster_syncbn *layer, size_t channel, double mean, double variance, double momentum) {
    const struct muster_syncbn_options *options = &layer->options;
    double count = layer->value_count, unbiased = variance * (count / (count - 1));
    float *mean_at = &options->running_mean[channel], *variance_at = &options->running_variance[channel];
    *mean_at = (float)((1 - momentum) * (double)*mean_at + momentum * mean);
    *variance_at = (float)((1 - momentum) * (double)*variance_at + momentum * unbiased);
}

/* This batch's part in the running statistics. */
static double count_batch(struct muster_syncbn *layer) {
    const struct muster_syncbn_options *options = &layer->options;
    if (options->batches_tracked) {
        *options->batches_tracked += 1;
    }
    return options->momentum < 0 && options->batches_tracked ? 1 / (double)*options->batches_tracked
                                                             : options->momentum;
}

static float weight_of(const struct muster_syncbn *layer, size_t channel) {
    return layer->options.weight ? layer->options.weight[channel] : 1;
}

static float bias_of(const struct muster_syncbn *layer, size_t channel) {
    return layer->options.bias ? layer->options.bias[channel] : 0;
}

/* Buffers may be NULL where they are empty. */
static int check_call(const struct muster_syncbn *layer, bool has_data, const float *from, const float *to,
                      const char *what) {
    const struct named arrays[] = {{"x", from}, {"the result", to}};
    const char *missing = !layer ? "layer" : has_data && !from ? "x" : has_data && !to ? "the result" : NULL;
    return missing ? status_fail(MUSTER_EINVAL, "batch norm, %s: %s is NULL", what, missing)
                   : check_places(arrays, has_data ? sizeof arrays / sizeof *arrays : 0);
}

int muster_syncbn_forward(struct muster_syncbn *layer, const float *x, size_t n, size_t plane, float *y) {
    int code = check_call(layer, n > 0 && plane > 0, x, y, "forward");
    if (code) {
        return code;
    }
    size_t channels = layer->options.channels;
    double *sums = layer->exchanged, *squares = sums + channels, *count = squares + channels;
    layer->shape = (struct syncbn_shape){.n = n, .channels = channels, .plane = plane};
    layer->value_count = 0;
    syncbn_forward_sums(x, layer->shape, sums, squares);
    *count = (double)n * (double)plane;
    int status = exchange(layer, 2 * channels + 1, "forward");
    if (status != MUSTER_OK) {
        return status;
    }
    if (*count < 2) {
        return status_fail(MUSTER_EINVAL, "batch norm: %g values a channel on all ranks together; 2 are needed",
                           *count);
    }
    layer->value_count = *count;
    double momentum = layer->options.running_mean ? count_batch(layer) : 0;
    for (size_t c = 0; c < channels; c++) {
        double mean = sums[c] / *count, variance = squares[c] / *count - mean * mean;
        variance = variance > 0 ? variance : 0; /* rounding */
        layer->centre[c] = (float)mean;
        layer->rest[c] = mean - (double)layer->centre[c];
        layer->deviation[c] = 1 / sqrt(variance + layer->options.eps);
        if (layer->options.running_mean) {
            track(layer, c, mean, variance, momentum);
        }
        double scale = layer->deviation[c] * (double)weight_of(layer, c);
        struct syncbn_line line = {.centre = layer->centre[c],
                                   .scale = (float)scale,
                                   .shift = (float)((double)bias_of(layer, c) - layer->rest[c] * scale)};
        syncbn_apply(x, y, layer->shape, c, line);
    }
    return MUSTER_OK;
}

int muster_syncbn_backward(struct muster_syncbn *layer, const float *x, const float *dy, float *dx,
                           float *weight_gradient, float *bias_gradient) {
    bool has_data = layer && layer->shape.n > 0 && layer->shape.plane > 0;
    int code = check_call(layer, has_data, x, dx, "backward");
    if (code) {
        return code;
    }
    if (has_data && !dy) {
        return status_fail_null("batch norm, backward", "dy");
    }
    const struct named gradients[] = {
        {"weight_gradient", weight_gradient}, {"bias_gradient", bias_gradient}, {"dy", has_data ? dy : NULL}};
    code = check_places(gradients, sizeof gradients / sizeof *gradients);
    if (code) {
        return code;
    }
    if (layer->value_count == 0) {
        return status_fail(MUSTER_EINVAL, "batch norm: backward without a training forward before it");
    }
    size_t channels = layer->options.channels;
    double *sums = layer->exchanged, *products = sums + channels;
    syncbn_backward_sums(x, dy, layer->shape, layer->centre, sums, products);
    for (size_t c = 0; c < channels; c++) {
        products[c] -= sums[c] * layer->rest[c];
        if (weight_gradient) {
            weight_gradient[c] = (float)(products[c] * layer->deviation[c]);
        }
        if (bias_gradient) {
            bias_gradient[c] = (float)sums[c];
        }
    }
    int status = exchange(layer, 2 * channels, "backward");
    if (status != MUSTER_OK) {
        return status;
    }
    for (size_t c = 0; c < channels; c++) {
        double mean = sums[c] / layer->value_count;
        double slope = products[c] / layer->value_count * layer->deviation[c] * layer->deviation[c];
        struct syncbn_line line = {.centre = layer->centre[c],
                                   .scale = (float)(layer->deviation[c] * (double)weight_of(layer, c)),
                                   .shift = (float)(mean - layer->rest[c] * slope),
                                   .slope = (float)slope};
        syncbn_apply_backward(x, dy, dx, layer->shape, c, line);
    }
    return MUSTER_OK;
}

int muster_syncbn_evaluate(struct muster_syncbn *layer, const float *x, size_t n, size_t plane, float *y) {
    int code = check_call(layer, n > 0 && plane > 0, x, y, "evaluate");
    if (code) {
        return code;
    }
    const struct muster_syncbn_options *options = &layer->options;
    if (!options->running_mean) {
        return status_fail(MUSTER_EINVAL, "batch norm: there are no running statistics to evaluate with");
    }
    struct syncbn_shape shape = {.n = n, .channels = options->channels, .plane = plane};
    for (size_t c = 0; c < options->channels; c++) {
        double scale = (double)weight_of(layer, c) / sqrt((double)options->running_variance[c] + options->eps);
        struct syncbn_line line = {
            .centre = options->running_mean[c], .scale = (float)scale, .shift = bias_of(layer, c)};
        syncbn_apply(x, y, shape, c, line);
    }
    return MUSTER_OK;
}
