/* Muster's own checkpoints and snapshots as archives: the newest of a folder, or that of a record or manifest that is
 * named. See archive_impl.h; the files are read by train/checkpoint and train/state. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/archive/archive_impl.h"
#include "train/checkpoint/checkpoint_name.h"
#include "train/state/snapshot_folder.h"
#include "train/state/snapshot_io.h"

/* ---- values ---- */

static int add_value(struct archive *archive, const char *name, const json_t *value) {
    if (json_is_integer(value)) {
        return archive_add_integer(archive, name, json_integer_value(value));
    }
    if (json_is_real(value)) {
        return archive_add_real(archive, name, json_real_value(value));
    }
    if (json_is_string(value)) {
        return archive_add_text(archive, name, (const uint8_t *)json_string_value(value), json_string_length(value));
    }
    return archive_add_left_out(archive, name, "neither a number nor a text");
}

static int add_values(struct archive *archive, json_t *tree) {
    json_t *value;
    const char *name;
    int code = 0;
    json_object_foreach(json_object_get(tree, "values"), name, value) {
        code = code ? code : add_value(archive, name, value);
    }
    return code;
}

/* ---- checkpoints ---- */

static int read_checkpoint(struct archive *archive, const char *folder, int64_t step) {
    archive->kind = "checkpoint";
    int code = checkpoint_view_open(folder, step, &archive->view);
    if (code) {
        return code;
    }
    const struct checkpoint_map *map = checkpoint_view_map(archive->view);
    archive->step = map->step;
    for (size_t i = 0; i < map->tensor_count && code == 0; i++) {
        const struct checkpoint_tensor *tensor = &map->tensors[i];
        const struct archive_type type = {tensor->type, (uint32_t)tensor->element_bytes,
                                          muster_type_name(tensor->type)};
        code = archive_add_tensor(archive, tensor->name, type, tensor->dim_count, tensor->shape);
    }
    return code ? code : add_values(archive, map->tree);
}

int muster_view_read(struct archive *archive, size_t tensor, uint64_t first, uint64_t count, void *out) {
    return checkpoint_view_read(archive->view, (uint32_t)tensor, first, count, out);
}

/* ---- snapshots ---- */

static int open_manifest(struct archive *archive, const char *path, int64_t step) {
    struct snapshot_folder folder;
    int file = -1;
    int code = snapshot_folder_open(&folder, &snapshot_io_system, path, false);
    code = code ? code : snapshot_read_manifest(&folder, step, archive->manifest);
    code = code ? code : snapshot_open_data(&folder, archive->manifest, &file); /* its size is right */
    if (file >= 0) {
        folder.io->close(folder.io->ctx, file);
    }
    snapshot_folder_close(&folder);
    return code;
}

static int read_snapshot(struct archive *archive, const char *folder, int64_t step) {
    char name[SNAPSHOT_NAME_MAX];
    archive->kind = "snapshot";
    archive->step = step;
    archive->manifest = calloc(1, sizeof *archive->manifest);
    int code = archive->manifest ? open_manifest(archive, folder, step)
                                 : status_fail(MUSTER_ENOMEM, "no memory to read a snapshot");
    if (code) {
        return code;
    }
    snapshot_name_data(name, step, archive->manifest->checksum);
    char *path = str_format_new("%s/%s", folder, name);
    code = path ? safetensors_file_read(archive, path) : status_fail(MUSTER_ENOMEM, "no memory for a name");
    free(path);
    return code ? code : add_values(archive, archive->manifest->tree);
}

/* The checksum of what was read of a tensor so far; NULL: no memory. */
static struct checksum *checksum_so_far(struct archive_tensor *tensor) {
    if (!tensor->checksum) {
        tensor->checksum = aligned_alloc(_Alignof(struct checksum), sizeof *tensor->checksum);
    }
    if (tensor->checksum && tensor->element == 0) {
        checksum_init(tensor->checksum);
    }
    return tensor->checksum;
}

