/* Reads the rendezvous state from a pickle: a stack machine whose values are only numbers, texts, containers and the
 * objects of five known classes (reference: the opcode list of docs/formats/rendezvous-state.md). Building the
 * state from the resulting tree is pickle_state.c's part. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/status.h"
#include "rendezvous/torch/civil_time.h"
#include "rendezvous/torch/pickle.h"
#include "rendezvous/torch/pickle_impl.h"
#include "rendezvous/torch/pickle_tree.h"

static int corrupt(const struct pickle_tree *t, const char *what) {
    (void)status_fail(MUSTER_ECORRUPT, "the rendezvous state is no such pickle: %s at byte %zu", what, t->at_op);
    return MUSTER_ECORRUPT; /* a constant, so that the compiler sees that callers' results are set on success */
}

/* ---- bytes ---- */

static int take(struct pickle_tree *t, size_t count, const uint8_t **out) {
    if (count > t->len - t->at) {
        return corrupt(t, "it ends early");
    }
    *out = t->bytes + t->at;
    t->at += count;
    return MUSTER_OK;
}

/* A little-endian number of `width` bytes (at most 8). */
static int take_number(struct pickle_tree *t, size_t width, uint64_t *out) {
    const uint8_t *bytes;
    int rc = take(t, width, &bytes);
    if (rc != MUSTER_OK) {
        return rc;
    }
    *out = 0;
    for (size_t i = width; i-- > 0;) {
        *out = *out << 8 | bytes[i];
    }
    return MUSTER_OK;
}

/* ---- growing arrays ---- */

/* Makes room for one more item in an array that never holds more than `max`. */
static int grow(void **items, size_t item_bytes, uint32_t count, uint32_t *capacity, uint32_t max) {
    if (count < *capacity) {
        return MUSTER_OK;
    }
    if (count >= max) {
        return status_fail(MUSTER_ELIMIT, "the rendezvous state holds more than %u values of one kind", max);
    }
    uint32_t wanted = *capacity ? *capacity * 2 : 64;
    wanted = wanted < max ? wanted : max;
    void *grown = realloc(*items, wanted * item_bytes);
    if (!grown) {
        return status_fail(MUSTER_ENOMEM, "no memory to read the rendezvous state");
    }
    *items = grown;
    *capacity = wanted;
    return MUSTER_OK;
}

static int push(struct pickle_tree *t, struct pickle_value value) {
    int rc = grow((void **)&t->stack, sizeof *t->stack, t->stack_count, &t->stack_capacity, PICKLE_STACK_MAX);
    if (rc == MUSTER_OK) {
        t->stack[t->stack_count++] = value;
    }
    return rc;
}

static int pop(struct pickle_tree *t, struct pickle_value *out) {
    if (t->stack_count == 0) {
        return corrupt(t, "the stack is empty");
    }
    *out = t->stack[--t->stack_count];
    return MUSTER_OK;
}

/* Pops a value that must be of `kind`. */
static int pop_kind(struct pickle_tree *t, enum pickle_kind kind, struct pickle_value *out) {
    int rc = pop(t, out);
    if (rc == MUSTER_OK && out->kind != kind) {
        return corrupt(t, "a value of another kind was expected");
    }
    return rc;
}

/* Index of the first value above the topmost mark; the mark is taken off by drop_to_mark(). */
static int find_mark(struct pickle_tree *t, uint32_t *out) {
    for (uint32_t i = t->stack_count; i-- > 0;) {
        if (t->stack[i].kind == PICKLE_MARK) {
            *out = i + 1;
            return MUSTER_OK;
        }
    }
    return corrupt(t, "there is no mark");
}

static void drop_to_mark(struct pickle_tree *t, uint32_t first) {
    t->stack_count = first - 1;
}

/* ---- containers ---- */

static int push_container(struct pickle_tree *t, enum pickle_kind kind) {
    int rc = grow((void **)&t->containers, sizeof *t->containers, t->container_count, &t->container_capacity,
                  PICKLE_CONTAINERS_MAX);
    if (rc != MUSTER_OK) {
        return rc;
    }
    uint32_t index = t->container_count++;
    t->containers[index] = (struct pickle_container){.head = PICKLE_NIL, .tail = PICKLE_NIL};
    return push(t, (struct pickle_value){.kind = kind, .index = index});
}

