/* Collectives without copies on the way: when all buffers that others need lie in memory that they can map
 * (comm/host/memory.h), each member reads and writes its share of the work straight where it belongs.
 *
 * Whether that is so, nobody knows before all have said it. In a call's first step, each member's line therefore holds
 * an offer: the places of its buffers, or that there are none. Who has none does not wait for the answers, and stages
 * its first piece in the same step as ever; who has one looks at all offers, and if one is missing stages its piece
 * after the fact. So calls without shared buffers cost nothing more, and those with them one step before the work and
 * one after it, in which all say that they are done with everybody's buffers. */
#include "comm/node/node_direct.h"

#include <assert.h>

#include <muster/status.h>

#include "base/status.h"
#include "comm/node/node_step.h"
#include "comm/reduce/reduce.h"

enum { SPREAD_BYTES = 16 * 1024 }; /* fits into the first cache, with what is written */

_Static_assert(sizeof(struct node_offer) <= NODE_INLINE_BYTES, "an offer fits into a line");

/* ---- offers ---- */

static size_t sum_of(const struct layout *layout, uint32_t size) {
    return layout->counts ? layout->begins[size] : layout->count * size;
}

/* Bytes of the member's send buffer that others read. */
static size_t sent_bytes(const struct plan *plan, uint32_t member) {
    const struct comm_call *call = plan->call;
    size_t elements = 0;
    switch (call->operation) {
    case COMM_ALL_REDUCE:
    case COMM_REDUCE:
        elements = call->count;
        break;
    case COMM_ALL_GATHER:
        elements = plan_count(&plan->blocks, member);
        break;
    case COMM_SCATTER:
        elements = member == call->root ? sum_of(&plan->blocks, plan->node->size) : 0;
        break;
    case COMM_REDUCE_SCATTER:
        elements = sum_of(&plan->blocks, plan->node->size);
        break;
    case COMM_ALL_TO_ALL: /* with counts, of others only the beginning and the length of one block are known */
        elements = plan->froms && member != plan->node->index ? plan->froms[member] + plan_count(&plan->comes, member)
                                                              : sum_of(&plan->blocks, plan->node->size);
        break;
    default: /* nothing, or it is written where it belongs by its owner */
        break;
    }
    return elements * plan->width;
}

/* Bytes of its receive buffer that others write (or, in broadcast, read). In all_gather they may, if all can. */
static size_t received_bytes(const struct plan *plan, uint32_t member) {
    const struct comm_call *call = plan->call;
    size_t elements = 0;
    switch (call->operation) {
    case COMM_ALL_REDUCE:
    case COMM_BROADCAST:
        elements = call->count;
        break;
    case COMM_REDUCE:
        elements = member == call->root ? call->count : 0;
        break;
    case COMM_ALL_GATHER:
        elements = sum_of(&plan->blocks, plan->node->size);
        break;
    case COMM_GATHER:
        elements = member == call->root ? sum_of(&plan->blocks, plan->node->size) : 0;
        break;
    default:
        break;
    }
    return elements * plan->width;
}

bool node_direct_offer(const struct plan *plan, struct node_offer *out) {
    struct node *node = plan->node;
    const struct comm_call *call = plan->call;
    size_t sent = sent_bytes(plan, node->index), received = received_bytes(plan, node->index);
    atomic_store_explicit(&out->staged, 0, memory_order_relaxed);
    out->is_direct = 0;
    if (!node->memory || (call->operation == COMM_ALL_TO_ALL && call->send == call->receive)) {
        return false; /* in place, blocks would be overwritten before they are read */
    }
    /* Leaves that need not be seen by others follow their own buffers all the same: an offer costs waiting for the
     * root's answer, which those with private buffers would wait for in vain. */
    size_t own = plan_count(&plan->blocks, node->index) * plan->width;
    if (!plan_is_root(plan) && own > 0 &&
        ((call->operation == COMM_GATHER && !memory_find(node->memory, call->send, own, &out->send)) ||
         (call->operation == COMM_SCATTER && !memory_find(node->memory, call->receive, own, &out->receive)))) {
        return false;
    }
    out->has_receive = received == 0 || memory_find(node->memory, call->receive, received, &out->receive);
    bool has_send = sent == 0 || memory_find(node->memory, call->send, sent, &out->send);
    out->is_direct = has_send && (out->has_receive || call->operation == COMM_ALL_GATHER);
    return out->is_direct;
}

