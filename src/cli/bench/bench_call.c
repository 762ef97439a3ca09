/* Buffers, calls and results of a case; see bench_call.h. */
#include "cli/bench/bench_call.h"

#include <muster/collective.h>
#include <string.h>

#include "cli/bench/bench_data.h"

/* Where a rank's own buffers of a call lie. In place the divided operations send from, or receive into, a part of
 * `first` (muster/collective.h says which). */
struct places {
    void *send, *receive;
};

static uint8_t *block_at(const struct bench_case *c, void *buffer, uint32_t block) {
    return (uint8_t *)buffer + block * c->count * muster_type_bytes(c->type);
}

static struct places places_of(const struct bench_case *c) {
    uint32_t rank = muster_group_rank(c->group);
    bool is_root = rank == c->root;
    if (!c->is_in_place) {
        return (struct places){c->first, c->second};
    }
    switch (c->operation) {
    case BENCH_ALL_GATHER:
        return (struct places){block_at(c, c->first, rank), c->first};
    case BENCH_GATHER:
        return (struct places){is_root ? block_at(c, c->first, rank) : c->first, is_root ? c->first : NULL};
    case BENCH_REDUCE_SCATTER:
        return (struct places){c->first, block_at(c, c->first, rank)};
    case BENCH_SCATTER:
        return (struct places){is_root ? c->first : NULL, is_root ? block_at(c, c->first, rank) : c->first};
    case BENCH_REDUCE:
        return (struct places){c->first, is_root ? c->first : NULL};
    default:
        return (struct places){c->first, c->first};
    }
}

static uint32_t blocks_sent(const struct bench_case *c) {
    bool sends_many =
        c->operation == BENCH_SCATTER || c->operation == BENCH_REDUCE_SCATTER || c->operation == BENCH_ALL_TO_ALL;
    return sends_many ? muster_group_size(c->group) : 1;
}

void bench_case_fill(const struct bench_case *c) {
    struct places places = places_of(c);
    uint32_t ranks = muster_group_size(c->group), rank = muster_group_rank(c->group);
    size_t bytes = (size_t)bench_bytes(c->operation, c->count, muster_type_bytes(c->type), ranks);
    memset(c->first, 0, bytes);
    memset(c->second, 0, bytes);
    for (uint32_t block = 0; block < blocks_sent(c) && places.send != NULL; block++) {
        struct bench_pattern pattern;
        bench_pattern_sent(&pattern, c->type, c->reduction, rank, block);
        bench_pattern_fill(&pattern, block_at(c, places.send, block), (size_t)c->count);
    }
}

/* To the next rank, from the one before. */
static int shift(const struct bench_case *c, const struct places *at) {
    uint32_t ranks = muster_group_size(c->group), rank = muster_group_rank(c->group);
    int code = muster_coalesce_begin(c->group);
    code = code ? code : muster_send(c->group, at->send, c->count, c->type, (rank + 1) % ranks, 0, NULL);
    code = code ? code
                : muster_receive(c->group, at->receive, c->count, c->type, (rank + ranks - 1) % ranks, 0, NULL, NULL);
    return code ? code : muster_coalesce_end(c->group, NULL);
}

int bench_case_call(const struct bench_case *c) {
    struct places at = places_of(c);
    struct muster_group *group = c->group;
    size_t count = (size_t)c->count;
    switch (c->operation) {
    case BENCH_ALL_REDUCE:
        return muster_all_reduce(group, at.send, at.receive, count, c->type, c->reduction, NULL);
    case BENCH_BROADCAST:
        return muster_broadcast(group, at.receive, count, c->type, c->root, NULL);
    case BENCH_REDUCE:
        return muster_reduce(group, at.send, at.receive, count, c->type, c->reduction, c->root, NULL);
    case BENCH_ALL_GATHER:
        return muster_all_gather(group, at.send, at.receive, count, c->type, NULL);
    case BENCH_GATHER:
        return muster_gather(group, at.send, at.receive, count, c->type, c->root, NULL);
    case BENCH_SCATTER:
        return muster_scatter(group, at.send, at.receive, count, c->type, c->root, NULL);
    case BENCH_REDUCE_SCATTER:
        return muster_reduce_scatter(group, at.send, at.receive, count, c->type, c->reduction, NULL);
    case BENCH_ALL_TO_ALL:
        return muster_all_to_all(group, at.send, at.receive, count, c->type, NULL);
    case BENCH_SENDRECV:
        return shift(c, &at);
    default:
        return muster_barrier(group, NULL);
    }
}

/* What has to lie in `block` of the receive buffer; false: nothing in particular. */
static bool expected(const struct bench_case *c, uint32_t block, struct bench_pattern *out) {
    uint32_t ranks = muster_group_size(c->group), rank = muster_group_rank(c->group);
    bool gathers = c->operation == BENCH_ALL_GATHER || (c->operation == BENCH_GATHER && rank == c->root);
    if (gathers || c->operation == BENCH_ALL_TO_ALL) {
        bench_pattern_sent(out, c->type, c->reduction, block, gathers ? 0 : rank);
        return true;
    }
    if (block > 0) {
        return false;
    }
    switch (c->operation) {
    case BENCH_ALL_REDUCE:
        bench_pattern_reduced(out, c->type, c->reduction, ranks, 0);
        return true;
    case BENCH_REDUCE:
        bench_pattern_reduced(out, c->type, c->reduction, ranks, 0);
        return rank == c->root;
    case BENCH_REDUCE_SCATTER:
        bench_pattern_reduced(out, c->type, c->reduction, ranks, rank);
        return true;
    case BENCH_BROADCAST:
        bench_pattern_sent(out, c->type, c->reduction, c->root, 0);
        return true;
    case BENCH_SCATTER:
        bench_pattern_sent(out, c->type, c->reduction, c->root, rank);
        return true;
    case BENCH_SENDRECV:
        bench_pattern_sent(out, c->type, c->reduction, (rank + ranks - 1) % ranks, 0);
        return true;
    default:
        return false;
    }
}

uint64_t bench_case_wrong(const struct bench_case *c) {
    struct places at = places_of(c);
    uint64_t wrong = 0;
    for (uint32_t block = 0; block < muster_group_size(c->group) && at.receive != NULL; block++) {
        struct bench_pattern pattern;
        if (expected(c, block, &pattern)) {
            wrong += bench_pattern_wrong(&pattern, block_at(c, at.receive, block), (size_t)c->count);
        }
    }
    return wrong;
}
