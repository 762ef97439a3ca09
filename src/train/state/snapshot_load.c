/* Loading a snapshot, or any safetensors file, into the caller's memory; see muster/snapshot.h.
 *
 * A snapshot is read twice: once to check all of it, so that nothing of a damaged one reaches the caller, and once into
 * the caller's memory, where each tensor is checked again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/state/checksum.h"
#include "train/state/safetensors.h"
#include "train/state/snapshot_impl.h"

/* A load under way: a snapshot that has been checked. */
struct load {
    struct snapshot_folder folder;
    struct snapshot_manifest manifest;
    struct safetensors table;
    int file;
    const char *name; /* of the data file */
    uint64_t data_at; /* where the tensors begin in it */
};

/* Reads and decodes a header; works for any safetensors file. */
static int read_header(const struct snapshot_folder *folder, const char *name, int file, uint64_t file_bytes,
                       struct safetensors *table, uint64_t *out_data_at) {
    uint8_t prefix[SAFETENSORS_PREFIX_BYTES] = {0};
    size_t length = 0;
    size_t have = file_bytes < sizeof prefix ? (size_t)file_bytes : sizeof prefix;
    int code = snapshot_read(folder, name, file, prefix, have, 0);
    if (code == 0) {
        code = safetensors_header_length(prefix, file_bytes, &length);
        code = code ? status_prefix(code, "%s/%s", folder->path, name) : 0;
    }
    uint8_t *header = code ? NULL : malloc(length + 1);
    if (code == 0) {
        code = header ? snapshot_read(folder, name, file, header, length, sizeof prefix)
                      : status_fail(MUSTER_ENOMEM, "no memory for a header of %zu bytes", length);
    }
    if (code == 0) {
        *out_data_at = sizeof prefix + length;
        code = safetensors_decode(header, length, file_bytes - *out_data_at, table);
        code = code ? status_prefix(code, "%s/%s", folder->path, name) : 0;
    }
    free(header);
    return code;
}

/* Is everything in `table` that is wanted? */
static int match_tensors(const struct safetensors *table, const struct muster_tensor *tensors, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_entry *entry = safetensors_find(table, tensors[i].name);
        int code = entry ? safetensors_match(entry, &tensors[i])
                         : status_fail(MUSTER_EINVAL, "tensor %s is not in the file", tensors[i].name);
        if (code) {
            return code;
        }
    }
    return 0;
}

static int read_tensor(const struct snapshot_folder *folder, const char *name, int file, uint64_t offset,
                       uint64_t bytes, uint8_t *out, struct checksum *checksum) {
    for (uint64_t done = 0; done < bytes;) {
        size_t piece = bytes - done < SNAPSHOT_PIECE_BYTES ? (size_t)(bytes - done) : SNAPSHOT_PIECE_BYTES;
        int code = snapshot_read(folder, name, file, out + done, piece, offset + done);
        if (code) {
            return code;
        }
        checksum_add(checksum, out + done, piece);
        done += piece;
    }
    return 0;
}

/* manifest: NULL when there are no checksums. */
static int read_tensors(const struct load *load, const struct muster_tensor *tensors, size_t count,
                        const struct snapshot_manifest *manifest) {
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_entry *entry = safetensors_find(&load->table, tensors[i].name);
        struct checksum checksum;
        uint64_t wanted = 0;
        checksum_init(&checksum);
        int code = read_tensor(&load->folder, load->name, load->file, load->data_at + entry->offset, entry->bytes,
                               tensors[i].data, &checksum);
        if (code) {
            return code;
        }
        if (manifest &&
            (!snapshot_manifest_tensor(manifest, tensors[i].name, &wanted) || checksum_value(&checksum) != wanted)) {
            return status_fail(MUSTER_ECORRUPT, "tensor %s in %s/%s is damaged: its checksum does not fit",
                               tensors[i].name, load->folder.path, load->name);
        }
    }
    return 0;
}

/* Whatever can be refused is refused before the first byte is written. */
static int load_checked(struct load *load, const struct muster_snapshot_state *state) {
    const struct snapshot_manifest *manifest = &load->manifest;
    int code = read_header(&load->folder, load->name, load->file, manifest->bytes, &load->table, &load->data_at);
    code = code ? code : match_tensors(&load->table, state->tensors, state->tensor_count);
    code = code ? code : snapshot_manifest_values(manifest, state->values, state->value_count, false);
    code = code ? code : read_tensors(load, state->tensors, state->tensor_count, manifest);
    return code ? code : snapshot_manifest_values(manifest, state->values, state->value_count, true);
}

/* The list must be one that could have been saved: names, types, sizes. */
static int check_tensors(const struct muster_tensor *tensors, size_t count) {
    struct safetensors table;
    int code = safetensors_layout(tensors, count, &table);
    if (code == 0) {
        safetensors_done(&table);
    }
    return code;
}

