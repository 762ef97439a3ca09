/* What static.c (attempts and the store) and static_end.c (failures and the end of the job) share. */
#ifndef RENDEZVOUS_STATIC_IMPL_H
#define RENDEZVOUS_STATIC_IMPL_H

#include "rendezvous/backend.h"
#include "rendezvous/round/exit_barrier.h"
#include "rendezvous/round/store_link.h"
#include "rendezvous/torch/static_host.h"
#include "rendezvous/torch/static_keys.h"

enum static_stage {
    STATIC_IDLE,    /* the agent has not joined yet, or its part is over */
    STATIC_WAITS,   /* for the others to be ready */
    STATIC_AGREES,  /* on ranks */
    STATIC_WORKING, /* a world was told */
    STATIC_BARRIER,
};

struct static_rdzv {
    struct rdzv *rdzv;
    struct net_endpoint endpoint;
    struct store_link *link;
    struct kv_client *client;  /* requests that are answered at once */
    struct kv_client *waiter;  /* for the exchange, or the exit barrier */
    struct kv_client *watcher; /* waits for the host's word; NULL: PyTorch's agent hosts the store */
    struct exchange *exchange;
    struct exit_barrier exit_barrier;
    struct static_host host; /* of node rank 0 alone */
    char prefix[RDZV_RUN_ID_MAX + 1];
    enum static_stage stage;
    struct static_word word; /* the host's latest; each node is alone until there is one */
    bool has_word;
    bool lingers;         /* at the end, for the others */
    bool is_deaf;         /* the watcher's connection is lost */
    bool has_told_change; /* of the world that was told last */
    int64_t ready_for;    /* the attempt for which this node has said so; -1: none */
    uint64_t round;       /* of the world that was told last, or is agreed upon */
    bool settled;         /* a world was formed: the loss of the store is not ours to mind any longer */
    bool has_failed;      /* for good: the others are told */
    uint64_t number;      /* this agent is the n-th of its rank */
    void (*let_in)(struct static_rdzv *s);
    bool is_waiting;       /* another agent may have this rank: the host asks it */
    uint64_t bounded;      /* on the host: the question for whose answers the time runs */
    uv_timer_cb on_wake;   /* on the host: acts on what it has heard */
    uint64_t asked;        /* the host's latest question that this node has looked at */
    int64_t others_nnodes; /* as the first node has said */
};

/* static_node.c */
bool static_is_single(const struct static_rdzv *s);
bool static_is_host(const struct static_rdzv *s);
void static_key(const struct static_rdzv *s, char out[STATIC_KEY_MAX], const char *name);
/* A family of keys with one for each node. */
void static_numbered_key(const struct static_rdzv *s, char out[STATIC_KEY_MAX], const char *family);
int static_need_waiter(struct static_rdzv *s);
int static_connect(struct static_rdzv *s, struct kv_client **out); /* once more, for waits */
/* Tells the host; of no effect where that is PyTorch's. */
void static_say(struct static_rdzv *s, enum static_says_what what, uint64_t round);
/* Ends whatever this node waits for. */
void static_drop(struct static_rdzv *s);
void static_fail(struct static_rdzv *s, int status);

/* static_place.c */
/* Tells the host, for people, who this is, and which protocol it speaks. */
void static_introduce(struct static_rdzv *s);
/* An agent that is not the first of its rank waits for the host's verdict, on the watcher: then `let_in`. */
int static_place_wait(struct static_rdzv *s, void (*let_in)(struct static_rdzv *s));
/* The host asks whether agents are there, this one maybe. */
void static_place_answer(struct static_rdzv *s, uint64_t asked);
/* On the host: the time for answers runs while some are awaited. */
void static_place_bound(struct static_rdzv *s);

/* static_end.c */
void static_end_begin_round(struct static_rdzv *s);
void static_end_watch_failures(struct static_rdzv *s); /* where the host says no word */
void static_end_ask_cause(struct rdzv *r);
void static_end_worker_failed(struct rdzv *r, const struct rdzv_cause *cause);
void static_end_barrier(struct rdzv *r);
void static_end_barrier_over(struct static_rdzv *s);
void static_end_look(struct static_rdzv *s); /* on the host, when a node has gone */
void static_end_shutdown(struct rdzv *r, bool close_job);

#endif
