/* The client of etcd's v2 API; see etcd_v2.h. */
#include "store/client/etcd_v2.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "net/http.h"
#include "net/loop_clock.h"
#include "net/url_list.h"

enum {
    ANSWER_BYTES_MAX = 64 << 20, /* a folder of values of 10,000 nodes */
    URL_BYTES_MAX = 16384,
    FORM_BYTES_MAX = 64 << 20,
    DEFAULT_PORT = 2379,
    DESCRIPTION_MAX = 1024,
    ATTEMPT_TIMEOUT_MS = 10000, /* of everything but a watch; less where all endpoints are to have their turn */
    CONNECT_TIMEOUT_MS = 5000,
    LOST_WATCH_MS = 100, /* before its user looks again */
    SILENCE_MS = 1000,   /* of etcd; what is shorter is a busy machine's */
};

struct etcd_v2 {
    uv_loop_t *loop;
    struct http_client *http;
    struct net_url_list list;
    char description[DESCRIPTION_MAX];
    struct loop_clock *clock;
    uint64_t patience_ms;
    uint64_t answered_ms; /* when etcd answered last */
    uint64_t silent_ms;   /* in all */
    bool troubled;        /* people have been told that it does not */
    char local_address[NET_ADDRESS_TEXT_MAX];
    struct etcd_v2_request *first;
};

struct etcd_v2_request {
    struct etcd_v2 *etcd;
    struct etcd_v2_request *next;
    uv_timer_t timer; /* until the next attempt */
    struct http_request *http;
    const char *method; /* static */
    bool waits;
    char url[URL_BYTES_MAX]; /* from /v2/keys on */
    struct buf form;
    size_t endpoint;           /* of the attempt in flight */
    uint64_t failing_since_ms; /* when its first attempt began; 0: not yet */
    unsigned failure_count;    /* since it was answered */
    bool in_callback;
    bool cancelled;
    etcd_v2_cb *cb;
    void *ctx;
};

static const struct retry_pace pace = {.first_ms = 20, .max_ms = 1000};

static void attempt(struct etcd_v2_request *request);

/* ---- the end of a request ---- */

static void on_timer_closed(uv_handle_t *handle) {
    struct etcd_v2_request *request = handle->data;
    buf_done(&request->form);
    free(request);
}

static void drop(struct etcd_v2_request *request) {
    struct etcd_v2_request **at = &request->etcd->first;
    while (*at != request) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = request->next;
    http_cancel(request->http);
    request->http = NULL;
    uv_close((uv_handle_t *)&request->timer, on_timer_closed);
}

static void finish(struct etcd_v2_request *request, int status, const struct etcd_v2_answer *answer) {
    request->in_callback = true;
    request->cb(request->ctx, status, answer);
    if (!request->cancelled) {
        drop(request);
    }
}

void etcd_v2_cancel(struct etcd_v2_request *request) {
    if (request) {
        request->cancelled = request->in_callback;
        drop(request);
    }
}

/* ---- attempts ---- */

static uint64_t clock_ms(const struct etcd_v2 *etcd) {
    return (uint64_t)loop_clock_now_ms(etcd->clock, etcd->loop);
}

