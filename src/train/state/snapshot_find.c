/* Checking snapshots and finding the newest whole one; see muster/snapshot.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/state/checksum.h"
#include "train/state/snapshot_impl.h"

/* ---- checking ---- */

static int check_data(const struct snapshot_folder *folder, const struct snapshot_manifest *manifest, int file,
                      uint8_t *piece) {
    char name[SNAPSHOT_NAME_MAX];
    struct checksum checksum;
    checksum_init(&checksum);
    snapshot_name_data(name, manifest->step, manifest->checksum);
    for (uint64_t at = 0; at < manifest->bytes;) {
        uint64_t left = manifest->bytes - at;
        size_t count = left < SNAPSHOT_PIECE_BYTES ? (size_t)left : SNAPSHOT_PIECE_BYTES;
        int code = snapshot_read(folder, name, file, piece, count, at);
        if (code) {
            return code;
        }
        checksum_add(&checksum, piece, count);
        at += count;
    }
    if (checksum_value(&checksum) != manifest->checksum) {
        return status_fail(MUSTER_ECORRUPT, "%s/%s is damaged: its checksum does not fit", folder->path, name);
    }
    return 0;
}

int snapshot_open_checked(const struct snapshot_folder *folder, const struct snapshot_manifest *manifest,
                          int *out_file) {
    int file = -1;
    int code = snapshot_open_data(folder, manifest, &file);
    if (code) {
        return code;
    }
    uint8_t *piece = malloc(SNAPSHOT_PIECE_BYTES);
    code =
        piece ? check_data(folder, manifest, file, piece) : status_fail(MUSTER_ENOMEM, "no memory to read a snapshot");
    free(piece);
    if (code) {
        folder->io->close(folder->io->ctx, file);
        return code;
    }
    *out_file = file;
    return 0;
}

/* ---- finding ---- */

/* 0 and *out_id when the snapshot is whole. */
static int check_step(const struct snapshot_folder *folder, int64_t step, uint64_t *out_id) {
    struct snapshot_manifest manifest;
    int file = -1;
    int code = snapshot_read_manifest(folder, step, &manifest);
    if (code) {
        return code;
    }
    *out_id = manifest.id;
    code = snapshot_open_checked(folder, &manifest, &file);
    if (code == 0) {
        folder->io->close(folder->io->ctx, file);
    }
    snapshot_manifest_done(&manifest);
    return code;
}

static void pass_over(struct muster_snapshot_found *found, int64_t step, const char *why) {
    size_t used = strlen(found->note);
    found->passed_over++;
    (void)str_format(found->note + used, sizeof found->note - used, "%sstep %" PRId64 ": %s", used ? "\n" : "", step,
                     why);
}

static bool has_manifest(const struct snapshot_folder *folder, int64_t step) {
    for (size_t i = 0; i < folder->file_count; i++) {
        if (folder->files[i].step == step && folder->files[i].kind == SNAPSHOT_MANIFEST) {
            return true;
        }
    }
    return false;
}

/* Steps from the newest on; their files stand together, newest step first. */
static int find_in(const struct snapshot_folder *folder, int64_t step_max, struct muster_snapshot_found *found,
                   bool *out_any_complete) {
    *out_any_complete = false;
    for (size_t i = 0; i < folder->file_count; i++) {
        int64_t step = folder->files[i].step;
        if (step > step_max || (i > 0 && folder->files[i - 1].step == step)) {
            continue;
        }
        if (!has_manifest(folder, step)) {
            pass_over(found, step, "its save was cut off");
            continue;
        }
        *out_any_complete = true;
        int code = check_step(folder, step, &found->id);
        if (code == 0) {
            found->step = step;
            return 0;
        }
        if (code != MUSTER_ECORRUPT && code != MUSTER_ENOENT) {
            return status_prefix(code, "step %" PRId64, step);
        }
        pass_over(found, step, muster_detail());
    }
    return MUSTER_ENOENT;
}

int snapshot_find(const struct snapshot_io *io, const char *path, int64_t step_max, struct muster_snapshot_found *out) {
    struct snapshot_folder folder;
    struct muster_snapshot_found found = {.step = -1};
    bool any_complete = false;
    int code = snapshot_folder_open(&folder, io, path, false);
    if (code) {
        return code;
    }
    code = snapshot_folder_list(&folder);
    if (code == 0) {
        code = find_in(&folder, step_max, &found, &any_complete);
        if (code == MUSTER_ENOENT) {
            code = any_complete ? status_fail(MUSTER_ECORRUPT, "no snapshot in %s is whole:\n%s", path, found.note)
                                : status_fail(MUSTER_ENOENT, "no snapshot in %s", path);
        }
    }
    snapshot_folder_close(&folder);
    if (code == 0) {
        *out = found;
    }
    return code;
}

int muster_snapshot_find_sized(const char *folder, int64_t step_max, struct muster_snapshot_found *out,
                               size_t out_bytes) {
    struct muster_snapshot_found found;
    if (!folder || !out) {
        return status_fail_null("muster_snapshot_find", folder ? "out" : "folder");
    }
    int code = snapshot_find(&snapshot_io_system, folder, step_max, &found);
    if (code == 0) {
        sized_write(out, out_bytes, &found, sizeof found);
    }
    return code;
}
