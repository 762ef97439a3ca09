/* See virtual_tree.h. */
#include "train/reduction/virtual_tree.h"

#include <assert.h>

struct virtual_interval virtual_interval_of(uint32_t virtual_ranks, uint32_t rank, uint32_t ranks) {
    assert(rank < ranks && ranks <= virtual_ranks);
    uint32_t first = (uint32_t)((uint64_t)virtual_ranks * rank / ranks);
    uint32_t end = (uint32_t)((uint64_t)virtual_ranks * (rank + 1) / ranks);
    return (struct virtual_interval){first, end - first};
}

static bool are_siblings(struct virtual_node left, struct virtual_node right) {
    return left.level == right.level && left.index % 2 == 0 && right.index == left.index + 1;
}

static void merge(struct virtual_stack *stack) {
    struct virtual_node *left = &stack->nodes[--stack->count - 1];
    *left = (struct virtual_node){left->level + 1, left->index / 2};
}

uint32_t virtual_stack_push(struct virtual_stack *stack, struct virtual_node node) {
    uint32_t additions = 0;
    assert(stack->count < VIRTUAL_NODES_MAX);
    stack->nodes[stack->count++] = node;
    while (stack->count > 1 && are_siblings(stack->nodes[stack->count - 2], stack->nodes[stack->count - 1])) {
        merge(stack);
        additions++;
    }
    return additions;
}

uint32_t virtual_stack_close(struct virtual_stack *stack) {
    uint32_t additions = 0;
    while (stack->count > 1) {
        struct virtual_node *top = &stack->nodes[stack->count - 1];
        if (are_siblings(stack->nodes[stack->count - 2], *top)) {
            merge(stack);
            additions++;
        } else { /* nothing is to the right of it: it goes up as it is */
            assert(top->level < stack->nodes[stack->count - 2].level && top->index % 2 == 0);
            *top = (struct virtual_node){top->level + 1, top->index / 2};
        }
    }
    return additions;
}

void virtual_interval_nodes(struct virtual_interval interval, struct virtual_stack *out, uint32_t *deepest) {
    *deepest = 0;
    out->count = 0;
    for (uint32_t i = 0; i < interval.count; i++) {
        *deepest = out->count > *deepest ? out->count : *deepest;
        (void)virtual_stack_push(out, (struct virtual_node){0, interval.first + i});
    }
}

uint32_t virtual_rounds_deepest(uint32_t virtual_ranks, uint32_t each) {
    struct virtual_stack stack = {.count = 0};
    uint32_t deepest = 0;
    for (uint32_t v = 0; v + 1 < virtual_ranks; v++) {
        (void)virtual_stack_push(&stack, (struct virtual_node){0, v});
        deepest = (v + 1) % each == 0 && stack.count > deepest ? stack.count : deepest;
    }
    return deepest;
}
