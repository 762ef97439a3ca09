/* What calls and watches of etcd3_client.h share: a requester is something that is sent to one endpoint after the other
 * until it is answered. Private to etcd3_client.c, etcd3_requester.c and etcd3_watch.c. */
#ifndef RENDEZVOUS_ETCD3_CLIENT_IMPL_H
#define RENDEZVOUS_ETCD3_CLIENT_IMPL_H

#include "net/http.h"
#include "rendezvous/etcd/etcd3_client.h"

struct etcd3_requester;
struct etcd3_requester_table {
    int (*send)(struct etcd3_requester *requester);              /* to requester->endpoint */
    void (*fail)(struct etcd3_requester *requester, int status); /* final; muster_detail() is set */
};

/* First member of a call and of a watch. */
struct etcd3_requester {
    const struct etcd3_requester_table *table;
    struct etcd3_client *client;
    struct etcd3_requester *next;
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
    struct net_url_list endpoints;
    uint64_t attempt_timeout_ms;
    char *user, *password;
    char token[ETCD3_TOKEN_MAX];
    bool needs_no_token;
    /* Whoever waits for the token goes on, or fails. Called when none is on its way. MUSTER_ENOMEM, MUSTER_EINVAL. */
    int (*renew_token)(struct etcd3_client *client);
    struct etcd3_call *renewal; /* of the token, in flight */
    struct etcd3_requester *requesters;
    size_t open_askers; /* their timers keep the client's memory */
    bool is_closed;
    char local[NET_ADDRESS_TEXT_MAX]; /* "" before the first answer */
    char trouble[ETCD3_ERROR_MAX];    /* with the last endpoint that could not answer; "" since one has */
};

static inline const char *etcd3_requester_url(const struct etcd3_requester *requester) {
    return requester->client->endpoints.urls[requester->endpoint];
}

/* ---- etcd3_requester.c ---- */

void etcd3_requester_open(struct etcd3_client *client, struct etcd3_requester *requester,
                          const struct etcd3_requester_table *table, uint64_t patience_ms);
/* Frees it during a later turn of the loop. */
void etcd3_requester_close(struct etcd3_requester *requester);
/* Sends it, as soon as there is a token. */
void etcd3_requester_start(struct etcd3_requester *requester);
/* After `verdict`, which is not FINE, with muster_detail(): asks again, or fails. Last thing that a caller does. */
void etcd3_requester_retry(struct etcd3_requester *requester, enum etcd3_verdict verdict, int status);
void etcd3_requester_answered(struct etcd3_requester *requester);

/* From the loop, with the detail as it is now. */
void etcd3_requester_fail_later(struct etcd3_requester *requester, int status);

/* POSTs `body` to requester->endpoint. */
int etcd3_requester_post(struct etcd3_requester *requester, const char *path, const struct buf *body, bool is_stream,
                         const struct http_callbacks *callbacks);

/* The last requester is gone, and the client is closed. */
void etcd3_client_free(struct etcd3_client *client);

#endif
