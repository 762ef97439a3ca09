/* What the files of the engine share: its state. */
#ifndef COMM_ENGINE_NCCL_IMPL_H
#define COMM_ENGINE_NCCL_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/device/device.h"
#include "comm/device/event_pool.h"
#include "comm/engine/message.h"
#include "comm/nccl/engine_nccl.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_plan.h"

enum nccl_phase {
    NCCL_IDLE,
    NCCL_ISSUING,     /* NCCL has yet to put the call onto the stream */
    NCCL_RUNNING,     /* the stream has yet to get past it */
    NCCL_COPYING_OUT, /* of a call that the inner engine carries out on copies: to the host */
    NCCL_ON_HOST,     /* by the inner engine */
    NCCL_COPYING_IN   /* back */
};

/* Memory of the GPU that this engine has given out. */
struct nccl_memory {
    void *memory;
    size_t bytes;
    void *registration; /* NULL: none */
    bool is_nccls;      /* by ncclMemAlloc() */
    struct nccl_memory *next;
};

struct nccl_engine {
    struct engine base;
    struct engine *host;
    struct comm_waiter *waiter;
    const struct failure *failure;
    const struct nccl_library *nccl;
    struct device device;
    struct CUstream_st *stream;
    _Atomic(struct CUstream_st *) users_stream; /* of messages; a call has its own */
    struct CUevent_st *before, *after;          /* the caller's work so far; the call */
    struct event_pool noted;                    /* of calls that wait for their turn */
    struct ncclComm *comm;                      /* NULL: not made yet, given up, or spent */
    struct ncclComm *spent;                     /* after a failure: carries out nothing any more, but may be shrunk */
    uint32_t rank, size;
    const char *name;
    struct nccl_step *steps;        /* scratch */
    const struct call_line **lines; /* of this host's members */
    uint32_t line_count;
    const struct call_line *own_line;
    bool compares_calls;
    bool splits;                /* new groups come from its communicator; the same on all ranks */
    struct nccl_engine *failed; /* whose survivors this group's ranks are, until it is connected; NULL: none */
    int *left_out;              /* ranks there */
    uint32_t left_out_count;

    enum nccl_phase phase;
    struct comm_call call;
    uint64_t number;
    int64_t deadline_ns;
    bool was_on_device; /* the last call */
    bool is_busy;       /* a call on memory of the GPU is under way; with the mutex below, as is whatever shrinks it */
    bool is_stuck;      /* something of it may still run on the GPU: what it uses is left to it */

    void *pinned; /* for copies */
    size_t pinned_bytes;
    unsigned long long scratch; /* likewise, on the GPU */
    size_t scratch_bytes;

    pthread_mutex_t mutex; /* of what follows, too */
    struct nccl_memory *memories;

    struct engine_table table; /* of this engine: messages are as the inner engine has them */
    struct engine_messages messages;
    pthread_mutex_t message_mutex; /* of what follows */
    struct CUstream_st *message_stream;
    struct CUevent_st *message_event;
    struct nccl_copy *copies;
};

static inline struct nccl_engine *nccl_of(struct engine *engine) {
    return (struct nccl_engine *)(void *)engine;
}

static inline int nccl_fail_cuda(const struct nccl_engine *n, unsigned result, const char *what) {
    return cuda_fail(n->device.cuda, result, what);
}

/* ---- nccl_connect.c ---- */

/* A part of a call, or of connecting, for memory of the host: by the inner engine, to its end. `whole`: what it is a
 * part of, whose fingerprint it has; NULL: nothing. */
int nccl_run_inner(struct nccl_engine *n, struct comm_call *part, const struct comm_call *whole, uint64_t number,
                   int64_t deadline_ns);
/* Of the table. */
int nccl_connect(struct engine *engine, int64_t deadline_ns);

/* ---- nccl_call.c: with the context entered; ENGINE_UNDER_WAY, and the phase that follows, or ENGINE_DONE ---- */

/* The engine's stream waits for what the caller's has been given so far. 0, or an error. */
int nccl_call_wait_for_caller(struct nccl_engine *n);
/* All that is on the stream so far has been done when `after` has come. */
int nccl_call_mark(struct nccl_engine *n, enum nccl_phase phase);
/* Has NCCL carry the call out. */
int nccl_call_issue(struct nccl_engine *n);
/* Or the inner engine, on copies: out, the call, in. */
int nccl_call_copy_out(struct nccl_engine *n);
int nccl_call_run_copies(struct nccl_engine *n);
int nccl_call_copy_in(struct nccl_engine *n);

/* ---- nccl_comm.c: communicators, none of whose calls may hold a caller for ever ---- */

/* 0, or what the group's waiter says: something is wrong elsewhere. */
int nccl_ask_waiter(const struct nccl_engine *n);
/* Rank 0 tells the others the id of a communicator, or why there is none. */
int nccl_share_id(struct nccl_engine *n, const struct engine_talk *talk, struct nccl_id *out);
/* Begins to make it of the id, with the other ranks. Then waits for that. */
int nccl_comm_begin(struct nccl_engine *n, const struct nccl_id *id);
int nccl_comm_make(struct nccl_engine *n, const struct nccl_id *id, int64_t deadline_ns);

enum nccl_end {
    NCCL_END_IN_ORDER, /* what other ranks still need of this one gets there */
    NCCL_END_AT_ONCE,
    NCCL_END_CALLS /* the communicator stays, spent; at once where NCCL cannot do that */
};
/* Ends it, by another thread, for which this one waits a while. *comm becomes NULL, unless it stays. false: that thread
 * does not come back, and the communicator is left to it. */
bool nccl_comm_end(const struct nccl_engine *n, struct ncclComm **comm, enum nccl_end end);

/* ---- nccl_derive.c: communicators from others ---- */

/* Of the table. */
int nccl_derive(struct engine *engine, struct engine *child, uint32_t family, uint32_t place,
                const struct engine_talk *talk, int64_t timeout_ns);
/* Of the failed group's communicator; talk: of the new group. 0 without a communicator, on all ranks: it has to be made
 * anew. */
int nccl_shrink(struct nccl_engine *n, const struct engine_talk *talk, int64_t deadline_ns);
/* Ends the calls of a communicator after a failure; what can be shrunk is kept for that. false: they do not end. */
bool nccl_spend(struct nccl_engine *n);

/* ---- nccl_message.c ---- */

void nccl_messages_begin(struct nccl_engine *n);
void nccl_messages_end(struct nccl_engine *n); /* with the context entered */

/* ---- nccl_memory.c, with the context entered ---- */

/* At least so much of each kind, for one call. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int nccl_memory_pin(struct nccl_engine *n, size_t bytes);
int nccl_memory_scratch(struct nccl_engine *n, size_t bytes);
void nccl_memory_free(struct nccl_engine *n);
/* Of the table: they enter the context. */
int nccl_memory_allocate(struct engine *engine, size_t bytes, void **out);
void nccl_memory_release(struct engine *engine, void *memory);
/* The communicator, which is to be ended, knows no memory any more. */
void nccl_memory_forget_all(struct nccl_engine *n);
/* A new one gets to know it; with the mutex held. */
void nccl_memory_enroll_all(struct nccl_engine *n);

#endif
