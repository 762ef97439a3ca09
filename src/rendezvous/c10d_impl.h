/* The object of the backends c10d and etcd-v2, which differ in what holds the shared state; private to c10d*.c.
 *
 *   c10d.c         the shared state: reading, conditional writes, watching, what the machine decides
 *   c10d_store.c   the store that holds the state: a server, a file, or an etcd
 *   c10d_host.c    on the node that hosts the store: lost connections become graves
 *   c10d_round.c   once a round is complete: the exchange, the exit barrier
 *   c10d_master.c  where the workers of a round meet
 *   c10d_report.c  what is told to people */
#ifndef RENDEZVOUS_C10D_IMPL_H
#define RENDEZVOUS_C10D_IMPL_H

#include "base/buf.h"
#include "rendezvous/exchange.h"
#include "rendezvous/liveness.h"
#include "rendezvous/machine.h"
#include "rendezvous/master_search.h"
#include "rendezvous/rdzv_impl.h"
#include "rendezvous/store_link.h"
#include "store/etcd_v2.h"

/* "torch.rendezvous." + run id; with round: + "." + round + "/" */
enum { C10D_KEY_MAX = RDZV_RUN_ID_MAX + 64 };

/* What agents start from: "no state yet". */
#define C10D_SENTINEL "Y2FuaW1hZGFt"

struct c10d {
    struct rdzv *rdzv;
    char key[C10D_KEY_MAX];
    struct store_link *link;   /* NULL with store_type=file and etcd-v2 */
    struct etcd_v2 *etcd;      /* with etcd-v2, else NULL */
    char *file_path;           /* with it, else NULL */
    bool file_is_ours;         /* made for want of an endpoint: to be removed */
    struct kv_client *client;  /* the link's, or the file's or etcd's; NULL before the store is reached */
    struct kv_client *watcher; /* on a store of ours: hears of changes */
    struct kv_client *waiter;  /* for the exchange and the barrier, when there is somebody to wait for */

    struct rdzv_machine machine;
    bool has_machine;
    bool join_wanted; /* before the store was reached */
    struct buf token; /* the stored value as adopted last */
    struct buf text;  /* the value being written */
    bool writing;
    bool reading;
    bool watching;
    uint64_t writes;       /* begun so far */
    uint64_t watch_writes; /* when the watch now out was begun */

    struct liveness liveness;

    struct rdzv_state world; /* the round as it was completed */
    bool forming;            /* the round is complete, its world has not been told */
    struct exchange *exchange;
    struct master_search *search;
    bool searched; /* in this round already */
    struct kv_server *worker_store;
    bool change_seen; /* while forming, to be told after the world */
    bool in_barrier;
    bool barrier_passed;
    int64_t barrier_expected; /* members that are to come to it; only followed where survivors go on */
    bool ending;
    bool asking; /* before leaving: who the others are */
};

/* c10d.c */
void c10d_fail(struct c10d *c, int status);
void c10d_feed(struct c10d *c, enum rdzv_event event);
struct rdzv_now c10d_now(const struct c10d *c);
void c10d_begin(struct c10d *c); /* the store is reached */
/* The state in a stored value; the sentinel and nothing are the empty state. */
int c10d_read_state(struct kv_slice value, struct rdzv_state *out);

/* c10d_store.c */
int c10d_store_open(struct c10d *c); /* ends in c10d_begin() or c10d_fail() */
void c10d_store_close(struct c10d *c);
/* One more connection, for waits. */
int c10d_store_connect(struct c10d *c, kv_client_state_cb *on_state, struct kv_client **out);
struct kv_server *c10d_store_server(const struct c10d *c); /* NULL when it is not hosted here */
bool c10d_store_is_loopback(const struct c10d *c);
/* By which address others reach this node, as far as its connection to the store tells. */
void c10d_store_own_address(const struct c10d *c, char out[RDZV_ADDR_MAX]);
/* For people: what was tried and what came of it. Returns `out`. */
const char *c10d_store_describe(const struct c10d *c, char *out, size_t size);

/* c10d_host.c: callbacks of the hosted store. */
void c10d_host_changed(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                       struct kv_slice new_value);
void c10d_host_disconnected(void *ctx, uint64_t connection);

/* c10d_round.c */
void c10d_round_begin(struct c10d *c); /* the machine has joined */
void c10d_round_abort(struct c10d *c); /* nothing of the exchange or the barrier is waited for any longer */
void c10d_round_barrier(struct c10d *c);
/* The state has changed while this node waits in the barrier. */
void c10d_round_barrier_look(struct c10d *c, bool member_left);
void c10d_round_stop(struct c10d *c);

/* A round has got its address: the nodes tell each other the rest. NULL: rank 0 says where. */
int c10d_round_exchange(struct c10d *c, const char *master_addr, uint16_t master_port);
uint32_t c10d_round_rank(const struct c10d *c);

/* c10d_master.c */
/* Says to others that this node is no agent of PyTorch's. */
int c10d_master_introduce(struct c10d *c);
/* Is everybody who takes part in `state` one of ours? The answer's number says so; nothing else may be asked of a busy
 * client. */
int c10d_master_ask(struct c10d *c, struct kv_client *client, const struct rdzv_state *state, kv_reply_cb *cb);
/* Empties the workers' store of earlier rounds, if this node has one. */
void c10d_master_reset(struct c10d *c);
/* A workers' store here (with one world, this is it). */
int c10d_master_host(struct c10d *c, uint16_t *out_port);
/* Ends in c10d_round_exchange() or c10d_fail(). */
int c10d_master_begin(struct c10d *c);
/* The other nodes of the round cannot tell: it is looked for. */
int c10d_master_search(struct c10d *c);

/* c10d_report.c */
void c10d_report_start(struct c10d *c);
void c10d_report_stop(struct c10d *c);
/* "here: a_1_0, b_2_0 (waiting); 2 nodes, at least 3 are needed" */
const char *c10d_report_who(const struct c10d *c, char *out, size_t size);
/* A sentence on why the round has to be formed again. */
const char *c10d_report_change(const struct c10d *c, bool left, char *out, size_t size);

#endif
