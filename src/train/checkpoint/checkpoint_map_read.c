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

/* What stands where in the list of a tensor, a run, a part. An even tensor has no runs. */
enum { TENSOR_NAME, TENSOR_TYPE, TENSOR_SHAPE, TENSOR_RUNS, TENSOR_MEMBERS };
enum { RUN_PART, RUN_COUNT, RUN_LENGTH, RUN_MEMBERS };
enum { PART_BYTES, PART_DATA, PART_DIGEST, PART_MEMBERS };

/* ---- tensors ---- */

/* "": that of the tensor before. */
static bool read_type(const json_t *json, const struct checkpoint_tensor *before, enum muster_type *out) {
    const char *text = json_string_value(json);
    int type = 0;
    if (text && text[0] == '\0' && before) {
        *out = before->type;
        return true;
    }
    while (text && type < MUSTER_TYPE_COUNT && strcmp(text, muster_type_name((enum muster_type)type)) != 0) {
        type++;
    }
    *out = (enum muster_type)type;
    return text && type < MUSTER_TYPE_COUNT;
}

static int read_tensor(const json_t *json, const struct checkpoint_tensor *before, struct checkpoint_tensor *out) {
    size_t members = json_array_size(json);
    const json_t *shape = json_array_get(json, TENSOR_SHAPE);
    uint64_t bytes = 0;
    out->name = json_string_value(json_array_get(json, TENSOR_NAME));
    if (!out->name || out->name[0] == '\0' || strlen(out->name) >= MUSTER_NAME_MAX) {
        return bad("a tensor's name");
    }
    if (!read_type(json_array_get(json, TENSOR_TYPE), before, &out->type) || !json_is_array(shape) ||
        json_array_size(shape) > MUSTER_TENSOR_DIMS_MAX || members > TENSOR_MEMBERS ||
        (members == TENSOR_MEMBERS && !json_is_array(json_array_get(json, TENSOR_RUNS)))) {
        return bad("a tensor's type, shape or list of ranges");
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
    out->is_even = members < TENSOR_MEMBERS;
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
        code = read_tensor(json_array_get(array, i), i > 0 ? &map->tensors[i - 1] : NULL, &map->tensors[i]);
        if (code == 0 && i > 0 && map->tensors[i].element_bytes > map->tensors[i - 1].element_bytes) {
            code = bad("the order of tensors");
        }
    }
    return code;
}

/* ---- parts ---- */

static int read_part(const json_t *json, struct checkpoint_part *part) {
    if (json_array_size(json) != PART_MEMBERS || !number_at(json, PART_BYTES, &part->bytes) ||
        !number_at(json, PART_DATA, &part->data_at) || part->data_at > part->bytes ||
        part->data_at > SAFETENSORS_PREFIX_BYTES + SAFETENSORS_HEADER_BYTES_MAX ||
        part->data_at < SAFETENSORS_PREFIX_BYTES ||
        !sealed_json_read_hex(json_array_get(json, PART_DIGEST), &part->digest)) {
        return bad("a member of a part");
    }
    return 0;
}

/* ---- ranges ---- */

/* `length` ranges of `count` elements each, of as many parts from `part` on. */
struct run {
    uint64_t part, count, length;
};

/* left: elements of the tensor that no run before has. */
static int read_run(const struct checkpoint_map *map, const json_t *json, uint64_t left, struct run *out) {
    out->length = 1;
    if (json_array_size(json) < RUN_LENGTH || json_array_size(json) > RUN_MEMBERS ||
        !number_at(json, RUN_PART, &out->part) || !number_at(json, RUN_COUNT, &out->count) ||
        (json_array_size(json) == RUN_MEMBERS && !number_at(json, RUN_LENGTH, &out->length))) {
        return bad("a range");
    }
    if (out->part >= map->part_count || out->length == 0 || out->length > map->part_count - out->part ||
        out->count == 0 || out->count > left / out->length) {
        return bad("a range of a tensor");
    }
    return 0;
}

/* Counts the ranges of each part: listed.count. */
static int count_ranges(struct checkpoint_map *map, const json_t *runs, const struct checkpoint_tensor *tensor) {
    uint64_t left = tensor->count;
    int code = 0;
    for (size_t i = 0; i < json_array_size(runs) && code == 0; i++) {
        struct run run;
        code = read_run(map, json_array_get(runs, i), left, &run);
        if (code == 0 && run.length > CHECKPOINT_MAP_RANGES_MAX - map->range_count) {
            code = bad("the number of ranges");
        }
        for (uint64_t part = 0; code == 0 && part < run.length; part++) {
            map->parts[run.part + part].listed.count++;
        }
        if (code == 0) {
            map->range_count += run.length;
            left -= run.length * run.count;
        }
    }
    return code == 0 && left > 0 ? bad("the end of a tensor's ranges") : code;
}

/* Adds them to each part, in the order of tensors and elements, which have been checked. */
static void add_ranges(struct checkpoint_map *map, const json_t *runs, uint32_t tensor) {
    uint64_t first = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        struct run run = {.part = 0};
        (void)read_run(map, json_array_get(runs, i), UINT64_MAX, &run);
        for (uint64_t part = 0; part < run.length; part++) {
            struct checkpoint_ranges *listed = &map->parts[run.part + part].listed;
            listed->items[listed->count++] =
                (struct checkpoint_range){.tensor = tensor, .first = first, .count = run.count};
            first += run.count;
        }
    }
}

static const json_t *runs_of(const json_t *tensors, size_t index) {
    return json_array_get(json_array_get(tensors, index), TENSOR_RUNS);
}

static int read_ranges(struct checkpoint_map *map, const json_t *tensors) {
    int code = 0;
    for (size_t i = 0; i < map->tensor_count && code == 0; i++) {
        code = map->tensors[i].is_even ? 0 : count_ranges(map, runs_of(tensors, i), &map->tensors[i]);
    }
    if (code) {
        return code;
    }
    map->ranges = calloc(map->range_count + 1, sizeof *map->ranges);
    if (!map->ranges) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu ranges", map->range_count);
    }
    struct checkpoint_range *next = map->ranges;
    for (uint32_t part = 0; part < map->part_count; part++) {
        struct checkpoint_ranges *listed = &map->parts[part].listed;
        listed->items = next;
        next += listed->count;
        listed->count = 0;
    }
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        add_ranges(map, runs_of(tensors, i), i);
    }
    return 0;
}

static int read_parts(const json_t *array, struct checkpoint_map *map) {
    size_t count = json_array_size(array);
    if (count == 0 || count > MUSTER_GROUP_SIZE_MAX) {
        return bad("the list of parts");
    }
    map->part_count = (uint32_t)count;
    map->parts = calloc(count, sizeof *map->parts);
    int code = map->parts ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu parts", count);
    for (size_t i = 0; i < count && code == 0; i++) {
        code = read_part(json_array_get(array, i), &map->parts[i]);
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
    return code ? code : read_ranges(map, json_object_get(map->tree, "tensors"));
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
