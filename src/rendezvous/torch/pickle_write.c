/* Writes the rendezvous state as a protocol 4 pickle. Class references, attribute names, the time zone and node
 * descriptors are memoized on first use and fetched afterwards; what is used once is not. No frames: readers do not
 * need them. */
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/formats/pickle_opcode.h"
#include "base/status.h"
#include "rendezvous/torch/civil_time.h"
#include "rendezvous/torch/pickle.h"
#include "rendezvous/torch/pickle_impl.h"

#define MEMO_NONE UINT32_MAX

/* Texts and objects that repeat. */
enum shared {
    SHARED_MODULE,
    SHARED_NODE,
    SHARED_ADDR,
    SHARED_PID,
    SHARED_LOCAL_ID,
    SHARED_TIME,
    SHARED_ZONE,
    SHARED_COUNT
};

struct writer {
    struct buf *out;
    int status; /* first failure; later puts do nothing */
    uint32_t memo_count;
    uint32_t shared[SHARED_COUNT];
    uint32_t *nodes; /* memo index of each member's descriptor */
};

static void put(struct writer *w, const void *bytes, size_t len) {
    if (w->status == MUSTER_OK) {
        w->status = buf_append(w->out, bytes, len);
    }
}

static void put_op(struct writer *w, enum pickle_opcode op) {
    uint8_t byte = (uint8_t)op;
    put(w, &byte, 1);
}

/* An opcode with a little-endian argument of `width` bytes. */
static void put_number(struct writer *w, enum pickle_opcode op, uint64_t value, size_t width) {
    uint8_t bytes[9] = {(uint8_t)op};
    for (size_t i = 0; i < width; i++) {
        bytes[1 + i] = (uint8_t)(value >> (8 * i));
    }
    put(w, bytes, 1 + width);
}

static void put_int(struct writer *w, int64_t value) {
    if (value >= 0 && value <= UINT8_MAX) {
        put_number(w, OP_BININT1, (uint64_t)value, 1);
    } else if (value >= 0 && value <= UINT16_MAX) {
        put_number(w, OP_BININT2, (uint64_t)value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put_number(w, OP_BININT, (uint64_t)value, 4);
    } else {
        put_number(w, OP_LONG1, 8, 1);
        uint8_t bytes[8];
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] = (uint8_t)((uint64_t)value >> (8 * i));
        }
        put(w, bytes, sizeof bytes);
    }
}

static void put_bool(struct writer *w, bool value) {
    put_op(w, value ? OP_NEWTRUE : OP_NEWFALSE);
}

static void put_text(struct writer *w, const char *text) {
    size_t len = strlen(text);
    put_number(w, OP_SHORT_BINUNICODE, len, 1); /* every text here is shorter than 256 bytes */
    put(w, text, len);
}

static void put_memoize(struct writer *w, uint32_t *index) {
    put_op(w, OP_MEMOIZE);
    *index = w->memo_count++;
}

static void put_get(struct writer *w, uint32_t index) {
    if (index <= UINT8_MAX) {
        put_number(w, OP_BINGET, index, 1);
    } else {
        put_number(w, OP_LONG_BINGET, index, 4);
    }
}

/* True when the shared thing has been fetched and need not be written out. */
static bool put_shared(struct writer *w, enum shared shared) {
    if (w->shared[shared] == MEMO_NONE) {
        return false;
    }
    put_get(w, w->shared[shared]);
    return true;
}

static void put_shared_text(struct writer *w, enum shared shared, const char *text) {
    if (!put_shared(w, shared)) {
        put_text(w, text);
        put_memoize(w, &w->shared[shared]);
    }
}

/* A class of PyTorch's module. */
static void put_class(struct writer *w, const char *name) {
    put_shared_text(w, SHARED_MODULE, PICKLE_MODULE);
    put_text(w, name);
    put_op(w, OP_STACK_GLOBAL);
}

static void put_datetime_class(struct writer *w, const char *name) {
    put_text(w, "datetime");
    put_text(w, name);
    put_op(w, OP_STACK_GLOBAL);
}

static void put_node(struct writer *w, const struct rdzv_node *node, uint32_t *memo) {
    if (*memo != MEMO_NONE) {
        put_get(w, *memo);
        return;
    }
    if (!put_shared(w, SHARED_NODE)) {
        put_class(w, "_NodeDesc");
        put_memoize(w, &w->shared[SHARED_NODE]);
    }
    put_op(w, OP_EMPTY_TUPLE);
    put_op(w, OP_NEWOBJ);
    put_memoize(w, memo);
    put_op(w, OP_EMPTY_DICT);
    put_op(w, OP_MARK);
    put_shared_text(w, SHARED_ADDR, "addr");
    put_text(w, node->addr);
    put_shared_text(w, SHARED_PID, "pid");
    put_int(w, node->pid);
    put_shared_text(w, SHARED_LOCAL_ID, "local_id");
    put_int(w, node->local_id);
    put_op(w, OP_SETITEMS);
    put_op(w, OP_BUILD);
}