/* By the table for shared buffers, as if all were: all members must decide alike before they know. */
bool node_direct_is_worth(const struct plan *plan) {
    return choice_of_bytes(&plan->node->when_shared, plan->call->operation, plan->bytes).algorithm == CHOICE_DIRECT;
}

/* ---- the work ---- */

/* The buffers of all members, as this one sees them: node->records those that are read, node->outs those written. */
static int find_buffers(const struct plan *plan, uint64_t step, bool *out_all_receive) {
    struct node *node = plan->node;
    *out_all_receive = true;
    for (uint32_t member = 0; member < node->size; member++) {
        node->records[member] = plan->call->send;
        node->outs[member] = plan->call->receive;
        const struct node_offer *offer = node_offer_of(node, member, step);
        *out_all_receive = *out_all_receive && offer->has_receive;
        if (member == node->index) {
            continue;
        }
        size_t sent = sent_bytes(plan, member), received = received_bytes(plan, member);
        void *view = NULL;
        int status = 0;
        if (sent > 0) {
            status = memory_view(node->memory, node->members[member].local, &offer->send, sent, &view);
            node->records[member] = view;
        }
        if (status == 0 && received > 0 && offer->has_receive) {
            status =
                memory_view(node->memory, node->members[member].local, &offer->receive, received, &node->outs[member]);
        }
        if (status != 0) {
            return node_doubt(node, status_prefix(status, "call %llu", (unsigned long long)node->number));
        }
    }
    return 0;
}

static const unsigned char *sent_by(const struct plan *plan, uint32_t member, size_t element) {
    return (const unsigned char *)plan->node->records[member] + element * plan->width;
}

static unsigned char *got_by(const struct plan *plan, uint32_t member, size_t element) {
    return (unsigned char *)plan->node->outs[member] + element * plan->width;
}

/* This member's share of `count` elements, cut at cache lines. */
static size_t share_of(const struct plan *plan, size_t count, size_t *out_begin) {
    const struct node *node = plan->node;
    size_t unit = NODE_CACHE_LINE / plan->width;
    size_t share = ((count + node->size - 1) / node->size + unit - 1) / unit * unit;
    size_t begin = share * node->index < count ? share * node->index : count;
    *out_begin = begin;
    return count - begin < share ? count - begin : share;
}

/* All inputs are read at the elements of our share, and all outputs written there, by nobody but us: so buffers may be
 * in place. The arrays of buffers become those of places in them. */
static void reduce_share(const struct plan *plan) {
    struct node *node = plan->node;
    const struct comm_call *call = plan->call;
    size_t begin, count = share_of(plan, call->count, &begin);
    if (count == 0) {
        return;
    }
    for (uint32_t member = 0; member < node->size; member++) {
        node->records[member] = sent_by(plan, member, begin);
        node->outs[member] = got_by(plan, member, begin);
    }
    if (call->operation == COMM_REDUCE) {
        reduce_many(call->type, call->reduction, &node->outs[call->root], 1, node->records, node->size, count);
    } else {
        reduce_many(call->type, call->reduction, node->outs, node->size, node->records, node->size, count);
    }
}

static void reduce_own_block(const struct plan *plan) {
    struct node *node = plan->node;
    size_t begin = plan_begin(&plan->blocks, node->index), count = plan_count(&plan->blocks, node->index);
    void *out = plan->call->receive;
    if (count == 0) {
        return;
    }
    for (uint32_t member = 0; member < node->size; member++) {
        node->records[member] = sent_by(plan, member, begin);
    }
    reduce_many(plan->call->type, plan->call->reduction, &out, 1, node->records, node->size, count);
}

