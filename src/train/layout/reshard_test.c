/* What goes where between all pairs of worlds: every element comes to its new owner once, in order, from the part that
 * had it. Some parts are empty: items are as small as one element. */
#include "train/layout/reshard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLDS = 16, UNITS = 4, ITEMS = 8 };

static const struct unit_item items[ITEMS] = {
    {.count = 300, .unit = 0},
    {.count = 7, .unit = 0, .frozen = true},
    {.count = 1, .unit = 1}, /* all parts but one are empty */
    {.count = 1000, .block = 50, .unit = 2},
    {.count = 33, .unit = 2, .frozen = true},
    {.count = 4096, .block = 4096, .unit = 2}, /* is not cut at all */
    {.count = 64, .unit = 3, .frozen = true},
    {.count = 517, .block = 3, .unit = 3},
};

static struct unit_layout *cut(uint32_t parts) {
    struct unit_layout *layout = NULL;
    assert_int_equal(unit_layout_create(items, ITEMS, UNITS, parts, 0, 1, &layout), 0);
    return layout;
}

/* Does the part have the element? */
static bool has(const struct unit_layout *layout, uint32_t item, uint32_t part, size_t offset) {
    size_t first = 0, count = unit_layout_overlap(layout, item, part, &first);
    return offset >= first && offset - first < count;
}

/* Returns how many runs there are. */
static size_t check_item(const struct unit_layout *old, const struct unit_layout *now, uint32_t item, size_t most) {
    size_t runs = 0, all = 0;
    for (uint32_t to = 0; to < now->part_count; to++) {
        size_t walked = 0, first = 0, wanted = unit_layout_overlap(now, item, to, &first);
        struct reshard_run run;
        while (reshard_next(old, now, item, to, walked, most, &run)) {
            assert_int_equal(run.offset, first + walked);
            assert_true(run.count > 0 && run.count <= most);
            assert_true(has(old, item, run.from, run.offset) && has(old, item, run.from, run.offset + run.count - 1));
            walked += run.count;
            runs++;
        }
        assert_int_equal(walked, wanted);
        all += walked;
    }
    assert_int_equal(all, items[item].count);
    return runs;
}

static void every_element_comes_to_its_new_owner(void **state) {
    (void)state;
    for (uint32_t before = 1; before <= WORLDS; before++) {
        struct unit_layout *old = cut(before);
        for (uint32_t after = 1; after <= WORLDS; after++) {
            struct unit_layout *now = cut(after);
            for (uint32_t item = 0; item < ITEMS; item++) {
                size_t runs = check_item(old, now, item, SIZE_MAX);
                assert_true(runs < before + after); /* no more than there are cuts */
                assert_true(check_item(old, now, item, 10) >= items[item].count / 10);
            }
            unit_layout_free(now);
        }
        unit_layout_free(old);
    }
}

static void where_nothing_changes_each_keeps_its_part(void **state) {
    (void)state;
    for (uint32_t parts = 1; parts <= WORLDS; parts++) {
        struct unit_layout *layout = cut(parts);
        for (uint32_t item = 0; item < ITEMS; item++) {
            for (uint32_t to = 0; to < parts; to++) {
                struct reshard_run run;
                bool any = reshard_next(layout, layout, item, to, 0, SIZE_MAX, &run);
                size_t first = 0, count = unit_layout_overlap(layout, item, to, &first);
                assert_true(any ? run.from == to && run.offset == first && run.count == count : count == 0);
                assert_false(reshard_next(layout, layout, item, to, count, SIZE_MAX, &run));
                assert_false(reshard_next(layout, layout, item, to, 0, 0, &run));
            }
        }
        unit_layout_free(layout);
    }
}

static void each_element_has_one_part(void **state) {
    (void)state;
    for (uint32_t parts = 1; parts <= WORLDS; parts++) {
        struct unit_layout *layout = cut(parts);
        for (uint32_t item = 0; item < ITEMS; item++) {
            for (size_t offset = 0; offset < items[item].count; offset++) {
                assert_true(has(layout, item, unit_layout_part_of(layout, item, offset), offset));
            }
        }
        unit_layout_free(layout);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_comes_to_its_new_owner),
        cmocka_unit_test(where_nothing_changes_each_keeps_its_part),
        cmocka_unit_test(each_element_has_one_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
