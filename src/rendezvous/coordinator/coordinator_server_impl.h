/* What the files of a coordinator's server share: coordinator_server.c has the connections, coordinator_agents.c their
 * lists, coordinator_silence.c judges those of which nothing is heard. */
#ifndef RENDEZVOUS_COORDINATOR_SERVER_IMPL_H
#define RENDEZVOUS_COORDINATOR_SERVER_IMPL_H

#include "net/loop_clock.h"
#include "net/tls_stream.h"
#include "rendezvous/coordinator/coordinator_server.h"
#include "rendezvous/coordinator/coordinator_status_clients.h"
#include "rendezvous/wire/coordinator_line.h"
#include "rendezvous/wire/coordinator_resend.h"

/* One connection. */
struct agent {
    struct agent *previous, *next;     /* in its list */
    struct kv_connection *connection;  /* NULL: the network has lost it, and another one may resume the session */
    struct coordinator_member *member; /* NULL: has not joined, or is gone while its connection ends */
    int64_t deadline_ms;               /* of a stranger: to JOIN; else to be heard again */
    int64_t heard_ms;                  /* then its agent certainly was here */
    int64_t granted_ms;                /* what it was told last was at this time: it works a lease longer, no more */
    int64_t lease_ms;                  /* the longest that it may count on: what it has confirmed, or was told since */
    int64_t told_lease_ms;             /* as it was told last */
    uint64_t session;                  /* as its JOIN names it */
    struct coordinator_resend resend;
    struct coordinator_knock *knock; /* its machine is asked whether its process is still there; NULL: it is not */
    bool is_broken;                  /* its agent has broken the protocol, or cannot be kept */
    struct coordinator_line line;
    struct coordinator_status_client status_client; /* it wants to know, and will not join */
    struct tls_stream *tls;                         /* NULL: it speaks without */
    struct buf plain;                               /* said through TLS, and not whole yet */
    bool is_stranger;
    bool is_silent; /* nothing was heard of it for a silence, and it keeps its place */
};

struct agents {
    struct agent *first, *last;
    size_t count;
};

struct coordinator_server {
    struct kv_guest guest;
    struct coordinator *coordinator;
    uv_loop_t *loop;
    uv_timer_t timer;
    int64_t timer_ms;        /* what it is set to; INT64_MAX: it rests */
    struct agents strangers; /* in the order of their deadlines */
    struct agents joined;    /* in the order of their deadlines; and those who are being ended */
    int64_t join_patience_ms, silence_ms, stop_ms, interval_ms;
    struct loop_clock *clock;
    int64_t away_ms; /* of it, as far as is known here */
    bool has_rivals; /* there are several endpoints */
    struct coordinator_gate gate;
    struct coordinator_history history;
    struct coordinator_status_clients status_clients;
    const struct tls_context *tls;
    char *run_id;     /* owned */
    struct buf frame; /* scratch */
    struct buf wire;  /* scratch: the same in TLS */
};

static inline int64_t coordinator_server_now_ms(const struct coordinator_server *server) {
    return (int64_t)uv_now(server->loop);
}

/* The clock of all deadlines of connections. With several endpoints the time that this process was away counts: another
 * coordinator counts on it. */
static inline int64_t coordinator_server_awake_ms(const struct coordinator_server *server) {
    return server->has_rivals ? coordinator_server_now_ms(server) : loop_clock_now_ms(server->clock, server->loop);
}

/* ---- coordinator_agents.c: lists, each in the order of deadlines ---- */

/* At the end: its deadline is the latest. */
void coordinator_agents_append(struct agents *list, struct agent *agent);
void coordinator_agents_insert(struct agents *list, struct agent *agent);
void coordinator_agents_take_out(struct agents *list, struct agent *agent);
/* Of no list, without a connection and a member. */
void coordinator_agents_free(struct coordinator_server *server, struct agent *agent);
/* The same of one that has joined. */
void coordinator_agents_forget(struct coordinator_server *server, struct agent *agent);

/* ---- coordinator_silence.c: members that have joined, and of which nothing is heard ---- */

/* Its time is up: it is given up, or keeps its place if it is needed (coordinator_needs()). */
void coordinator_silence_judge(struct coordinator_server *server, struct agent *agent);
/* Something was heard of it. */
void coordinator_silence_heard(struct coordinator_server *server, struct agent *agent);
/* It is told a lease, which counts from now on if it is longer; and has confirmed one, which counts alone if it is what
 * it was told last. */
void coordinator_silence_told(struct agent *agent, uint64_t lease_ms);
void coordinator_silence_acknowledged(struct agent *agent, uint64_t lease_ms);
/* When its workers have ended, should nothing more be heard of it. */
int64_t coordinator_silence_works_until_ms(const struct coordinator_server *server, const struct agent *agent);

/* ---- coordinator_knock.c: was a connection reset by the end of its process? ---- */

typedef void coordinator_knock_refused_fn(struct coordinator_server *server, struct agent *agent);
/* Asks its machine; `refused` follows if so. False: that cannot be asked. */
bool coordinator_knock_begin(struct coordinator_server *server, struct agent *agent,
                             coordinator_knock_refused_fn *refused);
/* Nobody wants to know any more. */
void coordinator_knock_stop(struct agent *agent);

#endif
