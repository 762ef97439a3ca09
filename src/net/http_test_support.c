/* An HTTP server for tests; see http_test_support.h. */
#include "net/http_test_support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GIVE_UP_MS = 20000 };

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    struct http_test_peer *peer = handle->data;
    (void)suggested;
    *out = uv_buf_init(peer->request + peer->len, (unsigned)(sizeof peer->request - 1 - peer->len));
}

void http_test_hang_up(struct http_test_peer *peer) {
    if (peer->open) {
        peer->open = false;
        uv_close((uv_handle_t *)&peer->tcp, NULL);
    }
}

static bool request_is_whole(const struct http_test_peer *peer) {
    const char *end = strstr(peer->request, "\r\n\r\n");
    const char *length = strstr(peer->request, "Content-Length: ");
    long body = length ? strtol(length + 16, NULL, 10) : 0;
    return end && (long)strlen(end + 4) >= body;
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *unused) {
    struct http_test_peer *peer = stream->data;
    (void)unused;
    if (count < 0) {
        http_test_hang_up(peer);
        return;
    }
    peer->len += (size_t)count;
    peer->request[peer->len] = '\0';
    if (request_is_whole(peer)) {
        peer->answered++;
        peer->server->request_count++;
        peer->len = 0;
        peer->server->on_request(peer->server->ctx, peer);
    }
}

static void on_connection(uv_stream_t *stream, int status) {
    struct http_test_server *server = stream->data;
    assert_int_equal(status, 0);
    assert_true(server->peer_count < HTTP_TEST_PEERS_MAX);
    struct http_test_peer *peer = &server->peers[server->peer_count++];
    peer->server = server;
    assert_int_equal(uv_tcp_init(stream->loop, &peer->tcp), 0);
    peer->tcp.data = peer;
    peer->open = true;
    assert_int_equal(uv_accept(stream, (uv_stream_t *)&peer->tcp), 0);
    assert_int_equal(uv_tcp_nodelay(&peer->tcp, 1), 0);
    assert_int_equal(uv_read_start((uv_stream_t *)&peer->tcp, on_alloc, on_read), 0);
}

void http_test_server_start(struct http_test_server *server, uv_loop_t *loop,
                            void (*on_request)(void *ctx, struct http_test_peer *peer), void *ctx) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int len = sizeof address;
    assert_int_equal(uv_tcp_init(loop, &server->tcp), 0);
    server->tcp.data = server;
    server->on_request = on_request;
    server->ctx = ctx;
    assert_int_equal(uv_tcp_bind(&server->tcp, (struct sockaddr *)&address, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&server->tcp, HTTP_TEST_PEERS_MAX, on_connection), 0);
    assert_int_equal(uv_tcp_getsockname(&server->tcp, (struct sockaddr *)&address, &len), 0);
    server->port = ntohs(address.sin_port);
}

void http_test_server_stop(struct http_test_server *server) {
    for (size_t i = 0; i < server->peer_count; i++) {
        http_test_hang_up(&server->peers[i]);
    }
    uv_close((uv_handle_t *)&server->tcp, NULL);
}

void http_test_say_bytes(struct http_test_peer *peer, const char *bytes, size_t len) {
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)bytes, (unsigned)len);
    assert_int_equal(uv_try_write((uv_stream_t *)&peer->tcp, &buf, 1), (int)len);
}

void http_test_say(struct http_test_peer *peer, const char *text) {
    http_test_say_bytes(peer, text, strlen(text));
}

/* ---- the loop ---- */

static void on_watchdog(uv_timer_t *timer) {
    struct http_test_stage *stage = timer->data;
    stage->expired = true;
}

void http_test_stage_open(struct http_test_stage *stage, void (*on_request)(void *ctx, struct http_test_peer *peer),
                          void *ctx) {
    assert_int_equal(uv_loop_init(&stage->loop), 0);
    assert_int_equal(uv_timer_init(&stage->loop, &stage->watchdog), 0);
    stage->watchdog.data = stage;
    assert_int_equal(uv_timer_start(&stage->watchdog, on_watchdog, GIVE_UP_MS, 0), 0);
    http_test_server_start(&stage->server, &stage->loop, on_request, ctx);
}

void http_test_stage_close(struct http_test_stage *stage) {
    http_test_server_stop(&stage->server);
    uv_close((uv_handle_t *)&stage->watchdog, NULL);
    assert_int_equal(uv_run(&stage->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&stage->loop), 0);
}

void http_test_stage_run(struct http_test_stage *stage, const unsigned *count, unsigned wanted) {
    while (*count < wanted) {
        assert_false(stage->expired);
        (void)uv_run(&stage->loop, UV_RUN_ONCE);
    }
}

/* ---- scripts ---- */

bool http_test_follow(const struct http_test_line *line, struct http_test_peer *peer) {
    if (!line->asked) {
        fail_msg("not in the script: %s", peer->request);
        return false;
    }
    size_t len = strlen(line->asked);
    if (strncmp(peer->request, line->asked, len) != 0 || (peer->request[len] != ' ' && peer->request[len] != '?')) {
        fail_msg("asked: %.200s, expected: %s", peer->request, line->asked);
    }
    if (line->form) {
        assert_string_equal(strstr(peer->request, "\r\n\r\n") + 4, line->form);
    }
    if (!line->body) {
        http_test_hang_up(peer);
    }
    return line->body && line->body[0] != '\0';
}

void http_test_answer(struct http_test_peer *peer, const char *status, const char *headers, const char *body) {
    char head[256];
    (void)snprintf(head, sizeof head, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n", status, headers, strlen(body));
    http_test_say(peer, head);
    http_test_say(peer, body);
}
