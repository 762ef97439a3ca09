/* Gradients over virtual ranks: added up in the same tree in every world.
 *
 * A rank computes its virtual ranks one after another, all into the buckets. What comes out is added to what waits: the
 * sums of subtrees of which this rank has all virtual ranks. After the last pass each rank has a few such sums, from
 * left to right, the last one in the buckets. Every rank gets its slice of all sums of all ranks, ends the tree there,
 * and all gather the slices. */
#include <assert.h>
#include <string.h>

#include <muster/collective.h>

#include "base/status.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/ddp_impl.h"

/* Bytes of an operand at a time: what several additions work on stays in the caches. */
enum { PIECE_BYTES = 8192 };

/* ---- Who adds what ---- */

void ddp_virtual_plan(const struct muster_ddp *ddp, const struct muster_group *group, struct ddp_arrival *arrivals,
                      struct ddp_virtual *out) {
    uint32_t virtual_ranks = (uint32_t)ddp->options.virtual_ranks, ranks = muster_group_size(group);
    struct virtual_stack nodes, tree = {.count = 0};
    *out = (struct ddp_virtual){.own = virtual_interval_of(virtual_ranks, muster_group_rank(group), ranks),
                                .arrivals = arrivals};
    virtual_interval_nodes(out->own, &nodes, &out->slots);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        uint32_t ignored = 0;
        virtual_interval_nodes(virtual_interval_of(virtual_ranks, rank, ranks), &nodes, &ignored);
        for (uint32_t i = 0; i < nodes.count; i++) {
            out->arrivals[out->arrival_count++] =
                (struct ddp_arrival){rank, i, virtual_stack_push(&tree, nodes.nodes[i])};
        }
        out->rounds = nodes.count > out->rounds ? nodes.count : out->rounds;
    }
    out->arrivals[out->arrival_count - 1].additions += virtual_stack_close(&tree);
    if (ranks == 1 || (ranks == 2 && out->rounds == 1)) { /* one addition is in no order */
        out->rounds = 0;
    }
}

/* ---- What waits ---- */

static size_t offset_of(const struct ddp_layout *layout, const struct ddp_bucket *bucket) {
    return (size_t)((uint8_t *)bucket->view.gradients - (uint8_t *)layout->memory);
}

static uint8_t *waiting(const struct ddp_layout *layout, const struct ddp_bucket *bucket, uint32_t slot) {
    assert(slot < layout->virtual.slots);
    return layout->virtual.waiting + slot * layout->memory_bytes + offset_of(layout, bucket);
}

/* Adds the waiting sums below `top` to the bucket, `additions` of them, in the order of the tree. keep: the result is
 * to wait in the place of the lowest one; else it is left in the bucket. */
static void add_up(const struct ddp_layout *layout, const struct ddp_bucket *bucket, uint32_t top, uint32_t additions,
                   bool keep) {
    enum muster_type type = bucket->shape.type;
    size_t width = muster_type_bytes(type), piece = PIECE_BYTES / width;
    for (size_t at = 0; at < bucket->shape.count; at += piece) {
        size_t count = bucket->shape.count - at < piece ? bucket->shape.count - at : piece;
        uint8_t *data = (uint8_t *)bucket->view.gradients + at * width;
        for (uint32_t i = 1; i <= additions; i++) {
            uint8_t *left = waiting(layout, bucket, top - i) + at * width;
            reduce_pair(type, MUSTER_OP_SUM, keep && i == additions ? left : data, left, data, count);
        }
        if (keep && additions == 0) {
            memcpy(waiting(layout, bucket, top) + at * width, data, count * width);
        }
    }
}

void ddp_virtual_wait(struct muster_ddp *ddp, uint32_t top, uint32_t additions) {
    for (uint32_t i = 0; i < ddp->layout->bucket_count; i++) {
        add_up(ddp->layout, &ddp->layout->buckets[i], top, additions, true);
    }
}

/* ---- Between ranks ---- */

/* Of each bucket a rank has one slice to end the sum of. */
static size_t slice_count(const struct muster_ddp *ddp, const struct ddp_bucket *bucket) {
    return bucket->memory_bytes / muster_group_size(ddp->group) / muster_type_bytes(bucket->shape.type);
}

