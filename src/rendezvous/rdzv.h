/* Rendezvous as the agent sees it: join, get a world, hear when it is no longer the right one, leave.
 *
 * One object per agent, used for all rounds. The backends stand in backends.h (--standalone is c10d on a store of its
 * own). Everything is asynchronous on one libuv loop; callbacks come from the loop, never
 * from inside a call. */
#ifndef RENDEZVOUS_RDZV_H
#define RENDEZVOUS_RDZV_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "net/endpoint.h"
#include "rendezvous/backends.h"
#include "rendezvous/round/cause.h"
#include "rendezvous/wire/secret.h"

struct rdzv;

#define RDZV_UNLIMITED UINT32_MAX
#define RDZV_DEFAULT_PORT 29400
#define RDZV_TOPOLOGY_MAX 256 /* bytes of a topology label, terminator included */

#define RDZV_ENGINE_MAX 128 /* bytes of what struct rdzv_callbacks' engine() says, terminator included */

#define RDZV_TEXT_MAX 256 /* bytes of a path in --rdzv-conf, terminator included */

/* How an etcd is reached; "": not given. */
struct rdzv_etcd_conf {
    bool https;                        /* protocol */
    char ca_file[RDZV_TEXT_MAX];       /* cacert, ca_cert */
    char cert_file[RDZV_TEXT_MAX];     /* cert, ssl_cert */
    char key_file[RDZV_TEXT_MAX];      /* key, ssl_cert_key */
    char prefix[RDZV_TEXT_MAX];        /* etcd_prefix */
    char user[RDZV_TEXT_MAX];          /* etcd-v3 */
    char password_file[RDZV_TEXT_MAX]; /* etcd-v3 */
};

/* Values of --rdzv-conf (docs/rendezvous.md), milliseconds. */
/* muster only: names of files in PEM form (net/tls_context.h), all or none; "" */
struct rdzv_tls_conf {
    char cert_file[RDZV_TEXT_MAX], key_file[RDZV_TEXT_MAX], ca_file[RDZV_TEXT_MAX];
};

struct rdzv_conf {
    uint64_t join_timeout_ms;        /* 600 000 */
    uint64_t last_call_timeout_ms;   /* 30 000 */
    bool last_call_given;            /* the user set it: obeyed in every round, not only the first */
    uint64_t close_timeout_ms;       /* 30 000 */
    uint64_t heartbeat_timeout_ms;   /* 5 000 */
    uint64_t keep_alive_interval_ms; /* 5 000 */
    uint32_t keep_alive_max_attempt; /* 3 */
    uint64_t hold_timeout_ms;        /* 180 000 */
    uint64_t read_timeout_ms;        /* 60 000 */
    uint64_t cas_backoff_max_ms;     /* 0: a write that another node's has outrun is tried again at once */
    uint64_t static_timeout_ms;      /* "timeout": 900 000; of etcd, too */
    uint64_t silence_timeout_ms; /* no key, 10 000: PyTorch's server can be silent for 5 s while it looks up a name */
    uint32_t max_membership_changes, max_preemptions; /* muster: of the job; RDZV_UNLIMITED */
    uint64_t restart_window_ms; /* muster: how long a charge counts against these and max_restarts; 0: always */
    int is_host;                /* -1 not given, 0, 1 */
    bool store_is_file;         /* store_type=file: the endpoint is a path */
    struct rdzv_etcd_conf etcd;
    struct net_ranges allow; /* muster only: from where workers may come without their agent, with a secret */
    char secret_file[RDZV_TOPOLOGY_MAX]; /* muster only, for the caller, who reads it; "" */
    struct rdzv_tls_conf tls;
    char topology[RDZV_TOPOLOGY_MAX]; /* muster only: where this node is, "switch7/rack3"; "" */
};

struct rdzv_options {
    enum rdzv_backend backend;
    const char *run_id; /* strings: copied */
    const char
        *endpoint; /* "host[:port]", of muster also several, with commas; or a path with store_is_file; "" = default */
    const char *local_addr; /* --local-addr or NULL */
    const char
        *host_name; /* this machine's full name, by which nodes are ordered; NULL: looked up where it is needed */
    const char *role;
    const char *not_given; /* options that the user has left to their defaults, with these, for people; NULL: none */
    uint32_t min_nodes;
    uint32_t max_nodes;
    uint32_t node_rank;        /* static only */
    bool has_wished_rank;      /* muster, etcd-v3: the scheduler or --node-rank says */
    uint32_t wished_rank;      /* where this node stands among the others */
    uint32_t local_world_size; /* workers on this node, > 0 */
    bool standalone;           /* loopback only, port chosen by the kernel */
    bool share_store;          /* false: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, worker 0 hosts its own */
    bool identical_workers;    /* TORCH_ELASTIC_WORKER_IDENTICAL=1 */
    bool survivors_continue;   /* workers outlive nodes: the exit barrier waits for those that are left, however long */
    bool limits_spares;        /* muster: nodes that wait for a place, to max_spares, if this node serves it */
    uint32_t max_spares;
    uint64_t stop_timeout_ms;         /* muster: how long workers that are asked to end may take */
    uint32_t max_restarts;            /* muster: after failures, of the job, if this node serves it */
    const struct secret_text *secret; /* muster only: borrowed until rdzv_create() returns; NULL: none */
    struct rdzv_conf conf;
};

