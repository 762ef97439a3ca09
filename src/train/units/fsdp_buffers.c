/* Memory for whole units' gradients. A buffer is taken by a unit until its gradients are reduced. So a step that sends
 * needs as many buffers as units are incomplete at a time, and one for the unit before, which is being reduced. */
#include <assert.h>
#include <stdlib.h>

#include <muster/memory.h>

#include "base/status.h"
#include "train/units/fsdp_virtual.h"

static bool converts(const struct muster_fsdp *fsdp) {
    return fsdp->options.gradient_type != fsdp->options.reduce_type;
}

static size_t gradient_bytes(const struct muster_fsdp *fsdp) {
    return fsdp->layout->largest_learns_count * muster_type_bytes(fsdp->options.gradient_type);
}

static size_t converted_bytes(const struct muster_fsdp *fsdp) {
    return converts(fsdp) ? fsdp->layout->largest_learns_count * muster_type_bytes(fsdp->options.reduce_type) : 0;
}

static size_t scratch_bytes(const struct muster_fsdp *fsdp) {
    return fsdp->options.hook ? fsdp->layout->largest_learns_count * fsdp->hook.scratch_bytes
                              : fsdp_virtual_scratch_bytes(fsdp);
}

static size_t buffer_bytes(const struct muster_fsdp *fsdp) {
    return gradient_bytes(fsdp) + converted_bytes(fsdp) + scratch_bytes(fsdp);
}

static void give_back(struct muster_fsdp *fsdp, struct fsdp_buffer *buffer) {
    muster_free(fsdp->mesh.group, buffer->gradients);
    muster_free(fsdp->mesh.group, buffer->converted);
    muster_free(fsdp->mesh.group, buffer->scratch);
    *buffer = (struct fsdp_buffer){0};
}

static int buffer_allocate(struct muster_fsdp *fsdp, uint32_t unit, struct fsdp_buffer *buffer) {
    struct muster_group *group = fsdp->mesh.group;
    int status = muster_alloc(group, gradient_bytes(fsdp), &buffer->gradients);
    if (status == MUSTER_OK && converted_bytes(fsdp) > 0) {
        status = muster_alloc(group, converted_bytes(fsdp), &buffer->converted);
    }
    if (status == MUSTER_OK && scratch_bytes(fsdp) > 0) {
        status = muster_alloc(group, scratch_bytes(fsdp), &buffer->scratch);
    }
    if (status != MUSTER_OK) {
        give_back(fsdp, buffer);
        return status_prefix(status, "memory for the gradients of unit %u (%s)", unit, fsdp->units[unit].name);
    }
    fsdp->gradient_bytes += buffer_bytes(fsdp);
    if (fsdp->gradient_bytes > fsdp->gradient_peak_bytes) {
        fsdp->gradient_peak_bytes = fsdp->gradient_bytes;
    }
    return MUSTER_OK;
}

/* One that nobody has; NULL: all that are allocated are taken. */
static struct fsdp_buffer *find_free(const struct muster_fsdp *fsdp) {
    struct fsdp_buffer *found = NULL;
    for (uint32_t i = 0; i < fsdp->unit_learning_count && !found; i++) {
        struct fsdp_buffer *buffer = &fsdp->buffers[i];
        found = buffer->gradients && !buffer->is_taken ? buffer : NULL;
    }
    return found;
}

bool fsdp_buffer_is_free(const struct muster_fsdp *fsdp) {
    return find_free(fsdp) != NULL;
}

int fsdp_buffer_take(struct muster_fsdp *fsdp, uint32_t unit) {
    struct fsdp_buffer *buffer = find_free(fsdp);
    int status = MUSTER_OK;
    if (!buffer) {
        buffer = fsdp->buffers;
        while (buffer->gradients) {
            buffer++;
        }
        assert(buffer < fsdp->buffers + fsdp->unit_learning_count); /* a unit has one at most */
        status = buffer_allocate(fsdp, unit, buffer);
    }
    if (status == MUSTER_OK) {
        buffer->is_taken = true;
        fsdp->units[unit].buffer = buffer;
    }
    return status;
}

void fsdp_buffer_give(struct muster_fsdp *fsdp, uint32_t unit) {
    struct fsdp_unit *it = &fsdp->units[unit];
    if (it->buffer) {
        it->buffer->is_taken = false;
    }
    it->buffer = NULL;
    it->has_gradients = false;
}

void fsdp_buffers_free(struct muster_fsdp *fsdp) {
    for (uint32_t i = 0; fsdp->buffers && i < fsdp->unit_learning_count; i++) {
        give_back(fsdp, &fsdp->buffers[i]);
    }
}
