/* An agent's connection to a coordinator that floods it: what it says is taken at a bounded pace, and all of it in the
 * end. And one that cannot even be tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/buf.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "rendezvous/member/native_connection.h"

enum { MESSAGES = 2500, WINDOW_MESSAGES = 1000, WINDOW_MS = 100 };

struct fixture {
    uv_loop_t loop;
    int listener, flood_fd;
    uv_poll_t accepting, flooding;
    struct buf flood;
    struct native_connection *session;
    unsigned taken;
    uint64_t began_ms;
};

static void on_open(void *ctx) {
    (void)ctx;
}

/* A window may end, and the next begin, between two messages. */
static void on_message(void *ctx, const struct coordinator_message *message) {
    struct fixture *f = ctx;
    assert_int_equal(message->kind, COORDINATOR_HEARD);
    f->began_ms = f->taken == 0 ? uv_now(&f->loop) : f->began_ms;
    f->taken++;
    assert_true(f->taken <= WINDOW_MESSAGES * (2 + (uv_now(&f->loop) - f->began_ms) / WINDOW_MS));
    if (f->taken == MESSAGES) {
        native_connection_close(f->session);
        uv_close((uv_handle_t *)&f->flooding, NULL);
    }
}

static void on_lost(void *ctx, int status) {
    (void)ctx;
    fail_msg("lost: %d", status);
}

static void flood_on(uv_poll_t *poll, int status, int events) {
    struct fixture *f = poll->data;
    (void)status, (void)events;
    ssize_t sent = send(f->flood_fd, buf_bytes(&f->flood), f->flood.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    buf_consume(&f->flood, sent > 0 ? (size_t)sent : 0);
    if (f->flood.len == 0) {
        (void)uv_poll_stop(poll);
    }
}

static void on_agent(uv_poll_t *poll, int status, int events) {
    struct fixture *f = poll->data;
    (void)status, (void)events;
    f->flood_fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(f->flood_fd >= 0);
    f->flooding.data = f;
    assert_int_equal(uv_poll_init(&f->loop, &f->flooding, f->flood_fd), 0);
    assert_int_equal(uv_poll_start(&f->flooding, UV_WRITABLE, flood_on), 0);
    uv_close((uv_handle_t *)poll, NULL);
}

static void a_flood_is_taken_slowly(void **state) {
    static const struct native_connection_callbacks callbacks = {
        .on_open = on_open, .on_message = on_message, .on_lost = on_lost};
    const struct coordinator_message heard = {.kind = COORDINATOR_HEARD};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    struct fixture f = {.flood_fd = -1};
    (void)state;
    buf_init(&f.flood, 1 << 20);
    for (unsigned i = 0; i < MESSAGES; i++) {
        assert_int_equal(coordinator_wire_put(&f.flood, &heard), 0);
    }
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(net_socket_listen((const struct sockaddr *)&address, false, &f.listener), 0);
    assert_int_equal(getsockname(f.listener, (struct sockaddr *)&address, &len), 0);
    f.accepting.data = &f;
    assert_int_equal(uv_poll_init(&f.loop, &f.accepting, f.listener), 0);
    assert_int_equal(uv_poll_start(&f.accepting, UV_READABLE, on_agent), 0);
    assert_int_equal(
        native_connection_open(&f.loop, (const struct sockaddr *)&address, NULL, &callbacks, &f, &f.session), 0);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(f.taken, MESSAGES);
    assert_int_equal(uv_loop_close(&f.loop), 0);
    (void)close(f.listener);
    (void)close(f.flood_fd);
    buf_done(&f.flood);
}

static void on_no_way(void *ctx, int status) {
    struct fixture *f = ctx;
    assert_non_null(f->session); /* so not out of native_connection_open() */
    assert_int_equal(status, MUSTER_ECONNECT);
    assert_non_null(strstr(muster_detail(), "255.255.255.255:4711"));
    native_connection_close(f->session);
    f->session = NULL;
}

/* No route, no descriptor: the session is lost, as if that had turned out later. */
static void what_connect_tells_at_once_is_a_loss(void **state) {
    static const struct native_connection_callbacks callbacks = {
        .on_open = on_open, .on_message = on_message, .on_lost = on_no_way};
    const struct sockaddr_in nowhere = {
        .sin_family = AF_INET, .sin_port = htons(4711), .sin_addr.s_addr = htonl(INADDR_BROADCAST)};
    struct fixture f = {.session = NULL};
    (void)state;
    assert_int_equal(uv_loop_init(&f.loop), 0);
    assert_int_equal(
        native_connection_open(&f.loop, (const struct sockaddr *)&nowhere, NULL, &callbacks, &f, &f.session), 0);
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_null(f.session);
    assert_int_equal(
        native_connection_open(&f.loop, (const struct sockaddr *)&nowhere, NULL, &callbacks, &f, &f.session), 0);
    native_connection_give_up(f.session); /* before it is told */
    (void)uv_run(&f.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.loop), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_connect_tells_at_once_is_a_loss),
        cmocka_unit_test(a_flood_is_taken_slowly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
