/* The memory of the parameters, and their first values. */
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/status.h"
#include "train/reduction/narrow.h"
#include "train/units/fsdp_impl.h"

static int make_memory(struct muster_fsdp *fsdp) {
    size_t count = fsdp->layout->stored_count;
    int status = state_region_create(fsdp->mesh.row_group, "parameters", count * sizeof(float), &fsdp->values);
    if (status == MUSTER_OK && fsdp->options.compute_type != MUSTER_FLOAT32) {
        status = state_region_create(fsdp->mesh.row_group, "the bfloat16 copy of parameters",
                                     count * muster_type_bytes(fsdp->options.compute_type), &fsdp->copy);
    }
    return status;
}

/* ---- first values ---- */

static int fill_unit(struct muster_fsdp *fsdp, uint32_t unit, float *values) {
    const struct fsdp_unit *it = &fsdp->units[unit];
    for (uint32_t i = it->first; i < it->first + it->item_count; i++) {
        status_clear();
        int status = fsdp->options.fill(fsdp->options.fill_context, unit, i, values + fsdp->layout->items[i].offset);
        if (status < 0) {
            return status_prefix(status, "first values of %s", fsdp->parameter_names[i]);
        }
    }
    return MUSTER_OK;
}

/* This rank's parts of a whole unit. */
static void take_parts(struct muster_fsdp *fsdp, uint32_t unit, const float *values) {
    for (enum unit_segment segment = UNIT_LEARNS; segment < UNIT_SEGMENTS; segment++) {
        const struct unit_part *part = fsdp_own_part(fsdp, unit, segment);
        const float *from = values + (segment == UNIT_LEARNS ? 0 : fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS]);
        float *to = (float *)fsdp->values.memory + fsdp_own_at(fsdp, unit, segment);
        memcpy(to, from + part->begin, part->count * sizeof *to);
    }
}

/* Rank 0 fills a unit, and all others get it. One unit at a time. */
static int spread(struct muster_fsdp *fsdp) {
    struct muster_group *group = fsdp->mesh.group;
    float *unit_values = calloc(fsdp->layout->largest_count, sizeof *unit_values);
    int status = unit_values ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the values of a unit");
    for (uint32_t unit = 0; status == MUSTER_OK && unit < fsdp->unit_count; unit++) {
        size_t count = unit_layout_count(fsdp_shape(fsdp, unit));
        if (muster_group_rank(group) == 0) {
            memset(unit_values, 0, count * sizeof *unit_values);
            status = fill_unit(fsdp, unit, unit_values);
        }
        status = status ? status : muster_broadcast(group, unit_values, count, MUSTER_FLOAT32, 0, NULL);
        if (status == MUSTER_OK) {
            take_parts(fsdp, unit, unit_values);
        }
    }
    free(unit_values);
    return status;
}

/* On one host rank 0 writes everybody's parts where they are. */
static int fill_here(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    for (uint32_t unit = 0; muster_group_rank(fsdp->mesh.group) == 0 && status == MUSTER_OK && unit < fsdp->unit_count;
         unit++) {
        status = fill_unit(fsdp, unit, (float *)fsdp->values.memory + fsdp_shape(fsdp, unit)->stored_begin);
    }
    return status ? status : muster_barrier(fsdp->mesh.group, NULL);
}

void fsdp_values_round(struct muster_fsdp *fsdp) {
    for (uint32_t unit = 0; fsdp->copy.memory && unit < fsdp->unit_count; unit++) {
        for (enum unit_segment segment = UNIT_LEARNS; segment < UNIT_SEGMENTS; segment++) {
            size_t at = fsdp_own_at(fsdp, unit, segment);
            narrow_floats(fsdp->options.compute_type, (uint16_t *)fsdp->copy.memory + at, MUSTER_FLOAT32,
                          (float *)fsdp->values.memory + at, fsdp_own_part(fsdp, unit, segment)->count);
        }
    }
}

int fsdp_values_create(struct muster_fsdp *fsdp) {
    int status = make_memory(fsdp);
    if (status == MUSTER_OK && fsdp->options.fill) {
        status = fsdp->mesh.rows == 1 ? fill_here(fsdp) : spread(fsdp);
    }
    if (status == MUSTER_OK) {
        fsdp_values_round(fsdp);
    }
    return status;
}
