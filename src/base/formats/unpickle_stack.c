/* The stack of the machine of pickles, and the containers that are made of it; see unpickle_impl.h. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/formats/unpickle_impl.h"
#include "base/status.h"

enum { ARRAY_FIRST = 64 };

int unpickle_corrupt(const struct unpickle_machine *m, const char *what) {
    return status_fail(MUSTER_ECORRUPT, "%s at byte %zu of the pickle", what, m->at_op);
}

/* ---- bytes ---- */

/* NULL: there are not so many. */
const uint8_t *unpickle_take(struct unpickle_machine *m, uint64_t count) {
    if (count > m->len - m->at) {
        (void)unpickle_corrupt(m, "it ends early");
        return NULL;
    }
    const uint8_t *out = m->bytes + m->at;
    m->at += (size_t)count;
    return out;
}

/* A little-endian number of `width` bytes (at most 8). */
int unpickle_take_number(struct unpickle_machine *m, size_t width, uint64_t *out) {
    const uint8_t *bytes = unpickle_take(m, width);
    *out = 0;
    for (size_t i = width; bytes && i-- > 0;) {
        *out = *out << 8 | bytes[i];
    }
    return bytes ? 0 : MUSTER_ECORRUPT;
}

/* ---- arrays that grow ---- */

/* Room for `more` at the end of the array, or NULL. */
void *unpickle_extend(struct unpickle_machine *m, struct unpickle_array *array, size_t element_bytes, uint32_t more) {
    if (more > m->values_max - array->count) {
        (void)status_fail(MUSTER_ELIMIT, "the pickle has more than %" PRIu32 " values of a kind", m->values_max);
        return NULL;
    }
    uint32_t wanted = array->count + more;
    if (wanted > array->capacity) {
        uint32_t capacity = array->capacity > m->values_max / 2 ? m->values_max : array->capacity * 2;
        capacity = capacity < ARRAY_FIRST ? ARRAY_FIRST : capacity;
        capacity = capacity < wanted ? wanted : capacity;
        void *grown = realloc(array->data, capacity * element_bytes);
        if (!grown) {
            (void)status_fail(MUSTER_ENOMEM, "no memory to read a pickle");
            return NULL;
        }
        array->data = grown;
        array->capacity = capacity;
    }
    void *out = (char *)array->data + array->count * element_bytes;
    array->count = wanted;
    return out;
}

/* What unpickle_extend() failed with: it has left the sentence. */
int unpickle_no_room(const struct unpickle_machine *m, const struct unpickle_array *array, uint32_t more) {
    return more > m->values_max - array->count ? MUSTER_ELIMIT : MUSTER_ENOMEM;
}

int unpickle_push(struct unpickle_machine *m, struct unpickle_value value) {
    struct unpickle_value *place = unpickle_extend(m, &m->stack, sizeof value, 1);
    if (!place) {
        return unpickle_no_room(m, &m->stack, 1);
    }
    *place = value;
    return 0;
}

/* The topmost value; a mark is none. NULL: there is none. */
struct unpickle_value *unpickle_top(const struct unpickle_machine *m) {
    struct unpickle_value *last = m->stack.count > 0 ? stack_of(m) + m->stack.count - 1 : NULL;
    if (!last || last->kind == UNPICKLE_MARK) {
        (void)unpickle_corrupt(m, "the stack has no value");
        return NULL;
    }
    return last;
}

int unpickle_pop(struct unpickle_machine *m, struct unpickle_value *out) {
    const struct unpickle_value *last = unpickle_top(m);
    if (!last) {
        return MUSTER_ECORRUPT;
    }
    *out = *last;
    m->stack.count--;
    return 0;
}

int unpickle_pop_kind(struct unpickle_machine *m, enum unpickle_kind kind, struct unpickle_value *out) {
    int code = unpickle_pop(m, out);
    return code == 0 && out->kind != kind ? unpickle_corrupt(m, "a value of another kind was expected") : code;
}

/* Index of the first value above the topmost mark. */
static int unpickle_find_mark(const struct unpickle_machine *m, uint32_t *out) {
    for (uint32_t i = m->stack.count; i-- > 0;) {
        if (stack_of(m)[i].kind == UNPICKLE_MARK) {
            *out = i + 1;
            return 0;
        }
    }
    return unpickle_corrupt(m, "there is no mark");
}

/* ---- containers ---- */

int unpickle_push_node(struct unpickle_machine *m, enum unpickle_kind kind, struct unpickle_node node) {
    uint32_t index = m->nodes.count;
    struct unpickle_node *place = unpickle_extend(m, &m->nodes, sizeof node, 1);
    if (!place) {
        return unpickle_no_room(m, &m->nodes, 1);
    }
    *place = node;
    return unpickle_push(m, (struct unpickle_value){.kind = kind, .index = index});
}

int unpickle_push_empty(struct unpickle_machine *m, enum unpickle_kind kind) {
    return unpickle_push_node(m, kind, (struct unpickle_node){.head = UNPICKLE_NIL, .tail = UNPICKLE_NIL});
}

