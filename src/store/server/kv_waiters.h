/* Who waits for which key.
 *
 * Pure. One wait or one watch a session at a time, as the protocol has it. A wait for several keys is a countdown: an
 * event on a key takes one off, and a key that is deleted again does not add it back. A key named twice in one wait
 * counts once. */
#ifndef STORE_KV_WAITERS_H
#define STORE_KV_WAITERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/server/budget.h"
#include "store/wire/hash.h"

struct kv_registration;
struct kv_caller; /* kv_callers.h */

enum kv_pending { KV_PENDING_NONE, KV_PENDING_WAIT, KV_PENDING_WATCH };

/* A client as the store sees it; embedded in the connection. Zero-initialised but for the id, which is the number of
 * the connection; one that comes back has that of the client's first one. */
struct kv_session {
    uint64_t id;
    struct kv_caller *caller;              /* borrowed; NULL: it has not said who it is */
    struct kv_registration *registrations; /* owned; one for each key waited for */
    uint32_t registration_count;
    uint32_t registration_capacity;
    uint32_t remaining;
    enum kv_pending pending;
};

struct kv_waiters {
    struct hash keys;
    struct kv_budget *budget; /* borrowed */
};

/* `session` has what it waited for; it is not registered any more. */
typedef void kv_waiters_ready_cb(void *ctx, struct kv_session *session);

void kv_waiters_init(struct kv_waiters *waiters, const uint64_t seed[2], struct kv_budget *budget);
/* Every session must have been canceled. */
void kv_waiters_done(struct kv_waiters *waiters);

/* Makes room for a wait for at most `key_count` keys, ending what the session waited for before; then
 * kv_waiters_add() once for each absent key; then kv_session_waits() tells whether there is anything to wait for.
 * On failure (MUSTER_ENOMEM, MUSTER_ELIMIT) nothing is registered. */
int kv_waiters_begin(struct kv_waiters *waiters, struct kv_session *session, enum kv_pending pending, size_t key_count);
int kv_waiters_add(struct kv_waiters *waiters, struct kv_session *session, struct kv_slice key);
bool kv_session_waits(const struct kv_session *session);

/* Ends whatever the session waits for. */
void kv_waiters_cancel(struct kv_waiters *waiters, struct kv_session *session);

/* Counts one event on `key` for everyone waiting for it (watching: kv_waiters_wake_watchers), or for the one who
 * registered first. */
void kv_waiters_wake_all(struct kv_waiters *waiters, struct kv_slice key, kv_waiters_ready_cb *ready, void *ctx);
void kv_waiters_wake_one(struct kv_waiters *waiters, struct kv_slice key, kv_waiters_ready_cb *ready, void *ctx);
void kv_waiters_wake_watchers(struct kv_waiters *waiters, struct kv_slice key, kv_waiters_ready_cb *ready, void *ctx);

#endif
