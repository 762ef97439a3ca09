/* The legacy etcd backend's object; private to etcd*.c.
 *
 *   etcd.c        life, watching, what the machine decides
 *   etcd_call.c   the machine's calls and this node's keep-alive, as requests to etcd
 *   etcd_round.c  once a round is complete: the exchange, the exit barrier, and what this node tells the others of its
 *                 success or its failure, and makes of theirs
 *
 * (etcd_machine.c decides, etcd_world.c knows the value it is about, etcd_link.c reaches etcd.) */
#ifndef RENDEZVOUS_ETCD_IMPL_H
#define RENDEZVOUS_ETCD_IMPL_H

#include "rendezvous/backend.h"
#include "rendezvous/etcd/etcd_link.h"
#include "rendezvous/etcd_legacy/etcd_machine.h"
#include "rendezvous/round/exchange.h"
#include "rendezvous/round/exit_barrier.h"

#include <muster/status.h>

/* "<etcd_prefix>/run_<run id>" and what lies below it. */
enum { ETCD_ROOT_MAX = RDZV_TEXT_MAX + RDZV_RUN_ID_MAX + 16, ETCD_FOLDER_MAX = ETCD_ROOT_MAX + 32 };

/* How the job ends. */
struct etcd_end {
    enum etcd_event next;           /* CLOSE or LEAVE, as soon as what is to be told has been told; JOIN: none yet */
    struct etcd_v2_request *record; /* that this node is done, on its way */
    bool is_recording;              /* this node is done, and etcd may not know it yet */
    bool barrier_passed;
    bool is_doomed;         /* a node is lost, and no round can follow */
    bool has_failed;        /* for good: the others are told */
    bool has_looked;        /* the job was closed: did a node fail? */
    bool fails_when_closed; /* with this sentence: */
    char why[MUSTER_DETAIL_MAX];
};

struct etcd_rdzv;

/* What calls and rounds report to (etcd.c). */
struct etcd_driver {
    void (*feed)(struct etcd_rdzv *e, enum etcd_event event);
    void (*fail)(struct etcd_rdzv *e, int status);
    void (*watch)(struct etcd_rdzv *e); /* from e->watch_index on */
};

struct etcd_rdzv {
    struct rdzv *rdzv;
    const struct etcd_driver *driver;
    struct etcd_v2 *etcd;
    char prefix[RDZV_TEXT_MAX + 1]; /* "/torchelastic/p2p" */
    char root[ETCD_ROOT_MAX];
    char versions[ETCD_FOLDER_MAX]; /* R/rdzv/v_ */
    char active[ETCD_FOLDER_MAX];   /* R/rdzv/active_version */
    char counter[ETCD_FOLDER_MAX];  /* R/rdzv/version_counter */
    size_t folders_made;            /* at the start */
    bool ready;                     /* they are all there */
    bool join_wanted;               /* before that */
    bool ending;
    struct etcd_machine machine;
    struct etcd_v2_request *call;   /* the machine's, or one of the start */
    struct etcd_v2_request *watch;  /* of everything below R/rdzv */
    struct etcd_v2_request *lease;  /* of this node's keep-alive */
    struct etcd_v2_request *tenure; /* of R */
    uint64_t watch_index;           /* of the next event */
    uint64_t seen_index;            /* what is known of the world is as of this */
    uint64_t world_index;           /* when it was written */
    uint64_t counter_index;
    uint64_t silent_ms;    /* of the etcd, as far as it has been excused */
    uint64_t missed_index; /* of an event that came while a call was out; 0: none */
    bool holds_key;
    char key[ETCD_MACHINE_PATH_MAX];  /* this node's keep-alive */
    char mark[ETCD_MACHINE_PATH_MAX]; /* and what it says of itself */
    char name[ETCD_MEMBERS_NAME_MAX]; /* in which it has this name */

    char version[ETCD_WORLD_VERSION_MAX]; /* of the round that is complete */
    uint32_t rank, count;
    struct kv_client *client; /* the round's store, R/rdzv/v_<n>/kv/, until the next round is complete */
    struct kv_client *waiter; /* the same, for the exchange and the barrier */
    bool forming;
    bool change_seen; /* while forming, to be told after the world */
    struct exchange *exchange;
    struct exit_barrier barrier;
    struct etcd_end end;
};

/* etcd_call.c */
void etcd_call_perform(struct etcd_rdzv *e, const struct etcd_actions *actions);
void etcd_call_release(struct etcd_rdzv *e); /* the keep-alive is not renewed any longer */

/* What this node is called: address, process id, local id. */
void etcd_call_name(const struct etcd_rdzv *e, char out[ETCD_MEMBERS_NAME_MAX]);

/* etcd_round.c */
int etcd_round_begin(struct etcd_rdzv *e); /* the machine has joined */
/* Nothing of the exchange or the barrier is waited for any longer. */
void etcd_round_abort(struct etcd_rdzv *e);
void etcd_round_stop(struct etcd_rdzv *e);
void etcd_round_barrier(struct etcd_rdzv *e);
/* The round has changed: no member that is lost comes to the barrier. */
void etcd_round_barrier_look(struct etcd_rdzv *e, bool member_left);

/* How it ends. */
void etcd_end_begin_round(struct etcd_rdzv *e);
int etcd_end_hear_failures(struct etcd_rdzv *e); /* its store is connected */
/* This node has been counted at the exit barrier: its success is recorded. */
void etcd_end_counted(struct etcd_rdzv *e);
/* Its part is over: the job is closed or left, when all has been told that is to be. */
void etcd_end_begin(struct etcd_rdzv *e, bool close_job);
void etcd_end_finish(struct etcd_rdzv *e); /* that has been written */
void etcd_end_stop(struct etcd_rdzv *e);
/* A member that is missing was done. */
void etcd_end_excuse(struct etcd_rdzv *e);
/* A member is lost, and the job is closed. */
void etcd_end_fail(struct etcd_rdzv *e);
/* There are too few nodes for the next round. */
void etcd_end_too_few(struct etcd_rdzv *e);
/* The job is closed: if a node has failed for good, this one fails as well, with the cause. */
void etcd_end_look(struct etcd_rdzv *e);
/* The same where this node waits for the next round: it fails in any case. */
void etcd_end_closed(struct etcd_rdzv *e);
void etcd_end_worker_failed(struct rdzv *rdzv, const struct rdzv_cause *cause);
void etcd_end_ask_cause(struct rdzv *rdzv);

#endif
