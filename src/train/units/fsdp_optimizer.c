/* What a rank has of the parameters that learn, an optimizer on it, and the norm of all gradients. */
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/units/fsdp_impl.h"

/* ---- ranges ---- */

static struct muster_fsdp_range range_of(const struct muster_fsdp *fsdp, size_t index) {
    uint32_t item = fsdp->learning[index], unit = fsdp->layout->items[item].unit;
    struct muster_fsdp_range range = {.unit = unit, .parameter = item};
    range.count = unit_layout_overlap(fsdp->layout, item, fsdp->mesh.part, &range.offset);
    if (range.count > 0) {
        size_t in_part =
            fsdp->layout->items[item].offset + range.offset - fsdp_own_part(fsdp, unit, UNIT_LEARNS)->begin;
        range.data = (float *)fsdp->values.memory + fsdp_own_at(fsdp, unit, UNIT_LEARNS) + in_part;
        range.gradient = fsdp->shard + fsdp->shard_at[unit] + in_part;
    }
    return range;
}

size_t muster_fsdp_range_count(const struct muster_fsdp *fsdp) {
    return fsdp ? fsdp->learning_count : 0;
}

int muster_fsdp_range_sized(const struct muster_fsdp *fsdp, size_t index, struct muster_fsdp_range *out,
                            size_t out_bytes) {
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_range", fsdp ? "out" : "fsdp");
    }
    if (index >= fsdp->learning_count) {
        return status_fail(MUSTER_EINVAL, "muster_fsdp_range: range %zu of %u", index, fsdp->learning_count);
    }
    struct muster_fsdp_range range = range_of(fsdp, index);
    sized_write(out, out_bytes, &range, sizeof range);
    return MUSTER_OK;
}

/* ---- an optimizer ---- */

static int create(struct muster_fsdp *fsdp, const size_t *group_of, const struct muster_optimizer_group *groups,
                  size_t group_bytes, size_t group_count, struct muster_optimizer **out) {
    struct muster_optimizer_range *ranges = calloc(fsdp->learning_count, sizeof *ranges);
    if (!ranges) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u ranges", fsdp->learning_count);
    }
    for (uint32_t i = 0; i < fsdp->learning_count; i++) {
        struct muster_fsdp_range range = range_of(fsdp, i);
        ranges[i] = (struct muster_optimizer_range){.name = fsdp->parameter_names[fsdp->learning[i]],
                                                    .data = range.data,
                                                    .count = range.count,
                                                    .group = group_of ? group_of[i] : 0};
    }
    int status = muster_optimizer_create_sized(ranges, sizeof *ranges, fsdp->learning_count, groups, group_bytes,
                                               group_count, out);
    free(ranges);
    return status;
}

/* How many values are remembered for each parameter; the last tensor is that of the steps. */
static size_t states_of(const struct muster_fsdp *fsdp, const struct muster_optimizer *optimizer) {
    size_t tensors = muster_optimizer_tensor_count(optimizer);
    return tensors > 0 ? (tensors - 1) / fsdp->learning_count : 0;
}

/* Where range number `index` is remembered: laid out like the parts of what learns. */
static float *state_at(const struct muster_fsdp *fsdp, const struct state_region *region, size_t state, size_t index) {
    struct muster_fsdp_range range = range_of(fsdp, index);
    size_t in_part = range.count == 0 ? 0
                                      : fsdp->layout->items[range.parameter].offset + range.offset -
                                            fsdp_own_part(fsdp, (uint32_t)range.unit, UNIT_LEARNS)->begin;
    return (float *)region->memory + state * fsdp->layout->stored_learns_count +
           unit_layout_learns_at(fsdp->layout, (uint32_t)range.unit, fsdp->mesh.column) + in_part;
}

int fsdp_optimizer_place(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                         const struct state_region *states) {
    size_t count = states_of(fsdp, optimizer);
    float **places = calloc((count + 1) * fsdp->learning_count, sizeof *places);
    struct muster_optimizer_memory memory = MUSTER_OPTIMIZER_MEMORY_INIT;
    if (!places) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu ranges", count * fsdp->learning_count);
    }
    memory.parameters = places;
    memory.state = places + fsdp->learning_count;
    for (size_t i = 0; i < fsdp->learning_count; i++) {
        places[i] = range_of(fsdp, i).data;
        for (size_t state = 0; state < count; state++) {
            places[fsdp->learning_count + i * count + state] = state_at(fsdp, states, state, i);
        }
    }
    int status = muster_optimizer_move(optimizer, &memory);
    free(places);
    return status;
}

static int keep_states(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer) {
    size_t bytes = states_of(fsdp, optimizer) * fsdp->layout->stored_learns_count * sizeof(float);
    struct fsdp_state *kept = calloc(1, sizeof *kept);
    if (!kept) {
        return status_fail(MUSTER_ENOMEM, "no memory for an optimizer");
    }
    /* One of 0 bytes as well: the ranks of a host compare what they want. */
    int status = state_region_create(fsdp->mesh.row_group, "what the optimizer remembers", bytes, &kept->region);
    status = status || bytes == 0 ? status : fsdp_optimizer_place(fsdp, optimizer, &kept->region);
    if (status != MUSTER_OK) {
        state_region_free(&kept->region);
        free(kept);
        return status;
    }
    kept->optimizer = optimizer;
    kept->next = fsdp->states;
    fsdp->states = kept;
    return MUSTER_OK;
}

