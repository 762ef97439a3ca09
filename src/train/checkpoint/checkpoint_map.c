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

/* All ranges that are listed, with their parts; for the caller to free. */
static int list_owned(const struct checkpoint_map *map, struct checkpoint_owned **out) {
    struct checkpoint_owned *owned = calloc(map->range_count + 1, sizeof *owned);
    size_t count = 0;
    if (!owned) {
        return no_memory();
    }
    for (uint32_t part = 0; part < map->part_count; part++) {
        const struct checkpoint_ranges *listed = &map->parts[part].listed;
        for (size_t i = 0; i < listed->count; i++) {
            owned[count++] = (struct checkpoint_owned){listed->items[i], part};
        }
    }
    *out = owned;
    return 0;
}

int checkpoint_map_check(const struct checkpoint_map *map) {
    struct checkpoint_owned *owned = NULL;
    int code = list_owned(map, &owned);
    code = code ? code : checkpoint_check_tiling(map->tensors, map->tensor_count, owned, map->range_count);
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

/* How many ranges from owned[0] on are a run: of one tensor, of equal length, and of parts that follow one another. */
static size_t run_length(const struct checkpoint_owned *owned, size_t count) {
    size_t length = 1;
    while (length < count && owned[length].range.tensor == owned->range.tensor &&
           owned[length].range.count == owned->range.count && owned[length].part == owned->part + length) {
        length++;
    }
    return length;
}

/* Of a tensor's ranges, which are in order: each begins where the one before ends. */
static json_t *runs_json(const struct checkpoint_owned *owned, size_t count) {
    json_t *array = json_array();
    for (size_t i = 0, length = 0; i < count; i += length) {
        length = run_length(owned + i, count - i);
        const uint64_t numbers[] = {owned[i].part, owned[i].range.count, length};
        if (json_array_append_new(array, numbers_json(numbers, length > 1 ? 3 : 2)) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* before: the tensor in front of it, or NULL. owned: the tensor's ranges, if it is not even. */
static json_t *tensor_json(const struct checkpoint_tensor *tensor, const struct checkpoint_tensor *before,
                           const struct checkpoint_owned *owned, size_t count) {
    const char *type = before && before->type == tensor->type ? "" : muster_type_name(tensor->type);
    json_t *shape = numbers_json(tensor->shape, tensor->dim_count);
    return tensor->is_even ? json_pack("[s, s, o]", tensor->name, type, shape)
                           : json_pack("[s, s, o, o]", tensor->name, type, shape, runs_json(owned, count));
}

static json_t *part_json(const struct checkpoint_part *part) {
    return json_pack("[I, I, o]", (json_int_t)part->bytes, (json_int_t)part->data_at, sealed_json_hex(part->digest));
}

static int add_tensors(json_t *array, const struct checkpoint_map *map) {
    struct checkpoint_owned *owned = NULL;
    size_t begin = 0;
    int code = list_owned(map, &owned);
    if (code == 0 && map->part_count > 0) { /* else the ranges are not known yet */
        code = checkpoint_check_tiling(map->tensors, map->tensor_count, owned, map->range_count);
    }
    for (uint32_t i = 0; i < map->tensor_count && code == 0; i++) {
        size_t end = begin;
        while (end < map->range_count && owned[end].range.tensor == i) {
            end++;
        }
        code = json_array_append_new(array, tensor_json(&map->tensors[i], i > 0 ? &map->tensors[i - 1] : NULL,
                                                        owned + begin, end - begin))
                   ? no_memory()
                   : 0;
        begin = end;
    }
    free(owned);
    return code;
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
    for (uint32_t i = 0; i < map->part_count && !bad; i++) {
        bad = json_array_append_new(parts, part_json(&map->parts[i]));
    }
    int code = bad ? no_memory() : add_tensors(tensors, map);
    return code ? code : value_json_add(all_values, values, value_count);
}

int checkpoint_map_encode(const struct checkpoint_map *map, const struct muster_value *values, size_t value_count,
                          struct buf *out) {
    json_t *tree = json_object();
    int code = map->range_count > CHECKPOINT_MAP_RANGES_MAX
                   ? status_fail(MUSTER_ELIMIT, "%zu ranges; at most %zu fit into a checkpoint", map->range_count,
                                 CHECKPOINT_MAP_RANGES_MAX)
                   : 0;
    code = code ? code : tree ? build(tree, map, values, value_count) : no_memory();
    code =
        code ? code : sealed_json_append(tree, JSON_COMPACT | JSON_REAL_PRECISION(17), CHECKPOINT_MAP_BYTES_MAX, out);
    json_decref(tree);
    return code;
}