static int add_item(struct pickle_tree *t, uint32_t container, struct pickle_value key, struct pickle_value value) {
    if (key.kind != PICKLE_TEXT && key.kind != PICKLE_OBJECT) {
        return corrupt(t, "a key is neither a text nor a node");
    }
    int rc = grow((void **)&t->items, sizeof *t->items, t->item_count, &t->item_capacity, PICKLE_ITEMS_MAX);
    if (rc != MUSTER_OK) {
        return rc;
    }
    uint32_t index = t->item_count++;
    t->items[index] = (struct pickle_item){.key = key, .value = value, .next = PICKLE_NIL};
    struct pickle_container *c = &t->containers[container];
    if (c->tail == PICKLE_NIL) {
        c->head = index;
    } else {
        t->items[c->tail].next = index;
    }
    c->tail = index;
    return MUSTER_OK;
}

/* SETITEMS and ADDITEMS: what lies above the mark goes into the container below it. */
static int add_batch(struct pickle_tree *t, enum pickle_kind kind) {
    uint32_t first;
    int rc = find_mark(t, &first);
    if (rc != MUSTER_OK) {
        return rc;
    }
    uint32_t step = kind == PICKLE_DICT ? 2 : 1;
    if (first < 2 || t->stack[first - 2].kind != kind || (t->stack_count - first) % step != 0) {
        return corrupt(t, "items have no container");
    }
    uint32_t container = t->stack[first - 2].index;
    for (uint32_t i = first; rc == MUSTER_OK && i < t->stack_count; i += step) {
        rc = add_item(t, container, t->stack[i], t->stack[i + step - 1]);
    }
    drop_to_mark(t, first);
    return rc;
}

static int set_item(struct pickle_tree *t) {
    struct pickle_value key;
    struct pickle_value value;
    int rc = pop(t, &value);
    if (rc == MUSTER_OK) {
        rc = pop(t, &key);
    }
    if (rc == MUSTER_OK && (t->stack_count == 0 || t->stack[t->stack_count - 1].kind != PICKLE_DICT)) {
        return corrupt(t, "an item has no dict");
    }
    return rc == MUSTER_OK ? add_item(t, t->stack[t->stack_count - 1].index, key, value) : rc;
}

/* The topmost `count` values become one tuple. */
static int push_tuple(struct pickle_tree *t, uint32_t count) {
    if (count > PICKLE_TUPLE_MAX || count > t->stack_count) {
        return corrupt(t, "a tuple is too long");
    }
    int rc = grow((void **)&t->tuples, sizeof *t->tuples, t->tuple_count, &t->tuple_capacity, PICKLE_CONTAINERS_MAX);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct pickle_tuple *tuple = &t->tuples[t->tuple_count];
    *tuple = (struct pickle_tuple){.count = count};
    t->stack_count -= count;
    for (uint32_t i = 0; i < count; i++) {
        tuple->values[i] = t->stack[t->stack_count + i];
        if (tuple->values[i].kind == PICKLE_MARK) {
            return corrupt(t, "a mark is inside a tuple");
        }
    }
    return push(t, (struct pickle_value){.kind = PICKLE_TUPLE, .index = t->tuple_count++});
}

static int push_marked_tuple(struct pickle_tree *t) {
    uint32_t first;
    int rc = find_mark(t, &first);
    if (rc != MUSTER_OK) {
        return rc;
    }
    rc = push_tuple(t, t->stack_count - first);
    if (rc == MUSTER_OK) { /* [mark][tuple] -> [tuple] */
        t->stack_count--;
        t->stack[t->stack_count - 1] = t->stack[t->stack_count];
    }
    return rc;
}

/* ---- classes and objects ---- */

static bool text_is(const uint8_t *bytes, size_t len, const char *text) {
    return strlen(text) == len && memcmp(bytes, text, len) == 0;
}

static int push_class(struct pickle_tree *t, const uint8_t *module, size_t module_len, const uint8_t *name,
                      size_t name_len) {
    static const struct {
        const char *module;
        const char *name;
    } known[PICKLE_CLASS_COUNT] = {
        [PICKLE_CLASS_STATE] = {PICKLE_MODULE, "_RendezvousState"}, [PICKLE_CLASS_NODE] = {PICKLE_MODULE, "_NodeDesc"},
        [PICKLE_CLASS_DATETIME] = {"datetime", "datetime"},         [PICKLE_CLASS_TIMEZONE] = {"datetime", "timezone"},
        [PICKLE_CLASS_TIMEDELTA] = {"datetime", "timedelta"},
    };
    for (uint32_t i = 0; i < PICKLE_CLASS_COUNT; i++) {
        if (text_is(module, module_len, known[i].module) && text_is(name, name_len, known[i].name)) {
            return push(t, (struct pickle_value){.kind = PICKLE_CLASS, .index = i});
        }
    }
    return corrupt(t, "it names a class that no rendezvous state contains (refused, nothing was executed)");
}

