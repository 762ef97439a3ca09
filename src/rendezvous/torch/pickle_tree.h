/* What the pickle reader builds before it becomes a rendezvous state; private to the reader. */
#ifndef RENDEZVOUS_PICKLE_TREE_H
#define RENDEZVOUS_PICKLE_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "rendezvous/torch/state.h"

#define PICKLE_NIL UINT32_MAX

/* A writer needs at most: two batches of pairs and a few values on the stack; four containers, three tuples and two
 * objects a node; and per node eight items and ten memo slots. */
enum {
    PICKLE_STACK_MAX = 16384,
    PICKLE_CONTAINERS_MAX = 4 * RDZV_NODES_MAX + 64,
    PICKLE_ITEMS_MAX = 16 * RDZV_NODES_MAX + 64,
    PICKLE_TUPLE_MAX = 3,
};

enum pickle_kind {
    PICKLE_MARK,
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_TEXT,
    PICKLE_BYTES,
    PICKLE_CLASS,
    PICKLE_TUPLE,
    PICKLE_DICT,
    PICKLE_SET,
    PICKLE_OBJECT,
    PICKLE_DELTA,
    PICKLE_ZONE,
    PICKLE_TIME,
};

enum pickle_class {
    PICKLE_CLASS_STATE,
    PICKLE_CLASS_NODE,
    PICKLE_CLASS_DATETIME,
    PICKLE_CLASS_TIMEZONE,
    PICKLE_CLASS_TIMEDELTA,
    PICKLE_CLASS_COUNT,
};

struct pickle_value {
    enum pickle_kind kind;
    uint32_t size; /* TEXT, BYTES */
    union {
        int64_t number;       /* BOOL, INT; TIME in microseconds */
        const uint8_t *bytes; /* TEXT, BYTES: into the input */
        uint32_t index;       /* CLASS, TUPLE, DICT, SET, OBJECT */
    };
};

struct pickle_item { /* of a dict or set (value unused), in order */
    struct pickle_value key;
    struct pickle_value value;
    uint32_t next;
};

struct pickle_container {
    uint32_t head;
    uint32_t tail;
};

struct pickle_tuple {
    uint32_t count;
    struct pickle_value values[PICKLE_TUPLE_MAX];
};

struct pickle_object {
    enum pickle_class class;
    uint32_t attributes; /* container, PICKLE_NIL before BUILD */
};

struct pickle_tree {
    const uint8_t *bytes;
    size_t len;
    size_t at;
    size_t at_op; /* of the opcode being executed, for messages */
    struct pickle_value *stack;
    uint32_t stack_count, stack_capacity;
    struct pickle_value *memo;
    uint32_t memo_count, memo_capacity;
    struct pickle_container *containers;
    uint32_t container_count, container_capacity;
    struct pickle_item *items;
    uint32_t item_count, item_capacity;
    struct pickle_tuple *tuples;
    uint32_t tuple_count, tuple_capacity;
    struct pickle_object *objects;
    uint32_t object_count, object_capacity;
};

/* Fills an empty `out` from the one value left on the stack. MUSTER_ECORRUPT, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int pickle_tree_state(const struct pickle_tree *tree, struct rdzv_state *out);

#endif
