/* An open snapshot, or any open safetensors file: what is in it, and reading it; see snapshot_parts.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/device/device_stage.h"
#include "train/state/checksum.h"
#include "train/state/snapshot_impl.h"

/* Reads and decodes the header. */
static int read_header(struct snapshot_reader *reader, uint64_t file_bytes) {
    const struct snapshot_folder *folder = &reader->folder;
    uint8_t prefix[SAFETENSORS_PREFIX_BYTES] = {0};
    size_t length = 0;
    size_t have = file_bytes < sizeof prefix ? (size_t)file_bytes : sizeof prefix;
    int code = snapshot_read(folder, reader->file_name, reader->file, prefix, have, 0);
    if (code == 0) {
        code = safetensors_header_length(prefix, file_bytes, &length);
        code = code ? status_prefix(code, "%s/%s", folder->path, reader->file_name) : 0;
    }
    uint8_t *header = code ? NULL : malloc(length + 1);
    if (code == 0) {
        code = header ? snapshot_read(folder, reader->file_name, reader->file, header, length, sizeof prefix)
                      : status_fail(MUSTER_ENOMEM, "no memory for a header of %zu bytes", length);
    }
    if (code == 0) {
        reader->data_at = sizeof prefix + length;
        code = safetensors_decode(header, length, file_bytes - reader->data_at, &reader->table);
        code = code ? status_prefix(code, "%s/%s", folder->path, reader->file_name) : 0;
    }
    free(header);
    return code;
}

static int open_snapshot(struct snapshot_reader *reader, int64_t step, uint64_t id, bool checked) {
    int code = snapshot_read_manifest(&reader->folder, step, &reader->manifest);
    if (code) {
        return code;
    }
    snapshot_name_data(reader->name, step, reader->manifest.checksum);
    if (id != 0 && id != reader->manifest.id) {
        return status_fail(MUSTER_ECORRUPT, "%s has another snapshot of step %" PRId64 " than the one wanted",
                           reader->folder.path, step);
    }
    code = checked ? snapshot_open_data(&reader->folder, &reader->manifest, &reader->file)
                   : snapshot_open_checked(&reader->folder, &reader->manifest, &reader->file);
    return code ? code : read_header(reader, reader->manifest.bytes);
}

int snapshot_reader_begin(struct snapshot_reader *reader, const struct snapshot_io *io, const char *path, int64_t step,
                          uint64_t id, bool checked) {
    *reader = (struct snapshot_reader){.folder = {.handle = -1}, .file = -1, .has_checksums = true};
    reader->file_name = reader->name;
    int code = snapshot_folder_open(&reader->folder, io, path, false);
    return code ? code : open_snapshot(reader, step, id, checked);
}

int snapshot_reader_begin_file(struct snapshot_reader *reader, const char *path, const char *file_name) {
    uint64_t bytes = 0;
    *reader = (struct snapshot_reader){.folder = {.handle = -1}, .file = -1, .file_name = file_name};
    int code = snapshot_folder_open(&reader->folder, &snapshot_io_system, path, false);
    code = code ? code : snapshot_open_file(&reader->folder, file_name, MUSTER_ENOENT, &reader->file, &bytes);
    return code ? code : read_header(reader, bytes);
}

void snapshot_reader_end(struct snapshot_reader *reader) {
    if (reader->file >= 0) {
        reader->folder.io->close(reader->folder.io->ctx, reader->file);
    }
    safetensors_done(&reader->table);
    snapshot_manifest_done(&reader->manifest);
    snapshot_folder_close(&reader->folder);
}

int snapshot_reader_open(const char *folder, int64_t step, uint64_t id, bool checked, struct snapshot_reader **out) {
    struct snapshot_reader *reader = malloc(sizeof *reader);
    if (!reader) {
        return status_fail(MUSTER_ENOMEM, "no memory to read a snapshot");
    }
    int code = snapshot_reader_begin(reader, &snapshot_io_system, folder, step, id, checked);
    if (code) {
        snapshot_reader_close(reader);
        return code;
    }
    *out = reader;
    return 0;
}

void snapshot_reader_close(struct snapshot_reader *reader) {
    if (reader) {
        snapshot_reader_end(reader);
        free(reader);
    }
}

