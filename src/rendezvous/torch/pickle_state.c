/* From the tree of a pickle to a rendezvous state: every attribute present once and of its type, nothing else. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "rendezvous/torch/pickle_tree.h"

static int misshapen(const char *what) {
    return status_fail(MUSTER_ECORRUPT, "the rendezvous state has an unexpected shape: %s", what);
}

/* ---- attributes of an object, by name ---- */

/* Sets out[i] to the value of names[i]. Each must occur exactly once and there must be no other. */
static int attributes(const struct pickle_tree *t, uint32_t container, const char *const *names, size_t name_count,
                      struct pickle_value *out) {
    unsigned seen = 0;
    if (container == PICKLE_NIL) {
        return misshapen("an object was never built");
    }
    for (uint32_t at = t->containers[container].head; at != PICKLE_NIL; at = t->items[at].next) {
        const struct pickle_item *item = &t->items[at];
        size_t i = 0;
        while (i < name_count && !(item->key.kind == PICKLE_TEXT && item->key.size == strlen(names[i]) &&
                                   memcmp(item->key.bytes, names[i], item->key.size) == 0)) {
            i++;
        }
        if (i == name_count || (seen & 1u << i)) {
            return misshapen("an attribute is unknown or occurs twice");
        }
        seen |= 1u << i;
        out[i] = item->value;
    }
    return seen == (1u << name_count) - 1 ? MUSTER_OK : misshapen("an attribute is missing");
}

/* ---- nodes ---- */

