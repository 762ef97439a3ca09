/* libcurl's multi interface on libuv; see http.h.
 *
 * libcurl tells which sockets and which timer it waits for and is called when one is ready. Its own callbacks must not
 * call back into it, so what they bring is kept in the request, and handed over by deliver() once libcurl has
 * returned. */
#include "net/http.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"
#include "net/curl_library.h"

enum { REDIRECTS_MAX = 8, PROBE_AFTER_S = 15, PROBE_EVERY_S = 5, URL_SHOWN_MAX = 160, HEADER_NAME_MAX = 64 };

struct http_client {
    const struct curl_library *library;
    uv_loop_t *loop;
    CURLM *multi;
    uv_timer_t timer;
    unsigned open_handles; /* of libuv, each keeps the client */
    bool closed;
    bool delivering;
    struct http_request *first; /* in flight */
    char *ca_file;
    char *cert_file;
    char *key_file;
    char *user;
    char *password;
    uint64_t connect_timeout_ms;
};

struct http_request {
    struct http_client *client;
    struct http_request *next;
    CURL *easy;
    struct curl_slist *headers;
    struct http_callbacks callbacks;
    void *ctx;
    char what[URL_SHOWN_MAX]; /* "PUT http://host:port/path", for sentences */
    char header_name[HEADER_NAME_MAX];
    char header[HTTP_HEADER_VALUE_MAX];
    struct buf body;
    bool over_limit;
    bool paused; /* until what is held has been handed over */
    bool finished;
    CURLcode result;
    bool in_callback;
    bool cancelled;
    char reason[CURL_ERROR_SIZE];
};

/* A socket of libcurl's that is waited for. */
struct http_socket {
    uv_poll_t poll;
    struct http_client *client;
    curl_socket_t fd;
};

static void deliver(struct http_client *client);
static void request_free(struct http_request *request);

/* ---- sockets and the timer ---- */

static void client_free(struct http_client *client) {
    free(client->ca_file);
    free(client->cert_file);
    free(client->key_file);
    free(client->user);
    free(client->password);
    free(client);
}

static void handle_closed(struct http_client *client) {
    if (--client->open_handles == 0) {
        client_free(client);
    }
}

static void on_socket_closed(uv_handle_t *handle) {
    struct http_socket *socket = handle->data;
    handle_closed(socket->client);
    free(socket);
}

static void on_timer_closed(uv_handle_t *handle) {
    handle_closed(handle->data);
}

static void act(struct http_client *client, curl_socket_t fd, int events) {
    int running = 0;
    (void)client->library->curl_multi_socket_action(client->multi, fd, events, &running);
    deliver(client);
}

static void on_timer(uv_timer_t *timer) {
    act(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static void on_socket(uv_poll_t *poll, int status, int events) {
    struct http_socket *socket = poll->data;
    int flags = status < 0 ? CURL_CSELECT_ERR : 0;
    flags |= (events & UV_READABLE) ? CURL_CSELECT_IN : 0;
    flags |= (events & UV_WRITABLE) ? CURL_CSELECT_OUT : 0;
    act(socket->client, socket->fd, flags);
}

static int set_timer(CURLM *multi, long timeout_ms, void *ctx) {
    struct http_client *client = ctx;
    (void)multi;
    if (timeout_ms < 0) {
        (void)uv_timer_stop(&client->timer);
    } else if (!client->closed) {
        uv_update_time(client->loop);
        (void)uv_timer_start(&client->timer, on_timer, (uint64_t)timeout_ms, 0);
    }
    return 0;
}

static struct http_socket *watch_new(struct http_client *client, curl_socket_t fd) {
    struct http_socket *socket = calloc(1, sizeof *socket);
    if (!socket || uv_poll_init(client->loop, &socket->poll, fd) != 0) {
        free(socket);
        return NULL;
    }
    socket->poll.data = socket;
    socket->client = client;
    socket->fd = fd;
    client->open_handles++;
    (void)client->library->curl_multi_assign(client->multi, fd, socket);
    return socket;
}

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket_ctx) {
    struct http_client *client = ctx;
    struct http_socket *socket = socket_ctx;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (socket) {
            (void)client->library->curl_multi_assign(client->multi, fd, NULL);
            uv_close((uv_handle_t *)&socket->poll, on_socket_closed);
        }
        return 0;
    }
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
    socket = socket ? socket : watch_new(client, fd);
    return socket && uv_poll_start(&socket->poll, events, on_socket) == 0 ? 0 : -1;
}

