/* Getting a node's workers admitted to a store; see worker_pass.h. */
#include "rendezvous/worker_pass.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "rendezvous/resolver.h"

enum {
    RETRY_MS = 100,
    ATTEMPT_MS = 10000, /* in silence: then the next address has its turn */
};

struct worker_pass {
    uv_timer_t timer; /* the next attempt, or the end of this one */
    uv_loop_t *loop;
    struct native_session_key key;
    char host[NET_HOST_MAX];
    uint16_t port;
    uint64_t deadline_ms;
    worker_pass_cb *cb;
    void *ctx;
    struct resolver *resolver;
    struct net_addresses addresses;
    size_t attempt_count;
    struct native_session *session;
};

static void finish(struct worker_pass *pass, int status) {
    (void)uv_timer_stop(&pass->timer);
    pass->cb(pass->ctx, status);
}

static void attempt(uv_timer_t *timer);

static void on_open(void *ctx) {
    struct worker_pass *pass = ctx;
    (void)native_session_send(pass->session, &(struct coordinator_message){.kind = COORDINATOR_ALIVE});
}

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct worker_pass *pass = ctx;
    if (message->kind == COORDINATOR_HEARD) {
        finish(pass, MUSTER_OK);
    } /* else it ends the connection now */
}

static void on_lost(void *ctx, int status) {
    struct worker_pass *pass = ctx;
    (void)uv_timer_stop(&pass->timer);
    native_session_close(pass->session);
    pass->session = NULL;
    if (status == MUSTER_EPROTOCOL || uv_now(pass->loop) >= pass->deadline_ms) {
        finish(pass, status_prefix(status, "no entry to the workers' store at %s:%u", pass->host, pass->port));
    } else {
        (void)uv_timer_start(&pass->timer, attempt, RETRY_MS, 0);
    }
}

/* Packets to it vanish, it is another program's, or its agent stands still. */
static void on_silence(uv_timer_t *timer) {
    on_lost(timer->data, status_fail(MUSTER_ETIMEOUT, "nobody answers there"));
}

/* The addresses of the host in turn. */
static void attempt(uv_timer_t *timer) {
    static const struct native_session_callbacks callbacks = {
        .on_open = on_open, .on_message = on_message, .on_lost = on_lost};
    struct worker_pass *pass = timer->data;
    struct net_address *at = &pass->addresses.list[pass->attempt_count++ % pass->addresses.count];
    int rc = native_session_open(pass->loop, (const struct sockaddr *)&at->sockaddr, &pass->key, &callbacks, pass,
                                 &pass->session);
    if (rc != MUSTER_OK) {
        finish(pass, rc);
        return;
    }
    uint64_t now_ms = uv_now(pass->loop), left_ms = pass->deadline_ms > now_ms ? pass->deadline_ms - now_ms : 0;
    (void)uv_timer_start(timer, on_silence, left_ms < ATTEMPT_MS ? left_ms : ATTEMPT_MS, 0);
}

static void on_resolved(void *ctx, int status, const struct net_addresses *addresses) {
    struct worker_pass *pass = ctx;
    resolver_close(pass->resolver);
    pass->resolver = NULL;
    if (status != MUSTER_OK) {
        finish(pass, status);
        return;
    }
    pass->addresses = *addresses;
    (void)uv_timer_start(&pass->timer, attempt, 0, 0);
}

int worker_pass_open(uv_loop_t *loop, const char *host, uint16_t port, const struct native_session_key *key,
                     uint64_t timeout_ms, worker_pass_cb *cb, void *ctx, struct worker_pass **out) {
    struct worker_pass *pass = calloc(1, sizeof *pass);
    if (!pass) {
        return status_fail(MUSTER_ENOMEM, "no memory for a way to the workers' store");
    }
    (void)uv_timer_init(loop, &pass->timer);
    pass->timer.data = pass;
    pass->loop = loop;
    pass->key = *key;
    pass->port = port;
    pass->deadline_ms = uv_now(loop) + timeout_ms;
    pass->cb = cb;
    pass->ctx = ctx;
    (void)str_copy(pass->host, sizeof pass->host, host);
    int rc = net_resolve_numeric(host, port, &pass->addresses);
    if (rc == MUSTER_OK) {
        (void)uv_timer_start(&pass->timer, attempt, 0, 0);
    } else {
        rc = resolver_start(loop, host, port, on_resolved, pass, &pass->resolver);
    }
    if (rc != MUSTER_OK) {
        worker_pass_close(pass);
        return rc;
    }
    *out = pass;
    return MUSTER_OK;
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void worker_pass_close(struct worker_pass *pass) {
    if (pass) {
        resolver_close(pass->resolver);
        native_session_close(pass->session);
        uv_close((uv_handle_t *)&pass->timer, on_closed);
    }
}
