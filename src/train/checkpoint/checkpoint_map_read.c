/* Reading maps, which may come from anywhere; see checkpoint_map.h. Nothing here is damage: the checksum has been
 * checked. What does not fit was written by another program or version. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_map.h"
#include "train/checkpoint/checkpoint_map_impl.h"
#include "train/state/safetensors.h"
#include "train/state/sealed_json.h"

#include <muster/group.h>

static int bad(const char *what) {
    return status_fail(MUSTER_EUNSUPPORTED, "%s is missing, or out of range", what);
}

static bool number_at(const json_t *array, size_t index, uint64_t *out) {
    const json_t *json = json_array_get(array, index);
    *out = json_is_integer(json) && json_integer_value(json) >= 0 ? (uint64_t)json_integer_value(json) : 0;
    return json_is_integer(json) && json_integer_value(json) >= 0;
}

/* ---- tensors ---- */

static bool read_type(const json_t *json, enum muster_type *out) {
    const char *text = json_string_value(json);
    int type = 0;
    while (text && type < MUSTER_TYPE_COUNT && strcmp(text, muster_type_name((enum muster_type)type)) != 0) {
        type++;
    }
    *out = (enum muster_type)type;
    return text && type < MUSTER_TYPE_COUNT;
}

static int read_tensor(const json_t *json, struct checkpoint_tensor *out) {
    const json_t *shape = json_object_get(json, "shape"), *even = json_object_get(json, "even");
    uint64_t bytes = 0;
    out->name = json_string_value(json_object_get(json, "name"));
    if (!out->name || out->name[0] == '\0' || strlen(out->name) >= MUSTER_NAME_MAX) {
        return bad("a tensor's name");
    }
    if (!read_type(json_object_get(json, "type"), &out->type) || !json_is_boolean(even) || !json_is_array(shape) ||
        json_array_size(shape) > MUSTER_TENSOR_DIMS_MAX) {
        return bad("a tensor's type, shape or rule");
    }
    out->dim_count = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < out->dim_count; i++) {
        if (!number_at(shape, i, &out->shape[i])) {
            return bad("a tensor's dimension");
        }
    }
    if (!safetensors_bytes(out->type, out->shape, out->dim_count, &bytes)) {
        return bad("a tensor's size");
    }
    out->element_bytes = muster_type_bytes(out->type);
    out->count = bytes / out->element_bytes;
    out->is_even = json_is_true(even);
    return 0;
}

static int read_tensors(const json_t *array, struct checkpoint_map *map) {
    if (!json_is_array(array) || json_array_size(array) > MUSTER_TENSORS_MAX) {
        return bad("the list of tensors");
    }
    map->tensor_count = json_array_size(array);
    map->tensors = calloc(map->tensor_count + 1, sizeof *map->tensors);
    int code = map->tensors ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", map->tensor_count);
    for (size_t i = 0; i < map->tensor_count && code == 0; i++) {
        code = read_tensor(json_array_get(array, i), &map->tensors[i]);
        if (code == 0 && i > 0 && map->tensors[i].element_bytes > map->tensors[i - 1].element_bytes) {
            code = bad("the order of tensors");
        }
    }
    return code;
}

/* ---- parts ---- */

static int read_range(const struct checkpoint_map *map, const json_t *json, const struct checkpoint_range *before,
                      struct checkpoint_range *out) {
    uint64_t tensor = 0;
    if (json_array_size(json) != 3 || !number_at(json, 0, &tensor) || tensor >= map->tensor_count ||
        !number_at(json, 1, &out->first) || !number_at(json, 2, &out->count)) {
        return bad("a range");
    }
    const struct checkpoint_tensor *of = &map->tensors[tensor];
    out->tensor = (uint32_t)tensor;
    if (of->is_even || out->count == 0 || out->first > of->count || out->count > of->count - out->first) {
        return bad("a range of a tensor");
    }
    if (before && (before->tensor > out->tensor || (before->tensor == out->tensor && before->first >= out->first))) {
        return bad("the order of ranges");
    }
    return 0;
}

static int read_part(struct checkpoint_map *map, const json_t *json, size_t *used, struct checkpoint_part *part) {
    const json_t *ranges = json_object_get(json, "ranges");
    if (!sealed_json_read_count(json, "bytes", &part->bytes) || !sealed_json_read_count(json, "data", &part->data_at) ||
        part->data_at > part->bytes || part->data_at > SAFETENSORS_PREFIX_BYTES + SAFETENSORS_HEADER_BYTES_MAX ||
        part->data_at < SAFETENSORS_PREFIX_BYTES ||
        !sealed_json_read_hex(json_object_get(json, "xxh3"), &part->digest)) {
        return bad("a member of a part");
    }
    part->listed = (struct checkpoint_ranges){.items = map->ranges + *used, .count = json_array_size(ranges)};
    *used += part->listed.count;
    int code = 0;
    for (size_t i = 0; i < part->listed.count && code == 0; i++) {
        struct checkpoint_range *range = &part->listed.items[i];
        code = read_range(map, json_array_get(ranges, i), i > 0 ? range - 1 : NULL, range);
    }
    return code;
}

static int read_parts(const json_t *array, struct checkpoint_map *map) {
    size_t count = json_array_size(array), range_count = 0, used = 0;
    if (count == 0 || count > MUSTER_GROUP_SIZE_MAX) {
        return bad("the list of parts");
    }
    for (size_t i = 0; i < count; i++) {
        range_count += json_array_size(json_object_get(json_array_get(array, i), "ranges"));
    }
    int code = checkpoint_map_make_room(map, (uint32_t)count, range_count);
    for (size_t i = 0; i < count && code == 0; i++) {
        code = read_part(map, json_array_get(array, i), &used, &map->parts[i]);
    }
    return code;
}

/* ---- all of it ---- */

static int read_members(struct checkpoint_map *map) {
    uint64_t step = 0;
    int code = sealed_json_is_format(map->tree, CHECKPOINT_MAP_FORMAT, CHECKPOINT_MAP_VERSION);
    if (code) {
        return code;
    }
    if (!sealed_json_read_count(map->tree, "step", &step) ||
        !sealed_json_read_hex(json_object_get(map->tree, "token"), &map->token) ||
        !sealed_json_read_count(map->tree, "block", &map->block_bytes) || map->block_bytes == 0 ||
        map->block_bytes > CHECKPOINT_BLOCK_BYTES_MAX || !json_is_object(json_object_get(map->tree, "values"))) {
        return bad("a member");
    }
    map->step = (int64_t)step;
    code = read_tensors(json_object_get(map->tree, "tensors"), map);
    code = code ? code : read_parts(json_object_get(map->tree, "parts"), map);
    return code ? code : checkpoint_map_check(map);
}

int checkpoint_map_id(const uint8_t *bytes, size_t count, uint64_t *out_id) {
    return sealed_json_check("the map", bytes, count, out_id);
}

int checkpoint_map_decode(const uint8_t *bytes, size_t count, struct checkpoint_map *out) {
    struct checkpoint_map map = {.tensors = NULL};
    uint64_t id = 0;
    int code = checkpoint_map_id(bytes, count, &id);
    if (code) {
        return code;
    }
    code = sealed_json_parse(bytes, count, &map.tree);
    code = code ? code : read_members(&map);
    if (code) {
        checkpoint_map_done(&map);
        return sealed_json_not_understood("the map", code);
    }
    *out = map;
    return 0;
}
