/* Files of a folder, through the table of system calls, with sentences for what fails. For snapshots, and for the rooms
 * beside this one that keep files of their own. */
#ifndef TRAIN_SNAPSHOT_FILES_H
#define TRAIN_SNAPSHOT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/state/snapshot_io.h"

struct snapshot_name;

/* An open folder and what lies in it. */
struct snapshot_folder {
    const struct snapshot_io *io;
    const char *path; /* borrowed; for messages */
    int handle;
    struct snapshot_name *files; /* snapshots' alone; newest step first */
    size_t file_count;
};

/* MUSTER_ENOENT: no such folder (make: the one it lies in). */
int snapshot_folder_open(struct snapshot_folder *folder, const struct snapshot_io *io, const char *path, bool make);
void snapshot_folder_close(struct snapshot_folder *folder);

/* A failed call on a file of the folder, as a status with its sentence: "open DIR/NAME: reason". */
int snapshot_io_fail(const struct snapshot_folder *folder, const char *what, const char *name, int64_t minus_errno);

/* Opens a file for reading; `missing` is the code when it is not there. */
int snapshot_open_file(const struct snapshot_folder *folder, const char *name, int missing, int *out_file,
                       uint64_t *out_bytes);

/* Reads exactly `count` bytes. MUSTER_ECORRUPT: they are not there or cannot be read. */
int snapshot_read(const struct snapshot_folder *folder, const char *name, int file, void *bytes, size_t count,
                  uint64_t offset);

/* Appends all bytes to a file that is being written, and sets the disk to work now and then: *written, the file's bytes
 * so far, grows by `count`. */
int snapshot_write(const struct snapshot_folder *folder, const char *name, int file, const void *bytes, size_t count,
                   uint64_t *written);

#endif
