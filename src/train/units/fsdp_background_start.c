/* A checkpoint in the background is started: all ranks decide together, and each describes what it has. */
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/checkpoint/checkpoint_watched.h"
#include "train/state/state_bytes.h"
#include "train/units/fsdp_background_impl.h"

/* ---- in the thread ---- */

static int save(struct fsdp_background *b) {
    struct fsdp_request *request = &b->request;
    const struct checkpoint_watch watch = {&b->gives_up, &b->is_awaited, fsdp_background_has_read, b};
    if (request->room) {
        fsdp_frozen_parts_move(&request->parts, request->room);
        fsdp_background_has_read(b);
    }
    return checkpoint_save_watched(b->io, b->group, request->folder, request->step, &request->parts.parts.state,
                                   &request->options, &watch);
}

/* ---- its life ---- */

/* Collective. The group's deadline is that of a disk, not of a step. */
static int create(struct muster_fsdp *fsdp) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.name = "checkpoints";
    struct fsdp_background *b = fsdp->background = fsdp_background_allocate();
    int status = snapshot_agree(fsdp->mesh.group, b ? MUSTER_OK : MUSTER_ENOMEM);
    if (status == MUSTER_OK && b) {
        b->io = fsdp->disk ? fsdp->disk : &snapshot_io_system;
        b->save = save;
        status =
            muster_group_split(fsdp->mesh.group, 0, (int32_t)muster_group_rank(fsdp->mesh.group), &options, &b->group);
        status = status ? status : snapshot_agree(fsdp->mesh.group, fsdp_background_start_thread(b));
    }
    if (status != MUSTER_OK) {
        fsdp_background_end(fsdp);
    }
    return status;
}

/* ---- a request ---- */

static int make_room(struct fsdp_background *b, size_t bytes) {
    if (b->room_bytes < bytes || !b->room) {
        free(b->room);
        b->room = malloc(bytes + 1);
        b->room_bytes = b->room ? bytes : 0;
    }
    return b->room ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a copy of %zu bytes of the state", bytes);
}

/* What was described in the keep, as it is now. */
static int freeze(struct muster_fsdp *fsdp, const struct muster_snapshot_state *extra, struct fsdp_request *out) {
    struct fsdp_table table;
    int status = fsdp_table_init(&table, fsdp, fsdp->kept->optimizer, extra);
    if (status == MUSTER_OK && state_hash(&table.all) != fsdp->kept->description) {
        status = status_fail(MUSTER_EINVAL, "`extra` describes another state than for muster_fsdp_keep()");
    }
    status = status ? status : fsdp_parts_init(&out->parts.parts, &table, fsdp_parts_are_saved_by(&fsdp->mesh));
    status = status ? status : fsdp_frozen_parts_freeze(&out->parts);
    fsdp_table_done(&table);
    return status;
}

static int prepare(struct muster_fsdp *fsdp, const char *folder, const struct muster_snapshot_state *extra,
                   const struct muster_fsdp_background_options *options) {
    struct fsdp_background *b = fsdp->background;
    struct fsdp_request *request = &b->request;
    fsdp_background_forget(request);
    request->folder = strdup(folder);
    request->step = copies_step(fsdp->kept->copies);
    request->copy = copies_current(fsdp->kept->copies);
    (void)checkpoint_options_read(options->checkpoint, &request->options); /* they were checked */
    b->overlap = options->overlap;
    int status = request->folder ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the name of a folder");
    status = status ? status : freeze(fsdp, extra, request);
    if (status == MUSTER_OK && b->overlap == MUSTER_FSDP_OVERLAP_COPY) {
        status = make_room(b, fsdp_frozen_parts_chunk_bytes(&request->parts));
        request->room = b->room;
    }
    return status;
}

/* Collective: is a thread of any rank at work? Then all skip this save. */
static int agree_on_skipping(struct muster_fsdp *fsdp, bool *out_skips) {
    int64_t is_busy = fsdp_background_is_running(fsdp->background);
    int status = muster_all_reduce(fsdp->mesh.group, &is_busy, &is_busy, 1, MUSTER_INT64, MUSTER_OP_MAX, NULL);
    *out_skips = is_busy != 0;
    return status;
}

static int start(struct muster_fsdp *fsdp, const char *folder, const struct muster_snapshot_state *extra,
                 const struct muster_fsdp_background_options *options, bool *out_started) {
    bool skips = false;
    int status = fsdp->background ? MUSTER_OK : create(fsdp);
    if (status == MUSTER_OK && options->must_start) {
        (void)fsdp_background_wait(fsdp->background); /* what has failed is no reason not to try */
    }
    status = status ? status : agree_on_skipping(fsdp, &skips);
    if (status != MUSTER_OK) {
        return status;
    }
    *out_started = !skips;
    if (skips) {
        (void)pthread_mutex_lock(&fsdp->background->lock);
        fsdp->background->numbers.skipped++;
        (void)pthread_mutex_unlock(&fsdp->background->lock);
        return MUSTER_OK;
    }
    status = snapshot_agree(fsdp->mesh.group, prepare(fsdp, folder, extra, options));
    if (status == MUSTER_OK) {
        fsdp_background_hand_over(fsdp->background);
    }
    return status;
}

static int check_start(const struct muster_fsdp *fsdp, const char *folder,
                       const struct muster_fsdp_background_options *options) {
    int status = step_failure_status(&fsdp->failure);
    if (status != MUSTER_OK) {
        return status;
    }
    if (!fsdp->kept || copies_step(fsdp->kept->copies) < 0) {
        return status_fail(MUSTER_EINVAL,
                           "no step has been committed: muster_fsdp_keep() and muster_fsdp_commit() first");
    }
    if (!folder || folder[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "no folder for checkpoints is named");
    }
    if ((unsigned)options->overlap > MUSTER_FSDP_OVERLAP_GIVE_UP) {
        return status_fail(MUSTER_EINVAL, "overlap %d is none of the three", (int)options->overlap);
    }
    struct muster_checkpoint_options checked;
    status = checkpoint_options_read(options->checkpoint, &checked);
    if (status != MUSTER_OK) {
        return status;
    }
    return copies_is_begun(fsdp->kept->copies)
               ? status_fail(MUSTER_EINVAL, "the optimizer's step has not been committed: muster_fsdp_commit() first")
               : MUSTER_OK;
}

int muster_fsdp_start_checkpoint(struct muster_fsdp *fsdp, const char *folder,
                                 const struct muster_snapshot_state *extra,
                                 const struct muster_fsdp_background_options *options, bool *out_started) {
    struct muster_fsdp_background_options own = MUSTER_FSDP_BACKGROUND_OPTIONS_INIT;
    bool is_started = false;
    if (!fsdp) {
        return status_fail_null("muster_fsdp_start_checkpoint", "fsdp");
    }
    int status = sized_read_options(&own, sizeof own, options, "muster_fsdp_background_options",
                                    "MUSTER_FSDP_BACKGROUND_OPTIONS_INIT");
    status = status ? status : check_start(fsdp, folder, &own);
    status = status ? status : start(fsdp, folder, extra, &own, &is_started);
    if (out_started) {
        *out_started = is_started && status == MUSTER_OK;
    }
    return status ? status_prefix(status, "muster_fsdp_start_checkpoint") : MUSTER_OK;
}
