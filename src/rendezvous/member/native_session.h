/* An agent's session with the coordinator: messages out, messages in, each once and in order, over one connection after
 * another (native_connection.h). While the session may be resumed, a connection that the network has lost is replaced,
 * and so is one that native_session_redial() calls silent: the new one says RESUME, and both sides send again what the
 * other has not had (wire/coordinator_resend.h). The users of a session see nothing of that but on_resumed.
 *
 * On a libuv loop; nothing blocks. */
#ifndef RENDEZVOUS_NATIVE_SESSION_H
#define RENDEZVOUS_NATIVE_SESSION_H

#include "rendezvous/member/native_connection.h"

struct native_session;

struct native_session_callbacks {
    struct native_connection_callbacks of; /* of the session: on_lost is its end, for which the last connection's is the
                                            * reason, or MUSTER_ECLOSED: the coordinator does not know it any more */
    /* Another connection carries it on. NULL: nobody wants to know. */
    void (*on_resumed)(void *ctx);
};

/* By which the coordinator knows it again; what the JOIN says. */
struct native_session_name {
    uint64_t identity[2];
    uint64_t number;
    const char *run_id; /* copied */
};

/* As native_connection_open(), but `key`'s secret and TLS context are borrowed until the session is closed. */
int native_session_open(uv_loop_t *loop, const struct sockaddr *address, const struct native_connection_key *key,
                        const struct native_session_name *name, const struct native_session_callbacks *callbacks,
                        void *ctx, struct native_session **out);

/* From now on, and once a JOIN has been sent: is a lost connection replaced? At first it is not. */
void native_session_set_resumes(struct native_session *session, bool resumes);
/* Nothing is heard on the connection: tries others beside it, until one resumes the session, or it speaks again. */
void native_session_redial(struct native_session *session);

/* Sent in order. Between connections a message waits, but for an ALIVE: MUSTER_ECLOSED. Else as
 * native_connection_send(). */
int native_session_send(struct native_session *session, const struct coordinator_message *message);

/* As of native_connection.h, of the connection that carries the session now. */
int native_session_local_address(const struct native_session *session, struct sockaddr_storage *out);
bool native_session_is_connected(const struct native_session *session);
void native_session_close(struct native_session *session);
void native_session_give_up(struct native_session *session);

#endif
