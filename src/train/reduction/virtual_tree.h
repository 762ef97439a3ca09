/* The binary tree over virtual ranks (muster/virtual_ranks.h), in which everything is added up. Pure.
 *
 * The node of level k and number i stands for the virtual ranks from i << k to (i + 1) << k, as far as there are so
 * many. Its value is that of its left child plus that of its right one, or that of the left one if the right one stands
 * for none. An interval of virtual ranks has at most 2 * levels nodes that are wholly in it and whose parents are not:
 * these a rank can compute by itself, and no more. */
#ifndef TRAIN_VIRTUAL_TREE_H
#define TRAIN_VIRTUAL_TREE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    VIRTUAL_LEVELS_MAX = 13,                    /* 2^12 virtual ranks */
    VIRTUAL_NODES_MAX = 2 * VIRTUAL_LEVELS_MAX, /* of an interval */
};

struct virtual_node {
    uint32_t level, index;
};

struct virtual_interval {
    uint32_t first, count;
};

/* Values that wait for their neighbours, from left to right. The caller has their memory: value i of it is of
 * nodes[i]. */
struct virtual_stack {
    uint32_t count;
    struct virtual_node nodes[VIRTUAL_NODES_MAX];
};

/* Of the virtual ranks, those of a rank. ranks: 1 to virtual_ranks. */
struct virtual_interval virtual_interval_of(uint32_t virtual_ranks, uint32_t rank, uint32_t ranks);

/* Dealt out in turn: a rank has every `ranks`-th from its own number on. How many? */
static inline uint32_t virtual_turns_of(uint32_t virtual_ranks, uint32_t rank, uint32_t ranks) {
    return (virtual_ranks - rank + ranks - 1) / ranks;
}

/* Puts a value on top, to the right of all others. Returns how often the caller must then add the upper two: the one
 * below plus the one above, which takes the place of the one below. The stack is as it is after that. */
uint32_t virtual_stack_push(struct virtual_stack *stack, struct virtual_node node);
/* All virtual ranks have been pushed: how often the upper two are to be added until one is left. */
uint32_t virtual_stack_close(struct virtual_stack *stack);

/* The nodes of an interval, from left to right: what is on the stack when all its virtual ranks have been pushed.
 * *deepest: how many values wait at most while a virtual rank is computed. */
void virtual_interval_nodes(struct virtual_interval interval, struct virtual_stack *out, uint32_t *deepest);

/* How many values wait at most between two rounds, if the virtual ranks are pushed from left to right, `each` of them
 * in a round. At most log2 of the virtual ranks; none for a single round. */
uint32_t virtual_rounds_deepest(uint32_t virtual_ranks, uint32_t each);

#endif
