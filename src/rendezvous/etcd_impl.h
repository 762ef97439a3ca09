/* The legacy etcd backend's object; private to etcd*.c.
 *
 *   etcd.c        life, watching, what the machine decides
 *   etcd_call.c   the machine's calls and this node's keep-alive, as requests to etcd
 *   etcd_round.c  once a round is complete: the exchange, the exit barrier
 *
 * (etcd_machine.c decides, etcd_world.c knows the value it is about, etcd_link.c reaches etcd.) */
#ifndef RENDEZVOUS_ETCD_IMPL_H
#define RENDEZVOUS_ETCD_IMPL_H

#include "rendezvous/etcd_link.h"
#include "rendezvous/etcd_machine.h"
#include "rendezvous/exchange.h"
#include "rendezvous/exit_barrier.h"
#include "rendezvous/rdzv_impl.h"

/* "<etcd_prefix>/run_<run id>" and what lies below it. */
enum { ETCD_ROOT_MAX = RDZV_TEXT_MAX + RDZV_RUN_ID_MAX + 16, ETCD_FOLDER_MAX = ETCD_ROOT_MAX + 32 };

struct etcd_rdzv {
    struct rdzv *rdzv;
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
    uint64_t missed_index; /* of an event that came while a call was out; 0: none */
    bool holds_key;
    char key[ETCD_MACHINE_PATH_MAX]; /* this node's keep-alive */

    char version[ETCD_WORLD_VERSION_MAX]; /* of the round that is complete */
    uint32_t rank, count;
    struct kv_client *client, *waiter; /* the round's store: R/rdzv/v_<n>/kv/ */
    bool forming;
    bool change_seen; /* while forming, to be told after the world */
    struct exchange *exchange;
    struct exit_barrier *barrier;
};

/* etcd.c */
void etcd_rdzv_fail(struct etcd_rdzv *e, int status);
void etcd_rdzv_feed(struct etcd_rdzv *e, enum etcd_event event);
void etcd_rdzv_watch(struct etcd_rdzv *e); /* from e->watch_index on */

/* etcd_call.c */
void etcd_call_perform(struct etcd_rdzv *e, const struct etcd_actions *actions);
void etcd_call_release(struct etcd_rdzv *e); /* the keep-alive is not renewed any longer */

/* etcd_round.c */
int etcd_round_begin(struct etcd_rdzv *e); /* the machine has joined */
void etcd_round_abort(struct etcd_rdzv *e);
void etcd_round_barrier(struct etcd_rdzv *e);
/* The round has changed: no member that has gone comes to the barrier. */
void etcd_round_barrier_look(struct etcd_rdzv *e, bool member_left);

#endif
