/* Inside the machine of pickles: its stack, and what opcodes do to it. Each function that fails has left a sentence. */
#ifndef BASE_UNPICKLE_IMPL_H
#define BASE_UNPICKLE_IMPL_H

#include <string.h>

#include "base/formats/unpickle.h"

struct unpickle_array {
    void *data;
    uint32_t count, capacity;
};

struct unpickle_machine {
    const uint8_t *bytes;
    size_t len, at, at_op; /* at_op: of the opcode being executed, for messages */
    struct unpickle_classes classes;
    uint32_t values_max;
    struct unpickle_array stack, memo, items, nodes;
    struct unpickle_class *others; /* OTHERS_MAX, or NULL before the first one */
    uint32_t other_count;
};

static inline struct unpickle_value *stack_of(const struct unpickle_machine *m) {
    return m->stack.data;
}

static inline struct unpickle_node *node_of(const struct unpickle_machine *m, const struct unpickle_value *value) {
    return (struct unpickle_node *)m->nodes.data + value->index;
}

static inline bool unpickle_text_is(const uint8_t *bytes, size_t len, const char *text) {
    return strlen(text) == len && memcmp(bytes, text, len) == 0;
}

/* ---- unpickle_stack.c ---- */

/* MUSTER_ECORRUPT: "`what` at byte N of the pickle". */
int unpickle_corrupt(const struct unpickle_machine *m, const char *what);

/* The next bytes; NULL: there are not so many. */
const uint8_t *unpickle_take(struct unpickle_machine *m, uint64_t count);
/* A little-endian number of `width` bytes (at most 8). */
int unpickle_take_number(struct unpickle_machine *m, size_t width, uint64_t *out);

/* Room for `more` at the end of an array, or NULL; then unpickle_no_room() is the code. */
void *unpickle_extend(struct unpickle_machine *m, struct unpickle_array *array, size_t element_bytes, uint32_t more);
int unpickle_no_room(const struct unpickle_machine *m, const struct unpickle_array *array, uint32_t more);

int unpickle_push(struct unpickle_machine *m, struct unpickle_value value);
/* The topmost value; a mark is none. NULL: there is none. */
struct unpickle_value *unpickle_top(const struct unpickle_machine *m);
int unpickle_pop(struct unpickle_machine *m, struct unpickle_value *out);
int unpickle_pop_kind(struct unpickle_machine *m, enum unpickle_kind kind, struct unpickle_value *out);

/* A new container or object. */
int unpickle_push_node(struct unpickle_machine *m, enum unpickle_kind kind, struct unpickle_node node);
int unpickle_push_empty(struct unpickle_machine *m, enum unpickle_kind kind);
/* What lies above the mark goes into the container below it; the topmost `count` values go into the one below them. */
int unpickle_add_batch(struct unpickle_machine *m, enum unpickle_kind kind);
int unpickle_add_one(struct unpickle_machine *m, enum unpickle_kind kind, uint32_t count);
/* POP_MARK, FROZENSET */
int unpickle_pop_mark(struct unpickle_machine *m);
int unpickle_push_marked_set(struct unpickle_machine *m);
/* The topmost `count` values, or those above the mark, become a tuple. */
int unpickle_push_tuple(struct unpickle_machine *m, uint32_t count);
int unpickle_push_marked_tuple(struct unpickle_machine *m);

/* ---- unpickle_object.c ---- */

/* GLOBAL, STACK_GLOBAL: a class that is on the list, or another one where those are taken. */
int unpickle_global(struct unpickle_machine *m);
int unpickle_stack_global(struct unpickle_machine *m);
/* REDUCE and NEWOBJ, or NEWOBJ_EX, which has_names: a class and its arguments become an object that remembers them. */
int unpickle_make_object(struct unpickle_machine *m, bool has_names);
void unpickle_free_others(struct unpickle_class *others, uint32_t count);
/* BUILD: the object gets its state. */
int unpickle_build(struct unpickle_machine *m);
/* BINPERSID */
int unpickle_persistent(struct unpickle_machine *m);

#endif
