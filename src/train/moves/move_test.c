/* Moving a state of several megabytes, in many rounds: from any number of parts, wherever they lie, to the parts of
 * three ranks. */
#include "train/moves/move.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "comm/group/ranks_test_support.h"

enum { RANKS = 3, ITEMS = 4, TENSORS = 6, PARTS_MAX = 5 };

/* Tensors 4 and 5 are what is remembered of items 0 and 2. */
static const struct unit_item items[ITEMS] = {{.count = 1500000, .unit = 0},
                                              {.count = 3, .unit = 0},
                                              {.count = 900001, .block = 7, .unit = 1},
                                              {.count = 40, .unit = 2}};
static const uint32_t item_of_tensor[TENSORS] = {0, 1, 2, 3, 0, 2};

/* This rank's part in this world, and what it has of the old one: all tensors' chunks of a part, one after the other.
 */
struct memory {
    struct unit_layout *old, *now;
    uint32_t part;
    float *chunks[TENSORS];
};

static float value_of(size_t tensor, size_t element) {
    return (float)(element % 1000003) + (float)tensor / 8;
}

static size_t chunk_of(const struct unit_layout *layout, size_t tensor, uint32_t part, size_t *out_first) {
    return unit_layout_overlap(layout, item_of_tensor[tensor], part, out_first);
}

static uint32_t item_of(const void *context, size_t tensor) {
    (void)context;
    return item_of_tensor[tensor];
}

static const float *from(const void *context, const struct move_source *source, const struct move_range *range,
                         uint32_t part) {
    const struct memory *memory = context;
    const float *at = source->memory;
    size_t first = 0;
    for (size_t tensor = 0; tensor < range->tensor; tensor++) {
        at += chunk_of(memory->old, tensor, part, &first);
    }
    (void)chunk_of(memory->old, range->tensor, part, &first);
    return at + range->offset - first;
}

static float *to(const void *context, const struct move_range *range) {
    const struct memory *memory = context;
    size_t first = 0;
    (void)chunk_of(memory->now, range->tensor, memory->part, &first);
    return memory->chunks[range->tensor] + range->offset - first;
}

static float *fill_part(struct rank *rank, const struct memory *memory, uint32_t part) {
    size_t at = 0, first = 0, count = 0;
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        count += chunk_of(memory->old, tensor, part, &first);
    }
    float *values = calloc(count + 1, sizeof *values);
    rank_check(rank, values != NULL);
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        count = chunk_of(memory->old, tensor, part, &first);
        for (size_t i = 0; i < count; i++) {
            values[at++] = value_of(tensor, first + i);
        }
    }
    return values;
}

static void check_part(struct rank *rank, const struct memory *memory) {
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        size_t first = 0, count = chunk_of(memory->now, tensor, memory->part, &first), wrong = 0;
        for (size_t i = 0; i < count; i++) {
            wrong += memory->chunks[tensor][i] !=
                     value_of(tensor, first + i); /* NOLINT(clang-diagnostic-float-equal): copied */
        }
        rank_check(rank, wrong == 0);
    }
}

/* shift: on which rank the first part lies. Part 0 lies on two. */
static void move_parts(struct rank *rank, struct muster_group *group, uint32_t parts, uint32_t shift) {
    struct memory memory = {.part = (rank->rank + 1) % RANKS}; /* parts are numbered unlike ranks */
    struct move_source sources[PARTS_MAX + 1];
    rank_check_code(rank, unit_layout_create(items, ITEMS, 3, parts, 0, 1, &memory.old), 0);
    rank_check_code(rank, unit_layout_create(items, ITEMS, 3, RANKS, 0, 1, &memory.now), 0);
    for (uint32_t i = 0; i <= parts; i++) {
        uint32_t part = i % parts, on = (part + shift + (i == parts)) % RANKS;
        sources[i] = (struct move_source){.rank = on, .place = {part, parts, parts}};
        sources[i].memory = on == rank->rank ? fill_part(rank, &memory, part) : NULL;
    }
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        size_t first = 0;
        memory.chunks[tensor] = calloc(chunk_of(memory.now, tensor, memory.part, &first) + 1, sizeof(float));
        rank_check(rank, memory.chunks[tensor] != NULL);
    }
    struct move_options options = {.group = group,
                                   .old = memory.old,
                                   .now = memory.now,
                                   .part = memory.part,
                                   .tensor_count = TENSORS,
                                   .sources = sources,
                                   .source_count = parts + 1,
                                   .context = &memory,
                                   .item = item_of,
                                   .from = from,
                                   .to = to};
    rank_check_code(rank, move_state(&options), 0);
    check_part(rank, &memory);
    options.source_count = parts - 1; /* the last part is nowhere */
    rank_check_code(rank, move_state(&options), MUSTER_EINVAL);
    for (uint32_t i = 0; i <= parts; i++) {
        free(sources[i].memory);
    }
    for (size_t tensor = 0; tensor < TENSORS; tensor++) {
        free(memory.chunks[tensor]);
    }
    unit_layout_free(memory.old);
    unit_layout_free(memory.now);
}

static int body(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t parts = 1; parts <= PARTS_MAX; parts++) {
        move_parts(rank, group, parts, parts % RANKS);
    }
    muster_group_free(group);
    return 0;
}

static void a_large_state_comes_to_its_owners(void **state) {
    (void)state;
    const struct ranks_options apart = {.ranks_per_host = 1};
    ranks_run(RANKS, body, NULL);
    ranks_run_with(RANKS, body, NULL, &apart);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_large_state_comes_to_its_owners)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
