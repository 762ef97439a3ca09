/* Node rank 0 of a static job: what it learns from the writes to the store that it serves, and what it tells all nodes.
 *
 * The keys are in docs/rendezvous.md, "The static backend"; static_round.h decides. */
#ifndef RENDEZVOUS_STATIC_HOST_H
#define RENDEZVOUS_STATIC_HOST_H

#include "rendezvous/torch/static_peers.h"
#include "rendezvous/torch/static_round.h"
#include "store/server/kv_server.h"

enum { STATIC_DIFFER_SIZE = 32 };

/* An agent whose rank another one has, see static_newcomers.c. */
enum static_newcomer_stage {
    STATIC_NEWCOMER_NONE,
    STATIC_NEWCOMER_WAITS, /* for the answers to an earlier question */
    STATIC_NEWCOMER_ASKED, /* the other one is asked */
    STATIC_NEWCOMER_LET_IN,
    STATIC_NEWCOMER_REFUSED,
};
struct static_newcomer {
    enum static_newcomer_stage stage;
    uint64_t number; /* of the agents of its rank */
};

struct static_host {
    struct static_round round;
    enum static_node_state *nodes; /* owned */
    struct static_peer *agents;    /* by rank; PyTorch's as well, where one is known; owned */
    struct static_newcomer *newcomers;
    struct static_peer *new_agents, *new_watchers; /* theirs */
    uint32_t newcomer_count;                       /* who wait, or have to be told */
    uint64_t asked;                                /* how often agents were asked whether they are there */
    struct static_peer *watchers;                  /* the connections on which nodes wait for our word; owned */
    struct kv_server *server;                      /* borrowed; NULL until static_host_open() */
    const char *prefix;                            /* of all keys, "/" at the end; borrowed */
    int64_t here;                                  /* nodes that have counted themselves in, as PyTorch's agents do */
    char differ[STATIC_DIFFER_SIZE];               /* as STATIC_KEY_DIFFER holds it; "": all have the same --nnodes */
    int64_t lost;    /* rank of the last node that has gone before it was done; -1: none, or people have been told */
    int64_t old;     /* rank of the last node of ours that has come without the number of its protocol; -1, likewise */
    bool has_failed; /* for good, on any node */
    bool has_given_up;                                 /* nodes do not come, or differ: it says no other word */
    bool has_let_go;                                   /* those in the exit barrier, since nobody else can come */
    char told[STATIC_WORD_SIZE + STATIC_MISSING_SIZE]; /* to all nodes, last */
};

/* MUSTER_ENOMEM. static_host_done() in either case. */
int static_host_init(struct static_host *h, const char *prefix, uint32_t node_count, bool are_alone);
void static_host_done(struct static_host *h);
/* The store is served now. */
void static_host_open(struct static_host *h, struct kv_server *server);

/* A write, the end of a connection: from inside the server. True: static_host_act() has to follow, from outside. */
bool static_host_heard(struct static_host *h, uint64_t connection, struct kv_slice key, struct kv_slice value);
bool static_host_lost(struct static_host *h, uint64_t connection);
/* A key of the job, for all to read; from outside of the server. */
void static_host_set(struct static_host *h, const char *name, const char *value);
/* Empties the store for the next attempt, tells the nodes, ends the exit barrier, as far as it is time. */
void static_host_act(struct static_host *h);
/* Agents are asked, and have not all answered: static_host_give_up_silent() is due when they have had their time. */
bool static_host_awaits_answers(const struct static_host *h);
/* Who has not answered is replaced. static_host_act() has to follow. */
void static_host_give_up_silent(struct static_host *h);
/* Those who are missing were waited for in vain: all others are told. */
void static_host_tell_late(struct static_host *h, const char *missing);
/* Nor can nodes of different --nnodes meet. */
void static_host_tell_difference(struct static_host *h);
/* "node rank 1, host-b (pid 12)". Returns `out`. */
enum { STATIC_NODE_NAME_SIZE = 224 };
const char *static_host_name(const struct static_host *h, uint32_t rank, char out[STATIC_NODE_NAME_SIZE]);
/* Who is waited for, by name if it is one that has been here; 0: nobody. */
uint32_t static_host_missing(const struct static_host *h, char out[STATIC_NODE_NAME_SIZE]);
/* Have all nodes counted themselves in? */
bool static_host_is_counted(const struct static_host *h);

#endif
