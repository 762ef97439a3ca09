/* An agent's connection to the coordinator: frames out, frames in, and the news that it has ended. On a libuv loop;
 * nothing blocks. With TLS all of it goes through TLS (net/tls_context.h). With a secret both sides prove first that
 * they know it, and every frame shows whom it comes from (coordinator_auth.h): its users see nothing of that. A
 * session may outlive it (native_session.h). */
#ifndef RENDEZVOUS_NATIVE_CONNECTION_H
#define RENDEZVOUS_NATIVE_CONNECTION_H

#include <sys/socket.h>
#include <uv.h>

#include "net/tls_context.h"
#include "rendezvous/wire/coordinator_wire.h"
#include "rendezvous/wire/secret.h"

struct native_connection;

/* Whose agent it is. */
struct native_connection_key {
    const struct secret *secret;   /* borrowed until the session is closed; NULL: none */
    const char *run_id;            /* copied; may be NULL without a secret */
    const struct tls_context *tls; /* borrowed until native_connection_open() returns; NULL: without TLS */
};

struct native_connection_callbacks {
    /* It is connected, and the other side is the job's coordinator, if there is a secret, and has
     * shown a certificate, with TLS. (It may still refuse this side's: on_lost.) */
    void (*on_open)(void *ctx);
    /* Borrowed until return. */
    void (*on_message)(void *ctx, const struct coordinator_message *message);
    /* The connection could not be made, or has ended; muster_detail() says why, and names the other side. Once, and
     * nothing afterwards. MUSTER_ENOENT: the other machine says that nobody listens there. MUSTER_ECLOSED: the other
     * side has ended the connection in good order, as its kernel does for a process that dies. MUSTER_EPROTOCOL: trying
     * again will not help, as when the secrets differ, or a certificate is not accepted. */
    void (*on_lost)(void *ctx, int status);
};

/* Connects. Callbacks come from the loop; any of them may close the session. `key`: NULL for none. MUSTER_ENOMEM, or
 * TLS cannot be begun. What connect() tells at once is no error here: on_lost follows, as for what it tells later. */
int native_connection_open(uv_loop_t *loop, const struct sockaddr *address, const struct native_connection_key *key,
                           const struct native_connection_callbacks *callbacks, void *ctx,
                           struct native_connection **out);

/* Sent in order, as soon as the socket takes it. MUSTER_ENOMEM, MUSTER_ELIMIT (strings too long), MUSTER_ECLOSED. */
int native_connection_send(struct native_connection *connection, const struct coordinator_message *message);
/* The same of a whole frame, as coordinator_wire_put() writes it. */
int native_connection_send_frame(struct native_connection *connection, const uint8_t *frame, size_t len);

/* This side's address, by which the coordinator's node reaches it. MUSTER_ESYSTEM before on_open. */
int native_connection_local_address(const struct native_connection *connection, struct sockaddr_storage *out);

/* Something accepts connections there: also what never says a word, and is no coordinator. */
bool native_connection_is_connected(const struct native_connection *connection);

/* Ends it at once; what has not been sent is lost. Frees during later turns of the loop. NULL accepted. */
void native_connection_close(struct native_connection *connection);
/* The same by a reset: a coordinator takes an end in good order for the end of the agent, who is not going to join
 * elsewhere then. */
void native_connection_give_up(struct native_connection *connection);

#endif
