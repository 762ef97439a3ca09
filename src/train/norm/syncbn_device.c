/* Batch norm in memory of a GPU; see syncbn_device.h. What each kernel computes: comm/device/norm_template.h.
 *
 * All work is given to the group's stream, so its order is that of the calls. The all_reduce begins behind the sums,
 * and returns when the GPU has added them up; what normalises is given to the stream after that. */
#include "train/norm/syncbn_device.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <muster/collective.h>
#include <muster/memory.h>

#include "base/status.h"
#include "comm/device/device_kernels.h"
#include "comm/group/group_device.h"
#include "train/norm/syncbn_math.h"
#include "train/reduction/step_failure.h"

/* A channel's values are added up by several threads, a slice each; then, if there are many slices, by GROUPS threads,
 * and last by one. */
enum { THREADS = 65536, SLICES_MAX = 2048, VALUES_OF_A_SLICE = 16, SLICES_FOLDED_AT_ONCE = 64, GROUPS = 32 };

struct syncbn_device {
    struct muster_group *group;
    const struct muster_syncbn_options *options;
    struct device_kernels *kernels;
    /* Of the GPU, one allocation; their shapes: norm_template.h. */
    double *exchanged; /* two sums a channel, then the number of values */
    double *kept, *partials, *folded;
    float *centre, *lines;
    struct syncbn_shape shape; /* of this rank's last training forward */
    bool has_forward;
    double value_count; /* where the GPU writes the number of values of all ranks, if this rank asks */
};

/* ---- life ---- */

static size_t slices_of(size_t channels, size_t values) {
    size_t most = THREADS / channels, useful = values / VALUES_OF_A_SLICE;
    most = most > SLICES_MAX ? SLICES_MAX : most;
    useful = useful < most ? useful : most;
    return useful > 0 ? useful : 1;
}

static int allocate(struct syncbn_device *device) {
    size_t channels = device->options->channels, width = 2 * channels;
    size_t slices = slices_of(channels, SIZE_MAX), groups = slices > SLICES_FOLDED_AT_ONCE ? GROUPS : 0;
    size_t doubles = (width + 1) * 2 + width * (slices + groups);
    void *memory = NULL;
    int status = muster_device_alloc(device->group, doubles * sizeof(double) + 5 * channels * sizeof(float), &memory);
    device->exchanged = memory;
    if (status == MUSTER_OK) {
        device->kept = device->exchanged + width + 1;
        device->partials = device->kept + width + 1;
        device->folded = device->partials + width * slices;
        device->lines = (float *)(device->folded + width * groups);
        device->centre = device->lines + 4 * channels;
    }
    return status;
}

int syncbn_device_create(struct muster_group *group, const struct muster_syncbn_options *options,
                         struct syncbn_device **out) {
    struct syncbn_device *device = calloc(1, sizeof *device);
    if (!device) {
        return status_fail(MUSTER_ENOMEM, "no memory for a batch norm of %zu channels", options->channels);
    }
    device->group = group;
    device->options = options;
    struct device_stream stream;
    int status = group_device(group, &stream);
    status = status ? status : device_kernels_acquire(stream.device, &device->kernels);
    status = status ? status : allocate(device);
    if (status != MUSTER_OK) {
        device_kernels_release(device->kernels, true);
        free(device);
        return status_prefix(status, "batch norm in memory of a GPU");
    }
    *out = device;
    return MUSTER_OK;
}

void syncbn_device_free(struct syncbn_device *device) {
    if (!device) {
        return;
    }
    bool is_idle = group_device_is_idle(device->group, "a batch norm");
    device_kernels_release(device->kernels, is_idle);
    if (is_idle) {
        muster_device_free(device->group, device->exchanged);
        free(device);
    }
}

/* ---- kernels ---- */

