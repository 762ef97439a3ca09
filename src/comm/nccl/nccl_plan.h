/* What calls of NCCL a collective consists of. Pure.
 *
 * NCCL has all_reduce, reduce, broadcast, all_gather and reduce_scatter, and messages between pairs; since 2.28 also
 * gather, scatter and all_to_all. The others are made of those: gather, scatter and all_to_all with counts per rank, or
 * with an older NCCL, of messages that go together; other forms with counts of a broadcast or a reduction for each
 * rank. What only moves data goes as bytes where NCCL does not know the type.
 *
 * NCCL cannot add 16-bit integers up, has no reductions by bits, and no prefixes (scan, exscan). Such calls are carried
 * out by the engine for memory of the host, on copies. */
#ifndef COMM_NCCL_PLAN_H
#define COMM_NCCL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"

/* May NCCL carry it out? */
bool nccl_plan_is_possible(const struct comm_call *call);

/* An all_to_all in place: each block would be overwritten before it is sent, unless they are sent from a copy. */
static inline bool nccl_plan_needs_copy(const struct comm_call *call) {
    return call->operation == COMM_ALL_TO_ALL && !call->send_counts && call->send == call->receive;
}

/* In elements: what a rank's buffers hold; 0 for one that it does not use. */
size_t nccl_plan_send_count(const struct comm_call *call, uint32_t rank, uint32_t size);
size_t nccl_plan_receive_count(const struct comm_call *call, uint32_t rank, uint32_t size);

enum nccl_step_kind {
    NCCL_STEP_COPY, /* from send to receive, `count` bytes; comes before all others */
    NCCL_STEP_ALL_REDUCE,
    NCCL_STEP_REDUCE,
    NCCL_STEP_BROADCAST,
    NCCL_STEP_ALL_GATHER,
    NCCL_STEP_REDUCE_SCATTER,
    NCCL_STEP_GATHER,
    NCCL_STEP_SCATTER,
    NCCL_STEP_ALL_TO_ALL,
    NCCL_STEP_SEND,
    NCCL_STEP_RECEIVE
};

struct nccl_step {
    enum nccl_step_kind kind;
    const void *send;
    void *receive;
    size_t count;
    unsigned type, reduction; /* NCCL's */
    int rank;                 /* the root, or the other end of a message */
};

static inline size_t nccl_plan_steps_max(uint32_t size) {
    return 2 * (size_t)size;
}

/* The steps of this rank in a call that is possible, into `out`, which has room for nccl_plan_steps_max(). Those that
 * are no copies go between ncclGroupStart() and ncclGroupEnd(). has_all: NCCL has gather, scatter and all_to_all; the
 * same on all ranks. Returns their number: 0 where this rank has nothing to do. */
size_t nccl_plan_make(const struct comm_call *call, uint32_t rank, uint32_t size, bool has_all, struct nccl_step *out);

/* May a rank have nothing to give and nothing to get, and so no buffer by which to tell where the call's memory is?
 * The same answer on all ranks. */
bool nccl_plan_may_be_idle(const struct comm_call *call, uint32_t size);

#endif
