/* Fingerprints and texts of collective calls. */
#include "comm/call.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>

/* The layout, from the lowest bit: operation 5, type 4, reduction 3, root 16, count 35, and one bit that says that the
 * count is a hash. */
enum { TYPE_SHIFT = 5, REDUCTION_SHIFT = 9, ROOT_SHIFT = 12, COUNT_SHIFT = 28, COUNT_BITS = 35, HASHED_SHIFT = 63 };
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)

_Static_assert(MUSTER_TYPE_COUNT <= 16 && MUSTER_REDUCTION_COUNT <= 8, "fields of the fingerprint");
_Static_assert(MUSTER_GROUP_SIZE_MAX <= 65536, "field of the fingerprint");

const char *comm_operation_name(enum comm_operation operation) {
    return call_operation_name((unsigned)operation);
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
    if (comm_has_root(call->operation)) {
        print |= (uint64_t)call->root << ROOT_SHIFT;
    }
    uint64_t count = call->count, hashed = count > COUNT_MASK;
    const size_t *counts = call->operation == COMM_SCATTER ? call->send_counts : call->receive_counts;
    if (counts && call->operation == COMM_ALL_TO_ALL) {
        count = 0; /* they differ by right */
        hashed = 1;
    } else if (counts) {
        /* FNV-1a, a word at a time: against mistakes, not against malice. */
        count = UINT64_C(0xcbf29ce484222325);
        for (uint32_t rank = 0; rank < size; rank++) {
            count = (count ^ counts[rank]) * UINT64_C(0x100000001b3);
        }
        count ^= count >> COUNT_BITS;
        hashed = 1;
    }
    return print | (count & COUNT_MASK) << COUNT_SHIFT | hashed << HASHED_SHIFT;
}

char *comm_fingerprint_format(uint64_t fingerprint, char *out, size_t max) {
    assert(max > 0);
    enum comm_operation operation = (enum comm_operation)(fingerprint & 31);
    enum muster_type type = (enum muster_type)(fingerprint >> TYPE_SHIFT & 15);
    int used = snprintf(out, max, "%s", fingerprint ? comm_operation_name(operation) : "nothing");
    if (fingerprint == 0 || !has_data(operation)) {
        return out;
    }
#define ROOM ((size_t)used < max ? max - (size_t)used : 0)
#define END (out + ((size_t)used < max ? (size_t)used : max))
    if (fingerprint >> HASHED_SHIFT) {
        used += snprintf(END, ROOM, " of %s with counts per rank", muster_type_name(type));
    } else {
        used += snprintf(END, ROOM, " of %llu %s", (unsigned long long)(fingerprint >> COUNT_SHIFT & COUNT_MASK),
                         muster_type_name(type));
    }
    if (comm_has_reduction(operation)) {
        enum muster_reduction reduction = (enum muster_reduction)(fingerprint >> REDUCTION_SHIFT & 7);
        used += snprintf(END, ROOM, ", %s", muster_reduction_name(reduction));
    }
    if (comm_has_root(operation)) {
        (void)snprintf(END, ROOM, ", root %u", (unsigned)(fingerprint >> ROOT_SHIFT & 0xffff));
    }
#undef ROOM
#undef END
    return out;
}
