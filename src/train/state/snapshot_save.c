/* Saving: the data file aside, synced, renamed, the folder synced; then the manifest in the same way. Its name in the
 * folder is what makes the snapshot complete. Older ones are removed after that and not before. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/device/device_stage.h"
#include "train/state/checksum.h"
#include "train/state/safetensors.h"
#include "train/state/snapshot_impl.h"

#define MANIFEST_ROOM (SNAPSHOT_MANIFEST_BYTES_MAX + 1)
#define HEADER_ROOM (SAFETENSORS_HEADER_BYTES_MAX + SAFETENSORS_PREFIX_BYTES)

/* A save under way. */
struct save {
    struct snapshot_folder folder;
    int64_t step;
    const struct muster_snapshot_state *state;
    const struct snapshot_source *source;
    struct device_stage stage; /* that tensors are read through */
    struct safetensors table;
    uint64_t *tensor_checksums; /* in the state's order */
    struct snapshot_data data;
};

/* A file being written aside. */
struct aside {
    struct snapshot_folder *folder;
    char name[SNAPSHOT_NAME_MAX];
    int file;
    uint64_t bytes;
    struct checksum checksum;
};

static int aside_create(struct aside *aside, struct save *save, enum snapshot_kind kind) {
    const struct snapshot_io *io = save->folder.io;
    aside->folder = &save->folder;
    aside->bytes = 0;
    checksum_init(&aside->checksum);
    snapshot_name_temporary(aside->name, save->step, kind);
    aside->file = io->create(io->ctx, save->folder.handle, aside->name);
    return aside->file < 0 ? snapshot_io_fail(&save->folder, "create", aside->name, aside->file) : 0;
}

static int aside_write(struct aside *aside, const void *bytes, size_t count) {
    return snapshot_write(aside->folder, aside->name, aside->file, bytes, count, &aside->bytes);
}

/* Writes and checksums, piece by piece; `also` gets the same bytes. */
static int aside_add(struct aside *aside, const void *bytes, uint64_t count, struct checksum *also) {
    for (uint64_t done = 0; done < count;) {
        size_t piece = count - done < SNAPSHOT_PIECE_BYTES ? (size_t)(count - done) : SNAPSHOT_PIECE_BYTES;
        const uint8_t *at = (const uint8_t *)bytes + done;
        checksum_add(&aside->checksum, at, piece);
        if (also) {
            checksum_add(also, at, piece);
        }
        int code = aside_write(aside, at, piece);
        if (code) {
            return code;
        }
        done += piece;
    }
    return 0;
}

/* Syncs and closes; with `code`, a failure of before, only closes. */
static int aside_finish(struct aside *aside, int code) {
    const struct snapshot_io *io = aside->folder->io;
    int result = code ? 0 : io->sync(io->ctx, aside->file);
    io->close(io->ctx, aside->file);
    return code ? code : result ? snapshot_io_fail(aside->folder, "sync", aside->name, result) : 0;
}

/* Gives the file its name, and the name to the disk. */
static int aside_publish(struct aside *aside, const char *name) {
    const struct snapshot_io *io = aside->folder->io;
    int result = io->rename(io->ctx, aside->folder->handle, aside->name, name);
    if (result) {
        return snapshot_io_fail(aside->folder, "rename to its name", aside->name, result);
    }
    result = io->sync(io->ctx, aside->folder->handle);
    return result ? snapshot_io_fail(aside->folder, "sync", "", result) : 0;
}

/* ---- the two files ---- */

char snapshot_from_source[1];

static int write_from_source(struct save *save, struct aside *aside, const struct safetensors_entry *entry,
                             struct checksum *checksum) {
    int code = 0;
    for (uint64_t done = 0; done < entry->bytes && code == 0;) {
        const void *bytes = NULL;
        uint64_t count = 0, left = entry->bytes - done;
        code = save->source->next(save->source->context, entry->index, left, &bytes, &count);
        assert(code || (count > 0 && count <= left));
        code = code ? code : aside_add(aside, bytes, count, checksum);
        done += count;
    }
    return code;
}

