/* Steps, which all algorithms of a node are made of: records of members, waiting for them, and reuse of their room. The
 * rules stand in node_state.h. */
#ifndef COMM_NODE_STEP_H
#define COMM_NODE_STEP_H

#include "comm/node/node_state.h"

/* Opens the next step; every member does so at the same point of the same call and with the same `bytes`, the most that
 * a record of it may hold (<= ring_bytes / 2). A member that `writes` waits until the room is free. */
int node_open(struct node *node, size_t bytes, bool writes);

/* Makes this member's record of the step opened last visible, and wakes those who sleep. */
void node_publish(struct node *node);

/* The slow part of node_await(): looks, waits, and compares. */
int node_await_slowly(struct node *node, uint32_t member, uint64_t step);

/* Waits for the member's record of a step of this call. */
static inline int node_await(struct node *node, uint32_t member, uint64_t step) {
    const struct node_line *line = &node_area(node, member)->lines[step % NODE_LINES];
    if (atomic_load_explicit(&line->stamp, memory_order_acquire) == step && line->hash == node->hash) {
        return 0;
    }
    return node_await_slowly(node, member, step);
}

/* Does the member compete with this one for a core? Then it cannot come before this one gives way. */
static inline bool node_shares_core(const struct node *node, uint32_t member) {
    return atomic_load_explicit(&node_area(node, member)->processor, memory_order_relaxed) == node->processor;
}

/* Waits for everybody's record of a step: first for those who need this core to write it. */
int node_await_all(struct node *node, uint64_t step);

/* Says that everything that this member needs of the steps up to `step` has been read, and wakes those who sleep. */
void node_consume(struct node *node, uint64_t step);

/* The last step that the member has consumed, and the half of its hash. */
uint64_t node_consumed(const struct node *node, uint32_t member, uint32_t *out_hash);

/* Waits until all members have consumed `step`. */
int node_await_consumed(struct node *node, uint64_t step);

/* A member's memory could not be used, which is the error `status` with its detail. Most likely the member is dead, and
 * whoever watches over it knows that better in a moment: then gives that error instead. */
int node_doubt(struct node *node, int status);

/* After node_publish() of an offer that came to nothing: now the rest is there. */
void node_publish_payload(struct node *node);

/* node_await(), then if the member made an offer, waits until it has staged its record all the same. */
int node_await_payload(struct node *node, uint32_t member, uint64_t step);

#endif
