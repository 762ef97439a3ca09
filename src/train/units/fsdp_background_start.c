/* A checkpoint of a kept state is started. What is saved is what was described in the keep, as it is now: this rank's
 * chunks in committed memory, and a copy of what every rank has whole. */
#include "base/status.h"
#include "comm/group/mark.h"
#include "train/state/state_bytes.h"
#include "train/units/fsdp_background.h"
#include "train/units/fsdp_parts.h"

/* What a request is made of. */
struct source {
    struct muster_fsdp *fsdp;
    const struct muster_snapshot_state *extra;
};

static int freeze(void *context, struct frozen_state *out) {
    const struct source *source = context;
    struct muster_fsdp *fsdp = source->fsdp;
    struct fsdp_table table;
    struct fsdp_parts parts = {.tensors = NULL};
    const struct frozen_place nowhere = {.rank = muster_group_rank(fsdp->mesh.group),
                                         .size = muster_group_size(fsdp->mesh.group),
                                         .stream = group_stream(fsdp->mesh.group)};
    int status = fsdp_table_init(&table, fsdp, fsdp->kept->optimizer, source->extra);
    if (status == MUSTER_OK && state_hash(&table.all) != fsdp->kept->description) {
        status = status_fail(MUSTER_EINVAL, "`extra` describes another state than for muster_fsdp_keep()");
    }
    status = status ? status : fsdp_parts_init(&parts, &table, fsdp_parts_are_saved_by(&fsdp->mesh));
    status = status ? status : frozen_state_init(out, &parts.state, &nowhere);
    fsdp_parts_done(&parts);
    fsdp_table_done(&table);
    return status;
}

static int check_start(const struct muster_fsdp *fsdp) {
    int status = step_failure_status(&fsdp->failure);
    if (status != MUSTER_OK) {
        return status;
    }
    if (!fsdp_keep_has_committed(fsdp)) {
        return status_fail(MUSTER_EINVAL,
                           "no step has been committed: muster_fsdp_keep() and muster_fsdp_commit() first");
    }
    return fsdp_keep_check_begin(fsdp);
}

static int start(struct muster_fsdp *fsdp, struct background_request *request,
                 const struct muster_snapshot_state *extra, bool *out_started) {
    struct source source = {fsdp, extra};
    request->step = copies_step(fsdp->kept->copies);
    request->copy = copies_current(fsdp->kept->copies);
    request->freeze = freeze;
    request->context = &source;
    return background_start(&fsdp->background, fsdp->mesh.group, fsdp->disk ? fsdp->disk : &snapshot_io_system, request,
                            out_started);
}

int muster_fsdp_start_checkpoint(struct muster_fsdp *fsdp, const char *folder,
                                 const struct muster_snapshot_state *extra,
                                 const struct muster_background_options *options, bool *out_started) {
    struct background_request request;
    bool is_started = false;
    if (!fsdp) {
        return status_fail_null("muster_fsdp_start_checkpoint", "fsdp");
    }
    int status = check_start(fsdp);
    status = status ? status : background_request_read(&request, folder, options);
    status = status ? status : start(fsdp, &request, extra, &is_started);
    if (out_started) {
        *out_started = is_started && status == MUSTER_OK;
    }
    return status ? status_prefix(status, "muster_fsdp_start_checkpoint") : MUSTER_OK;
}