static int write_from_memory(struct save *save, struct aside *aside, const struct safetensors_entry *entry,
                             struct checksum *checksum) {
    const struct muster_tensor *tensor = &save->state->tensors[entry->index];
    int code = device_stage_read(&save->stage, tensor->data, entry->bytes);
    for (size_t done = 0, count = 0; done < entry->bytes; done += count) {
        const void *bytes = NULL;
        code = code ? code : device_stage_next(&save->stage, entry->bytes - done, &bytes, &count);
        if (code) {
            return status_prefix(code, "tensor %s", tensor->name);
        }
        code = aside_add(aside, bytes, count, checksum);
        if (code) {
            return code;
        }
    }
    return 0;
}

static int write_tensor(struct save *save, struct aside *aside, const struct safetensors_entry *entry) {
    struct checksum checksum;
    const void *data = save->state->tensors[entry->index].data;
    checksum_init(&checksum);
    int code = data == snapshot_from_source ? write_from_source(save, aside, entry, &checksum)
                                            : write_from_memory(save, aside, entry, &checksum);
    save->tensor_checksums[entry->index] = checksum_value(&checksum);
    return code;
}

static int write_tensors(struct save *save, struct aside *aside) {
    struct buf header;
    buf_init(&header, HEADER_ROOM);
    int code = safetensors_encode(&save->table, save->step, &header);
    code = code ? code : aside_add(aside, buf_bytes(&header), header.len, NULL);
    buf_done(&header);
    for (size_t i = 0; i < save->table.count && code == 0; i++) {
        code = write_tensor(save, aside, &save->table.entries[i]);
    }
    return code;
}

static int save_data(struct save *save) {
    struct aside aside;
    char name[SNAPSHOT_NAME_MAX];
    int code = aside_create(&aside, save, SNAPSHOT_DATA);
    if (code) {
        return code;
    }
    code = aside_finish(&aside, write_tensors(save, &aside));
    if (code) {
        return code;
    }
    save->data = (struct snapshot_data){
        .bytes = aside.bytes, .checksum = checksum_value(&aside.checksum), .tensor_checksums = save->tensor_checksums};
    snapshot_name_data(name, save->step, save->data.checksum);
    return aside_publish(&aside, name);
}

static int save_manifest(struct save *save) {
    struct aside aside;
    struct buf text;
    char name[SNAPSHOT_NAME_MAX];
    buf_init(&text, MANIFEST_ROOM);
    int code = snapshot_manifest_encode(save->step, save->state, &save->data, &text);
    code = code ? code : aside_create(&aside, save, SNAPSHOT_MANIFEST);
    if (code == 0) {
        code = aside_finish(&aside, aside_write(&aside, buf_bytes(&text), text.len));
        snapshot_name_manifest(name, save->step);
        code = code ? code : aside_publish(&aside, name);
    }
    buf_done(&text);
    return code;
}

/* ---- all of it ---- */

/* What can be known to be wrong before anything is written. */
static int check(struct save *save, const struct muster_snapshot_options *options) {
    const struct muster_snapshot_state *state = save->state;
    if (save->step < 0 || options->keep == 0) {
        return status_fail(MUSTER_EINVAL, "step %" PRId64 ", keep %" PRIu32 ": step must be >= 0 and keep >= 1",
                           save->step, options->keep);
    }
    struct buf text;
    buf_init(&text, MANIFEST_ROOM > HEADER_ROOM ? MANIFEST_ROOM : HEADER_ROOM);
    int code = safetensors_layout(state->tensors, state->tensor_count, &save->table);
    if (code == 0) {
        save->tensor_checksums = calloc(state->tensor_count + 1, sizeof *save->tensor_checksums);
        code = save->tensor_checksums ? 0 : status_fail(MUSTER_ENOMEM, "no memory for checksums");
    }
    /* Names and texts are seen by writing them; the checksums of this text are not yet known. */
    code = code ? code : safetensors_encode(&save->table, save->step, &text);
    buf_clear(&text);
    save->data.tensor_checksums = save->tensor_checksums;
    code = code ? code : snapshot_manifest_encode(save->step, state, &save->data, &text);
    buf_done(&text);
    return code;
}

