/* See checkpoint_layout.h. */
#include "train/checkpoint/checkpoint_layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/state/safetensors.h"

/* The tensor of checksums. No range has its name: theirs end with a bracket. */
#define TABLE_NAME "xxh3"

/* A name, and "[18446744073709551615:18446744073709551615]". */
enum { RANGE_NAME_MAX = MUSTER_NAME_MAX + 44 };

/* ---- ranges ---- */

void checkpoint_ranges_done(struct checkpoint_ranges *ranges) {
    free(ranges->items);
    *ranges = (struct checkpoint_ranges){.items = NULL};
}

int checkpoint_ranges_of_part(const struct checkpoint_tensor *tensors, size_t tensor_count, uint32_t part,
                              uint32_t part_count, const struct checkpoint_ranges *listed,
                              struct checkpoint_ranges *out) {
    struct checkpoint_ranges all = {.items = calloc(tensor_count + listed->count + 1, sizeof *all.items)};
    if (!all.items) {
        return status_fail(MUSTER_ENOMEM, "no memory for the ranges of a checkpoint");
    }
    size_t next = 0;
    for (uint32_t i = 0; i < tensor_count; i++) {
        if (tensors[i].is_even) {
            uint64_t first = state_even_first(tensors[i].count, part, part_count);
            uint64_t end = state_even_first(tensors[i].count, part + 1, part_count);
            all.items[all.count] = (struct checkpoint_range){.tensor = i, .first = first, .count = end - first};
            all.count += end > first;
        }
        for (; next < listed->count && listed->items[next].tensor == i; next++) {
            all.items[all.count++] = listed->items[next];
        }
    }
    *out = all;
    return 0;
}

static int by_place(const void *left, const void *right) {
    const struct checkpoint_range *a = &((const struct checkpoint_owned *)left)->range;
    const struct checkpoint_range *b = &((const struct checkpoint_owned *)right)->range;
    if (a->tensor != b->tensor) {
        return a->tensor < b->tensor ? -1 : 1;
    }
    return a->first < b->first ? -1 : a->first > b->first;
}

void checkpoint_sort_owned(struct checkpoint_owned *owned, size_t count) {
    if (count > 1) {
        qsort(owned, count, sizeof *owned, by_place);
    }
}

/* The ranges of one tensor, sorted. */
static int check_tensor(const struct checkpoint_tensor *tensor, const struct checkpoint_owned *owned, size_t count) {
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t first = owned[i].range.first;
        if (first < at) {
            return status_fail(MUSTER_EINVAL,
                               "element %" PRIu64 " of tensor %s is of rank %" PRIu32 " and of rank %" PRIu32, first,
                               tensor->name, owned[i - 1].part, owned[i].part);
        }
        if (first > at) {
            break;
        }
        at += owned[i].range.count;
    }
    return at == tensor->count
               ? 0
               : status_fail(MUSTER_EINVAL, "element %" PRIu64 " of tensor %s is of no rank", at, tensor->name);
}

int checkpoint_check_tiling(const struct checkpoint_tensor *tensors, size_t tensor_count,
                            struct checkpoint_owned *owned, size_t count) {
    int code = 0;
    size_t begin = 0;
    checkpoint_sort_owned(owned, count);
    for (uint32_t i = 0; i < tensor_count && code == 0; i++) {
        size_t end = begin;
        while (end < count && owned[end].range.tensor == i) {
            end++;
        }
        code = tensors[i].is_even ? 0 : check_tensor(&tensors[i], owned + begin, end - begin);
        begin = end;
    }
    return code;
}

/* ---- a part's file ---- */

int checkpoint_layout_create(const struct checkpoint_tensor *tensors, const struct checkpoint_ranges *ranges,
                             uint64_t block_bytes, struct checkpoint_layout *out) {
    struct checkpoint_layout layout = {.count = ranges->count};
    layout.places = calloc(ranges->count + 1, sizeof *layout.places);
    if (!layout.places) {
        return status_fail(MUSTER_ENOMEM, "no memory for a table of %zu ranges", ranges->count);
    }
    for (size_t i = 0; i < ranges->count; i++) {
        uint64_t bytes = ranges->items[i].count * tensors[ranges->items[i].tensor].element_bytes;
        layout.places[i] = (struct checkpoint_place){layout.table_at, layout.block_count};
        layout.table_at += bytes; /* no overflow: each is at most 2^60, checked one by one */
        layout.block_count += (bytes + block_bytes - 1) / block_bytes;
        if (layout.table_at > SAFETENSORS_DATA_BYTES_MAX / 2) {
            checkpoint_layout_done(&layout);
            return status_fail(MUSTER_ELIMIT, "the ranges of one rank are larger than 2^59 bytes");
        }
    }
    *out = layout;
    return 0;
}

void checkpoint_layout_done(struct checkpoint_layout *layout) {
    free(layout->places);
    *layout = (struct checkpoint_layout){.places = NULL};
}

/* "weight[128:256]", which is how Python would slice the flattened tensor. */
static void name_range(char out[RANGE_NAME_MAX], const struct checkpoint_tensor *tensor,
                       const struct checkpoint_range *range) {
    (void)str_format(out, RANGE_NAME_MAX, "%s[%" PRIu64 ":%" PRIu64 "]", tensor->name, range->first,
                     range->first + range->count);
}

int checkpoint_layout_header(const struct checkpoint_layout *layout, const struct checkpoint_tensor *tensors,
                             const struct checkpoint_ranges *ranges, struct buf *out) {
    char(*names)[RANGE_NAME_MAX] = calloc(ranges->count + 1, sizeof *names);
    struct safetensors table = {.entries = calloc(ranges->count + 1, sizeof *table.entries),
                                .count = ranges->count + 1,
                                .data_bytes = checkpoint_layout_data_bytes(layout)};
    int code = names && table.entries ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the header of a part");
    for (size_t i = 0; i < ranges->count && code == 0; i++) {
        const struct checkpoint_range *range = &ranges->items[i];
        const struct checkpoint_tensor *tensor = &tensors[range->tensor];
        name_range(names[i], tensor, range);
        table.entries[i] = (struct safetensors_entry){.name = names[i],
                                                      .type = tensor->type,
                                                      .dim_count = 1,
                                                      .shape = {range->count},
                                                      .offset = layout->places[i].offset,
                                                      .bytes = range->count * tensor->element_bytes};
    }
    if (code == 0) { /* bytes, because numbers of 8 would have to begin at a multiple of 8 */
        table.entries[ranges->count] = (struct safetensors_entry){.name = TABLE_NAME,
                                                                  .type = MUSTER_UINT8,
                                                                  .dim_count = 2,
                                                                  .shape = {layout->block_count, sizeof(uint64_t)},
                                                                  .offset = layout->table_at,
                                                                  .bytes = layout->block_count * sizeof(uint64_t)};
        code = safetensors_encode(&table, -1, out);
    }
    free(table.entries);
    free(names);
    return code;
}