static int stack_global(struct pickle_tree *t) {
    struct pickle_value module;
    struct pickle_value name;
    int rc = pop_kind(t, PICKLE_TEXT, &name);
    if (rc == MUSTER_OK) {
        rc = pop_kind(t, PICKLE_TEXT, &module);
    }
    return rc == MUSTER_OK ? push_class(t, module.bytes, module.size, name.bytes, name.size) : rc;
}

static int take_line(struct pickle_tree *t, const uint8_t **out, size_t *out_len) {
    const uint8_t *end = memchr(t->bytes + t->at, '\n', t->len - t->at);
    if (!end) {
        return corrupt(t, "a line has no end");
    }
    *out = t->bytes + t->at;
    *out_len = (size_t)(end - *out);
    t->at += *out_len + 1;
    return MUSTER_OK;
}

static int global(struct pickle_tree *t) {
    const uint8_t *module;
    const uint8_t *name;
    size_t module_len;
    size_t name_len;
    int rc = take_line(t, &module, &module_len);
    if (rc == MUSTER_OK) {
        rc = take_line(t, &name, &name_len);
    }
    return rc == MUSTER_OK ? push_class(t, module, module_len, name, name_len) : rc;
}

/* Pops (class, tuple). */
static int pop_call(struct pickle_tree *t, enum pickle_class *out_class, struct pickle_tuple *out_args) {
    struct pickle_value args;
    struct pickle_value class;
    int rc = pop_kind(t, PICKLE_TUPLE, &args);
    if (rc == MUSTER_OK) {
        rc = pop_kind(t, PICKLE_CLASS, &class);
    }
    if (rc == MUSTER_OK) {
        *out_class = (enum pickle_class) class.index;
        *out_args = t->tuples[args.index];
    }
    return rc;
}

static int new_object(struct pickle_tree *t) {
    enum pickle_class class;
    struct pickle_tuple args;
    int rc = pop_call(t, &class, &args);
    if (rc != MUSTER_OK) {
        return rc;
    }
    if (args.count != 0 || (class != PICKLE_CLASS_STATE && class != PICKLE_CLASS_NODE)) {
        return corrupt(t, "an object is made of a class that is not made so");
    }
    rc = grow((void **)&t->objects, sizeof *t->objects, t->object_count, &t->object_capacity, PICKLE_CONTAINERS_MAX);
    if (rc != MUSTER_OK) {
        return rc;
    }
    t->objects[t->object_count] = (struct pickle_object){.class = class, .attributes = PICKLE_NIL};
    return push(t, (struct pickle_value){.kind = PICKLE_OBJECT, .index = t->object_count++});
}

static int build(struct pickle_tree *t) {
    struct pickle_value dict;
    int rc = pop_kind(t, PICKLE_DICT, &dict);
    if (rc != MUSTER_OK) {
        return rc;
    }
    if (t->stack_count == 0 || t->stack[t->stack_count - 1].kind != PICKLE_OBJECT) {
        return corrupt(t, "attributes have no object");
    }
    struct pickle_object *object = &t->objects[t->stack[t->stack_count - 1].index];
    if (object->attributes != PICKLE_NIL) {
        return corrupt(t, "an object is built twice");
    }
    object->attributes = dict.index;
    return MUSTER_OK;
}

