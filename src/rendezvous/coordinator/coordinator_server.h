/* The coordinator on a store's port: agents' connections in, coordinator.h's answers out.
 *
 * It is a guest of the store's server (store/server/kv_guest.h), in the agent that hosts the store. Everything happens
 * on the loop's thread; nothing blocks. An agent that breaks the protocol is told why (REFUSED) and dropped with a
 * warning, of which the store logs a bounded number. Who has begun to speak the protocol and does not JOIN in time is
 * dropped, too. With a secret, only who proves to know it is heard at all (coordinator_auth.h); with TLS, only over TLS
 * and with a certificate (net/tls_context.h). */
#ifndef RENDEZVOUS_COORDINATOR_SERVER_H
#define RENDEZVOUS_COORDINATOR_SERVER_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "net/tls_context.h"
#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/wire/secret.h"
#include "store/server/kv_guest.h"

#define COORDINATOR_JOIN_PATIENCE_MS INT64_C(10000)

struct coordinator_server;
struct loop_clock; /* net/loop_clock.h */

struct coordinator_server_options {
    struct coordinator_settings coordinator; /* run_id is copied; hash_seed is chosen here */
    const struct secret *secret;   /* of the job, borrowed until coordinator_server_close(); NULL: anybody may join */
    const struct tls_context *tls; /* likewise; NULL: without TLS */
    struct loop_clock *clock;      /* borrowed, by which members are judged; NULL: uv_now() */
    int64_t interval_ms;           /* of their signs of life */
    int64_t join_patience_ms;      /* from an agent's first byte to its JOIN; 0: the default */
};

/* MUSTER_ENOMEM, MUSTER_ESYSTEM (no random numbers). */
int coordinator_server_create(uv_loop_t *loop, const struct coordinator_server_options *options,
                              struct coordinator_server **out);

/* For kv_server_options: one store, created after the coordinator's server and closed before it. */
const struct kv_guest *coordinator_server_guest(const struct coordinator_server *server);

/* Of several endpoints: which one this is; before anybody can connect. */
void coordinator_server_set_place(struct coordinator_server *server, uint32_t place);
/* See coordinator_note_others(). */
void coordinator_server_note_others(struct coordinator_server *server, bool none_serves);
/* See coordinator_note_round(). */
void coordinator_server_note_round(struct coordinator_server *server, uint64_t round);

/* See coordinator_lead(), coordinator_fenced() and coordinator_awaits_fence(). */
void coordinator_server_lead(struct coordinator_server *server, const struct coordinator_record *record);
void coordinator_server_fenced(struct coordinator_server *server, uint64_t round);
bool coordinator_server_awaits_fence(const struct coordinator_server *server);

void coordinator_server_look(const struct coordinator_server *server, struct coordinator_view *out);

/* Frees it, once libuv has closed its timer (during a later turn of the loop). Tells nobody: the agents' connections
 * have ended with the store's server. NULL is accepted. */
void coordinator_server_close(struct coordinator_server *server);

#endif
