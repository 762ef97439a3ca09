/* Calls of NCCL for a collective; see nccl_plan.h. */
#include "comm/nccl/nccl_plan.h"

#include "comm/nccl/nccl_abi.h"

enum { NO_TYPE = -1 };

static int type_of(enum muster_type type) {
    switch (type) {
    case MUSTER_INT8:
        return NCCL_INT8;
    case MUSTER_UINT8:
        return NCCL_UINT8;
    case MUSTER_INT32:
        return NCCL_INT32;
    case MUSTER_UINT32:
        return NCCL_UINT32;
    case MUSTER_INT64:
        return NCCL_INT64;
    case MUSTER_UINT64:
        return NCCL_UINT64;
    case MUSTER_FLOAT16:
        return NCCL_FLOAT16;
    case MUSTER_BFLOAT16:
        return NCCL_BFLOAT16;
    case MUSTER_FLOAT32:
        return NCCL_FLOAT32;
    case MUSTER_FLOAT64:
        return NCCL_FLOAT64;
    default:
        return NO_TYPE;
    }
}

static int reduction_of(enum muster_reduction reduction) {
    switch (reduction) {
    case MUSTER_OP_SUM:
        return NCCL_SUM;
    case MUSTER_OP_PRODUCT:
        return NCCL_PROD;
    case MUSTER_OP_MIN:
        return NCCL_MIN;
    case MUSTER_OP_MAX:
        return NCCL_MAX;
    case MUSTER_OP_AVERAGE:
        return NCCL_AVG;
    default:
        return NO_TYPE;
    }
}

bool nccl_plan_is_possible(const struct comm_call *call) {
    switch (call->operation) {
    case COMM_ALL_REDUCE:
    case COMM_REDUCE:
    case COMM_REDUCE_SCATTER:
        return type_of(call->type) != NO_TYPE && reduction_of(call->reduction) != NO_TYPE;
    case COMM_BROADCAST:
    case COMM_ALL_GATHER:
    case COMM_GATHER:
    case COMM_SCATTER:
    case COMM_ALL_TO_ALL:
        return true;
    default:
        return false;
    }
}

/* ---- sizes of buffers ---- */

static size_t sum_of(const size_t *counts, size_t count, uint32_t size) {
    return counts ? comm_counts_sum(counts, size) : count * size;
}

static size_t count_at(const size_t *counts, size_t count, uint32_t rank) {
    return counts ? counts[rank] : count;
}

size_t nccl_plan_send_count(const struct comm_call *call, uint32_t rank, uint32_t size) {
    switch (call->operation) {
    case COMM_BROADCAST:
        return rank == call->root ? call->count : 0;
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        return count_at(call->receive_counts, call->count, rank);
    case COMM_SCATTER:
        return rank == call->root ? sum_of(call->send_counts, call->count, size) : 0;
    case COMM_ALL_TO_ALL:
        return sum_of(call->send_counts, call->count, size);
    case COMM_REDUCE_SCATTER:
        return sum_of(call->receive_counts, call->count, size);
    default:
        return call->count;
    }
}

size_t nccl_plan_receive_count(const struct comm_call *call, uint32_t rank, uint32_t size) {
    switch (call->operation) {
    case COMM_REDUCE:
        return rank == call->root ? call->count : 0;
    case COMM_EXSCAN:
        return rank > 0 ? call->count : 0;
    case COMM_GATHER:
        return rank == call->root ? sum_of(call->receive_counts, call->count, size) : 0;
    case COMM_ALL_GATHER:
    case COMM_ALL_TO_ALL:
        return sum_of(call->receive_counts, call->count, size);
    case COMM_SCATTER:
        return count_at(call->send_counts, call->count, rank);
    case COMM_REDUCE_SCATTER:
        return count_at(call->receive_counts, call->count, rank);
    default:
        return call->count;
    }
}

bool nccl_plan_may_be_idle(const struct comm_call *call, uint32_t size) {
    const size_t *counts = comm_call_counts(call);
    if (!counts || call->operation == COMM_ALL_GATHER || call->operation == COMM_REDUCE_SCATTER) {
        return false; /* all have the same counts, and a buffer for all blocks: nobody is idle, or everybody */
    }
    bool is_idle = call->operation == COMM_ALL_TO_ALL; /* whose counts are each rank's own */
    for (uint32_t rank = 0; rank < size && !is_idle; rank++) {
        is_idle = counts[rank] == 0;
    }
    return is_idle;
}

/* ---- steps ---- */

struct plan {
    const struct comm_call *call;
    uint32_t rank, size;
    struct nccl_step *out;
    size_t count;
};

/* Of moved data: bytes where NCCL has no such type. */
static void add(struct plan *plan, enum nccl_step_kind kind, uint32_t rank, const char *send, char *receive,
                size_t count) {
    const struct comm_call *call = plan->call;
    int type = type_of(call->type);
    bool is_copy = kind == NCCL_STEP_COPY;
    if (count == 0 || (is_copy && send == receive)) {
        return;
    }
    plan->out[plan->count++] = (struct nccl_step){
        .kind = kind,
        .send = send,
        .receive = receive,
        .count = is_copy || type == NO_TYPE ? count * call->type_bytes : count,
        .type = type == NO_TYPE ? NCCL_UINT8 : (unsigned)type,
        .reduction = comm_has_reduction(call->operation) ? (unsigned)reduction_of(call->reduction) : NCCL_SUM,
        .rank = (int)rank};
}

