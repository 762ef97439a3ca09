/* What calls and watches of etcd3_client.h share: an asker is something that is sent to one endpoint after the other
 * until it is answered. Private to etcd3_client.c, etcd3_asker.c and etcd3_watch.c. */
#ifndef RENDEZVOUS_ETCD3_CLIENT_IMPL_H
#define RENDEZVOUS_ETCD3_CLIENT_IMPL_H

#include "net/http.h"
#include "rendezvous/etcd3_client.h"

struct etcd3_asker;
struct etcd3_asker_table {
    int (*send)(struct etcd3_asker *asker);              /* to asker->endpoint */
    void (*fail)(struct etcd3_asker *asker, int status); /* final; muster_detail() is set */
};

/* First member of a call and of a watch. */
struct etcd3_asker {
    const struct etcd3_asker_table *table;
    struct etcd3_client *client;
    struct etcd3_asker *next;
    struct http_request *request; /* in flight, or NULL */
    uv_timer_t timer;             /* to ask again */
    size_t endpoint;              /* that is or was asked */
    struct etcd3_tries tries;
    uint64_t attempt_timeout_ms;
    int pending; /* a failure that the timer is to deliver */
    char pending_why[ETCD3_ERROR_MAX];
    bool waits_for_token, is_closed;
};

struct etcd3_client {
    uv_loop_t *loop;
    struct http_client *http;
    struct etcd3_endpoints endpoints;
    uint64_t attempt_timeout_ms;
    char *user, *password;
    char token[ETCD3_TOKEN_MAX];
    bool needs_no_token;
    struct etcd3_call *renewal; /* of the token, in flight */
    struct etcd3_asker *askers;
    size_t open_askers; /* their timers keep the client's memory */
    bool is_closed;
    char local[NET_ADDRESS_TEXT_MAX]; /* "" before the first answer */
    char trouble[ETCD3_ERROR_MAX];    /* with the last endpoint that could not answer; "" since one has */
};

static inline const char *etcd3_asker_url(const struct etcd3_asker *asker) {
    return asker->client->endpoints.urls[asker->endpoint];
}

/* ---- etcd3_asker.c ---- */

void etcd3_asker_open(struct etcd3_client *client, struct etcd3_asker *asker, const struct etcd3_asker_table *table,
                      uint64_t patience_ms);
/* Frees it during a later turn of the loop. */
void etcd3_asker_close(struct etcd3_asker *asker);
/* Sends it, as soon as there is a token. */
void etcd3_asker_start(struct etcd3_asker *asker);
/* After `verdict`, which is not FINE, with muster_detail(): asks again, or fails. Last thing that a caller does. */
void etcd3_asker_retry(struct etcd3_asker *asker, enum etcd3_verdict verdict, int status);
void etcd3_asker_answered(struct etcd3_asker *asker);

/* From the loop, with the detail as it is now. */
void etcd3_asker_fail_later(struct etcd3_asker *asker, int status);

/* POSTs `body` to asker->endpoint. */
int etcd3_asker_post(struct etcd3_asker *asker, const char *path, const struct buf *body, bool is_stream,
                     const struct http_callbacks *callbacks);

/* ---- etcd3_client.c ---- */

/* Whoever waits for it goes on, or fails. None is on its way. MUSTER_ENOMEM, MUSTER_EINVAL. */
int etcd3_client_renew_token(struct etcd3_client *client);
/* The last asker is gone, and the client is closed. */
void etcd3_client_free(struct etcd3_client *client);

#endif
