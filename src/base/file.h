/* Whole files in the place of others, all of the bytes through a descriptor, and where temporary files go.
 *
 * Writing takes no memory and is async-signal-safe: a worker that crashes writes its record by it. Errors are numbers
 * of errno.h; their sentences are the callers'. Snapshots (train/state/snapshot_save.c) write by pieces, through a
 * table of system calls. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* 0, or why not all has been written. A descriptor that does not block and takes nothing is waited for, `patience_ms`
 * at a time (-1: for ever), then ETIMEDOUT. */
int file_write_all(int fd, const void *bytes, size_t count, int patience_ms);

/* Writes the new file `aside`, open as `fd`, closes it, and gives it the name `path`, in the same folder: a reader of
 * `path` meets the old file or the new one, whole. With `syncs` after a crash of the machine, too, and when it has
 * returned 0, the new one; as far as the file system syncs folders. 0, or an error; then `aside` is removed and `path`
 * as it was. */
int file_replace(int fd, const char *aside, const char *path, const void *bytes, size_t count, bool syncs);

/* The first folder that can be written to, of the places where Python's tempfile looks, in its order: $TMPDIR, $TEMP,
 * $TMP, /tmp, /var/tmp, /usr/tmp; else ".". Borrowed from the environment. */
const char *file_temporary_folder(void);

#endif
