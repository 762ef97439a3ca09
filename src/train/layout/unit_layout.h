/* Where the parameters of a model's units are, and who has which part of them. Pure.
 *
 * A unit has two segments: the parameters that learn, then the frozen ones. Within them parameters lie in the order of
 * the list, each on a multiple of MUSTER_FSDP_ALIGNMENT elements. Each segment is cut into `part_count` parts of
 * about equal size; a part may be empty. Part p of every segment belongs to the same rank.
 *
 * A host stores the parts of its ranks: part first, first + stride, first + 2 * stride, ... of each segment, one after
 * the other. With all parts (first 0, stride 1) what it stores of a unit is the unit itself. It begins on a cache line,
 * as float32 and as bfloat16. */
#ifndef TRAIN_UNIT_LAYOUT_H
#define TRAIN_UNIT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/fsdp.h>

enum unit_segment { UNIT_LEARNS, UNIT_FROZEN, UNIT_SEGMENTS };

/* A parameter. The upper four are given, the offset is found. */
struct unit_item {
    size_t count, block;
    uint32_t unit;
    bool frozen;
    size_t offset; /* elements from the beginning of its unit */
};

/* A part, in elements. */
struct unit_part {
    size_t begin, count; /* from the beginning of its segment */
};

struct unit_shape {
    uint32_t first, item_count;
    size_t counts[UNIT_SEGMENTS]; /* elements, gaps included; multiples of the alignment */
    struct unit_part *parts[UNIT_SEGMENTS];
    size_t stored[UNIT_SEGMENTS]; /* elements that the host stores of each segment */
    size_t stored_begin; /* of what the host stores of the unit among all that it stores: elements of all segments */
    size_t learns_begin; /* the same, where only the segments that learn are counted */
};

struct unit_layout {
    uint32_t unit_count, part_count, first_part, stride;
    struct unit_item *items;
    uint32_t item_count;
    struct unit_shape *units;
    struct unit_part *parts;                  /* of all units */
    size_t stored_count, stored_learns_count; /* elements that the host stores */
    size_t largest_count;                     /* elements of the largest unit */
    size_t largest_learns_count;              /* of the largest segment that learns */
    size_t bytes;                             /* of this layout's own memory */
};

/* items: sorted by unit, every unit has one; copied. first_part < stride, and part_count is a multiple of stride.
 * MUSTER_ENOMEM, MUSTER_ELIMIT. */
int unit_layout_create(const struct unit_item *items, uint32_t item_count, uint32_t unit_count, uint32_t part_count,
                       uint32_t first_part, uint32_t stride, struct unit_layout **out);
/* NULL is accepted. */
void unit_layout_free(struct unit_layout *layout);

static inline const struct unit_part *unit_layout_part(const struct unit_layout *layout, uint32_t unit,
                                                       enum unit_segment segment, uint32_t part) {
    return &layout->units[unit].parts[segment][part];
}

/* Elements with the gap behind them. */
static inline size_t unit_layout_round(size_t count) {
    return (count + MUSTER_FSDP_ALIGNMENT - 1) / MUSTER_FSDP_ALIGNMENT * MUSTER_FSDP_ALIGNMENT;
}

/* The same for what a host stores of a unit. */
static inline size_t unit_layout_round_stored(size_t count) {
    const size_t line = 2 * MUSTER_FSDP_ALIGNMENT; /* of bfloat16 */
    return (count + line - 1) / line * line;
}

static inline size_t unit_layout_count(const struct unit_shape *unit) {
    return unit->counts[UNIT_LEARNS] + unit->counts[UNIT_FROZEN];
}

/* Where the host stores part `local` (0, 1, ...) of its own parts of that segment: elements, among all that it stores,
 * or, for the second, among what learns. */
size_t unit_layout_stored_at(const struct unit_layout *layout, uint32_t unit, enum unit_segment segment,
                             uint32_t local);
size_t unit_layout_learns_at(const struct unit_layout *layout, uint32_t unit, uint32_t local);

/* The elements of an item that lie in part `part`: from *out_offset of the item on, so many. */
size_t unit_layout_overlap(const struct unit_layout *layout, uint32_t item, uint32_t part, size_t *out_offset);

/* The part that has element `offset` of an item. */
uint32_t unit_layout_part_of(const struct unit_layout *layout, uint32_t item, size_t offset);

#endif
