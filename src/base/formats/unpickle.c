/* The machine of pickles: opcodes, numbers and texts, the memo. See unpickle.h. What the opcodes mean: Python's
 * pickletools. */
#include "base/formats/unpickle.h"

#include <stdlib.h>
#include <string.h>

#include "base/formats/pickle_opcode.h"
#include "base/formats/unpickle_impl.h"
#include "base/status.h"

enum { PROTOCOL_MIN = 2, PROTOCOL_MAX = 5 };

/* ---- memo and scalars ---- */

static int memo_put(struct unpickle_machine *m, uint64_t index) {
    const struct unpickle_value *value = unpickle_top(m);
    if (!value || index > m->memo.count) {
        return value ? unpickle_corrupt(m, "a memo slot is out of order") : MUSTER_ECORRUPT;
    }
    if (index == m->memo.count && !unpickle_extend(m, &m->memo, sizeof *value, 1)) {
        return unpickle_no_room(m, &m->memo, 1);
    }
    ((struct unpickle_value *)m->memo.data)[index] = *value;
    return 0;
}

static int memo_put_numbered(struct unpickle_machine *m, size_t width) {
    uint64_t index = 0;
    int code = unpickle_take_number(m, width, &index);
    return code ? code : memo_put(m, index);
}

static int memo_get(struct unpickle_machine *m, size_t width) {
    uint64_t index = 0;
    int code = unpickle_take_number(m, width, &index);
    if (code == 0 && index >= m->memo.count) {
        return unpickle_corrupt(m, "a memo slot is empty");
    }
    return code ? code : unpickle_push(m, ((struct unpickle_value *)m->memo.data)[index]);
}

static int push_bytes(struct unpickle_machine *m, enum unpickle_kind kind, uint64_t size) {
    const uint8_t *bytes = size <= UINT32_MAX ? unpickle_take(m, size) : NULL;
    if (!bytes) {
        return unpickle_corrupt(m, "a text is longer than what is left");
    }
    return unpickle_push(m, (struct unpickle_value){.kind = kind, .size = (uint32_t)size, .bytes = bytes});
}

static int push_slice(struct unpickle_machine *m, enum unpickle_kind kind, size_t width) {
    uint64_t size = 0;
    int code = unpickle_take_number(m, width, &size);
    return code ? code : push_bytes(m, kind, size);
}

static int push_int(struct unpickle_machine *m, size_t width, bool is_signed) {
    uint64_t raw = 0;
    int code = unpickle_take_number(m, width, &raw);
    if (is_signed && width > 0 && width < sizeof raw && (raw >> (8 * width - 1) & 1)) {
        raw |= UINT64_MAX << (8 * width);
    }
    return code ? code : unpickle_push(m, (struct unpickle_value){.kind = UNPICKLE_INT, .number = (int64_t)raw});
}

static int push_long(struct unpickle_machine *m, size_t width_bytes) {
    uint64_t width = 0;
    int code = unpickle_take_number(m, width_bytes, &width);
    if (code) {
        return code;
    }
    return width <= sizeof(int64_t) ? push_int(m, (size_t)width, true) : push_bytes(m, UNPICKLE_BIG, width);
}

/* Eight bytes, big-endian. */
static int push_real(struct unpickle_machine *m) {
    struct unpickle_value value = {.kind = UNPICKLE_REAL};
    const uint8_t *bytes = unpickle_take(m, sizeof value.real);
    uint64_t raw = 0;
    for (size_t i = 0; bytes && i < sizeof raw; i++) {
        raw = raw << 8 | bytes[i];
    }
    memcpy(&value.real, &raw, sizeof raw);
    return bytes ? unpickle_push(m, value) : MUSTER_ECORRUPT;
}

static int protocol(struct unpickle_machine *m) {
    uint64_t version = 0;
    int code = unpickle_take_number(m, 1, &version);
    if (code == 0 && (version < PROTOCOL_MIN || version > PROTOCOL_MAX || m->at_op != 0)) {
        return unpickle_corrupt(m, "its protocol is not known");
    }
    return code;
}

static int push_kind(struct unpickle_machine *m, enum unpickle_kind kind, int64_t number) {
    return unpickle_push(m, (struct unpickle_value){.kind = kind, .number = number});
}

static int frame(struct unpickle_machine *m) {
    uint64_t size; /* frames only help readers of streams */
    return unpickle_take_number(m, sizeof size, &size);
}

static int pop_one(struct unpickle_machine *m) {
    struct unpickle_value value;
    return unpickle_pop(m, &value);
}

static int push_again(struct unpickle_machine *m) {
    const struct unpickle_value *top = unpickle_top(m);
    return top ? unpickle_push(m, *top) : MUSTER_ECORRUPT;
}

static int unknown_opcode(const struct unpickle_machine *m, uint8_t op) {
    return status_fail(MUSTER_ECORRUPT,
                       "the opcode 0x%02x is not known here (nothing was executed) at byte %zu of the "
                       "pickle",
                       op, m->at_op);
}

/* ---- the machine ---- */

