/* The memory that a ddp works on: of the host, or of the group's GPU. There nothing is touched by this thread: copies
 * are given to the group's stream, behind the work that computes gradients, and nothing of them passes the host. */
#include <muster/memory.h>

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/device/device_kernels.h"
#include "comm/group/group_device.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/ddp_impl.h"

/* ---- where everything is ---- */

static bool is_on_device(const void *memory) {
    return device_place_of(memory) == DEVICE_PLACE_DEVICE;
}

static int refuse_mixture(const struct ddp_parameter *parameter, bool first, const char *what) {
    return status_fail(MUSTER_EINVAL,
                       "the %s of parameter \"%s\" is in memory of the %s, and the first parameter is in memory of the "
                       "%s: parameters and gradients must all be in one of them",
                       what, parameter->name, first ? "host" : "GPU", first ? "GPU" : "host");
}

static int check_parameters(const struct muster_ddp *ddp, bool on_device) {
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        if (is_on_device(parameter->data) != on_device) {
            return refuse_mixture(parameter, on_device, "data");
        }
        if (parameter->own_gradient && is_on_device(parameter->own_gradient) != on_device) {
            return refuse_mixture(parameter, on_device, "gradient");
        }
    }
    return MUSTER_OK;
}

/* NCCL would find out late, and not say what it is. */
static int check_gpu(const char *what, const char *name, const void *memory, const struct device *device) {
    int number = device_number_of(memory);
    return number < 0 || number == device->number
               ? MUSTER_OK
               : status_fail(MUSTER_EINVAL,
                             "the %s \"%s\" is in memory of GPU %d, and the group works with GPU %d: set the process's "
                             "GPU before the group is made (cudaSetDevice(), torch.cuda.set_device())",
                             what, name, number, device->number);
}

static int check_gpus(const struct muster_ddp *ddp, const struct device *device) {
    int status = MUSTER_OK;
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        status = check_gpu("parameter", parameter->name, parameter->data, device);
        status = status ? status : check_gpu("gradient of", parameter->name, parameter->own_gradient, device);
    }
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->buffer_count; i++) {
        status = check_gpu("buffer", ddp->buffers[i].name, ddp->buffers[i].data, device);
    }
    return status;
}

static int check_buffers(const struct muster_ddp *ddp, bool on_device) {
    for (uint32_t i = 1; i < ddp->buffer_count; i++) {
        if (is_on_device(ddp->buffers[i].data) != on_device) {
            return status_fail(MUSTER_EINVAL,
                               "buffer \"%s\" is in memory of the %s, and the first buffer is in memory of the %s: "
                               "buffers must all be in one of them",
                               ddp->buffers[i].name, on_device ? "host" : "GPU", on_device ? "GPU" : "host");
        }
    }
    return MUSTER_OK;
}

/* What this process adds up itself. */
static int check_options(const struct muster_ddp *ddp, bool on_device) {
    return ddp->options.virtual_ranks > 0 && on_device
               ? status_fail(MUSTER_EINVAL,
                             "virtual_ranks does not go with memory of a GPU: leave it out, or keep parameters, "
                             "gradients and buffers in memory of the host")
               : MUSTER_OK;
}

int ddp_memory_find(struct muster_ddp *ddp, struct muster_group *group) {
    struct device_stream stream;
    cuda_library_adopt(); /* the program may have started it without a group that knows of GPUs */
    bool on_device = is_on_device(ddp->parameters[0].data);
    bool buffers_on_device = ddp->buffer_count > 0 && is_on_device(ddp->buffers[0].data);
    int status = check_parameters(ddp, on_device);
    status = status ? status : check_buffers(ddp, buffers_on_device);
    if (status == MUSTER_OK && (on_device || buffers_on_device)) {
        status = group_device(group, &stream);
        status = status ? status_prefix(status, "%s are in memory of a GPU", on_device ? "parameters" : "buffers")
                        : check_gpus(ddp, stream.device);
    }
    status = status ? status : check_options(ddp, on_device || buffers_on_device);
    if (status == MUSTER_OK) {
        ddp->is_on_device = on_device;
        ddp->has_device_buffers = buffers_on_device;
    }
    return status;
}

/* ---- arithmetic ---- */

int ddp_memory_prepare(const struct muster_ddp *ddp, struct muster_group *group, const char *user,
                       struct device_kernels **out) {
    struct device_stream stream;
    *out = NULL;
    if (!ddp->is_on_device || !user) {
        return MUSTER_OK;
    }
    int status = group_device(group, &stream);
    status = status ? status : device_kernels_acquire(stream.device, out);
    return status == MUSTER_OK ? status : status_prefix(status, "%s in memory of a GPU", user);
}

int ddp_memory_divide(const struct muster_ddp *ddp, enum muster_type type, void *data, size_t count, uint32_t divisor) {
    struct device_stream stream;
    if (!ddp->is_on_device) {
        reduce_finish(type, MUSTER_OP_AVERAGE, data, count, divisor);
        return MUSTER_OK;
    }
    int status = group_device(ddp->group, &stream);
    return status ? status : device_kernels_divide(ddp->kernels, &stream, type, data, count, divisor);
}

/* ---- allocations ---- */

int ddp_memory_allocate(struct muster_group *group, bool on_device, size_t bytes, void **out) {
    return on_device ? muster_device_alloc(group, bytes, out) : muster_alloc(group, bytes, out);
}

bool ddp_memory_is_idle(struct muster_group *group, bool on_device) {
    return !on_device || group_device_is_idle(group, "a ddp");
}

void ddp_memory_free(struct muster_group *group, bool on_device, void *memory) {
    if (on_device) {
        muster_device_free(group, memory);
    } else {
        muster_free(group, memory);
    }
}

int ddp_memory_keep(const struct muster_ddp *ddp, size_t bytes, void **out) {
    *out = ddp->is_on_device ? ddp->layout->kept : malloc(bytes);
    return *out ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory to keep %zu bytes of unused gradients", bytes);
}

void ddp_memory_let_go(const struct muster_ddp *ddp, void *memory) {
    if (!ddp->is_on_device) {
        free(memory);
    }
}

/* ---- work on it ---- */

int ddp_memory_copy(struct muster_group *group, bool on_device, void *to, const void *from, size_t bytes) {
    struct device_stream stream;
    if (!on_device) {
        memcpy(to, from, bytes);
        return MUSTER_OK;
    }
    int status = group_device(group, &stream);
    return status ? status : device_work_copy(&stream, to, from, bytes);
}

int ddp_memory_clear(struct muster_group *group, bool on_device, void *memory, size_t bytes) {
    struct device_stream stream;
    if (!on_device) {
        memset(memory, 0, bytes);
        return MUSTER_OK;
    }
    int status = group_device(group, &stream);
    return status ? status : device_work_clear(&stream, memory, bytes);
}
