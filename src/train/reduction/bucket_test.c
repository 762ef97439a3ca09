/* The assignment of gradients to buckets: PyTorch's answers, alignment, several types, and any order.
 *
 * The recorded assignments are those of PyTorch 2.13:
 *     torch._C._distributed_c10d._compute_bucket_assignment_by_size(
 *         [torch.empty([counts[i]]) for i in order], [first, next], [], order)[0] */
#include "train/reduction/bucket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 17 };
static const size_t counts[COUNT] = {288, 32, 32, 32,   18432, 64,   64,  64,    180000,
                                     50,  3,  1,  1000, 7777,  4096, 256, 100000};
static const uint32_t backwards[COUNT] = {16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
static const uint32_t shuffled[COUNT] = {8, 3, 6, 14, 11, 15, 2, 12, 0, 1, 13, 10, 16, 9, 5, 4, 7};

/* Assigns, and writes the buckets in order, their items in order, as "16 | 15 14 | ". */
static void assign(const uint32_t *order, size_t first, size_t next, char *out, size_t max) {
    struct bucket_item items[COUNT];
    struct bucket_shape shapes[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        items[i] = (struct bucket_item){.type = MUSTER_FLOAT32, .count = counts[i]};
    }
    uint32_t bucket_count = bucket_assign(items, COUNT, order, first, next, shapes);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t bucket = 0; bucket < bucket_count; bucket++) {
        for (size_t i = 0; i < COUNT; i++) {
            if (items[order[i]].bucket == bucket) {
                used += (size_t)snprintf(out + used, max - used, "%u ", order[i]);
            }
        }
        used += (size_t)snprintf(out + used, max - used, "| ");
    }
}

static void assigns_as_pytorch(void **state) {
    (void)state;
    static const struct {
        const uint32_t *order;
        size_t first, next;
        const char *expected;
    } cases[] = {
        {backwards, (size_t)1 << 20, (size_t)25 << 20, "16 15 14 13 12 11 10 9 8 | 7 6 5 4 3 2 1 0 | "},
        {backwards, 1024, 65536, "16 | 15 14 13 12 11 10 9 8 | 7 6 5 4 | 3 2 1 0 | "},
        {backwards, 4, 4, "16 | 15 | 14 | 13 | 12 | 11 | 10 | 9 | 8 | 7 | 6 | 5 | 4 | 3 | 2 | 1 | 0 | "},
        {backwards, 400000, 100000, "16 | 15 14 13 12 11 10 9 8 | 7 6 5 4 3 2 1 0 | "},
        {backwards, 16384, 16384, "16 | 15 14 | 13 | 12 11 10 9 8 | 7 6 5 4 | 3 2 1 0 | "},
        {shuffled, 20000, 70000, "8 | 3 6 14 11 15 2 12 0 1 13 10 16 | 9 5 4 | 7 | "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char found[256];
        assign(cases[i].order, cases[i].first, cases[i].next, found, sizeof found);
        assert_string_equal(found, cases[i].expected);
    }
}

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 8;
}

/* What must hold for any input: gradients lie apart, aligned, in a bucket of their type, and a bucket's description is
 * that of its items. */
static void check_assignment(const struct bucket_item *items, uint32_t item_count, const uint32_t *order, size_t first,
                             size_t next, const struct bucket_shape *shapes, uint32_t bucket_count) {
    bool type_seen[MUSTER_TYPE_COUNT] = {false};
    uint32_t items_seen = 0;
    for (uint32_t bucket = 0; bucket < bucket_count; bucket++) {
        const struct bucket_shape *shape = &shapes[bucket];
        size_t element_bytes = muster_type_bytes(shape->type), end = 0, bytes = 0, before_last = 0;
        uint32_t seen = 0, last = 0;
        for (uint32_t position = 0; position < item_count; position++) {
            const struct bucket_item *item = &items[order[position]];
            if (item->bucket != bucket) {
                continue;
            }
            assert_int_equal(item->type, shape->type);
            assert_int_equal(item->offset * element_bytes % BUCKET_ALIGNMENT, 0);
            assert_true(item->offset >= end && item->offset * element_bytes < end * element_bytes + BUCKET_ALIGNMENT);
            assert_true(seen > 0 || order[position] == shape->first);
            end = item->offset + item->count;
            before_last = bytes;
            bytes += item->count * element_bytes;
            last = position;
            seen++;
        }
        assert_int_equal(seen, shape->item_count);
        assert_int_equal(end, shape->count);
        assert_int_equal(bytes, shape->bytes);
        assert_int_equal(order[last], shape->last);
        assert_int_equal(last, shape->completed);
        assert_true(bucket == 0 || shapes[bucket - 1].completed < last);
        assert_int_equal(bucket_memory_bytes(shape) % BUCKET_ALIGNMENT, 0);
        assert_true(bucket_memory_bytes(shape) >= end * element_bytes);
        assert_true(before_last < (type_seen[shape->type] ? next : first) || seen == 1);
        type_seen[shape->type] = true;
        items_seen += seen;
    }
    assert_int_equal(items_seen, item_count);
}

static void any_order_and_types(void **state) {
    (void)state;
    enum { ITEMS_MAX = 200 };
    static const enum muster_type types[] = {MUSTER_FLOAT32, MUSTER_BFLOAT16, MUSTER_FLOAT64, MUSTER_FLOAT16};
    uint32_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        struct bucket_item items[ITEMS_MAX];
        struct bucket_shape shapes[ITEMS_MAX];
        uint32_t order[ITEMS_MAX], item_count = 1 + next_random(&seed) % ITEMS_MAX;
        uint32_t type_count = 1 + next_random(&seed) % 4;
        for (uint32_t i = 0; i < item_count; i++) {
            items[i] = (struct bucket_item){.type = types[next_random(&seed) % type_count],
                                            .count = 1 + next_random(&seed) % 300};
            uint32_t other = next_random(&seed) % (i + 1);
            order[i] = i;
            order[i] = order[other];
            order[other] = i;
        }
        size_t first = 1 + next_random(&seed) % 2000, next = 1 + next_random(&seed) % 9000;
        uint32_t bucket_count = bucket_assign(items, item_count, order, first, next, shapes);
        check_assignment(items, item_count, order, first, next, shapes, bucket_count);
    }
}

/* Buckets are reduced in the order of their numbers: one that is complete earlier must come earlier. */
static void types_wait_for_nobody(void **state) {
    (void)state;
    struct bucket_item items[4] = {{.type = MUSTER_FLOAT64, .count = 8},
                                   {.type = MUSTER_FLOAT32, .count = 16},
                                   {.type = MUSTER_FLOAT32, .count = 16},
                                   {.type = MUSTER_FLOAT64, .count = 8}};
    struct bucket_shape shapes[4];
    const uint32_t order[4] = {0, 1, 2, 3};
    assert_int_equal(bucket_assign(items, 4, order, 1000, 1000, shapes), 2);
    assert_int_equal(items[1].bucket, 0);
    assert_int_equal(items[2].bucket, 0);
    assert_int_equal(items[0].bucket, 1);
    assert_int_equal(items[3].bucket, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(assigns_as_pytorch),
        cmocka_unit_test(any_order_and_types),
        cmocka_unit_test(types_wait_for_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
