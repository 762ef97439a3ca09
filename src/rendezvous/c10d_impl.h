/* The c10d backend's object; private to c10d*.c.
 *
 *   c10d.c         the shared state: reading, conditional writes, watching, what the machine decides
 *   c10d_host.c    on the node that hosts the store: lost connections become graves
 *   c10d_round.c   once a round is complete: the exchange, the workers' store, the exit barrier
 *   c10d_report.c  what is told to people */
#ifndef RENDEZVOUS_C10D_IMPL_H
#define RENDEZVOUS_C10D_IMPL_H

#include "base/buf.h"
#include "rendezvous/exchange.h"
#include "rendezvous/liveness.h"
#include "rendezvous/machine.h"
#include "rendezvous/rdzv_impl.h"
#include "rendezvous/store_link.h"

/* "torch.rendezvous." + run id; with round: + "." + round + "/" */
enum { C10D_KEY_MAX = RDZV_RUN_ID_MAX + 64 };

/* What agents start from: "no state yet". */
#define C10D_SENTINEL "Y2FuaW1hZGFt"

struct c10d {
    struct rdzv *rdzv;
    char key[C10D_KEY_MAX];
    struct store_link *link;
    struct kv_client *client;  /* the link's; NULL before the store is reached */
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
    struct exchange *exchange;
    struct exchange_result known; /* the workers' store of the last round */
    struct kv_server *worker_store;
    bool change_seen; /* during the exchange, to be told after the world */
    bool in_barrier;
    bool barrier_passed;
    bool ending;
};

/* c10d.c */
void c10d_fail(struct c10d *c, int status);
void c10d_feed(struct c10d *c, enum rdzv_event event);
struct rdzv_now c10d_now(const struct c10d *c);
/* The state in a stored value; the sentinel and nothing are the empty state. */
int c10d_read_state(struct kv_slice value, struct rdzv_state *out);

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

/* c10d_report.c */
void c10d_report_start(struct c10d *c);
void c10d_report_stop(struct c10d *c);
/* "here: a_1_0, b_2_0 (waiting); 2 nodes, at least 3 are needed" */
const char *c10d_report_who(const struct c10d *c, char *out, size_t size);
/* A sentence on why the round has to be formed again. */
const char *c10d_report_change(const struct c10d *c, bool left, char *out, size_t size);

#endif
