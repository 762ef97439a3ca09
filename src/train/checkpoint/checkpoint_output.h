/* A file of a checkpoint that is being written, and the folder it lies in. */
#ifndef TRAIN_CHECKPOINT_OUTPUT_H
#define TRAIN_CHECKPOINT_OUTPUT_H

#include <stddef.h>
#include <stdint.h>

#include "train/checkpoint/checkpoint_impl.h"

struct checkpoint_output {
    const struct snapshot_folder *folder;
    char name[CHECKPOINT_NAME_MAX];
    int file;
    uint64_t bytes;
};

/* The file of this rank and kind in the save. Each success is followed by checkpoint_output_finish(). */
int checkpoint_output_create(struct checkpoint_output *out, const struct checkpoint_save *save,
                             enum checkpoint_kind kind);
int checkpoint_output_add(struct checkpoint_output *out, const void *bytes, size_t count);
/* Syncs and closes; with `code`, a failure of before, only closes. */
int checkpoint_output_finish(struct checkpoint_output *out, int code);

/* All names are on the disk when it succeeds. */
int checkpoint_sync_folder(const struct snapshot_folder *folder);

/* The folder of the save, which is made if it is missing. */
int checkpoint_save_open_folder(struct checkpoint_save *save);

#endif
