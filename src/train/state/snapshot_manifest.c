/* Writing and reading manifests, with jansson; see snapshot_manifest.h. */
#include "train/state/snapshot_manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "base/utf8.h"
#include "train/state/checksum.h"
#include "train/state/json_text.h"
#include "train/state/safetensors.h"

#define FORMAT_NAME "muster-snapshot"
enum { FORMAT_VERSION = 1, CHECKSUM_TEXT_BYTES = 17 };

/* What follows the checked bytes: they end before it. */
#define TRAILER_FORMAT ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n"
enum { TRAILER_BYTES = sizeof ",\n  \"checksum\": \"0123456789abcdef\"\n}\n" - 1 };

/* ---- values ---- */

/* JSON has no NaN and no infinities: they are the texts that Python's float() takes. */
static json_t *real_json(double number) {
    if (isnan(number)) {
        return json_string("nan");
    }
    return isinf(number) ? json_string(number > 0 ? "inf" : "-inf") : json_real(number);
}

static bool read_real(const json_t *json, double *out) {
    if (json_is_real(json)) {
        *out = json_real_value(json);
        return true;
    }
    const char *text = json_string_value(json);
    if (!text || (strcmp(text, "nan") != 0 && strcmp(text, "inf") != 0 && strcmp(text, "-inf") != 0)) {
        return false;
    }
    *out = text[0] == 'n' ? (double)NAN : text[0] == 'i' ? (double)INFINITY : -(double)INFINITY;
    return true;
}

static int check_value(const struct muster_value *value, size_t index) {
    if (!value->name || value->name[0] == '\0') {
        return status_fail(MUSTER_EINVAL, "value %zu has no name", index);
    }
    if (strnlen(value->name, MUSTER_NAME_MAX) == MUSTER_NAME_MAX) {
        return status_fail(MUSTER_ELIMIT, "the name of value %zu is longer than %zu bytes", index, MUSTER_NAME_MAX - 1);
    }
    if (!value->data) {
        return status_fail(MUSTER_EINVAL, "value %s has no data", value->name);
    }
    if (!utf8_is_valid(value->name)) {
        return status_fail(MUSTER_EINVAL, "the name of value %zu is not UTF-8", index);
    }
    if (value->kind == MUSTER_VALUE_TEXT) {
        size_t room = value->room < MUSTER_VALUE_TEXT_MAX ? value->room : MUSTER_VALUE_TEXT_MAX;
        if (strnlen(value->data, room) == room) {
            return status_fail(MUSTER_ELIMIT, "the text of %s does not end within %zu bytes", value->name, room);
        }
        if (!utf8_is_valid(value->data)) {
            return status_fail(MUSTER_EINVAL, "the text of %s is not UTF-8", value->name);
        }
    } else if (value->kind != MUSTER_VALUE_INTEGER && value->kind != MUSTER_VALUE_REAL) {
        return status_fail(MUSTER_EINVAL, "value %s is of no known kind (%d)", value->name, (int)value->kind);
    }
    return 0;
}

static json_t *value_json(const struct muster_value *value) {
    switch (value->kind) {
    case MUSTER_VALUE_INTEGER:
        return json_integer(*(const int64_t *)value->data);
    case MUSTER_VALUE_REAL:
        return real_json(*(const double *)value->data);
    default:
        return json_string(value->data);
    }
}

static int add_values(json_t *object, const struct muster_value *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int code = check_value(&values[i], i);
        if (code) {
            return code;
        }
        if (json_object_get(object, values[i].name)) {
            return status_fail(MUSTER_EINVAL, "two values are named %s", values[i].name);
        }
        if (json_object_set_new(object, values[i].name, value_json(&values[i])) != 0) {
            return status_fail(MUSTER_ENOMEM, "no memory for a manifest");
        }
    }
    return 0;
}

static int read_value(const json_t *json, const struct muster_value *value, bool copy) {
    const char *text = NULL;
    double real = 0;
    switch (value->kind) {
    case MUSTER_VALUE_INTEGER:
        if (!json_is_integer(json)) {
            return status_fail(MUSTER_EINVAL, "value %s is no integer in the snapshot", value->name);
        }
        if (copy) {
            *(int64_t *)value->data = json_integer_value(json);
        }
        return 0;
    case MUSTER_VALUE_REAL:
        if (!read_real(json, &real)) {
            return status_fail(MUSTER_EINVAL, "value %s is no real number in the snapshot", value->name);
        }
        if (copy) {
            *(double *)value->data = real;
        }
        return 0;
    default:
        text = json_string_value(json);
        if (!text || strlen(text) >= value->room) {
            return status_fail(MUSTER_EINVAL,
                               text ? "the text of %s is longer than there is room for"
                                    : "value %s is no text in the snapshot",
                               value->name);
        }
        return copy && !str_copy(value->data, value->room, text) ? MUSTER_EINVAL : 0;
    }
}

int snapshot_manifest_values(const struct snapshot_manifest *manifest, const struct muster_value *values, size_t count,
                             bool copy) {
    const json_t *object = json_object_get(manifest->tree, "values");
    for (size_t i = 0; i < count; i++) {
        if (!values[i].name || !values[i].data) {
            return status_fail(MUSTER_EINVAL, "value %zu has no name or no data", i);
        }
        const json_t *json = json_object_get(object, values[i].name);
        int code = json ? read_value(json, &values[i], copy)
                        : status_fail(MUSTER_EINVAL, "value %s is not in the snapshot", values[i].name);
        if (code) {
            return code;
        }
    }
    return 0;
}

/* ---- writing ---- */

