/* The object of the backends c10d and etcd-v2, which differ in what holds the shared state; private to c10d*.c.
 *
 *   c10d.c            the shared state: reading, conditional writes, watching, what the machine decides
 *   c10d_store.c      the store that holds the state: a server, a file, or an etcd
 *   c10d_host.c       on the node that hosts the store: lost connections become graves
 *   c10d_round.c      once a round is complete: the exchange, the exit barrier
 *   c10d_master.c     where the workers of a round meet
 *   c10d_introduce.c  who is ours, and the numbers of protocols
 *   c10d_past.c       keys of old rounds, deleted
 *   c10d_end.c        which nodes are done, and what it means that one is missing
 *   c10d_cause.c      failures: what is told of them, and read
 *   c10d_report.c     what is told to people */
#ifndef RENDEZVOUS_C10D_IMPL_H
#define RENDEZVOUS_C10D_IMPL_H

#include "base/buf.h"
#include "rendezvous/backend.h"
#include "rendezvous/round/exchange.h"
#include "rendezvous/round/exit_barrier.h"
#include "rendezvous/round/job_end.h"
#include "rendezvous/round/store_link.h"
#include "rendezvous/torch/liveness.h"
#include "rendezvous/torch/machine.h"
#include "rendezvous/torch/master_search.h"
#include "store/client/etcd_v2.h"

/* "torch.rendezvous." + run id; with round: + "." + round + "/" */
enum {
    C10D_KEY_MAX = RDZV_RUN_ID_MAX + 64,
    C10D_INTRODUCTION_MAX = C10D_KEY_MAX + RDZV_NODE_TEXT_MAX + 16,
    C10D_NAMES_SIZE = 512
};

/* What agents start from: "no state yet". */
#define C10D_SENTINEL "Y2FuaW1hZGFt"

/* How the job ends (c10d_end.c). */
struct c10d_end {
    struct job_end_view view;    /* of what is being asked, and then of what was answered */
    bool is_asking;              /* one question at a time: answers of an older one mean nothing */
    bool asks_again;             /* the state has changed meanwhile */
    bool asks_for_place;         /* whether the round for which this node waits lets anybody in */
    int64_t place_round;         /* which one that was */
    bool begins_join;            /* the answer decides whether this node joins the next round */
    uint32_t unanswered, graves; /* requests; members that have left for good, when that was asked last */
    size_t named;
    char names[C10D_NAMES_SIZE]; /* of the nodes that are done */
    bool is_doomed;              /* a node is lost, and no round can follow */
    bool fails_when_closed;      /* with this sentence: */
    char why[MUSTER_DETAIL_MAX];
    bool serves_on; /* this node is done, and stays for the others' sake: it hosts the store */
    bool watches_host, is_host_done, is_detached;
    bool has_failed; /* for good: the others are told */
    bool closes_when_told;
    bool looks_for_cause; /* the job was closed: did a node fail? */
    bool has_looked;      /* in this round */
};

/* The nodes whose number of the protocol this one reads (c10d_introduce.c). Of more than so many it tells nothing. */
enum { C10D_PROTOCOL_NODES_MAX = 128 };

struct c10d_protocol {
    struct rdzv_node *nodes; /* C10D_PROTOCOL_NODES_MAX; NULL: none yet */
    size_t count, asked;     /* of them */
    bool is_asking;
};

/* A world that this node was in. */
struct c10d_past {
    int64_t round;
    uint32_t rank;
    bool hosts; /* it said, as rank 0, that the workers' store is here */
    bool is_set;
};

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
    bool is_reached; /* the store is; the machine begins when a join is wanted, too: it needs this machine's name */
    bool join_wanted;
    char
        own_address[RDZV_ADDR_MAX]; /* by which others reach this node: MASTER_ADDR; its name in the state is another */
    struct buf token;               /* the stored value as adopted last */
    struct buf text;                /* the value being written */
    bool writing;
    bool backing_off; /* another node was faster: this one looks again in a while */
    bool reading;
    bool watching;
    uint64_t writes;          /* begun so far */
    int64_t write_ms;         /* when the last one was, by the loop's clock */
    uint64_t watch_writes;    /* when the watch now out was begun */
    uint64_t silent_ms;       /* of the etcd, as far as it has been excused */
    int64_t listens_until_ms; /* the etcd was away: nobody is judged before */

    struct liveness liveness;

    struct rdzv_state world;  /* the round as it was completed */
    bool hosts_world;         /* this node has said that the workers' store of that round is here */
    struct c10d_past past[2]; /* the worlds before it, the last one first */
    bool forming;             /* the round is complete, its world has not been told */
    struct exchange *exchange;
    struct master_search *search;
    bool searched; /* in this round already */
    struct kv_server *worker_store;
    bool change_seen; /* while forming, to be told after the world */
    bool in_barrier;
    struct exit_barrier barrier; /* may be over while this node still stays in it: c10d_end_serves_on() */
    bool barrier_passed;
    bool ending;
    bool asking;             /* before leaving: who the others are */
    int64_t silence_told_ms; /* to people, of a member, last; 0: it is not silent */
    int64_t store_told_ms;   /* the same of the store, by the loop's clock */
    bool is_spare_told;
    struct c10d_protocol protocol;
    struct c10d_end end;
};

