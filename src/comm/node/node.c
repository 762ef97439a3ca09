/* A node: its segment's layout, each call from its beginning to its end, and what others may ask about it. */
#include "comm/node/node.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "base/status.h"
#include "comm/node/node_direct.h"
#include "comm/node/node_plan.h"
#include "comm/node/node_single_copy.h"
#include "comm/node/node_staged.h"
#include "comm/node/node_step.h"

enum { CROWDED_BELOW_LOOKS = 64 }; /* comm_waiter_tune() tells a waiter to look seldom when ranks outnumber the cores */

/* A power of two, at least so much that a line for each other member fits into a piece. */
static size_t ring_bytes_of(uint32_t size) {
    size_t least = (size_t)size * NODE_CACHE_LINE * NODE_PIECES_PER_RING;
    size_t bytes = NODE_RING_BYTES_MAX;
    while (bytes > NODE_RING_BYTES_MIN && bytes * size > NODE_RINGS_BYTES_MAX) {
        bytes /= 2;
    }
    while (bytes < least) {
        bytes *= 2;
    }
    return bytes;
}

/* One line more than the contents: the same lines of two members then do not compete for a place in the caches. */
static size_t ring_stride_of(uint32_t size) {
    return ring_bytes_of(size) + NODE_CACHE_LINE;
}

size_t node_segment_bytes(uint32_t size) {
    return (size_t)size * (sizeof(struct node_area) + ring_stride_of(size));
}

int node_create(const struct node_config *config, struct node **out) {
    assert(config->size >= 1 && config->size <= NODE_SIZE_MAX && config->index < config->size);
    assert((uintptr_t)config->segment % NODE_CACHE_LINE == 0);
    struct node *node = calloc(1, sizeof *node);
    if (!node) {
        return status_fail(MUSTER_ENOMEM, "a host's members");
    }
    node->size = config->size;
    node->index = config->index;
    node->areas = config->segment;
    node->rings = (unsigned char *)config->segment + node->size * sizeof *node->areas;
    node->ring_bytes = ring_bytes_of(node->size);
    node->piece_bytes = node->ring_bytes / NODE_PIECES_PER_RING;
    node->part_bytes = node->piece_bytes / (node->size > 1 ? node->size - 1 : 1) / NODE_CACHE_LINE * NODE_CACHE_LINE;
    node->ring_stride = ring_stride_of(node->size);
    node->own = node_area(node, node->index);
    node->algorithm = CHOICE_NO_ALGORITHM;
    node->waiter = config->waiter;
    node->memory = config->memory;
    node->members = calloc(node->size, sizeof *node->members);
    node->records = calloc(node->size, sizeof *node->records);
    node->outs = calloc(node->size, sizeof *node->outs);
    node->froms = calloc(node->size, sizeof *node->froms);
    node->offsets = calloc(2 * ((size_t)node->size + 1), sizeof *node->offsets);
    if (!node->members || !node->records || !node->outs || !node->offsets || !node->froms) {
        node_free(node);
        return status_fail(MUSTER_ENOMEM, "a host's members");
    }
    memcpy(node->members, config->members, node->size * sizeof *node->members);
    node->is_crowded = node->waiter->spin_count < CROWDED_BELOW_LOOKS;
    node->may_read_peers = config->may_read_peers;
    int status = node_single_copy_init(node);
    if (status != 0) {
        node_free(node);
        return status;
    }
    /* Whether ranks outnumber cores is left out: the members may see that differently. */
    choice_table_make(config->choice, CHOICE_PRIVATE, node->size, false, &node->when_private);
    choice_table_make(config->choice, CHOICE_SHARED, node->size, false, &node->when_shared);
    *out = node;
    return 0;
}

void node_free(struct node *node) {
    if (node) {
        free(node->members);
        free(node->records);
        free(node->outs);
        free(node->offsets);
        free(node->froms);
        free(node);
    }
}

static void begin(struct node *node, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    assert(call->fingerprint != 0);
    node->call = call;
    node->deadline_ns = deadline_ns;
    node->first = node->step + 1;
    node->number = number;
    node->hash = (node->hash ^ call->fingerprint) * UINT64_C(0x9e3779b97f4a7c15); /* odd: no information is lost */
    node->hash ^= node->hash >> 32;
}

/* By one algorithm after the other, until one has done it. */
static int carry_out(struct node *node, const struct comm_call *call) {
    struct plan plan;
    enum node_outcome outcome = NODE_NOT_DONE;
    int status = plan_make(node, call, &plan);
    if (status != 0) {
        return status;
    }
    if (plan.choice.algorithm == CHOICE_SINGLE_COPY && node->size > 1) {
        status = node_single_copy_run(&plan, &outcome);
    }
    node->algorithm = plan.choice.algorithm;
    if (status == 0 && outcome == NODE_NOT_DONE) {
        node->algorithm = plan.choice.algorithm == CHOICE_TWO_STAGE ? CHOICE_TWO_STAGE : CHOICE_STAGED;
        status = node_staged_run(&plan, &outcome);
    }
    if (status == 0 && outcome == NODE_AGREED_DIRECT) {
        node->algorithm = CHOICE_DIRECT;
        status = node_direct_run(&plan);
    }
    return status;
}

int node_run(struct node *node, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    begin(node, call, number, deadline_ns);
    int status = carry_out(node, call);
    if (status == 0) {
        node_consume(node, node->step);
    }
    return status;
}

uint32_t node_algorithm(const struct node *node) {
    return node->algorithm;
}

uint64_t node_steps(const struct node *node, uint32_t member) {
    const struct node_area *area = node_area(node, member);
    uint32_t hash;
    uint64_t most = node_consumed(node, member, &hash);
    for (size_t i = 0; i < NODE_LINES; i++) {
        uint64_t stamp = atomic_load_explicit(&area->lines[i].stamp, memory_order_acquire);
        most = stamp > most ? stamp : most;
    }
    return most;
}
