/* What the ranks of a ddp must have in common: the model that they registered, its data, and the order of buckets. */
#include <muster/memory.h>

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "train/reduction/agreement.h"
#include "train/reduction/ddp_impl.h"

static int describe(const struct muster_ddp *ddp, struct buf *text) {
    static const char on_gpu[] = " in memory of the GPU";
    const struct muster_ddp_options *options = &ddp->options;
    buf_init(text, AGREEMENT_BYTES_MAX);
    int status = buf_printf(text,
                            "option bucket_bytes: %zu\n"
                            "option first_bucket_bytes: %zu\n"
                            "option rebuild: %s\n"
                            "option broadcast_buffers: %s\n"
                            "option find_unused: %s\n"
                            "option uneven_inputs: %s\n"
                            "option divide_by_active: %s\n"
                            "option copy_parameters: %s\n"
                            "option virtual_ranks: %zu\n"
                            "option hook: %s\n",
                            options->bucket_bytes, options->first_bucket_bytes, agreement_truth(options->rebuild),
                            agreement_truth(options->broadcast_buffers), agreement_truth(options->find_unused),
                            agreement_truth(options->uneven_inputs), agreement_truth(options->divide_by_active),
                            agreement_truth(options->copy_parameters), options->virtual_ranks,
                            options->hook ? ddp->hook.name : "none");
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        status = buf_printf(text, "parameter %u: %s, %zu %s%s\n", i, parameter->name, parameter->count,
                            muster_type_name(parameter->type), ddp->is_on_device ? on_gpu : "");
    }
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->buffer_count; i++) {
        const struct muster_ddp_buffer *buffer = &ddp->buffers[i];
        status = buf_printf(text, "buffer %u: %s, %zu %s%s\n", i, buffer->name, buffer->count,
                            muster_type_name(buffer->type), ddp->has_device_buffers ? on_gpu : "");
    }
    return status;
}

int ddp_agree_model(const struct muster_ddp *ddp, struct muster_group *group) {
    struct buf text;
    int status = describe(ddp, &text);
    status = status == MUSTER_OK ? agreement_compare(group, &text) : status;
    buf_done(&text);
    return status;
}

int ddp_agree_data(const struct muster_ddp *ddp, struct ddp_exchange *exchange) {
    for (uint32_t i = 0; ddp->options.copy_parameters && i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        int status = muster_broadcast(exchange->group, parameter->data, parameter->count, parameter->type, 0, NULL);
        if (status != MUSTER_OK) {
            return status_prefix(status, "copying parameter \"%s\" of rank 0", parameter->name);
        }
    }
    return ddp_agree_buffers(ddp, exchange, 0);
}

static size_t staged_bytes_of(const struct muster_ddp_buffer *buffer) {
    return (buffer->count * muster_type_bytes(buffer->type) + 7) / 8 * 8;
}

int ddp_agree_stage(const struct muster_ddp *ddp, struct muster_group *group, uint8_t *memory) {
    int status = MUSTER_OK;
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->buffer_count; i++) {
        const struct muster_ddp_buffer *buffer = &ddp->buffers[i];
        status = ddp_memory_copy(group, ddp->has_device_buffers, memory, buffer->data,
                                 buffer->count * muster_type_bytes(buffer->type));
        memory += staged_bytes_of(buffer);
    }
    return status;
}

int ddp_agree_unstage(const struct muster_ddp *ddp, struct muster_group *group, const uint8_t *memory) {
    int status = MUSTER_OK;
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->buffer_count; i++) {
        const struct muster_ddp_buffer *buffer = &ddp->buffers[i];
        status = ddp_memory_copy(group, ddp->has_device_buffers, buffer->data, memory,
                                 buffer->count * muster_type_bytes(buffer->type));
        memory += staged_bytes_of(buffer);
    }
    return status;
}