/* timezone(timedelta(0, 0, 0)) */
static void put_zone(struct writer *w) {
    if (put_shared(w, SHARED_ZONE)) {
        return;
    }
    put_datetime_class(w, "timezone");
    put_datetime_class(w, "timedelta");
    put_int(w, 0);
    put_int(w, 0);
    put_int(w, 0);
    put_op(w, OP_TUPLE3);
    put_op(w, OP_REDUCE);
    put_op(w, OP_TUPLE1);
    put_op(w, OP_REDUCE);
    put_memoize(w, &w->shared[SHARED_ZONE]);
}

static void put_time(struct writer *w, int64_t us) {
    if (!put_shared(w, SHARED_TIME)) {
        put_datetime_class(w, "datetime");
        put_memoize(w, &w->shared[SHARED_TIME]);
    }
    uint8_t bytes[CIVIL_TIME_BYTES];
    civil_time_write(us, bytes);
    put_number(w, OP_SHORT_BINBYTES, sizeof bytes, 1);
    put(w, bytes, sizeof bytes);
    put_zone(w);
    put_op(w, OP_TUPLE2);
    put_op(w, OP_REDUCE);
}

/* One attribute made of members: a set, or a dict from descriptor to rank or time. */
static void put_members(struct writer *w, const struct rdzv_state *state, const char *name, enum rdzv_list list) {
    bool is_set = list == RDZV_WAITING || list == RDZV_SPARE;
    enum pickle_opcode end = is_set ? OP_ADDITEMS : OP_SETITEMS;
    size_t in_batch = 0;
    put_text(w, name);
    put_op(w, is_set ? OP_EMPTY_SET : OP_EMPTY_DICT);
    for (size_t i = 0; i < state->member_count; i++) {
        const struct rdzv_member *member = &state->members[i];
        if (!(member->lists & list)) {
            continue;
        }
        if (in_batch == 0) {
            put_op(w, OP_MARK);
        }
        put_node(w, &member->node, &w->nodes[i]);
        if (list == RDZV_PARTICIPANT) {
            put_int(w, member->rank);
        } else if (list == RDZV_HEARTBEAT) {
            put_time(w, member->heartbeat_us);
        }
        if (++in_batch == PICKLE_BATCH) {
            put_op(w, end);
            in_batch = 0;
        }
    }
    if (in_batch > 0) {
        put_op(w, end);
    }
}

static void put_state(struct writer *w, const struct rdzv_state *state) {
    put_number(w, OP_PROTO, PICKLE_PROTOCOL_WRITTEN, 1);
    put_class(w, "_RendezvousState");
    put_op(w, OP_EMPTY_TUPLE);
    put_op(w, OP_NEWOBJ);
    put_op(w, OP_EMPTY_DICT);
    put_op(w, OP_MARK);
    put_text(w, "round");
    put_int(w, state->round);
    put_text(w, "complete");
    put_bool(w, state->complete);
    put_text(w, "deadline");
    if (state->has_deadline) {
        put_time(w, state->deadline_us);
    } else {
        put_op(w, OP_NONE);
    }
    put_text(w, "closed");
    put_bool(w, state->closed);
    put_members(w, state, "participants", RDZV_PARTICIPANT);
    put_members(w, state, "wait_list", RDZV_WAITING);
    put_members(w, state, "redundancy_list", RDZV_SPARE);
    put_members(w, state, "last_heartbeats", RDZV_HEARTBEAT);
    put_op(w, OP_SETITEMS);
    put_op(w, OP_BUILD);
    put_op(w, OP_STOP);
}

int pickle_write(const struct rdzv_state *state, struct buf *out) {
    struct writer w = {.out = out};
    memset(w.shared, 0xff, sizeof w.shared); /* MEMO_NONE */
    size_t bytes = (state->member_count + 1) * sizeof *w.nodes;
    w.nodes = malloc(bytes);
    if (!w.nodes) {
        return status_fail(MUSTER_ENOMEM, "no memory to write the rendezvous state");
    }
    memset(w.nodes, 0xff, bytes);
    put_state(&w, state);
    free(w.nodes);
    return w.status;
}

int pickle_write_text(const struct rdzv_state *state, struct buf *out) {
    struct buf pickle;
    buf_init(&pickle, PICKLE_BYTES_MAX);
    int rc = pickle_write(state, &pickle);
    if (rc == MUSTER_OK) {
        rc = base64_encode(buf_bytes(&pickle), pickle.len, out);
    }
    buf_done(&pickle);
    return rc;
}
