/* See fsdp_snapshot.h. */
#include "train/units/fsdp_snapshot.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/units/fsdp_virtual.h"

enum { PIECE_COUNT_MAX = 1 << 20 };

/* ---- the list of tensors ---- */

/* What is sharded: the values of all parameters, then what is remembered of those that learn, one after the other. */
static const struct unit_item *item_of(const struct fsdp_table *table, size_t tensor) {
    const struct muster_fsdp *fsdp = table->fsdp;
    size_t item_count = fsdp->layout->item_count;
    size_t item = tensor < item_count ? tensor : fsdp->learning[(tensor - item_count) / table->slot_count];
    return &fsdp->layout->items[item];
}

static enum unit_segment segment_of(const struct unit_item *item) {
    return item->frozen ? UNIT_FROZEN : UNIT_LEARNS;
}

static struct fsdp_stored own_memory(const struct fsdp_table *table) {
    return (struct fsdp_stored){.layout = table->fsdp->layout,
                                .values = table->fsdp->values.memory,
                                .remembered = table->region ? table->region->memory : NULL};
}

/* Where elements of a tensor are, that lie `at` elements from the beginning of what its rank has of the segment. */
static float *stored_at(const struct fsdp_table *table, const struct fsdp_stored *stored, size_t tensor,
                        uint32_t column, size_t at) {
    const struct unit_layout *layout = stored->layout;
    const struct unit_item *item = item_of(table, tensor);
    if (tensor < layout->item_count) {
        return stored->values + unit_layout_stored_at(layout, item->unit, segment_of(item), column) + at;
    }
    size_t slot = (tensor - layout->item_count) % table->slot_count;
    return stored->remembered + slot * layout->stored_learns_count + unit_layout_learns_at(layout, item->unit, column) +
           at;
}

static size_t offset_in_segment(const struct fsdp_table *table, const struct unit_item *item) {
    return item->offset - (item->frozen ? fsdp_shape(table->fsdp, item->unit)->counts[UNIT_LEARNS] : 0);
}

static void place(struct fsdp_table *table, size_t tensor) {
    const struct fsdp_stored own = own_memory(table);
    table->tensors[tensor].data =
        fsdp_table_is_whole(table)
            ? (void *)stored_at(table, &own, tensor, 0, offset_in_segment(table, item_of(table, tensor)))
            : snapshot_from_source;
}

static void describe_parameters(struct fsdp_table *table) {
    const struct muster_fsdp *fsdp = table->fsdp;
    for (uint32_t i = 0; i < fsdp->layout->item_count; i++) {
        const struct fsdp_dims *dims = &fsdp->parameter_dims[i];
        table->tensors[i] =
            (struct muster_tensor){.name = fsdp->parameter_names[i], .type = MUSTER_FLOAT32, .dim_count = dims->count};
        memcpy(table->tensors[i].shape, dims->sizes, sizeof dims->sizes);
        place(table, i);
    }
}

/* Its tensors are of the ranges that this rank has: they get the sizes of the whole. The last one, of the steps, is the
 * same on every rank. */
static void describe_optimizer(struct fsdp_table *table, struct muster_optimizer *optimizer) {
    size_t first = table->fsdp->layout->item_count, count = table->slot_count * table->fsdp->learning_count;
    (void)muster_optimizer_tensors(optimizer, &table->tensors[first]);
    for (size_t i = first; i < first + count; i++) {
        table->tensors[i].shape[0] = item_of(table, i)->count;
        place(table, i);
    }
}

static int find_states(struct fsdp_table *table, const struct muster_optimizer *optimizer) {
    const struct muster_fsdp *fsdp = table->fsdp;
    size_t count = optimizer ? muster_optimizer_tensor_count(optimizer) : 0;
    if (count == 0) {
        return MUSTER_OK;
    }
    const struct fsdp_state *state;
    int status = fsdp_optimizer_find(fsdp, optimizer, &state);
    if (status != MUSTER_OK) {
        return status;
    }
    table->region = &state->region;
    table->slot_count = (count - 1) / fsdp->learning_count;
    return MUSTER_OK;
}

