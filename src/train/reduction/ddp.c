/* Distributed data parallel: creating a ddp, binding it to a group, and the questions about it. */
#include "train/reduction/ddp_impl.h"

#include <stdlib.h>
#include <string.h>

#include <muster/virtual_ranks.h>

#include "base/sized.h"
#include "base/status.h"
#include "comm/device/device_kernels.h"
#include "comm/group/mark.h"
#include "train/reduction/agreement.h"
#include "train/reduction/model_copy.h"

static bool type_is_float(enum muster_type type) {
    return type == MUSTER_FLOAT16 || type == MUSTER_BFLOAT16 || type == MUSTER_FLOAT32 || type == MUSTER_FLOAT64;
}

static int check_tensor(const char *what, size_t index, const char *name, enum muster_type type, size_t count,
                        const void *data) {
    int status = model_check_name(what, index, name);
    if (status != MUSTER_OK) {
        return status;
    }
    size_t bytes = muster_type_bytes(type);
    if (!data || bytes == 0 || count == 0 || count > MUSTER_COLLECTIVE_BYTES_MAX / 2 / bytes) {
        return status_fail(MUSTER_EINVAL, "%s \"%s\" has no data, an unknown type, or a count out of range", what,
                           name);
    }
    return MUSTER_OK;
}

static int check_counts(size_t parameter_count, size_t buffer_count) {
    if (parameter_count == 0 || parameter_count > MUSTER_DDP_PARAMETERS_MAX ||
        buffer_count > MUSTER_DDP_PARAMETERS_MAX) {
        return status_fail(MUSTER_EINVAL, "%zu parameters and %zu buffers: 1 to %zu, and 0 to %zu, are possible",
                           parameter_count, buffer_count, MUSTER_DDP_PARAMETERS_MAX, MUSTER_DDP_PARAMETERS_MAX);
    }
    return MUSTER_OK;
}

static int check_arguments(const struct muster_ddp_parameter *parameters, size_t parameter_count,
                           const struct muster_ddp_buffer *buffers, size_t buffer_count,
                           const struct muster_ddp_options *options) {
    if (options->bucket_bytes == 0 || options->first_bucket_bytes == 0) {
        return status_fail(MUSTER_EINVAL, "buckets of 0 bytes");
    }
    if (options->hook && (!options->hook->start || !options->hook->name)) {
        return status_fail(MUSTER_EINVAL, "a hook without a name or a start function");
    }
    if (options->virtual_ranks > 0 && (options->hook || options->find_unused || options->uneven_inputs)) {
        return status_fail(MUSTER_EINVAL, "virtual_ranks does not go with %s",
                           options->hook          ? "a hook"
                           : options->find_unused ? "find_unused"
                                                  : "uneven_inputs: every virtual rank has a pass in each step");
    }
    for (size_t i = 0; i < parameter_count; i++) {
        const struct muster_ddp_parameter *parameter = &parameters[i];
        int status = check_tensor("parameter", i, parameter->name, parameter->type, parameter->count, parameter->data);
        if (status != MUSTER_OK) {
            return status;
        }
        if (!type_is_float(parameter->type)) {
            return status_fail(MUSTER_EINVAL, "parameter \"%s\" is of type %s: gradients are floats", parameter->name,
                               muster_type_name(parameter->type));
        }
    }
    for (size_t i = 0; i < buffer_count; i++) {
        int status = check_tensor("buffer", i, buffers[i].name, buffers[i].type, buffers[i].count, buffers[i].data);
        if (status != MUSTER_OK) {
            return status;
        }
    }
    return model_check_unique("parameter", &parameters[0].name, sizeof *parameters, parameter_count);
}

