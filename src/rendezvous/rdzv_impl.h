/* What the rendezvous backends share: the object of rdzv.h and its outbox. Private to this folder.
 *
 * Backends never call the agent: they leave messages in the outbox, which a timer of zero delivers from the top of the
 * loop, one at a time. So a callback may call anything, rdzv_free() included. */
#ifndef RENDEZVOUS_RDZV_IMPL_H
#define RENDEZVOUS_RDZV_IMPL_H

#include "rendezvous/exchange.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/state.h"

#include <muster/status.h>

enum { RDZV_RUN_ID_MAX = 256, RDZV_BARRIER_TIMEOUT_MS = 300000 };

enum rdzv_timer {
    RDZV_TIMER_OUTBOX,
    RDZV_TIMER_WAKE,     /* the machine's */
    RDZV_TIMER_SYNC,     /* the next look at the state */
    RDZV_TIMER_REPORT,   /* who is missing */
    RDZV_TIMER_LINGER,   /* the host waits for the others to go */
    RDZV_TIMER_SEARCH,   /* where the coordinator is */
    RDZV_TIMER_LEAVE,    /* the end of asking before leaving */
    RDZV_TIMER_FAREWELL, /* people are told that the end of this node has not been heard yet */
    RDZV_TIMER_COUNT,
};

struct rdzv_backend_table {
    /* Fills rdzv->state. On failure nothing is left open but what stop() closes. */
    int (*start)(struct rdzv *rdzv);
    void (*join)(struct rdzv *rdzv);
    void (*worker_failed)(struct rdzv *rdzv, const char *why); /* NULL: the others learn it from the next join */
    bool (*preempt)(struct rdzv *rdzv, uint64_t grace_ms, const char *why); /* NULL: the others cannot be told */
    void (*barrier)(struct rdzv *rdzv);
    void (*shutdown)(struct rdzv *rdzv, bool close_job);
    bool is_needed_after_failure;    /* shutdown() is called then, too: other nodes may still have to be told */
    void (*stop)(struct rdzv *rdzv); /* closes and frees rdzv->state; NULL accepted */
};

extern const struct rdzv_backend_table rdzv_c10d;
extern const struct rdzv_backend_table rdzv_static;
extern const struct rdzv_backend_table rdzv_native;
extern const struct rdzv_backend_table rdzv_etcd;
extern const struct rdzv_backend_table rdzv_etcd3;

struct rdzv {
    uv_loop_t *loop;
    struct rdzv_options options; /* its strings are owned */
    uint32_t local_id;
    const struct rdzv_backend_table *backend;
    void *state; /* the backend's */
    uv_timer_t timers[RDZV_TIMER_COUNT];
    unsigned open_timers;
    bool failed; /* on_failed is on its way or delivered */
    bool freed;

    struct rdzv_callbacks callbacks;
    void *ctx;
    bool is_world_held; /* by rdzv_hold_world() */
    bool has_world, has_change, has_stop, has_spare, has_spare_released, has_failed;
    bool has_barrier_done, has_shutdown_done;
    struct rdzv_world world;
    char master_addr[NET_HOST_MAX];
    enum rdzv_change change;
    char change_why[MUSTER_DETAIL_MAX];
    uint64_t stop_grace_ms;
    char stop_why[MUSTER_DETAIL_MAX];
    int failed_status;
    char failed_why[MUSTER_DETAIL_MAX];
    void (*barrier_done)(void *ctx);
    void (*shutdown_done)(void *ctx);
};

static inline uv_timer_t *rdzv_timer(struct rdzv *rdzv, enum rdzv_timer which) {
    return &rdzv->timers[which];
}

enum { RDZV_NODES_TEXT_SIZE = 40 };
/* How many make a world: "2 nodes", "1 to 4 nodes". Returns `out`. */
const char *rdzv_nodes_text(const struct rdzv_options *options, char out[RDZV_NODES_TEXT_SIZE]);

/* Messages to the agent. */
void rdzv_tell_world(struct rdzv *rdzv, uint64_t round, uint32_t rank, uint32_t count,
                     const struct exchange_result *result);
/* The world that has just been told goes out after rdzv_release_world(), or when there is more to tell. */
void rdzv_hold_world(struct rdzv *rdzv);
void rdzv_release_world(struct rdzv *rdzv);
void rdzv_tell_change(struct rdzv *rdzv, enum rdzv_change change, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void rdzv_tell_stop(struct rdzv *rdzv, uint64_t grace_ms, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void rdzv_tell_spare(struct rdzv *rdzv);
void rdzv_tell_spare_released(struct rdzv *rdzv);
/* With muster_detail() as the reason. Only the first failure is told. */
void rdzv_tell_failed(struct rdzv *rdzv, int status);
void rdzv_tell_barrier_done(struct rdzv *rdzv);
void rdzv_tell_shutdown_done(struct rdzv *rdzv);

#endif
