/* The memory of a ddp's buckets: one shared allocation, in which gradients live. */
#include <muster/memory.h>

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/reduction/ddp_impl.h"

/* What the assignment needs while it is made. */
struct draft {
    struct bucket_item *items;
    struct bucket_shape *shapes;
    uint32_t *order;
    uint32_t bucket_count;
};

static void draft_done(struct draft *draft) {
    free(draft->items);
    free(draft->shapes);
    free(draft->order);
}

static int draft_make(const struct muster_ddp *ddp, const uint32_t *order, struct draft *draft) {
    uint32_t count = ddp->parameter_count;
    *draft = (struct draft){.items = calloc(count, sizeof *draft->items),
                            .shapes = calloc(count, sizeof *draft->shapes),
                            .order = calloc(count, sizeof *draft->order)};
    if (!draft->items || !draft->shapes || !draft->order) {
        draft_done(draft);
        return status_fail(MUSTER_ENOMEM, "no memory to assign %u gradients to buckets", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = order ? order[i] : count - 1 - i;
        if (index >= count || draft->items[index].count > 0) { /* it came from another rank */
            draft_done(draft);
            return status_fail(MUSTER_EPROTOCOL, "the order of %u gradients has number %u, which is %s", count, index,
                               index >= count ? "too large" : "in it twice");
        }
        draft->items[index] =
            (struct bucket_item){.type = ddp->parameters[index].type, .count = ddp->parameters[index].count};
        draft->order[i] = index;
    }
    draft->bucket_count = bucket_assign(draft->items, count, draft->order, ddp->options.first_bucket_bytes,
                                        ddp->options.bucket_bytes, draft->shapes);
    return MUSTER_OK;
}

static size_t scratch_bytes_of(const struct muster_ddp *ddp, const struct bucket_shape *shape) {
    size_t bytes = ddp->options.hook ? ddp->hook.scratch_bytes * shape->count : 0;
    return (bytes + BUCKET_ALIGNMENT - 1) / BUCKET_ALIGNMENT * BUCKET_ALIGNMENT;
}

/* With virtual ranks every rank has a slice of a bucket, all of them of the same size. */
static size_t bucket_bytes(const struct muster_ddp *ddp, const struct bucket_shape *shape, uint32_t ranks) {
    size_t bytes = bucket_memory_bytes(shape), lines = bytes / BUCKET_ALIGNMENT;
    return ddp->options.virtual_ranks > 0 ? (lines + ranks - 1) / ranks * ranks * BUCKET_ALIGNMENT : bytes;
}

static void fill(const struct muster_ddp *ddp, struct ddp_layout *layout, const struct draft *draft) {
    uint32_t ranks = muster_group_size(layout->group);
    memcpy(layout->items, draft->items, ddp->parameter_count * sizeof *layout->items);
    uint8_t *memory = layout->memory, *scratch = layout->scratch;
    for (uint32_t i = 0; i < draft->bucket_count; i++) {
        struct ddp_bucket *bucket = &layout->buckets[i];
        bucket->shape = draft->shapes[i];
        bucket->view = (struct muster_ddp_bucket){.size = sizeof(struct muster_ddp_bucket),
                                                  .index = i,
                                                  .bucket_count = draft->bucket_count,
                                                  .type = bucket->shape.type,
                                                  .gradients = memory,
                                                  .count = bucket->shape.count,
                                                  .scratch = scratch};
        bucket->memory_bytes = bucket_bytes(ddp, &bucket->shape, ranks);
        memory += bucket->memory_bytes;
        if (scratch) {
            scratch += scratch_bytes_of(ddp, &bucket->shape);
        }
    }
}

/* Memory for the buckets, and what else each element of them needs. */
static int allocate(struct ddp_layout *layout, bool keeps_unused) {
    struct ddp_virtual *virtual = &layout->virtual;
    void *waiting = NULL;
    bool on_device = layout->is_on_device;
    int status = ddp_memory_allocate(layout->group, on_device, layout->memory_bytes, &layout->memory);
    if (status == MUSTER_OK && layout->scratch_bytes > 0) {
        status = ddp_memory_allocate(layout->group, on_device, layout->scratch_bytes, &layout->scratch);
    }
    if (status == MUSTER_OK && on_device && keeps_unused) {
        status = ddp_memory_allocate(layout->group, on_device, layout->memory_bytes, &layout->kept);
    }
    virtual->bytes = (virtual->slots + virtual->rounds) * layout->memory_bytes;
    if (status == MUSTER_OK && virtual->bytes > 0) {
        status = muster_alloc(layout->group, virtual->bytes, &waiting);
    }
    if (waiting) {
        virtual->waiting = waiting;
        virtual->received = virtual->waiting + virtual->slots * layout->memory_bytes;
    }
    return status == MUSTER_OK ? status
                               : status_prefix(status, "%zu bytes of buckets",
                                               layout->memory_bytes + layout->scratch_bytes + virtual->bytes);
}

int ddp_layout_create(const struct muster_ddp *ddp, struct muster_group *group, const uint32_t *order,
                      struct ddp_layout **out) {
    struct draft draft;
    int status = draft_make(ddp, order, &draft);
    if (status != MUSTER_OK) {
        return status;
    }
    size_t buckets_bytes = draft.bucket_count * sizeof(struct ddp_bucket);
    size_t items_bytes = ddp->parameter_count * sizeof(struct bucket_item);
    size_t block_bytes = sizeof(struct ddp_layout) + buckets_bytes + items_bytes +
                         ddp->options.virtual_ranks * sizeof(struct ddp_arrival);
    struct ddp_layout *layout = calloc(1, block_bytes);
    if (!layout) {
        status = status_fail(MUSTER_ENOMEM, "no memory for %u buckets", draft.bucket_count);
        goto out_draft;
    }
    layout->group = group;
    layout->is_on_device = ddp->is_on_device;
    layout->block_bytes = block_bytes;
    layout->buckets = (struct ddp_bucket *)(layout + 1);
    layout->bucket_count = draft.bucket_count;
    layout->items = (struct bucket_item *)(layout->buckets + draft.bucket_count);
    if (ddp->options.virtual_ranks > 0) {
        ddp_virtual_plan(ddp, group, (struct ddp_arrival *)(layout->items + ddp->parameter_count), &layout->virtual);
    }
    for (uint32_t i = 0; i < draft.bucket_count; i++) {
        layout->memory_bytes += bucket_bytes(ddp, &draft.shapes[i], muster_group_size(group));
        layout->scratch_bytes += scratch_bytes_of(ddp, &draft.shapes[i]);
    }
    status = allocate(layout, ddp->options.find_unused);
    if (status != MUSTER_OK) {
        ddp_layout_free(layout);
        goto out_draft;
    }
    fill(ddp, layout, &draft);
    *out = layout;
out_draft:
    draft_done(&draft);
    return status;
}

void ddp_layout_free(struct ddp_layout *layout) {
    if (!layout) {
        return;
    }
    muster_free(layout->group, layout->virtual.waiting);
    if (ddp_memory_is_idle(layout->group, layout->is_on_device)) {
        ddp_memory_free(layout->group, layout->is_on_device, layout->kept);
        ddp_memory_free(layout->group, layout->is_on_device, layout->scratch);
        ddp_memory_free(layout->group, layout->is_on_device, layout->memory);
    }
    free(layout);
}

void *ddp_layout_gradient(const struct ddp_layout *layout, uint32_t parameter) {
    const struct bucket_item *item = &layout->items[parameter];
    return (uint8_t *)layout->buckets[item->bucket].view.gradients + item->offset * muster_type_bytes(item->type);
}

int ddp_layout_replace(struct muster_ddp *ddp, struct ddp_layout *layout) {
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        int status =
            ddp_memory_copy(layout->group, layout->is_on_device, ddp_layout_gradient(layout, i),
                            ddp_layout_gradient(ddp->layout, i), parameter->count * muster_type_bytes(parameter->type));
        if (status != MUSTER_OK) {
            return status;
        }
    }
    ddp_layout_free(ddp->layout);
    ddp->layout = layout;
    return MUSTER_OK;
}
