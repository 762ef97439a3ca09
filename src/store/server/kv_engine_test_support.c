/* Engine and raw clients in one thread; see kv_engine_test_support.h. */
#include "store/server/kv_engine_test_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000 };

const char store_handshake[] = "\0\xce\xf7\x85\x3c";

void scene_open(struct scene *scene, const struct kv_server_options *wanted) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&address};
    struct kv_server_options options = *wanted;
    options.addresses = addresses;
    options.address_count = 1;
    assert_int_equal(kv_engine_create(&options, &scene->engine), 0);
    scene->address = address;
    scene->address.sin_port = htons(kv_engine_port(scene->engine));
}

int connect_raw(const struct scene *scene) {
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    int rc = connect(fd, (const struct sockaddr *)&scene->address, sizeof scene->address);
    assert_true(rc == 0 || errno == EINPROGRESS); /* the backlog takes it without the engine's help */
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    return fd;
}

void serve_until(const struct scene *scene, int fd, short events) {
    for (;;) {
        struct pollfd fds[2] = {{.fd = kv_engine_fd(scene->engine), .events = POLLIN}, {.fd = fd, .events = events}};
        int ready = poll(fds, 2, PATIENCE_MS);
        assert_true(ready > 0);
        if (fds[0].revents) {
            kv_engine_turn(scene->engine);
        }
        if (fds[1].revents) {
            return;
        }
    }
}

void serve_all(const struct scene *scene) {
    struct pollfd fds = {.fd = kv_engine_fd(scene->engine), .events = POLLIN};
    while (poll(&fds, 1, 0) > 0) {
        kv_engine_turn(scene->engine);
    }
}

void send_all(const struct scene *scene, int fd, const void *bytes, size_t len) {
    const uint8_t *at = bytes;
    while (len > 0) {
        ssize_t sent = send(fd, at, len, MSG_NOSIGNAL);
        if (sent < 0) {
            assert_int_equal(errno, EAGAIN);
            serve_until(scene, fd, POLLOUT);
            continue;
        }
        at += sent;
        len -= (size_t)sent;
    }
}

void receive_all(const struct scene *scene, int fd, uint8_t *out, size_t len) {
    while (len > 0) {
        ssize_t got = recv(fd, out, len, 0);
        if (got < 0) {
            assert_int_equal(errno, EAGAIN);
            serve_until(scene, fd, POLLIN);
            continue;
        }
        assert_int_not_equal(got, 0); /* the server has closed */
        out += got;
        len -= (size_t)got;
    }
}

void expect(const struct scene *scene, int fd, const void *bytes, size_t len) {
    uint8_t got[1024];
    assert_true(len <= sizeof got);
    receive_all(scene, fd, got, len);
    assert_memory_equal(got, bytes, len);
}

void expect_silence(const struct scene *scene, int fd) {
    uint8_t byte;
    serve_all(scene);
    assert_int_equal(recv(fd, &byte, 1, 0), -1);
    assert_int_equal(errno, EAGAIN);
}

void expect_end(const struct scene *scene, int fd) {
    uint8_t byte;
    serve_until(scene, fd, POLLIN);
    ssize_t got = recv(fd, &byte, 1, 0);
    assert_true(got == 0 || (got < 0 && errno == ECONNRESET));
    (void)close(fd);
}

int open_client(const struct scene *scene) {
    int fd = connect_raw(scene);
    send_all(scene, fd, store_handshake, STORE_HANDSHAKE_BYTES);
    send_all(scene, fd, "\x0dping", 5);
    expect(scene, fd, "ping", 4);
    return fd;
}
