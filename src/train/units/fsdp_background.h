/* Checkpoints of a kept state while training goes on (train/background/background.h). */
#ifndef TRAIN_FSDP_BACKGROUND_H
#define TRAIN_FSDP_BACKGROUND_H

#include "train/background/background.h"
#include "train/units/fsdp_impl.h"

/* The optimizer is about to write into the copy that is not committed. */
void fsdp_background_before_write(struct muster_fsdp *fsdp);

/* Waits for a save that is under way, and ends the thread. */
void fsdp_background_end(struct muster_fsdp *fsdp);

#endif