static uint8_t *received(const struct muster_ddp *ddp, const struct ddp_bucket *bucket, uint32_t round, uint32_t rank) {
    const struct ddp_layout *layout = ddp->layout;
    size_t slice_bytes = slice_count(ddp, bucket) * muster_type_bytes(bucket->shape.type);
    return layout->virtual.received + round * layout->memory_bytes + offset_of(layout, bucket) + rank * slice_bytes;
}

/* A rank that has fewer sums sends its last one again, which nobody uses. */
static int exchange(struct muster_ddp *ddp, const struct ddp_bucket *bucket, uint32_t round,
                    struct muster_work **work) {
    const void *sum = round + 1 < ddp->waiting.count ? waiting(ddp->layout, bucket, round) : bucket->view.gradients;
    return muster_all_to_all(ddp->group, sum, received(ddp, bucket, round, 0), slice_count(ddp, bucket),
                             bucket->shape.type, work);
}

static int exchange_all(struct muster_ddp *ddp, const struct ddp_bucket *bucket, struct muster_work **work) {
    int status = muster_coalesce_begin(ddp->group);
    for (uint32_t round = 0; status == MUSTER_OK && round < ddp->layout->virtual.rounds; round++) {
        status = exchange(ddp, bucket, round, NULL);
    }
    return status == MUSTER_OK ? muster_coalesce_end(ddp->group, work) : status;
}

int ddp_virtual_start(struct muster_ddp *ddp, struct ddp_bucket *bucket, struct muster_work **work) {
    uint32_t rounds = ddp->layout->virtual.rounds;
    void *data = bucket->view.gradients;
    add_up(ddp->layout, bucket, ddp->waiting.count - 1 + ddp->last_additions, ddp->last_additions, false);
    if (muster_group_size(ddp->group) == 1) { /* all that waits is on the right side of the tree */
        struct virtual_stack closed = ddp->waiting;
        uint32_t additions = virtual_stack_close(&closed);
        add_up(ddp->layout, bucket, ddp->waiting.count - 1, additions, false);
        return MUSTER_OK;
    }
    if (rounds == 0) {
        return muster_all_reduce(ddp->group, data, data, bucket->shape.count, bucket->shape.type, MUSTER_OP_SUM, work);
    }
    return rounds == 1 ? exchange(ddp, bucket, 0, work) : exchange_all(ddp, bucket, work);
}

/* Ends the tree for elements from `at` on of this rank's slice. */
static void end_tree(const struct muster_ddp *ddp, const struct ddp_bucket *bucket, uint8_t *out, size_t at,
                     size_t count) {
    const struct ddp_virtual *plan = &ddp->layout->virtual;
    enum muster_type type = bucket->shape.type;
    uint8_t *values[VIRTUAL_NODES_MAX] = {NULL};
    uint32_t depth = 0;
    for (uint32_t i = 0; i < plan->arrival_count; i++) {
        const struct ddp_arrival *arrival = &plan->arrivals[i];
        values[depth++] = received(ddp, bucket, arrival->round, arrival->rank) + at * muster_type_bytes(type);
        for (uint32_t n = 0; n < arrival->additions; n++) {
            depth--;
            reduce_pair(type, MUSTER_OP_SUM, values[depth - 1], values[depth - 1], values[depth], count);
        }
    }
    assert(depth == 1);
    memcpy(out, values[0], count * muster_type_bytes(type));
    reduce_finish(type, MUSTER_OP_AVERAGE, out, count, (uint32_t)ddp->options.virtual_ranks);
}

int ddp_virtual_complete(struct muster_ddp *ddp, struct ddp_bucket *bucket) {
    enum muster_type type = bucket->shape.type;
    size_t width = muster_type_bytes(type), slice = slice_count(ddp, bucket), piece = PIECE_BYTES / width;
    if (ddp->layout->virtual.rounds == 0) {
        reduce_finish(type, MUSTER_OP_AVERAGE, bucket->view.gradients, bucket->shape.count,
                      (uint32_t)ddp->options.virtual_ranks);
        return MUSTER_OK;
    }
    uint8_t *own = (uint8_t *)bucket->view.gradients + muster_group_rank(ddp->group) * slice * width;
    for (size_t at = 0; at < slice; at += piece) {
        end_tree(ddp, bucket, own + at * width, at, slice - at < piece ? slice - at : piece);
    }
    return muster_all_gather(ddp->group, own, bucket->view.gradients, slice, type, NULL);
}