/* Places the ddp's lists in `block`, or finds out how large that must be (block NULL). */
static size_t place(struct muster_ddp *block, size_t parameter_count, size_t buffer_count, bool find_unused,
                    size_t name_bytes, char **out_names) {
    size_t used = 0;
    (void)model_carve(block, &used, sizeof *block);
    void *parameters = model_carve(block, &used, parameter_count * sizeof(struct ddp_parameter));
    void *buffers = model_carve(block, &used, buffer_count * sizeof(struct muster_ddp_buffer));
    void *order = model_carve(block, &used, parameter_count * sizeof(uint32_t));
    void *marks = model_carve(block, &used, find_unused ? parameter_count : 0);
    char *names = model_carve(block, &used, name_bytes);
    if (block) {
        block->parameters = parameters;
        block->buffers = buffers;
        block->ready_order = order;
        block->used = find_unused ? marks : NULL;
        block->block_bytes = used;
        *out_names = names;
    }
    return used;
}

static struct muster_ddp *copy_model(const struct muster_ddp_parameter *parameters, size_t parameter_count,
                                     const struct muster_ddp_buffer *buffers, size_t buffer_count,
                                     const struct muster_ddp_options *options) {
    size_t name_bytes = 0;
    for (size_t i = 0; i < parameter_count; i++) {
        name_bytes += strlen(parameters[i].name) + 1;
    }
    for (size_t i = 0; i < buffer_count; i++) {
        name_bytes += strlen(buffers[i].name) + 1;
    }
    char *names = NULL;
    struct muster_ddp *ddp =
        calloc(1, place(NULL, parameter_count, buffer_count, options->find_unused, name_bytes, NULL));
    if (!ddp) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for a ddp of %zu parameters", parameter_count);
        return NULL;
    }
    (void)place(ddp, parameter_count, buffer_count, options->find_unused, name_bytes, &names);
    ddp->options = *options;
    if (options->hook) {
        ddp->hook = *options->hook;
        ddp->options.hook = &ddp->hook;
    }
    ddp->parameter_count = (uint32_t)parameter_count;
    ddp->buffer_count = (uint32_t)buffer_count;
    for (size_t i = 0; i < parameter_count; i++) {
        const struct muster_ddp_parameter *from = &parameters[i];
        ddp->parameters[i] = (struct ddp_parameter){.name = model_keep_name(&names, from->name),
                                                    .type = from->type,
                                                    .count = from->count,
                                                    .data = from->data,
                                                    .own_gradient = from->gradient};
    }
    for (size_t i = 0; i < buffer_count; i++) {
        ddp->buffers[i] = buffers[i];
        ddp->buffers[i].name = model_keep_name(&names, buffers[i].name);
    }
    return ddp;
}

/* What computes with gradients needs kernels where they are in memory of a GPU. */
static int prepare_arithmetic(struct muster_ddp *ddp, struct muster_group *group, struct device_kernels **out) {
    bool narrows = ddp->options.hook && ddp_hook_narrows(&ddp->hook);
    if (narrows) {
        ddp->hook.context = ddp;
    }
    return ddp_memory_prepare(ddp, group,
                              ddp->options.divide_by_active ? "divide_by_active"
                              : narrows                     ? ddp->hook.name
                                                            : NULL,
                              out);
}

/* Of the group that the ddp has. */
static void release_kernels(struct muster_ddp *ddp) {
    if (ddp->kernels) {
        device_kernels_release(ddp->kernels, !ddp->group || ddp_memory_is_idle(ddp->group, ddp->is_on_device));
    }
}

/* Leaves the group that the ddp has, if it has one, for `group`. Nothing changes on failure, but that the data may have
 * been overwritten with that of rank 0. */
