/* What the files of a coordinator's server share: coordinator_server.c has the connections, coordinator_agents.c their
 * lists, coordinator_silence.c judges those of which nothing is heard. */
#ifndef RENDEZVOUS_COORDINATOR_SERVER_IMPL_H
#define RENDEZVOUS_COORDINATOR_SERVER_IMPL_H

#include "net/loop_clock.h"
#include "net/tls_stream.h"
#include "rendezvous/coordinator/coordinator_server.h"
#include "rendezvous/coordinator/coordinator_status_clients.h"
#include "rendezvous/wire/coordinator_line.h"

/* One connection. */
struct agent {
    struct agent *previous, *next; /* in its list */
    struct kv_connection *connection;
    struct coordinator_member *member; /* NULL: has not joined, or is gone while its connection ends */
    int64_t deadline_ms;               /* of a stranger: to JOIN; else to be heard again */
    int64_t granted_ms;                /* what it was told last was at this time: it works a silence longer, no more */
    struct coordinator_line line;
    struct coordinator_status_client status_client; /* it wants to know, and will not join */
    struct tls_stream *tls;                         /* NULL: it speaks without */
    struct buf plain;                               /* said through TLS, and not whole yet */
    bool is_stranger;
    bool is_silent;  /* nothing was heard of it in its time, and it keeps its place: it is needed */
    int64_t kept_ms; /* then: since when */
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
    size_t silent_count;     /* of these, with is_silent */
    int64_t join_patience_ms, silence_ms, needed_ms, interval_ms;
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

/* ---- coordinator_silence.c: members that have joined, and of which nothing is heard ---- */

/* Its time is up: it is given up, or keeps its place if it is needed (coordinator_needs()). */
void coordinator_silence_judge(struct coordinator_server *server, struct agent *agent);
/* Something was heard of it. */
void coordinator_silence_heard(struct coordinator_server *server, struct agent *agent);
/* A node is about to join: is it one that is silent here, and comes back over another connection? That one is given up.
 */
void coordinator_silence_returned(struct coordinator_server *server, const struct coordinator_node *node);
/* A node has joined: it may take the place of one that is silent. */
void coordinator_silence_joined(struct coordinator_server *server);
/* Its connection has ended. */
void coordinator_silence_ended(struct coordinator_server *server, struct agent *agent);

#endif
