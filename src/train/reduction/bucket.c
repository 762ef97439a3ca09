/* The assignment of gradients to buckets. */
#include "train/reduction/bucket.h"

#include <assert.h>
#include <stdlib.h>

#define NO_BUCKET UINT32_MAX

static size_t aligned(size_t bytes) {
    return (bytes + BUCKET_ALIGNMENT - 1) / BUCKET_ALIGNMENT * BUCKET_ALIGNMENT;
}

size_t bucket_memory_bytes(const struct bucket_shape *shape) {
    return aligned(shape->count * muster_type_bytes(shape->type));
}

static int by_completion(const void *left, const void *right) {
    const struct bucket_shape *a = left, *b = right;
    return a->completed < b->completed ? -1 : a->completed > b->completed;
}

static void bucket_open(struct bucket_shape *bucket, enum muster_type type, uint32_t first) {
    *bucket = (struct bucket_shape){.type = type, .first = first};
}

static void bucket_add(struct bucket_shape *bucket, struct bucket_item *item, uint32_t index, uint32_t position) {
    size_t element_bytes = muster_type_bytes(item->type);
    item->offset = aligned(bucket->count * element_bytes) / element_bytes;
    bucket->count = item->offset + item->count;
    bucket->bytes += item->count * element_bytes;
    bucket->item_count++;
    bucket->last = index;
    bucket->completed = position;
}

uint32_t bucket_assign(struct bucket_item *items, uint32_t item_count, const uint32_t *order, size_t first_bytes,
                       size_t next_bytes, struct bucket_shape *buckets) {
    uint32_t open[MUSTER_TYPE_COUNT], bucket_count = 0;
    size_t limit[MUSTER_TYPE_COUNT];
    for (size_t type = 0; type < MUSTER_TYPE_COUNT; type++) {
        open[type] = NO_BUCKET;
        limit[type] = first_bytes;
    }
    for (uint32_t position = 0; position < item_count; position++) {
        struct bucket_item *item = &items[order[position]];
        assert(item->type < MUSTER_TYPE_COUNT);
        if (open[item->type] == NO_BUCKET) {
            open[item->type] = bucket_count++;
            bucket_open(&buckets[open[item->type]], item->type, order[position]);
        }
        struct bucket_shape *bucket = &buckets[open[item->type]];
        bucket_add(bucket, item, order[position], position);
        if (bucket->bytes >= limit[item->type]) {
            open[item->type] = NO_BUCKET;
            limit[item->type] = next_bytes;
        }
    }
    qsort(buckets, bucket_count, sizeof *buckets, by_completion);

    /* Bucket numbers are known only now. Items meet their buckets again by walking the order once more: each bucket's
     * items are consecutive among those of its type. */
    uint32_t left[MUSTER_TYPE_COUNT] = {0}, current[MUSTER_TYPE_COUNT];
    for (size_t type = 0; type < MUSTER_TYPE_COUNT; type++) {
        current[type] = NO_BUCKET;
    }
    for (uint32_t position = 0; position < item_count; position++) {
        struct bucket_item *item = &items[order[position]];
        if (left[item->type] == 0) {
            uint32_t next = current[item->type] == NO_BUCKET ? 0 : current[item->type] + 1;
            while (next < bucket_count && buckets[next].type != item->type) {
                next++;
            }
            assert(next < bucket_count && buckets[next].item_count > 0);
            current[item->type] = next;
            left[item->type] = buckets[next].item_count;
        }
        item->bucket = current[item->type];
        left[item->type]--;
    }
    return bucket_count;
}
