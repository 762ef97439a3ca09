/* The rendezvous state as data; see state.h. */
#include "rendezvous/torch/state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

void rdzv_state_init(struct rdzv_state *state) {
    *state = (struct rdzv_state){.round = 0};
}

void rdzv_state_done(struct rdzv_state *state) {
    free(state->members);
    rdzv_state_init(state);
}

int rdzv_state_reserve(struct rdzv_state *state, size_t count) {
    if (count > RDZV_NODES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a rendezvous holds at most %d nodes", RDZV_NODES_MAX);
    }
    if (count <= state->member_capacity) {
        return MUSTER_OK;
    }
    size_t capacity = state->member_capacity ? state->member_capacity : 4;
    while (capacity < count) {
        capacity *= 2;
    }
    struct rdzv_member *grown = realloc(state->members, capacity * sizeof *grown);
    if (!grown) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu rendezvous nodes", capacity);
    }
    state->members = grown;
    state->member_capacity = capacity;
    return MUSTER_OK;
}

int rdzv_state_copy(struct rdzv_state *to, const struct rdzv_state *from) {
    int rc = rdzv_state_reserve(to, from->member_count);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct rdzv_member *members = to->members;
    size_t capacity = to->member_capacity;
    *to = *from;
    to->members = members;
    to->member_capacity = capacity;
    if (from->member_count > 0) {
        memcpy(to->members, from->members, from->member_count * sizeof *members);
    }
    return MUSTER_OK;
}

static bool member_equal(const struct rdzv_member *a, const struct rdzv_member *b) {
    return a->lists == b->lists && rdzv_node_compare(&a->node, &b->node) == 0 &&
           (!(a->lists & RDZV_PARTICIPANT) || a->rank == b->rank) &&
           (!(a->lists & RDZV_HEARTBEAT) || a->heartbeat_us == b->heartbeat_us);
}

bool rdzv_state_equal(const struct rdzv_state *a, const struct rdzv_state *b) {
    if (a->round != b->round || a->complete != b->complete || a->closed != b->closed ||
        a->has_deadline != b->has_deadline || (a->has_deadline && a->deadline_us != b->deadline_us) ||
        a->member_count != b->member_count) {
        return false;
    }
    for (size_t i = 0; i < a->member_count; i++) {
        if (!member_equal(&a->members[i], &b->members[i])) {
            return false;
        }
    }
    return true;
}

int rdzv_node_compare(const struct rdzv_node *a, const struct rdzv_node *b) {
    /* Byte order of UTF-8 is code point order, which is how Python compares strings. */
    int order = strcmp(a->addr, b->addr);
    if (order != 0) {
        return order;
    }
    if (a->pid != b->pid) {
        return a->pid < b->pid ? -1 : 1;
    }
    return a->local_id < b->local_id ? -1 : a->local_id > b->local_id;
}

const char *rdzv_node_format(const struct rdzv_node *node, char out[RDZV_NODE_TEXT_MAX]) {
    (void)snprintf(out, RDZV_NODE_TEXT_MAX, "%s_%lld_%lld", node->addr, (long long)node->pid,
                   (long long)node->local_id);
    return out;
}

