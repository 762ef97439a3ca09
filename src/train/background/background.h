/* Checkpoints in the background: a thread saves the committed state while training goes on. For muster/fsdp.h and
 * muster/state.h, which say what there is to save.
 *
 * Each rank has such a thread, and the threads have a group of their own: what they say to each other never waits for a
 * step, and no step for them. Which ranks save is decided in the training's group, by a call of all ranks: they save
 * all, or none does. So the calls of the threads' group are the same on all ranks, in the same order.
 *
 * A rank's thread reads committed memory that this rank alone writes. So who waits for whom is a matter of one process:
 * its optimizer, which wants to write into the copy that is read, and its thread. Nothing of that is in the memory that
 * outlives the process: a rank that is started again finds no copy in use.
 *
 *   RUNNING    a save is under way
 *   READING    of it, the thread still reads the copy that was committed when it began
 *
 * READING implies RUNNING; it ends when the state has been copied or handed to the kernel, or when the save fails. */
#ifndef TRAIN_BACKGROUND_H
#define TRAIN_BACKGROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/checkpoint.h>
#include <muster/group.h>

#include "train/background/frozen_state.h"
#include "train/state/snapshot_io.h"

struct background;

/* A save that falls due. All is borrowed for the call. */
struct background_request {
    const char *folder;
    int64_t step;
    const void *copy; /* the committed one, which is read */
    struct muster_background_options options;
    int (*freeze)(void *context,
                  struct frozen_state *out); /* the state, as it is now; not called for what is skipped */
    void *context;
};

/* The options that a program of any version gives, and the folder, checked: what can be known to be wrong before the
 * ranks meet. MUSTER_EINVAL, MUSTER_EUNSUPPORTED. */
int background_request_read(struct background_request *request, const char *folder,
                            const struct muster_background_options *given);

/* Collective over the training's group, the same in each call: starts the save, or skips it. *background is made by the
 * first call, when it is NULL, with `disk` to write to. A failure of one rank is everybody's, and the group goes on; of
 * the collectives it is the group's. */
int background_start(struct background **background, struct muster_group *group, const struct snapshot_io *disk,
                     const struct background_request *request, bool *out_started);

/* The other copy than `committed` is about to be written: waits until no thread reads it, or makes the save give up, as
 * the program has chosen. background: NULL for none. */
void background_before_write(struct background *background, const void *committed);

/* Until nothing is RUNNING: the result of the last save. NULL is accepted. */
int background_wait(struct background *background);

/* NULL is accepted. */
void background_numbers(struct background *background, struct muster_background_statistics *out);

/* Bytes of memory that copies are saved from. NULL is accepted. */
size_t background_bytes(const struct background *background);

/* Waits for a save that is under way, and ends the thread. has_failed: the training has, and waits for nobody. NULL is
 * accepted. */
void background_end(struct background *background, bool has_failed);

#endif