static json_t *checksum_json(uint64_t checksum) {
    char text[CHECKSUM_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%016" PRIx64, checksum);
    return json_string(text);
}

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
              json_object_set_new(tree, "xxh3", checksum_json(data->checksum)) |
              json_object_set_new(tree, "values", values) | json_object_set_new(tree, "tensors", tensors);
    int code = bad ? 0 : add_values(values, state->values, state->value_count);
    for (size_t i = 0; i < state->tensor_count && code == 0 && !bad; i++) {
        bad = json_object_set_new(tensors, state->tensors[i].name, checksum_json(data->tensor_checksums[i]));
    }
    return bad ? status_fail(MUSTER_ENOMEM, "no memory for a manifest") : code;
}

/* The text without its end, which the checksum of what is before it takes the place of. */
static int finish(const struct buf *text, struct buf *out) {
    size_t checked = text->len - strlen("\n}");
    if (checked + TRAILER_BYTES > SNAPSHOT_MANIFEST_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "names and values need more than %zu bytes", SNAPSHOT_MANIFEST_BYTES_MAX);
    }
    int code = buf_append(out, buf_bytes(text), checked);
    return code ? code : buf_printf(out, TRAILER_FORMAT, checksum_of(buf_bytes(text), checked));
}

int snapshot_manifest_encode(int64_t step, const struct muster_snapshot_state *state, const struct snapshot_data *data,
                             struct buf *out) {
    if (state->value_count > MUSTER_VALUES_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu values; at most %zu fit into a snapshot", state->value_count,
                           MUSTER_VALUES_MAX);
    }
    struct buf text;
    buf_init(&text, SNAPSHOT_MANIFEST_BYTES_MAX);
    json_t *tree = json_object();
    int code = tree ? build(tree, step, state, data) : status_fail(MUSTER_ENOMEM, "no memory for a manifest");
    code = code ? code : json_text_append(tree, JSON_INDENT(2) | JSON_REAL_PRECISION(17), &text);
    code = code ? code : finish(&text, out);
    json_decref(tree);
    buf_done(&text);
    return code;
}

/* ---- reading ---- */

static int check_trailer(const uint8_t *bytes, size_t count, uint64_t *out_id) {
    char trailer[TRAILER_BYTES + 1];
    if (count < TRAILER_BYTES) {
        return status_fail(MUSTER_ECORRUPT, "the manifest is cut off at %zu bytes", count);
    }
    uint64_t id = checksum_of(bytes, count - TRAILER_BYTES);
    (void)snprintf(trailer, sizeof trailer, TRAILER_FORMAT, id);
    if (memcmp(trailer, bytes + count - TRAILER_BYTES, TRAILER_BYTES) != 0) {
        return status_fail(MUSTER_ECORRUPT, "the manifest is damaged: its checksum does not fit");
    }
    *out_id = id;
    return 0;
}

static int64_t integer_of(const json_t *tree, const char *name) {
    const json_t *json = json_object_get(tree, name);
    return json_is_integer(json) ? json_integer_value(json) : -1;
}

static bool checksum_of_json(const json_t *json, uint64_t *out) {
    const char *text = json_string_value(json);
    char again[CHECKSUM_TEXT_BYTES], *end = NULL;
    if (!text || strlen(text) != CHECKSUM_TEXT_BYTES - 1) {
        return false;
    }
    *out = strtoull(text, &end, 16);
    (void)snprintf(again, sizeof again, "%016" PRIx64, *out);
    return strcmp(text, again) == 0; /* one spelling: no sign, no blanks, no capitals */
}

/* After the checksum this is no damage, so no reason to take an older snapshot: another program, or a later version,
 * wrote it. */
static int read_members(struct snapshot_manifest *manifest) {
    char file[SNAPSHOT_NAME_MAX];
    const json_t *tree = manifest->tree;
    const char *format = json_string_value(json_object_get(tree, "format"));
    if (!format || strcmp(format, FORMAT_NAME) != 0 || integer_of(tree, "version") != FORMAT_VERSION) {
        return status_fail(MUSTER_EUNSUPPORTED, "it is not of format %s, version %d", FORMAT_NAME, FORMAT_VERSION);
    }
    manifest->step = integer_of(tree, "step");
    int64_t bytes = integer_of(tree, "bytes");
    manifest->bytes = (uint64_t)bytes;
    if (manifest->step < 0 || bytes < SAFETENSORS_PREFIX_BYTES ||
        !checksum_of_json(json_object_get(tree, "xxh3"), &manifest->checksum) ||
        !json_is_object(json_object_get(tree, "values")) || !json_is_object(json_object_get(tree, "tensors"))) {
        return status_fail(MUSTER_EUNSUPPORTED, "a member is missing");
    }
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
    int code = check_trailer(bytes, count, &manifest.id);
    if (code) {
        return code;
    }
    code = json_text_parse("it", bytes, count, &manifest.tree);
    code = code ? code : read_members(&manifest);
    if (code) { /* jansson does not always tell a lack of memory from bad text */
        snapshot_manifest_done(&manifest);
        (void)status_prefix(code, "the manifest is whole but not understood (memory ran out, or another program or "
                                  "version wrote it)");
        return code == MUSTER_ENOMEM ? code : MUSTER_EUNSUPPORTED;
    }
    *out = manifest;
    return 0;
}

bool snapshot_manifest_tensor(const struct snapshot_manifest *manifest, const char *name, uint64_t *out_checksum) {
    return checksum_of_json(json_object_get(json_object_get(manifest->tree, "tensors"), name), out_checksum);
}

void snapshot_manifest_done(struct snapshot_manifest *manifest) {
    json_decref(manifest->tree);
    *manifest = (struct snapshot_manifest){.tree = NULL};
}
