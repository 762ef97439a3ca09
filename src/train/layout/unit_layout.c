/* See unit_layout.h. */
#include "train/layout/unit_layout.h"

#include <assert.h>
#include <stdlib.h>

#include <muster/collective.h>
#include <muster/fsdp.h>

#include "base/status.h"

static enum unit_segment segment_of(const struct unit_item *item) {
    return item->frozen ? UNIT_FROZEN : UNIT_LEARNS;
}

/* Offsets of the unit's items, and the counts of its segments. */
static int place_items(struct unit_layout *layout, struct unit_shape *unit) {
    size_t end = 0;
    for (enum unit_segment segment = UNIT_LEARNS; segment < UNIT_SEGMENTS; segment++) {
        size_t begin = end;
        for (uint32_t i = unit->first; i < unit->first + unit->item_count; i++) {
            struct unit_item *item = &layout->items[i];
            if (segment_of(item) == segment) {
                if (item->count > MUSTER_COLLECTIVE_BYTES_MAX || end > MUSTER_COLLECTIVE_BYTES_MAX) {
                    return status_fail(MUSTER_ELIMIT, "unit %u has more than %zu elements", item->unit,
                                       MUSTER_COLLECTIVE_BYTES_MAX);
                }
                item->offset = end;
                end += unit_layout_round(item->count);
            }
        }
        unit->counts[segment] = end - begin;
    }
    return MUSTER_OK;
}

/* A cut near `wanted` elements of the segment that splits no block. */
static size_t cut_near(const struct unit_layout *layout, const struct unit_shape *unit, enum unit_segment segment,
                       size_t wanted) {
    size_t begin = segment == UNIT_LEARNS ? 0 : unit->counts[UNIT_LEARNS];
    size_t cut = (wanted + MUSTER_FSDP_ALIGNMENT / 2) / MUSTER_FSDP_ALIGNMENT * MUSTER_FSDP_ALIGNMENT;
    for (uint32_t i = unit->first; i < unit->first + unit->item_count; i++) {
        const struct unit_item *item = &layout->items[i];
        size_t at = item->offset - begin;
        if (segment_of(item) == segment && item->block > 1 && cut > at && cut < at + item->count) {
            return at + (cut - at + item->block / 2) / item->block * item->block;
        }
    }
    return cut;
}

/* Of two rounded cuts the later one may come out lower; no part has a negative size. */
static void cut_segment(const struct unit_layout *layout, const struct unit_shape *unit, enum unit_segment segment) {
    size_t total = unit->counts[segment], begin = 0;
    for (uint32_t part = 0; part < layout->part_count; part++) {
        size_t each = total / layout->part_count, rest = total % layout->part_count;
        size_t wanted = each * (part + 1) + rest * (part + 1) / layout->part_count;
        size_t end = part + 1 == layout->part_count ? total : cut_near(layout, unit, segment, wanted);
        end = end > total ? total : end;
        end = end < begin ? begin : end;
        unit->parts[segment][part] = (struct unit_part){begin, end - begin};
        begin = end;
    }
}

static void count_stored(struct unit_layout *layout, struct unit_shape *unit) {
    for (enum unit_segment segment = UNIT_LEARNS; segment < UNIT_SEGMENTS; segment++) {
        for (uint32_t part = layout->first_part; part < layout->part_count; part += layout->stride) {
            unit->stored[segment] += unit->parts[segment][part].count;
        }
    }
    unit->stored_begin = layout->stored_count;
    unit->learns_begin = layout->stored_learns_count;
    layout->stored_count += unit_layout_round_stored(unit->stored[UNIT_LEARNS] + unit->stored[UNIT_FROZEN]);
    layout->stored_learns_count += unit_layout_round(unit->stored[UNIT_LEARNS]);
}

static int lay_out(struct unit_layout *layout) {
    int status = MUSTER_OK;
    struct unit_part *parts = layout->parts;
    for (uint32_t i = 0; status == MUSTER_OK && i < layout->unit_count; i++) {
        struct unit_shape *unit = &layout->units[i];
        status = place_items(layout, unit);
        for (enum unit_segment segment = UNIT_LEARNS; status == MUSTER_OK && segment < UNIT_SEGMENTS; segment++) {
            unit->parts[segment] = parts;
            parts += layout->part_count;
            cut_segment(layout, unit, segment);
        }
        if (status == MUSTER_OK) {
            size_t count = unit_layout_count(unit), learns = unit->counts[UNIT_LEARNS];
            count_stored(layout, unit);
            layout->largest_count = count > layout->largest_count ? count : layout->largest_count;
            layout->largest_learns_count =
                learns > layout->largest_learns_count ? learns : layout->largest_learns_count;
        }
    }
    return status;
}

