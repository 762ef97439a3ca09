/* What the store does with a request: table, waiters and replies together, without sockets.
 *
 * Pure: a request comes in decoded, the reply is appended to an output, and messages for other sessions (whose waits
 * the request has ended) go out through a function. The same code runs under the fuzzer. */
#ifndef STORE_KV_MACHINE_H
#define STORE_KV_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/server/kv_callers.h"
#include "store/server/kv_output.h"
#include "store/server/kv_table.h"
#include "store/server/kv_waiters.h"
#include "store/wire/codec.h"

/* Called after a write has changed the value of a key. `connection` is the server's number for the writing
 * connection (of one client within a server: who comes back on another connection keeps it), 0 for kv_server_set().
 * Slices are borrowed until return; an absent value has data == NULL. The callback may call kv_server_set() and
 * kv_server_get(), nothing else. */
typedef void kv_server_change_cb(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                                 struct kv_slice new_value);

/* Called when the client of a connection whose end the host has been told of is back on another one, with the old
 * number, and has not been served yet. What may be called is the same. */
typedef void kv_server_return_cb(void *ctx, uint64_t connection);

/* Hands one message to a session that is not the one being served, or is: `head`, which is borrowed until return, and
 * the value of `entry` behind it, unless that is NULL. Must not call back into the machine. */
typedef void kv_machine_deliver_cb(void *ctx, struct kv_session *session, struct kv_slice head, struct kv_entry *entry);

/* The session is nobody's any more, since its client speaks in another one: what may still come in it has no effect,
 * and its end is no event. It may be the one being served. Must not call back into the machine. */
typedef void kv_machine_replaced_cb(void *ctx, struct kv_session *session);

struct kv_machine {
    struct kv_budget budget;
    struct kv_table table;
    struct kv_waiters waiters;
    struct kv_callers callers;
    kv_machine_deliver_cb *deliver;
    kv_machine_replaced_cb *replaced;
    void *deliver_ctx;
    kv_server_change_cb *on_change; /* may be NULL */
    kv_server_return_cb *on_return; /* may be NULL */
    void *change_ctx;
    bool plain;     /* does not say that it understands what PyTorch's server does not */
    unsigned depth; /* on_change may write in its turn */
};

/* Must not be moved afterwards. `deliver`, `replaced`, `on_change`, `on_return` (with contexts) and `plain` are set by
 * the caller. */
void kv_machine_init(struct kv_machine *machine, const uint64_t seed[4], size_t bytes_max);
/* All sessions must have ended. */
void kv_machine_done(struct kv_machine *machine);

/* Serves one request, except VALIDATE, which belongs to the connection. The reply, if the command has one now, is
 * appended to `reply`. A negative code means that the session must be dropped: the protocol knows no error reply. */
int kv_machine_step(struct kv_machine *machine, struct kv_session *session, const struct codec_request *request,
                    struct kv_output *reply);

/* SET by the host of the store. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int kv_machine_set(struct kv_machine *machine, struct kv_slice key, struct kv_slice value);

/* The session is gone. may_return: its client, if it has said who it is, may come back. */
void kv_machine_end(struct kv_machine *machine, struct kv_session *session, bool may_return);

/* Forgets all keys and queues, without events, and clients that might come back. */
void kv_machine_clear(struct kv_machine *machine);
void kv_machine_clear_but(struct kv_machine *machine, kv_table_keeps *keeps, kv_callers_keeps *keeps_caller,
                          const void *ctx);

#endif