static void add_whole(struct plan *plan, enum nccl_step_kind kind, uint32_t root) {
    add(plan, kind, root, plan->call->send, plan->call->receive, plan->call->count);
}

/* One broadcast or reduction for each rank's block. */
static void add_by_rank(struct plan *plan, enum nccl_step_kind kind) {
    const struct comm_call *call = plan->call;
    size_t width = call->type_bytes, begin = 0;
    for (uint32_t rank = 0; rank < plan->size; rank++) {
        bool is_own = rank == plan->rank, gathers = kind == NCCL_STEP_BROADCAST;
        const char *send = gathers ? call->send : (const char *)call->send + begin;
        char *receive = gathers ? (char *)call->receive + begin : is_own ? call->receive : NULL;
        add(plan, kind, rank, gathers && !is_own ? receive : send, receive, call->receive_counts[rank]);
        begin += call->receive_counts[rank] * width;
    }
}

/* All of a root's blocks: this rank's own is copied, the others go through messages. */
static void add_fan(struct plan *plan, const size_t *counts, bool gathers) {
    const struct comm_call *call = plan->call;
    bool is_root = plan->rank == call->root;
    size_t own = count_at(counts, call->count, plan->rank), begin = 0;
    if (!is_root) {
        add(plan, gathers ? NCCL_STEP_SEND : NCCL_STEP_RECEIVE, call->root, call->send, call->receive, own);
        return;
    }
    size_t before = counts ? comm_counts_sum(counts, plan->rank) : plan->rank * call->count;
    const char *send = (const char *)call->send;
    char *receive = call->receive;
    add(plan, NCCL_STEP_COPY, plan->rank, gathers || own == 0 ? send : send + before * call->type_bytes,
        gathers && own > 0 ? receive + before * call->type_bytes : receive, own);
    for (uint32_t rank = 0; rank < plan->size; rank++) {
        size_t count = count_at(counts, call->count, rank);
        if (rank != plan->rank && count > 0) {
            add(plan, gathers ? NCCL_STEP_RECEIVE : NCCL_STEP_SEND, rank, gathers ? NULL : send + begin,
                gathers ? receive + begin : NULL, count);
        }
        begin += count * call->type_bytes;
    }
}

static void add_all_to_all(struct plan *plan) {
    const struct comm_call *call = plan->call;
    for (uint32_t pass = 0; pass < 2; pass++) { /* the copy comes first */
        size_t send_before = 0, receive_before = 0;
        for (uint32_t rank = 0; rank < plan->size; rank++) {
            size_t sent = count_at(call->send_counts, call->count, rank);
            size_t received = count_at(call->receive_counts, call->count, rank);
            const char *send = sent > 0 ? (const char *)call->send + send_before : NULL;
            char *receive = received > 0 ? (char *)call->receive + receive_before : NULL;
            if (pass == 0 && rank == plan->rank) {
                add(plan, NCCL_STEP_COPY, rank, send, receive, sent);
            } else if (pass == 1 && rank != plan->rank) {
                add(plan, NCCL_STEP_SEND, rank, send, NULL, sent);
                add(plan, NCCL_STEP_RECEIVE, rank, NULL, receive, received);
            }
            send_before += sent * call->type_bytes;
            receive_before += received * call->type_bytes;
        }
    }
}

/* A call that moves a block between ranks, with a call of NCCL's own for that. */
static bool add_own(struct plan *plan, bool has_all) {
    const struct comm_call *call = plan->call;
    bool is_even = !call->send_counts && !call->receive_counts;
    if (!has_all || !is_even) {
        return false;
    }
    switch (call->operation) {
    case COMM_GATHER:
        add_whole(plan, NCCL_STEP_GATHER, call->root);
        return true;
    case COMM_SCATTER:
        add_whole(plan, NCCL_STEP_SCATTER, call->root);
        return true;
    case COMM_ALL_TO_ALL:
        add_whole(plan, NCCL_STEP_ALL_TO_ALL, 0);
        return true;
    default:
        return false;
    }
}

size_t nccl_plan_make(const struct comm_call *call, uint32_t rank, uint32_t size, bool has_all, struct nccl_step *out) {
    struct plan plan = {.call = call, .rank = rank, .size = size, .out = out};
    if (add_own(&plan, has_all)) {
        return plan.count;
    }
    switch (call->operation) {
    case COMM_ALL_REDUCE:
        add_whole(&plan, NCCL_STEP_ALL_REDUCE, 0);
        break;
    case COMM_REDUCE:
        add_whole(&plan, NCCL_STEP_REDUCE, call->root);
        break;
    case COMM_BROADCAST:
        add_whole(&plan, NCCL_STEP_BROADCAST, call->root);
        break;
    case COMM_ALL_GATHER:
        if (call->receive_counts) {
            add_by_rank(&plan, NCCL_STEP_BROADCAST);
        } else {
            add_whole(&plan, NCCL_STEP_ALL_GATHER, 0);
        }
        break;
    case COMM_REDUCE_SCATTER:
        if (call->receive_counts) {
            add_by_rank(&plan, NCCL_STEP_REDUCE);
        } else {
            add_whole(&plan, NCCL_STEP_REDUCE_SCATTER, 0);
        }
        break;
    case COMM_GATHER:
        add_fan(&plan, call->receive_counts, true);
        break;
    case COMM_SCATTER:
        add_fan(&plan, call->send_counts, false);
        break;
    case COMM_ALL_TO_ALL:
        add_all_to_all(&plan);
        break;
    default:
        break;
    }
    return plan.count;
}
