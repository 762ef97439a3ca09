/* Other names for the tensors that are loaded. Pure. */
#ifndef TRAIN_CHECKPOINT_RENAME_H
#define TRAIN_CHECKPOINT_RENAME_H

#include <stddef.h>
#include <stdint.h>

#include <muster/snapshot.h>

/* "ours=theirs", each with one * at most; see muster_checkpoint_load_options. Borrowed. */
struct checkpoint_renames {
    const char *const *items;
    size_t count;
};

/* MUSTER_EINVAL names the one that is wrong. */
int checkpoint_renames_check(const struct checkpoint_renames *renames);

/* Adds them to a hash of what all ranks must agree upon. */
uint64_t checkpoint_renames_hash(const struct checkpoint_renames *renames, uint64_t hash);

/* What the checkpoint calls the tensor that the program calls `name`, of renames that were checked. MUSTER_EINVAL: that
 * is too long. */
int checkpoint_rename(const struct checkpoint_renames *renames, const char *name, char out[MUSTER_NAME_MAX]);

#endif