/* This rank's two sums of each channel, into `exchanged`; centre: NULL for sums of b itself. */
static int add_up(const struct syncbn_device *device, const struct device_stream *stream, const float *a,
                  const float *b, const float *centre) {
    size_t slice_count = slices_of(device->shape.channels, device->shape.n * device->shape.plane);
    unsigned long long images = device->shape.n, channels = device->shape.channels, plane = device->shape.plane,
                       slices = slice_count, width = 2 * channels, groups = GROUPS, one = 1;
    unsigned long long partials = device_address(device->partials), folded = device_address(device->folded),
                       sums = device_address(device->exchanged), from = device_address(a), other = device_address(b),
                       middle = device_address(centre), values = centre ? 0 : sums + width * sizeof(double);
    int status =
        device_kernels_norm(device->kernels, stream, DEVICE_NORM_SUMS,
                            (void *[]){&partials, &values, &from, &other, &middle, &images, &channels, &plane, &slices},
                            (size_t)(channels * slices));
    if (status == 0 && slices > SLICES_FOLDED_AT_ONCE) {
        status =
            device_kernels_norm(device->kernels, stream, DEVICE_NORM_FOLD,
                                (void *[]){&folded, &partials, &width, &slices, &groups}, (size_t)(width * groups));
        partials = folded;
        slices = groups;
    }
    return status ? status
                  : device_kernels_norm(device->kernels, stream, DEVICE_NORM_FOLD,
                                        (void *[]){&sums, &partials, &width, &slices, &one}, (size_t)width);
}

/* The constants of each channel, and the running statistics, from the sums of all ranks. */
static int conclude(const struct syncbn_device *device, const struct device_stream *stream) {
    const struct muster_syncbn_options *options = device->options;
    unsigned long long sums = device_address(device->exchanged), kept = device_address(device->kept),
                       centre = device_address(device->centre), lines = device_address(device->lines),
                       weight = device_address(options->weight), bias = device_address(options->bias),
                       mean = device_address(options->running_mean),
                       variance = device_address(options->running_variance),
                       tracked = device_address(options->batches_tracked), channels = options->channels, one = 1;
    double eps = options->eps, momentum = options->momentum;
    int status = mean && tracked
                     ? device_kernels_norm(device->kernels, stream, DEVICE_NORM_COUNT, (void *[]){&tracked, &one}, 1)
                     : 0;
    return status ? status
                  : device_kernels_norm(device->kernels, stream, DEVICE_NORM_STATISTICS,
                                        (void *[]){&sums, &kept, &centre, &lines, &weight, &bias, &mean, &variance,
                                                   &tracked, &channels, &eps, &momentum},
                                        options->channels);
}

static int apply(const struct syncbn_device *device, const struct device_stream *stream, const float *x, float *y,
                 struct syncbn_shape shape) {
    unsigned long long to = device_address(y), from = device_address(x), lines = device_address(device->lines),
                       channels = shape.channels, plane = shape.plane, count = shape.n * channels * plane;
    return device_kernels_norm(device->kernels, stream, DEVICE_NORM_APPLY,
                               (void *[]){&to, &from, &lines, &count, &channels, &plane}, (size_t)count);
}

static int apply_backward(const struct syncbn_device *device, const struct device_stream *stream, const float *x,
                          const float *dy, float *dx) {
    unsigned long long to = device_address(dx), from = device_address(x), slope = device_address(dy),
                       lines = device_address(device->lines), sums = device_address(device->exchanged),
                       kept = device_address(device->kept), centre = device_address(device->centre),
                       weight = device_address(device->options->weight), channels = device->shape.channels,
                       plane = device->shape.plane, count = device->shape.n * channels * plane;
    int status = device_kernels_norm(device->kernels, stream, DEVICE_NORM_SLOPES,
                                     (void *[]){&lines, &sums, &kept, &centre, &weight, &channels}, (size_t)channels);
    return status
               ? status
               : device_kernels_norm(device->kernels, stream, DEVICE_NORM_APPLY_BACKWARD,
                                     (void *[]){&to, &from, &slope, &lines, &count, &channels, &plane}, (size_t)count);
}

