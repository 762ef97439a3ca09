/* Opening TCP sockets; see socket.h. */
#include "net/socket.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "net/endpoint.h"

/* A dead peer is given up after 60 + 4 x 15 seconds of silence. */
enum { KEEP_ALIVE_IDLE_S = 60, KEEP_ALIVE_INTERVAL_S = 15, KEEP_ALIVE_SILENCE_MS = 60000 };
enum { PROBES_MAX = 127 /* the kernel's limit */ };

socklen_t net_sockaddr_len(const struct sockaddr *address) {
    assert(address->sa_family == AF_INET || address->sa_family == AF_INET6);
    return address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static int set_option(int fd, int level, int name, int value) {
    return setsockopt(fd, level, name, &value, sizeof value);
}

void net_socket_keep_alive(int fd, int idle_s, int interval_s, int64_t silence_ms) {
    int64_t silence_s = (silence_ms + 999) / 1000, least_s = (silence_s + PROBES_MAX - 1) / PROBES_MAX;
    int every_s = least_s > interval_s ? (int)least_s : interval_s;
    (void)set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, every_s);
    (void)set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, (int)((silence_s + every_s - 1) / every_s));
}

/* Comforts: a kernel that lacks one of them still gives a working connection. */
static void tune(int fd) {
    (void)set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    net_socket_keep_alive(fd, KEEP_ALIVE_IDLE_S, KEEP_ALIVE_INTERVAL_S, KEEP_ALIVE_SILENCE_MS);
}

static int open_stream(const struct sockaddr *address) {
    return socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

/* Closes `fd` and reports `what` on `address`, keeping errno. */
static int fail(int fd, const struct sockaddr *address, const char *what) {
    int error_number = errno;
    char text[NET_ADDRESS_TEXT_MAX];
    if (fd >= 0) {
        (void)close(fd);
    }
    int code = status_fail_errno(error_number, "%s %s", what, net_address_format(address, text));
    errno = error_number;
    return code;
}

int net_socket_listen(const struct sockaddr *address, bool v6_only, int *out_fd) {
    int fd = open_stream(address);
    if (fd < 0) {
        return fail(fd, address, "open a socket for");
    }
    tune(fd);
    (void)set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6 && set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, v6_only) < 0) {
        return fail(fd, address, "configure a socket for");
    }
    if (bind(fd, address, net_sockaddr_len(address)) < 0 || listen(fd, SOMAXCONN) < 0) {
        return fail(fd, address, "listen on");
    }
    *out_fd = fd;
    return 0;
}

int net_socket_connect(const struct sockaddr *address, int *out_fd) {
    int fd = open_stream(address);
    if (fd < 0) {
        return fail(fd, address, "open a socket for");
    }
    tune(fd);
    if (connect(fd, address, net_sockaddr_len(address)) < 0 && errno != EINPROGRESS) {
        return fail(fd, address, "connect to");
    }
    *out_fd = fd;
    return 0;
}

static bool is_connected_to_itself(int fd) {
    struct sockaddr_storage local, peer;
    socklen_t local_len = sizeof local, peer_len = sizeof peer;
    if (getsockname(fd, (struct sockaddr *)&local, &local_len) < 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_len) < 0) {
        return false;
    }
    return local_len == peer_len && memcmp(&local, &peer, local_len) == 0;
}

int net_socket_connect_result(int fd) {
    int error_number = 0;
    socklen_t len = sizeof error_number;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &len) < 0) {
        return errno;
    }
    return error_number == 0 && is_connected_to_itself(fd) ? ECONNREFUSED : error_number;
}

bool net_socket_error_is_transient(int error_number) {
    switch (error_number) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH: /* a host or network that is still coming up */
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case EAGAIN: /* no local port just now */
    case EADDRNOTAVAIL:
        return true;
    default:
        return false;
    }
}