/* c10d.c */
/* The store does not do what it should: this node cannot go on, unless it can do without. */
void c10d_fail(struct c10d *c, int status);
/* The job cannot go on. */
void c10d_fail_job(struct c10d *c, int status);
void c10d_fail_closed(struct c10d *c); /* the rendezvous is, and this node cannot join it */
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
void c10d_host_disconnected(void *ctx, uint64_t connection, enum kv_end end);

/* c10d_round.c */
void c10d_round_begin(struct c10d *c); /* the machine has joined */
void c10d_round_abort(struct c10d *c); /* nothing of the exchange or the barrier is waited for any longer */
void c10d_round_barrier(struct c10d *c);
/* The state has changed while this node waits in the barrier. */
void c10d_round_barrier_look(struct c10d *c, bool member_left);
void c10d_round_barrier_over(struct c10d *c, bool passed);
/* How many nodes of the round are in the exit barrier, or have passed it: the answer's number. */
int c10d_round_ask_count(struct c10d *c, int64_t round, kv_reply_cb *cb);
int c10d_round_need_waiter(struct c10d *c);
void c10d_round_tell_all_are_here(struct c10d *c); /* in the barrier */
void c10d_round_stop(struct c10d *c);

/* A round has got its address: the nodes tell each other the rest. NULL: rank 0 says where. `master_node` is the name
 * in the state of the node that hosts the workers' store (master_search.h). */
int c10d_round_exchange(struct c10d *c, const char *master_addr, const char *master_node, uint16_t master_port);
uint32_t c10d_round_rank(const struct c10d *c);

/* c10d_past.c */
void c10d_past_formed(struct c10d *c, uint32_t rank); /* this node is in a world */

/* c10d_master.c */
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

/* c10d_introduce.c */
/* The key by which `node` says that it is no agent of PyTorch's. */
void c10d_introduction(const struct c10d *c, const struct rdzv_node *node, char out[C10D_INTRODUCTION_MAX]);
/* Does the value of that key say that the node is ours, and not done? */
bool c10d_introduction_is_at_work(struct kv_slice value);
/* Tells the others the number of this node's protocol, and that it is no agent of PyTorch's. */
int c10d_introduce(struct c10d *c);
/* Of a write to the store that is here: an agent of ours that introduces itself and has told no number is from before
 * there were numbers. */
void c10d_introduce_heard(struct c10d *c, const struct kv_server *store, struct kv_slice key, struct kv_slice value);
/* A state has been adopted: where no agent hosts the store, the numbers of new nodes are read. */
void c10d_introduce_look(struct c10d *c);

/* c10d_end.c */
/* This node's workers have succeeded. */
void c10d_end_done(struct c10d *c);
/* Its end is that of the job: nobody else works, or can go on. */
bool c10d_end_closes(const struct c10d *c);
/* A member is missing: it is minded, unless it was done. */
void c10d_end_ask_missing(struct c10d *c);
/* This node waits for nobody any more at the exit barrier, but others need its store: until they are gone, or the job
 * is closed. */
bool c10d_end_serves_on(struct c10d *c);
bool c10d_end_is_needed(const struct c10d *c);
/* Somebody waits for a place: it gets one, unless a node is done already. */
void c10d_end_ask_arrival(struct c10d *c);
/* Joins the next round, or fails if that cannot be formed without the nodes that are done. */
void c10d_end_join(struct c10d *c);
void c10d_end_look_while_joining(struct c10d *c);
/* Is it known that nobody is let in where this node waits for a place? */
void c10d_end_look_while_waiting(struct c10d *c);
/* When the node that hosts the store is done, the others outlive the store. */
void c10d_end_begin_round(struct c10d *c);
bool c10d_end_outlives_store(const struct c10d *c);
/* This node cannot go on before the store answers: it waits no longer for it than it must. */
void c10d_end_needs_store(struct c10d *c);
void c10d_end_detach(struct c10d *c);
int c10d_end_fail_detached(void);

/* c10d_cause.c */
void c10d_cause_key(const struct c10d *c, char key[2 * C10D_KEY_MAX]);
void c10d_cause_begin_round(struct c10d *c);
/* A worker of this node has failed. */
void c10d_cause_tell(struct rdzv *rdzv, const struct rdzv_cause *cause);
void c10d_cause_ask(struct rdzv *rdzv);
/* The job has ended without this spare node: well, or with the cause of a failure. */
void c10d_cause_release_spare(struct c10d *c);
/* The job is closed: if a node has failed for good, this one fails as well, with the cause. */
void c10d_cause_look(struct c10d *c);

/* c10d_report.c */
void c10d_report_start(struct c10d *c);
void c10d_report_stop(struct c10d *c);
/* A state has been adopted: tells people of a member that is silent and keeps its place, and of the end of that. */
void c10d_report_silent(struct c10d *c);
/* The same of the store, on a member whose heartbeats are not answered. */
void c10d_report_store(struct c10d *c);
/* A state has been adopted: is this node a spare now, or no longer one? */
void c10d_report_spare(struct c10d *c);
/* Another node has the one place of the job: which one, and what the user can change. */
int c10d_report_taken(const struct c10d *c);
/* "here: a_1_0, b_2_0 (waiting); 2 nodes, at least 3 are needed" */
const char *c10d_report_who(const struct c10d *c, char *out, size_t size);
/* A sentence on why the round has to be formed again. */
const char *c10d_report_change(const struct c10d *c, bool left, char *out, size_t size);

#endif
