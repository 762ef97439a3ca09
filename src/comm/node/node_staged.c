/* Collectives through the rings: each member copies what the others need of its buffer into its records, and the
 * others take it from there. Right for any buffers, and the quickest for small ones.
 *
 * One loop serves all operations: a call is cut into pieces, one step each, and an operation is a row of a table that
 * says who writes, who reads whom, and what is copied. Blocks may differ in size; a step then carries the piece at the
 * same offset of every block that is long enough. */
#include "comm/node/node_staged.h"

#include <muster/status.h>

#include "comm/node/node_direct.h"
#include "comm/node/node_step.h"
#include "comm/node/node_two_stage.h"
#include "comm/reduce/reduce.h"

struct operation {
    bool (*writes)(const struct plan *plan);
    bool (*reads)(const struct plan *plan, uint32_t from, size_t at);
    void (*fill)(const struct plan *plan, unsigned char *record, size_t at);
    void (*take)(const struct plan *plan, size_t at);
};

/* Elements of the piece at `at` of a block. */
static size_t piece_in(const struct plan *plan, const struct layout *layout, uint32_t block, size_t at) {
    size_t count = plan_count(layout, block);
    size_t left = count > at ? count - at : 0;
    return left < plan->piece ? left : plan->piece;
}

static size_t piece_of(const struct plan *plan, uint32_t block, size_t at) {
    return piece_in(plan, &plan->blocks, block, at);
}

/* ---- who writes, who reads ---- */

static bool all_write(const struct plan *plan) {
    (void)plan;
    return true;
}

static bool root_writes(const struct plan *plan) {
    return plan->node->index == plan->call->root;
}

static bool all_but_last_write(const struct plan *plan) {
    return plan->node->index + 1 < plan->node->size;
}

static bool leaves_write(const struct plan *plan) {
    return plan->node->index != plan->call->root;
}

/* In the first step everybody is awaited, however little there is to read: a call is not done before all took part
 * whose data it needs. */
static bool reads_all(const struct plan *plan, uint32_t from, size_t at) {
    (void)plan, (void)from, (void)at;
    return true;
}

static bool reads_lower(const struct plan *plan, uint32_t from, size_t at) {
    (void)at;
    return from < plan->node->index;
}

static bool reads_blocks(const struct plan *plan, uint32_t from, size_t at) {
    return at == 0 || piece_of(plan, from, at) > 0;
}

static bool reads_own_block(const struct plan *plan, uint32_t from, size_t at) {
    (void)from;
    return at == 0 || piece_of(plan, plan->node->index, at) > 0;
}

static bool root_reads_all(const struct plan *plan, uint32_t from, size_t at) {
    (void)from, (void)at;
    return plan_is_root(plan);
}

static bool root_reads_blocks(const struct plan *plan, uint32_t from, size_t at) {
    return plan_is_root(plan) && reads_blocks(plan, from, at);
}

static bool leaves_read_root(const struct plan *plan, uint32_t from, size_t at) {
    (void)at;
    return from == plan->call->root;
}

static bool leaves_read_own_block(const struct plan *plan, uint32_t from, size_t at) {
    return from == plan->call->root && reads_own_block(plan, from, at);
}

/* ---- what is written and taken ---- */

static void fill_nothing(const struct plan *plan, unsigned char *record, size_t at) {
    (void)plan, (void)record, (void)at;
}

static void take_nothing(const struct plan *plan, size_t at) {
    (void)plan, (void)at;
}

/* The whole buffer: piece of the one block. */
static void fill_send(const struct plan *plan, unsigned char *record, size_t at) {
    plan_copy(record, plan_send(plan, at), piece_of(plan, 0, at) * plan->width);
}

static void fill_receive(const struct plan *plan, unsigned char *record, size_t at) {
    plan_copy(record, plan_receive(plan, at), piece_of(plan, 0, at) * plan->width);
}

static void fill_own_block(const struct plan *plan, unsigned char *record, size_t at) {
    plan_copy(record, plan_send(plan, at), piece_of(plan, plan->node->index, at) * plan->width);
}

/* What each other member is to get, one after the other in rank order, this member left out. */
static unsigned char *part_of(const struct plan *plan, const unsigned char *record, uint32_t writer, uint32_t reader) {
    return (unsigned char *)(uintptr_t)record + (reader - (reader > writer)) * plan->room;
}

static void fill_all_blocks(const struct plan *plan, unsigned char *record, size_t at) {
    for (uint32_t member = 0; member < plan->node->size; member++) {
        if (member != plan->node->index) {
            plan_copy(part_of(plan, record, plan->node->index, member),
                      plan_send(plan, plan_begin(&plan->blocks, member) + at),
                      piece_of(plan, member, at) * plan->width);
        }
    }
}

