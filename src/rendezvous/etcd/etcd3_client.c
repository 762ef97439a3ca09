/* Calls, the token, and the client; see etcd3_client.h. What is asked again when is etcd3_requester.c's, watches are
 * etcd3_watch.c's. */
#include "rendezvous/etcd/etcd3_client.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "rendezvous/etcd/etcd3_client_impl.h"

struct etcd3_call {
    struct etcd3_requester requester;
    const char *path;
    struct buf body;
    etcd3_done_cb *done;
    void *ctx;
};

const char *etcd3_client_local_address(const struct etcd3_client *client) {
    return client->local;
}

/* ---- calls ---- */

static void close_call(struct etcd3_call *call) {
    buf_done(&call->body);
    etcd3_requester_close(&call->requester);
}

static void end_call(struct etcd3_call *call, int status, const struct etcd3_reply *reply) {
    close_call(call);
    call->done(call->ctx, status, reply);
}

static void on_call_done(void *ctx, const struct http_answer *answer) {
    struct etcd3_call *call = ctx;
    struct etcd3_reply reply = {.error = 0};
    int status = MUSTER_OK;
    call->requester.request = NULL;
    const char *url = etcd3_requester_url(&call->requester);
    enum etcd3_verdict verdict =
        etcd3_judge_answer(url, answer->status, answer->code, kv_slice_of(answer->body, answer->len), &reply, &status);
    if (verdict == ETCD3_FINE) {
        verdict = etcd3_judge_reply(url, call->requester.client->user != NULL, &reply, &status);
    }
    if (verdict == ETCD3_FINE) {
        etcd3_requester_answered(&call->requester);
        (void)str_copy(call->requester.client->local, NET_ADDRESS_TEXT_MAX, answer->local_address);
        end_call(call, MUSTER_OK, &reply);
    } else {
        etcd3_requester_retry(&call->requester, verdict, status);
    }
    etcd3_reply_done(&reply);
}

static int send_call(struct etcd3_requester *requester) {
    static const struct http_callbacks callbacks = {.on_done = on_call_done};
    struct etcd3_call *call = (struct etcd3_call *)requester;
    return etcd3_requester_post(requester, call->path, &call->body, false, &callbacks);
}

static void fail_call(struct etcd3_requester *requester, int status) {
    end_call((struct etcd3_call *)requester, status, NULL);
}

static const struct etcd3_requester_table call_table = {.send = send_call, .fail = fail_call};

static struct etcd3_call *make_call(struct etcd3_client *client, const char *path, const struct buf *body,
                                    uint64_t patience_ms) {
    struct etcd3_call *call = calloc(1, sizeof *call);
    if (!call) {
        return NULL;
    }
    call->path = path;
    buf_init(&call->body, body->len);
    if (buf_append(&call->body, buf_bytes(body), body->len) != MUSTER_OK) {
        free(call);
        return NULL;
    }
    etcd3_requester_open(client, &call->requester, &call_table, patience_ms);
    return call;
}

int etcd3_client_call(struct etcd3_client *client, const char *path, const struct buf *body, uint64_t patience_ms,
                      etcd3_done_cb *done, void *ctx, struct etcd3_call **out) {
    struct etcd3_call *call = make_call(client, path, body, patience_ms);
    if (!call) {
        return status_fail(MUSTER_ENOMEM, "no memory for a request to etcd");
    }
    call->done = done;
    call->ctx = ctx;
    *out = call;
    etcd3_requester_start(&call->requester);
    return MUSTER_OK;
}

void etcd3_call_cancel(struct etcd3_call *call) {
    if (call) {
        close_call(call);
    }
}

/* ---- the token ---- */

static struct etcd3_requester *first_waiting(struct etcd3_client *client) {
    struct etcd3_requester *requester = client->requesters;
    while (requester && !requester->waits_for_token) {
        requester = requester->next;
    }
    return requester;
}