static int write_gradients(const struct syncbn_device *device, const struct device_stream *stream,
                           const float *weight_gradient, const float *bias_gradient) {
    unsigned long long sums = device_address(device->exchanged), kept = device_address(device->kept),
                       weight = device_address(weight_gradient), bias = device_address(bias_gradient),
                       channels = device->shape.channels;
    return device_kernels_norm(device->kernels, stream, DEVICE_NORM_GRADIENTS,
                               (void *[]){&sums, &kept, &weight, &bias, &channels}, (size_t)channels);
}

/* ---- calls ---- */

static int exchange(const struct syncbn_device *device, size_t count) {
    return muster_all_reduce(device->group, device->exchanged, device->exchanged, count, MUSTER_FLOAT64, MUSTER_OP_SUM,
                             NULL);
}

/* The others wait for this rank's sums, now or in the next call. */
static int tell(const struct syncbn_device *device, int status, const char *what) {
    if (status != MUSTER_OK) {
        (void)status_prefix(status, "batch norm, %s", what);
        step_failure_tell(device->group, status);
    }
    return status;
}

/* The number of values of all ranks, at most 2: a rank that has 2 of its own need not ask the GPU, and if there are
 * fewer in all, every rank asks. */
static int count_values(struct syncbn_device *device, const struct device_stream *stream) {
    device->value_count = 2;
    if (device->shape.n * device->shape.plane >= 2) {
        return MUSTER_OK;
    }
    int status = device_work_read(stream, &device->value_count, device->exchanged + 2 * device->shape.channels,
                                  sizeof device->value_count);
    return status ? status : device_work_await(stream);
}

int syncbn_device_forward(struct syncbn_device *device, const float *x, size_t n, size_t plane, float *y) {
    struct device_stream stream;
    size_t channels = device->options->channels;
    device->shape = (struct syncbn_shape){.n = n, .channels = channels, .plane = plane};
    device->has_forward = false;
    int status = group_device(device->group, &stream);
    status = status ? status : add_up(device, &stream, x, x, NULL);
    status = status ? status : exchange(device, 2 * channels + 1);
    status = status ? status : count_values(device, &stream);
    if (status == MUSTER_OK && device->value_count < 2) {
        return status_fail(MUSTER_EINVAL, "batch norm: %g values a channel on all ranks together; 2 are needed",
                           device->value_count);
    }
    status = status ? status : conclude(device, &stream);
    status = status ? status : apply(device, &stream, x, y, device->shape);
    device->has_forward = status == MUSTER_OK;
    return tell(device, status, "forward");
}

int syncbn_device_backward(struct syncbn_device *device, const float *x, const float *dy, float *dx,
                           float *weight_gradient, float *bias_gradient) {
    struct device_stream stream;
    if (!device->has_forward) {
        return status_fail(MUSTER_EINVAL, "batch norm: backward without a training forward before it");
    }
    int status = group_device(device->group, &stream);
    status = status ? status : add_up(device, &stream, dy, x, device->centre);
    status = status ? status : write_gradients(device, &stream, weight_gradient, bias_gradient);
    status = status ? status : exchange(device, 2 * device->shape.channels);
    status = status ? status : apply_backward(device, &stream, x, dy, dx);
    return tell(device, status, "backward");
}

int syncbn_device_evaluate(struct syncbn_device *device, const float *x, size_t n, size_t plane, float *y) {
    struct device_stream stream;
    const struct muster_syncbn_options *options = device->options;
    unsigned long long lines = device_address(device->lines), mean = device_address(options->running_mean),
                       variance = device_address(options->running_variance), weight = device_address(options->weight),
                       bias = device_address(options->bias), channels = options->channels;
    double eps = options->eps;
    int status = group_device(device->group, &stream);
    status = status ? status
                    : device_kernels_norm(device->kernels, &stream, DEVICE_NORM_EVALUATION,
                                          (void *[]){&lines, &mean, &variance, &weight, &bias, &channels, &eps},
                                          options->channels);
    status = status ? status
                    : apply(device, &stream, x, y,
                            (struct syncbn_shape){.n = n, .channels = options->channels, .plane = plane});
    return status ? status_prefix(status, "batch norm, evaluate") : MUSTER_OK;
}
