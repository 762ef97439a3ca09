/* What the native backend's files share: native.c holds the agent's part in the job, native_reach.c the way to the
 * coordinator, native_seek.c the search for it. */
#ifndef RENDEZVOUS_NATIVE_IMPL_H
#define RENDEZVOUS_NATIVE_IMPL_H

#include "rendezvous/backend.h"
#include "rendezvous/coordinator/coordinator_server.h"
#include "rendezvous/member/native_place.h"
#include "rendezvous/member/native_search.h"
#include "rendezvous/member/native_session.h"
#include "rendezvous/member/participant.h"

struct native;
struct native_finder;
struct native_lease;

/* The question whether the job is served at a place. */
struct native_probe {
    struct native *native;
    size_t place;
    struct native_connection *connection; /* NULL: none under way */
    unsigned retries;                     /* in this round of asking */
    uint32_t tried, refused;              /* then: bit i for the place's address i */
    bool is_refused;                      /* in this round of asking: a coordinator is there, of another job */
    bool was_refused;                     /* so in this node's first round of asking */
};

/* The way to the coordinator. */
struct native_reach {
    struct native_place *places; /* `count`, owned */
    struct native_probe probes[NET_ENDPOINTS_MAX];
    size_t count;
    uint64_t digest;
    struct native_search search;
    bool has_asked;                    /* a round of asking is complete */
    int own;                           /* place that this agent serves; -1: none */
    struct coordinator_server *server; /* NULL: this agent serves no place */
    bool may_host_later;  /* the one endpoint, this machine's: its port was taken, and no coordinator has been found yet
                           */
    bool own_had_members; /* when the round of asking began */
    uint64_t own_lost_count; /* by then */
    struct native_session *session;
    uint64_t session_number;     /* its name, with this node's identity */
    size_t at;                   /* the session's place */
    bool is_open;                /* the session */
    bool is_heard;               /* on it */
    bool was_open;               /* any session, ever */
    bool is_checking;            /* is the coordinator there, whose connection has ended? */
    unsigned flaw_count;         /* connections that broke the protocol, since the last world */
    unsigned mute_count;         /* connections in a row on which nothing was heard */
    uint64_t mute_ms;            /* since when; 0: the last thing that happened was another */
    int lost;                    /* place whose coordinator this node has lost; -1: none */
    uint64_t lost_ms;            /* when */
    bool was_deserted;           /* since: no other one was found in time */
    unsigned asked_count;        /* rounds of asking */
    unsigned session_asked;      /* by when the session was begun */
    uint64_t opened_ms;          /* the session; else when this agent began to look for one */
    uint64_t stamp_ms;           /* of the coordinator's clock, as it was heard last on the session; 0: not yet */
    bool has_host;               /* then: the coordinator's own node took part there */
    uint64_t answered_ms;        /* what was sent then has been answered */
    uint64_t answered_before_ms; /* the same before that: so the coordinator knows that it was heard itself */
    uint64_t lease_ms;           /* for how long after that it keeps this node's place, as it has said; 0: not yet */
    uint64_t told_ms;            /* when its silence was told last, while it lasts; 0: not yet */
    uint64_t alive_ms;           /* when an ALIVE was sent that has not been answered; 0: none */
    uint64_t trip_ms;            /* that the last answer took */
    uint64_t beat_ms;            /* when the next one is due */
    uint64_t ask_ms;             /* when the next round of asking is due */
};

struct native {
    struct participant part;
    struct native_reach reach;
    const struct native_finder *finder;
    struct native_lease *lease;                /* native_lease_finder's; NULL: with another one */
    struct secret *secret;                     /* NULL: none */
    struct tls_context *tls;                   /* for agents and coordinators; NULL: none */
    struct admission_server *admission_server; /* of the workers' store, with a secret */
    bool is_detached;                          /* the coordinator has gone with its node, which was done */
    bool awaits_answer; /* the world was told so long ago that its place may be another node's: it begins with the next
                         * answer to a sign of life */
    struct admission_client *admission; /* to the workers' store of another node, while it is being asked for */
    struct kv_server *worker_store;
    uint16_t store_port;
    uint64_t identity[2];
    char engine[RDZV_ENGINE_MAX]; /* as the coordinator was told in this world; "": it was not */
    bool has_paid_stop;           /* one has been told since */
    bool owes_stop;               /* ENDING: the job stops, and no coordinator has heard of it yet */
    unsigned lingered_ms;
};

/* ---- native_reach.c ---- */

/* Resolves the endpoints, and serves the one that is this machine's. */
int native_reach_start(struct native *n, const struct coordinator_server_options *server);
void native_reach_stop(struct native *n);
/* That a coordinator's port may have. */
size_t native_reach_connections_max(const struct rdzv_options *options);
bool native_has_rivals(const struct native *n);
/* Now, for what others owe this node. */
uint64_t native_now_ms(const struct native *n);
/* How long nobody is to be taken for silent, since this process was away itself; 0: it was not. */
uint64_t native_listens_ms(const struct native *n);
/* Goes to the coordinator at this place; native_opened() or native_lost() follows. There is no session. */
void native_reach_connect(struct native *n, size_t place);
/* A connection of the job's to what is there, for a question. */
int native_reach_open_connection(struct native *n, size_t place, const struct native_connection_callbacks *callbacks,
                                 void *ctx, struct native_connection **out);
