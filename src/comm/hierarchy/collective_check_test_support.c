/* Random collective calls and what they must give; see collective_check_test_support.h. */
#include "comm/hierarchy/collective_check_test_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/host/unwatched_test_support.h"
#include "comm/reduce/reduce.h"

enum { PAD_BYTES = 64, CANARY = 0x5a, VALUE_COUNT = 8 };

uint64_t check_random(uint64_t *random) {
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    return (*random * UINT64_C(0x2545f4914f6cdd1d)) >> 20;
}

static bool is_reducing(enum comm_operation operation) {
    return operation == COMM_ALL_REDUCE || operation == COMM_REDUCE || operation == COMM_REDUCE_SCATTER;
}

static bool has_blocks(enum comm_operation operation) {
    return operation >= COMM_ALL_GATHER && operation <= COMM_ALL_TO_ALL;
}

void check_draw(uint64_t *random, uint32_t size, size_t bytes_max, struct check_case *out) {
    static const size_t telling[] = {0, 1, 2, 7, 64, 1000, 4096, 16384, 65536, 65544, 262144, 1048576 + 64};
    memset(out, 0, sizeof *out);
    struct comm_call *call = &out->call;
    call->operation = (enum comm_operation)(1 + check_random(random) % 9);
    do {
        call->type = (enum muster_type)(check_random(random) % MUSTER_TYPE_COUNT);
        call->reduction = (enum muster_reduction)(check_random(random) % MUSTER_REDUCTION_COUNT);
    } while (!reduce_is_defined(call->type, call->reduction) ||
             (call->reduction == MUSTER_OP_PRODUCT && muster_type_bytes(call->type) == 2) ||
             (call->reduction == MUSTER_OP_AVERAGE && muster_type_bytes(call->type) == 2));
    call->root = (uint32_t)(check_random(random) % size);
    size_t bytes = telling[check_random(random) % (sizeof telling / sizeof *telling)];
    bytes += check_random(random) % 3 == 0 ? check_random(random) % 200 : 0;
    size_t width = muster_type_bytes(call->type) * (has_blocks(call->operation) ? size : 1);
    call->count = (bytes < bytes_max ? bytes : bytes_max) / width;
    out->in_place = check_random(random) % 2 == 0;
    out->has_counts = has_blocks(call->operation) && check_random(random) % 3 == 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        out->counts[rank] = out->has_counts ? check_random(random) % (2 * call->count + 2) : call->count;
    }
    out->seed = check_random(random) | 1;
}

/* ---- who gives and gets how much ---- */

static size_t sum_before(const size_t *counts, uint32_t rank) {
    size_t sum = 0;
    for (uint32_t i = 0; i < rank; i++) {
        sum += counts[i];
    }
    return sum;
}

/* all_to_all: from a to b. With counts it differs from pair to pair. */
static size_t pair_count(const struct check_case *check, uint32_t a, uint32_t b) {
    return check->has_counts ? (check->counts[a] + 3 * (size_t)b) % (check->counts[b] + 1) : check->call.count;
}

static size_t pairs_before(const struct check_case *check, uint32_t rank, uint32_t other, bool gives) {
    size_t sum = 0;
    for (uint32_t i = 0; i < other; i++) {
        sum += gives ? pair_count(check, rank, i) : pair_count(check, i, rank);
    }
    return sum;
}

static size_t give_count(const struct check_case *check, uint32_t rank, uint32_t size) {
    const struct comm_call *call = &check->call;
    switch (call->operation) {
    case COMM_BARRIER:
        return 0;
    case COMM_BROADCAST:
        return rank == call->root ? call->count : 0;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        return check->counts[rank];
    case COMM_SCATTER:
        return rank == call->root ? sum_before(check->counts, size) : 0;
    case COMM_REDUCE_SCATTER:
        return sum_before(check->counts, size);
    case COMM_ALL_TO_ALL:
        return pairs_before(check, rank, size, true);
    default:
        return call->count;
    }
}

static size_t get_count(const struct check_case *check, uint32_t rank, uint32_t size) {
    const struct comm_call *call = &check->call;
    switch (call->operation) {
    case COMM_BARRIER:
        return 0;
    case COMM_REDUCE:
        return rank == call->root ? call->count : 0;
    case COMM_ALL_GATHER:
        return sum_before(check->counts, size);
    case COMM_GATHER:
        return rank == call->root ? sum_before(check->counts, size) : 0;
    case COMM_SCATTER:
    case COMM_REDUCE_SCATTER:
        return check->counts[rank];
    case COMM_ALL_TO_ALL:
        return pairs_before(check, rank, size, false);
    default:
        return call->count;
    }
}