static void spread_share(const struct plan *plan) {
    uint32_t root = plan->call->root;
    size_t begin, count = share_of(plan, plan->call->count, &begin);
    for (uint32_t member = 0; member < plan->node->size; member++) {
        if (member != root) {
            plan_deliver(plan, got_by(plan, member, begin), got_by(plan, root, begin), count * plan->width);
        }
    }
}

static void read_blocks(const struct plan *plan) {
    struct node *node = plan->node;
    bool is_exchange = plan->call->operation == COMM_ALL_TO_ALL;
    for (uint32_t i = 1; i < node->size; i++) {
        uint32_t member = (node->index + i) % node->size; /* not all from the same one */
        size_t at = !is_exchange ? 0 : plan->froms ? plan->froms[member] : plan_begin(&plan->blocks, node->index);
        plan_deliver(plan, plan_receive(plan, plan_begin(&plan->comes, member)), sent_by(plan, member, at),
                     plan_count(&plan->comes, member) * plan->width);
    }
    node_keep_own(plan);
}

/* The member's block goes to all, piece by piece, so that it is read from memory once. */
static void spread_own_block(const struct plan *plan) {
    struct node *node = plan->node;
    size_t begin = plan_begin(&plan->blocks, node->index) * plan->width;
    size_t bytes = plan_count(&plan->blocks, node->index) * plan->width;
    for (size_t at = 0; at < bytes; at += SPREAD_BYTES) {
        size_t left = bytes - at < SPREAD_BYTES ? bytes - at : SPREAD_BYTES;
        for (uint32_t i = 0; i < node->size; i++) {
            uint32_t member = (node->index + i) % node->size; /* not all to the same one */
            unsigned char *to = (unsigned char *)node->outs[member] + begin;
            plan_deliver(plan, to + at, plan_send(plan, 0) + at, left);
        }
    }
}

static void write_own_block(const struct plan *plan) {
    struct node *node = plan->node;
    if (!plan_is_root(plan)) {
        plan_deliver(plan, got_by(plan, plan->call->root, plan_begin(&plan->blocks, node->index)), plan->call->send,
                     plan_count(&plan->blocks, node->index) * plan->width);
    }
    node_keep_own(plan);
}

static void read_own_block(const struct plan *plan) {
    struct node *node = plan->node;
    if (!plan_is_root(plan)) {
        plan_deliver(plan, plan->call->receive, sent_by(plan, plan->call->root, plan_begin(&plan->blocks, node->index)),
                     plan_count(&plan->blocks, node->index) * plan->width);
    }
    node_keep_own(plan);
}

static void work(const struct plan *plan, bool all_receive) {
    switch (plan->call->operation) {
    case COMM_ALL_REDUCE:
    case COMM_REDUCE:
        reduce_share(plan);
        break;
    case COMM_BROADCAST:
        spread_share(plan);
        break;
    case COMM_ALL_GATHER:
        if (all_receive) {
            spread_own_block(plan);
        } else {
            read_blocks(plan);
        }
        break;
    case COMM_ALL_TO_ALL:
        read_blocks(plan);
        break;
    case COMM_GATHER:
        write_own_block(plan);
        break;
    case COMM_SCATTER:
        read_own_block(plan);
        break;
    case COMM_REDUCE_SCATTER:
        reduce_own_block(plan);
        break;
    default:
        assert(!"an operation without buffers");
    }
}

int node_part(struct node *node) {
    int status = node_open(node, 0, true);
    if (status != 0) {
        return status;
    }
    node_publish(node);
    return node_await_all(node, node->step);
}

int node_direct_run(const struct plan *plan) {
    struct node *node = plan->node;
    bool all_receive;
    memory_hold(node->memory);
    int status = find_buffers(plan, node->step, &all_receive);
    if (status == 0) {
        work(plan, all_receive);
    }
    memory_let_go(node->memory);
    return status != 0 ? status : node_part(node);
}