/* Whoever waits for it goes on, or fails for the same reason, from the loop. */
static void on_token(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_client *client = ctx;
    client->renewal = NULL;
    if (status == MUSTER_OK) {
        (void)str_copy(client->token, sizeof client->token, reply->token);
        client->needs_no_token = reply->token[0] == '\0';
    } else if (status == MUSTER_EPROTOCOL && strstr(muster_detail(), "authentication is not enabled")) {
        client->needs_no_token = true;
        status = MUSTER_OK;
    }
    for (struct etcd3_requester *requester; (requester = first_waiting(client)) != NULL;) {
        requester->waits_for_token = false;
        (void)uv_timer_stop(&requester->timer);
        if (status == MUSTER_OK) {
            etcd3_requester_start(requester);
        } else {
            etcd3_requester_fail_later(requester, status);
        }
    }
}

static int renew_token(struct etcd3_client *client) {
    struct buf body;
    buf_init(&body, ETCD3_REQUEST_BYTES_MAX);
    int rc = etcd3_wire_put_authenticate(&body, client->user, client->password ? client->password : "");
    struct etcd3_call *call = rc == MUSTER_OK ? make_call(client, "auth/authenticate", &body, ETCD3_PATIENT) : NULL;
    buf_done(&body);
    if (!call) {
        return rc ? rc : status_fail(MUSTER_ENOMEM, "no memory for a request to etcd");
    }
    call->done = on_token;
    call->ctx = client;
    client->renewal = call;
    etcd3_requester_start(&call->requester);
    return MUSTER_OK;
}

/* ---- life ---- */

int etcd3_client_check_endpoints(const char *text, bool *is_https) {
    struct net_url_list endpoints;
    int rc = etcd3_endpoints_read(&endpoints, text);
    *is_https = rc == MUSTER_OK;
    for (size_t i = 0; rc == MUSTER_OK && i < endpoints.turn.count; i++) {
        *is_https = *is_https && strncmp(endpoints.urls[i], "https:", 6) == 0;
    }
    return rc;
}

static int copy_text(char **out, const char *text) {
    *out = text ? strdup(text) : NULL;
    return text && !*out ? status_fail(MUSTER_ENOMEM, "no memory for a client of etcd") : MUSTER_OK;
}

/* Agents spread over the endpoints: each begins with another one. */
static size_t first_endpoint(size_t count) {
    uint32_t random = 0;
    return random_fill(&random, sizeof random) == 0 ? random % count : 0;
}

int etcd3_client_create(uv_loop_t *loop, const struct etcd3_client_options *options, struct etcd3_client **out) {
    struct etcd3_client *client = calloc(1, sizeof *client);
    if (!client) {
        return status_fail(MUSTER_ENOMEM, "no memory for a client of etcd");
    }
    client->loop = loop;
    client->attempt_timeout_ms = options->attempt_timeout_ms;
    struct http_client_options http = {.ca_file = options->ca_file,
                                       .cert_file = options->cert_file,
                                       .key_file = options->key_file,
                                       .connect_timeout_ms = options->attempt_timeout_ms};
    int rc = etcd3_endpoints_read(&client->endpoints, options->endpoints);
    rc = rc ? rc : copy_text(&client->user, options->user);
    rc = rc ? rc : copy_text(&client->password, options->password);
    rc = rc ? rc : http_client_create(loop, &http, &client->http);
    if (rc != MUSTER_OK) {
        etcd3_client_free(client);
        return rc;
    }
    client->renew_token = renew_token;
    client->endpoints.turn.current = first_endpoint(client->endpoints.turn.count);
    *out = client;
    return MUSTER_OK;
}

void etcd3_client_close(struct etcd3_client *client) {
    if (!client || client->is_closed) {
        return;
    }
    client->is_closed = true;
    while (client->requesters) {
        struct etcd3_requester *requester = client->requesters;
        if (requester->table == &call_table) {
            close_call((struct etcd3_call *)requester);
        } else {
            etcd3_watch_close((struct etcd3_watch *)requester);
        }
    }
    http_client_close(client->http);
    if (client->open_askers == 0) {
        etcd3_client_free(client);
    }
}
