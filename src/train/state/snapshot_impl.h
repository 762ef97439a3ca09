/* What saving and loading share: what lies in a folder of snapshots. */
#ifndef TRAIN_SNAPSHOT_IMPL_H
#define TRAIN_SNAPSHOT_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/sized.h"
#include "train/state/safetensors.h"
#include "train/state/snapshot_files.h"
#include "train/state/snapshot_folder.h"
#include "train/state/snapshot_io.h"
#include "train/state/snapshot_manifest.h"
#include "train/state/snapshot_parts.h"

#include <muster/snapshot.h>

/* Bytes that are checksummed and handed to the kernel at a time: they stay in the processor's cache between the two. */
enum { SNAPSHOT_PIECE_BYTES = 256 * 1024 };

/* Files of ours in one folder. */
#define SNAPSHOT_FILES_MAX ((size_t)65536)

/* Removes what saves that were cut off have left: temporary files, and data files that no manifest names. */
int snapshot_folder_clean(struct snapshot_folder *folder);

/* Removes snapshots of smaller steps than `step` beyond the newest `keep` - 1 of them that seem whole. Quiet: what
 * cannot be removed stays for the next time. */
void snapshot_folder_prune(struct snapshot_folder *folder, int64_t step, uint32_t keep);

int snapshot_tensors_read(const struct muster_tensor *given, size_t tensor_bytes, size_t count,
                          struct sized_array *out);
/* given: NULL for the defaults. */
int snapshot_options_read(const struct muster_snapshot_options *given, struct muster_snapshot_options *out);

/* The public calls, on any disk, with this version's structs. source: NULL if no tensor needs one. */
int snapshot_save_from(const struct snapshot_io *io, const char *path, int64_t step,
                       const struct muster_snapshot_state *state, const struct muster_snapshot_options *options,
                       const struct snapshot_source *source);
int snapshot_save(const struct snapshot_io *io, const char *path, int64_t step,
                  const struct muster_snapshot_state *state, const struct muster_snapshot_options *options);
int snapshot_find(const struct snapshot_io *io, const char *path, int64_t step_max, struct muster_snapshot_found *out);
/* What to load. */
struct snapshot_wanted {
    int64_t step;
    uint64_t id;  /* 0: whatever lies there */
    bool checked; /* the snapshot of this id was found whole a moment ago; all of it need not be read twice */
    void *stream; /* the caller's: see snapshot_reader_load() */
};
int snapshot_load(const struct snapshot_io *io, const char *path, const struct snapshot_wanted *wanted,
                  const struct muster_snapshot_state *state);

/* ---- snapshot_reader.c ---- */

/* An open safetensors file, and the manifest of a snapshot. */
struct snapshot_reader {
    struct snapshot_folder folder;
    struct snapshot_manifest manifest;
    struct safetensors table;
    int file;                     /* -1: none */
    char name[SNAPSHOT_NAME_MAX]; /* of a snapshot's data file */
    const char *file_name;        /* `name`, or that of a file without a manifest */
    bool has_checksums;
    uint64_t data_at; /* where the tensors begin in the file */
};

/* Opens a snapshot. Also after a failure the reader is to be handed to snapshot_reader_end(). */
int snapshot_reader_begin(struct snapshot_reader *reader, const struct snapshot_io *io, const char *path, int64_t step,
                          uint64_t id, bool checked);
/* The same for a file of any name, which has no checksums. */
int snapshot_reader_begin_file(struct snapshot_reader *reader, const char *path, const char *file_name);
void snapshot_reader_end(struct snapshot_reader *reader);

#endif
