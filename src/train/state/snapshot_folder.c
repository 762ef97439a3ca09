/* The folder of snapshots: listing it, reading manifests, and removing what is no longer wanted; see snapshot_impl.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/state/snapshot_impl.h"

/* ---- listing ---- */

struct listing {
    struct snapshot_name *files;
    size_t count;
    size_t capacity;
};

static int note_file(void *each_ctx, const char *name) {
    struct listing *listing = each_ctx;
    struct snapshot_name parsed = snapshot_name_parse(name);
    if (parsed.kind == SNAPSHOT_OTHER) {
        return 0;
    }
    if (listing->count == SNAPSHOT_FILES_MAX) {
        return -EFBIG;
    }
    if (listing->count == listing->capacity) {
        size_t capacity = listing->capacity ? 2 * listing->capacity : 16;
        struct snapshot_name *files = realloc(listing->files, capacity * sizeof *files);
        if (!files) {
            return -ENOMEM;
        }
        listing->files = files;
        listing->capacity = capacity;
    }
    listing->files[listing->count++] = parsed;
    return 0;
}

static int newest_first(const void *left, const void *right) {
    const struct snapshot_name *a = left, *b = right;
    if (a->step != b->step) {
        return a->step > b->step ? -1 : 1;
    }
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    return a->checksum < b->checksum ? -1 : a->checksum > b->checksum;
}

int snapshot_folder_list(struct snapshot_folder *folder) {
    struct listing listing = {.files = NULL};
    free(folder->files);
    folder->files = NULL;
    folder->file_count = 0;
    int result = folder->io->list(folder->io->ctx, folder->handle, note_file, &listing);
    if (result) {
        free(listing.files);
        return result == -ENOMEM ? status_fail(MUSTER_ENOMEM, "no memory to list %s", folder->path)
                                 : snapshot_io_fail(folder, "list", "", result);
    }
    if (listing.count > 0) {
        qsort(listing.files, listing.count, sizeof *listing.files, newest_first);
    }
    folder->files = listing.files;
    folder->file_count = listing.count;
    return 0;
}

/* ---- reading ---- */

static int read_whole(const struct snapshot_folder *folder, const char *name, int file, uint64_t count,
                      struct snapshot_manifest *out) {
    if (count > SNAPSHOT_MANIFEST_BYTES_MAX) {
        return status_fail(MUSTER_ECORRUPT, "%s/%s has %" PRIu64 " bytes: no manifest", folder->path, name, count);
    }
    uint8_t *bytes = malloc(count > 0 ? (size_t)count : 1);
    if (!bytes) {
        return status_fail(MUSTER_ENOMEM, "no memory to read %s/%s", folder->path, name);
    }
    int code = snapshot_read(folder, name, file, bytes, (size_t)count, 0);
    if (code == 0) {
        code = snapshot_manifest_decode(bytes, (size_t)count, out);
        code = code ? status_prefix(code, "%s/%s", folder->path, name) : 0;
    }
    free(bytes);
    return code;
}

int snapshot_read_manifest(const struct snapshot_folder *folder, int64_t step, struct snapshot_manifest *out) {
    char name[SNAPSHOT_NAME_MAX];
    int file = -1;
    uint64_t count = 0;
    snapshot_name_manifest(name, step);
    int code = snapshot_open_file(folder, name, MUSTER_ENOENT, &file, &count);
    if (code) {
        return code;
    }
    code = read_whole(folder, name, file, count, out);
    folder->io->close(folder->io->ctx, file);
    if (code == 0 && out->step != step) {
        code = status_fail(MUSTER_ECORRUPT, "%s/%s is the manifest of step %" PRId64, folder->path, name, out->step);
        snapshot_manifest_done(out);
    }
    return code;
}

int snapshot_open_data(const struct snapshot_folder *folder, const struct snapshot_manifest *manifest, int *out_file) {
    char name[SNAPSHOT_NAME_MAX];
    uint64_t count = 0;
    int file = -1;
    snapshot_name_data(name, manifest->step, manifest->checksum);
    int code = snapshot_open_file(folder, name, MUSTER_ECORRUPT, &file, &count);
    if (code) {
        return code;
    }
    if (count != manifest->bytes) {
        folder->io->close(folder->io->ctx, file);
        return status_fail(MUSTER_ECORRUPT, "%s/%s has %" PRIu64 " bytes instead of %" PRIu64, folder->path, name,
                           count, manifest->bytes);
    }
    *out_file = file;
    return 0;
}

