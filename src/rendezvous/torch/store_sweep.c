/* Emptying a workers' store of PyTorch's; see store_sweep.h. Resolve, connect, LIST_KEYS, DELETE_KEY each. */
#include "rendezvous/torch/store_sweep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "rendezvous/round/resolver.h"
#include "store/client/kv_client.h"
#include "store/wire/codec.h"

/* PyTorch's server can be silent for five seconds while it looks up a client's name; a port that refuses after
 * REFUSED_MS has nobody behind it. A list is deleted in pieces that fit the client's queue, and listed again. */
enum { ANSWER_MS = 10000, REFUSED_MS = 100, PIECE_KEYS_MAX = 4096, PIECES_MAX = 4096 };

struct store_sweep {
    uv_timer_t timer;
    char host[NET_HOST_MAX];
    uint16_t port;
    struct resolver *resolver;
    struct net_addresses addresses;
    size_t next; /* of them to be tried */
    struct kv_client *client;
    bool connected;
    size_t unanswered; /* DELETE_KEYs */
    size_t deleted;
    unsigned pieces;
    store_sweep_cb *cb;
    void *ctx;
};

static void list_keys(struct store_sweep *s);

static void finish(struct store_sweep *s, int status, bool is_muster) {
    (void)uv_timer_stop(&s->timer);
    s->cb(s->ctx, status, is_muster);
}

/* ---- emptying ---- */

/* The store is there, but is one of an older PyTorch, or has no time for this. */
static void leave_as_it_is(struct store_sweep *s) {
    log_info("the workers' store at %s:%u cannot be emptied, the workers of this attempt will see older keys: %s",
             s->host, (unsigned)s->port, muster_detail());
    finish(s, MUSTER_OK, false);
}

static void on_deleted(void *ctx, const struct kv_reply *reply) {
    struct store_sweep *s = ctx;
    if (reply->status != MUSTER_OK) {
        return; /* on_state() follows */
    }
    s->deleted += (size_t)reply->number;
    if (--s->unanswered == 0) {
        list_keys(s);
    }
}

/* User keys begin with a slash, which the client adds again; "init/", which does not, is PyTorch's count of clients and
 * harmless. A key with a zero byte is nobody's. */
static int delete_key(struct store_sweep *s, struct kv_slice key) {
    char text[CODEC_KEY_BYTES_MAX + 1];
    if (key.len < 2 || key.len > CODEC_KEY_BYTES_MAX || key.data[0] != '/' || memchr(key.data, '\0', key.len)) {
        return MUSTER_OK;
    }
    memcpy(text, key.data + 1, key.len - 1);
    text[key.len - 1] = '\0';
    int rc = kv_client_delete(s->client, text, on_deleted, s);
    s->unanswered += rc == MUSTER_OK;
    return rc;
}

static void on_keys(void *ctx, const struct kv_reply *reply) {
    struct store_sweep *s = ctx;
    int rc = reply->status;
    if (rc == MUSTER_ECONNECT) {
        return; /* on_state() follows */
    }
    for (size_t i = 0; i < reply->value_count && s->unanswered < PIECE_KEYS_MAX && rc == MUSTER_OK; i++) {
        rc = delete_key(s, reply->values[i]);
    }
    if (rc != MUSTER_OK) {
        leave_as_it_is(s);
    } else if (s->unanswered == 0) {
        log_info("emptied the workers' store at %s:%u of %zu keys of earlier attempts", s->host, (unsigned)s->port,
                 s->deleted);
        finish(s, MUSTER_OK, false);
    }
}

static void list_keys(struct store_sweep *s) {
    int rc = s->pieces++ < PIECES_MAX
                 ? kv_client_list_keys(s->client, on_keys, s)
                 : status_fail(MUSTER_ELIMIT, "somebody goes on writing into it, or it has too many keys");
    if (rc != MUSTER_OK) {
        leave_as_it_is(s);
    }
}

/* ---- connecting ---- */

static void try_next(struct store_sweep *s);

static void on_state(void *ctx, int status) {
    struct store_sweep *s = ctx;
    if (status != MUSTER_OK && s->connected) {
        leave_as_it_is(s);
    } else if (status != MUSTER_OK) {
        try_next(s);
    } else if (kv_client_server_is_muster(s->client)) {
        finish(s, MUSTER_OK, true);
    } else {
        s->connected = true;
        list_keys(s);
    }
}

/* The client would go on trying: a store may be about to start. This one runs, or it has gone. */
static void on_refused(uv_timer_t *timer) {
    struct store_sweep *s = timer->data;
    int error_number = 0;
    if (kv_client_stage(s->client, &error_number) == KV_CLIENT_CONNECTING && error_number == ECONNREFUSED) {
        (void)status_fail(MUSTER_ECONNECT, "connect to %s:%u: %s", s->host, (unsigned)s->port, strerror(error_number));
        try_next(s);
    }
}

/* With muster_detail() as the reason why the address before was none. */
static void try_next(struct store_sweep *s) {
    kv_client_close(s->client);
    s->client = NULL;
    if (s->next == s->addresses.count) {
        finish(s, MUSTER_ECONNECT, false);
        return;
    }
    const struct sockaddr *address = (const struct sockaddr *)&s->addresses.list[s->next++].sockaddr;
    int rc = kv_client_create(s->timer.loop, address, ANSWER_MS, on_state, s, &s->client);
    if (rc != MUSTER_OK) {
        finish(s, rc, false);
        return;
    }
    (void)uv_timer_start(&s->timer, on_refused, REFUSED_MS, 0);
}

static void on_resolved(void *ctx, int status, const struct net_addresses *addresses) {
    struct store_sweep *s = ctx;
    if (status == MUSTER_OK) {
        s->addresses = *addresses;
    }
    resolver_close(s->resolver);
    s->resolver = NULL;
    if (status == MUSTER_OK) {
        try_next(s);
    } else {
        finish(s, status, false);
    }
}

static void on_begin(uv_timer_t *timer) {
    try_next(timer->data);
}

/* ---- lifetime ---- */

static void on_timer_closed(uv_handle_t *handle) {
    free(handle->data);
}

int store_sweep_start(uv_loop_t *loop, const char *host, uint16_t port, store_sweep_cb *cb, void *ctx,
                      struct store_sweep **out) {
    struct store_sweep *s = calloc(1, sizeof *s);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory to look at the workers' store");
    }
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    s->port = port;
    s->cb = cb;
    s->ctx = ctx;
    int rc = MUSTER_OK;
    if (!str_copy(s->host, sizeof s->host, host)) {
        rc = status_fail(MUSTER_EINVAL, "the host of the workers' store has a name that is too long");
    } else if (net_resolve_numeric(s->host, port, &s->addresses) == MUSTER_OK) {
        (void)uv_timer_start(&s->timer, on_begin, 0, 0);
    } else {
        rc = resolver_start(loop, s->host, port, on_resolved, s, &s->resolver);
    }
    if (rc != MUSTER_OK) {
        store_sweep_close(s);
        return rc;
    }
    *out = s;
    return MUSTER_OK;
}

void store_sweep_close(struct store_sweep *s) {
    if (s) {
        resolver_close(s->resolver);
        kv_client_close(s->client);
        uv_close((uv_handle_t *)&s->timer, on_timer_closed);
    }
}
