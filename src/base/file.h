/* Whole files that come into sight at once, all of the bytes through a descriptor, and where temporary files go.
 *
 * Writing takes no memory and is async-signal-safe: a worker that crashes writes its record by it. Errors are numbers
 * of errno.h; their sentences are the callers'. Snapshots (train/state/snapshot_save.c) write by pieces, through a
 * table of system calls. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* 0, or why not all has been written. A descriptor that does not block and takes nothing is waited for, `patience_ms`
 * at a time (-1: for ever), then ETIMEDOUT. */
int file_write_all(int fd, const void *bytes, size_t count, int patience_ms);

/* What becomes of a file that has the name already. */
enum file_name {
    FILE_TAKES_NAME, /* its name goes to the new one: a reader meets the old file or the new one, whole */
    FILE_IS_NEW      /* it stays as it is, whoever has made it and when: publishing fails with EEXIST */
};

/* A file that is being written. Nobody can guess its name: it has none until it is published, or, where the file system
 * has no such files, PATH.<16 random digits>.tmp, which a killed process leaves behind. It is large: where a stack may
 * be small, as that of a signal handler, it lies elsewhere. */
struct file_draft {
    int fd;              /* the caller writes here, and leaves it open */
    const char *path;    /* the caller's; it outlives the draft */
    char name[PATH_MAX]; /* "": none */
};

/* Begins the file that will be `path`, with mode 0666 less the umask, in the folder of `path`. 0, or an error. */
int file_draft_open(struct file_draft *draft, const char *path);

/* Ends it: with `error_number` 0, and if it can be, it is published; otherwise nothing is left of it, and `path` is as
 * it was. With `syncs` it is there after a crash of the machine, too, once this has returned 0; as far as the file
 * system syncs folders. 0, or `error_number`, or why it is not published. */
int file_draft_close(struct file_draft *draft, int error_number, enum file_name name, bool syncs);

/* All three: the file `path` holds these bytes, or is as it was. The draft lies on the stack. */
int file_publish(const char *path, const void *bytes, size_t count, enum file_name name, bool syncs);

/* The first folder that can be written to, of the places where Python's tempfile looks, in its order: $TMPDIR, $TEMP,
 * $TMP, /tmp, /var/tmp, /usr/tmp; else ".". Borrowed from the environment. */
const char *file_temporary_folder(void);

#endif
