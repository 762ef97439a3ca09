/* Python's pickles, read as data: a stack machine with a closed list of opcodes whose values are numbers, texts,
 * containers, and objects of classes. Nothing is called, imported or executed: "call f with these arguments" becomes an
 * object that says so, and its reader decides what that means. Pure.
 *
 * Everything is bounded: a value costs at least a byte of the input, no kind of value occurs more often than the caller
 * allows, and nothing here recurses. What comes out may still be a graph: a value can lie in two containers, or a
 * container in itself. Who walks through it counts steps and depth. */
#ifndef BASE_UNPICKLE_H
#define BASE_UNPICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNPICKLE_NIL UINT32_MAX

enum unpickle_kind {
    UNPICKLE_MARK, /* on the stack only */
    UNPICKLE_NONE,
    UNPICKLE_BOOL,
    UNPICKLE_INT,
    UNPICKLE_BIG, /* an integer outside of int64_t: its bytes, little-endian, two's complement */
    UNPICKLE_REAL,
    UNPICKLE_TEXT,
    UNPICKLE_BYTES,
    UNPICKLE_CLASS,
    UNPICKLE_TUPLE,
    UNPICKLE_LIST,
    UNPICKLE_DICT, /* items: key, value, key, value */
    UNPICKLE_SET,
    UNPICKLE_OBJECT,     /* a class that was called; it may have items as a dict has */
    UNPICKLE_PERSISTENT, /* what the pickle leaves to its reader to find: `args` is its name */
};

struct unpickle_value {
    enum unpickle_kind kind;
    uint32_t size; /* TEXT, BYTES, BIG */
    union {
        int64_t number; /* BOOL, INT */
        double real;
        const uint8_t *bytes; /* TEXT, BYTES, BIG: into the input */
        uint32_t index;       /* CLASS: of the list, or beyond it; the others: of `nodes` */
    };
};

struct unpickle_item {
    struct unpickle_value value;
    uint32_t next; /* UNPICKLE_NIL: the last */
};

/* A container, an object, a persistent name. */
struct unpickle_node {
    uint32_t head, tail, count;  /* items; those of a tuple lie side by side */
    uint32_t class;              /* OBJECT */
    struct unpickle_value args;  /* OBJECT: a tuple */
    struct unpickle_value state; /* OBJECT: what BUILD gave; kind MARK: nothing */
};

/* A class that a pickle may name. role, detail: the reader's. */
struct unpickle_class {
    const char *module, *name;
    int role, detail;
};

struct unpickle_classes {
    const struct unpickle_class *list;
    size_t count;
    /* Other classes are no error: they have this role, and their names, as far as there are not too many. Whatever is
     * done with their objects is no error either, and may be forgotten. */
    bool takes_others;
    int others_role;
};

struct unpickled {
    struct unpickle_classes classes;
    struct unpickle_class *others; /* their numbers follow those of the list */
    uint32_t other_count;
    struct unpickle_item *items;
    struct unpickle_node *nodes;
    uint32_t item_count, node_count;
    struct unpickle_value root;
};

/* Reads one pickle of protocols 2 to 5 (which it need not name); bytes behind its end are an error. No more than
 * `values_max` values lie on the stack, in the memo, in containers, and so on for each. `bytes` and `classes` must
 * outlive *out, which is written on success only. MUSTER_ECORRUPT (what is wrong, and at which byte; a class or an
 * opcode that is not known is named), MUSTER_ELIMIT, MUSTER_ENOMEM. */
int unpickle(const uint8_t *bytes, size_t len, struct unpickle_classes classes, uint32_t values_max,
             struct unpickled *out);
/* A zeroed one is accepted. */
void unpickled_done(struct unpickled *tree);

/* The first item of a container or object, and the one after; NULL: there is none. */
const struct unpickle_item *unpickled_first(const struct unpickled *tree, const struct unpickle_value *container);
const struct unpickle_item *unpickled_next(const struct unpickled *tree, const struct unpickle_item *item);

/* How many there are. */
uint32_t unpickled_count(const struct unpickled *tree, const struct unpickle_value *container);

/* Value number `index` of a tuple; NULL: it is no tuple, or has no such value. */
const struct unpickle_value *unpickled_at(const struct unpickled *tree, const struct unpickle_value *tuple,
                                          uint32_t index);

/* What a dict has under a text; NULL: it is no dict, has nothing there, or is no list of attributes but larger than
 * UNPICKLE_MEMBERS_MAX: many objects may share it, and each look takes as long as it is. */
#define UNPICKLE_MEMBERS_MAX 64
const struct unpickle_value *unpickled_member(const struct unpickled *tree, const struct unpickle_value *dict,
                                              const char *key);

/* The class of a class or object; NULL for anything else. */
const struct unpickle_class *unpickled_class(const struct unpickled *tree, const struct unpickle_value *value);

/* The node of a container, an object or a persistent name; NULL for anything else. */
const struct unpickle_node *unpickled_node(const struct unpickled *tree, const struct unpickle_value *value);

bool unpickled_is_text(const struct unpickle_value *value, const char *text);

#endif