static int describe(struct fsdp_table *table, struct muster_optimizer *optimizer) {
    const struct muster_snapshot_state *extra = &table->extra.state;
    size_t sharded = table->fsdp->layout->item_count + table->slot_count * table->fsdp->learning_count;
    size_t count = sharded + (table->slot_count > 0) + extra->tensor_count;
    table->tensors = calloc(count, sizeof *table->tensors);
    if (!table->tensors) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", count);
    }
    describe_parameters(table);
    if (table->slot_count > 0) {
        describe_optimizer(table, optimizer);
    }
    if (extra->tensor_count > 0) {
        memcpy(&table->tensors[count - extra->tensor_count], extra->tensors,
               extra->tensor_count * sizeof *table->tensors);
    }
    table->all =
        (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(table->tensors, count, extra->values, extra->value_count);
    table->sharded = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(table->tensors, sharded, NULL, 0);
    table->common = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(&table->tensors[sharded], count - sharded,
                                                                        extra->values, extra->value_count);
    return MUSTER_OK;
}

static int check_phase(const struct muster_fsdp *fsdp) {
    int status = step_failure_status(&fsdp->failure);
    bool is_begun = fsdp->phase == FSDP_BEGUN || fsdp_virtual_is_between(fsdp);
    return status == MUSTER_OK && is_begun ? status_fail(MUSTER_EINVAL, "a step has been begun and not been finished")
                                           : status;
}

int fsdp_table_init(struct fsdp_table *table, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                    const struct muster_snapshot_state *given) {
    static const struct muster_snapshot_state none = MUSTER_SNAPSHOT_STATE_INIT;
    size_t half = unit_layout_round((fsdp->layout->largest_count + 1) / 2);
    *table = (struct fsdp_table){.fsdp = fsdp, .piece_count = half < PIECE_COUNT_MAX ? half : PIECE_COUNT_MAX};
    int status = check_phase(fsdp);
    status = status ? status : snapshot_state_read(given ? given : &none, &table->extra);
    status = status ? status : find_states(table, optimizer);
    status = status ? status : describe(table, optimizer);
    return status ? status : snapshot_state_check(&table->all);
}

void fsdp_table_done(struct fsdp_table *table) {
    free(table->tensors);
    snapshot_state_done(&table->extra);
}

/* ---- walking over it ---- */

bool fsdp_walk_is_done(const struct fsdp_table *table, const struct fsdp_walk *walk) {
    return walk->tensor == table->sharded.tensor_count;
}

bool fsdp_walk_next(const struct fsdp_table *table, struct fsdp_walk *walk, size_t most, struct fsdp_extent *out) {
    if (most == 0 || fsdp_walk_is_done(table, walk)) {
        return false;
    }
    size_t left = item_of(table, walk->tensor)->count - walk->begin;
    *out = (struct fsdp_extent){walk->tensor, walk->begin, left < most ? left : most};
    if (out->count == left) {
        *walk = (struct fsdp_walk){.tensor = walk->tensor + 1};
    } else {
        walk->begin += out->count;
    }
    return true;
}

bool fsdp_table_overlap(const struct fsdp_table *table, const struct fsdp_extent *extent, uint32_t part,
                        struct fsdp_extent *out) {
    const struct unit_item *item = item_of(table, extent->tensor);
    const struct unit_layout *layout = table->fsdp->layout;
    size_t begin = 0, end = unit_layout_overlap(layout, (uint32_t)(item - layout->items), part, &begin);
    end += begin;
    begin = begin > extent->begin ? begin : extent->begin;
    end = end < extent->begin + extent->count ? end : extent->begin + extent->count;
    if (begin >= end) {
        return false;
    }
    *out = (struct fsdp_extent){extent->tensor, begin, end - begin};
    return true;
}

uint32_t fsdp_table_item(const struct fsdp_table *table, size_t tensor) {
    return (uint32_t)(item_of(table, tensor) - table->fsdp->layout->items);
}

float *fsdp_stored_at(const struct fsdp_table *table, const struct fsdp_stored *stored,
                      const struct fsdp_extent *extent, uint32_t part) {
    const struct unit_item *item = item_of(table, extent->tensor);
    size_t part_begin = unit_layout_part(stored->layout, item->unit, segment_of(item), part)->begin;
    size_t begin = offset_in_segment(table, item) + extent->begin;
    assert(begin >= part_begin && part % stored->layout->stride == stored->layout->first_part);
    return stored_at(table, stored, extent->tensor, part / stored->layout->stride, begin - part_begin);
}

float *fsdp_table_at(const struct fsdp_table *table, const struct fsdp_extent *extent, uint32_t column) {
    const struct fsdp_stored own = own_memory(table);
    return fsdp_stored_at(table, &own, extent, own.layout->first_part + column * own.layout->stride);
}
