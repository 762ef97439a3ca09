/* Rendezvous as the agent sees it: join, get a world, hear when it is no longer the right one, leave.
 *
 * One object per agent, used for all rounds. Backends: c10d (--standalone is c10d on a store of its own),
 * static and muster. Everything is asynchronous on one libuv loop; callbacks come from the loop, never from inside a
 * call. */
#ifndef RENDEZVOUS_RDZV_H
#define RENDEZVOUS_RDZV_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "net/endpoint.h"

struct rdzv;

enum rdzv_backend { RDZV_BACKEND_C10D, RDZV_BACKEND_STATIC, RDZV_BACKEND_MUSTER };

#define RDZV_TOPOLOGY_MAX 256 /* bytes of a topology label, terminator included */

/* Values of --rdzv-conf (docs/rendezvous.md), milliseconds. */
struct rdzv_conf {
    uint64_t join_timeout_ms;        /* 600 000 */
    uint64_t last_call_timeout_ms;   /* 30 000 */
    bool last_call_given;            /* the user set it: obeyed in every round, not only the first */
    uint64_t close_timeout_ms;       /* 30 000 */
    uint64_t heartbeat_timeout_ms;   /* 5 000 */
    uint64_t keep_alive_interval_ms; /* 5 000 */
    uint32_t keep_alive_max_attempt; /* 3 */
    uint64_t read_timeout_ms;        /* 60 000 */
    uint64_t static_timeout_ms;      /* "timeout": 900 000 */
    uint64_t silence_timeout_ms; /* no key, 10 000: PyTorch's server can be silent for 5 s while it looks up a name */
    int is_host;                 /* -1 not given, 0, 1 */
    bool store_is_file;          /* store_type=file: the endpoint is a path */
    char topology[RDZV_TOPOLOGY_MAX]; /* muster only: where this node is, "switch7/rack3"; "" */
};

struct rdzv_options {
    enum rdzv_backend backend;
    const char *run_id;     /* strings: copied */
    const char *endpoint;   /* "host[:port]" or a path with store_is_file; "" = default */
    const char *local_addr; /* --local-addr or NULL */
    const char *role;
    uint32_t min_nodes;
    uint32_t max_nodes;
    uint32_t node_rank;        /* static only */
    uint32_t local_world_size; /* workers on this node, > 0 */
    bool standalone;           /* loopback only, port chosen by the kernel */
    bool share_store;          /* false: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, worker 0 hosts its own */
    bool identical_workers;    /* TORCH_ELASTIC_WORKER_IDENTICAL=1 */
    bool survivors_continue;   /* workers outlive nodes: the exit barrier waits for those that are left, however long */
    struct rdzv_conf conf;
};

void rdzv_conf_init(struct rdzv_conf *conf); /* the defaults above */

/* What one round decided for this node. Borrowed until the callback returns. */
struct rdzv_world {
    uint64_t round;
    uint32_t group_rank;       /* this node's rank */
    uint32_t group_world_size; /* nodes */
    uint32_t base_global_rank; /* RANK of local rank 0 */
    uint32_t global_world_size;
    uint32_t base_role_rank;
    uint32_t role_world_size;
    const char *master_addr;
    uint16_t master_port;
    bool use_agent_store; /* TORCHELASTIC_USE_AGENT_STORE */
};

enum rdzv_change {
    RDZV_NODE_ARRIVED, /* somebody waits to be let in */
    RDZV_NODE_LEFT,    /* a member of the current world is gone or has left to join again */
};

struct rdzv_callbacks {
    /* Answer to rdzv_join(): start the workers. */
    void (*on_world)(void *ctx, const struct rdzv_world *world);
    /* After on_world, at most once per round: the world should be formed again (stop the workers, then
     * rdzv_join()). `why` is a sentence. */
    void (*on_change)(void *ctx, enum rdzv_change change, const char *why);
    /* Answer to rdzv_join() on a spare node when the job has ended without it: exit 0. */
    void (*on_spare_released)(void *ctx);
    /* The rendezvous cannot go on: timeout, closed, store lost. `status` negative, `why` says what to do. */
    void (*on_failed)(void *ctx, int status, const char *why);
};

/* Starts: resolves the endpoint (on a thread, only if it is a name), hosts the store or connects to it. Failures
 * of these come through on_failed. MUSTER_EINVAL (endpoint, counts), MUSTER_ENOMEM. */
int rdzv_create(uv_loop_t *loop, const struct rdzv_options *options, const struct rdzv_callbacks *callbacks, void *ctx,
                struct rdzv **out);

/* Joins the next round, leaving the current one first. Every worker of this node must have ended: on rank 0
 * the workers' store is emptied for the new attempt. */
void rdzv_join(struct rdzv *rdzv);

/* A worker of this node has failed; `why` is a sentence. Where the backend can tell the other nodes before this one
 * joins again, it does (muster); once a round, later calls change nothing. */
void rdzv_worker_failed(struct rdzv *rdzv, const char *why);

/* The exit barrier when this node is done: `done` comes when all members have arrived, or after 300 s or
 * any failure (both ignored, as torchrun does). With survivors_continue: when all members that are left have arrived,
 * or after a failure. */
void rdzv_exit_barrier(struct rdzv *rdzv, void (*done)(void *ctx));

/* Ends this node's part. close_job: mark the rendezvous closed for everybody (normal end, final failure); otherwise
 * only remove this node, so that the others carry on (a signal). `done` comes when it is written, or could
 * not be within close_timeout. */
void rdzv_shutdown(struct rdzv *rdzv, bool close_job, void (*done)(void *ctx));

/* Frees; handles close during later turns of the loop. NULL accepted. */
void rdzv_free(struct rdzv *rdzv);

#endif
