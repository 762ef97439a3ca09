/* Layouts of random models: every element has one owner, parts are about equal, no block is cut, and what a host stores
 * does not overlap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "train/layout/unit_layout.h"

enum { UNITS_MAX = 5, ITEMS_MAX = 30, PARTS_MAX = 64, ROUNDS = 400, LINE_BYTES = 64 };

/* ---- random models ---- */

static uint64_t chance_state = 20260725;

static uint32_t chance(uint32_t below) {
    chance_state ^= chance_state << 13;
    chance_state ^= chance_state >> 7;
    chance_state ^= chance_state << 17;
    return (uint32_t)(chance_state % below);
}

struct model {
    struct unit_item items[ITEMS_MAX];
    uint32_t item_count, unit_count;
};

static void random_item(struct unit_item *item, uint32_t unit) {
    static const size_t counts[] = {1, 2, 15, 16, 17, 31, 32, 33, 100, 1000, 4096, 5003};
    *item = (struct unit_item){.count = counts[chance(sizeof counts / sizeof *counts)], .unit = unit};
    if (chance(3) == 0) { /* in blocks: of any length, one may be longer than a part */
        item->block = 1 + chance(300);
        item->count = item->block * (1 + chance(20));
    } else if (chance(2) == 0) {
        item->block = 1;
    }
    item->frozen = chance(4) == 0;
}

static void random_model(struct model *model) {
    *model = (struct model){.unit_count = 1 + chance(UNITS_MAX)};
    for (uint32_t unit = 0; unit < model->unit_count; unit++) {
        uint32_t count = 1 + chance(ITEMS_MAX / UNITS_MAX);
        for (uint32_t i = 0; i < count; i++) {
            random_item(&model->items[model->item_count++], unit);
        }
    }
}

static struct unit_layout *lay_out(const struct model *model, uint32_t parts, uint32_t first, uint32_t stride) {
    struct unit_layout *layout = NULL;
    assert_int_equal(
        unit_layout_create(model->items, model->item_count, model->unit_count, parts, first, stride, &layout), 0);
    return layout;
}

static enum unit_segment segment_of(const struct unit_item *item) {
    return item->frozen ? UNIT_FROZEN : UNIT_LEARNS;
}

/* ---- where parameters are ---- */

/* In the order of the list, those that learn before those that do not, each where a cache line may begin. */
static void check_items(const struct unit_layout *layout, uint32_t unit) {
    size_t ends[UNIT_SEGMENTS] = {0, layout->units[unit].counts[UNIT_LEARNS]};
    for (uint32_t i = 0; i < layout->item_count; i++) {
        const struct unit_item *item = &layout->items[i];
        if (item->unit == unit) {
            size_t *end = &ends[segment_of(item)];
            assert_int_equal(item->offset, unit_layout_round(*end));
            *end = item->offset + item->count;
        }
    }
    assert_int_equal(unit_layout_round(ends[UNIT_LEARNS]), layout->units[unit].counts[UNIT_LEARNS]);
    assert_int_equal(unit_layout_round(ends[UNIT_FROZEN]), unit_layout_count(&layout->units[unit]));
}

/* ---- who has which part ---- */

static size_t longest_block(const struct unit_layout *layout, uint32_t unit) {
    size_t longest = 1;
    for (uint32_t i = 0; i < layout->item_count; i++) {
        const struct unit_item *item = &layout->items[i];
        longest = item->unit == unit && item->block > longest ? item->block : longest;
    }
    return longest;
}

/* One behind the other, over the whole segment; a cut is off by half an alignment and half a block at most. */
static void check_parts(const struct unit_layout *layout, uint32_t unit, enum unit_segment segment) {
    size_t at = 0, total = layout->units[unit].counts[segment], even = total / layout->part_count;
    size_t off = 1 + MUSTER_FSDP_ALIGNMENT + longest_block(layout, unit);
    for (uint32_t part = 0; part < layout->part_count; part++) {
        const struct unit_part *found = unit_layout_part(layout, unit, segment, part);
        assert_int_equal(found->begin, at);
        assert_true(found->count <= even + off && found->count + off >= even);
        at += found->count;
    }
    assert_int_equal(at, total);
}

static void check_owners(const struct unit_layout *layout, uint32_t item) {
    const struct unit_item *found = &layout->items[item];
    size_t owned = 0;
    for (uint32_t part = 0; part < layout->part_count; part++) {
        size_t offset = SIZE_MAX, count = unit_layout_overlap(layout, item, part, &offset);
        if (count > 0) {
            assert_int_equal(offset, owned); /* the next part goes on where this one ends */
            owned += count;
        } else {
            assert_int_equal(offset, 0);
        }
        if (found->block > 1) {
            assert_int_equal(offset % found->block, 0);
            assert_int_equal(count % found->block, 0);
        }
    }
    assert_int_equal(owned, found->count);
}

static void every_element_has_one_owner(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct model model;
        random_model(&model);
        struct unit_layout *layout = lay_out(&model, 1 + chance(PARTS_MAX), 0, 1);
        for (uint32_t unit = 0; unit < model.unit_count; unit++) {
            check_items(layout, unit);
            check_parts(layout, unit, UNIT_LEARNS);
            check_parts(layout, unit, UNIT_FROZEN);
        }
        for (uint32_t item = 0; item < model.item_count; item++) {
            check_owners(layout, item);
        }
        unit_layout_free(layout);
    }
}

