/* What lies in a folder of snapshots, and opening it. For snapshots, and for who looks at them from outside of a job.
 */
#ifndef TRAIN_SNAPSHOT_FOLDER_H
#define TRAIN_SNAPSHOT_FOLDER_H

#include "train/state/snapshot_files.h"
#include "train/state/snapshot_manifest.h"

/* Lists the files (again). */
int snapshot_folder_list(struct snapshot_folder *folder);

/* Reads and checks the manifest of `step`. MUSTER_ENOENT: there is none. */
int snapshot_read_manifest(const struct snapshot_folder *folder, int64_t step, struct snapshot_manifest *out);

/* Opens the manifest's data file, whose size must be the stated one. MUSTER_ECORRUPT. */
int snapshot_open_data(const struct snapshot_folder *folder, const struct snapshot_manifest *manifest, int *out_file);

/* The same, having read all of it and checked its checksum. */
int snapshot_open_checked(const struct snapshot_folder *folder, const struct snapshot_manifest *manifest,
                          int *out_file);

#endif