/* The only calls there are: timedelta(0, 0, 0), timezone(that), datetime(10 bytes, that). */
static int reduce(struct pickle_tree *t) {
    enum pickle_class class;
    struct pickle_tuple args;
    int rc = pop_call(t, &class, &args);
    if (rc != MUSTER_OK) {
        return rc;
    }
    const struct pickle_value *a = args.values;
    if (class == PICKLE_CLASS_TIMEDELTA && args.count == 3 && a[0].kind == PICKLE_INT && a[1].kind == PICKLE_INT &&
        a[2].kind == PICKLE_INT && a[0].number == 0 && a[1].number == 0 && a[2].number == 0) {
        return push(t, (struct pickle_value){.kind = PICKLE_DELTA});
    }
    if (class == PICKLE_CLASS_TIMEZONE && args.count == 1 && a[0].kind == PICKLE_DELTA) {
        return push(t, (struct pickle_value){.kind = PICKLE_ZONE});
    }
    struct pickle_value time = {.kind = PICKLE_TIME};
    if (class == PICKLE_CLASS_DATETIME && args.count == 2 && a[0].kind == PICKLE_BYTES &&
        a[0].size == CIVIL_TIME_BYTES && a[1].kind == PICKLE_ZONE && civil_time_read(a[0].bytes, &time.number)) {
        return push(t, time);
    }
    return corrupt(t, "a call is none that makes a UTC time");
}

/* ---- memo and scalars ---- */

static int memo_put(struct pickle_tree *t, uint64_t index) {
    if (t->stack_count == 0 || t->stack[t->stack_count - 1].kind == PICKLE_MARK) {
        return corrupt(t, "there is nothing to memoize");
    }
    if (index > t->memo_count) {
        return corrupt(t, "a memo slot is out of order");
    }
    struct pickle_value value = t->stack[t->stack_count - 1];
    if (index < t->memo_count) {
        t->memo[index] = value;
        return MUSTER_OK;
    }
    int rc = grow((void **)&t->memo, sizeof *t->memo, t->memo_count, &t->memo_capacity, PICKLE_ITEMS_MAX);
    if (rc == MUSTER_OK) {
        t->memo[t->memo_count++] = value;
    }
    return rc;
}

static int memo_get(struct pickle_tree *t, size_t width) {
    uint64_t index;
    int rc = take_number(t, width, &index);
    if (rc == MUSTER_OK && index >= t->memo_count) {
        return corrupt(t, "a memo slot is empty");
    }
    return rc == MUSTER_OK ? push(t, t->memo[index]) : rc;
}

static int memo_put_numbered(struct pickle_tree *t, size_t width) {
    uint64_t index;
    int rc = take_number(t, width, &index);
    return rc == MUSTER_OK ? memo_put(t, index) : rc;
}

static int push_slice(struct pickle_tree *t, enum pickle_kind kind, size_t width) {
    uint64_t size;
    int rc = take_number(t, width, &size);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct pickle_value value = {.kind = kind, .size = (uint32_t)size};
    if (size > PICKLE_BYTES_MAX) {
        return corrupt(t, "a text is too long");
    }
    rc = take(t, (size_t)size, &value.bytes);
    return rc == MUSTER_OK ? push(t, value) : rc;
}

static int push_int(struct pickle_tree *t, size_t width, bool is_signed) {
    uint64_t raw;
    int rc = width <= sizeof raw ? take_number(t, width, &raw) : corrupt(t, "a number is too large");
    if (rc != MUSTER_OK) {
        return rc;
    }
    if (is_signed && width > 0 && width < sizeof raw && (raw >> (8 * width - 1) & 1)) {
        raw |= UINT64_MAX << (8 * width);
    }
    return push(t, (struct pickle_value){.kind = PICKLE_INT, .number = (int64_t)raw});
}

static int push_long(struct pickle_tree *t) {
    uint64_t width;
    int rc = take_number(t, 1, &width);
    return rc == MUSTER_OK ? push_int(t, (size_t)width, true) : rc;
}

static int protocol(struct pickle_tree *t) {
    uint64_t version;
    int rc = take_number(t, 1, &version);
    if (rc == MUSTER_OK && (version > PICKLE_PROTOCOL_MAX || t->at_op != 0)) {
        return corrupt(t, "its protocol is unknown");
    }
    return rc;
}

static int frame(struct pickle_tree *t) {
    uint64_t size; /* frames only help readers of streams */
    return take_number(t, 8, &size);
}

static int pop_one(struct pickle_tree *t) {
    struct pickle_value value;
    return pop(t, &value);
}

static int push_kind(struct pickle_tree *t, enum pickle_kind kind, int64_t number) {
    return push(t, (struct pickle_value){.kind = kind, .number = number});
}

/* ---- the machine ---- */

