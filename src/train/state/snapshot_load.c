/* Loading a snapshot, or any safetensors file, into the caller's memory; see muster/snapshot.h.
 *
 * A snapshot is read twice: once to check all of it, so that nothing of a damaged one reaches the caller, and once into
 * the caller's memory, where each tensor is checked again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/device/cuda_adopt.h"
#include "train/state/safetensors.h"
#include "train/state/snapshot_impl.h"

/* The list must be one that could have been saved: names, types, sizes. */
static int check_tensors(const struct muster_tensor *tensors, size_t count) {
    struct safetensors table;
    int code = safetensors_layout(tensors, count, &table);
    if (code == 0) {
        safetensors_done(&table);
    }
    return code;
}

/* Whatever can be refused is refused before the first byte is written. */
static int load_checked(const struct snapshot_reader *reader, const struct muster_snapshot_state *state, void *stream) {
    int code = snapshot_reader_match(reader, state);
    return code ? code : snapshot_reader_load(reader, state, stream);
}

int snapshot_load(const struct snapshot_io *io, const char *path, const struct snapshot_wanted *wanted,
                  const struct muster_snapshot_state *state) {
    struct snapshot_reader reader;
    int code = check_tensors(state->tensors, state->tensor_count);
    if (code) {
        return code;
    }
    cuda_library_adopt();
    code = snapshot_reader_begin(&reader, io, path, wanted->step, wanted->id, wanted->checked);
    code = code ? code : load_checked(&reader, state, wanted->stream);
    snapshot_reader_end(&reader);
    return code ? status_prefix(code, "load step %" PRId64, wanted->step) : 0;
}

int muster_snapshot_load(const char *folder, int64_t step, uint64_t id, const struct muster_snapshot_state *state) {
    struct snapshot_state own;
    if (!folder) {
        return status_fail_null("muster_snapshot_load", "folder");
    }
    int code = snapshot_state_read(state, &own);
    const struct snapshot_wanted wanted = {.step = step, .id = id};
    code = code ? code : snapshot_load(&snapshot_io_system, folder, &wanted, &own.state);
    snapshot_state_done(&own);
    return code;
}

int muster_snapshot_load_newest_sized(const char *folder, const struct muster_snapshot_state *state,
                                      struct muster_snapshot_found *out, size_t out_bytes) {
    struct snapshot_state own;
    struct muster_snapshot_found found;
    int code = snapshot_state_read(state, &own);
    code = code ? code : muster_snapshot_find(folder, INT64_MAX, &found);
    if (code == 0) {
        const struct snapshot_wanted wanted = {.step = found.step, .id = found.id, .checked = true};
        code = snapshot_load(&snapshot_io_system, folder, &wanted, &own.state);
    }
    snapshot_state_done(&own);
    if (code == 0 && out) {
        sized_write(out, out_bytes, &found, sizeof found);
    }
    return code;
}

/* ---- files without a manifest ---- */

static int load_tensors(const char *path, const struct muster_tensor *tensors, size_t tensor_count) {
    struct snapshot_reader reader;
    const struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(tensors, tensor_count, NULL, 0);
    int code = check_tensors(tensors, tensor_count);
    if (code) {
        return code;
    }
    const char *slash = strrchr(path, '/');
    char *folder = slash ? str_format_new("%.*s", (int)(slash - path + (slash == path)), path) : str_format_new(".");
    if (!folder) {
        return status_fail(MUSTER_ENOMEM, "no memory to load %s", path);
    }
    cuda_library_adopt();
    code = snapshot_reader_begin_file(&reader, folder, slash ? slash + 1 : path);
    code = code ? code : load_checked(&reader, &state, NULL);
    snapshot_reader_end(&reader);
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