static uint64_t later_of(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void on_pause_over(uv_timer_t *timer) {
    attempt(timer->data);
}

/* An etcd that comes back without its data counts from the beginning: the index that was waited for may never come. */
static void on_watch_lost(uv_timer_t *timer) {
    const struct etcd_v2_answer lost = {
        .error = ETCD_V2_INDEX_CLEARED, .message = "the watch was interrupted", .action = "", .node.key = ""};
    finish(timer->data, MUSTER_OK, &lost);
}

/* muster_detail() says what failed. */
static void try_again(struct etcd_v2_request *request, int status) {
    struct etcd_v2 *etcd = request->etcd;
    uv_update_time(etcd->loop);
    uint64_t now_ms = clock_ms(etcd);
    uint64_t silent_ms = now_ms - later_of(etcd->answered_ms, request->failing_since_ms);
    if (silent_ms >= etcd->patience_ms) {
        finish(
            request,
            status_prefix(status, "etcd (%s) has not answered for %" PRIu64 " s", etcd->description, silent_ms / 1000),
            NULL);
        return;
    }
    request->failure_count++;
    bool is_news = request->failure_count > 1 || status == MUSTER_ETIMEOUT;
    if (!etcd->troubled && is_news) {
        etcd->troubled = true;
        log_warning("etcd does not answer, trying %s for %" PRIu64 " s: %s",
                    etcd->list.turn.count > 1 ? "all endpoints" : "again", etcd->patience_ms / 1000, muster_detail());
    }
    (void)retry_turn_move_on(&etcd->list.turn, request->endpoint);
    uint64_t left_ms = etcd->patience_ms - silent_ms;
    uint64_t pause_ms = retry_pause_ms(&pace, request->failure_count, etcd->list.turn.count);
    (void)uv_timer_start(&request->timer, on_pause_over, pause_ms < left_ms ? pause_ms : left_ms, 0);
}

/* Since when has etcd owed an answer? Watches may take any time. */
static uint64_t owes_since_ms(const struct etcd_v2 *etcd, uint64_t now_ms) {
    uint64_t since_ms = now_ms;
    for (const struct etcd_v2_request *at = etcd->first; at; at = at->next) {
        bool owes = !at->waits && at->failing_since_ms > 0 && at->failing_since_ms < since_ms;
        since_ms = owes ? at->failing_since_ms : since_ms;
    }
    return later_of(since_ms, etcd->answered_ms);
}

static void note_answered(struct etcd_v2 *etcd, const char *local_address) {
    uv_update_time(etcd->loop);
    uint64_t now_ms = clock_ms(etcd);
    uint64_t silent_ms = now_ms - owes_since_ms(etcd, now_ms);
    etcd->silent_ms += silent_ms > SILENCE_MS ? silent_ms : 0;
    etcd->answered_ms = now_ms;
    (void)str_copy(etcd->local_address, sizeof etcd->local_address, local_address);
    if (etcd->troubled) {
        etcd->troubled = false;
        log_warning("etcd answers again");
    }
}

/* Would another attempt, or another endpoint, change it? */
static bool is_passing(int status) {
    return status == MUSTER_ECONNECT || status == MUSTER_ERESOLVE || status == MUSTER_ETIMEOUT ||
           status == MUSTER_EPROTOCOL;
}

static void on_http(void *ctx, const struct http_answer *http) {
    struct etcd_v2_request *request = ctx;
    struct etcd_v2_answer answer = {0};
    request->http = NULL;
    int status = http->status;
    if (status == MUSTER_OK && http->len == 0 && http->code < 400) {
        status = status_fail(MUSTER_ECONNECT, "etcd has ended while it was asked"); /* how watches end then */
    } else if (status == MUSTER_OK) {
        status = etcd_v2_answer_read(http->code, http->body, http->len, http->header, &answer);
        /* A proxy, a balancer or etcd itself says that there is nobody to ask. */
        bool is_refusal = status == MUSTER_EPROTOCOL && http->code < 500;
        if (status == MUSTER_OK && answer.error >= ETCD_V2_RAFT_INTERNAL && answer.error < 400) {
            status = status_fail(MUSTER_ECONNECT, "etcd says '%s' (%ld)", answer.message, answer.error);
            etcd_v2_answer_done(&answer);
        } else if (is_refusal || status == MUSTER_EUNSUPPORTED) {
            finish(request, status_prefix(status, "%s", request->etcd->list.urls[request->endpoint]), NULL);
            return;
        }
    }
    if (status == MUSTER_OK) {
        note_answered(request->etcd, http->local_address);
        request->failure_count = 0;
        finish(request, status, &answer);
        etcd_v2_answer_done(&answer);
    } else if (is_passing(status) && request->waits) {
        (void)uv_timer_start(&request->timer, on_watch_lost, LOST_WATCH_MS, 0);
    } else if (is_passing(status)) {
        try_again(request, status);
    } else {
        finish(request, status, NULL);
    }
}

static void attempt(struct etcd_v2_request *request) {
    static const struct http_callbacks callbacks = {.on_done = on_http};
    struct etcd_v2 *etcd = request->etcd;
    char url[NET_URL_MAX + URL_BYTES_MAX];
    request->endpoint = etcd->list.turn.current;
    request->failing_since_ms = request->failing_since_ms ? request->failing_since_ms : clock_ms(etcd);
    (void)str_format(url, sizeof url, "%s%s", etcd->list.urls[request->endpoint], request->url);
    struct http_call call = {
        .method = request->method,
        .url = url,
        .body = request->form.len > 0 ? buf_bytes(&request->form) : NULL,
        .body_len = request->form.len,
        .timeout_ms = request->waits ? 0 : retry_share_ms(&etcd->list.turn, etcd->patience_ms, ATTEMPT_TIMEOUT_MS),
        .response_bytes_max = ANSWER_BYTES_MAX,
        .header_wanted = "X-Etcd-Index",
    };
    int rc = http_send(etcd->http, &call, &callbacks, request, &request->http);
    if (rc != MUSTER_OK) {
        finish(request, rc, NULL);
    }
}

/* ---- building requests ---- */

static bool is_plain(char c, bool in_path) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '~' || (in_path && c == '/');
}