/* ---- removing ---- */

static void remove_file(struct snapshot_folder *folder, const struct snapshot_name *file) {
    const struct snapshot_io *io = folder->io;
    char name[SNAPSHOT_NAME_MAX];
    switch (file->kind) {
    case SNAPSHOT_DATA:
        snapshot_name_data(name, file->step, file->checksum);
        break;
    case SNAPSHOT_MANIFEST:
        snapshot_name_manifest(name, file->step);
        break;
    default: /* both names: which of them it was does not matter */
        snapshot_name_temporary(name, file->step, SNAPSHOT_DATA);
        (void)io->remove(io->ctx, folder->handle, name);
        snapshot_name_temporary(name, file->step, SNAPSHOT_MANIFEST);
    }
    (void)io->remove(io->ctx, folder->handle, name);
}

/* Is it sure that no manifest needs this data file? A damaged manifest needs it as far as we know. */
static bool is_orphan(const struct snapshot_folder *folder, const struct snapshot_name *data) {
    struct snapshot_manifest manifest;
    int code = snapshot_read_manifest(folder, data->step, &manifest);
    if (code) {
        return code == MUSTER_ENOENT;
    }
    bool needed = manifest.checksum == data->checksum;
    snapshot_manifest_done(&manifest);
    return !needed;
}

int snapshot_folder_clean(struct snapshot_folder *folder) {
    const struct snapshot_io *io = folder->io;
    int code = snapshot_folder_list(folder);
    bool synced = false;
    for (size_t i = 0; i < folder->file_count && code == 0; i++) {
        const struct snapshot_name *file = &folder->files[i];
        if (file->kind != SNAPSHOT_TEMPORARY && (file->kind != SNAPSHOT_DATA || !is_orphan(folder, file))) {
            continue;
        }
        /* What is seen here may not be on the disk yet: a manifest that took another's place just before its writer
         * was killed. On the disk the old manifest may still be, and need the file that looks like an orphan. */
        int result = synced ? 0 : io->sync(io->ctx, folder->handle);
        if (result) {
            return snapshot_io_fail(folder, "sync", "", result);
        }
        synced = true;
        remove_file(folder, file);
    }
    return code;
}

/* As far as sizes and the manifest tell; contents are not read again. */
static bool seems_whole(const struct snapshot_folder *folder, int64_t step) {
    struct snapshot_manifest manifest;
    int file = -1;
    if (snapshot_read_manifest(folder, step, &manifest)) {
        return false;
    }
    bool whole = snapshot_open_data(folder, &manifest, &file) == 0;
    if (whole) {
        folder->io->close(folder->io->ctx, file);
    }
    snapshot_manifest_done(&manifest);
    return whole;
}

/* The smallest step that is to stay, or -1 when there are too few snapshots to remove any. */
static int64_t last_kept(const struct snapshot_folder *folder, int64_t step, uint32_t keep) {
    uint32_t kept = 1;
    if (keep <= kept) {
        return step;
    }
    for (size_t i = 0; i < folder->file_count; i++) {
        const struct snapshot_name *file = &folder->files[i];
        if (file->kind == SNAPSHOT_MANIFEST && file->step < step && seems_whole(folder, file->step) && ++kept == keep) {
            return file->step;
        }
    }
    return -1;
}

void snapshot_folder_prune(struct snapshot_folder *folder, int64_t step, uint32_t keep) {
    if (snapshot_folder_list(folder)) {
        return;
    }
    int64_t last = last_kept(folder, step, keep);
    /* Manifests first: a data file without one is an orphan, a manifest without data would look like damage. */
    for (int pass = 0; pass < 2; pass++) {
        enum snapshot_kind kind = pass == 0 ? SNAPSHOT_MANIFEST : SNAPSHOT_DATA;
        for (size_t i = 0; i < folder->file_count; i++) {
            if (folder->files[i].kind == kind && folder->files[i].step < last) {
                remove_file(folder, &folder->files[i]);
            }
        }
    }
    /* The same step's data of before it was saved again. */
    for (size_t i = 0; i < folder->file_count; i++) {
        if (folder->files[i].kind == SNAPSHOT_DATA && folder->files[i].step == step &&
            is_orphan(folder, &folder->files[i])) {
            remove_file(folder, &folder->files[i]);
        }
    }
}
