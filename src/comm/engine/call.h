/* One collective call, as every part of comm sees it; the names of the operations; and the fingerprint by which ranks
 * notice that they do not make the same call. Pure. */
#ifndef COMM_CALL_H
#define COMM_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

#include "base/call_record.h"

/* The table of the operations stands in base, since launchers name them, too. */
#define COMM_OPERATION_TABLE CALL_OPERATION_TABLE
enum comm_operation {
#define COMM_OPERATION_ENUM(name, value, text) name = (value),
    COMM_OPERATION_TABLE(COMM_OPERATION_ENUM)
#undef COMM_OPERATION_ENUM
};

/* "all_reduce" and so on, "unknown operation". */
const char *comm_operation_name(enum comm_operation operation);

#define COMM_OPERATION_LAST COMM_EXSCAN
#define COMM_MARK_MAX 65535u
#define COMM_MARK_OF_UNIT 32768u /* in that of an all_reduce: what follows is a unit */

struct comm_call;
/* The same for messages about one call: "all_gather_v" where it has counts per rank. */
const char *comm_call_name(const struct comm_call *call);

/* Buffers are borrowed while the call runs. `count` is that of muster/collective.h: of one block in all_gather, gather,
 * scatter, reduce_scatter and all_to_all. In the forms with counts per rank, the arrays (in elements, one entry a
 * rank) replace it: receive_counts in all_gather, gather and reduce_scatter, send_counts in scatter, both in
 * all_to_all; unused ones are NULL. */
struct comm_call {
    enum comm_operation operation;
    enum muster_type type;
    enum muster_reduction reduction;
    uint32_t root; /* in the numbering of whoever runs the call: group ranks, or members of a host */
    uint32_t mark; /* what else ranks must agree about, if comm_has_mark(); at most COMM_MARK_MAX. Of a
                    * reduce_scatter or an all_gather: 0, or the number of the unit whose data it moves, plus one. Of
                    * an all_reduce: over how many steps of a ddp its data was added up before this one, less than
                    * COMM_MARK_OF_UNIT; or that and the number of the unit */
    size_t count;
    const void *send;
    void *receive;
    const size_t *send_counts;
    const size_t *receive_counts;
    /* By comm_call_prepare(), once; carried from there on. Parts of a call have the fingerprint of the whole. */
    size_t type_bytes;
    uint64_t fingerprint;
    void *stream; /* of engines that know streams: behind whose work the call begins; NULL: the default one */
    void *noted;  /* where that stream was when the call was made (engine_note()); NULL: where it is at the start */
};

static inline bool comm_has_root(enum comm_operation operation) {
    return operation == COMM_REDUCE || operation == COMM_BROADCAST || operation == COMM_GATHER ||
           operation == COMM_SCATTER;
}

static inline bool comm_has_mark(enum comm_operation operation) {
    return operation == COMM_ALL_REDUCE || operation == COMM_REDUCE_SCATTER || operation == COMM_ALL_GATHER;
}

static inline bool comm_has_reduction(enum comm_operation operation) {
    return operation == COMM_ALL_REDUCE || operation == COMM_REDUCE || operation == COMM_REDUCE_SCATTER ||
           operation == COMM_SCAN || operation == COMM_EXSCAN;
}

/* A rank needs those before it, and nobody else. */
static inline bool comm_is_prefix(enum comm_operation operation) {
    return operation == COMM_SCAN || operation == COMM_EXSCAN;
}

/* The counts per rank, NULL where all are alike; of all_to_all, those that are received. */
static inline const size_t *comm_call_counts(const struct comm_call *call) {
    return call->operation == COMM_SCATTER ? call->send_counts : call->receive_counts;
}
/* Is it a form with counts per rank? */
static inline bool comm_call_is_counted(const struct comm_call *call) {
    return call->send_counts || call->receive_counts;
}

/* Elements of the first `count` blocks, which is where the next one begins. That all ranks' fit has been checked where
 * the call came in (group/collective.c). */
static inline size_t comm_counts_sum(const size_t *counts, uint32_t count) {
    size_t sum = 0;
    for (uint32_t rank = 0; rank < count; rank++) {
        sum += counts[rank];
    }
    return sum;
}

static inline size_t comm_counts_longest(const size_t *counts, uint32_t count) {
    size_t longest = 0;
    for (uint32_t rank = 0; rank < count; rank++) {
        longest = counts[rank] > longest ? counts[rank] : longest;
    }
    return longest;
}

/* Fills in what follows from the rest: type_bytes (0: no such type) and the fingerprint. */
void comm_call_prepare(struct comm_call *call, uint32_t size);
/* Lets the call have its arrays of counts to itself: the caller's are its own again when a call returns that runs
 * later. *out_counts is malloc'd, NULL without counts. MUSTER_ENOMEM. */
int comm_call_copy_counts(struct comm_call *call, uint32_t size, size_t **out_counts);
/* What must be equal on all `size` ranks, in 64 bits: operation, type, reduction, root or mark as they are, then the
 * count (or a hash of the counts; not those of all_to_all, whose blocks are checked pair by pair). Never 0. */
uint64_t comm_call_fingerprint(const struct comm_call *call, uint32_t size);

/* "all_reduce", "all_gather_v"; "nothing" for 0. Static. */
const char *comm_fingerprint_name(uint64_t fingerprint);
/* "all_reduce of 1024 float32, sum": for messages. "nothing" for 0. Returns `out`, cut to `max` bytes. */
char *comm_fingerprint_format(uint64_t fingerprint, char *out, size_t max);
/* What a sentence that names both calls has at its end: what to do where their texts are equal, since counts per rank
 * do not stand there. Else "". Static. */
const char *comm_fingerprints_remark(uint64_t one, uint64_t other);

#endif
