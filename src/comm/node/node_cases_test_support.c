/* Cases for node_test.c; see node_cases_test_support.h. */
#include "comm/node/node_cases_test_support.h"

#include <string.h>

#include "comm/host/unwatched_test_support.h"
#include "comm/reduce/reduce.h"

/* xorshift64*: all members draw the same numbers. */
static uint64_t draw(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

static size_t draw_below(uint64_t *state, size_t end) {
    return end > 0 ? (size_t)(draw(state) >> 11) % end : 0;
}

static const size_t interesting_bytes[] = {
    0,      4,      8,      40,     44,     48,     49,      52,      64,      100,     1000,    1024,
    4096,   4100,   8192,   16384,  16388,  32768,  32772,   65532,   65536,   65540,   98304,   131072,
    131076, 200000, 262144, 262148, 524288, 524292, 1048576, 1048580, 1500000, 2097152, 3000000, 4194304};

static size_t draw_bytes(uint64_t *random, size_t max) {
    size_t kinds = sizeof interesting_bytes / sizeof *interesting_bytes;
    size_t bytes = interesting_bytes[draw_below(random, kinds)];
    if (draw_below(random, 4) == 0) {
        bytes = draw_below(random, draw_below(random, 2) ? 300 : max);
    }
    return bytes <= max ? bytes : bytes % max;
}

static bool is_divided(enum comm_operation operation) {
    return operation >= COMM_ALL_GATHER && operation <= COMM_ALL_TO_ALL;
}

static bool is_rooted(enum comm_operation operation) {
    return operation == COMM_REDUCE || operation == COMM_BROADCAST || operation == COMM_GATHER ||
           operation == COMM_SCATTER;
}

void node_case_draw(struct node_case *out, uint64_t *random, size_t bytes_max, bool shares, uint32_t size,
                    uint32_t index) {
    memset(out, 0, sizeof *out);
    struct comm_call *call = &out->call;
    call->operation = (enum comm_operation)(1 + draw_below(random, 9));
    do {
        call->type = (enum muster_type)draw_below(random, MUSTER_TYPE_COUNT);
        call->reduction = (enum muster_reduction)draw_below(random, MUSTER_REDUCTION_COUNT);
    } while (!reduce_is_defined(call->type, call->reduction));
    call->root = (uint32_t)draw_below(random, size);
    size_t width = muster_type_bytes(call->type);
    size_t parts = is_divided(call->operation) ? size : 1;
    size_t most = bytes_max / width / parts;
    call->count = draw_bytes(random, bytes_max) / width / parts;
    out->has_counts = is_divided(call->operation) && draw_below(random, 3) == 0;
    for (uint32_t a = 0; a < CASE_MEMBERS_MAX; a++) {
        out->counts[a] = call->count;
        for (uint32_t b = 0; b < CASE_MEMBERS_MAX; b++) {
            out->pairs[a][b] = call->count;
            if (out->has_counts && a < size && b < size) {
                out->pairs[a][b] = draw_below(random, 4) ? draw_below(random, call->count + 1) : 0;
            }
        }
        if (out->has_counts && a < size) {
            out->counts[a] =
                draw_below(random, 3) ? draw_below(random, (call->count * 2 < most ? call->count * 2 : most) + 1) : 0;
        }
    }
    out->input_seed = draw(random);
    for (uint32_t member = 0; member < size; member++) {
        bool in_place = draw_below(random, 2), sends = draw_below(random, 2), receives = draw_below(random, 2);
        if (member == index) {
            out->in_place = in_place;
            out->send_shared = shares && sends;
            out->receive_shared = shares && receives;
        }
    }
    if (draw_below(random, 2)) { /* every other case: all alike */
        bool in_place = draw_below(random, 2), sends = draw_below(random, 4), receives = draw_below(random, 4);
        out->in_place = in_place;
        out->send_shared = shares && sends;
        out->receive_shared = shares && receives;
    }
    if (call->operation == COMM_BROADCAST) {
        out->in_place = true;
    }
    if (call->operation == COMM_ALL_TO_ALL && out->has_counts) {
        out->in_place = false;
    }
    if (is_rooted(call->operation) && index != call->root) {
        out->in_place = call->operation == COMM_BROADCAST;
    }
}

/* What member `member` has at place i: numbers whose results are exact in every type, or for float32 and float64 any
 * fractions, so that the order of additions shows. */
void node_case_input(const struct node_case *c, uint32_t member, unsigned char *out, size_t count) {
    uint64_t random = c->input_seed + 77777 * (member + 1);
    size_t width = muster_type_bytes(c->call.type);
    draw(&random);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = draw(&random) >> 20;
        switch (c->call.type) {
        case MUSTER_FLOAT32:
            ((float *)(void *)out)[i] = (float)(bits % 20001) / 777.0F - 10.0F;
            break;
        case MUSTER_FLOAT64:
            ((double *)(void *)out)[i] = (double)(bits % 20001) / 777.0 - 10.0;
            break;
        case MUSTER_FLOAT16:
            ((uint16_t *)(void *)out)[i] = (uint16_t)(0x3c00 + (bits % 2) * 0x400); /* 1 or 2 */
            break;
        case MUSTER_BFLOAT16:
            ((uint16_t *)(void *)out)[i] = (uint16_t)(0x3f80 + (bits % 2) * 0x80); /* likewise */
            break;
        default:
            unwatched_put(out, i, width, bits);
        }
    }
}

