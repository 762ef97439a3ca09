/* A stream over a TCP socket; see link.h. */
#include <time.h> /* before the kernel's header, which uses struct timespec without it */

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/p2p/link.h"

enum { JOINED_BYTES_MAX = 2048 };

static ssize_t result_of(ssize_t n) {
    if (n >= 0) {
        return n;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? LINK_AGAIN : LINK_BROKEN;
}

static ssize_t tcp_read(struct link *link, const struct iovec *parts, int part_count) {
    ssize_t n;
    if (part_count == 1) {
        n = recv(link->fd, parts[0].iov_base, parts[0].iov_len, 0); /* cheaper than recvmsg() */
    } else {
        struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)part_count};
        n = recvmsg(link->fd, &message, 0);
    }
    return n == 0 ? LINK_END : result_of(n);
}

/* Short parts side by side: send() of a copy is cheaper than sendmsg(). 0: they are too long. */
static size_t join(const struct iovec *parts, int part_count, uint8_t out[JOINED_BYTES_MAX]) {
    size_t bytes = 0;
    for (int i = 0; i < part_count; i++) {
        if (parts[i].iov_len > JOINED_BYTES_MAX - bytes) {
            return 0;
        }
        memcpy(out + bytes, parts[i].iov_base, parts[i].iov_len);
        bytes += parts[i].iov_len;
    }
    return bytes;
}

static ssize_t tcp_write(struct link *link, const struct iovec *parts, int part_count) {
    if (part_count == 1) {
        return result_of(send(link->fd, parts[0].iov_base, parts[0].iov_len, MSG_NOSIGNAL));
    }
    uint8_t joined[JOINED_BYTES_MAX];
    size_t bytes = join(parts, part_count, joined);
    if (bytes > 0) {
        return result_of(send(link->fd, joined, bytes, MSG_NOSIGNAL));
    }
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)part_count};
    return result_of(sendmsg(link->fd, &message, MSG_NOSIGNAL));
}

/* ---- without a copy ---- */

static bool tcp_allow_zero_copy(struct link *link) {
    const int on = 1;
    return setsockopt(link->fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;
}

/* The limits of locked memory and of the socket's, or memory that the kernel cannot take hold of (a device's). Other
 * errors are the connection's, and told but once. */
static bool refuses_to_hold(int error_number) {
    return error_number == ENOBUFS || error_number == ENOMEM || error_number == EFAULT || error_number == EINVAL ||
           error_number == EOPNOTSUPP;
}

/* What goes before the last part is copied: its memory is written to again at once. */
static ssize_t tcp_write_zero_copy(struct link *link, const struct iovec *parts, int part_count, enum link_hold *out) {
    const struct iovec *last = &parts[part_count - 1];
    size_t before = 0;
    ssize_t n = 0;
    *out = LINK_COPIED;
    for (int i = 0; i + 1 < part_count; i++) {
        before += parts[i].iov_len;
    }
    if (before > 0) {
        struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)part_count - 1};
        n = result_of(sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_MORE));
        if (n < (ssize_t)before) {
            return n;
        }
    }
    ssize_t held = send(link->fd, last->iov_base, last->iov_len, MSG_NOSIGNAL | MSG_ZEROCOPY);
    if (held < 0 && refuses_to_hold(errno)) {
        *out = LINK_NO_ROOM;
        held = send(link->fd, last->iov_base, last->iov_len, MSG_NOSIGNAL);
    } else if (held > 0) {
        *out = LINK_HELD;
    }
    held = result_of(held);
    return held == LINK_BROKEN ? LINK_BROKEN : n + held;
}

static bool is_error_report(const struct cmsghdr *control) {
    return (control->cmsg_level == SOL_IP && control->cmsg_type == IP_RECVERR) ||
           (control->cmsg_level == SOL_IPV6 && control->cmsg_type == IPV6_RECVERR);
}

/* The kernel tells through the socket's queue of errors. Other reports there are passed over. */
static bool tcp_released(struct link *link, struct link_release *out) {
    _Alignas(struct cmsghdr) uint8_t space[256];
    for (;;) {
        struct msghdr message = {.msg_control = space, .msg_controllen = sizeof space};
        if (recvmsg(link->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            return false;
        }
        for (struct cmsghdr *at = CMSG_FIRSTHDR(&message); at; at = CMSG_NXTHDR(&message, at)) {
            struct sock_extended_err report;
            memcpy(&report, CMSG_DATA(at), sizeof report);
            if (is_error_report(at) && report.ee_origin == SO_EE_ORIGIN_ZEROCOPY && report.ee_errno == 0) {
                *out = (struct link_release){report.ee_info, report.ee_data,
                                             (report.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0};
                return true;
            }
        }
    }
}

static void tcp_close(struct link *link) {
    (void)close(link->fd);
    free(link);
}

static const struct link_kind tcp = {.name = "tcp",
                                     .read = tcp_read,
                                     .write = tcp_write,
                                     .allow_zero_copy = tcp_allow_zero_copy,
                                     .write_zero_copy = tcp_write_zero_copy,
                                     .released = tcp_released,
                                     .close = tcp_close};

struct link *link_tcp_create(int fd) {
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        (void)close(fd);
        return NULL;
    }
    link->kind = &tcp;
    link->fd = fd;
    return link;
}