static int step(struct pickle_tree *t, uint8_t op) {
    switch ((enum pickle_opcode)op) {
    case OP_PROTO:
        return protocol(t);
    case OP_FRAME:
        return frame(t);
    case OP_MARK:
        return push_kind(t, PICKLE_MARK, 0);
    case OP_NONE:
        return push_kind(t, PICKLE_NONE, 0);
    case OP_NEWTRUE:
        return push_kind(t, PICKLE_BOOL, 1);
    case OP_NEWFALSE:
        return push_kind(t, PICKLE_BOOL, 0);
    case OP_BININT1:
        return push_int(t, 1, false);
    case OP_BININT2:
        return push_int(t, 2, false);
    case OP_BININT:
        return push_int(t, 4, true);
    case OP_LONG1:
        return push_long(t);
    case OP_SHORT_BINUNICODE:
        return push_slice(t, PICKLE_TEXT, 1);
    case OP_BINUNICODE:
        return push_slice(t, PICKLE_TEXT, 4);
    case OP_BINUNICODE8:
        return push_slice(t, PICKLE_TEXT, 8);
    case OP_SHORT_BINBYTES:
        return push_slice(t, PICKLE_BYTES, 1);
    case OP_BINBYTES:
        return push_slice(t, PICKLE_BYTES, 4);
    case OP_EMPTY_DICT:
        return push_container(t, PICKLE_DICT);
    case OP_EMPTY_SET:
        return push_container(t, PICKLE_SET);
    case OP_SETITEM:
        return set_item(t);
    case OP_SETITEMS:
        return add_batch(t, PICKLE_DICT);
    case OP_ADDITEMS:
        return add_batch(t, PICKLE_SET);
    case OP_EMPTY_TUPLE:
        return push_tuple(t, 0);
    case OP_TUPLE1:
        return push_tuple(t, 1);
    case OP_TUPLE2:
        return push_tuple(t, 2);
    case OP_TUPLE3:
        return push_tuple(t, 3);
    case OP_TUPLE:
        return push_marked_tuple(t);
    case OP_STACK_GLOBAL:
        return stack_global(t);
    case OP_GLOBAL:
        return global(t);
    case OP_NEWOBJ:
        return new_object(t);
    case OP_BUILD:
        return build(t);
    case OP_REDUCE:
        return reduce(t);
    case OP_MEMOIZE:
        return memo_put(t, t->memo_count);
    case OP_BINPUT:
        return memo_put_numbered(t, 1);
    case OP_LONG_BINPUT:
        return memo_put_numbered(t, 4);
    case OP_BINGET:
        return memo_get(t, 1);
    case OP_LONG_BINGET:
        return memo_get(t, 4);
    case OP_POP:
        return pop_one(t);
    case OP_STOP:
        break; /* handled by run() */
    }
    return corrupt(t, "an opcode is not one of a rendezvous state");
}

static int run(struct pickle_tree *t) {
    while (t->at < t->len) {
        t->at_op = t->at;
        uint8_t op = t->bytes[t->at++];
        if (op == OP_STOP) {
            return t->stack_count == 1 ? MUSTER_OK : corrupt(t, "it does not end in one value");
        }
        int rc = step(t, op);
        if (rc != MUSTER_OK) {
            return rc;
        }
    }
    return corrupt(t, "it has no end");
}

int pickle_read(const uint8_t *bytes, size_t len, struct rdzv_state *out) {
    if (len > PICKLE_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "a rendezvous state of %zu bytes is refused", len);
    }
    assert(bytes || len == 0);
    struct pickle_tree tree = {.bytes = bytes, .len = len};
    struct rdzv_state state;
    rdzv_state_init(&state);
    int rc = run(&tree);
    if (rc == MUSTER_OK) {
        rc = pickle_tree_state(&tree, &state);
    }
    free(tree.stack);
    free(tree.memo);
    free(tree.containers);
    free(tree.items);
    free(tree.tuples);
    free(tree.objects);
    if (rc != MUSTER_OK) {
        rdzv_state_done(&state);
        return rc;
    }
    rdzv_state_done(out);
    *out = state;
    return MUSTER_OK;
}

int pickle_read_text(const uint8_t *text, size_t len, struct rdzv_state *out) {
    struct buf pickle;
    buf_init(&pickle, PICKLE_BYTES_MAX);
    int rc = base64_decode(text, len, &pickle);
    if (rc == MUSTER_OK) {
        rc = pickle_read(buf_bytes(&pickle), pickle.len, out);
    }
    buf_done(&pickle);
    return rc;
}