/* Appends values, which lie side by side afterwards. They may be of the stack. */
static int add_items(struct unpickle_machine *m, uint32_t node_index, const struct unpickle_value *values,
                     uint32_t count) {
    uint32_t first = m->items.count;
    struct unpickle_item *items = count > 0 ? unpickle_extend(m, &m->items, sizeof *items, count) : NULL;
    if (!items) {
        return count > 0 ? unpickle_no_room(m, &m->items, count) : 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        items[i] = (struct unpickle_item){.value = values[i], .next = i + 1 < count ? first + i + 1 : UNPICKLE_NIL};
    }
    struct unpickle_node *node = (struct unpickle_node *)m->nodes.data + node_index;
    if (node->tail == UNPICKLE_NIL) {
        node->head = first;
    } else {
        ((struct unpickle_item *)m->items.data)[node->tail].next = first;
    }
    node->tail = first + count - 1;
    node->count += count;
    return 0;
}

static bool takes(const struct unpickle_value *container, enum unpickle_kind kind) {
    return container->kind == kind || (kind == UNPICKLE_DICT && container->kind == UNPICKLE_OBJECT);
}

/* An object of a class that is a list or a set to Python (collections.deque): its items are forgotten, since those of
 * an object are keys and values. */
static bool forgets(const struct unpickle_machine *m, const struct unpickle_value *container, enum unpickle_kind kind) {
    return m->classes.takes_others && container->kind == UNPICKLE_OBJECT && kind != UNPICKLE_DICT;
}

/* APPENDS, SETITEMS and ADDITEMS: what lies above the mark goes into the container below it. */
int unpickle_add_batch(struct unpickle_machine *m, enum unpickle_kind kind) {
    uint32_t first = 0;
    int code = unpickle_find_mark(m, &first);
    if (code) {
        return code;
    }
    uint32_t count = m->stack.count - first;
    bool is_forgotten = first >= 2 && forgets(m, &stack_of(m)[first - 2], kind);
    if (!is_forgotten &&
        (first < 2 || !takes(&stack_of(m)[first - 2], kind) || (kind == UNPICKLE_DICT && count % 2 != 0))) {
        return unpickle_corrupt(m, "items have no container");
    }
    code = is_forgotten ? 0 : add_items(m, stack_of(m)[first - 2].index, stack_of(m) + first, count);
    m->stack.count = first - 1;
    return code;
}

/* APPEND, SETITEM. */
int unpickle_add_one(struct unpickle_machine *m, enum unpickle_kind kind, uint32_t count) {
    const struct unpickle_value *container = m->stack.count > count ? &stack_of(m)[m->stack.count - count - 1] : NULL;
    if (!container || (!takes(container, kind) && !forgets(m, container, kind))) {
        return unpickle_corrupt(m, "an item has no container");
    }
    const struct unpickle_value *values = stack_of(m) + m->stack.count - count;
    for (uint32_t i = 0; i < count; i++) {
        if (values[i].kind == UNPICKLE_MARK) {
            return unpickle_corrupt(m, "an item is a mark");
        }
    }
    int code = forgets(m, container, kind) ? 0 : add_items(m, container->index, values, count);
    m->stack.count -= count;
    return code;
}

/* The topmost `count` values become one tuple. */
int unpickle_push_tuple(struct unpickle_machine *m, uint32_t count) {
    if (count > m->stack.count) {
        return unpickle_corrupt(m, "a tuple is longer than the stack");
    }
    uint32_t first = m->stack.count - count;
    for (uint32_t i = first; i < m->stack.count; i++) {
        if (stack_of(m)[i].kind == UNPICKLE_MARK) {
            return unpickle_corrupt(m, "a mark is inside a tuple");
        }
    }
    int code = unpickle_push_empty(m, UNPICKLE_TUPLE);
    if (code) {
        return code;
    }
    struct unpickle_value tuple = stack_of(m)[--m->stack.count];
    code = add_items(m, tuple.index, stack_of(m) + first, count);
    m->stack.count = first;
    return code ? code : unpickle_push(m, tuple);
}

int unpickle_push_marked_tuple(struct unpickle_machine *m) {
    uint32_t first = 0;
    int code = unpickle_find_mark(m, &first);
    code = code ? code : unpickle_push_tuple(m, m->stack.count - first);
    if (code == 0) { /* [mark][tuple] -> [tuple] */
        stack_of(m)[first - 1] = stack_of(m)[first];
        m->stack.count = first;
    }
    return code;
}

int unpickle_pop_mark(struct unpickle_machine *m) {
    uint32_t first = 0;
    int code = unpickle_find_mark(m, &first);
    m->stack.count = code ? m->stack.count : first - 1;
    return code;
}

int unpickle_push_marked_set(struct unpickle_machine *m) {
    int code = unpickle_push_marked_tuple(m);
    if (code == 0) {
        unpickle_top(m)->kind = UNPICKLE_SET;
    }
    return code;
}
