/* Synchronised batch normalisation: the sums of all ranks, and what follows from them. */
#include <muster/syncbn.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/memory.h>

#include "base/buf.h"
#include "base/sized.h"
#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/device/device.h"
#include "comm/group/group_device.h"
#include "comm/group/mark.h"
#include "train/norm/syncbn_device.h"
#include "train/norm/syncbn_math.h"
#include "train/reduction/agreement.h"
#include "train/reduction/step_failure.h"

enum { NO_GPU = -1 };

/* On the host the mean of a channel is kept as the float32 next to it (`centre`, subtracted from each x: exact where x
 * is near the mean) and the rest, which goes into the constant term. On a GPU likewise, in `device`. */
struct muster_syncbn {
    struct muster_syncbn_options options;
    struct muster_group *group;
    int gpu;                      /* NO_GPU: the layer is on the host, and uses what follows `device` */
    struct syncbn_device *device; /* NULL: on the host */
    double *exchanged;            /* 2 * channels + 1: two sums a channel, then the number of values; muster_alloc() */
    double *rest;                 /* mean - centre */
    double *deviation;            /* 1 / sqrt(variance + eps) */
    float *centre;
    struct syncbn_shape shape; /* of this rank's last training forward */
    double value_count;        /* of it, per channel, over all ranks; 0: there was none */
};

/* ---- where arrays are ---- */

/* An array of a call, for a sentence. */
struct named {
    const char *name;
    const void *data; /* NULL: there is none */
};

static const char *memory_name(bool on_device) {
    return on_device ? "GPU" : "host";
}

/* NCCL's sums and the kernels are those of one GPU. */
static int check_gpu(const struct muster_group *group, int gpu, const struct named *array) {
    int number = device_number_of(array->data);
    return number < 0 || number == gpu
               ? MUSTER_OK
               : status_fail(MUSTER_EINVAL,
                             "batch norm: %s is in memory of GPU %d, and the group '%s' works with GPU %d: set the "
                             "process's GPU before the group is made (cudaSetDevice(), torch.cuda.set_device())",
                             array->name, number, muster_group_name(group), gpu);
}

/* gpu: of the layer; NO_GPU: it is on the host. */
static int check_places(const struct muster_group *group, int gpu, const struct named *arrays, size_t count) {
    int status = MUSTER_OK;
    bool on_device = gpu != NO_GPU;
    for (size_t i = 0; status == MUSTER_OK && i < count; i++) {
        bool is_there = device_place_of(arrays[i].data) == DEVICE_PLACE_DEVICE;
        if (arrays[i].data && is_there != on_device) {
            return status_fail(MUSTER_EINVAL,
                               "batch norm: %s is in memory of the %s, and this layer computes on the %s, where the "
                               "arrays of its options are (if it has none: on the host): all arrays of a layer must "
                               "be in one memory",
                               arrays[i].name, memory_name(is_there), memory_name(on_device));
        }
        status = is_there ? check_gpu(group, gpu, &arrays[i]) : MUSTER_OK;
    }
    return status;
}

/* The layer is where the first array of its options is. */
static int find_gpu(struct muster_group *group, const struct muster_syncbn_options *options, int *out) {
    const struct named arrays[] = {{"weight", options->weight},
                                   {"bias", options->bias},
                                   {"running_mean", options->running_mean},
                                   {"running_variance", options->running_variance},
                                   {"batches_tracked", options->batches_tracked}};
    struct device_stream stream;
    size_t first = 0, count = sizeof arrays / sizeof *arrays;
    cuda_library_adopt();
    while (first + 1 < count && !arrays[first].data) {
        first++;
    }
    *out = NO_GPU;
    if (device_place_of(arrays[first].data) == DEVICE_PLACE_DEVICE) {
        int status = group_device(group, &stream);
        if (status != MUSTER_OK) {
            return status_prefix(status, "batch norm: %s is in memory of a GPU", arrays[first].name);
        }
        *out = stream.device->number;
    }
    return check_places(group, *out, arrays, count);
}

/* ---- the layer ---- */

static int check_options(const struct muster_syncbn_options *options) {
    if (options->channels == 0 || options->channels > MUSTER_SYNCBN_CHANNELS_MAX || !(options->eps > 0) ||
        !(options->momentum <= 1)) {
        return status_fail(
            MUSTER_EINVAL,
            "syncbn: %zu channels, eps %g, momentum %g; 1 to %zu channels, an eps above 0, and a momentum "
            "of at most 1 are possible",
            options->channels, options->eps, options->momentum, MUSTER_SYNCBN_CHANNELS_MAX);
    }
    if (!options->running_mean != !options->running_variance) {
        return status_fail(MUSTER_EINVAL, "syncbn: one of running_mean and running_variance is missing");
    }
    if (options->running_mean && options->momentum < 0 && !options->batches_tracked) {
        return status_fail(MUSTER_EINVAL, "syncbn: an average over all batches (momentum < 0) needs batches_tracked");
    }
    return MUSTER_OK;
}