int muster_snapshot_check(struct archive *archive, size_t number, const void *bytes, uint64_t count) {
    struct archive_tensor *tensor = &archive->tensors[number];
    struct checksum *checksum = checksum_so_far(tensor);
    uint64_t wanted = 0;
    if (!checksum) {
        return status_fail(MUSTER_ENOMEM, "no memory for a checksum");
    }
    checksum_add(checksum, bytes, (size_t)count);
    if ((tensor->element * tensor->element_bytes) + count < tensor->bytes) {
        return 0;
    }
    bool is_whole =
        snapshot_manifest_tensor(archive->manifest, tensor->name, &wanted) && checksum_value(checksum) == wanted;
    free(checksum);
    tensor->checksum = NULL;
    return is_whole ? 0
                    : status_fail(MUSTER_ECORRUPT, "%s is damaged: a checksum does not fit",
                                  archive->files[archive->file_count - 1].path);
}

/* ---- which ---- */

struct listing {
    archive_saved_fn *each;
    void *context;
};

static int list_checkpoint(void *context, const struct checkpoint_listed *listed) {
    const struct listing *listing = context;
    const struct archive_saved saved = {.step = listed->step,
                                        .code = listed->code,
                                        .part_count = listed->code ? 0 : listed->record.part_count,
                                        .bytes = listed->code ? 0 : listed->record.bytes};
    return listing->each(listing->context, &saved);
}

static int list_snapshot(const struct listing *listing, const struct snapshot_folder *folder, int64_t step,
                         bool has_manifest) {
    struct archive_saved saved = {.step = step, .is_snapshot = true, .code = MUSTER_ENOENT};
    if (has_manifest) {
        struct snapshot_manifest manifest = {.step = step};
        saved.code = snapshot_read_manifest(folder, step, &manifest);
        saved.bytes = saved.code ? 0 : manifest.bytes;
        if (saved.code == 0) {
            snapshot_manifest_done(&manifest);
        }
    }
    return saved.code == MUSTER_ENOMEM ? saved.code : listing->each(listing->context, &saved);
}

/* Files of a step stand together, newest step first. */
static int list_snapshots(const struct listing *listing, const char *path) {
    struct snapshot_folder folder;
    int code = snapshot_folder_open(&folder, &snapshot_io_system, path, false);
    code = code ? code : snapshot_folder_list(&folder);
    for (size_t i = 0, next; i < folder.file_count && code == 0; i = next) {
        bool has_manifest = false;
        for (next = i; next < folder.file_count && folder.files[next].step == folder.files[i].step; next++) {
            has_manifest = has_manifest || folder.files[next].kind == SNAPSHOT_MANIFEST;
        }
        code = list_snapshot(listing, &folder, folder.files[i].step, has_manifest);
    }
    snapshot_folder_close(&folder);
    return code;
}

int archive_each_saved(const char *folder, archive_saved_fn *each, void *context) {
    struct listing listing = {each, context};
    int code = checkpoint_view_each(folder, list_checkpoint, &listing);
    return code ? code : list_snapshots(&listing, folder);
}

/* The newest that can be read, and whether there is any; step -1: none. */
struct newest {
    struct archive *archive;
    int64_t step;
    bool is_snapshot, has_any;
};

static int note_newest(void *context, const struct archive_saved *saved) {
    struct newest *newest = context;
    newest->has_any = true;
    if (saved->code == 0 && saved->step > newest->step) {
        newest->step = saved->step;
        newest->is_snapshot = saved->is_snapshot;
    }
    return 0;
}

static int note_passed_over(void *context, const struct archive_saved *saved) {
    const struct newest *newest = context;
    struct buf *notes = &newest->archive->passed_over;
    if (saved->code == 0 || saved->step <= newest->step) {
        return 0;
    }
    return buf_printf(notes, "%sstep %" PRId64 ": %s", notes->len > 0 ? "\n" : "", saved->step,
                      saved->code == MUSTER_ENOENT ? "its save was cut off" : muster_detail());
}

