/* Fuzzes the readers of a checkpoint's record and map: the input as it is, and with a checksum that fits, which lets it
 * past the first check. What is accepted fits together. Names of files are tried on the way. */
#include <assert.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/checkpoint/checkpoint_map.h"
#include "train/checkpoint/checkpoint_name.h"
#include "train/checkpoint/checkpoint_record.h"
#include "train/state/checksum.h"

#include <muster/status.h>

enum { TRAILER_BYTES = 37 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(int code) {
    assert((code == MUSTER_ECORRUPT || code == MUSTER_EUNSUPPORTED) && muster_detail()[0] != '\0');
}

static void decode_record(const uint8_t *data, size_t size) {
    struct checkpoint_record record;
    int code = checkpoint_record_decode(data, size, &record);
    if (code) {
        check_refusal(code);
        return;
    }
    assert(record.step >= 0 && record.part_count > 0 && record.map_bytes <= CHECKPOINT_MAP_BYTES_MAX);
}

static void check_part(const struct checkpoint_map *map, uint32_t part) {
    struct checkpoint_ranges ranges;
    struct checkpoint_layout layout;
    assert(map->parts[part].data_at <= map->parts[part].bytes);
    assert(checkpoint_ranges_of_part(map->tensors, map->tensor_count, part, map->part_count, &map->parts[part].listed,
                                     &ranges) == 0);
    for (size_t i = 0; i < ranges.count; i++) {
        const struct checkpoint_range *range = &ranges.items[i];
        assert(range->tensor < map->tensor_count && range->count > 0);
        assert(range->first + range->count <= map->tensors[range->tensor].count);
    }
    if (checkpoint_layout_create(map->tensors, &ranges, map->block_bytes, &layout) == 0) {
        checkpoint_layout_done(&layout);
    }
    checkpoint_ranges_done(&ranges);
}

static void decode_map(const uint8_t *data, size_t size) {
    struct checkpoint_map map;
    int64_t integer = 0;
    struct muster_value value = muster_value_integer("epoch", &integer);
    int code = checkpoint_map_decode(data, size, &map);
    if (code) {
        check_refusal(code);
        return;
    }
    for (uint32_t part = 0; part < map.part_count; part++) {
        check_part(&map, part);
    }
    (void)checkpoint_map_values(&map, &value, 1, true);
    checkpoint_map_done(&map);
}

static void parse_name(const uint8_t *data, size_t size) {
    char name[2 * CHECKPOINT_NAME_MAX] = "", again[CHECKPOINT_NAME_MAX] = "";
    memcpy(name, data, size < sizeof name ? size : sizeof name - 1);
    struct checkpoint_name parsed = checkpoint_name_parse(name);
    if (parsed.kind != CHECKPOINT_OTHER) {
        checkpoint_name_write(again, &parsed);
        assert(strcmp(name, again) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    decode_record(data, size);
    decode_map(data, size);
    parse_name(data, size);
    size_t checked = size > TRAILER_BYTES ? size - TRAILER_BYTES : 0;
    char *fitting = malloc(checked + TRAILER_BYTES + 1);
    if (!fitting) {
        return 0;
    }
    if (checked > 0) {
        memcpy(fitting, data, checked);
    }
    (void)snprintf(fitting + checked, TRAILER_BYTES + 1, ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n",
                   checksum_of(fitting, checked));
    decode_record((const uint8_t *)fitting, checked + TRAILER_BYTES);
    decode_map((const uint8_t *)fitting, checked + TRAILER_BYTES);
    free(fitting);
    return 0;
}