static void reduce(const struct plan *plan, void *out, size_t count) {
    if (count > 0) {
        reduce_many(plan->call->type, plan->call->reduction, &out, 1, plan->node->records, plan->node->size, count);
    }
}

static void take_reduction(const struct plan *plan, size_t at) {
    if (plan->call->operation == COMM_ALL_REDUCE || plan_is_root(plan)) {
        plan->node->records[plan->node->index] = plan_send(plan, at);
        reduce(plan, plan_receive(plan, at), piece_of(plan, 0, at));
    }
}

/* Of all before this member, and in a scan of itself: their records come first in the list. */
static void take_prefix(const struct plan *plan, size_t at) {
    struct node *node = plan->node;
    size_t count = piece_of(plan, 0, at), operands = node->index;
    void *out = plan_receive(plan, at);
    if (plan->call->operation == COMM_SCAN) {
        node->records[operands++] = plan_send(plan, at);
    }
    if (count > 0 && operands > 0) {
        reduce_many(plan->call->type, plan->call->reduction, &out, 1, node->records, operands, count);
    }
}

static void take_reduced_block(const struct plan *plan, size_t at) {
    struct node *node = plan->node;
    for (uint32_t member = 0; member < node->size; member++) {
        node->records[member] = part_of(plan, node->records[member], member, node->index);
    }
    node->records[node->index] = plan_send(plan, plan_begin(&plan->blocks, node->index) + at);
    reduce(plan, plan_receive(plan, at), piece_of(plan, node->index, at));
}

static void take_blocks(const struct plan *plan, size_t at) {
    const struct node *node = plan->node;
    for (uint32_t member = 0; member < node->size; member++) {
        if (member != node->index && (plan->call->operation == COMM_ALL_GATHER || plan_is_root(plan))) {
            plan_deliver(plan, plan_receive(plan, plan_begin(&plan->blocks, member) + at), node->records[member],
                         piece_of(plan, member, at) * plan->width);
        }
    }
}

static void take_exchanged(const struct plan *plan, size_t at) {
    const struct node *node = plan->node;
    for (uint32_t member = 0; member < node->size; member++) {
        if (member != node->index) {
            plan_deliver(plan, plan_receive(plan, plan_begin(&plan->comes, member) + at),
                         part_of(plan, node->records[member], member, node->index),
                         piece_in(plan, &plan->comes, member, at) * plan->width);
        }
    }
}

static void take_whole(const struct plan *plan, size_t at) {
    if (!plan_is_root(plan)) {
        plan_deliver(plan, plan_receive(plan, at), plan->node->records[plan->call->root],
                     piece_of(plan, 0, at) * plan->width);
    }
}

static void take_own_block(const struct plan *plan, size_t at) {
    const struct node *node = plan->node;
    if (!plan_is_root(plan)) {
        plan_deliver(plan, plan_receive(plan, at),
                     part_of(plan, node->records[plan->call->root], plan->call->root, node->index),
                     piece_of(plan, node->index, at) * plan->width);
    }
}

static const struct operation operations[] = {
    [COMM_BARRIER] = {all_write, reads_all, fill_nothing, take_nothing},
    [COMM_MONITORED_BARRIER] = {all_write, reads_all, fill_nothing, take_nothing},
    [COMM_ALL_REDUCE] = {all_write, reads_all, fill_send, take_reduction},
    [COMM_REDUCE] = {leaves_write, root_reads_all, fill_send, take_reduction},
    [COMM_BROADCAST] = {root_writes, leaves_read_root, fill_receive, take_whole},
    [COMM_ALL_GATHER] = {all_write, reads_blocks, fill_own_block, take_blocks},
    [COMM_GATHER] = {leaves_write, root_reads_blocks, fill_own_block, take_blocks},
    [COMM_SCATTER] = {root_writes, leaves_read_own_block, fill_all_blocks, take_own_block},
    [COMM_REDUCE_SCATTER] = {all_write, reads_own_block, fill_all_blocks, take_reduced_block},
    [COMM_SCAN] = {all_but_last_write, reads_lower, fill_send, take_prefix},
    [COMM_EXSCAN] = {all_but_last_write, reads_lower, fill_send, take_prefix},
    [COMM_ALL_TO_ALL] = {all_write, reads_all, fill_all_blocks, take_exchanged},
};

/* ---- the loop ---- */

/* A step of which `plan->piece` elements at `at` of each block are taken. */
struct piece {
    const struct operation *operation;
    size_t at, record_bytes;
    bool writes;
};

