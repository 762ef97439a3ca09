/* What saving and loading by a group share. */
#ifndef TRAIN_CHECKPOINT_GROUP_IMPL_H
#define TRAIN_CHECKPOINT_GROUP_IMPL_H

#include <stdint.h>

#include "train/state/state_description.h"

#include <muster/checkpoint.h>

/* What a program of any version gives, as this version's structs. Strings and data stay borrowed. */
struct checkpoint_description {
    struct state_description state;
    struct state_chunk *chunks; /* owned */
    void *tensors;              /* owned, or NULL */
};
/* Also after a failure the description is to be handed to checkpoint_description_done(). MUSTER_EINVAL,
 * MUSTER_EUNSUPPORTED, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int checkpoint_description_read(const struct muster_checkpoint_state *given, struct checkpoint_description *out);
void checkpoint_description_done(struct checkpoint_description *description);

/* Collective: is the hash of what all must agree upon the same everywhere? MUSTER_EMISMATCH on every rank if not. */
int checkpoint_agree_on_call(struct muster_group *group, uint64_t hash);

#endif
