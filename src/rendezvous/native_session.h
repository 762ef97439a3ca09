/* An agent's connection to the coordinator: frames out, frames in, and the news that it has ended. On a libuv loop;
 * nothing blocks. */
#ifndef RENDEZVOUS_NATIVE_SESSION_H
#define RENDEZVOUS_NATIVE_SESSION_H

#include <sys/socket.h>
#include <uv.h>

#include "rendezvous/coordinator_wire.h"

struct native_session;

struct native_session_callbacks {
    void (*on_open)(void *ctx);
    /* Borrowed until return. */
    void (*on_message)(void *ctx, const struct coordinator_message *message);
    /* The connection could not be made, or has ended; muster_detail() says why. Once, and nothing afterwards. */
    void (*on_lost)(void *ctx, int status);
};

/* Connects. Callbacks come from the loop; any of them may close the session. MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int native_session_open(uv_loop_t *loop, const struct sockaddr *address,
                        const struct native_session_callbacks *callbacks, void *ctx, struct native_session **out);

/* Sent in order, as soon as the socket takes it. MUSTER_ENOMEM, MUSTER_ELIMIT (strings too long), MUSTER_ECLOSED. */
int native_session_send(struct native_session *session, const struct coordinator_message *message);

/* This side's address, by which the coordinator's node reaches it. MUSTER_ESYSTEM before on_open. */
int native_session_local_address(const struct native_session *session, struct sockaddr_storage *out);

/* Ends it at once; what has not been sent is lost. Frees during later turns of the loop. NULL accepted. */
void native_session_close(struct native_session *session);

#endif
