/* Clients by name; see kv_callers.h. */
#include "store/server/kv_callers.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"

struct kv_caller {
    struct hash_node node;
    struct kv_session *session; /* in which it speaks; NULL: it is gone, and in the list of those */
    struct kv_caller *previous_gone, *next_gone;
    uint64_t number;     /* of its first connection; the host knows it by that */
    uint64_t connection; /* on which it spoke last: a younger one has a larger number */
    int64_t served;      /* requests */
    int64_t added_turn;  /* of its last addition; 0: none yet */
    int64_t added_sum;
    uint64_t name; /* the key */
};

void kv_callers_init(struct kv_callers *callers, const uint64_t seed[2], struct kv_budget *budget) {
    *callers = (struct kv_callers){.gone_max = KV_CALLERS_GONE_MAX, .budget = budget};
    hash_init(&callers->all, seed, offsetof(struct kv_caller, name));
}

void kv_callers_done(struct kv_callers *callers) {
    kv_callers_forget_gone(callers, NULL, NULL);
    assert(callers->all.count == 0);
    hash_done(&callers->all);
}

static void forget(struct kv_callers *callers, struct kv_caller *caller) {
    hash_remove(&callers->all, &caller->node);
    kv_budget_give(callers->budget, sizeof *caller);
    free(caller);
}

static void put_gone(struct kv_callers *callers, struct kv_caller *caller) {
    caller->next_gone = NULL;
    caller->previous_gone = callers->last_gone;
    *(callers->last_gone ? &callers->last_gone->next_gone : &callers->first_gone) = caller;
    callers->last_gone = caller;
    callers->gone_count++;
}

static void take_gone(struct kv_callers *callers, struct kv_caller *caller) {
    *(caller->previous_gone ? &caller->previous_gone->next_gone : &callers->first_gone) = caller->next_gone;
    *(caller->next_gone ? &caller->next_gone->previous_gone : &callers->last_gone) = caller->previous_gone;
    callers->gone_count--;
}

static int create(struct kv_callers *callers, uint64_t name, struct kv_session *session) {
    int code = kv_budget_take(callers->budget, sizeof(struct kv_caller));
    if (code) {
        return code;
    }
    struct kv_caller *caller = malloc(sizeof *caller);
    if (!caller) {
        kv_budget_give(callers->budget, sizeof *caller);
        return status_fail(MUSTER_ENOMEM, "no memory to know a client again");
    }
    *caller = (struct kv_caller){.node.hash = hash_of(&callers->all, kv_slice_of(&name, sizeof name)),
                                 .node.key_len = sizeof name,
                                 .session = session,
                                 .number = session->id,
                                 .connection = session->id,
                                 .name = name};
    hash_insert(&callers->all, &caller->node);
    session->caller = caller;
    return 0;
}

static enum kv_introduction move(struct kv_callers *callers, struct kv_caller *caller, struct kv_session *session,
                                 struct kv_session **out_before) {
    struct kv_session *before = caller->session;
    if (session->id < caller->connection) {
        return KV_CALLER_LATE;
    }
    if (before) {
        before->caller = NULL;
        *out_before = before;
    } else {
        take_gone(callers, caller);
    }
    caller->session = session;
    caller->connection = session->id;
    session->caller = caller;
    session->id = caller->number;
    return before ? KV_CALLER_MOVED : KV_CALLER_BACK;
}

int kv_callers_introduce(struct kv_callers *callers, struct kv_session *session, uint64_t name, bool must_be_known,
                         enum kv_introduction *out, struct kv_session **out_before) {
    struct kv_slice key = kv_slice_of(&name, sizeof name);
    *out_before = NULL;
    if (session->caller) {
        return status_fail(MUSTER_EPROTOCOL, "the client has said before who it is");
    }
    struct kv_caller *caller = (struct kv_caller *)hash_find(&callers->all, key, hash_of(&callers->all, key));
    if (caller) {
        *out = move(callers, caller, session, out_before);
        caller->served = must_be_known || *out == KV_CALLER_LATE ? caller->served : 0; /* else it counts anew as well */
        return 0;
    }
    *out = must_be_known ? KV_CALLER_UNKNOWN : KV_CALLER_NEW;
    return must_be_known ? 0 : create(callers, name, session);
}

void kv_callers_leave(struct kv_callers *callers, struct kv_session *session, bool may_return) {
    struct kv_caller *caller = session->caller;
    if (!caller) {
        return;
    }
    session->caller = NULL;
    caller->session = NULL;
    if (!may_return) {
        forget(callers, caller);
        return;
    }
    put_gone(callers, caller);
    if (callers->gone_count > callers->gone_max) {
        struct kv_caller *oldest = callers->first_gone;
        take_gone(callers, oldest);
        forget(callers, oldest);
    }
}

void kv_callers_forget_gone(struct kv_callers *callers, kv_callers_keeps *keeps, const void *ctx) {
    struct kv_caller *caller = callers->first_gone;
    while (caller) {
        struct kv_caller *next = caller->next_gone;
        if (!keeps || !keeps(ctx, caller->number)) {
            take_gone(callers, caller);
            forget(callers, caller);
        }
        caller = next;
    }
}

void kv_callers_count(struct kv_session *session) {
    if (session->caller) {
        session->caller->served++;
    }
}

int64_t kv_callers_served(const struct kv_session *session) {
    return session->caller->served;
}

bool kv_callers_has_added(const struct kv_session *session, int64_t turn, int64_t *out_sum) {
    *out_sum = session->caller->added_sum;
    return session->caller->added_turn == turn;
}

void kv_callers_note_added(struct kv_session *session, int64_t turn, int64_t sum) {
    session->caller->added_turn = turn;
    session->caller->added_sum = sum;
}
