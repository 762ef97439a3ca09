/* An agent's connection to the coordinator: frames out, frames in, and the news that it has ended. On a libuv loop;
 * nothing blocks. With TLS all of it goes through TLS (net/tls_context.h). With a secret both sides prove first that
 * they know it, and every frame shows whom it comes from (coordinator_auth.h): the users of a session see nothing of
 * that. */
#ifndef RENDEZVOUS_NATIVE_SESSION_H
#define RENDEZVOUS_NATIVE_SESSION_H

#include <sys/socket.h>
#include <uv.h>

#include "net/tls_context.h"
#include "rendezvous/wire/coordinator_wire.h"
#include "rendezvous/wire/secret.h"

struct native_session;

/* Whose agent it is. */
struct native_session_key {
    const struct secret *secret;   /* borrowed until the session is closed; NULL: none */
    const char *run_id;            /* copied; may be NULL without a secret */
    const struct tls_context *tls; /* borrowed until native_session_open() returns; NULL: without TLS */
};

struct native_session_callbacks {
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
int native_session_open(uv_loop_t *loop, const struct sockaddr *address, const struct native_session_key *key,
                        const struct native_session_callbacks *callbacks, void *ctx, struct native_session **out);

/* Sent in order, as soon as the socket takes it. MUSTER_ENOMEM, MUSTER_ELIMIT (strings too long), MUSTER_ECLOSED. */
int native_session_send(struct native_session *session, const struct coordinator_message *message);

/* This side's address, by which the coordinator's node reaches it. MUSTER_ESYSTEM before on_open. */
int native_session_local_address(const struct native_session *session, struct sockaddr_storage *out);

/* Something accepts connections there: also what never says a word, and is no coordinator. */
bool native_session_is_connected(const struct native_session *session);

/* Ends it at once; what has not been sent is lost. Frees during later turns of the loop. NULL accepted. */
void native_session_close(struct native_session *session);
/* The same by a reset: a coordinator takes an end in good order for the end of the agent, who is not going to join
 * elsewhere then. */
void native_session_give_up(struct native_session *session);

#endif