int muster_folder_read(struct archive *archive, const char *folder) {
    struct newest newest = {.archive = archive, .step = -1};
    int code = archive_each_saved(folder, note_newest, &newest);
    if (code || !newest.has_any) {
        return code ? code : MUSTER_ENOENT;
    }
    code = archive_each_saved(folder, note_passed_over, &newest);
    code = code || archive->passed_over.len == 0 ? code : buf_append(&archive->passed_over, "", 1);
    if (code == 0 && newest.step < 0) {
        code = status_fail(MUSTER_ECORRUPT, "nothing in %s can be read:\n%s", folder,
                           (const char *)buf_bytes(&archive->passed_over));
    }
    return code                 ? code
           : newest.is_snapshot ? read_snapshot(archive, folder, newest.step)
                                : read_checkpoint(archive, folder, newest.step);
}

bool muster_file_is(const char *name) {
    return checkpoint_name_parse(name).kind == CHECKPOINT_RECORD || snapshot_name_parse(name).kind == SNAPSHOT_MANIFEST;
}

int muster_file_read(struct archive *archive, const char *folder, const char *name) {
    struct checkpoint_name record = checkpoint_name_parse(name);
    return record.kind == CHECKPOINT_RECORD ? read_checkpoint(archive, folder, record.step)
                                            : read_snapshot(archive, folder, snapshot_name_parse(name).step);
}

/* ---- all of it ---- */

/* Each part by itself, so that all that is damaged is told. */
static int verify_parts(struct archive *archive, archive_verify_fn *tell, void *context) {
    const struct checkpoint_map *map = checkpoint_view_map(archive->view);
    int code = 0;
    for (uint32_t part = 0; part < map->part_count && code == 0; part++) {
        code = checkpoint_view_verify(archive->view, part);
        code = code == MUSTER_ECORRUPT ? tell(context, muster_detail(), 0)
               : code                  ? code
                                       : tell(context, NULL, map->parts[part].bytes);
    }
    return code;
}

/* The checksum of all bytes of the file that was added last, as far as they can be read. */
static int checksum_file(struct archive *archive, uint8_t *block, archive_verify_fn *tell, void *context,
                         uint64_t *out) {
    uint32_t file = (uint32_t)archive->file_count - 1;
    struct checksum checksum;
    checksum_init(&checksum);
    for (uint64_t at = 0, count = 0; at < archive->manifest->bytes; at += count) {
        uint64_t left = archive->manifest->bytes - at;
        count = left < ARCHIVE_BLOCK_BYTES ? left : ARCHIVE_BLOCK_BYTES;
        int code = archive_read(archive, file, at, block, count);
        code = code ? code : tell(context, NULL, count);
        if (code) {
            return code;
        }
        checksum_add(&checksum, block, (size_t)count);
    }
    *out = checksum_value(&checksum);
    return 0;
}

/* A snapshot's file has a checksum of all of its bytes, the header among them. */
static int verify_file(struct archive *archive, archive_verify_fn *tell, void *context, bool *out_whole) {
    uint8_t *block = malloc(ARCHIVE_BLOCK_BYTES);
    uint64_t checksum = 0;
    int code = block ? checksum_file(archive, block, tell, context, &checksum)
                     : status_fail(MUSTER_ENOMEM, "no memory to read a snapshot");
    free(block);
    if (code == 0 && checksum != archive->manifest->checksum) {
        code = status_fail(MUSTER_ECORRUPT, "%s is damaged: its checksum does not fit",
                           archive->files[archive->file_count - 1].path);
    }
    *out_whole = code == 0;
    return code == MUSTER_ECORRUPT ? tell(context, muster_detail(), 0) : code;
}

int muster_files_verify(struct archive *archive, archive_verify_fn *tell, void *context, bool *out_done) {
    *out_done = true;
    return archive->view ? verify_parts(archive, tell, context) : verify_file(archive, tell, context, out_done);
}

void muster_files_done(struct archive *archive) {
    checkpoint_view_close(archive->view);
    if (archive->manifest) {
        snapshot_manifest_done(archive->manifest);
        free(archive->manifest);
    }
}
