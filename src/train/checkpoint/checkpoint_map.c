/* Writing maps, and what reading and writing share; checkpoint_map_read.c reads them. See checkpoint_map.h. */
#include "train/checkpoint/checkpoint_map.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_map_impl.h"
#include "train/state/sealed_json.h"
#include "train/state/value_json.h"

static int no_memory(void) {
    return status_fail(MUSTER_ENOMEM, "no memory for the map of a checkpoint");
}

int checkpoint_map_make_room(struct checkpoint_map *map, uint32_t part_count, size_t range_count) {
    map->part_count = part_count;
    map->range_count = range_count;
    map->parts = calloc((size_t)part_count + 1, sizeof *map->parts);
    map->ranges = calloc(range_count + 1, sizeof *map->ranges);
    return map->parts && map->ranges ? 0 : no_memory();
}

void checkpoint_map_done(struct checkpoint_map *map) {
    free(map->tensors);
    free(map->parts);
    free(map->ranges);
    json_decref(map->tree);
    *map = (struct checkpoint_map){.tensors = NULL};
}

int checkpoint_map_check(const struct checkpoint_map *map) {
    struct checkpoint_owned *owned = calloc(map->range_count + 1, sizeof *owned);
    if (!owned) {
        return no_memory();
    }
    size_t count = 0;
    for (uint32_t part = 0; part < map->part_count; part++) {
        const struct checkpoint_ranges *listed = &map->parts[part].listed;
        for (size_t i = 0; i < listed->count; i++) {
            owned[count++] = (struct checkpoint_owned){listed->items[i], part};
        }
    }
    int code = checkpoint_check_tiling(map->tensors, map->tensor_count, owned, count);
    free(owned);
    return code;
}

int checkpoint_map_values(const struct checkpoint_map *map, const struct muster_value *values, size_t count,
                          bool copy) {
    return value_json_read(json_object_get(map->tree, "values"), values, count, copy);
}

/* ---- writing ---- */

static json_t *numbers_json(const uint64_t *numbers, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++) {
        if (json_array_append_new(array, json_integer((json_int_t)numbers[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *tensor_json(const struct checkpoint_tensor *tensor) {
    return json_pack("{s:s, s:s, s:o, s:b}", "name", tensor->name, "type", muster_type_name(tensor->type), "shape",
                     numbers_json(tensor->shape, tensor->dim_count), "even", (int)tensor->is_even);
}

static json_t *ranges_json(const struct checkpoint_ranges *listed) {
    json_t *array = json_array();
    for (size_t i = 0; i < listed->count; i++) {
        const struct checkpoint_range *range = &listed->items[i];
        const uint64_t numbers[] = {range->tensor, range->first, range->count};
        if (json_array_append_new(array, numbers_json(numbers, 3)) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *part_json(const struct checkpoint_part *part) {
    return json_pack("{s:I, s:I, s:o, s:o}", "bytes", (json_int_t)part->bytes, "data", (json_int_t)part->data_at,
                     "xxh3", sealed_json_hex(part->digest), "ranges", ranges_json(&part->listed));
}

static int build(json_t *tree, const struct checkpoint_map *map, const struct muster_value *values,
                 size_t value_count) {
    json_t *all_values = json_object(), *tensors = json_array(), *parts = json_array();
    int bad = json_object_set_new(tree, "format", json_string(CHECKPOINT_MAP_FORMAT)) |
              json_object_set_new(tree, "version", json_integer(CHECKPOINT_MAP_VERSION)) |
              json_object_set_new(tree, "step", json_integer(map->step)) |
              json_object_set_new(tree, "token", sealed_json_hex(map->token)) |
              json_object_set_new(tree, "block", json_integer((json_int_t)map->block_bytes)) |
              json_object_set_new(tree, "values", all_values) | json_object_set_new(tree, "tensors", tensors) |
              json_object_set_new(tree, "parts", parts);
    for (size_t i = 0; i < map->tensor_count && !bad; i++) {
        bad = json_array_append_new(tensors, tensor_json(&map->tensors[i]));
    }
    for (uint32_t i = 0; i < map->part_count && !bad; i++) {
        bad = json_array_append_new(parts, part_json(&map->parts[i]));
    }
    return bad ? no_memory() : value_json_add(all_values, values, value_count);
}

int checkpoint_map_encode(const struct checkpoint_map *map, const struct muster_value *values, size_t value_count,
                          struct buf *out) {
    json_t *tree = json_object();
    int code = tree ? build(tree, map, values, value_count) : no_memory();
    code =
        code ? code : sealed_json_append(tree, JSON_COMPACT | JSON_REAL_PRECISION(17), CHECKPOINT_MAP_BYTES_MAX, out);
    json_decref(tree);
    return code;
}
