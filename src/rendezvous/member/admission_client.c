/* Getting a node's workers admitted to a store; see admission_client.h. */
#include "rendezvous/member/admission_client.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "rendezvous/round/resolver.h"

enum {
    RETRY_MS = 100,
    FLAWS_MAX = 3,      /* attempts that break the protocol: before, one bit may have changed on its way */
    ATTEMPT_MS = 10000, /* in silence: then the next address has its turn */
    LISTEN_MS = 1000,   /* after this process was away, at most: an answer may be there to be read */
};

struct admission_client {
    uv_timer_t timer; /* the next attempt, or the end of this one */
    uv_loop_t *loop;
    struct loop_clock *clock;
    struct native_connection_key key;
    char host[NET_HOST_MAX];
    uint16_t port;
    int64_t deadline_ms, attempt_ends_ms; /* of the clock */
    admission_client_cb *cb;
    void *ctx;
    struct resolver *resolver;
    struct net_addresses addresses;
    size_t attempt_count;
    unsigned flaw_count;
    struct native_connection *session;
};

static int64_t now_ms(const struct admission_client *client) {
    return loop_clock_now_ms(client->clock, client->loop);
}

static void finish(struct admission_client *client, int status) {
    (void)uv_timer_stop(&client->timer);
    client->cb(client->ctx, status);
}

static void attempt(uv_timer_t *timer);

static void on_open(void *ctx) {
    struct admission_client *client = ctx;
    (void)native_connection_send(client->session, &(struct coordinator_message){.kind = COORDINATOR_ALIVE});
}

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct admission_client *client = ctx;
    if (message->kind == COORDINATOR_HEARD) {
        finish(client, MUSTER_OK);
    } /* else it ends the connection now */
}

static void on_lost(void *ctx, int status) {
    struct admission_client *client = ctx;
    (void)uv_timer_stop(&client->timer);
    native_connection_close(client->session);
    client->session = NULL;
    client->flaw_count += status == MUSTER_EPROTOCOL;
    if (client->flaw_count >= FLAWS_MAX || now_ms(client) >= client->deadline_ms) {
        finish(client, status_prefix(status, "no entry to the workers' store at %s:%u", client->host, client->port));
    } else {
        (void)uv_timer_start(&client->timer, attempt, RETRY_MS, 0);
    }
}

static uint64_t silence_left_ms(const struct admission_client *client) {
    return (uint64_t)loop_clock_left_ms(client->clock, client->loop, client->attempt_ends_ms, LISTEN_MS);
}

/* Packets to it vanish, it is another program's, or its agent stands still. */
static void on_silence(uv_timer_t *timer) {
    struct admission_client *client = timer->data;
    if (silence_left_ms(client) > 0) {
        (void)uv_timer_start(timer, on_silence, silence_left_ms(client), 0);
    } else {
        on_lost(client, status_fail(MUSTER_ETIMEOUT, "nobody answers there"));
    }
}

/* The addresses of the host in turn. */
static void attempt(uv_timer_t *timer) {
    static const struct native_connection_callbacks callbacks = {
        .on_open = on_open, .on_message = on_message, .on_lost = on_lost};
    struct admission_client *client = timer->data;
    struct net_address *at = &client->addresses.list[client->attempt_count++ % client->addresses.count];
    int rc = native_connection_open(client->loop, (const struct sockaddr *)&at->sockaddr, &client->key, &callbacks,
                                    client, &client->session);
    if (rc != MUSTER_OK) {
        finish(client, rc);
        return;
    }
    int64_t ends_ms = now_ms(client) + ATTEMPT_MS;
    client->attempt_ends_ms = ends_ms < client->deadline_ms ? ends_ms : client->deadline_ms;
    (void)uv_timer_start(timer, on_silence, silence_left_ms(client), 0);
}

static void on_resolved(void *ctx, int status, const struct net_addresses *addresses) {
    struct admission_client *client = ctx;
    resolver_close(client->resolver);
    client->resolver = NULL;
    if (status != MUSTER_OK) {
        finish(client, status);
        return;
    }
    client->addresses = *addresses;
    (void)uv_timer_start(&client->timer, attempt, 0, 0);
}

void admission_client_set_clock(struct admission_client *client, struct loop_clock *clock) {
    int64_t left_ms = client->deadline_ms - now_ms(client);
    client->clock = clock;
    client->deadline_ms = now_ms(client) + left_ms;
}

int admission_client_open(uv_loop_t *loop, const char *host, uint16_t port, const struct native_connection_key *key,
                          uint64_t timeout_ms, admission_client_cb *cb, void *ctx, struct admission_client **out) {
    struct admission_client *client = calloc(1, sizeof *client);
    if (!client) {
        return status_fail(MUSTER_ENOMEM, "no memory for a way to the workers' store");
    }
    (void)uv_timer_init(loop, &client->timer);
    client->timer.data = client;
    client->loop = loop;
    client->key = *key;
    client->port = port;
    client->deadline_ms = now_ms(client) + (int64_t)timeout_ms;
    client->cb = cb;
    client->ctx = ctx;
    (void)str_copy(client->host, sizeof client->host, host);
    int rc = net_resolve_numeric(host, port, &client->addresses);
    if (rc == MUSTER_OK) {
        (void)uv_timer_start(&client->timer, attempt, 0, 0);
    } else {
        rc = resolver_start(loop, host, port, on_resolved, client, &client->resolver);
    }
    if (rc != MUSTER_OK) {
        admission_client_close(client);
        return rc;
    }
    *out = client;
    return MUSTER_OK;
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void admission_client_close(struct admission_client *client) {
    if (client) {
        resolver_close(client->resolver);
        native_connection_close(client->session);
        uv_close((uv_handle_t *)&client->timer, on_closed);
    }
}
