/* Telling how far a long save or load is. */
#ifndef TRAIN_CHECKPOINT_PROGRESS_H
#define TRAIN_CHECKPOINT_PROGRESS_H

#include <stdint.h>

#include "train/state/snapshot_io.h"

#include <muster/checkpoint.h>

/* Who is told, and how. tell NULL: nobody. */
struct checkpoint_listener {
    muster_checkpoint_progress_fn *tell;
    void *context;
    int64_t interval_ms; /* until it is told first, and between two times */
};
/* The program's own, or the log where it has none: of rank 0. */
struct checkpoint_listener checkpoint_listener_of(muster_checkpoint_progress_fn *tell, void *context, uint32_t rank);

struct checkpoint_progress {
    struct checkpoint_listener listener;
    const struct snapshot_io *io; /* has the clock */
    struct muster_checkpoint_progress now;
    int64_t begin_ms, told_ms;
};
/* What is borrowed: io. `first` has step, is_load and total_bytes. */
void checkpoint_progress_begin(struct checkpoint_progress *progress, const struct snapshot_io *io,
                               const struct checkpoint_listener *listener,
                               const struct muster_checkpoint_progress *first);
void checkpoint_progress_add(struct checkpoint_progress *progress, uint64_t bytes);
/* Tells the last time, if it was told before. */
void checkpoint_progress_end(const struct checkpoint_progress *progress);

#endif