/* Of one endpoint, as long as no coordinator has been found: tries to serve it again. Its port may have been a
 * connection's own end for a moment, or two agents that began at the same time kept each other from it. */
void native_reach_host_later(struct native *n);
/* Of one endpoint: is the coordinator there, whose connection has ended? native_opened() or native_lost() follows. */
void native_reach_check(struct native *n);
/* Says ALIVE out of turn, or as soon as one on its way is answered: the number of HEARDs until one answers this one, 0
 * when it cannot be sent. */
unsigned native_reach_ask_alive(struct native *n);
/* A world was proposed. */
void native_reach_proposed(struct native *n, const struct coordinator_message *message);
/* A world was told. */
void native_reach_arrived(struct native *n);
void native_reach_drop(struct native *n);
/* The session does not open: as if its connection had failed. Another address may be tried; else native_lost() follows.
 */
void native_reach_give_up(struct native *n);
/* The coordinator has had time to take this node for lost: what it has ended in good order it may have given up. */
bool native_reach_may_be_given_up(const struct native *n);
/* The coordinator keeps this node's place beyond the silence: the others can't go on without it. */
bool native_reach_is_held(const struct native *n);
/* The last answer to a sign of life is so old that this node may have lost its place. */
bool native_reach_is_overdue(const struct native *n);
/* What is connected there has not said a word yet: it may be no coordinator. */
bool native_reach_is_mute(const struct native *n);
bool native_reach_is_loopback(const struct native *n);
/* "a:29400": the place of the session. Returns `out`. */
enum { NATIVE_REACH_NAME_SIZE = NET_HOST_MAX + 8 };
const char *native_reach_name(const struct native *n, char out[NATIVE_REACH_NAME_SIZE]);
/* "a:29400: connected; b:29400: ..." Returns `out`. */
const char *native_reach_describe(const struct native *n, char *out, size_t size);
const char *native_reach_describe_place(const struct native *n, size_t i, char *out, size_t size);

/* ---- native_finder.c ---- */

/* Where the coordinator is, or whether it is to be this agent. The way there is native_reach.c's. */
struct native_finder {
    bool has_rivals; /* another coordinator may take the place of one that is lost */
    bool hands_over; /* and does so at once when its node leaves: that one need not form a world for the others first */
    /* See the calls below. */
    void (*seek)(struct native *n);
    void (*seek_later)(struct native *n);
    void (*seek_better)(struct native *n); /* NULL: there is none */
    void (*resolved)(struct native *n, size_t place);
    void (*due)(struct native *n); /* the time of native_finder_wake() has come */
    /* NULL: nothing is to be done. */
    void (*heard)(struct native *n);              /* the first message on the session */
    void (*missed)(struct native *n, int status); /* as native_lost(), which goes on then; the detail is kept */
    void (*arrived)(struct native *n);
    void (*end)(struct native *n); /* this node's part is over; participant_end() follows */
    /* By which address others reach this node. NULL: by that of the session. */
    void (*own_address)(const struct native *n, char out[RDZV_ADDR_MAX]);
    /* What is asked, and what was wrong with it last. Returns `out`. NULL: the places say it. */
    const char *(*describe)(const struct native *n, char *out, size_t size);
};

extern const struct native_finder native_endpoint_finder; /* one endpoint */
extern const struct native_finder native_list_finder;     /* several, and a quorum of nodes: native_seek.c */
extern const struct native_finder native_lease_finder;    /* a lease in etcd */

/* The node wants a coordinator, and has none; or one that it has lost. */
void native_seek(struct native *n);
/* The same after a pause. */
void native_seek_later(struct native *n);
/* It has one, which may have to wait for others: is there a better one by now? */
void native_seek_better(struct native *n);
/* A name has addresses, or others: what could not be asked before is asked now, before the others' answers decide
 * without it. */
void native_seek_resolved(struct native *n, size_t place);
/* A world was told. */
void native_seek_arrived(struct native *n);
/* Nothing is asked any more. */
void native_seek_end(struct native *n);
/* For the finders: `due` at this time, of native_now_ms(). */
void native_finder_wake(struct native *n, uint64_t ms);

/* ---- native_lease.c ---- */

/* With etcd's endpoints in place of the coordinator's. `server` is copied; what it points to must outlive the lease. */
int native_lease_start(struct native *n, const struct coordinator_server_options *server);
void native_lease_stop(struct native_lease *lease); /* NULL accepted */

/* ---- native.c ---- */

/* The coordinator is connected. */
void native_opened(struct native *n);
void native_heard(struct native *n, const struct coordinator_message *message);
/* The connection has ended, or could not be made; the status detail says why. MUSTER_ETIMEOUT: nothing was heard. */
void native_lost(struct native *n, int status);
/* It has something to ask of it, or to tell. */
bool native_wants_coordinator(const struct native *n);
/* Nobody is at any endpoint who could say how the other nodes end. */
void native_deserted(struct native *n);

#endif