/* ---- contents ---- */

/* Element i of what rank `rank` gives: small numbers, so that sums of 32 ranks are exact in 16 bits. */
UNWATCHED static int value_of(const struct check_case *check, uint32_t rank, size_t i) {
    uint64_t mixed = (check->seed + 1000003 * (uint64_t)rank + 7919 * (uint64_t)i) * UINT64_C(0x9e3779b97f4a7c15);
    return check->call.reduction == MUSTER_OP_PRODUCT ? 1 + (int)(mixed >> 63) : (int)(mixed >> 61);
}

/* `value` as an element: its bits. */
static uint64_t bits_of(enum muster_type type, int value) {
    static const uint16_t halves[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
    static const uint16_t brains[] = {0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
    float single = (float)value;
    double twice = value;
    int64_t wide = value;
    const void *from = type == MUSTER_FLOAT16    ? &halves[value]
                       : type == MUSTER_BFLOAT16 ? &brains[value]
                       : type == MUSTER_FLOAT32  ? (const void *)&single
                       : type == MUSTER_FLOAT64  ? (const void *)&twice
                                                 : (const void *)&wide; /* little-endian */
    uint64_t bits = 0;
    memcpy(&bits, from, muster_type_bytes(type));
    return bits;
}

UNWATCHED static void fill_chunk(const struct check_case *check, uint32_t rank, const uint64_t *bits, void *chunk,
                                 size_t from, size_t count) {
    size_t width = muster_type_bytes(check->call.type);
    for (size_t i = 0; i < count; i++) {
        unwatched_put(chunk, i, width, bits[value_of(check, rank, from + i)]);
    }
}

static void fill(const struct check_case *check, uint32_t rank, void *buffer, size_t from, size_t count) {
    uint64_t chunk[UNWATCHED_CHUNK], bits[VALUE_COUNT];
    size_t width = muster_type_bytes(check->call.type);
    for (int value = 0; value < VALUE_COUNT; value++) {
        bits[value] = bits_of(check->call.type, value);
    }
    for (size_t at = 0, some; at < count; at += some) {
        some = unwatched_chunk(at, count);
        fill_chunk(check, rank, bits, chunk, from + at, some);
        memcpy((char *)buffer + at * width, chunk, some * width);
    }
}

/* Where, in what `giver` gives, begins what `rank` gets of it. */
static size_t given_from(const struct check_case *check, uint32_t giver, uint32_t rank) {
    switch (check->call.operation) {
    case COMM_SCATTER:
    case COMM_REDUCE_SCATTER:
        return sum_before(check->counts, rank);
    case COMM_ALL_TO_ALL:
        return pairs_before(check, giver, rank, true);
    default:
        return 0;
    }
}

static void expect_reduced(const struct check_case *check, uint32_t rank, uint32_t size, void *out, size_t get) {
    void *inputs[CHECK_RANKS_MAX];
    for (uint32_t giver = 0; giver < size; giver++) {
        inputs[giver] = malloc(get * muster_type_bytes(check->call.type) + 1);
        fill(check, giver, inputs[giver], given_from(check, giver, rank), get);
    }
    reduce_many(check->call.type, check->call.reduction, &out, 1, (const void *const *)inputs, size, get);
    for (uint32_t giver = 0; giver < size; giver++) {
        free(inputs[giver]);
    }
}

static void expect(const struct check_case *check, uint32_t rank, uint32_t size, char *out, size_t get) {
    const struct comm_call *call = &check->call;
    if (is_reducing(call->operation)) {
        expect_reduced(check, rank, size, out, get);
        return;
    }
    for (uint32_t giver = 0; giver < size && get > 0; giver++) {
        bool from_root = call->operation == COMM_BROADCAST || call->operation == COMM_SCATTER;
        size_t count = from_root                            ? (giver == call->root ? get : 0)
                       : call->operation == COMM_ALL_TO_ALL ? pair_count(check, giver, rank)
                                                            : check->counts[giver];
        fill(check, giver, out, given_from(check, giver, rank), count);
        out += count * muster_type_bytes(call->type);
    }
}

/* ---- buffers ---- */

struct buffers {
    char *send, *receive, *expected;
    char *send_memory, *receive_memory; /* as allocated */
    size_t give, get;
};

/* The forms in place that muster/collective.h names. */
static void place(const struct check_case *check, uint32_t rank, size_t width, struct buffers *buffers) {
    enum comm_operation operation = check->call.operation;
    bool can = check->in_place && (!comm_has_root(operation) || check->call.root == rank) &&
               !(operation == COMM_ALL_TO_ALL && check->has_counts);
    size_t most = buffers->give > buffers->get ? buffers->give : buffers->get;
    buffers->send_memory = malloc(most * width + 2 * PAD_BYTES);
    buffers->receive_memory = malloc(most * width + 2 * PAD_BYTES);
    memset(buffers->receive_memory, CANARY, most * width + 2 * PAD_BYTES);
    buffers->send = buffers->send_memory + PAD_BYTES;
    buffers->receive = buffers->receive_memory + PAD_BYTES;
    size_t shift = sum_before(check->counts, rank) * width;
    if (can && (operation == COMM_ALL_GATHER || operation == COMM_GATHER)) {
        buffers->send = buffers->receive + shift;
    } else if (can && (operation == COMM_SCATTER || operation == COMM_REDUCE_SCATTER)) {
        buffers->receive = buffers->send + shift;
    } else if (can || operation == COMM_BROADCAST) {
        buffers->send = buffers->receive;
    }
}

static int compare(const struct check_case *check, uint32_t rank, uint32_t size, const struct buffers *buffers) {
    size_t bytes = buffers->get * muster_type_bytes(check->call.type);
    size_t wrong = bytes > 0 && memcmp(buffers->receive, buffers->expected, bytes) != 0 ? 0 : bytes;
    while (wrong < bytes && buffers->receive[wrong] == buffers->expected[wrong]) {
        wrong++;
    }
    bool is_own = buffers->receive == buffers->receive_memory + PAD_BYTES, is_beside = false;
    for (size_t i = 0; i < PAD_BYTES && is_own; i++) {
        is_beside = is_beside || buffers->receive_memory[i] != CANARY || buffers->receive[bytes + i] != CANARY;
    }
    if (wrong == bytes && !is_beside) {
        return 0;
    }
    char text[128];
    (void)comm_fingerprint_format(comm_call_fingerprint(&check->call, size), text, sizeof text);
    (void)fprintf(stderr, "rank %u of %u, %s%s%s: byte %zu of %zu is wrong%s\n", rank, size, text,
                  check->in_place ? ", in place" : "", check->has_counts ? ", with counts" : "", wrong, bytes,
                  is_beside ? " (or beside the buffer)" : "");
    return 1;
}

int check_run(const struct check_case *check, uint32_t rank, uint32_t size,
              int (*run)(void *context, const struct comm_call *call), void *context) {
    struct comm_call call = check->call;
    size_t width = muster_type_bytes(call.type);
    size_t sends[CHECK_RANKS_MAX], receives[CHECK_RANKS_MAX];
    struct buffers buffers = {.give = give_count(check, rank, size), .get = get_count(check, rank, size)};
    place(check, rank, width, &buffers);
    buffers.expected = calloc(buffers.get + 1, width);
    expect(check, rank, size, buffers.expected, buffers.get);
    fill(check, rank, buffers.send, 0, buffers.give);
    call.send = buffers.give > 0 || call.operation == COMM_BROADCAST ? buffers.send : NULL;
    call.receive = buffers.get > 0 ? buffers.receive : NULL;
    for (uint32_t i = 0; check->has_counts && i < size; i++) {
        bool is_pair = call.operation == COMM_ALL_TO_ALL;
        sends[i] = is_pair ? pair_count(check, rank, i) : check->counts[i];
        receives[i] = is_pair ? pair_count(check, i, rank) : check->counts[i];
    }
    if (check->has_counts) {
        call.count = 0;
        call.send_counts = call.operation == COMM_SCATTER || call.operation == COMM_ALL_TO_ALL ? sends : NULL;
        call.receive_counts = call.operation == COMM_SCATTER ? NULL : receives;
    }
    int status = run(context, &call);
    status = status != 0 ? status : compare(check, rank, size, &buffers);
    free(buffers.send_memory);
    free(buffers.receive_memory);
    free(buffers.expected);
    return status;
}