static int open_and_lock(struct save *save, const struct snapshot_io *io, const char *path) {
    int code = snapshot_folder_open(&save->folder, io, path, true);
    if (code) {
        return code == MUSTER_ENOENT ? MUSTER_ESYSTEM : code;
    }
    int result = io->lock_folder(io->ctx, save->folder.handle);
    if (result == -EWOULDBLOCK) {
        return status_fail(MUSTER_ESYSTEM,
                           "another process is saving in %s: let one process of the job save, or each into a folder "
                           "of its own",
                           path);
    }
    return result ? snapshot_io_fail(&save->folder, "lock", "", result) : 0;
}

/* Also where memory has run out, and with it the list of what else could be cleared away. */
static void remove_temporaries(struct save *save) {
    const struct snapshot_io *io = save->folder.io;
    char name[SNAPSHOT_NAME_MAX];
    snapshot_name_temporary(name, save->step, SNAPSHOT_DATA);
    (void)io->remove(io->ctx, save->folder.handle, name);
    snapshot_name_temporary(name, save->step, SNAPSHOT_MANIFEST);
    (void)io->remove(io->ctx, save->folder.handle, name);
    (void)snapshot_folder_clean(&save->folder);
}

int snapshot_save_from(const struct snapshot_io *io, const char *path, int64_t step,
                       const struct muster_snapshot_state *state, const struct muster_snapshot_options *options,
                       const struct snapshot_source *source) {
    static const struct muster_snapshot_options defaults = MUSTER_SNAPSHOT_OPTIONS_INIT;
    struct save save = {.folder = {.handle = -1}, .step = step, .state = state, .source = source};
    options = options ? options : &defaults;
    cuda_library_adopt();
    int code = check(&save, options);
    device_stage_init(&save.stage, options->stream, save.table.data_bytes);
    code = code ? code : open_and_lock(&save, io, path);
    bool locked = code == 0;
    code = code ? code : snapshot_folder_clean(&save.folder);
    code = code ? code : snapshot_source_goes_on(source);
    code = code ? code : save_data(&save);
    device_stage_done(&save.stage);
    code = code ? code : snapshot_source_goes_on(source);
    code = code ? code : save_manifest(&save);
    if (code == 0) {
        snapshot_folder_prune(&save.folder, step, options->keep);
    } else {
        char sentence[MUSTER_DETAIL_MAX]; /* a failure to clean up must not take its place */
        (void)snprintf(sentence, sizeof sentence, "%s", muster_detail());
        if (locked) {
            remove_temporaries(&save);
        }
        code = status_fail(code, "save step %" PRId64 ": %s", step, sentence);
    }
    if (locked) {
        io->unlock_folder(io->ctx, save.folder.handle);
    }
    snapshot_folder_close(&save.folder);
    safetensors_done(&save.table);
    free(save.tensor_checksums);
    return code;
}

int snapshot_save(const struct snapshot_io *io, const char *path, int64_t step,
                  const struct muster_snapshot_state *state, const struct muster_snapshot_options *options) {
    return snapshot_save_from(io, path, step, state, options, NULL);
}

int snapshot_save_parts(const char *folder, int64_t step, const struct muster_snapshot_state *state,
                        const struct muster_snapshot_options *options, void *stream,
                        const struct snapshot_source *source) {
    struct muster_snapshot_options own;
    int code = folder ? snapshot_options_read(options, &own) : status_fail_null("saving a snapshot", "folder");
    if (code) {
        return code;
    }
    own.stream = own.stream ? own.stream : stream;
    return snapshot_save_from(&snapshot_io_system, folder, step, state, &own, source);
}

int muster_snapshot_save(const char *folder, int64_t step, const struct muster_snapshot_state *state,
                         const struct muster_snapshot_options *options) {
    struct snapshot_state own;
    struct muster_snapshot_options own_options;
    if (!folder) {
        return status_fail_null("muster_snapshot_save", "folder");
    }
    int code = snapshot_state_read(state, &own);
    code = code ? code : snapshot_options_read(options, &own_options);
    code = code ? code : snapshot_save(&snapshot_io_system, folder, step, &own.state, &own_options);
    snapshot_state_done(&own);
    return code;
}