/* ---- what an answer brings ---- */

static size_t on_body(char *bytes, size_t size, size_t count, void *ctx) {
    struct http_request *request = ctx;
    size_t len = size * count;
    if (buf_append(&request->body, bytes, len) == MUSTER_OK) {
        return len;
    }
    if (request->callbacks.on_data && request->body.len > 0) {
        request->paused = true; /* the same bytes come again */
        return CURL_WRITEFUNC_PAUSE;
    }
    request->over_limit = true;
    return 0;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static size_t on_header(char *bytes, size_t size, size_t count, void *ctx) {
    struct http_request *request = ctx;
    size_t len = size * count;
    size_t name_len = strlen(request->header_name);
    if (len >= 5 && memcmp(bytes, "HTTP/", 5) == 0) {
        request->header[0] = '\0'; /* a new answer, after a redirect */
    }
    if (name_len > 0 && len > name_len && bytes[name_len] == ':' &&
        strncasecmp(bytes, request->header_name, name_len) == 0) {
        const char *start = bytes + name_len + 1;
        const char *end = bytes + len;
        while (start < end && is_blank(*start)) {
            start++;
        }
        while (end > start && is_blank(end[-1])) {
            end--;
        }
        (void)str_format(request->header, sizeof request->header, "%.*s", (int)(end - start), start);
        if ((size_t)(end - start) >= sizeof request->header) {
            request->header[0] = '\0';
        }
    }
    return len;
}

/* ---- how it ended ---- */

static int status_of(const struct http_request *request) {
    switch (request->result) {
    case CURLE_OK:
        return MUSTER_OK;
    case CURLE_COULDNT_RESOLVE_HOST:
        return MUSTER_ERESOLVE;
    case CURLE_OPERATION_TIMEDOUT:
        return MUSTER_ETIMEOUT;
    case CURLE_OUT_OF_MEMORY:
        return MUSTER_ENOMEM;
    case CURLE_WRITE_ERROR:
        return request->over_limit ? MUSTER_ELIMIT : MUSTER_ENOMEM;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
        return MUSTER_EINVAL;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_BAD_CONTENT_ENCODING:
        return MUSTER_EPROTOCOL;
    default:
        return MUSTER_ECONNECT;
    }
}

static int fail(const struct http_request *request) {
    int status = status_of(request);
    const char *reason = request->reason;
    if (status == MUSTER_OK) {
        return status;
    }
    if (request->over_limit) {
        return status_fail(status, "%s: the answer is longer than the %zu bytes that are taken", request->what,
                           request->body.max);
    }
    if (reason[0] == '\0') {
        reason = request->client->library->curl_easy_strerror(request->result);
    }
    long error_number = 0;
    (void)request->client->library->curl_easy_getinfo(request->easy, CURLINFO_OS_ERRNO, &error_number);
    bool tells = request->result == CURLE_COULDNT_CONNECT && error_number != 0;
    return status_fail(status, "%s: %s%s%s%s", request->what, reason, tells ? " (" : "",
                       tells ? strerror((int)error_number) : "", tells ? ")" : "");
}

static void unlink_request(struct http_request *request) {
    struct http_request **at = &request->client->first;
    while (*at && *at != request) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = request->next;
    }
}

static void request_free(struct http_request *request) {
    const struct curl_library *library = request->client->library;
    unlink_request(request);
    if (request->easy) {
        (void)library->curl_multi_remove_handle(request->client->multi, request->easy);
        library->curl_easy_cleanup(request->easy);
    }
    library->curl_slist_free_all(request->headers);
    buf_done(&request->body);
    free(request);
}

