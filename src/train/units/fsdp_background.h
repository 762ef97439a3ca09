/* Checkpoints in the background: a thread saves the committed state while training goes on.
 *
 * Each rank has such a thread, and the threads have a group of their own: what they say to each other never waits for a
 * step, and no step for them. Which ranks save is decided in the training's group, by a call of all ranks: they save
 * all, or none does. So the calls of the threads' group are the same on all ranks, in the same order.
 *
 * A rank's thread reads only what this rank writes. So who waits for whom is a matter of one process: its optimizer,
 * which wants to write into the copy that is read, and its thread. Nothing of that is in the memory that outlives the
 * process: a rank that is started again finds no copy in use.
 *
 *   RUNNING    a save is under way
 *   READING    of it, the thread still reads the copy of step `step`
 *
 * READING implies RUNNING; it ends when the state has been copied or handed to the kernel, or when the save fails. */
#ifndef TRAIN_FSDP_BACKGROUND_H
#define TRAIN_FSDP_BACKGROUND_H

#include "train/state/snapshot_io.h"
#include "train/units/fsdp_impl.h"

/* The optimizer is about to write into the copy that is not committed: waits until no thread reads it, or makes the
 * save give up, as the program has chosen. */
void fsdp_background_before_write(struct muster_fsdp *fsdp);

/* Waits for a save that is under way, and ends the thread. */
void fsdp_background_end(struct muster_fsdp *fsdp);

/* Bytes of memory that copies are saved from. */
size_t fsdp_background_bytes(const struct muster_fsdp *fsdp);

#endif
