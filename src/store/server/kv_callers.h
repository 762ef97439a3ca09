/* Clients that have said who they are, so that one that comes back on another connection is known again: it keeps its
 * number, hears how far it was served, and an addition that it repeats since the answer was lost is not made twice.
 *
 * Pure. A client that has not said who it is, as PyTorch's do, is none of these. Who may come back is remembered for as
 * long as there is room; who is not known any more is told so, and ends as if the store had. */
#ifndef STORE_KV_CALLERS_H
#define STORE_KV_CALLERS_H

#include <stdbool.h>
#include <stdint.h>

#include "store/server/kv_waiters.h"

/* Clients without a connection that may come back; the one that has been away longest is forgotten first. */
#define KV_CALLERS_GONE_MAX ((size_t)65536)

struct kv_caller;

struct kv_callers {
    struct hash all;
    struct kv_caller *first_gone, *last_gone;
    size_t gone_count, gone_max;
    struct kv_budget *budget; /* borrowed */
};

void kv_callers_init(struct kv_callers *callers, const uint64_t seed[2], struct kv_budget *budget);
/* Every session must have left. */
void kv_callers_done(struct kv_callers *callers);

enum kv_introduction {
    KV_CALLER_NEW,
    KV_CALLER_BACK,    /* its connection had ended */
    KV_CALLER_MOVED,   /* it has not, or nobody has noticed */
    KV_CALLER_LATE,    /* it speaks on a younger connection already */
    KV_CALLER_UNKNOWN, /* it should be known, and is not */
};

/* The client of this name speaks in `session` from now on, which has the client's number then. must_be_known: else it
 * is a new one. *out_before: the session that it had, which is nobody's now; NULL: none. MUSTER_ENOMEM, MUSTER_ELIMIT;
 * MUSTER_EPROTOCOL: the session has a name already. */
int kv_callers_introduce(struct kv_callers *callers, struct kv_session *session, uint64_t name, bool must_be_known,
                         enum kv_introduction *out, struct kv_session **out_before);

/* The session has ended. may_return: its client may come back. No-op for one without a name. */
void kv_callers_leave(struct kv_callers *callers, struct kv_session *session, bool may_return);

/* Of those who may come back only these can, by their numbers; keeps NULL: none. */
typedef bool kv_callers_keeps(const void *ctx, uint64_t number);
void kv_callers_forget_gone(struct kv_callers *callers, kv_callers_keeps *keeps, const void *ctx);

/* A request of the client in this session has been served; how many have been, on all connections since CLIENT. */
void kv_callers_count(struct kv_session *session);
int64_t kv_callers_served(const struct kv_session *session);

/* The addition that a client made last: true, with its result, if it is this one. The session must have a name. */
bool kv_callers_has_added(const struct kv_session *session, int64_t turn, int64_t *out_sum);
void kv_callers_note_added(struct kv_session *session, int64_t turn, int64_t sum);

#endif
