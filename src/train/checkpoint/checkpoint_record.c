/* See checkpoint_record.h. */
#include "train/checkpoint/checkpoint_record.h"

#include <jansson.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_map.h"
#include "train/state/sealed_json.h"

#include <muster/group.h>

#define FORMAT_NAME "muster-checkpoint"
enum { FORMAT_VERSION = 1 };

int checkpoint_record_encode(const struct checkpoint_record *record, struct buf *out) {
    json_t *tree = json_pack("{s:s, s:i, s:I, s:o, s:I, s:I, s:{s:I, s:o}}", "format", FORMAT_NAME, "version",
                             FORMAT_VERSION, "step", (json_int_t)record->step, "token", sealed_json_hex(record->token),
                             "parts", (json_int_t)record->part_count, "bytes", (json_int_t)record->bytes, "map",
                             "bytes", (json_int_t)record->map_bytes, "xxh3", sealed_json_hex(record->map_id));
    int code = tree ? sealed_json_append(tree, JSON_INDENT(2), CHECKPOINT_RECORD_BYTES_MAX, out)
                    : status_fail(MUSTER_ENOMEM, "no memory for a record");
    json_decref(tree);
    return code;
}

static int read_members(const json_t *tree, struct checkpoint_record *record) {
    uint64_t step = 0, parts = 0;
    const json_t *map = json_object_get(tree, "map");
    int code = sealed_json_is_format(tree, FORMAT_NAME, FORMAT_VERSION);
    if (code) {
        return code;
    }
    if (!sealed_json_read_count(tree, "step", &step) ||
        !sealed_json_read_hex(json_object_get(tree, "token"), &record->token) ||
        !sealed_json_read_count(tree, "parts", &parts) || parts == 0 || parts > MUSTER_GROUP_SIZE_MAX ||
        !sealed_json_read_count(tree, "bytes", &record->bytes) ||
        !sealed_json_read_count(map, "bytes", &record->map_bytes) || record->map_bytes > CHECKPOINT_MAP_BYTES_MAX ||
        !sealed_json_read_hex(json_object_get(map, "xxh3"), &record->map_id)) {
        return status_fail(MUSTER_EUNSUPPORTED, "a member is missing, or out of range");
    }
    record->step = (int64_t)step;
    record->part_count = (uint32_t)parts;
    return 0;
}

int checkpoint_record_decode(const uint8_t *bytes, size_t count, struct checkpoint_record *out) {
    struct checkpoint_record record = {.step = 0};
    json_t *tree = NULL;
    if (count > CHECKPOINT_RECORD_BYTES_MAX) {
        return status_fail(MUSTER_ECORRUPT, "it has %zu bytes: no record", count);
    }
    int code = sealed_json_check("the record", bytes, count, &record.id);
    if (code) {
        return code;
    }
    code = sealed_json_parse(bytes, count, &tree);
    code = code ? code : read_members(tree, &record);
    json_decref(tree);
    if (code) {
        return sealed_json_not_understood("the record", code);
    }
    *out = record;
    return 0;
}
