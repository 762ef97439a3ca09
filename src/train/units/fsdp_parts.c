/* See fsdp_parts.h. */
#include "train/units/fsdp_parts.h"

#include <string.h>

#include "base/status.h"

bool fsdp_parts_are_saved_by(const struct mesh *mesh) {
    return mesh->row == 0 || mesh->part_count == mesh->rows * mesh->columns;
}

int fsdp_parts_init(struct fsdp_parts *parts, const struct fsdp_table *table, bool lists) {
    const struct mesh *mesh = &table->fsdp->mesh;
    const struct muster_snapshot_state *all = &table->all;
    size_t sharded = table->sharded.tensor_count, chunk_count = 0;
    struct fsdp_walk walk = {0};
    struct fsdp_extent extent, own;
    parts->tensors = calloc(all->tensor_count + 1, sizeof *parts->tensors);
    parts->chunks = calloc(sharded + 1, sizeof *parts->chunks);
    if (!parts->tensors || !parts->chunks) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", all->tensor_count);
    }
    memcpy(parts->tensors, all->tensors, all->tensor_count * sizeof *parts->tensors);
    for (size_t i = 0; i < sharded; i++) {
        parts->tensors[i].data = NULL;
    }
    while (lists && fsdp_walk_next(table, &walk, SIZE_MAX, &extent)) {
        if (fsdp_table_overlap(table, &extent, mesh->part, &own)) {
            parts->chunks[chunk_count++] = (struct muster_checkpoint_chunk){own.tensor, own.begin, own.count,
                                                                            fsdp_table_at(table, &own, mesh->column)};
        }
    }
    parts->state = (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(
        parts->tensors, all->tensor_count, parts->chunks, chunk_count, all->values, all->value_count);
    return MUSTER_OK;
}