/* Pieces small enough that a few are under way in the ring at a time, and that they stay in the caches. */
static void cut(struct plan *plan) {
    const struct node *node = plan->node;
    size_t parts = plan_parts(plan);
    size_t most = parts > 1 ? node->part_bytes : node->piece_bytes;
    size_t wished = (size_t)plan->choice.piece_bytes / NODE_CACHE_LINE * NODE_CACHE_LINE;
    most = wished > 0 && wished < most ? wished : most;
    size_t bytes = plan->longest * plan->width;
    plan->piece = plan->longest;
    if (bytes > most) {
        bytes = most;
        plan->piece = most / plan->width;
    }
    plan->room = bytes;
    if (bytes * parts > NODE_INLINE_BYTES) {
        plan->room = (bytes + NODE_CACHE_LINE - 1) / NODE_CACHE_LINE * NODE_CACHE_LINE;
    }
}

/* Waits for what is read of the step, and takes it. */
static int read_step(const struct plan *plan, const struct piece *piece, bool has_offers) {
    struct node *node = plan->node;
    bool from_all = true;
    int status = 0;
    if (node->is_crowded && piece->operation->writes == all_write) {
        status = node_await_all(node, node->step); /* in the order that suits the cores */
    }
    for (uint32_t member = 0; member < node->size && status == 0; member++) {
        if (member == node->index) {
            continue;
        }
        node->records[member] = node_record(node, member, node->step);
        if (!piece->operation->reads(plan, member, piece->at)) {
            from_all = false;
            continue;
        }
        status = has_offers ? node_await_payload(node, member, node->step) : node_await(node, member, node->step);
    }
    if (status != 0) {
        return status;
    }
    if (from_all && node->known < node->first - 1) {
        node->known = node->first - 1;
    }
    piece->operation->take(plan, piece->at);
    return 0;
}

static int run_step(const struct plan *plan, const struct piece *piece) {
    struct node *node = plan->node;
    int status = node_open(node, piece->record_bytes, piece->writes);
    if (status != 0) {
        return status;
    }
    if (piece->writes) {
        piece->operation->fill(plan, node_record(node, node->index, node->step), piece->at);
        node_publish(node);
    }
    return read_step(plan, piece, false);
}

/* The first step of a call whose buffers are worth an offer (node_direct.c). *out_direct: all members made one, and
 * nothing has been staged. */
static int run_step_with_offers(const struct plan *plan, const struct piece *piece, bool *out_direct) {
    struct node *node = plan->node;
    int status = node_open(node, piece->record_bytes, true);
    if (status != 0) {
        return status;
    }
    void *record = node_record(node, node->index, node->step);
    struct node_offer *offer = node_offer_of(node, node->index, node->step);
    bool offers = node_direct_offer(plan, offer);
    if (piece->writes && !offers) {
        piece->operation->fill(plan, record, piece->at);
    }
    node_publish(node);
    *out_direct = offers;
    for (uint32_t i = 0; i < node->size && *out_direct; i++) {
        uint32_t member = (plan->call->root + i) % node->size; /* the root has most to say */
        if ((status = node_await(node, member, node->step)) != 0) {
            return status;
        }
        *out_direct = node_offer_of(node, member, node->step)->is_direct;
    }
    if (*out_direct) {
        node->known = node->first - 1 > node->known ? node->first - 1 : node->known;
        return 0;
    }
    if (piece->writes && offers) {
        piece->operation->fill(plan, record, piece->at);
        node_publish_payload(node);
    }
    return read_step(plan, piece, true);
}

int node_staged_run(struct plan *plan, enum node_outcome *out) {
    struct node *node = plan->node;
    cut(plan);
    size_t parts = plan_parts(plan);
    struct piece piece = {.operation = &operations[plan->call->operation]};
    piece.writes = node->size > 1 && piece.operation->writes(plan);
    bool is_direct = false;
    *out = NODE_DONE;
    do {
        if (piece.at > 0) {
            node_consume(node, node->step);
        }
        if (piece.at > 0 &&
            plan->choice.algorithm == CHOICE_TWO_STAGE) { /* the first piece may have gone with the offers */
            return node_two_stage_run(plan, piece.at);
        }
        size_t left = plan->longest - piece.at;
        piece.record_bytes = (left < plan->piece ? left : plan->piece) * plan->width;
        piece.record_bytes = parts > 1 ? plan->room * parts : piece.record_bytes;
        bool has_offers =
            piece.at == 0 && node->size > 1 && piece.record_bytes > NODE_INLINE_BYTES && node_direct_is_worth(plan);
        int status = has_offers ? run_step_with_offers(plan, &piece, &is_direct) : run_step(plan, &piece);
        if (status != 0) {
            return status;
        }
        if (is_direct) {
            *out = NODE_AGREED_DIRECT;
            return 0;
        }
        piece.at += plan->piece;
    } while (piece.at < plan->longest);
    node_keep_own(plan);
    return 0;
}