static int bind_group(struct muster_ddp *ddp, struct muster_group *group) {
    struct ddp_layout *layout = NULL;
    struct ddp_exchange exchange = {0};
    struct device_kernels *kernels = NULL;
    uint32_t first = 0, count = 0;
    int status = ddp_memory_find(ddp, group);
    if (status == MUSTER_OK && ddp->options.virtual_ranks > 0) {
        status = muster_virtual_ranks(group, ddp->options.virtual_ranks, &first, &count);
    }
    if (status != MUSTER_OK) {
        return agreement_refuse(group, status); /* perhaps on this rank alone */
    }
    status = prepare_arithmetic(ddp, group, &kernels);
    if (status == MUSTER_OK) {
        status = ddp_exchange_create(ddp, group, &exchange);
    }
    if (status == MUSTER_OK) {
        status = ddp_layout_create(ddp, group, NULL, &layout);
    }
    if (status == MUSTER_OK) {
        status = ddp_agree_model(ddp, group);
    }
    if (status == MUSTER_OK) {
        status = ddp_agree_data(ddp, &exchange);
    }
    if (status != MUSTER_OK) {
        if (status != MUSTER_EMISMATCH) { /* different models: every rank has seen it */
            step_failure_tell(group, status);
        }
        device_kernels_release(kernels, true); /* nothing has been reduced yet */
        ddp_layout_free(layout);
        ddp_exchange_free(&exchange);
        return status;
    }
    release_kernels(ddp);
    ddp_layout_free(ddp->layout);
    ddp_exchange_free(&ddp->exchange);
    group_hold(group);
    group_let_go(ddp->group);
    ddp->kernels = kernels;
    ddp->group = group;
    ddp->layout = layout;
    ddp->exchange = exchange;
    ddp->phase = DDP_IDLE;
    ddp->failure.code = MUSTER_OK;
    ddp->is_rebuild_due = false;
    ddp->is_rebuilt = !ddp->options.rebuild || ddp->options.find_unused;
    ddp->is_broadcast_due = true;
    ddp->active_count = muster_group_size(group);
    ddp->source = 0;
    ddp->accumulated = 0;
    ddp->pass = 0;
    ddp->waiting.count = 0;
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        ddp->parameters[i].is_used = false;
        ddp->parameters[i].was_used = true;
    }
    ddp_reduce_reset(ddp);
    return MUSTER_OK;
}

/* What the caller gave, as this version's structs. */
struct arguments {
    struct sized_array parameters, buffers;
    size_t parameter_count, buffer_count;
    struct muster_ddp_options options; /* its hook: `hook`, or NULL */
    struct muster_ddp_hook hook;
};

static int read_options(const struct muster_ddp_options *given, struct arguments *out) {
    out->options = (struct muster_ddp_options)MUSTER_DDP_OPTIONS_INIT;
    out->hook = (struct muster_ddp_hook)MUSTER_DDP_HOOK_INIT;
    int status =
        sized_read_options(&out->options, sizeof out->options, given, "muster_ddp_options", "MUSTER_DDP_OPTIONS_INIT");
    if (status == MUSTER_OK && out->options.hook) {
        status = sized_read_options(&out->hook, sizeof out->hook, out->options.hook, "muster_ddp_hook",
                                    "MUSTER_DDP_HOOK_INIT");
        out->options.hook = &out->hook;
    }
    return status;
}

static int create(struct muster_group *group, const struct arguments *a, struct muster_ddp **out) {
    int status =
        check_arguments(a->parameters.items, a->parameter_count, a->buffers.items, a->buffer_count, &a->options);
    if (status != MUSTER_OK) {
        return status;
    }
    struct muster_ddp *ddp =
        copy_model(a->parameters.items, a->parameter_count, a->buffers.items, a->buffer_count, &a->options);
    if (!ddp) {
        return MUSTER_ENOMEM;
    }
    status = bind_group(ddp, group);
    if (status != MUSTER_OK) {
        muster_ddp_free(ddp);
        return status;
    }
    *out = ddp;
    return MUSTER_OK;
}

