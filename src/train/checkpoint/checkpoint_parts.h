/* For the program: a checkpoint as ranks would have saved it who all have the whole state, by one process that has none
 * of it: the state comes from a source, in pieces. */
#ifndef TRAIN_CHECKPOINT_PARTS_H
#define TRAIN_CHECKPOINT_PARTS_H

#include <stdint.h>

#include "train/state/snapshot_parts.h"

/* Saves `part_count` (1 to MUSTER_GROUP_SIZE_MAX) parts one after another, and in all other ways does what
 * muster_checkpoint_save() does. All tensors with elements have snapshot_from_source as data. Memory: the tables of the
 * state and of one part, and a few pieces of CHECKPOINT_WRITE_BYTES. Errors: those of muster_checkpoint_save(), and the
 * source's. */
int checkpoint_save_parts(const char *folder, int64_t step, const struct muster_snapshot_state *state,
                          uint32_t part_count, uint32_t keep, const struct snapshot_source *source);

#endif
