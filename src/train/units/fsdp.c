/* Fully sharded data parallel: creating an fsdp, freeing it, and the questions about it. */
#include <stdlib.h>

#include <muster/virtual_ranks.h>

#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "train/units/fsdp_background.h"
#include "train/units/fsdp_copies.h"
#include "train/units/fsdp_virtual.h"

/* A rank's part of the averages, unit by unit. */
static int make_shard(struct muster_fsdp *fsdp) {
    size_t count = 0;
    for (uint32_t unit = 0; unit < fsdp->unit_count; unit++) {
        fsdp->shard_at[unit] = count;
        count += unit_layout_round(fsdp_own_part(fsdp, unit, UNIT_LEARNS)->count);
    }
    fsdp->shard_count = count;
    count = count > 0 ? count : MUSTER_FSDP_ALIGNMENT; /* there always is one: see fsdp_optimizer.c */
    fsdp->shard = aligned_alloc(MUSTER_FSDP_ALIGNMENT * sizeof(float), count * sizeof(float));
    fsdp->counts = calloc(muster_group_size(fsdp->mesh.group), sizeof *fsdp->counts);
    fsdp->met = calloc(fsdp->mesh.columns, sizeof *fsdp->met);
    if (!fsdp->shard || !fsdp->counts || !fsdp->met) {
        return status_fail(MUSTER_ENOMEM, "no memory for this rank's %zu gradients", count);
    }
    for (size_t i = 0; i < count; i++) {
        fsdp->shard[i] = 0;
    }
    return MUSTER_OK;
}

/* Models or hosts that do not fit are seen by all ranks alike, and the group goes on. */
static int agree(struct muster_fsdp *fsdp, const struct unit_item *items, struct muster_group *group) {
    uint32_t first = 0, count = 0;
    int status = fsdp_model_agree(fsdp, items, group);
    status = status || fsdp->options.virtual_ranks == 0
                 ? status
                 : muster_virtual_ranks(group, fsdp->options.virtual_ranks, &first, &count);
    status = status ? status : mesh_create(group, fsdp->options.sharding == MUSTER_FSDP_HYBRID, &fsdp->mesh);
    if (status != MUSTER_OK && status != MUSTER_EMISMATCH && status != MUSTER_EINVAL) {
        step_failure_tell(group, status); /* of this rank alone, unless the group has failed */
    }
    return status;
}

static int bind_group(struct muster_fsdp *fsdp, const struct unit_item *items, struct muster_group *group) {
    const struct mesh *mesh = &fsdp->mesh;
    int status = agree(fsdp, items, group);
    if (status != MUSTER_OK) {
        return status;
    }
    bool gathers = fsdp->options.sharding == MUSTER_FSDP_FULL && mesh->rows > 1;
    fsdp->active_count = muster_group_size(group);
    status = unit_layout_create(items, fsdp->parameter_count, fsdp->unit_count, mesh->part_count,
                                gathers ? mesh->row : 0, gathers ? mesh->rows : 1, &fsdp->layout);
    status = status ? status : make_shard(fsdp);
    status = status ? status : fsdp_virtual_create(fsdp);
    status = status || !fsdp->options.uneven_inputs ? status : presence_create(group, &fsdp->presence);
    status = status ? status : fsdp_values_create(fsdp);
    return status == MUSTER_OK ? MUSTER_OK : fsdp_fail(fsdp, status);
}

int muster_fsdp_create_sized(struct muster_group *group, const struct muster_fsdp_unit *units, size_t unit_bytes,
                             size_t unit_count, size_t parameter_bytes, const struct muster_fsdp_options *options,
                             struct muster_fsdp **out) {
    struct muster_fsdp *fsdp = NULL;
    struct unit_item *items = NULL;
    if (!group || !out) {
        return status_fail_null("muster_fsdp_create", group ? "out" : "group");
    }
    int status = fsdp_model_create(units, unit_bytes, unit_count, parameter_bytes, options, &fsdp, &items);
    if (status == MUSTER_OK) {
        status = bind_group(fsdp, items, group);
    } else if (status == MUSTER_ENOMEM) {
        step_failure_tell(group, status); /* wrong arguments are wrong on every rank, but a lack is of this one alone */
    }
    free(items);
    if (status != MUSTER_OK) {
        char detail[MUSTER_DETAIL_MAX];
        (void)str_copy(detail, sizeof detail, muster_detail());
        muster_fsdp_free(fsdp);
        return status_fail(status, "muster_fsdp_create: %s", detail);
    }
    *out = fsdp;
    return MUSTER_OK;
}

void muster_fsdp_free(struct muster_fsdp *fsdp) {
    if (!fsdp) {
        return;
    }
    fsdp_background_end(fsdp);
    fsdp_copies_end(fsdp);
    fsdp_reduce_drain(fsdp);
    fsdp_gather_free(fsdp);
    fsdp_buffers_free(fsdp);
    fsdp_virtual_free(fsdp);
    while (fsdp->states) {
        struct fsdp_state *state = fsdp->states;
        fsdp->states = state->next;
        state_region_free(&state->region);
        free(state);
    }
    fsdp_keep_end(fsdp);
    state_region_free(&fsdp->copy);
    state_region_free(&fsdp->values);
    presence_free(&fsdp->presence);
    unit_layout_free(fsdp->layout);
    free(fsdp->shard);
    free(fsdp->counts);
    free(fsdp->met);
    mesh_free(&fsdp->mesh);
    free(fsdp);
}

size_t muster_fsdp_offset(const struct muster_fsdp *fsdp, size_t parameter) {
    return fsdp && parameter < fsdp->layout->item_count ? fsdp->layout->items[parameter].offset : SIZE_MAX;
}

int muster_fsdp_statistics_sized(const struct muster_fsdp *fsdp, struct muster_fsdp_statistics *out, size_t out_bytes) {
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_statistics", fsdp ? "out" : "fsdp");
    }
    struct muster_fsdp_statistics now = fsdp->numbers;
    now.elapsed_ns = fsdp->clock.elapsed_ns;
    now.communication_ns = fsdp->clock.inside_ns;
    sized_write(out, out_bytes, &now, sizeof now);
    return MUSTER_OK;
}