int snapshot_reader_match(const struct snapshot_reader *reader, const struct muster_snapshot_state *state) {
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct muster_tensor *tensor = &state->tensors[i];
        const struct safetensors_entry *entry = safetensors_find(&reader->table, tensor->name);
        int code = entry ? safetensors_match(entry, tensor)
                         : status_fail(MUSTER_EINVAL, "tensor %s is not in the file", tensor->name);
        if (code) {
            return code;
        }
    }
    return reader->has_checksums ? snapshot_manifest_values(&reader->manifest, state->values, state->value_count, false)
                                 : 0;
}

/* Where tensors are read to that are on a GPU. */
struct landing {
    struct device_stage stage;
    uint8_t *piece; /* NULL: none has been met so far */
};

static int make_piece(struct landing *landing) {
    landing->piece = landing->piece ? landing->piece : malloc(SNAPSHOT_PIECE_BYTES);
    return landing->piece ? 0 : status_fail(MUSTER_ENOMEM, "no memory to read a snapshot");
}

/* landing: NULL for memory of the host. */
static int read_tensor(const struct snapshot_reader *reader, const struct safetensors_entry *entry, uint8_t *out,
                       struct landing *landing, struct checksum *checksum) {
    int code = 0;
    for (uint64_t done = 0, piece = 0; done < entry->bytes && code == 0; done += piece) {
        piece = entry->bytes - done < SNAPSHOT_PIECE_BYTES ? entry->bytes - done : SNAPSHOT_PIECE_BYTES;
        uint8_t *at = landing ? landing->piece : out + done;
        code = snapshot_read(&reader->folder, reader->file_name, reader->file, at, (size_t)piece,
                             reader->data_at + entry->offset + done);
        if (code == 0) {
            checksum_add(checksum, at, (size_t)piece);
        }
        if (code == 0 && landing) {
            code = device_stage_put(&landing->stage, out + done, at, (size_t)piece);
            code = code ? status_prefix(code, "tensor %s", entry->name) : 0;
        }
    }
    return code;
}

static int load_tensor(const struct snapshot_reader *reader, const struct muster_tensor *tensor,
                       struct landing *landing) {
    const struct safetensors_entry *entry = safetensors_find(&reader->table, tensor->name);
    struct checksum checksum;
    uint64_t wanted = 0;
    bool is_on_device = device_place_of(tensor->data) == DEVICE_PLACE_DEVICE;
    checksum_init(&checksum);
    int code = is_on_device ? make_piece(landing) : 0;
    code = code ? code : read_tensor(reader, entry, tensor->data, is_on_device ? landing : NULL, &checksum);
    if (code || !reader->has_checksums) {
        return code;
    }
    bool is_whole =
        snapshot_manifest_tensor(&reader->manifest, tensor->name, &wanted) && checksum_value(&checksum) == wanted;
    return is_whole ? 0
                    : status_fail(MUSTER_ECORRUPT, "tensor %s in %s/%s is damaged: its checksum does not fit",
                                  tensor->name, reader->folder.path, reader->file_name);
}

int snapshot_reader_load(const struct snapshot_reader *reader, const struct muster_snapshot_state *state,
                         void *stream) {
    struct landing landing = {.piece = NULL};
    int code = 0;
    device_stage_init(&landing.stage, stream, DEVICE_STAGE_CHUNKS * SNAPSHOT_PIECE_BYTES);
    for (size_t i = 0; i < state->tensor_count && code == 0; i++) {
        code = load_tensor(reader, &state->tensors[i], &landing);
    }
    code = code ? code : device_stage_settle(&landing.stage);
    device_stage_done(&landing.stage);
    free(landing.piece);
    return code || !reader->has_checksums
               ? code
               : snapshot_manifest_values(&reader->manifest, state->values, state->value_count, true);
}

int snapshot_reader_range(const struct snapshot_reader *reader, const char *tensor, uint64_t offset, void *out,
                          size_t count) {
    const struct safetensors_entry *entry = safetensors_find(&reader->table, tensor);
    return snapshot_read(&reader->folder, reader->file_name, reader->file, out, count,
                         reader->data_at + entry->offset + offset);
}
