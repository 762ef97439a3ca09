/* A save is started: all ranks decide together, and each describes what it has. */
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/background/background_impl.h"
#include "train/checkpoint/checkpoint_watched.h"
#include "train/state/snapshot_parts.h"
#include "train/state/tensor_places.h"

enum { ROOM_ALIGNMENT = 64 };

/* ---- in the thread ---- */

static int write_save(struct background *b) {
    struct background_save *save = &b->save;
    const struct checkpoint_watch watch = {&b->gives_up, &b->is_awaited, background_has_read, b};
    if (save->room) {
        frozen_state_move(&save->frozen, save->room);
        background_has_read(b);
    }
    return checkpoint_save_watched(b->disk, b->group, save->folder, save->step, &save->frozen.state, &save->options,
                                   &watch);
}

/* ---- its life ---- */

/* Collective. The group's deadline is that of a disk, not of a step. */
static int create(struct muster_group *group, const struct snapshot_io *disk, struct background **out) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.name = "checkpoints";
    options.engine = tensors_host_engine(group); /* what is saved has been frozen on the host */
    struct background *b = background_allocate();
    int status = snapshot_agree(group, b ? MUSTER_OK : MUSTER_ENOMEM);
    if (status == MUSTER_OK && b) {
        b->disk = disk;
        b->write = write_save;
        status = muster_group_split(group, 0, (int32_t)muster_group_rank(group), &options, &b->group);
        status = status ? status : snapshot_agree(group, background_start_thread(b));
    }
    if (status != MUSTER_OK) {
        background_end(b, false);
        return status;
    }
    *out = b;
    return MUSTER_OK;
}

/* ---- a save ---- */

static int make_room(struct background *b, size_t bytes) {
    if (b->room_bytes < bytes || !b->room) {
        free(b->room);
        b->room = aligned_alloc(ROOM_ALIGNMENT, (bytes / ROOM_ALIGNMENT + 1) * ROOM_ALIGNMENT);
        b->room_bytes = b->room ? bytes : 0;
    }
    return b->room ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a copy of %zu bytes of the state", bytes);
}

static int prepare(struct background *b, const struct background_request *request) {
    struct background_save *save = &b->save;
    background_forget(save);
    save->folder = strdup(request->folder);
    save->step = request->step;
    save->copy = request->copy;
    (void)checkpoint_options_read(request->options.checkpoint, &save->options); /* they were checked */
    b->overlap = request->options.overlap;
    int status = save->folder ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the name of a folder");
    status = status ? status : request->freeze(request->context, &save->frozen);
    if (status == MUSTER_OK && b->overlap == MUSTER_BACKGROUND_OVERLAP_COPY) {
        status = make_room(b, frozen_state_committed_bytes(&save->frozen));
        save->room = b->room;
    }
    return status;
}

/* Collective: is a thread of any rank at work? Then all skip this save. */
static int agree_on_skipping(struct background *b, struct muster_group *group, bool *out_skips) {
    int64_t is_busy = background_is_running(b);
    int status = muster_all_reduce(group, &is_busy, &is_busy, 1, MUSTER_INT64, MUSTER_OP_MAX, NULL);
    *out_skips = is_busy != 0;
    return status;
}

int background_start(struct background **background, struct muster_group *group, const struct snapshot_io *disk,
                     const struct background_request *request, bool *out_started) {
    bool skips = false;
    int status = *background ? MUSTER_OK : create(group, disk, background);
    struct background *b = *background;
    if (status != MUSTER_OK || !b) {
        return status;
    }
    if (request->options.must_start) {
        (void)background_wait(b); /* what has failed is no reason not to try */
    }
    status = agree_on_skipping(b, group, &skips);
    if (status != MUSTER_OK) {
        return status;
    }
    *out_started = !skips;
    if (skips) {
        background_count_skipped(b);
        return MUSTER_OK;
    }
    status = snapshot_agree(group, prepare(b, request));
    if (status == MUSTER_OK) {
        background_hand_over(b);
    }
    return status;
}

int background_request_read(struct background_request *request, const char *folder,
                            const struct muster_background_options *given) {
    struct muster_checkpoint_options checked;
    *request = (struct background_request){.folder = folder, .options = MUSTER_BACKGROUND_OPTIONS_INIT};
    struct muster_background_options *own = &request->options;
    int status =
        sized_read_options(own, sizeof *own, given, "muster_background_options", "MUSTER_BACKGROUND_OPTIONS_INIT");
    if (status == MUSTER_OK && (!folder || folder[0] == '\0')) {
        status = status_fail(MUSTER_EINVAL, "no folder for checkpoints is named");
    }
    if (status == MUSTER_OK && (unsigned)own->overlap > MUSTER_BACKGROUND_OVERLAP_GIVE_UP) {
        status = status_fail(MUSTER_EINVAL, "overlap %d is none of the three", (int)own->overlap);
    }
    return status ? status : checkpoint_options_read(own->checkpoint, &checked);
}
