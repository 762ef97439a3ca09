/* Which gradient goes into which bucket, and where in it. Pure. */
#ifndef TRAIN_BUCKET_H
#define TRAIN_BUCKET_H

#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

/* Every gradient begins on a multiple of this many bytes from its bucket's beginning: a cache line, the widest vector.
 */
#define BUCKET_ALIGNMENT ((size_t)64)

/* One parameter's gradient. The upper two are given, the others are found. */
struct bucket_item {
    enum muster_type type;
    size_t count;
    uint32_t bucket;
    size_t offset; /* elements from the bucket's beginning */
};

struct bucket_shape {
    enum muster_type type;
    size_t count; /* elements from the first gradient to the end of the last, gaps included */
    size_t bytes; /* of the gradients alone, no gaps */
    uint32_t item_count;
    uint32_t first, last; /* items: the first and last of the bucket in the order that was given */
    uint32_t completed;   /* where in that order `last` stands: buckets are sorted by it */
};

/* Bytes of a bucket's memory: a multiple of BUCKET_ALIGNMENT. */
size_t bucket_memory_bytes(const struct bucket_shape *shape);

/* Fills buckets with the items in the given order (a permutation of their indices), those of each type apart: a bucket
 * is closed as soon as it holds `first_bytes` (the first of its type) or `next_bytes` of gradients. It is PyTorch's
 * rule (compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp). Buckets are numbered by when
 * they would be complete if gradients became ready in that order, which for one type is the order of closing, and
 * PyTorch's. buckets: room for item_count; returns how many there are. */
uint32_t bucket_assign(struct bucket_item *items, uint32_t item_count, const uint32_t *order, size_t first_bytes,
                       size_t next_bytes, struct bucket_shape *buckets);

#endif
