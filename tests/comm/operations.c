/* The operations; see operations.h. */
#include <muster/memory.h>

#include "operations.h"

#include <stdlib.h>

/* Waits, where the call was made with a handle. */
static int finish(int code, struct muster_work *work) {
    int done = muster_work_wait(&work);
    return code ? code : done;
}

/* The collectives that only differ in their arguments. `W` is where the handle goes. */
#define OPERATION(function_name, CALL)                                                                                 \
    static int function_name(const struct operands *o) {                                                               \
        struct muster_work *work = NULL;                                                                               \
        struct muster_work **W = o->with_handle ? &work : NULL;                                                        \
        int code = CALL;                                                                                               \
        return finish(code, work);                                                                                     \
    }

/* Counts that differ from rank to rank: none, half, all, none ... */
struct counts {
    size_t of[OPERATION_RANKS_MAX];
};

static struct counts uneven(const struct operands *o) {
    struct counts counts;
    for (uint32_t rank = 0; rank < OPERATION_RANKS_MAX; rank++) {
        counts.of[rank] = o->count * ((rank + 2) % 3) / 2;
    }
    return counts;
}

/* What goes between two ranks is the same in both directions. */
static struct counts pairwise(const struct operands *o) {
    struct counts counts;
    uint32_t self = muster_group_rank(o->group);
    for (uint32_t rank = 0; rank < OPERATION_RANKS_MAX; rank++) {
        counts.of[rank] = o->count * ((rank + self) % 3) / 2;
    }
    return counts;
}

#define F32 MUSTER_FLOAT32
OPERATION(do_barrier, muster_barrier(o->group, W))
OPERATION(do_all_reduce, muster_all_reduce(o->group, o->send, o->receive, o->count, F32, MUSTER_OP_SUM, W))
OPERATION(do_all_reduce_in_place, muster_all_reduce(o->group, o->send, o->send, o->count, F32, MUSTER_OP_MAX, W))
OPERATION(do_reduce, muster_reduce(o->group, o->send, o->receive, o->count, F32, MUSTER_OP_SUM, o->root, W))
OPERATION(do_broadcast, muster_broadcast(o->group, o->send, o->count, F32, o->root, W))
OPERATION(do_all_gather, muster_all_gather(o->group, o->send, o->receive, o->count, F32, W))
OPERATION(do_gather, muster_gather(o->group, o->send, o->receive, o->count, F32, o->root, W))
OPERATION(do_scatter, muster_scatter(o->group, o->send, o->receive, o->count, F32, o->root, W))
OPERATION(do_reduce_scatter, muster_reduce_scatter(o->group, o->send, o->receive, o->count, F32, MUSTER_OP_SUM, W))
OPERATION(do_all_to_all, muster_all_to_all(o->group, o->send, o->receive, o->count, F32, W))
OPERATION(do_all_gather_v, muster_all_gather_v(o->group, o->send, o->receive, uneven(o).of, F32, W))
OPERATION(do_gather_v, muster_gather_v(o->group, o->send, o->receive, uneven(o).of, F32, o->root, W))
OPERATION(do_scatter_v, muster_scatter_v(o->group, o->send, o->receive, uneven(o).of, F32, o->root, W))
OPERATION(do_reduce_scatter_v,
          muster_reduce_scatter_v(o->group, o->send, o->receive, uneven(o).of, F32, MUSTER_OP_SUM, W))
OPERATION(do_all_to_all_v, muster_all_to_all_v(o->group, o->send, pairwise(o).of, o->receive, pairwise(o).of, F32, W))

static int do_monitored_barrier(const struct operands *o) {
    return muster_monitored_barrier(o->group, o->timeout_ms);
}

/* Round the ring: from the left, or from anybody, to the right. */
static int pass_on(const struct operands *o, bool from_anybody) {
    uint32_t size = muster_group_size(o->group), self = muster_group_rank(o->group);
    struct muster_work *work = NULL, *sending = NULL;
    struct muster_message message;
    int code = muster_receive(o->group, o->receive, o->count, F32,
                              from_anybody ? MUSTER_ANY_RANK : (self + size - 1) % size, 7, &message, &work);
    if (code == 0) {
        code = muster_send(o->group, o->send, o->count, F32, (self + 1) % size, 7, o->with_handle ? &sending : NULL);
        code = finish(code, sending);
    }
    return finish(code, work);
}

static int do_send_receive(const struct operands *o) {
    return pass_on(o, false);
}

static int do_receive_any(const struct operands *o) {
    return pass_on(o, true);
}

const struct operation operations[OPERATION_COUNT] = {
    {"barrier", do_barrier},
    {"monitored_barrier", do_monitored_barrier},
    {"all_reduce", do_all_reduce},
    {"all_reduce", do_all_reduce_in_place},
    {"reduce", do_reduce},
    {"broadcast", do_broadcast},
    {"all_gather", do_all_gather},
    {"gather", do_gather},
    {"scatter", do_scatter},
    {"reduce_scatter", do_reduce_scatter},
    {"all_to_all", do_all_to_all},
    {"all_gather", do_all_gather_v},
    {"gather", do_gather_v},
    {"scatter", do_scatter_v},
    {"reduce_scatter", do_reduce_scatter_v},
    {"all_to_all", do_all_to_all_v},
    {"receive", do_send_receive},
    {"receive", do_receive_any},
};

int operands_allocate(struct operands *o, bool is_shared) {
    size_t bytes = muster_group_size(o->group) * o->count * sizeof(float);
    if (is_shared) {
        int code = muster_alloc(o->group, bytes, (void **)&o->send);
        return code ? code : muster_alloc(o->group, bytes, (void **)&o->receive);
    }
    o->send = calloc(1, bytes);
    o->receive = calloc(1, bytes);
    return o->send && o->receive ? 0 : MUSTER_ENOMEM;
}

void operands_free(struct operands *o, bool is_shared) {
    if (is_shared) {
        muster_free(o->group, o->send);
        muster_free(o->group, o->receive);
    } else {
        free(o->send);
        free(o->receive);
    }
    o->send = o->receive = NULL;
}