static size_t before(const size_t *counts, uint32_t member) {
    size_t sum = 0;
    for (uint32_t i = 0; i < member; i++) {
        sum += counts[i];
    }
    return sum;
}

size_t node_case_begin(const struct node_case *c, uint32_t member) {
    return before(c->counts, member);
}

static size_t before_pair(const struct node_case *c, uint32_t member, uint32_t other, bool sends) {
    size_t sum = 0;
    for (uint32_t i = 0; i < other; i++) {
        sum += sends ? c->pairs[member][i] : c->pairs[i][member];
    }
    return sum;
}

/* Elements that a member has to send. */
size_t node_case_sends(const struct node_case *c, uint32_t member, uint32_t size) {
    switch (c->call.operation) {
    case COMM_BARRIER:
        return 0;
    case COMM_BROADCAST:
        return member == c->call.root ? c->call.count : 0;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        return c->counts[member];
    case COMM_SCATTER:
        return member == c->call.root ? before(c->counts, size) : 0;
    case COMM_REDUCE_SCATTER:
        return before(c->counts, size);
    case COMM_ALL_TO_ALL:
        return before_pair(c, member, size, true);
    default:
        return c->call.count;
    }
}

/* Elements that it gets, and where in the in-place form its input lies in (or its output in the input). */
size_t node_case_receives(const struct node_case *c, uint32_t member, uint32_t size) {
    switch (c->call.operation) {
    case COMM_BARRIER:
        return 0;
    case COMM_REDUCE:
        return member == c->call.root ? c->call.count : 0;
    case COMM_ALL_GATHER:
        return before(c->counts, size);
    case COMM_GATHER:
        return member == c->call.root ? before(c->counts, size) : 0;
    case COMM_SCATTER:
    case COMM_REDUCE_SCATTER:
        return c->counts[member];
    case COMM_ALL_TO_ALL:
        return before_pair(c, member, size, false);
    default:
        return c->call.count;
    }
}

void node_case_reference(const struct node_case *c, unsigned char *const *inputs, uint32_t index, uint32_t size,
                         unsigned char *out) {
    const struct comm_call *call = &c->call;
    size_t width = muster_type_bytes(call->type), get = node_case_receives(c, index, size);
    void *whole = out;
    if (get == 0) {
        return;
    }
    const void *ins[CASE_MEMBERS_MAX];
    for (uint32_t member = 0; member < size; member++) {
        size_t at = 0;
        if (call->operation == COMM_REDUCE_SCATTER) {
            at = before(c->counts, index);
        }
        ins[member] = inputs[member] + at * width;
    }
    if (comm_has_reduction(call->operation)) {
        reduce_many(call->type, call->reduction, &whole, 1, ins, size, get);
        return;
    }
    unsigned char *to = out;
    for (uint32_t member = 0; member < size; member++) {
        size_t count = 0, at = 0;
        if (call->operation == COMM_BROADCAST) {
            count = member == call->root ? get : 0;
        } else if (call->operation == COMM_SCATTER) {
            count = member == call->root ? get : 0;
            at = before(c->counts, index);
        } else if (call->operation == COMM_ALL_TO_ALL) {
            count = c->pairs[member][index];
            at = before_pair(c, member, index, true);
        } else {
            count = c->counts[member];
        }
        if (count > 0) {
            memcpy(to, inputs[member] + at * width, count * width);
        }
        to += count * width;
    }
}
