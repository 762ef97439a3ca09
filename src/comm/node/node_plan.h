/* Private to the node's files: a call with its buffers' layout, as the algorithms see it. */
#ifndef COMM_NODE_PLAN_H
#define COMM_NODE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "comm/node/node_state.h"
#include "comm/reduce/copy.h"

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
    bool is_divided;      /* into blocks, one a member */
    bool is_large;        /* larger than the caches */
    struct layout blocks; /* of the buffer that has them; in all_to_all, of the one that is sent */
    struct layout comes;  /* of the receive buffer of all_to_all */
    const size_t *froms;  /* all_to_all with counts: where this member's block begins in each one's send buffer */
    size_t longest;       /* of all members' blocks */
    size_t bytes;         /* of the largest buffer of any member */
    struct choice_answer choice;
    size_t piece; /* staged: of a block, in one step */
    size_t room;  /* staged: bytes of a piece in a record, rounded so that the next is aligned */
};

static inline size_t plan_count(const struct layout *layout, uint32_t block) {
    return layout->counts ? layout->counts[block] : layout->count;
}

static inline size_t plan_begin(const struct layout *layout, uint32_t block) {
    return layout->counts ? layout->begins[block] : block * layout->count;
}

static inline unsigned char *plan_receive(const struct plan *plan, size_t element) {
    return (unsigned char *)plan->call->receive + element * plan->width;
}

static inline const unsigned char *plan_send(const struct plan *plan, size_t element) {
    return (const unsigned char *)plan->call->send + element * plan->width;
}

/* Pieces in a record: of divided buffers, one for each other member. */
static inline size_t plan_parts(const struct plan *plan) {
    bool is_sent_divided = plan->call->operation >= COMM_SCATTER && plan->is_divided;
    return is_sent_divided && plan->node->size > 1 ? plan->node->size - 1 : 1;
}

static inline bool plan_is_root(const struct plan *plan) {
    return plan->node->index == plan->call->root;
}

/* In place, `to` and `from` may be the same. One word without a call: memcpy() would be a tenth of the shortest calls.
 */
static inline void plan_copy(void *to, const void *from, size_t bytes) {
    if (bytes == sizeof(uint32_t)) {
        memcpy(to, from, sizeof(uint32_t));
    } else if (bytes == sizeof(uint64_t)) {
        memcpy(to, from, sizeof(uint64_t));
    } else if (bytes > 0 && to != from) {
        memcpy(to, from, bytes);
    }
}

/* Into a buffer of the call. */
static inline void plan_deliver(const struct plan *plan, void *to, const void *from, size_t bytes) {
    if (plan->is_large) {
        comm_copy_past_caches(to, from, bytes);
    } else {
        plan_copy(to, from, bytes);
    }
}

/* How an attempt at a call has ended. */
enum node_outcome { NODE_DONE, NODE_NOT_DONE, NODE_AGREED_DIRECT };

/* Lays out the node's call. In all_to_all with counts it takes a step in which members compare them: MUSTER_EMISMATCH,
 * and what waiting gives. */
int plan_make(struct node *node, const struct comm_call *call, struct plan *plan);

/* Copies what a member sends to itself, in operations whose blocks are not reduced. */
void node_keep_own(const struct plan *plan);

#endif