static int put_escaped(struct buf *out, const char *text, bool in_path) {
    static const char digits[] = "0123456789ABCDEF";
    int rc = MUSTER_OK;
    for (const char *run = text; rc == MUSTER_OK && *run;) {
        size_t len = 0;
        while (run[len] && is_plain(run[len], in_path)) {
            len++;
        }
        rc = buf_append(out, run, len);
        run += len;
        if (rc == MUSTER_OK && *run) {
            const char escape[3] = {'%', digits[(uint8_t)*run >> 4], digits[(uint8_t)*run & 15]};
            rc = buf_append(out, escape, sizeof escape);
            run++;
        }
    }
    return rc;
}

/* "name=value&": form and query are of the same kind, a last "&" is harmless in both. */
static int put_text(struct buf *out, const char *name, const char *value) {
    if (!value) {
        return MUSTER_OK;
    }
    int rc = buf_printf(out, "%s=", name);
    rc = rc ? rc : put_escaped(out, value, false);
    return rc ? rc : buf_append(out, "&", 1);
}

static int put_number(struct buf *out, const char *name, uint64_t value) {
    return value ? buf_printf(out, "%s=%" PRIu64 "&", name, value) : MUSTER_OK;
}

static int put_flag(struct buf *out, const char *name, bool value) {
    return value ? buf_printf(out, "%s=true&", name) : MUSTER_OK;
}

static int put_conditions(struct buf *out, const struct etcd_v2_call *call) {
    int rc = put_number(out, "prevIndex", call->prev_index);
    rc = rc ? rc : put_text(out, "prevValue", call->prev_value);
    if (rc == MUSTER_OK && call->exist != ETCD_V2_EITHER) {
        rc = put_text(out, "prevExist", call->exist == ETCD_V2_IF_PRESENT ? "true" : "false");
    }
    return rc;
}

static int put_form(struct buf *out, const struct etcd_v2_call *call) {
    int rc = put_text(out, "value", call->value);
    rc = rc ? rc : put_flag(out, "dir", call->is_folder);
    rc = rc ? rc : put_flag(out, "refresh", call->refresh);
    rc = rc ? rc : put_number(out, "ttl", call->ttl_s);
    return rc ? rc : put_conditions(out, call);
}

static int put_query(struct buf *out, const struct etcd_v2_call *call) {
    int rc = buf_printf(out, "?");
    rc = rc ? rc : put_flag(out, "recursive", call->recursive);
    rc = rc ? rc : put_flag(out, "wait", call->wait);
    return rc ? rc : put_number(out, "waitIndex", call->wait_index);
}

static int build(struct etcd_v2_request *request, const struct etcd_v2_call *call) {
    bool is_put = strcmp(call->method, "PUT") == 0, is_delete = strcmp(call->method, "DELETE") == 0;
    struct buf url;
    buf_init(&url, URL_BYTES_MAX - 1);
    int rc = buf_printf(&url, "/v2/keys");
    rc = rc ? rc : put_escaped(&url, call->path, true);
    rc = rc ? rc : put_query(&url, call);
    if (is_delete) { /* has no form */
        rc = rc ? rc : put_conditions(&url, call);
    } else if (is_put) {
        rc = rc ? rc : put_form(&request->form, call);
    }
    if (rc == MUSTER_OK) {
        memcpy(request->url, buf_bytes(&url), url.len);
        request->url[url.len - 1] = '\0'; /* "?" or "&" */
    }
    buf_done(&url);
    return rc;
}

