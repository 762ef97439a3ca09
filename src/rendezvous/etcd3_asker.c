/* Askers: what is sent to one endpoint after the other until it is answered; see etcd3_client_impl.h. */
#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd3_client_impl.h"

static void on_asker_timer(uv_timer_t *timer);

/* Another one is asked from now on; what hangs on the one before follows. */
static void move_on(struct etcd3_client *client, size_t from) {
    if (!etcd3_endpoints_move_on(&client->endpoints, from)) {
        return;
    }
    for (struct etcd3_asker *asker = client->askers; asker; asker = asker->next) {
        if (asker->request && asker->endpoint == from) {
            http_cancel(asker->request);
            asker->request = NULL;
            (void)uv_timer_start(&asker->timer, on_asker_timer, 0, 0);
        }
    }
}

static void on_asker_closed(uv_handle_t *handle) {
    struct etcd3_asker *asker = handle->data;
    struct etcd3_client *client = asker->client;
    free(asker);
    if (--client->open_askers == 0 && client->is_closed) {
        etcd3_client_free(client);
    }
}

void etcd3_asker_fail_later(struct etcd3_asker *asker, int status) {
    asker->pending = status;
    (void)str_format(asker->pending_why, sizeof asker->pending_why, "%s", muster_detail());
    (void)uv_timer_start(&asker->timer, on_asker_timer, 0, 0);
}

static int fail_late(const struct etcd3_asker *asker) {
    char tried[ETCD3_URL_MAX + ETCD3_ERROR_MAX + 8];
    return status_fail(MUSTER_ETIMEOUT, "no etcd has answered in time: %s",
                       etcd3_client_describe(asker->client, tried, sizeof tried));
}

static void on_asker_timer(uv_timer_t *timer) {
    struct etcd3_asker *asker = timer->data;
    if (asker->pending) {
        asker->table->fail(asker, status_fail(asker->pending, "%s", asker->pending_why));
    } else if (asker->waits_for_token) {
        asker->table->fail(asker, fail_late(asker));
    } else {
        etcd3_asker_start(asker);
    }
}

void etcd3_asker_open(struct etcd3_client *client, struct etcd3_asker *asker, const struct etcd3_asker_table *table,
                      uint64_t patience_ms) {
    asker->table = table;
    asker->client = client;
    asker->tries.deadline_ms = patience_ms == ETCD3_PATIENT ? UINT64_MAX : uv_now(client->loop) + patience_ms;
    asker->attempt_timeout_ms = etcd3_attempt_ms(patience_ms, client->endpoints.count, client->attempt_timeout_ms);
    (void)uv_timer_init(client->loop, &asker->timer);
    asker->timer.data = asker;
    asker->next = client->askers;
    client->askers = asker;
    client->open_askers++;
}

void etcd3_asker_close(struct etcd3_asker *asker) {
    struct etcd3_asker **at = &asker->client->askers;
    if (asker->is_closed) {
        return;
    }
    asker->is_closed = true;
    while (*at != asker) {
        at = &(*at)->next;
    }
    *at = asker->next;
    http_cancel(asker->request);
    asker->request = NULL;
    uv_close((uv_handle_t *)&asker->timer, on_asker_closed);
}

static bool is_renewal(const struct etcd3_asker *asker) {
    return asker == (const struct etcd3_asker *)asker->client->renewal;
}

/* For as long as there is patience. */
static int wait_for_token(struct etcd3_asker *asker) {
    uint64_t now_ms = uv_now(asker->client->loop), deadline_ms = asker->tries.deadline_ms;
    asker->waits_for_token = true;
    if (deadline_ms != UINT64_MAX) {
        (void)uv_timer_start(&asker->timer, on_asker_timer, deadline_ms > now_ms ? deadline_ms - now_ms : 0, 0);
    }
    return asker->client->renewal ? MUSTER_OK : etcd3_client_renew_token(asker->client);
}

void etcd3_asker_start(struct etcd3_asker *asker) {
    struct etcd3_client *client = asker->client;
    int rc = MUSTER_OK;
    if (client->user && !client->needs_no_token && client->token[0] == '\0' && !is_renewal(asker)) {
        rc = wait_for_token(asker);
    } else {
        asker->endpoint = client->endpoints.current;
        rc = asker->table->send(asker);
    }
    if (rc != MUSTER_OK) {
        asker->waits_for_token = false;
        etcd3_asker_fail_later(asker, rc);
    }
}

void etcd3_asker_answered(struct etcd3_asker *asker) {
    etcd3_tries_answered(&asker->tries);
    asker->client->trouble[0] = '\0';
}

void etcd3_asker_retry(struct etcd3_asker *asker, enum etcd3_verdict verdict, int status) {
    struct etcd3_client *client = asker->client;
    uint64_t pause_ms = 0;
    enum etcd3_next next =
        etcd3_tries_next(&asker->tries, verdict, client->endpoints.count, uv_now(client->loop), &pause_ms);
    if (verdict == ETCD3_RENEW) {
        client->token[0] = '\0';
    }
    if (next == ETCD3_GIVE_UP) {
        asker->table->fail(asker, status);
        return;
    }
    if (next == ETCD3_GET_TOKEN) {
        etcd3_asker_start(asker);
        return;
    }
    (void)str_format(client->trouble, sizeof client->trouble, "%s", muster_detail());
    log_debug("etcd: %s", muster_detail());
    move_on(client, asker->endpoint);
    if (next == ETCD3_TOO_LATE) {
        asker->table->fail(asker, fail_late(asker));
    } else {
        (void)uv_timer_start(&asker->timer, on_asker_timer, pause_ms, 0);
    }
}

int etcd3_asker_post(struct etcd3_asker *asker, const char *path, const struct buf *body, bool is_stream,
                     const struct http_callbacks *callbacks) {
    struct etcd3_client *client = asker->client;
    char url[ETCD3_URL_MAX + 40];
    char authorization[ETCD3_TOKEN_MAX + 20];
    const char *headers[3] = {"Content-Type: application/json"};
    size_t count = 1;
    (void)str_format(url, sizeof url, "%s/v3/%s", etcd3_asker_url(asker), path);
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
                             .timeout_ms = is_stream ? 0 : asker->attempt_timeout_ms,
                             .response_bytes_max = is_stream ? 0 : ETCD3_ANSWER_BYTES_MAX};
    return http_send(client->http, &call, callbacks, asker, &asker->request);
}
