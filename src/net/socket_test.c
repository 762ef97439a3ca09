/* Sockets as Muster opens them: what they are set to, and which errors a caller gets to see. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "net/socket.h"

enum { PATIENCE_MS = 20000 };

static struct sockaddr_in loopback(uint16_t port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static uint16_t port_of(int fd) {
    struct sockaddr_in address = {0};
    socklen_t len = sizeof address;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    return ntohs(address.sin_port);
}

static int listen_on(uint16_t port, int *out_fd) {
    struct sockaddr_in address = loopback(port);
    return net_socket_listen((const struct sockaddr *)&address, false, out_fd);
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    assert_int_equal(getsockopt(fd, level, name, &value, &len), 0);
    return value;
}

static int result_of(int fd) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
    assert_int_equal(poll(&poll_fd, 1, PATIENCE_MS), 1);
    return net_socket_connect_result(fd);
}

static void sockets_do_not_block_and_do_not_leak(void **state) {
    (void)state;
    int listener = -1, client = -1;
    assert_int_equal(listen_on(0, &listener), 0);
    struct sockaddr_in address = loopback(port_of(listener));
    assert_int_equal(net_socket_connect((const struct sockaddr *)&address, &client), 0);
    assert_int_equal(result_of(client), 0);
    int served = accept(listener, NULL, NULL);
    assert_true(served >= 0);
    const int fds[] = {listener, client};
    for (size_t i = 0; i < 2; i++) {
        assert_true(fcntl(fds[i], F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
    }
    assert_true(option(client, IPPROTO_TCP, TCP_NODELAY) != 0);
    assert_true(option(served, IPPROTO_TCP, TCP_NODELAY) != 0); /* inherited */
    assert_true(option(served, SOL_SOCKET, SO_KEEPALIVE) != 0);
    (void)close(served);
    (void)close(client);
    (void)close(listener);
}

static void an_idle_connection_bears_the_silence_that_is_asked_for(void **state) {
    (void)state;
    const struct {
        int64_t silence_ms;
        int interval_s, count;
    } cases[] = {{700, 5, 1}, {30000, 5, 6}, {180000, 5, 36}, {635000, 5, 127}, {636000, 6, 106}, {86400000, 681, 127}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        net_socket_keep_alive(fd, 10, 5, cases[i].silence_ms);
        assert_true(option(fd, SOL_SOCKET, SO_KEEPALIVE) != 0);
        assert_int_equal(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 10);
        assert_int_equal(option(fd, IPPROTO_TCP, TCP_KEEPINTVL), cases[i].interval_s);
        assert_int_equal(option(fd, IPPROTO_TCP, TCP_KEEPCNT), cases[i].count);
    }
    (void)close(fd);
}

static void errno_tells_why_nobody_can_listen(void **state) {
    (void)state;
    int first = -1, second = -1;
    assert_int_equal(listen_on(0, &first), 0);
    uint16_t port = port_of(first);
    assert_int_equal(listen_on(port, &second), MUSTER_ESYSTEM);
    assert_int_equal(errno, EADDRINUSE);
    assert_non_null(strstr(muster_detail(), "127.0.0.1:"));
    struct sockaddr_in foreign = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(0xc0000201)}; /* 192.0.2.1: TEST-NET */
    assert_int_equal(net_socket_listen((const struct sockaddr *)&foreign, false, &second), MUSTER_ESYSTEM);
    assert_int_equal(errno, EADDRNOTAVAIL);
    assert_int_equal(second, -1);
    (void)close(first);
}

/* A bound socket that does not listen keeps the port from everybody else. */
static void nobody_listening_is_a_refusal(void **state) {
    (void)state;
    struct sockaddr_in address = loopback(0);
    int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), client = -1;
    assert_int_equal(bind(held, (const struct sockaddr *)&address, sizeof address), 0);
    address = loopback(port_of(held));
    int code = net_socket_connect((const struct sockaddr *)&address, &client);
    int error_number = code ? errno : result_of(client);
    assert_int_equal(error_number, ECONNREFUSED);
    assert_true(net_socket_error_is_transient(error_number));
    if (client >= 0) {
        (void)close(client);
    }
    (void)close(held);
}

static void a_socket_connected_to_itself_counts_as_refused(void **state) {
    (void)state;
    struct sockaddr_in address = loopback(0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    address = loopback(port_of(fd));
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0); /* the accident, on purpose */
    assert_int_equal(net_socket_connect_result(fd), ECONNREFUSED);
    (void)close(fd);
}

static void only_what_may_pass_is_transient(void **state) {
    (void)state;
    const int passing[] = {ECONNREFUSED, ECONNRESET, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EADDRNOTAVAIL};
    const int lasting[] = {0, EACCES, EPERM, EMFILE, ENFILE, ENOMEM, EAFNOSUPPORT, EINVAL};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        assert_true(net_socket_error_is_transient(passing[i]));
    }
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++) {
        assert_false(net_socket_error_is_transient(lasting[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sockets_do_not_block_and_do_not_leak),
        cmocka_unit_test(an_idle_connection_bears_the_silence_that_is_asked_for),
        cmocka_unit_test(errno_tells_why_nobody_can_listen),
        cmocka_unit_test(nobody_listening_is_a_refusal),
        cmocka_unit_test(a_socket_connected_to_itself_counts_as_refused),
        cmocka_unit_test(only_what_may_pass_is_transient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
