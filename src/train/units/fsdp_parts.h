/* What a rank has of an fsdp's state, as a checkpoint describes it. */
#ifndef TRAIN_FSDP_PARTS_H
#define TRAIN_FSDP_PARTS_H

#include <stdlib.h>

#include <muster/checkpoint.h>

#include "train/units/fsdp_snapshot.h"

struct fsdp_parts {
    struct muster_tensor *tensors;
    struct muster_checkpoint_chunk *chunks;
    struct muster_checkpoint_state state;
};

/* lists: with this rank's chunks. What the lists point to is the table's, the fsdp's and the program's. Also after a
 * failure the parts are to be handed to fsdp_parts_done(). MUSTER_ENOMEM. */
int fsdp_parts_init(struct fsdp_parts *parts, const struct fsdp_table *table, bool lists);
static inline void fsdp_parts_done(struct fsdp_parts *parts) {
    free(parts->tensors);
    free(parts->chunks);
}

/* Does this rank save what it has? With hybrid sharding every host has everything, and one of them saves. */
bool fsdp_parts_are_saved_by(const struct mesh *mesh);

#endif
