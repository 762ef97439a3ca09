/* A hook in place of the average: it does to the gradients of a whole unit what it does to a bucket of a ddp. */
#include "base/status.h"
#include "train/units/fsdp_impl.h"

int fsdp_hook_check(const struct muster_fsdp *fsdp) {
    const struct muster_fsdp_options *options = &fsdp->options;
    if (!options->hook) {
        return MUSTER_OK;
    }
    if (!fsdp->hook.start || !fsdp->hook.name) {
        return status_fail(MUSTER_EINVAL, "a hook without a name or a start function");
    }
    return options->sharding == MUSTER_FSDP_FULL && options->gradient_type == options->reduce_type
               ? MUSTER_OK
               : status_fail(MUSTER_EINVAL, "a hook needs full sharding, and gradient_type equal to reduce_type");
}

static struct muster_ddp_bucket view_of(const struct muster_fsdp *fsdp, uint32_t unit) {
    const struct fsdp_buffer *buffer = fsdp->units[unit].buffer;
    return (struct muster_ddp_bucket){.size = sizeof(struct muster_ddp_bucket),
                                      .index = unit,
                                      .bucket_count = fsdp->unit_count,
                                      .type = fsdp->options.gradient_type,
                                      .gradients = buffer->gradients,
                                      .count = fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS],
                                      .scratch = buffer->scratch,
                                      .divisor = fsdp->options.divide_by_active ? fsdp->active_count
                                                                                : muster_group_size(fsdp->mesh.group)};
}

int fsdp_hook_start(struct muster_fsdp *fsdp, uint32_t unit) {
    struct muster_ddp_bucket view = view_of(fsdp, unit);
    return fsdp->hook.start(fsdp->hook.context, fsdp->mesh.group, &view, &fsdp->units[unit].work);
}

int fsdp_hook_finish(struct muster_fsdp *fsdp, uint32_t unit) {
    struct muster_ddp_bucket view = view_of(fsdp, unit);
    return fsdp->hook.finish ? fsdp->hook.finish(fsdp->hook.context, fsdp->mesh.group, &view) : MUSTER_OK;
}