/* Addresses are printed in messages: control characters are not let in. */
static bool address_is_printable(const uint8_t *bytes, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] < 0x20 || bytes[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

static int node(const struct pickle_tree *t, const struct pickle_value *value, struct rdzv_node *out) {
    static const char *const names[] = {"addr", "pid", "local_id"};
    struct pickle_value values[3];
    if (value->kind != PICKLE_OBJECT || t->objects[value->index].class != PICKLE_CLASS_NODE) {
        return misshapen("a key is not a node");
    }
    int rc = attributes(t, t->objects[value->index].attributes, names, 3, values);
    if (rc != MUSTER_OK) {
        return rc;
    }
    if (values[0].kind != PICKLE_TEXT || values[1].kind != PICKLE_INT || values[2].kind != PICKLE_INT) {
        return misshapen("a node's attribute is of another type");
    }
    if (values[0].size >= RDZV_ADDR_MAX || !address_is_printable(values[0].bytes, values[0].size)) {
        return misshapen("a node's address is too long or not printable");
    }
    *out = (struct rdzv_node){.pid = values[1].number, .local_id = values[2].number};
    memcpy(out->addr, values[0].bytes, values[0].size);
    return MUSTER_OK;
}

/* Appends one member a list entry; sort_members() merges them. */
static int add_entry(struct rdzv_state *out, const struct pickle_tree *t, const struct pickle_item *item,
                     enum rdzv_list list) {
    struct rdzv_member member = {.lists = (uint8_t)list};
    int rc = node(t, &item->key, &member.node);
    if (rc != MUSTER_OK) {
        return rc;
    }
    if (list == RDZV_PARTICIPANT) {
        if (item->value.kind != PICKLE_INT) {
            return misshapen("a rank is not a number");
        }
        member.rank = item->value.number;
    } else if (list == RDZV_HEARTBEAT) {
        if (item->value.kind != PICKLE_TIME) {
            return misshapen("a heartbeat is not a time");
        }
        member.heartbeat_us = item->value.number;
    }
    out->members[out->member_count++] = member;
    return MUSTER_OK;
}

static int add_list(struct rdzv_state *out, const struct pickle_tree *t, const struct pickle_value *value,
                    enum rdzv_list list) {
    bool is_set = list == RDZV_WAITING || list == RDZV_SPARE;
    if (value->kind != (is_set ? PICKLE_SET : PICKLE_DICT)) {
        return misshapen("a list of nodes is of another type");
    }
    for (uint32_t at = t->containers[value->index].head; at != PICKLE_NIL; at = t->items[at].next) {
        /* One node may occur in several lists, so entries can be more than nodes. */
        if (out->member_count == out->member_capacity) {
            size_t capacity = out->member_capacity ? out->member_capacity * 2 : 4;
            struct rdzv_member *grown = realloc(out->members, capacity * sizeof *grown);
            if (!grown) {
                return status_fail(MUSTER_ENOMEM, "no memory to read the rendezvous state");
            }
            out->members = grown;
            out->member_capacity = capacity;
        }
        if (out->member_count >= (size_t)2 * RDZV_NODES_MAX) {
            return status_fail(MUSTER_ELIMIT, "the rendezvous state lists more than %d nodes", RDZV_NODES_MAX);
        }
        int rc = add_entry(out, t, &t->items[at], list);
        if (rc != MUSTER_OK) {
            return rc;
        }
    }
    return MUSTER_OK;
}

static int compare_members(const void *a, const void *b) {
    const struct rdzv_member *x = a;
    const struct rdzv_member *y = b;
    int order = rdzv_node_compare(&x->node, &y->node);
    return order != 0 ? order : (int)x->lists - (int)y->lists;
}

/* Sorts, and makes one member of all entries of a node. */
static int sort_members(struct rdzv_state *out) {
    if (out->member_count == 0) {
        return MUSTER_OK;
    }
    qsort(out->members, out->member_count, sizeof *out->members, compare_members);
    size_t kept = 0;
    for (size_t i = 1; i < out->member_count; i++) {
        struct rdzv_member *into = &out->members[kept];
        const struct rdzv_member *from = &out->members[i];
        if (rdzv_node_compare(&into->node, &from->node) != 0) {
            out->members[++kept] = *from;
            continue;
        }
        into->lists |= from->lists;
        into->rank = from->lists & RDZV_PARTICIPANT ? from->rank : into->rank;
        into->heartbeat_us = from->lists & RDZV_HEARTBEAT ? from->heartbeat_us : into->heartbeat_us;
    }
    out->member_count = kept + 1;
    if (out->member_count > RDZV_NODES_MAX) {
        return status_fail(MUSTER_ELIMIT, "the rendezvous state lists more than %d nodes", RDZV_NODES_MAX);
    }
    return MUSTER_OK;
}

enum attribute {
    ROUND,
    COMPLETE,
    DEADLINE,
    CLOSED,
    PARTICIPANTS,
    WAIT_LIST,
    REDUNDANCY_LIST,
    LAST_HEARTBEATS,
    ATTRIBUTES
};

static int scalars(const struct pickle_value *values, struct rdzv_state *out) {
    if (values[ROUND].kind != PICKLE_INT || values[ROUND].number < 0 || values[ROUND].number == INT64_MAX ||
        values[COMPLETE].kind != PICKLE_BOOL || values[CLOSED].kind != PICKLE_BOOL ||
        (values[DEADLINE].kind != PICKLE_NONE && values[DEADLINE].kind != PICKLE_TIME)) {
        return misshapen("an attribute is of another type");
    }
    out->round = values[ROUND].number;
    out->complete = values[COMPLETE].number != 0;
    out->closed = values[CLOSED].number != 0;
    out->has_deadline = values[DEADLINE].kind == PICKLE_TIME;
    out->deadline_us = out->has_deadline ? values[DEADLINE].number : 0;
    return MUSTER_OK;
}

int pickle_tree_state(const struct pickle_tree *t, struct rdzv_state *out) {
    static const char *const names[ATTRIBUTES] = {"round",        "complete",  "deadline",        "closed",
                                                  "participants", "wait_list", "redundancy_list", "last_heartbeats"};
    struct pickle_value values[ATTRIBUTES];
    const struct pickle_value *top = &t->stack[0];
    if (top->kind != PICKLE_OBJECT || t->objects[top->index].class != PICKLE_CLASS_STATE) {
        return misshapen("it is not a _RendezvousState");
    }
    int rc = attributes(t, t->objects[top->index].attributes, names, ATTRIBUTES, values);
    if (rc == MUSTER_OK) {
        rc = scalars(values, out);
    }
    static const struct {
        enum attribute attribute;
        enum rdzv_list list;
    } lists[] = {{PARTICIPANTS, RDZV_PARTICIPANT},
                 {WAIT_LIST, RDZV_WAITING},
                 {REDUNDANCY_LIST, RDZV_SPARE},
                 {LAST_HEARTBEATS, RDZV_HEARTBEAT}};
    for (size_t i = 0; rc == MUSTER_OK && i < sizeof lists / sizeof *lists; i++) {
        rc = add_list(out, t, &values[lists[i].attribute], lists[i].list);
    }
    return rc == MUSTER_OK ? sort_members(out) : rc;
}
