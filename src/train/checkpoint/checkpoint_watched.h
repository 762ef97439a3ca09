/* For rooms beside this one: a save in a thread of its own, while others use what it reads. */
#ifndef TRAIN_CHECKPOINT_WATCHED_H
#define TRAIN_CHECKPOINT_WATCHED_H

#include <stdatomic.h>
#include <stdint.h>

#include <muster/checkpoint.h>

#include "train/state/snapshot_io.h"

struct checkpoint_watch {
    const atomic_bool *gives_up;     /* looked at after each piece: the save of all ranks fails, MUSTER_ECANCELED */
    const atomic_bool *is_awaited;   /* somebody waits for the save: bytes_per_second is no limit any more */
    void (*has_read)(void *context); /* this rank reads its chunks no more. Not called where it fails before it does */
    void *context;
};

/* The options that a program of any version gives, checked. NULL: the defaults. MUSTER_EINVAL, MUSTER_EUNSUPPORTED. */
int checkpoint_options_read(const struct muster_checkpoint_options *given, struct muster_checkpoint_options *out);

/* muster_checkpoint_save() on any disk. watch: NULL for none. */
int checkpoint_save_watched(const struct snapshot_io *io, struct muster_group *group, const char *folder, int64_t step,
                            const struct muster_checkpoint_state *state,
                            const struct muster_checkpoint_options *options, const struct checkpoint_watch *watch);

#endif
