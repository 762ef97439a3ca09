/* Writing and reading manifests, with jansson; see snapshot_manifest.h. */
#include "train/state/snapshot_manifest.h"

#include <jansson.h>
#include <string.h>

#include "base/status.h"
#include "train/state/safetensors.h"
#include "train/state/sealed_json.h"
#include "train/state/value_json.h"

#define FORMAT_NAME "muster-snapshot"
enum { FORMAT_VERSION = 1 };

int snapshot_manifest_values(const struct snapshot_manifest *manifest, const struct muster_value *values, size_t count,
                             bool copy) {
    return value_json_read(json_object_get(manifest->tree, "values"), values, count, copy);
}

/* ---- writing ---- */

static int build(json_t *tree, int64_t step, const struct muster_snapshot_state *state,
                 const struct snapshot_data *data) {
    char file[SNAPSHOT_NAME_MAX];
    snapshot_name_data(file, step, data->checksum);
    json_t *values = json_object(), *tensors = json_object();
    int bad = json_object_set_new(tree, "format", json_string(FORMAT_NAME)) |
              json_object_set_new(tree, "version", json_integer(FORMAT_VERSION)) |
              json_object_set_new(tree, "step", json_integer(step)) |
              json_object_set_new(tree, "file", json_string(file)) |
              json_object_set_new(tree, "bytes", json_integer((json_int_t)data->bytes)) |
              json_object_set_new(tree, "xxh3", sealed_json_hex(data->checksum)) |
              json_object_set_new(tree, "values", values) | json_object_set_new(tree, "tensors", tensors);
    int code = bad ? 0 : value_json_add(values, state->values, state->value_count);
    for (size_t i = 0; i < state->tensor_count && code == 0 && !bad; i++) {
        bad = json_object_set_new(tensors, state->tensors[i].name, sealed_json_hex(data->tensor_checksums[i]));
    }
    return bad ? status_fail(MUSTER_ENOMEM, "no memory for a manifest") : code;
}

int snapshot_manifest_encode(int64_t step, const struct muster_snapshot_state *state, const struct snapshot_data *data,
                             struct buf *out) {
    json_t *tree = json_object();
    int code = tree ? build(tree, step, state, data) : status_fail(MUSTER_ENOMEM, "no memory for a manifest");
    code = code ? code
                : sealed_json_append(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(17), SNAPSHOT_MANIFEST_BYTES_MAX, out);
    json_decref(tree);
    return code;
}

/* ---- reading ---- */

/* After the checksum this is no damage, so no reason to take an older snapshot: another program, or a later version,
 * wrote it. */
static int read_members(struct snapshot_manifest *manifest) {
    char file[SNAPSHOT_NAME_MAX];
    const json_t *tree = manifest->tree;
    uint64_t step = 0;
    int code = sealed_json_is_format(tree, FORMAT_NAME, FORMAT_VERSION);
    if (code) {
        return code;
    }
    if (!sealed_json_read_count(tree, "step", &step) || !sealed_json_read_count(tree, "bytes", &manifest->bytes) ||
        manifest->bytes < SAFETENSORS_PREFIX_BYTES ||
        !sealed_json_read_hex(json_object_get(tree, "xxh3"), &manifest->checksum) ||
        !json_is_object(json_object_get(tree, "values")) || !json_is_object(json_object_get(tree, "tensors"))) {
        return status_fail(MUSTER_EUNSUPPORTED, "a member is missing");
    }
    manifest->step = (int64_t)step;
    snapshot_name_data(file, manifest->step, manifest->checksum);
    const char *stated = json_string_value(json_object_get(tree, "file"));
    if (!stated || strcmp(stated, file) != 0) {
        return status_fail(MUSTER_EUNSUPPORTED, "it names a file that is not of its step and checksum");
    }
    return 0;
}

int snapshot_manifest_decode(const uint8_t *bytes, size_t count, struct snapshot_manifest *out) {
    struct snapshot_manifest manifest = {.tree = NULL};
    if (count > SNAPSHOT_MANIFEST_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a manifest of %zu bytes; at most %zu are read", count,
                           SNAPSHOT_MANIFEST_BYTES_MAX);
    }
    int code = sealed_json_check("the manifest", bytes, count, &manifest.id);
    if (code) {
        return code;
    }
    code = sealed_json_parse(bytes, count, &manifest.tree);
    code = code ? code : read_members(&manifest);
    if (code) {
        snapshot_manifest_done(&manifest);
        return sealed_json_not_understood("the manifest", code);
    }
    *out = manifest;
    return 0;
}

bool snapshot_manifest_tensor(const struct snapshot_manifest *manifest, const char *name, uint64_t *out_checksum) {
    return sealed_json_read_hex(json_object_get(json_object_get(manifest->tree, "tensors"), name), out_checksum);
}

void snapshot_manifest_done(struct snapshot_manifest *manifest) {
    json_decref(manifest->tree);
    *manifest = (struct snapshot_manifest){.tree = NULL};
}