static int load_from(struct load *load, int64_t step, uint64_t id, bool checked,
                     const struct muster_snapshot_state *state) {
    char name[SNAPSHOT_NAME_MAX];
    int code = snapshot_read_manifest(&load->folder, step, &load->manifest);
    if (code) {
        return code;
    }
    snapshot_name_data(name, step, load->manifest.checksum);
    load->name = name;
    if (id != 0 && id != load->manifest.id) {
        code = status_fail(MUSTER_ECORRUPT, "%s has another snapshot of step %" PRId64 " than the one wanted",
                           load->folder.path, step);
    }
    if (code == 0) {
        code = checked ? snapshot_open_data(&load->folder, &load->manifest, &load->file)
                       : snapshot_open_checked(&load->folder, &load->manifest, &load->file);
    }
    if (code == 0) {
        code = load_checked(load, state);
        load->folder.io->close(load->folder.io->ctx, load->file);
    }
    safetensors_done(&load->table);
    snapshot_manifest_done(&load->manifest);
    return code;
}

int snapshot_load(const struct snapshot_io *io, const char *path, int64_t step, uint64_t id, bool checked,
                  const struct muster_snapshot_state *state) {
    struct load load = {.file = -1};
    int code = check_tensors(state->tensors, state->tensor_count);
    code = code ? code : snapshot_folder_open(&load.folder, io, path, false);
    if (code) {
        return code;
    }
    code = load_from(&load, step, id, checked, state);
    snapshot_folder_close(&load.folder);
    return code ? status_prefix(code, "load step %" PRId64, step) : 0;
}

int muster_snapshot_load(const char *folder, int64_t step, uint64_t id, const struct muster_snapshot_state *state) {
    struct snapshot_state own;
    if (!folder) {
        return status_fail_null("muster_snapshot_load", "folder");
    }
    int code = snapshot_state_read(state, &own);
    code = code ? code : snapshot_load(&snapshot_io_system, folder, step, id, false, &own.state);
    snapshot_state_done(&own);
    return code;
}

int muster_snapshot_load_newest_sized(const char *folder, const struct muster_snapshot_state *state,
                                      struct muster_snapshot_found *out, size_t out_bytes) {
    struct snapshot_state own;
    struct muster_snapshot_found found;
    int code = snapshot_state_read(state, &own);
    code = code ? code : muster_snapshot_find(folder, INT64_MAX, &found);
    code = code ? code : snapshot_load(&snapshot_io_system, folder, found.step, found.id, true, &own.state);
    snapshot_state_done(&own);
    if (code == 0 && out) {
        sized_write(out, out_bytes, &found, sizeof found);
    }
    return code;
}

/* ---- files without a manifest ---- */

static int load_file(struct load *load, const struct muster_tensor *tensors, size_t count) {
    const struct snapshot_io *io = load->folder.io;
    uint64_t bytes = 0;
    int code = snapshot_open_file(&load->folder, load->name, MUSTER_ENOENT, &load->file, &bytes);
    if (code) {
        return code;
    }
    code = read_header(&load->folder, load->name, load->file, bytes, &load->table, &load->data_at);
    code = code ? code : match_tensors(&load->table, tensors, count);
    code = code ? code : read_tensors(load, tensors, count, NULL);
    io->close(io->ctx, load->file);
    safetensors_done(&load->table);
    return code;
}

static int load_tensors(const char *path, const struct muster_tensor *tensors, size_t tensor_count) {
    struct load load = {.file = -1};
    int code = check_tensors(tensors, tensor_count);
    if (code) {
        return code;
    }
    const char *slash = strrchr(path, '/');
    char *folder = slash ? str_format_new("%.*s", (int)(slash - path + (slash == path)), path) : str_format_new(".");
    if (!folder) {
        return status_fail(MUSTER_ENOMEM, "no memory to load %s", path);
    }
    load.name = slash ? slash + 1 : path;
    code = snapshot_folder_open(&load.folder, &snapshot_io_system, folder, false);
    code = code ? code : load_file(&load, tensors, tensor_count);
    snapshot_folder_close(&load.folder);
    free(folder);
    return code;
}

int muster_safetensors_load_sized(const char *path, const struct muster_tensor *tensors, size_t tensor_bytes,
                                  size_t tensor_count) {
    struct sized_array own;
    if (!path) {
        return status_fail_null("muster_safetensors_load", "path");
    }
    int code = snapshot_tensors_read(tensors, tensor_bytes, tensor_count, &own);
    if (code == 0) {
        code = load_tensors(path, own.items, tensor_count);
        free(own.owned);
    }
    return code;
}
