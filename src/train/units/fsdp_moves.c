/* A state that lies in memory of another world, committed or as copies on peer hosts, comes into this fsdp: see
 * fsdp_snapshot.h. */
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "base/status.h"
#include "comm/group/mark.h"
#include "train/state/state_bytes.h"
#include "train/units/fsdp_snapshot.h"

uint64_t fsdp_table_fingerprint(const struct fsdp_table *table) {
    const struct unit_layout *layout = table->fsdp->layout;
    uint64_t hash = state_hash(&table->all);
    for (uint32_t i = 0; i < layout->item_count; i++) {
        hash = fnv_bytes(hash, &layout->items[i].offset, sizeof layout->items[i].offset);
        hash = fnv_bytes(hash, &layout->items[i].block, sizeof layout->items[i].block); /* cuts depend on it */
    }
    return hash;
}

int fsdp_table_lay_out(const struct fsdp_table *table, const struct commit_place *place, struct unit_layout **out) {
    const struct unit_layout *own = table->fsdp->layout;
    return unit_layout_create(own->items, own->item_count, own->unit_count, place->part_count, place->first,
                              place->stride, out);
}

static uint32_t item_of(const void *context, size_t tensor) {
    return fsdp_table_item(context, tensor);
}

static float *in_fsdp(const void *context, const struct move_range *range) {
    const struct fsdp_table *table = context;
    const struct fsdp_extent extent = {range->tensor, range->offset, range->count};
    return fsdp_table_at(table, &extent, table->fsdp->mesh.column);
}

/* To all ranks: what each has whole, as bytes. */
static int share_common(const struct fsdp_table *table, const struct fsdp_move *move, void *common, size_t bytes) {
    struct muster_group *group = table->fsdp->mesh.group;
    int status = common ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for %zu bytes of a state", bytes);
    status = snapshot_agree(group, status);
    if (status == MUSTER_OK && common) {
        if (move->common) {
            memcpy(common, move->common, bytes);
        }
        status = muster_broadcast(group, common, bytes, MUSTER_UINT8, move->sources[0].rank, NULL);
    }
    return status;
}

static int move_sharded(const struct fsdp_table *table, const struct fsdp_move *move) {
    const struct muster_fsdp *fsdp = table->fsdp;
    struct unit_layout *old = NULL;
    int status = snapshot_agree(fsdp->mesh.group, fsdp_table_lay_out(table, &move->sources[0].place, &old));
    if (status == MUSTER_OK) {
        const struct move_options options = {.group = fsdp->mesh.group,
                                             .old = old,
                                             .now = fsdp->layout,
                                             .part = fsdp->mesh.part,
                                             .tensor_count = table->sharded.tensor_count,
                                             .sources = move->sources,
                                             .source_count = move->count,
                                             .context = table,
                                             .item = item_of,
                                             .from = move->from,
                                             .to = in_fsdp};
        status = move_state(&options);
    }
    unit_layout_free(old);
    return status;
}

/* Whoever lacks memory says so before anything is written. */
int fsdp_move_in(const struct fsdp_table *table, const struct fsdp_move *move) {
    size_t bytes = state_bytes(&table->common), unit = sizeof(uint64_t);
    void *common = aligned_alloc(unit, (bytes + unit) / unit * unit);
    int status = share_common(table, move, common, bytes);
    status = status ? status : move_sharded(table, move);
    if (status == MUSTER_OK) {
        status = snapshot_agree(table->fsdp->mesh.group,
                                state_bytes_read(&table->common, group_stream(table->fsdp->mesh.group), common));
    }
    free(common);
    return status;
}
