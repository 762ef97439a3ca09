/* Collectives through the rings: each member copies what the others need of its buffer into its records, and the
 * others take it from there. Right for any buffers, and the quickest for small ones.
 *
 * One loop serves all operations: a call is cut into pieces, one step each, and an operation is a row of a table that
 * says who writes, who reads whom, and what is copied. Blocks may differ in size; a step then carries the piece at the
 * same offset of every block that is long enough. */
#include <assert.h>
#include <string.h>

#include <muster/status.h>

#include "base/status.h"
#include "comm/node_impl.h"
#include "comm/reduce.h"

/* How a buffer is divided, in elements. Block r is what concerns member r; all_reduce, reduce and broadcast have one
 * block, which concerns all. */
struct layout {
    const size_t *counts; /* NULL: all blocks have `count` */
    const size_t *begins; /* where they begin, if counts is not NULL */
    size_t count;
};

struct plan {
    struct node *node;
    const struct comm_call *call;
    size_t width;         /* bytes of an element */
    struct layout blocks; /* of the buffer that has them; in all_to_all, of the one that is sent */
    struct layout comes;  /* of the receive buffer of all_to_all */
    size_t longest;       /* of all members' blocks */
    size_t piece;         /* of a block, in one step */
    size_t room;          /* bytes of a piece in a record, rounded so that the next is aligned */
};

struct operation {
    /* Blocks in one record: 1, or one per member. */
    bool is_divided;
    bool (*writes)(const struct plan *plan);
    bool (*reads)(const struct plan *plan, uint32_t from, size_t at);
    void (*fill)(const struct plan *plan, unsigned char *record, size_t at);
    void (*take)(const struct plan *plan, size_t at);
    void (*alone)(const struct plan *plan); /* what concerns only this member; NULL: nothing */
};

static size_t count_of(const struct layout *layout, uint32_t block) {
    return layout->counts ? layout->counts[block] : layout->count;
}

static size_t begin_of(const struct layout *layout, uint32_t block) {
    return layout->counts ? layout->begins[block] : block * layout->count;
}

/* Elements of the piece at `at` of a block. */
static size_t piece_in(const struct plan *plan, const struct layout *layout, uint32_t block, size_t at) {
    size_t count = count_of(layout, block);
    size_t left = count > at ? count - at : 0;
    return left < plan->piece ? left : plan->piece;
}

static size_t piece_of(const struct plan *plan, uint32_t block, size_t at) {
    return piece_in(plan, &plan->blocks, block, at);
}

static unsigned char *receive_at(const struct plan *plan, size_t element) {
    return (unsigned char *)plan->call->receive + element * plan->width;
}

static const unsigned char *send_at(const struct plan *plan, size_t element) {
    return (const unsigned char *)plan->call->send + element * plan->width;
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes > 0 && to != from) {
        memcpy(to, from, bytes);
    }
}

/* ---- who writes, who reads ---- */

static bool all_write(const struct plan *plan) {
    (void)plan;
    return true;
}