static void finish(struct http_request *request) {
    static const uint8_t nothing;
    struct http_answer answer = {.code = http_request_code(request), .body = &nothing};
    answer.status = fail(request);
    if (request->body.len > 0) {
        answer.body = buf_bytes(&request->body);
        answer.len = request->body.len;
    }
    memcpy(answer.header, request->header, sizeof answer.header);
    const char *local = NULL;
    (void)request->client->library->curl_easy_getinfo(request->easy, CURLINFO_LOCAL_IP, &local);
    answer.local_address = local ? local : "";
    request->in_callback = true;
    request->callbacks.on_done(request->ctx, &answer);
    request_free(request);
}

static void hand_over(struct http_request *request) {
    request->in_callback = true;
    request->callbacks.on_data(request->ctx, buf_bytes(&request->body), request->body.len);
    request->in_callback = false;
    if (request->cancelled) {
        request_free(request);
        return;
    }
    buf_clear(&request->body);
    if (request->paused) {
        request->paused = false;
        (void)request->client->library->curl_easy_pause(request->easy, CURLPAUSE_CONT);
    }
}

static void note_finished(struct http_client *client) {
    int left = 0;
    for (CURLMsg *message; (message = client->library->curl_multi_info_read(client->multi, &left)) != NULL;) {
        struct http_request *request = NULL;
        (void)client->library->curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &request);
        if (message->msg == CURLMSG_DONE && request) {
            request->finished = true;
            request->result = message->data.result;
        }
    }
}

static void dispose(struct http_client *client) {
    while (client->first) {
        /* Unlinked by it, which the analyser does not see. */
        request_free(client->first); /* NOLINT(clang-analyzer-unix.Malloc) */
    }
    if (client->multi) {
        (void)client->library->curl_multi_cleanup(client->multi);
        client->multi = NULL;
    }
    uv_close((uv_handle_t *)&client->timer, on_timer_closed);
}

/* One at a time from the start: a callback may cancel any other. */
static struct http_request *first_ready(struct http_client *client) {
    for (struct http_request *request = client->first; request; request = request->next) {
        /* What is freed is unlinked, which the analyser does not see: NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        if (request->finished || (request->callbacks.on_data && request->body.len > 0)) {
            return request;
        }
    }
    return NULL;
}

static void deliver(struct http_client *client) {
    struct http_request *request;
    if (client->delivering) {
        return;
    }
    client->delivering = true;
    note_finished(client);
    while (!client->closed && (request = first_ready(client)) != NULL) {
        if (request->callbacks.on_data && request->body.len > 0) {
            hand_over(request);
        } else {
            finish(request);
        }
        if (!client->closed) {
            note_finished(client);
        }
    }
    client->delivering = false;
    if (client->closed) {
        dispose(client);
    }
}

/* ---- the calls ---- */

static int copy_text(char **out, const char *text) {
    *out = text ? strdup(text) : NULL;
    return text && !*out ? status_fail(MUSTER_ENOMEM, "no memory for an HTTP client") : MUSTER_OK;
}

static int copy_options(struct http_client *client, const struct http_client_options *options) {
    int rc = copy_text(&client->ca_file, options->ca_file);
    rc = rc ? rc : copy_text(&client->cert_file, options->cert_file);
    rc = rc ? rc : copy_text(&client->key_file, options->key_file);
    rc = rc ? rc : copy_text(&client->user, options->user);
    rc = rc ? rc : copy_text(&client->password, options->password);
    client->connect_timeout_ms =
        options->connect_timeout_ms ? options->connect_timeout_ms : HTTP_CONNECT_TIMEOUT_DEFAULT_MS;
    return rc;
}

static int start_multi(struct http_client *client) {
    const struct curl_library *library = client->library;
    client->multi = library->curl_multi_init();
    bool ok = client->multi &&
              library->curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, set_socket) == CURLM_OK &&
              library->curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client) == CURLM_OK &&
              library->curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, set_timer) == CURLM_OK &&
              library->curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client) == CURLM_OK;
    return ok ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for an HTTP client");
}

