/* Copies of the committed state on peer hosts, for fsdp_keep.c: see fsdp_copies.c. */
#ifndef TRAIN_FSDP_COPIES_H
#define TRAIN_FSDP_COPIES_H

#include "train/units/fsdp_snapshot.h"

/* When the committed memory is open. every: steps between two copies; 0: none are made. *moved_step: the step that is
 * to come from memory of another world and to be committed, or COMMIT_NOTHING. If there is no such and none is
 * committed, but a copy of one, then that is to come. Collective. A lack of memory is agreed on, and the group goes on.
 */
int fsdp_copies_open(const struct fsdp_table *table, const char *name, uint64_t every, int64_t *moved_step);

/* That copy comes into the fsdp's memory and what the table describes, if one is to. Collective. */
int fsdp_copies_fetch(const struct fsdp_table *table);

/* When what was found is committed again: copies of other steps go, and the thread may begin. Collective. */
int fsdp_copies_settle(struct muster_fsdp *fsdp);

/* `step` has been committed. Collective where a copy falls due. */
int fsdp_copies_commit(const struct fsdp_table *table, int64_t step);

/* The optimizer is about to write into the copy that is not committed: waits until the thread does not read it. */
void fsdp_copies_before_write(struct muster_fsdp *fsdp);

void fsdp_copies_end(struct muster_fsdp *fsdp);
const char *fsdp_copies_note(const struct muster_fsdp *fsdp);
size_t fsdp_copies_bytes(const struct muster_fsdp *fsdp);

#endif