int etcd_v2_send(struct etcd_v2 *etcd, const struct etcd_v2_call *call, etcd_v2_cb *cb, void *ctx,
                 struct etcd_v2_request **out) {
    struct etcd_v2_request *request = calloc(1, sizeof *request);
    if (!request) {
        return status_fail(MUSTER_ENOMEM, "no memory for a request to etcd");
    }
    *request = (struct etcd_v2_request){.etcd = etcd,
                                        .next = etcd->first,
                                        .method = call->method,
                                        .waits = call->wait,

                                        .cb = cb,
                                        .ctx = ctx};
    buf_init(&request->form, FORM_BYTES_MAX);
    int rc = build(request, call);
    if (rc != MUSTER_OK) {
        buf_done(&request->form);
        free(request);
        return status_prefix(rc, "a request to etcd");
    }
    (void)uv_timer_init(etcd->loop, &request->timer);
    request->timer.data = request;
    etcd->first = request;
    *out = request;
    /* From the loop, so that what fails at once does not call back from here. */
    (void)uv_timer_start(&request->timer, on_pause_over, 0, 0);
    return MUSTER_OK;
}

/* ---- the client ---- */

static int read_endpoints(struct etcd_v2 *etcd, const struct etcd_v2_options *options) {
    int rc = net_url_list_read(&etcd->list, options->endpoints, options->https ? "https" : "http", DEFAULT_PORT);
    for (size_t i = 0; rc == MUSTER_OK && i < etcd->list.turn.count; i++) {
        size_t used = strlen(etcd->description);
        (void)snprintf(etcd->description + used, sizeof etcd->description - used, "%s%s", used > 0 ? ", " : "",
                       etcd->list.urls[i]);
    }
    return rc == MUSTER_EINVAL ? status_prefix(rc, "the endpoints '%.100s' of etcd", options->endpoints) : rc;
}

static const char *given(const char *text) {
    return text && text[0] ? text : NULL;
}

int etcd_v2_create(uv_loop_t *loop, const struct etcd_v2_options *options, struct etcd_v2 **out) {
    struct etcd_v2 *etcd = calloc(1, sizeof *etcd);
    if (!etcd) {
        return status_fail(MUSTER_ENOMEM, "no memory for an etcd client");
    }
    etcd->loop = loop;
    etcd->patience_ms = options->patience_ms;
    etcd->clock = options->clock;
    struct http_client_options http = {.ca_file = given(options->ca_file),
                                       .cert_file = given(options->cert_file),
                                       .key_file = given(options->key_file),
                                       .connect_timeout_ms = CONNECT_TIMEOUT_MS};
    int rc = read_endpoints(etcd, options);
    rc = rc ? rc : http_client_create(loop, &http, &etcd->http);
    if (rc != MUSTER_OK) {
        free(etcd);
        return rc;
    }
    *out = etcd;
    return MUSTER_OK;
}

void etcd_v2_close(struct etcd_v2 *etcd) {
    if (!etcd) {
        return;
    }
    while (etcd->first) {
        etcd_v2_cancel(etcd->first);
    }
    http_client_close(etcd->http);
    free(etcd);
}

const char *etcd_v2_describe(const struct etcd_v2 *etcd) {
    return etcd->description;
}

bool etcd_v2_local_address(const struct etcd_v2 *etcd, char out[NET_ADDRESS_TEXT_MAX]) {
    (void)str_copy(out, NET_ADDRESS_TEXT_MAX, etcd->local_address);
    return out[0] != '\0';
}

uint64_t etcd_v2_silent_ms(const struct etcd_v2 *etcd) {
    return etcd->silent_ms;
}

int etcd_v2_fail(const struct etcd_v2_answer *answer, const char *what) {
    return status_fail(MUSTER_EPROTOCOL, "etcd refuses %s: %s (error %ld)", what, answer->message, answer->error);
}