int http_client_create(uv_loop_t *loop, const struct http_client_options *options, struct http_client **out) {
    const struct curl_library *library = curl_library();
    if (!library) {
        return MUSTER_EUNSUPPORTED;
    }
    struct http_client *client = calloc(1, sizeof *client);
    if (!client) {
        return status_fail(MUSTER_ENOMEM, "no memory for an HTTP client");
    }
    client->library = library;
    client->loop = loop;
    (void)uv_timer_init(loop, &client->timer);
    client->timer.data = client;
    client->open_handles = 1;
    int rc = copy_options(client, options);
    rc = rc ? rc : start_multi(client);
    if (rc != MUSTER_OK) {
        http_client_close(client);
        return rc;
    }
    *out = client;
    return MUSTER_OK;
}

void http_client_close(struct http_client *client) {
    if (!client || client->closed) {
        return;
    }
    client->closed = true;
    if (!client->delivering) {
        dispose(client);
    }
}

/* What libcurl is told; the first refusal stays. */
static void tell_long(struct http_request *request, CURLoption option, long value, CURLcode *rc) {
    *rc = *rc ? *rc : request->client->library->curl_easy_setopt(request->easy, option, value);
}

static void tell_pointer(struct http_request *request, CURLoption option, const void *value, CURLcode *rc) {
    if (value && *rc == CURLE_OK) {
        *rc = request->client->library->curl_easy_setopt(request->easy, option, value);
    }
}

static void tell_function(struct http_request *request, CURLoption option,
                          size_t (*function)(char *, size_t, size_t, void *), CURLcode *rc) {
    *rc = *rc ? *rc : request->client->library->curl_easy_setopt(request->easy, option, function);
}

static void tell_connection(struct http_request *request, const struct http_call *call, CURLcode *rc) {
    const struct http_client *client = request->client;
    bool secure = strncasecmp(call->url, "https:", 6) == 0;
    tell_pointer(request, CURLOPT_PROXY, "", rc);
    tell_long(request, CURLOPT_NOSIGNAL, 1, rc);
    tell_long(request, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1, rc);
    /* By numbers: their successors, which take names, came with 7.85. */
    tell_long(request, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS, rc);
    tell_long(request, CURLOPT_REDIR_PROTOCOLS, secure ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS, rc);
    tell_long(request, CURLOPT_FOLLOWLOCATION, 1, rc);
    tell_long(request, CURLOPT_MAXREDIRS, REDIRECTS_MAX, rc);
    tell_long(request, CURLOPT_TCP_KEEPALIVE, 1, rc);
    tell_long(request, CURLOPT_TCP_KEEPIDLE, PROBE_AFTER_S, rc);
    tell_long(request, CURLOPT_TCP_KEEPINTVL, PROBE_EVERY_S, rc);
    tell_long(request, CURLOPT_CONNECTTIMEOUT_MS, (long)client->connect_timeout_ms, rc);
    tell_long(request, CURLOPT_TIMEOUT_MS, (long)call->timeout_ms, rc);
    tell_pointer(request, CURLOPT_CAINFO, client->ca_file, rc);
    tell_pointer(request, CURLOPT_SSLCERT, client->cert_file, rc);
    tell_pointer(request, CURLOPT_SSLKEY, client->key_file ? client->key_file : client->cert_file, rc);
    tell_pointer(request, CURLOPT_USERNAME, client->user, rc);
    tell_pointer(request, CURLOPT_PASSWORD, client->password, rc);
#if LIBCURL_VERSION_NUM >= 0x075700
    /* Does not wait for a resolver that never answers. Unknown to older ones. */
    (void)client->library->curl_easy_setopt(request->easy, CURLOPT_QUICK_EXIT, 1L);
#endif
}