void rdzv_conf_init(struct rdzv_conf *conf); /* the defaults above */
/* For how long a node may be silent before the others go on without it: where they can; and where they can't. */
static inline uint64_t rdzv_conf_silence_ms(const struct rdzv_conf *conf) {
    return conf->keep_alive_interval_ms * conf->keep_alive_max_attempt;
}

static inline uint64_t rdzv_conf_hold_ms(const struct rdzv_conf *conf) {
    const uint64_t silence_ms = rdzv_conf_silence_ms(conf);
    return conf->hold_timeout_ms > silence_ms ? conf->hold_timeout_ms : silence_ms;
}

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
    bool use_agent_store;                 /* TORCHELASTIC_USE_AGENT_STORE */
    bool job_counts_restarts;             /* muster: for all nodes, and decides; else each agent does */
    uint32_t restart_count, max_restarts; /* then: after failures, so far and at most */
};

enum rdzv_change {
    RDZV_NODE_ARRIVED, /* somebody waits to be let in */
    RDZV_NODE_LEFT,    /* a member of the current world is gone or has left to join again */
    RDZV_CUT_OFF,      /* this node hears nothing of the others, who may go on without it: no time to end is left */
};

struct rdzv_callbacks {
    /* Answer to rdzv_join(): start the workers. */
    void (*on_world)(void *ctx, const struct rdzv_world *world);
    /* After on_world, at most once per round: the world should be formed again (stop the workers, then
     * rdzv_join()). `why` is a sentence. */
    void (*on_change)(void *ctx, enum rdzv_change change, const char *why);
    /* A node of the job will be taken away in grace_ms: the whole job is to stop, and no further world will come. At
     * most once; follows rdzv_preempt() of any node, this one too. */
    void (*on_stop)(void *ctx, uint64_t grace_ms, const char *why);
    /* All places are taken: on_world or on_spare_released follows, maybe much later. NULL: not told
     * (muster alone tells). */
    void (*on_spare)(void *ctx);
    /* Answer to rdzv_join() on a spare node when the job has ended without it: exit 0. */
    void (*on_spare_released)(void *ctx);
    /* Of the node with rank 0's worker: what carries out that one's process groups, in a line for muster status; empty:
     * not known. Asked about once per keep_alive_interval while this node is in a world (muster, etcd-v3). Must not
     * call the rendezvous. NULL: never told. */
    void (*engine)(void *ctx, char out[RDZV_ENGINE_MAX]);
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

/* A worker of this node has failed: the other nodes are told, as far as the backend can. Of all nodes of a round the
 * one counts whose worker died first: clocks of two nodes are never compared, the record says how long ago that was.
 * Once a round; a second call completes what the first one said of the same worker (its last words). With `is_final`
 * the job has failed: the others end. Ignored while on_world() is due: no worker runs in that world yet. */
void rdzv_worker_failed(struct rdzv *rdzv, const struct rdzv_cause *cause);

/* The failure of this round that counts, of this node or another one; NULL: none is known. Valid until the next turn of
 * the loop. */
const struct rdzv_cause *rdzv_cause(const struct rdzv *rdzv);
/* Is it another node's? */
bool rdzv_cause_is_remote(const struct rdzv *rdzv);
/* `done` comes when the other node has said all that it has to say of it, or after a second; at once where nothing is
 * missing. This node's own failure counts only when the others that were at work have answered, too. */
void rdzv_await_cause(struct rdzv *rdzv, void (*done)(void *ctx));
/* A node of this round that has gone without a word: "node rank 1, host-b (pid 12), has gone: ...", or "". */
const char *rdzv_lost(const struct rdzv *rdzv);
/* The agent reports the cause as it is known now. What comes later in this round changes nothing: the report and the
 * outcome name the same worker. */
void rdzv_cause_reported(struct rdzv *rdzv);

/* This node will be taken away in grace_ms: where the backend can tell all nodes to stop (muster), it does, and on_stop
 * follows. False: this node is on its own. */
bool rdzv_preempt(struct rdzv *rdzv, uint64_t grace_ms, const char *why);

/* The exit barrier when this node's workers have ended. `succeeded`: all of them did, and this node is done: whatever
 * becomes of it now, the others do not miss it. `done` comes when no other node works any longer, or after 300 s or any
 * failure (both ignored, as torchrun does). With survivors_continue: when all members that are left have arrived, or
 * after a failure. A line of the log says that this node waits, as soon as it can end without being missed. */
void rdzv_exit_barrier(struct rdzv *rdzv, bool succeeded, void (*done)(void *ctx));

/* Ends this node's part. close_job: mark the rendezvous closed for everybody (normal end, final failure); otherwise
 * only remove this node, so that the others carry on (a signal). A node that is done, while others may still work,
 * closes nothing either way. `done` comes when it is written, or could not be within close_timeout. */
void rdzv_shutdown(struct rdzv *rdzv, bool close_job, void (*done)(void *ctx));

/* Frees; handles close during later turns of the loop. NULL accepted. */
void rdzv_free(struct rdzv *rdzv);

#endif
