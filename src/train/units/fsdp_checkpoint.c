/* Checkpoints of an fsdp: each rank writes the parts that it owns, and reads its own; the files are the business of
 * train/checkpoint/. */
#include <muster/checkpoint.h>

#include "base/status.h"
#include "train/units/fsdp_parts.h"

int muster_fsdp_save_checkpoint(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const char *folder,
                                int64_t step, const struct muster_snapshot_state *extra,
                                const struct muster_checkpoint_options *options) {
    struct fsdp_table table;
    struct fsdp_parts parts = {.tensors = NULL};
    if (!fsdp) {
        return status_fail_null("muster_fsdp_save_checkpoint", "fsdp");
    }
    int status = fsdp_table_init(&table, fsdp, optimizer, extra);
    status = status ? status : fsdp_parts_init(&parts, &table, fsdp_parts_are_saved_by(&fsdp->mesh));
    status = snapshot_agree(fsdp->mesh.group, status);
    status = status ? status : muster_checkpoint_save(fsdp->mesh.group, folder, step, &parts.state, options);
    fsdp_parts_done(&parts);
    fsdp_table_done(&table);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_save_checkpoint");
}

/* NOLINTNEXTLINE(readability-function-size): muster_checkpoint_load_newest_sized()'s, and the optimizer */
int muster_fsdp_load_newest_checkpoint_sized(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                             const char *folder, const struct muster_snapshot_state *extra,
                                             const struct muster_checkpoint_load_options *options,
                                             struct muster_checkpoint_found *out, size_t out_bytes) {
    struct fsdp_table table;
    struct fsdp_parts parts = {.tensors = NULL};
    if (!fsdp) {
        return status_fail_null("muster_fsdp_load_newest_checkpoint", "fsdp");
    }
    int status = fsdp_table_init(&table, fsdp, optimizer, extra);
    status = status ? status : fsdp_keep_check_load(fsdp);
    status = status ? status : fsdp_parts_init(&parts, &table, true);
    status = snapshot_agree(fsdp->mesh.group, status);
    if (status == MUSTER_OK) {
        fsdp->values_changed = true; /* in part, even if it fails */
        status = muster_checkpoint_load_newest_sized(fsdp->mesh.group, folder, &parts.state, options, out, out_bytes);
    }
    fsdp_parts_done(&parts);
    fsdp_table_done(&table);
    if (status != MUSTER_OK) {
        return status_prefix(status, "muster_fsdp_load_newest_checkpoint");
    }
    fsdp_values_round(fsdp);
    fsdp->phase = FSDP_IDLE; /* averages of a step before belong to other parameters */
    return MUSTER_OK;
}