static CURLcode tell_call(struct http_request *request, const struct http_call *call) {
    CURLcode rc = CURLE_OK;
    tell_pointer(request, CURLOPT_URL, call->url, &rc);
    tell_connection(request, call, &rc);
    if (call->body) {
        curl_off_t len = (curl_off_t)call->body_len;
        rc = rc ? rc : request->client->library->curl_easy_setopt(request->easy, CURLOPT_POSTFIELDSIZE_LARGE, len);
        tell_pointer(request, CURLOPT_COPYPOSTFIELDS, call->body, &rc);
    }
    tell_pointer(request, CURLOPT_CUSTOMREQUEST, call->method, &rc);
    tell_pointer(request, CURLOPT_HTTPHEADER, request->headers, &rc);
    tell_pointer(request, CURLOPT_PRIVATE, request, &rc);
    tell_pointer(request, CURLOPT_ERRORBUFFER, request->reason, &rc);
    tell_function(request, CURLOPT_WRITEFUNCTION, on_body, &rc);
    tell_pointer(request, CURLOPT_WRITEDATA, request, &rc);
    tell_function(request, CURLOPT_HEADERFUNCTION, on_header, &rc);
    tell_pointer(request, CURLOPT_HEADERDATA, request, &rc);
    return rc;
}

static int append_header(struct http_request *request, const char *line) {
    struct curl_slist *longer = request->client->library->curl_slist_append(request->headers, line);
    if (!longer) {
        return status_fail(MUSTER_ENOMEM, "no memory for an HTTP request");
    }
    request->headers = longer;
    return MUSTER_OK;
}

static int prepare(struct http_request *request, const struct http_call *call) {
    const char *method = call->method ? call->method : call->body ? "POST" : "GET";
    (void)str_format(request->what, sizeof request->what, "%s %.*s", method, (int)strcspn(call->url, "?"), call->url);
    size_t max = call->response_bytes_max ? call->response_bytes_max : HTTP_RESPONSE_BYTES_DEFAULT;
    bool streams = request->callbacks.on_data != NULL;
    buf_init(&request->body, streams && max < CURL_MAX_WRITE_SIZE ? CURL_MAX_WRITE_SIZE : max);
    if (call->header_wanted) {
        bool fits = str_copy(request->header_name, sizeof request->header_name, call->header_wanted);
        assert(fits);
    }
    int rc = append_header(request, "Expect:"); /* no asking whether a long body is welcome */
    for (size_t i = 0; rc == MUSTER_OK && i < call->header_count; i++) {
        rc = append_header(request, call->headers[i]);
    }
    request->easy = rc == MUSTER_OK ? request->client->library->curl_easy_init() : NULL;
    if (rc == MUSTER_OK && !request->easy) {
        rc = status_fail(MUSTER_ENOMEM, "no memory for an HTTP request");
    }
    CURLcode refused = rc == MUSTER_OK ? tell_call(request, call) : CURLE_OK;
    if (refused != CURLE_OK) {
        rc = status_fail(refused == CURLE_OUT_OF_MEMORY ? MUSTER_ENOMEM : MUSTER_EINVAL, "%s: %s", request->what,
                         request->client->library->curl_easy_strerror(refused));
    }
    return rc;
}

int http_send(struct http_client *client, const struct http_call *call, const struct http_callbacks *callbacks,
              void *ctx, struct http_request **out) {
    assert(!client->closed);
    struct http_request *request = calloc(1, sizeof *request);
    if (!request) {
        return status_fail(MUSTER_ENOMEM, "no memory for an HTTP request");
    }
    request->client = client;
    request->callbacks = *callbacks;
    request->ctx = ctx;
    int rc = prepare(request, call);
    if (rc == MUSTER_OK && client->library->curl_multi_add_handle(client->multi, request->easy) != CURLM_OK) {
        rc = status_fail(MUSTER_ENOMEM, "%s: no memory for an HTTP request", request->what);
    }
    if (rc != MUSTER_OK) {
        request_free(request);
        return rc;
    }
    request->next = client->first;
    client->first = request;
    *out = request;
    return MUSTER_OK;
}

void http_cancel(struct http_request *request) {
    if (!request) {
        return;
    }
    if (request->in_callback) {
        request->cancelled = true;
    } else {
        request_free(request);
    }
}

long http_request_code(const struct http_request *request) {
    long code = 0;
    (void)request->client->library->curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &code);
    return code;
}