/* All buffers in one message: there are many of them, and they are small. */
int ddp_agree_buffers(const struct muster_ddp *ddp, struct ddp_exchange *exchange, uint32_t source) {
    if (ddp->buffer_count == 0) {
        return MUSTER_OK;
    }
    struct muster_group *group = exchange->group;
    bool is_source = muster_group_rank(group) == source;
    int status = is_source ? ddp_agree_stage(ddp, group, exchange->staged_buffers) : MUSTER_OK;
    if (status == MUSTER_OK) {
        status = muster_broadcast(group, exchange->staged_buffers, exchange->staged_bytes, MUSTER_UINT8, source, NULL);
    }
    if (status == MUSTER_OK && !is_source) {
        status = ddp_agree_unstage(ddp, group, exchange->staged_buffers);
    }
    return status == MUSTER_OK ? status : status_prefix(status, "copying the buffers of rank %u", source);
}

static bool is_first_order(const uint32_t *order, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (order[i] != count - 1 - i) {
            return false;
        }
    }
    return true;
}

int ddp_agree_order(struct muster_ddp *ddp, uint32_t source) {
    int status = muster_broadcast(ddp->group, ddp->ready_order, ddp->parameter_count, MUSTER_INT32, source, NULL);
    if (status != MUSTER_OK) {
        return status_prefix(status, "agreeing on the order of buckets");
    }
    ddp->is_rebuild_due = false;
    ddp->is_rebuilt = true;
    if (is_first_order(ddp->ready_order, ddp->parameter_count)) {
        return MUSTER_OK;
    }
    struct ddp_layout *layout = NULL;
    status = ddp_layout_create(ddp, ddp->group, ddp->ready_order, &layout);
    if (status != MUSTER_OK) {
        return status_prefix(status, "rebuilding buckets");
    }
    status = ddp_layout_replace(ddp, layout);
    if (status != MUSTER_OK) {
        ddp_layout_free(layout);
        return status_prefix(status, "rebuilding buckets");
    }
    ddp_reduce_reset(ddp);
    return MUSTER_OK;
}

int ddp_exchange_create(const struct muster_ddp *ddp, struct muster_group *group, struct ddp_exchange *out) {
    *out = (struct ddp_exchange){.group = group};
    for (uint32_t i = 0; i < ddp->buffer_count; i++) {
        out->staged_bytes += staged_bytes_of(&ddp->buffers[i]);
    }
    int status = MUSTER_OK;
    if (out->staged_bytes > 0) {
        void *memory = NULL;
        out->is_on_device = ddp->has_device_buffers;
        status = ddp_memory_allocate(group, out->is_on_device, out->staged_bytes, &memory);
        out->staged_buffers = memory;
    }
    if (status == MUSTER_OK && out->staged_bytes > 0 && ddp->options.virtual_ranks > 0) {
        out->before = calloc(2, out->staged_bytes);
        out->after = out->before ? out->before + out->staged_bytes : NULL;
        status = out->before ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for two copies of the buffers");
    }
    if (status == MUSTER_OK && ddp->options.uneven_inputs) {
        status = presence_create(group, &out->presence);
    }
    if (status != MUSTER_OK) {
        ddp_exchange_free(out);
        *out = (struct ddp_exchange){0};
    }
    return status;
}

void ddp_exchange_free(struct ddp_exchange *exchange) {
    if (!exchange->group) {
        return;
    }
    presence_free(&exchange->presence);
    free(exchange->before);
    if (ddp_memory_is_idle(exchange->group, exchange->is_on_device)) {
        ddp_memory_free(exchange->group, exchange->is_on_device, exchange->staged_buffers);
    }
}

int ddp_agree_presence(struct muster_ddp *ddp, enum presence_step own, enum presence_step *out_step) {
    struct presence_result result;
    int status = presence_agree(&ddp->exchange.presence, own, &result);
    if (status != MUSTER_OK) {
        return status;
    }
    *out_step = result.step;
    if (result.active_count > 0) { /* else they stay those of the last step: whose buffers are the newest */
        ddp->active_count = result.active_count;
        ddp->source = result.source;
    }
    return MUSTER_OK;
}
