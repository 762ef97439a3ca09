/* See snapshot_files.h. */
#include "train/state/snapshot_files.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/status.h"

/* The disk is set to work whenever so many bytes more have been written. */
#define START_SYNC_BYTES ((uint64_t)8 << 20)

int snapshot_io_fail(const struct snapshot_folder *folder, const char *what, const char *name, int64_t minus_errno) {
    assert(minus_errno < 0);
    return status_fail_errno((int)-minus_errno, "%s %s%s%s", what, folder->path, name[0] ? "/" : "", name);
}

int snapshot_folder_open(struct snapshot_folder *folder, const struct snapshot_io *io, const char *path, bool make) {
    *folder = (struct snapshot_folder){.io = io, .path = path, .handle = -1};
    if (!path || path[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "no folder for snapshots is named");
    }
    int handle = io->open_folder(io->ctx, path, make);
    if (handle < 0) {
        int code = snapshot_io_fail(folder, make ? "make or open the folder" : "open the folder", "", handle);
        return handle == -ENOENT ? MUSTER_ENOENT : code;
    }
    folder->handle = handle;
    return 0;
}

void snapshot_folder_close(struct snapshot_folder *folder) {
    if (folder->handle >= 0) {
        folder->io->close(folder->io->ctx, folder->handle);
    }
    free(folder->files);
    *folder = (struct snapshot_folder){.handle = -1};
}

/* ---- reading ---- */

/* Is it the file that is at fault, rather than this process or its rights? */
static bool is_damage(int64_t minus_errno) {
    return minus_errno == -EIO || minus_errno == -EUCLEAN || minus_errno == -EINVAL || minus_errno == -ENODATA;
}

int snapshot_read(const struct snapshot_folder *folder, const char *name, int file, void *bytes, size_t count,
                  uint64_t offset) {
    const struct snapshot_io *io = folder->io;
    for (size_t have = 0; have < count;) {
        int64_t got = io->read(io->ctx, file, (uint8_t *)bytes + have, count - have, offset + have);
        if (got < 0) {
            int code = snapshot_io_fail(folder, "read", name, got);
            return is_damage(got) ? MUSTER_ECORRUPT : code;
        }
        if (got == 0) {
            return status_fail(MUSTER_ECORRUPT, "%s/%s ends at byte %" PRIu64, folder->path, name, offset + have);
        }
        have += (size_t)got;
    }
    return 0;
}

int snapshot_open_file(const struct snapshot_folder *folder, const char *name, int missing, int *out_file,
                       uint64_t *out_bytes) {
    const struct snapshot_io *io = folder->io;
    int file = io->open(io->ctx, folder->handle, name);
    if (file < 0) {
        int code = snapshot_io_fail(folder, "open", name, file);
        return file == -ENOENT ? missing : is_damage(file) ? MUSTER_ECORRUPT : code;
    }
    int64_t bytes = io->size(io->ctx, file);
    if (bytes < 0) {
        int code = snapshot_io_fail(folder, "ask for the size of", name, bytes);
        io->close(io->ctx, file);
        return code;
    }
    *out_file = file;
    *out_bytes = (uint64_t)bytes;
    return 0;
}

/* ---- writing ---- */

int snapshot_write(const struct snapshot_folder *folder, const char *name, int file, const void *bytes, size_t count,
                   uint64_t *written) {
    const struct snapshot_io *io = folder->io;
    for (size_t done = 0; done < count;) {
        int64_t put = io->write(io->ctx, file, (const uint8_t *)bytes + done, count - done);
        if (put <= 0) { /* 0 is no answer that a file gives; it must not loop */
            return snapshot_io_fail(folder, "write", name, put < 0 ? put : -EIO);
        }
        done += (size_t)put;
    }
    uint64_t before = *written;
    *written += count;
    if (*written / START_SYNC_BYTES > before / START_SYNC_BYTES) {
        io->start_sync(io->ctx, file, before / START_SYNC_BYTES * START_SYNC_BYTES, START_SYNC_BYTES);
    }
    return 0;
}