static bool root_writes(const struct plan *plan) {
    return plan->node->index == plan->call->root;
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

static bool reads_blocks(const struct plan *plan, uint32_t from, size_t at) {
    return at == 0 || piece_of(plan, from, at) > 0;
}

static bool reads_own_block(const struct plan *plan, uint32_t from, size_t at) {
    (void)from;
    return at == 0 || piece_of(plan, plan->node->index, at) > 0;
}

static bool root_reads_all(const struct plan *plan, uint32_t from, size_t at) {
    (void)from, (void)at;
    return root_writes(plan);
}

static bool root_reads_blocks(const struct plan *plan, uint32_t from, size_t at) {
    return root_writes(plan) && reads_blocks(plan, from, at);
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
    copy(record, send_at(plan, at), piece_of(plan, 0, at) * plan->width);
}

static void fill_receive(const struct plan *plan, unsigned char *record, size_t at) {
    copy(record, receive_at(plan, at), piece_of(plan, 0, at) * plan->width);
}

static void fill_own_block(const struct plan *plan, unsigned char *record, size_t at) {
    copy(record, send_at(plan, at), piece_of(plan, plan->node->index, at) * plan->width);
}

/* What each other member is to get, one after the other in rank order, this member left out. */
static unsigned char *part_of(const struct plan *plan, const unsigned char *record, uint32_t writer, uint32_t reader) {
    return (unsigned char *)(uintptr_t)record + (reader - (reader > writer)) * plan->room;
}

static void fill_all_blocks(const struct plan *plan, unsigned char *record, size_t at) {
    for (uint32_t member = 0; member < plan->node->size; member++) {
        if (member != plan->node->index) {
            copy(part_of(plan, record, plan->node->index, member), send_at(plan, begin_of(&plan->blocks, member) + at),
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
    if (plan->call->operation == COMM_ALL_REDUCE || root_writes(plan)) {
        plan->node->records[plan->node->index] = send_at(plan, at);
        reduce(plan, receive_at(plan, at), piece_of(plan, 0, at));
    }
}

static void take_reduced_block(const struct plan *plan, size_t at) {
    struct node *node = plan->node;
    for (uint32_t member = 0; member < node->size; member++) {
        node->records[member] = part_of(plan, node->records[member], member, node->index);
    }
    node->records[node->index] = send_at(plan, begin_of(&plan->blocks, node->index) + at);
    reduce(plan, receive_at(plan, at), piece_of(plan, node->index, at));
}

static void take_blocks(const struct plan *plan, size_t at) {
    const struct node *node = plan->node;
    for (uint32_t member = 0; member < node->size; member++) {
        if (member != node->index && (plan->call->operation == COMM_ALL_GATHER || root_writes(plan))) {
            copy(receive_at(plan, begin_of(&plan->blocks, member) + at), node->records[member],
                 piece_of(plan, member, at) * plan->width);
        }
    }
}

static void take_exchanged(const struct plan *plan, size_t at) {
    const struct node *node = plan->node;
    for (uint32_t member = 0; member < node->size; member++) {
        if (member != node->index) {
            copy(receive_at(plan, begin_of(&plan->comes, member) + at),
                 part_of(plan, node->records[member], member, node->index),
                 piece_in(plan, &plan->comes, member, at) * plan->width);
        }
    }
}

static void take_whole(const struct plan *plan, size_t at) {
    if (!root_writes(plan)) {
        copy(receive_at(plan, at), plan->node->records[plan->call->root], piece_of(plan, 0, at) * plan->width);
    }
}

static void take_own_block(const struct plan *plan, size_t at) {
    const struct node *node = plan->node;
    if (!root_writes(plan)) {
        copy(receive_at(plan, at), part_of(plan, node->records[plan->call->root], plan->call->root, node->index),
             piece_of(plan, node->index, at) * plan->width);
    }
}

/* ---- a member's own block ---- */

static void keep_gathered(const struct plan *plan) {
    uint32_t index = plan->node->index;
    if (plan->call->operation == COMM_ALL_GATHER || root_writes(plan)) {
        copy(receive_at(plan, begin_of(&plan->blocks, index)), send_at(plan, 0),
             count_of(&plan->blocks, index) * plan->width);
    }
}

static void keep_scattered(const struct plan *plan) {
    uint32_t index = plan->node->index;
    if (root_writes(plan)) {
        copy(receive_at(plan, 0), send_at(plan, begin_of(&plan->blocks, index)),
             count_of(&plan->blocks, index) * plan->width);
    }
}

static void keep_exchanged(const struct plan *plan) {
    uint32_t index = plan->node->index;
    copy(receive_at(plan, begin_of(&plan->comes, index)), send_at(plan, begin_of(&plan->blocks, index)),
         count_of(&plan->blocks, index) * plan->width);
}

static const struct operation operations[] = {
    [COMM_BARRIER] = {false, all_write, reads_all, fill_nothing, take_nothing, NULL},
    [COMM_MONITORED_BARRIER] = {false, all_write, reads_all, fill_nothing, take_nothing, NULL},
    [COMM_ALL_REDUCE] = {false, all_write, reads_all, fill_send, take_reduction, NULL},
    [COMM_REDUCE] = {false, leaves_write, root_reads_all, fill_send, take_reduction, NULL},
    [COMM_BROADCAST] = {false, root_writes, leaves_read_root, fill_receive, take_whole, NULL},
    [COMM_ALL_GATHER] = {false, all_write, reads_blocks, fill_own_block, take_blocks, keep_gathered},
    [COMM_GATHER] = {false, leaves_write, root_reads_blocks, fill_own_block, take_blocks, keep_gathered},
    [COMM_SCATTER] = {true, root_writes, leaves_read_own_block, fill_all_blocks, take_own_block, keep_scattered},
    [COMM_REDUCE_SCATTER] = {true, all_write, reads_own_block, fill_all_blocks, take_reduced_block, NULL},
    [COMM_ALL_TO_ALL] = {true, all_write, reads_all, fill_all_blocks, take_exchanged, keep_exchanged},
};

/* ---- the loop ---- */

/* Pieces small enough that a few are under way in the ring at a time, and that they stay in the caches. */
static void cut(struct plan *plan, bool is_divided) {
    const struct node *node = plan->node;
    size_t parts = is_divided && node->size > 1 ? node->size - 1 : 1;
    size_t most = node->ring_bytes / NODE_PIECES_PER_RING / parts / NODE_CACHE_LINE * NODE_CACHE_LINE;
    size_t bytes = plan->longest * plan->width;
    if (bytes > most) {
        bytes = most;
    }
    plan->piece = bytes / plan->width;
    plan->room = bytes;
    if (bytes * parts > NODE_INLINE_BYTES) {
        plan->room = (bytes + NODE_CACHE_LINE - 1) / NODE_CACHE_LINE * NODE_CACHE_LINE;
    }
}

static int run_step(const struct plan *plan, const struct operation *operation, size_t at, size_t record_bytes) {
    struct node *node = plan->node;
    bool writes = node->size > 1 && operation->writes(plan);
    int status = node_open(node, record_bytes, writes);
    if (status != 0) {
        return status;
    }
    if (writes) {
        operation->fill(plan, node_record(node, node->index, node->step), at);
        node_publish(node);
    }
    bool from_all = true;
    for (uint32_t member = 0; member < node->size; member++) {
        if (member == node->index) {
            continue;
        }
        node->records[member] = node_record(node, member, node->step);
        if (!operation->reads(plan, member, at)) {
            from_all = false;
        } else if ((status = node_await(node, member, node->step)) != 0) {
            return status;
        }
    }
    if (from_all && node->known < node->first - 1) {
        node->known = node->first - 1;
    }
    operation->take(plan, at);
    return 0;
}

static int run_steps(struct plan *plan, const struct operation *operation) {
    struct node *node = plan->node;
    cut(plan, operation->is_divided);
    size_t parts = operation->is_divided && node->size > 1 ? node->size - 1 : 1;
    if (operation->alone) {
        operation->alone(plan);
    }
    size_t at = 0;
    do {
        if (at > 0) {
            node_consume(node, node->step);
        }
        size_t left = plan->longest - at;
        size_t record_bytes = left < plan->piece ? left * plan->width : plan->piece * plan->width;
        record_bytes = parts > 1 ? plan->room * parts : record_bytes;
        int status = run_step(plan, operation, at, record_bytes);
        if (status != 0) {
            return status;
        }
        at += plan->piece;
    } while (at < plan->longest);
    return 0;
}

/* ---- counts per member ---- */

/* Where each block begins; NULL for equal ones. */
static struct layout layout_of(const size_t *counts, size_t count, uint32_t size, size_t *begins) {
    begins[0] = 0;
    for (uint32_t i = 0; counts && i < size; i++) {
        begins[i + 1] = begins[i] + counts[i];
    }
    return (struct layout){.counts = counts, .begins = begins, .count = count};
}

static size_t longest_of(const struct layout *layout, uint32_t size) {
    size_t longest = layout->count;
    if (layout->counts) {
        longest = 0;
        for (uint32_t block = 0; block < size; block++) {
            longest = layout->counts[block] > longest ? layout->counts[block] : longest;
        }
    }
    return longest;
}

/* all_to_all with counts: nobody knows all of them, but all must take the same steps. So in a step of its own everybody
 * tells everybody how much is coming, which is compared with what is expected, and the longest of its blocks. */
static int exchange_counts(struct plan *plan) {
    struct node *node = plan->node;
    size_t bytes = ((size_t)node->size + 1) * sizeof(size_t);
    int status = node_open(node, bytes, true);
    if (status != 0) {
        return status;
    }
    size_t *record = node_record(node, node->index, node->step);
    memcpy(record, plan->blocks.counts, bytes - sizeof *record);
    record[node->size] = plan->longest;
    node_publish(node);
    for (uint32_t member = 0; member < node->size; member++) {
        if ((status = node_await(node, member, node->step)) != 0) {
            return status;
        }
        const size_t *theirs = node_record(node, member, node->step);
        if (theirs[node->index] != count_of(&plan->comes, member)) {
            return status_fail(MUSTER_EMISMATCH,
                               "call %llu: all_to_all: member %u expects %zu %s from member %u, which sends %zu",
                               (unsigned long long)node->number, (unsigned)node->index, count_of(&plan->comes, member),
                               muster_type_name(plan->call->type), (unsigned)member, theirs[node->index]);
        }
        plan->longest = theirs[node->size] > plan->longest ? theirs[node->size] : plan->longest;
    }
    node_consume(node, node->step);
    return 0;
}

int node_staged_run(struct node *node, const struct comm_call *call) {
    struct plan plan = {.node = node, .call = call, .width = muster_type_bytes(call->type)};
    size_t count = call->count;
    if (call->operation == COMM_BARRIER || call->operation == COMM_MONITORED_BARRIER) {
        plan.width = 1;
        count = 0;
    }
    bool is_sent = call->operation == COMM_SCATTER || call->operation == COMM_ALL_TO_ALL;
    plan.blocks = layout_of(is_sent ? call->send_counts : call->receive_counts, count, node->size, node->offsets);
    plan.comes = plan.blocks;
    plan.longest = longest_of(&plan.blocks, node->size);
    if (call->operation == COMM_ALL_TO_ALL && call->send_counts) {
        plan.comes = layout_of(call->receive_counts, count, node->size, node->offsets + node->size + 1);
        int status = exchange_counts(&plan);
        if (status != 0) {
            return status;
        }
    }
    return run_steps(&plan, &operations[call->operation]);
}