static int allocate(struct muster_syncbn *layer) {
    void *exchanged = NULL;
    int status = MUSTER_OK;
    if (layer->gpu != NO_GPU) {
        return syncbn_device_create(layer->group, &layer->options, &layer->device);
    }
    status = muster_alloc(layer->group, (2 * layer->options.channels + 1) * sizeof(double), &exchanged);
    layer->exchanged = exchanged;
    return status == MUSTER_OK ? status : status_prefix(status, "syncbn");
}

static int make_layer(struct muster_group *group, const struct muster_syncbn_options *options, int gpu,
                      struct muster_syncbn **out) {
    size_t channels = options->channels;
    struct muster_syncbn *layer = calloc(1, sizeof *layer + channels * (2 * sizeof(double) + sizeof(float)));
    if (!layer) {
        return status_fail(MUSTER_ENOMEM, "no memory for a batch norm of %zu channels", channels);
    }
    layer->options = *options;
    layer->group = group;
    layer->gpu = gpu;
    layer->rest = (double *)(layer + 1);
    layer->deviation = layer->rest + channels;
    layer->centre = (float *)(layer->deviation + channels);
    int status = allocate(layer);
    if (status != MUSTER_OK) {
        free(layer);
        return status;
    }
    group_hold(group);
    *out = layer;
    return MUSTER_OK;
}

/* Where ranks may have their arrays in different memories, their sums would never meet. */
static int agree(const struct muster_syncbn *layer) {
    struct buf text;
    buf_init(&text, AGREEMENT_BYTES_MAX);
    int status = buf_printf(&text, "option channels: %zu\noption memory: that of the %s\n", layer->options.channels,
                            memory_name(layer->gpu != NO_GPU));
    status = status ? status : agreement_compare(layer->group, &text);
    buf_done(&text);
    return status == MUSTER_OK ? status : status_prefix(status, "syncbn");
}

/* In a group with a GPU: no rank waits for one that cannot have its layer. */
static int make_layers(struct muster_group *group, const struct muster_syncbn_options *options, int gpu,
                       struct muster_syncbn **out) {
    struct muster_syncbn *layer = NULL;
    int status = make_layer(group, options, gpu, &layer);
    status = status ? status : agree(layer);
    if (status == MUSTER_OK) {
        *out = layer;
        return MUSTER_OK;
    }
    if (status != MUSTER_EMISMATCH) { /* different layers: every rank has seen it */
        step_failure_tell(group, status);
    }
    muster_syncbn_free(layer);
    return status;
}

int muster_syncbn_create(struct muster_group *group, const struct muster_syncbn_options *options,
                         struct muster_syncbn **out) {
    struct muster_syncbn_options own = MUSTER_SYNCBN_OPTIONS_INIT;
    int gpu = NO_GPU;
    if (!group || !options || !out) {
        return status_fail_null("syncbn", !group ? "group" : options ? "out" : "options");
    }
    int code = sized_read_options(&own, sizeof own, options, "muster_syncbn_options", "MUSTER_SYNCBN_OPTIONS_INIT");
    code = code ? code : check_options(&own);
    if (code) {
        return code;
    }
    code = find_gpu(group, &own, &gpu);
    bool has_gpu = strcmp(muster_group_engine(group), "nccl") == 0;
    if (code) {
        return has_gpu ? agreement_refuse(group, code) : code;
    }
    return has_gpu ? make_layers(group, &own, gpu, out) : make_layer(group, &own, gpu, out);
}

void muster_syncbn_free(struct muster_syncbn *layer) {
    if (!layer) {
        return;
    }
    syncbn_device_free(layer->device);
    muster_free(layer->group, layer->exchanged);
    group_let_go(layer->group);
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
    int code = missing ? status_fail(MUSTER_EINVAL, "batch norm, %s: %s is NULL", what, missing)
                       : group_check_freed(layer->group);
    return code ? code : check_places(layer->group, layer->gpu, arrays, has_data ? sizeof arrays / sizeof *arrays : 0);
}

int muster_syncbn_forward(struct muster_syncbn *layer, const float *x, size_t n, size_t plane, float *y) {
    int code = check_call(layer, n > 0 && plane > 0, x, y, "forward");
    if (code) {
        return code;
    }
    size_t channels = layer->options.channels;
    layer->shape = (struct syncbn_shape){.n = n, .channels = channels, .plane = plane};
    if (layer->device) {
        return syncbn_device_forward(layer->device, x, n, plane, y);
    }
    double *sums = layer->exchanged, *squares = sums + channels, *count = squares + channels;
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
    code = check_places(layer->group, layer->gpu, gradients, sizeof gradients / sizeof *gradients);
    if (code) {
        return code;
    }
    if (layer->device) {
        return syncbn_device_backward(layer->device, x, dy, dx, weight_gradient, bias_gradient);
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
    if (layer->device) {
        return syncbn_device_evaluate(layer->device, x, n, plane, y);
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