static void more_parts_than_elements_leave_some_empty(void **state) {
    (void)state;
    const struct model model = {.items = {{.count = 3}, {.count = 40, .block = 40}}, .item_count = 2, .unit_count = 1};
    struct unit_layout *layout = lay_out(&model, PARTS_MAX, 0, 1);
    size_t offset;
    uint32_t owners[2] = {0};
    for (uint32_t part = 0; part < PARTS_MAX; part++) {
        for (uint32_t item = 0; item < 2; item++) {
            owners[item] += unit_layout_overlap(layout, item, part, &offset) > 0;
        }
    }
    assert_int_equal(owners[0], 1);
    assert_int_equal(owners[1], 1);
    check_owners(layout, 0);
    check_owners(layout, 1);
    unit_layout_free(layout);
}

/* ---- what a host stores ---- */

/* Marks elements that must not have been marked before. */
static void claim(uint8_t *claimed, size_t room, size_t begin, size_t count) {
    assert_true(begin <= room && count <= room - begin);
    for (size_t i = begin; i < begin + count; i++) {
        assert_int_equal(claimed[i], 0);
        claimed[i] = 1;
    }
}

static void check_stored(const struct unit_layout *layout) {
    uint8_t *all = calloc(layout->stored_count + 1, 1), *learning = calloc(layout->stored_learns_count + 1, 1);
    assert_true(all && learning);
    for (uint32_t unit = 0; unit < layout->unit_count; unit++) {
        /* As float32 and as bfloat16 a unit begins on a cache line. */
        assert_int_equal(layout->units[unit].stored_begin * sizeof(uint16_t) % LINE_BYTES, 0);
        for (uint32_t local = 0; local < layout->part_count / layout->stride; local++) {
            uint32_t part = layout->first_part + local * layout->stride;
            size_t learns = unit_layout_part(layout, unit, UNIT_LEARNS, part)->count;
            claim(all, layout->stored_count, unit_layout_stored_at(layout, unit, UNIT_LEARNS, local), learns);
            claim(all, layout->stored_count, unit_layout_stored_at(layout, unit, UNIT_FROZEN, local),
                  unit_layout_part(layout, unit, UNIT_FROZEN, part)->count);
            claim(learning, layout->stored_learns_count, unit_layout_learns_at(layout, unit, local), learns);
        }
    }
    free(all);
    free(learning);
}

/* With all parts on one host, what is stored of a unit is the unit. */
static void check_whole(const struct unit_layout *layout) {
    for (uint32_t unit = 0; unit < layout->unit_count; unit++) {
        const struct unit_shape *shape = &layout->units[unit];
        for (uint32_t part = 0; part < layout->part_count; part++) {
            assert_int_equal(unit_layout_stored_at(layout, unit, UNIT_LEARNS, part),
                             shape->stored_begin + shape->parts[UNIT_LEARNS][part].begin);
            assert_int_equal(unit_layout_stored_at(layout, unit, UNIT_FROZEN, part),
                             shape->stored_begin + shape->counts[UNIT_LEARNS] + shape->parts[UNIT_FROZEN][part].begin);
        }
    }
}

static void what_a_host_stores_does_not_overlap(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct model model;
        random_model(&model);
        uint32_t hosts = 1 + chance(6), each = 1 + chance(6);
        size_t stored = 0, largest = 0;
        for (uint32_t host = 0; host < hosts; host++) {
            struct unit_layout *layout = lay_out(&model, hosts * each, host, hosts);
            check_stored(layout);
            for (uint32_t unit = 0; unit < model.unit_count; unit++) {
                size_t count = unit_layout_count(&layout->units[unit]);
                stored += layout->units[unit].stored[UNIT_LEARNS] + layout->units[unit].stored[UNIT_FROZEN];
                largest = count > largest ? count : largest;
            }
            assert_int_equal(layout->largest_count, largest);
            if (hosts == 1) {
                check_whole(layout);
            }
            unit_layout_free(layout);
        }
        struct unit_layout *whole = lay_out(&model, 1, 0, 1);
        for (uint32_t unit = 0; unit < model.unit_count; unit++) {
            stored -= unit_layout_count(&whole->units[unit]);
        }
        assert_int_equal(stored, 0); /* all hosts together store everything once */
        unit_layout_free(whole);
    }
}

/* ---- limits ---- */

static void a_unit_that_is_too_large_is_refused(void **state) {
    (void)state;
    const size_t counts[] = {MUSTER_COLLECTIVE_BYTES_MAX + 1, SIZE_MAX, SIZE_MAX - MUSTER_FSDP_ALIGNMENT};
    struct unit_layout *layout = NULL;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const struct unit_item items[] = {{.count = 5}, {.count = counts[i]}};
        assert_int_equal(unit_layout_create(items, 2, 1, 4, 0, 1, &layout), MUSTER_ELIMIT);
    }
    assert_null(layout);
    unit_layout_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_one_owner),
        cmocka_unit_test(more_parts_than_elements_leave_some_empty),
        cmocka_unit_test(what_a_host_stores_does_not_overlap),
        cmocka_unit_test(a_unit_that_is_too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