int unit_layout_create(const struct unit_item *items, uint32_t item_count, uint32_t unit_count, uint32_t part_count,
                       uint32_t first_part, uint32_t stride, struct unit_layout **out) {
    size_t all_parts = (size_t)unit_count * UNIT_SEGMENTS * part_count;
    size_t bytes = sizeof **out + item_count * sizeof *items + unit_count * sizeof(struct unit_shape) +
                   all_parts * sizeof(struct unit_part);
    assert(first_part < stride && part_count % stride == 0);
    struct unit_layout *layout = calloc(1, bytes);
    if (!layout) {
        return status_fail(MUSTER_ENOMEM, "no memory for the layout of %u units in %u parts", unit_count, part_count);
    }
    *layout = (struct unit_layout){.unit_count = unit_count,
                                   .part_count = part_count,
                                   .first_part = first_part,
                                   .stride = stride,
                                   .item_count = item_count,
                                   .bytes = bytes};
    layout->units = (struct unit_shape *)(layout + 1);
    layout->parts = (struct unit_part *)(layout->units + unit_count);
    layout->items = (struct unit_item *)(layout->parts + all_parts);
    for (uint32_t i = 0; i < item_count; i++) {
        struct unit_shape *unit = &layout->units[items[i].unit];
        unit->first = unit->item_count == 0 ? i : unit->first;
        unit->item_count++;
        layout->items[i] = items[i];
    }
    int status = lay_out(layout);
    if (status != MUSTER_OK) {
        unit_layout_free(layout);
        return status;
    }
    *out = layout;
    return MUSTER_OK;
}

void unit_layout_free(struct unit_layout *layout) {
    free(layout);
}

static size_t stored_before(const struct unit_layout *layout, uint32_t unit, enum unit_segment segment,
                            uint32_t local) {
    size_t before = 0;
    for (uint32_t i = 0; i < local; i++) {
        before += unit_layout_part(layout, unit, segment, layout->first_part + i * layout->stride)->count;
    }
    return before;
}

size_t unit_layout_stored_at(const struct unit_layout *layout, uint32_t unit, enum unit_segment segment,
                             uint32_t local) {
    const struct unit_shape *shape = &layout->units[unit];
    size_t segment_begin = segment == UNIT_LEARNS ? 0 : shape->stored[UNIT_LEARNS];
    return shape->stored_begin + segment_begin + stored_before(layout, unit, segment, local);
}

size_t unit_layout_learns_at(const struct unit_layout *layout, uint32_t unit, uint32_t local) {
    return layout->units[unit].learns_begin + stored_before(layout, unit, UNIT_LEARNS, local);
}

static size_t item_begin(const struct unit_layout *layout, const struct unit_item *item) {
    const struct unit_shape *unit = &layout->units[item->unit];
    return item->offset - (item->frozen ? unit->counts[UNIT_LEARNS] : 0);
}

size_t unit_layout_overlap(const struct unit_layout *layout, uint32_t item, uint32_t part, size_t *out_offset) {
    const struct unit_item *found = &layout->items[item];
    const struct unit_shape *unit = &layout->units[found->unit];
    enum unit_segment segment = segment_of(found);
    const struct unit_part *range = &unit->parts[segment][part];
    size_t first = item_begin(layout, found), last = first + found->count;
    size_t begin = range->begin > first ? range->begin : first;
    size_t end = range->begin + range->count < last ? range->begin + range->count : last;
    *out_offset = begin < end ? begin - first : 0;
    return begin < end ? end - begin : 0;
}

/* Parts follow each other, and some are empty: it is the last one that begins there or before. */
uint32_t unit_layout_part_of(const struct unit_layout *layout, uint32_t item, size_t offset) {
    const struct unit_item *found = &layout->items[item];
    const struct unit_part *parts = layout->units[found->unit].parts[segment_of(found)];
    size_t at = item_begin(layout, found) + offset;
    uint32_t low = 0, high = layout->part_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        low = parts[middle].begin <= at ? middle : low;
        high = parts[middle].begin <= at ? high : middle;
    }
    return low;
}
