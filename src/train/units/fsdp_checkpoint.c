/* Checkpoints of an fsdp: each rank writes the parts that it owns, and reads its own; the files are the business of
 * train/checkpoint/. */
#include <stdlib.h>
#include <string.h>

#include <muster/checkpoint.h>

#include "base/status.h"
#include "train/units/fsdp_snapshot.h"

/* What this rank has of a table, as a checkpoint describes it. */
struct parts {
    struct muster_tensor *tensors;
    struct muster_checkpoint_chunk *chunks;
    struct muster_checkpoint_state state;
};

static void parts_done(struct parts *parts) {
    free(parts->tensors);
    free(parts->chunks);
}

/* With hybrid sharding every host has everything: one of them saves. */
static bool is_saver(const struct mesh *mesh) {
    return mesh->row == 0 || mesh->part_count == mesh->rows * mesh->columns;
}

static int parts_init(struct parts *parts, const struct fsdp_table *table, bool lists) {
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

int muster_fsdp_save_checkpoint(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const char *folder,
                                int64_t step, const struct muster_snapshot_state *extra,
                                const struct muster_checkpoint_options *options) {
    struct fsdp_table table;
    struct parts parts = {.tensors = NULL};
    if (!fsdp) {
        return status_fail_null("muster_fsdp_save_checkpoint", "fsdp");
    }
    int status = fsdp_table_init(&table, fsdp, optimizer, extra);
    status = status ? status : parts_init(&parts, &table, is_saver(&fsdp->mesh));
    status = snapshot_agree(fsdp->mesh.group, status);
    status = status ? status : muster_checkpoint_save(fsdp->mesh.group, folder, step, &parts.state, options);
    parts_done(&parts);
    fsdp_table_done(&table);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_save_checkpoint");
}

/* NOLINTNEXTLINE(readability-function-size): muster_checkpoint_load_newest_sized()'s, and the optimizer */
int muster_fsdp_load_newest_checkpoint_sized(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                             const char *folder, const struct muster_snapshot_state *extra,
                                             const struct muster_checkpoint_load_options *options,
                                             struct muster_checkpoint_found *out, size_t out_bytes) {
    struct fsdp_table table;
    struct parts parts = {.tensors = NULL};
    if (!fsdp) {
        return status_fail_null("muster_fsdp_load_newest_checkpoint", "fsdp");
    }
    int status = fsdp_table_init(&table, fsdp, optimizer, extra);
    status = status ? status : fsdp_keep_check_load(fsdp);
    status = status ? status : parts_init(&parts, &table, true);
    status = snapshot_agree(fsdp->mesh.group, status);
    if (status == MUSTER_OK) {
        fsdp->values_changed = true; /* in part, even if it fails */
        status = muster_checkpoint_load_newest_sized(fsdp->mesh.group, folder, &parts.state, options, out, out_bytes);
    }
    parts_done(&parts);
    fsdp_table_done(&table);
    if (status != MUSTER_OK) {
        return status_prefix(status, "muster_fsdp_load_newest_checkpoint");
    }
    fsdp_values_round(fsdp);
    fsdp->phase = FSDP_IDLE; /* averages of a step before belong to other parameters */
    return MUSTER_OK;
}
