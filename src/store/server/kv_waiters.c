/* Waits and watches by key; see kv_waiters.h. */
#include "store/server/kv_waiters.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* A session's entry in the list of one key. key == NULL once the event has come. */
struct kv_registration {
    struct kv_registration *next, *previous;
    struct kv_session *session;
    struct waited_key *key;
};

struct waited_key {
    struct hash_node node;
    struct kv_registration *first[KV_PENDING_WATCH + 1], *last[KV_PENDING_WATCH + 1]; /* by enum kv_pending */
    uint8_t bytes[];
};

void kv_waiters_init(struct kv_waiters *waiters, const uint64_t seed[2], struct kv_budget *budget) {
    *waiters = (struct kv_waiters){.budget = budget};
    hash_init(&waiters->keys, seed, offsetof(struct waited_key, bytes));
}

void kv_waiters_done(struct kv_waiters *waiters) {
    assert(waiters->keys.count == 0);
    hash_done(&waiters->keys);
}

bool kv_session_waits(const struct kv_session *session) {
    return session->remaining > 0;
}

static size_t key_size(size_t key_len) {
    return sizeof(struct waited_key) + key_len;
}

static struct waited_key *find(const struct kv_waiters *waiters, struct kv_slice key) {
    if (waiters->keys.count == 0) { /* the usual case on a busy store */
        return NULL;
    }
    return (struct waited_key *)hash_find(&waiters->keys, key, hash_of(&waiters->keys, key));
}

static int create(struct kv_waiters *waiters, struct kv_slice key, struct waited_key **out) {
    int code = kv_budget_take(waiters->budget, key_size(key.len));
    if (code) {
        return code;
    }
    struct waited_key *waited = malloc(key_size(key.len));
    if (!waited) {
        kv_budget_give(waiters->budget, key_size(key.len));
        return status_fail(MUSTER_ENOMEM, "no memory for a wait");
    }
    *waited = (struct waited_key){.node = {.hash = hash_of(&waiters->keys, key), .key_len = (uint32_t)key.len}};
    if (key.len > 0) {
        memcpy(waited->bytes, key.data, key.len);
    }
    hash_insert(&waiters->keys, &waited->node);
    *out = waited;
    return 0;
}

/* Takes the registration out of its key's list, and the key out of the table with its last one. */
static void unlink_registration(struct kv_waiters *waiters, struct kv_registration *registration) {
    struct waited_key *key = registration->key;
    enum kv_pending kind = registration->session->pending;
    *(registration->previous ? &registration->previous->next : &key->first[kind]) = registration->next;
    *(registration->next ? &registration->next->previous : &key->last[kind]) = registration->previous;
    registration->key = NULL;
    if (!key->first[KV_PENDING_WAIT] && !key->first[KV_PENDING_WATCH]) {
        hash_remove(&waiters->keys, &key->node);
        kv_budget_give(waiters->budget, key_size(key->node.key_len));
        free(key);
    }
}

void kv_waiters_cancel(struct kv_waiters *waiters, struct kv_session *session) {
    for (uint32_t i = 0; i < session->registration_count; i++) {
        if (session->registrations[i].key) {
            unlink_registration(waiters, &session->registrations[i]);
        }
    }
    if (session->registrations) {
        kv_budget_give(waiters->budget, session->registration_capacity * sizeof *session->registrations);
        free(session->registrations);
    }
    session->registrations = NULL;
    session->registration_count = 0;
    session->registration_capacity = 0;
    session->remaining = 0;
    session->pending = KV_PENDING_NONE;
}

int kv_waiters_begin(struct kv_waiters *waiters, struct kv_session *session, enum kv_pending pending,
                     size_t key_count) {
    assert(key_count > 0 && key_count <= UINT32_MAX && pending != KV_PENDING_NONE);
    kv_waiters_cancel(waiters, session);
    size_t bytes = key_count * sizeof *session->registrations;
    int code = kv_budget_take(waiters->budget, bytes);
    if (code) {
        return code;
    }
    session->registrations = malloc(bytes);
    if (!session->registrations) {
        kv_budget_give(waiters->budget, bytes);
        return status_fail(MUSTER_ENOMEM, "no memory to wait for %zu keys", key_count);
    }
    session->registration_capacity = (uint32_t)key_count;
    session->pending = pending;
    return 0;
}

int kv_waiters_add(struct kv_waiters *waiters, struct kv_session *session, struct kv_slice key) {
    assert(session->registration_count < session->registration_capacity);
    struct waited_key *waited = find(waiters, key);
    int code = waited ? 0 : create(waiters, key, &waited);
    if (code) {
        kv_waiters_cancel(waiters, session);
        return code;
    }
    enum kv_pending kind = session->pending;
    if (waited->last[kind] && waited->last[kind]->session == session) {
        return 0; /* named twice: nobody else can have registered in between */
    }
    struct kv_registration *registration = &session->registrations[session->registration_count++];
    *registration = (struct kv_registration){.previous = waited->last[kind], .session = session, .key = waited};
    *(waited->last[kind] ? &waited->last[kind]->next : &waited->first[kind]) = registration;
    waited->last[kind] = registration;
    session->remaining++;
    return 0;
}

/* One event for one registration. */
static void count_down(struct kv_waiters *waiters, struct kv_registration *registration, kv_waiters_ready_cb *ready,
                       void *ctx) {
    struct kv_session *session = registration->session;
    assert(registration->key && session->remaining > 0); /* else the client would wait for ever */
    unlink_registration(waiters, registration);
    session->remaining--;
    if (session->remaining == 0) {
        kv_waiters_cancel(waiters, session); /* frees the registrations */
        ready(ctx, session);
    }
}

static void wake_list(struct kv_waiters *waiters, struct kv_slice key, enum kv_pending kind, kv_waiters_ready_cb *ready,
                      void *ctx) {
    struct waited_key *waited = find(waiters, key);
    struct kv_registration *next = waited ? waited->first[kind] : NULL;
    while (next) {
        struct kv_registration *registration = next;
        next = registration->next; /* of another session, so not freed by this count_down() */
        count_down(waiters, registration, ready, ctx);
    }
}

void kv_waiters_wake_all(struct kv_waiters *waiters, struct kv_slice key, kv_waiters_ready_cb *ready, void *ctx) {
    wake_list(waiters, key, KV_PENDING_WAIT, ready, ctx);
}

void kv_waiters_wake_watchers(struct kv_waiters *waiters, struct kv_slice key, kv_waiters_ready_cb *ready, void *ctx) {
    wake_list(waiters, key, KV_PENDING_WATCH, ready, ctx);
}

void kv_waiters_wake_one(struct kv_waiters *waiters, struct kv_slice key, kv_waiters_ready_cb *ready, void *ctx) {
    struct waited_key *waited = find(waiters, key);
    if (waited && waited->first[KV_PENDING_WAIT]) {
        count_down(waiters, waited->first[KV_PENDING_WAIT], ready, ctx);
    }
}
