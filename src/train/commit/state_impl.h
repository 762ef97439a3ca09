/* What the files of a state share: state.c keeps and commits it, state_checkpoint.c saves it while training goes on. */
#ifndef TRAIN_STATE_IMPL_H
#define TRAIN_STATE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/state.h>

#include "train/background/background.h"
#include "train/commit/copies.h"
#include "train/state/snapshot_parts.h"

struct muster_state {
    struct copies *copies;
    struct muster_optimizer *optimizer;
    size_t *block_at; /* bytes from the beginning of a copy */
    size_t block_count;
    size_t bytes; /* of a copy */
    uint64_t description;
    struct background *background;  /* NULL: no checkpoint was started */
    const struct snapshot_io *disk; /* for those; NULL: the system's */
};

#endif