/* Index of the first member that does not sort before `node`. */
static size_t lower_bound(const struct rdzv_state *state, const struct rdzv_node *node) {
    size_t low = 0;
    size_t high = state->member_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (rdzv_node_compare(&state->members[middle].node, node) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct rdzv_member *rdzv_state_find(const struct rdzv_state *state, const struct rdzv_node *node) {
    size_t at = lower_bound(state, node);
    if (at < state->member_count && rdzv_node_compare(&state->members[at].node, node) == 0) {
        return &state->members[at];
    }
    return NULL;
}

bool rdzv_state_is(const struct rdzv_state *state, const struct rdzv_node *node, unsigned lists) {
    const struct rdzv_member *member = rdzv_state_find(state, node);
    return member && (member->lists & lists) != 0;
}

struct rdzv_member *rdzv_state_insert(struct rdzv_state *state, const struct rdzv_node *node) {
    size_t at = lower_bound(state, node);
    struct rdzv_member *slot = state->members + at;
    if (at < state->member_count && rdzv_node_compare(&slot->node, node) == 0) {
        return slot;
    }
    assert(state->member_count < state->member_capacity);
    memmove(slot + 1, slot, (state->member_count - at) * sizeof *slot);
    state->member_count++;
    *slot = (struct rdzv_member){.node = *node};
    assert(at == 0 || rdzv_node_compare(&slot[-1].node, node) < 0); /* sorted: ranks follow from it */
    assert(at + 1 == state->member_count || rdzv_node_compare(node, &slot[1].node) < 0);
    return slot;
}

bool rdzv_state_remove(struct rdzv_state *state, const struct rdzv_node *node, unsigned lists) {
    struct rdzv_member *member = rdzv_state_find(state, node);
    if (!member || !(member->lists & lists)) {
        return false;
    }
    member->lists &= (uint8_t)~lists;
    if (member->lists == 0) {
        size_t at = (size_t)(member - state->members);
        assert(at < state->member_count);
        memmove(member, member + 1, (state->member_count - at - 1) * sizeof *member);
        state->member_count--;
    }
    return true;
}

size_t rdzv_state_count(const struct rdzv_state *state, unsigned lists) {
    size_t count = 0;
    for (size_t i = 0; i < state->member_count; i++) {
        count += (state->members[i].lists & lists) != 0;
    }
    return count;
}

void rdzv_state_epilogue(struct rdzv_state *state, size_t min_nodes) {
    size_t count = rdzv_state_count(state, RDZV_PARTICIPANT);
    if (state->complete) {
        if (count == 0) {
            state->complete = false;
            state->round++;
        }
    } else if (count < min_nodes) {
        state->has_deadline = false;
    }
}

bool rdzv_state_remove_dead(struct rdzv_state *state, const struct rdzv_node *node, size_t min_nodes) {
    struct rdzv_member *member = rdzv_state_find(state, node);
    if (!member || !(member->lists & RDZV_LISTED)) {
        return false;
    }
    bool took_part = (member->lists & RDZV_PARTICIPANT) != 0;
    member->lists = RDZV_HEARTBEAT;
    member->heartbeat_us = RDZV_GRAVE_US;
    if (took_part) {
        rdzv_state_epilogue(state, min_nodes);
    }
    return true;
}

void rdzv_state_complete(struct rdzv_state *state) {
    size_t kept = 0;
    int64_t rank = 0;
    for (size_t i = 0; i < state->member_count; i++) {
        struct rdzv_member *member = &state->members[i];
        if (member->lists == RDZV_HEARTBEAT && member->heartbeat_us == RDZV_GRAVE_US) {
            continue;
        }
        if (member->lists & RDZV_PARTICIPANT) {
            member->rank = rank++;
        }
        state->members[kept++] = *member;
    }
    assert((size_t)rank <= kept && kept <= state->member_count);
    state->member_count = kept;
    state->complete = true;
    state->has_deadline = false;
}

const struct rdzv_node *rdzv_state_writer(const struct rdzv_state *before, const struct rdzv_state *after) {
    const struct rdzv_node *writer = NULL;
    for (size_t i = 0; i < after->member_count; i++) {
        const struct rdzv_member *now = &after->members[i];
        if (!(now->lists & RDZV_HEARTBEAT) || now->heartbeat_us == RDZV_GRAVE_US) {
            continue;
        }
        const struct rdzv_member *was = rdzv_state_find(before, &now->node);
        if (was && (was->lists & RDZV_HEARTBEAT) && was->heartbeat_us == now->heartbeat_us) {
            continue;
        }
        if (writer) {
            return NULL;
        }
        writer = &now->node;
    }
    return writer;
}