/* NOLINTNEXTLINE(readability-function-size): muster_ddp_create()'s, and two sizes that it fills in */
int muster_ddp_create_sized(struct muster_group *group, const struct muster_ddp_parameter *parameters,
                            size_t parameter_bytes, size_t parameter_count, const struct muster_ddp_buffer *buffers,
                            size_t buffer_bytes, size_t buffer_count, const struct muster_ddp_options *options,
                            struct muster_ddp **out) {
    struct arguments a = {0};
    if (!group || !out) {
        return status_fail_null("muster_ddp_create", group ? "out" : "group");
    }
    int status = check_counts(parameter_count, buffer_count);
    status = status ? status : read_options(options, &a);
    status = status ? status
                    : sized_read_array(&a.parameters, sizeof *parameters, parameters, parameter_bytes, parameter_count,
                                       offsetof(struct muster_ddp_parameter, gradient), "muster_ddp_parameter");
    status = status ? status
                    : sized_read_array(&a.buffers, sizeof *buffers, buffers, buffer_bytes, buffer_count,
                                       sizeof *buffers, "muster_ddp_buffer");
    a.parameter_count = parameter_count;
    a.buffer_count = buffer_count;
    status = status ? status : create(group, &a, out);
    if (status == MUSTER_ENOMEM) { /* wrong arguments are wrong on every rank, but a lack is of this one alone */
        step_failure_tell(group, status);
    }
    free(a.parameters.owned);
    free(a.buffers.owned);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_create");
}

int muster_ddp_rebind(struct muster_ddp *ddp, struct muster_group *group) {
    if (!ddp || !group) {
        return status_fail_null("muster_ddp_rebind", ddp ? "group" : "ddp");
    }
    ddp_reduce_drain(ddp);
    int status = bind_group(ddp, group);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_rebind");
}

void muster_ddp_free(struct muster_ddp *ddp) {
    if (!ddp) {
        return;
    }
    ddp_reduce_drain(ddp);
    release_kernels(ddp);
    ddp_layout_free(ddp->layout);
    ddp_exchange_free(&ddp->exchange);
    group_let_go(ddp->group);
    free(ddp);
}

void *muster_ddp_gradient(struct muster_ddp *ddp, size_t index) {
    if (!ddp || index >= ddp->parameter_count) {
        return NULL;
    }
    void *own = ddp->parameters[index].own_gradient;
    return own ? own : ddp_layout_gradient(ddp->layout, (uint32_t)index);
}

int muster_ddp_zero_gradients(struct muster_ddp *ddp) {
    if (!ddp) {
        return status_fail_null("muster_ddp_zero_gradients", "ddp");
    }
    bool on_device = ddp->is_on_device;
    int status = group_check_freed(ddp->group);
    status = status ? status : ddp_memory_clear(ddp->group, on_device, ddp->layout->memory, ddp->layout->memory_bytes);
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        if (parameter->own_gradient) {
            status = ddp_memory_clear(ddp->group, on_device, parameter->own_gradient,
                                      parameter->count * muster_type_bytes(parameter->type));
        }
    }
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_zero_gradients");
}

bool muster_ddp_was_used(const struct muster_ddp *ddp, size_t index) {
    return ddp && index < ddp->parameter_count && ddp->parameters[index].was_used;
}

int muster_ddp_statistics_sized(const struct muster_ddp *ddp, struct muster_ddp_statistics *out, size_t out_bytes) {
    if (!ddp || !out) {
        return status_fail_null("muster_ddp_statistics", ddp ? "out" : "ddp");
    }
    struct muster_ddp_statistics now = ddp->numbers;
    now.communication_ns = ddp->clock.inside_ns;
    now.elapsed_ns = ddp->clock.elapsed_ns;
    now.bucket_count = ddp->layout->bucket_count;
    now.bucket_bytes = ddp->layout->memory_bytes;
    now.overhead_bytes = ddp->block_bytes + ddp->layout->block_bytes + ddp->layout->scratch_bytes +
                         (ddp->layout->kept ? ddp->layout->memory_bytes : 0) + ddp->layout->virtual.bytes +
                         ddp->exchange.staged_bytes * (ddp->exchange.before ? 3 : 1) + ddp->exchange.presence.bytes;
    sized_write(out, out_bytes, &now, sizeof now);
    return MUSTER_OK;
}
