/* A stream over a TCP socket; see link.h. */
#include <errno.h>
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

static void tcp_close(struct link *link) {
    (void)close(link->fd);
    free(link);
}

static const struct link_kind tcp = {.name = "tcp", .read = tcp_read, .write = tcp_write, .close = tcp_close};

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
