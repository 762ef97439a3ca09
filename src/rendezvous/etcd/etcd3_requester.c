/* Requesters: what is sent to one endpoint after the other until it is answered; see etcd3_client_impl.h. */
#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd/etcd3_client_impl.h"

static void on_requester_timer(uv_timer_t *timer);

/* ---- of the client, for those who know it only from here ---- */

const char *etcd3_client_describe(const struct etcd3_client *client, char *out, size_t size) {
    const char *trouble = client->trouble;
    (void)str_format(out, size, "%s%s%s%s", client->endpoints.urls[client->endpoints.turn.current],
                     trouble[0] ? " (" : "", trouble, trouble[0] ? ")" : "");
    return out;
}

void etcd3_client_free(struct etcd3_client *client) {
    free(client->user);
    free(client->password);
    free(client);
}

/* Another one is asked from now on; what hangs on the one before follows. */
static void move_on(struct etcd3_client *client, size_t from) {
    if (!retry_turn_move_on(&client->endpoints.turn, from)) {
        return;
    }
    for (struct etcd3_requester *requester = client->requesters; requester; requester = requester->next) {
        if (requester->request && requester->endpoint == from) {
            http_cancel(requester->request);
            requester->request = NULL;
            (void)uv_timer_start(&requester->timer, on_requester_timer, 0, 0);
        }
    }
}

static void on_requester_closed(uv_handle_t *handle) {
    struct etcd3_requester *requester = handle->data;
    struct etcd3_client *client = requester->client;
    free(requester);
    if (--client->open_askers == 0 && client->is_closed) {
        etcd3_client_free(client);
    }
}

void etcd3_requester_fail_later(struct etcd3_requester *requester, int status) {
    requester->pending = status;
    (void)str_format(requester->pending_why, sizeof requester->pending_why, "%s", muster_detail());
    (void)uv_timer_start(&requester->timer, on_requester_timer, 0, 0);
}

static int fail_late(const struct etcd3_requester *requester) {
    char tried[NET_URL_MAX + ETCD3_ERROR_MAX + 8];
    return status_fail(MUSTER_ETIMEOUT, "no etcd has answered in time: %s",
                       etcd3_client_describe(requester->client, tried, sizeof tried));
}

static void on_requester_timer(uv_timer_t *timer) {
    struct etcd3_requester *requester = timer->data;
    if (requester->pending) {
        requester->table->fail(requester, status_fail(requester->pending, "%s", requester->pending_why));
    } else if (requester->waits_for_token) {
        requester->table->fail(requester, fail_late(requester));
    } else {
        etcd3_requester_start(requester);
    }
}

void etcd3_requester_open(struct etcd3_client *client, struct etcd3_requester *requester,
                          const struct etcd3_requester_table *table, uint64_t patience_ms) {
    requester->table = table;
    requester->client = client;
    requester->tries.deadline_ms = patience_ms == ETCD3_PATIENT ? UINT64_MAX : uv_now(client->loop) + patience_ms;
    requester->attempt_timeout_ms = retry_share_ms(
        &client->endpoints.turn, patience_ms == ETCD3_PATIENT ? UINT64_MAX : patience_ms, client->attempt_timeout_ms);
    (void)uv_timer_init(client->loop, &requester->timer);
    requester->timer.data = requester;
    requester->next = client->requesters;
    client->requesters = requester;
    client->open_askers++;
}

void etcd3_requester_close(struct etcd3_requester *requester) {
    struct etcd3_requester **at = &requester->client->requesters;
    if (requester->is_closed) {
        return;
    }
    requester->is_closed = true;
    while (*at != requester) {
        at = &(*at)->next;
    }
    *at = requester->next;
    http_cancel(requester->request);
    requester->request = NULL;
    uv_close((uv_handle_t *)&requester->timer, on_requester_closed);
}

static bool is_renewal(const struct etcd3_requester *requester) {
    return requester == (const struct etcd3_requester *)requester->client->renewal;
}

/* For as long as there is patience. */
static int wait_for_token(struct etcd3_requester *requester) {
    uint64_t now_ms = uv_now(requester->client->loop), deadline_ms = requester->tries.deadline_ms;
    requester->waits_for_token = true;
    if (deadline_ms != UINT64_MAX) {
        (void)uv_timer_start(&requester->timer, on_requester_timer, deadline_ms > now_ms ? deadline_ms - now_ms : 0, 0);
    }
    return requester->client->renewal ? MUSTER_OK : requester->client->renew_token(requester->client);
}

void etcd3_requester_start(struct etcd3_requester *requester) {
    struct etcd3_client *client = requester->client;
    int rc = MUSTER_OK;
    if (client->user && !client->needs_no_token && client->token[0] == '\0' && !is_renewal(requester)) {
        rc = wait_for_token(requester);
    } else {
        requester->endpoint = client->endpoints.turn.current;
        rc = requester->table->send(requester);
    }
    if (rc != MUSTER_OK) {
        requester->waits_for_token = false;
        etcd3_requester_fail_later(requester, rc);
    }
}

void etcd3_requester_answered(struct etcd3_requester *requester) {
    etcd3_tries_answered(&requester->tries);
    requester->client->trouble[0] = '\0';
}

void etcd3_requester_retry(struct etcd3_requester *requester, enum etcd3_verdict verdict, int status) {
    struct etcd3_client *client = requester->client;
    uint64_t pause_ms = 0;
    enum etcd3_next next =
        etcd3_tries_next(&requester->tries, verdict, client->endpoints.turn.count, uv_now(client->loop), &pause_ms);
    if (verdict == ETCD3_RENEW) {
        client->token[0] = '\0';
    }
    if (next == ETCD3_GIVE_UP) {
        requester->table->fail(requester, status);
        return;
    }
    if (next == ETCD3_GET_TOKEN) {
        etcd3_requester_start(requester);
        return;
    }
    (void)str_format(client->trouble, sizeof client->trouble, "%s", muster_detail());
    log_debug("etcd: %s", muster_detail());
    move_on(client, requester->endpoint);
    if (next == ETCD3_TOO_LATE) {
        requester->table->fail(requester, fail_late(requester));
    } else {
        (void)uv_timer_start(&requester->timer, on_requester_timer, pause_ms, 0);
    }
}

int etcd3_requester_post(struct etcd3_requester *requester, const char *path, const struct buf *body, bool is_stream,
                         const struct http_callbacks *callbacks) {
    struct etcd3_client *client = requester->client;
    char url[NET_URL_MAX + 40];
    char authorization[ETCD3_TOKEN_MAX + 20];
    const char *headers[3] = {"Content-Type: application/json"};
    size_t count = 1;
    (void)str_format(url, sizeof url, "%s/v3/%s", etcd3_requester_url(requester), path);
    if (client->token[0] != '\0') {
        (void)str_format(authorization, sizeof authorization, "Authorization: %s", client->token);
        headers[count++] = authorization;
    }
    if (is_stream) {
        headers[count++] = "Grpc-Metadata-hasleader: true"; /* a member that is cut off from the others ends it */
    }
    struct http_call call = {.url = url,
                             .headers = headers,
                             .header_count = count,
                             .body = buf_bytes(body),
                             .body_len = body->len,
                             .timeout_ms = is_stream ? 0 : requester->attempt_timeout_ms,
                             .response_bytes_max = is_stream ? 0 : ETCD3_ANSWER_BYTES_MAX};
    return http_send(client->http, &call, callbacks, requester, &requester->request);
}