int muster_fsdp_optimizer_sized(struct muster_fsdp *fsdp, const size_t *group_of,
                                const struct muster_optimizer_group *groups, size_t group_bytes, size_t group_count,
                                struct muster_optimizer **out) {
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_optimizer", fsdp ? "out" : "fsdp");
    }
    struct muster_optimizer *optimizer = NULL;
    int status = step_failure_status(&fsdp->failure);
    if (status == MUSTER_OK && fsdp->learning_count == 0) {
        status = status_fail(MUSTER_EINVAL, "every parameter is frozen");
    }
    status = status ? status : create(fsdp, group_of, groups, group_bytes, group_count, &optimizer);
    if (status == MUSTER_OK) {
        status = keep_states(fsdp, optimizer);
        status = status ? fsdp_fail(fsdp, status) : MUSTER_OK;
    } else if (status == MUSTER_ENOMEM) {
        status = fsdp_fail(fsdp, status); /* wrong arguments are wrong on every rank, but a lack is of this one alone */
    }
    if (status != MUSTER_OK) {
        muster_optimizer_free(optimizer);
        return status_prefix(status, "muster_fsdp_optimizer");
    }
    *out = optimizer;
    return MUSTER_OK;
}

int fsdp_optimizer_find(const struct muster_fsdp *fsdp, const struct muster_optimizer *optimizer,
                        const struct fsdp_state **out) {
    size_t tensors = muster_optimizer_tensor_count(optimizer);
    const struct fsdp_state *state =
        fsdp->states; /* the newest first: one that was freed may have had the same address */
    while (state && state->optimizer != optimizer) {
        state = state->next;
    }
    if (!state || (tensors > 0 && (tensors - 1) % fsdp->learning_count != 0)) {
        return status_fail(MUSTER_EINVAL, "the optimizer was not made with muster_fsdp_optimizer() for this fsdp");
    }
    *out = state;
    return MUSTER_OK;
}

/* ---- a step of it ---- */

static int check_ready(const struct muster_fsdp *fsdp) {
    int status = step_failure_status(&fsdp->failure);
    if (status == MUSTER_OK && fsdp->phase != FSDP_READY) {
        status = status_fail(MUSTER_EINVAL, "there are no averages: a step STEP has to be finished first, and no other "
                                            "has been begun since");
    }
    return status;
}

static int step(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, double gradient_scale) {
    struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    const float **gradients = calloc(fsdp->learning_count, sizeof *gradients);
    uint16_t **copies = calloc(fsdp->learning_count, sizeof *copies);
    if (!gradients || !copies) {
        free(gradients);
        free(copies);
        return status_fail(MUSTER_ENOMEM, "no memory for %u ranges", fsdp->learning_count);
    }
    for (uint32_t i = 0; i < fsdp->learning_count; i++) {
        struct muster_fsdp_range range = range_of(fsdp, i);
        gradients[i] = range.gradient ? range.gradient : fsdp->shard; /* an empty range counts its steps as well */
        copies[i] = range.data && fsdp->copy.memory
                        ? (uint16_t *)fsdp->copy.memory + (range.data - (float *)fsdp->values.memory)
                        : NULL;
    }
    options.gradient_scale = gradient_scale;
    options.bfloat16 = fsdp->copy.memory ? copies : NULL;
    int status = fsdp_keep_has_committed(fsdp) ? fsdp_keep_step(fsdp, optimizer, gradients, &options)
                                               : muster_optimizer_step_into(optimizer, gradients, &options);
    free(gradients);
    free(copies);
    return status;
}

int muster_fsdp_step(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, double gradient_scale) {
    if (!fsdp || !optimizer) {
        return status_fail_null("muster_fsdp_step", fsdp ? "optimizer" : "fsdp");
    }
    const struct fsdp_state *state;
    int status = check_ready(fsdp);
    status = status ? status : fsdp_optimizer_find(fsdp, optimizer, &state);
    if (status == MUSTER_OK) {
        status = step(fsdp, optimizer, gradient_scale);
        status = status == MUSTER_ENOMEM ? fsdp_fail(fsdp, status) : status;
    }
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_step");
}

/* Of the ranges alone: what lies between parameters is whatever the unit before left in the buffer. */
static int squared_norm(struct muster_fsdp *fsdp, double *out_sum) {
    const float **gradients = calloc(fsdp->learning_count, sizeof *gradients);
    size_t *counts = calloc(fsdp->learning_count, sizeof *counts);
    int status =
        gradients && counts ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for %u ranges", fsdp->learning_count);
    for (uint32_t i = 0; status == MUSTER_OK && i < fsdp->learning_count; i++) {
        struct muster_fsdp_range range = range_of(fsdp, i);
        gradients[i] = range.gradient;
        counts[i] = range.count;
    }
    if (status == MUSTER_OK) {
        status = (fsdp->virtual ? muster_exact_squared_norm : muster_squared_norm)(fsdp->mesh.shard, gradients, counts,
                                                                                   fsdp->learning_count, out_sum);
    }
    free(gradients);
    free(counts);
    return status ? fsdp_fail(fsdp, status) : MUSTER_OK;
}

int muster_fsdp_squared_norm(struct muster_fsdp *fsdp, double *out_sum) {
    if (!fsdp || !out_sum) {
        return status_fail_null("muster_fsdp_squared_norm", fsdp ? "out_sum" : "fsdp");
    }
    int status = check_ready(fsdp);
    status = status ? status : squared_norm(fsdp, out_sum);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_squared_norm");
}
