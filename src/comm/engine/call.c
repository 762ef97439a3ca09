/* Fingerprints and texts of collective calls. */
#include "comm/engine/call.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "base/fnv.h"
#include "base/status.h"

/* The layout, from the lowest bit: operation 5, type 4, reduction 3, root or mark 16, count 35, and
 * one bit that says that the count is a hash. */
enum { TYPE_SHIFT = 5, REDUCTION_SHIFT = 9, ROOT_SHIFT = 12, COUNT_SHIFT = 28, COUNT_BITS = 35, HASHED_SHIFT = 63 };
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)

_Static_assert(MUSTER_TYPE_COUNT <= 16 && MUSTER_REDUCTION_COUNT <= 8, "fields of the fingerprint");
_Static_assert(MUSTER_GROUP_SIZE_MAX <= 65536, "field of the fingerprint");

const char *comm_operation_name(enum comm_operation operation) {
    return call_operation_name((unsigned)operation);
}

static bool has_counted_form(enum comm_operation operation) {
    return operation == COMM_ALL_GATHER || operation == COMM_GATHER || operation == COMM_SCATTER ||
           operation == COMM_REDUCE_SCATTER || operation == COMM_ALL_TO_ALL;
}

/* As muster/collective.h has it without its prefix. */
static const char *counted_name(enum comm_operation operation) {
    switch (operation) {
#define COUNTED_NAME(name, value, text)                                                                                \
    case name:                                                                                                         \
        return text "_v";
        COMM_OPERATION_TABLE(COUNTED_NAME)
#undef COUNTED_NAME
    }
    return comm_operation_name(operation);
}

const char *comm_call_name(const struct comm_call *call) {
    return comm_call_is_counted(call) ? counted_name(call->operation) : comm_operation_name(call->operation);
}

static bool has_data(enum comm_operation operation) {
    return operation != COMM_BARRIER && operation != COMM_MONITORED_BARRIER;
}

uint64_t comm_call_fingerprint(const struct comm_call *call, uint32_t size) {
    uint64_t print = (uint64_t)call->operation;
    if (!has_data(call->operation)) {
        return print;
    }
    print |= (uint64_t)call->type << TYPE_SHIFT;
    if (comm_has_reduction(call->operation)) {
        print |= (uint64_t)call->reduction << REDUCTION_SHIFT;
    }
    if (comm_has_mark(call->operation)) {
        print |= (uint64_t)call->mark << ROOT_SHIFT;
    }
    if (comm_has_root(call->operation)) {
        print |= (uint64_t)call->root << ROOT_SHIFT;
    }
    uint64_t count = call->count, hashed = count > COUNT_MASK;
    const size_t *counts = comm_call_counts(call);
    if (counts && call->operation == COMM_ALL_TO_ALL) {
        count = 0; /* they differ by right */
        hashed = 1;
    } else if (counts) {
        count = FNV_BEGIN;
        for (uint32_t rank = 0; rank < size; rank++) {
            count = fnv_step(count, counts[rank]);
        }
        count ^= count >> COUNT_BITS;
        hashed = 1;
    }
    return print | (count & COUNT_MASK) << COUNT_SHIFT | hashed << HASHED_SHIFT;
}

void comm_call_prepare(struct comm_call *call, uint32_t size) {
    call->type_bytes = muster_type_bytes(call->type);
    call->fingerprint = comm_call_fingerprint(call, size);
}

int comm_call_copy_counts(struct comm_call *call, uint32_t size, size_t **out_counts) {
    size_t arrays = (call->send_counts ? 1u : 0u) + (call->receive_counts ? 1u : 0u);
    *out_counts = NULL;
    if (arrays == 0) {
        return 0;
    }
    size_t *at = *out_counts = malloc(arrays * size * sizeof *at);
    if (!at) {
        return status_fail(MUSTER_ENOMEM, "no memory for the counts of %u ranks", size);
    }
    if (call->send_counts) {
        memcpy(at, call->send_counts, size * sizeof *at);
        call->send_counts = at;
        at += size;
    }
    if (call->receive_counts) {
        memcpy(at, call->receive_counts, size * sizeof *at);
        call->receive_counts = at;
    }
    return 0;
}

static bool is_counted_form(uint64_t fingerprint) {
    return fingerprint >> HASHED_SHIFT && has_counted_form((enum comm_operation)(fingerprint & 31));
}

const char *comm_fingerprint_name(uint64_t fingerprint) {
    enum comm_operation operation = (enum comm_operation)(fingerprint & 31);
    return fingerprint == 0               ? "nothing"
           : is_counted_form(fingerprint) ? counted_name(operation)
                                          : comm_operation_name(operation);
}

char *comm_fingerprint_format(uint64_t fingerprint, char *out, size_t max) {
    assert(max > 0);
    enum comm_operation operation = (enum comm_operation)(fingerprint & 31);
    enum muster_type type = (enum muster_type)(fingerprint >> TYPE_SHIFT & 15);
    int used = snprintf(out, max, "%s", comm_fingerprint_name(fingerprint));
    if (fingerprint == 0 || !has_data(operation)) {
        return out;
    }
#define ROOM ((size_t)used < max ? max - (size_t)used : 0)
#define END (out + ((size_t)used < max ? (size_t)used : max))
    uint64_t count = fingerprint >> COUNT_SHIFT & COUNT_MASK;
    if (fingerprint >> HASHED_SHIFT) {
        used += snprintf(END, ROOM, " of %s", muster_type_name(type));
    } else {
        used += snprintf(END, ROOM, " of %llu %s", (unsigned long long)count, muster_type_name(type));
    }
    if (comm_has_reduction(operation)) {
        enum muster_reduction reduction = (enum muster_reduction)(fingerprint >> REDUCTION_SHIFT & 7);
        used += snprintf(END, ROOM, ", %s", muster_reduction_name(reduction));
    }
    unsigned root_or_mark = (unsigned)(fingerprint >> ROOT_SHIFT & 0xffff);
    if (comm_has_root(operation)) {
        (void)snprintf(END, ROOM, ", root %u", root_or_mark);
    } else if (operation == COMM_ALL_REDUCE && root_or_mark >= COMM_MARK_OF_UNIT) {
        (void)snprintf(END, ROOM, ", unit %u", root_or_mark - COMM_MARK_OF_UNIT);
    } else if (operation == COMM_ALL_REDUCE && root_or_mark > 0) {
        (void)snprintf(END, ROOM, ", after %u no_sync step%s", root_or_mark, root_or_mark == 1 ? "" : "s");
    } else if (comm_has_mark(operation) && root_or_mark > 0) {
        (void)snprintf(END, ROOM, ", unit %u", root_or_mark - 1);
    }
#undef ROOM
#undef END
    return out;
}

const char *comm_fingerprints_remark(uint64_t one, uint64_t other) {
    bool differ_in_counts = ((one ^ other) & ~(COUNT_MASK << COUNT_SHIFT)) == 0 && one != other;
    return differ_in_counts && one >> HASHED_SHIFT ? "; their counts differ: give the same on every rank" : "";
}
