/* From the tree of a pickle to a rendezvous state: every attribute present once and of its type, nothing else. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "rendezvous/torch/civil_time.h"
#include "rendezvous/torch/pickle_impl.h"

static int misshapen(const char *what) {
    return status_fail(MUSTER_ECORRUPT, "the rendezvous state has an unexpected shape: %s", what);
}

/* ---- objects ---- */

/* An object of this class, with nothing in it but arguments and a state. */
static const struct unpickle_node *object(const struct unpickled *t, const struct unpickle_value *value,
                                          enum pickle_role role) {
    const struct unpickle_class *class = value && value->kind == UNPICKLE_OBJECT ? unpickled_class(t, value) : NULL;
    const struct unpickle_node *node = class && class->role == (int)role ? unpickled_node(t, value) : NULL;
    return node && node->count == 0 ? node : NULL;
}

/* The arguments of a call that makes an object without a state; NULL: it is none of this class and so many. */
static const struct unpickle_value *call(const struct unpickled *t, const struct unpickle_value *value,
                                         enum pickle_role role, uint32_t count) {
    const struct unpickle_node *node = object(t, value, role);
    return node && node->state.kind == UNPICKLE_MARK && unpickled_count(t, &node->args) == count ? &node->args : NULL;
}

/* Sets out[i] to the value of names[i]. Each must occur exactly once and there must be no other. */
static int attributes(const struct unpickled *t, const struct unpickle_node *object, const char *const *names,
                      size_t name_count, struct unpickle_value *out) {
    unsigned seen = 0;
    if (object->state.kind != UNPICKLE_DICT || unpickled_count(t, &object->args) != 0) {
        return misshapen("an object was never built, or called with something");
    }
    const struct unpickle_item *key = unpickled_first(t, &object->state);
    while (key) {
        const struct unpickle_item *value = unpickled_next(t, key);
        size_t i = 0;
        while (i < name_count && !unpickled_is_text(&key->value, names[i])) {
            i++;
        }
        if (i == name_count || (seen & 1u << i)) {
            return misshapen("an attribute is unknown or occurs twice");
        }
        seen |= 1u << i;
        out[i] = value->value;
        key = unpickled_next(t, value);
    }
    return seen == (1u << name_count) - 1 ? MUSTER_OK : misshapen("an attribute is missing");
}

/* datetime(10 bytes, timezone(timedelta(0, 0, 0))), and no other. */
static bool read_time(const struct unpickled *t, const struct unpickle_value *value, int64_t *out) {
    const struct unpickle_value *time = call(t, value, PICKLE_DATETIME, 2);
    const struct unpickle_value *zone = time ? call(t, unpickled_at(t, time, 1), PICKLE_TIMEZONE, 1) : NULL;
    const struct unpickle_value *delta = zone ? call(t, unpickled_at(t, zone, 0), PICKLE_TIMEDELTA, 3) : NULL;
    for (uint32_t i = 0; delta && i < 3; i++) {
        const struct unpickle_value *number = unpickled_at(t, delta, i);
        delta = number->kind == UNPICKLE_INT && number->number == 0 ? delta : NULL;
    }
    const struct unpickle_value *bytes = delta ? unpickled_at(t, time, 0) : NULL;
    return bytes && bytes->kind == UNPICKLE_BYTES && bytes->size == CIVIL_TIME_BYTES &&
           civil_time_read(bytes->bytes, out);
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

static int node(const struct unpickled *t, const struct unpickle_value *value, struct rdzv_node *out) {
    static const char *const names[] = {"addr", "pid", "local_id"};
    struct unpickle_value values[3];
    const struct unpickle_node *described = object(t, value, PICKLE_NODE);
    if (!described) {
        return misshapen("a key is not a node");
    }
    int rc = attributes(t, described, names, 3, values);
    if (rc != MUSTER_OK) {
        return rc;
    }
    if (values[0].kind != UNPICKLE_TEXT || values[1].kind != UNPICKLE_INT || values[2].kind != UNPICKLE_INT) {
        return misshapen("a node's attribute is of another type");
    }
    if (values[0].size >= RDZV_ADDR_MAX || !address_is_printable(values[0].bytes, values[0].size)) {
        return misshapen("a node's address is too long or not printable");
    }
    *out = (struct rdzv_node){.pid = values[1].number, .local_id = values[2].number};
    memcpy(out->addr, values[0].bytes, values[0].size);
    return MUSTER_OK;
}

/* Appends one member a list entry; sort_members() merges them. value: of a dict. */
static int add_entry(struct rdzv_state *out, const struct unpickled *t, const struct unpickle_value *key,
                     const struct unpickle_value *value, enum rdzv_list list) {
    struct rdzv_member member = {.lists = (uint8_t)list};
    int rc = node(t, key, &member.node);
    if (rc != MUSTER_OK) {
        return rc;
    }
    if (list == RDZV_PARTICIPANT) {
        if (value->kind != UNPICKLE_INT) {
            return misshapen("a rank is not a number");
        }
        member.rank = value->number;
    } else if (list == RDZV_HEARTBEAT) {
        if (!read_time(t, value, &member.heartbeat_us)) {
            return misshapen("a heartbeat is not a time");
        }
    }
    out->members[out->member_count++] = member;
    return MUSTER_OK;
}

static int add_list(struct rdzv_state *out, const struct unpickled *t, const struct unpickle_value *value,
                    enum rdzv_list list) {
    bool is_set = list == RDZV_WAITING || list == RDZV_SPARE;
    if (value->kind != (is_set ? UNPICKLE_SET : UNPICKLE_DICT)) {
        return misshapen("a list of nodes is of another type");
    }
    const struct unpickle_item *key = unpickled_first(t, value);
    while (key) {
        const struct unpickle_item *entry = is_set ? key : unpickled_next(t, key);
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
        int rc = add_entry(out, t, &key->value, &entry->value, list);
        if (rc != MUSTER_OK) {
            return rc;
        }
        key = unpickled_next(t, entry);
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

static int scalars(const struct unpickled *t, const struct unpickle_value *values, struct rdzv_state *out) {
    bool has_deadline = values[DEADLINE].kind != UNPICKLE_NONE;
    int64_t deadline_us = 0;
    if (values[ROUND].kind != UNPICKLE_INT || values[ROUND].number < 0 || values[ROUND].number == INT64_MAX ||
        values[COMPLETE].kind != UNPICKLE_BOOL || values[CLOSED].kind != UNPICKLE_BOOL ||
        (has_deadline && !read_time(t, &values[DEADLINE], &deadline_us))) {
        return misshapen("an attribute is of another type");
    }
    out->round = values[ROUND].number;
    out->complete = values[COMPLETE].number != 0;
    out->closed = values[CLOSED].number != 0;
    out->has_deadline = has_deadline;
    out->deadline_us = deadline_us;
    return MUSTER_OK;
}

int pickle_tree_state(const struct unpickled *t, struct rdzv_state *out) {
    static const char *const names[ATTRIBUTES] = {"round",        "complete",  "deadline",        "closed",
                                                  "participants", "wait_list", "redundancy_list", "last_heartbeats"};
    struct unpickle_value values[ATTRIBUTES];
    const struct unpickle_node *root = object(t, &t->root, PICKLE_STATE);
    if (!root) {
        return misshapen("it is not a _RendezvousState");
    }
    int rc = attributes(t, root, names, ATTRIBUTES, values);
    if (rc == MUSTER_OK) {
        rc = scalars(t, values, out);
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