static int step_scalar(struct unpickle_machine *m, uint8_t op) {
    switch (op) {
    case OP_NONE:
        return push_kind(m, UNPICKLE_NONE, 0);
    case OP_NEWTRUE:
        return push_kind(m, UNPICKLE_BOOL, 1);
    case OP_NEWFALSE:
        return push_kind(m, UNPICKLE_BOOL, 0);
    case OP_BININT1:
        return push_int(m, 1, false);
    case OP_BININT2:
        return push_int(m, 2, false);
    case OP_BININT:
        return push_int(m, 4, true);
    case OP_LONG1:
        return push_long(m, 1);
    case OP_LONG4:
        return push_long(m, 4);
    case OP_BINFLOAT:
        return push_real(m);
    case OP_SHORT_BINUNICODE:
        return push_slice(m, UNPICKLE_TEXT, 1);
    case OP_BINUNICODE:
        return push_slice(m, UNPICKLE_TEXT, 4);
    case OP_BINUNICODE8:
        return push_slice(m, UNPICKLE_TEXT, 8);
    case OP_SHORT_BINBYTES:
        return push_slice(m, UNPICKLE_BYTES, 1);
    case OP_BINBYTES:
        return push_slice(m, UNPICKLE_BYTES, 4);
    case OP_BINBYTES8:
    case OP_BYTEARRAY8:
        return push_slice(m, UNPICKLE_BYTES, 8);
    default:
        return unknown_opcode(m, op);
    }
}

static int step_container(struct unpickle_machine *m, uint8_t op) {
    switch (op) {
    case OP_EMPTY_LIST:
        return unpickle_push_empty(m, UNPICKLE_LIST);
    case OP_EMPTY_DICT:
        return unpickle_push_empty(m, UNPICKLE_DICT);
    case OP_EMPTY_SET:
        return unpickle_push_empty(m, UNPICKLE_SET);
    case OP_EMPTY_TUPLE:
        return unpickle_push_tuple(m, 0);
    case OP_TUPLE1:
        return unpickle_push_tuple(m, 1);
    case OP_TUPLE2:
        return unpickle_push_tuple(m, 2);
    case OP_TUPLE3:
        return unpickle_push_tuple(m, 3);
    case OP_TUPLE:
        return unpickle_push_marked_tuple(m);
    case OP_APPEND:
        return unpickle_add_one(m, UNPICKLE_LIST, 1);
    case OP_SETITEM:
        return unpickle_add_one(m, UNPICKLE_DICT, 2);
    case OP_APPENDS:
        return unpickle_add_batch(m, UNPICKLE_LIST);
    case OP_SETITEMS:
        return unpickle_add_batch(m, UNPICKLE_DICT);
    case OP_ADDITEMS:
        return unpickle_add_batch(m, UNPICKLE_SET);
    case OP_FROZENSET:
        return unpickle_push_marked_set(m);
    default:
        return step_scalar(m, op);
    }
}

static int step(struct unpickle_machine *m, uint8_t op) {
    switch (op) {
    case OP_PROTO:
        return protocol(m);
    case OP_FRAME:
        return frame(m);
    case OP_MARK:
        return push_kind(m, UNPICKLE_MARK, 0);
    case OP_POP:
        return pop_one(m);
    case OP_POP_MARK:
        return unpickle_pop_mark(m);
    case OP_DUP:
        return push_again(m);
    case OP_GLOBAL:
        return unpickle_global(m);
    case OP_STACK_GLOBAL:
        return unpickle_stack_global(m);
    case OP_REDUCE:
    case OP_NEWOBJ:
        return unpickle_make_object(m, false);
    case OP_NEWOBJ_EX:
        return unpickle_make_object(m, true);
    case OP_BUILD:
        return unpickle_build(m);
    case OP_BINPERSID:
        return unpickle_persistent(m);
    case OP_MEMOIZE:
        return memo_put(m, m->memo.count);
    case OP_BINPUT:
        return memo_put_numbered(m, 1);
    case OP_LONG_BINPUT:
        return memo_put_numbered(m, 4);
    case OP_BINGET:
        return memo_get(m, 1);
    case OP_LONG_BINGET:
        return memo_get(m, 4);
    default:
        return step_container(m, op);
    }
}

static int run(struct unpickle_machine *m) {
    int code = 0;
    while (code == 0) {
        m->at_op = m->at;
        const uint8_t *op = unpickle_take(m, 1);
        if (!op) {
            return MUSTER_ECORRUPT;
        }
        if (*op == OP_STOP) {
            return m->at == m->len && m->stack.count == 1 && unpickle_top(m)
                       ? 0
                       : unpickle_corrupt(m, "it does not end with one value");
        }
        code = step(m, *op);
    }
    return code;
}

int unpickle(const uint8_t *bytes, size_t len, struct unpickle_classes classes, uint32_t values_max,
             struct unpickled *out) {
    struct unpickle_machine m = {.bytes = bytes, .len = len, .classes = classes, .values_max = values_max};
    int code = run(&m);
    struct unpickled tree = {.classes = classes,
                             .others = m.others,
                             .other_count = m.other_count,
                             .items = m.items.data,
                             .nodes = m.nodes.data,
                             .item_count = m.items.count,
                             .node_count = m.nodes.count};
    if (code) {
        unpickled_done(&tree);
    } else {
        tree.root = *stack_of(&m);
        *out = tree;
    }
    free(m.stack.data);
    free(m.memo.data);
    return code;
}

void unpickled_done(struct unpickled *tree) {
    unpickle_free_others(tree->others, tree->other_count);
    free(tree->items);
    free(tree->nodes);
    *tree = (struct unpickled){.item_count = 0};
}
