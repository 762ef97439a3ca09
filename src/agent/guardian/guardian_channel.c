/* Framing over the agent-guardian socket; see guardian_channel.h. */
#include "agent/guardian/guardian_channel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/status.h"

enum { READ_BYTES = 64 * 1024 };

struct guardian_channel_packet {
    struct guardian_channel_packet *next;
    size_t length; /* frame head included */
    size_t sent;
    int fds[GUARDIAN_FRAME_FDS_MAX]; /* owned; they travel with the first byte */
    size_t fd_count;
    uint8_t bytes[];
};

void guardian_channel_init(struct guardian_channel *c, int fd, size_t queue_max_bytes) {
    *c = (struct guardian_channel){.fd = fd, .queue_max_bytes = queue_max_bytes};
    buf_init(&c->in, sizeof(struct guardian_frame) + GUARDIAN_FRAME_BYTES_MAX + READ_BYTES);
}

static void fds_close(const int *fds, size_t count) {
    for (size_t i = 0; i < count; i++) {
        (void)close(fds[i]);
    }
}

static void packet_free(struct guardian_channel_packet *p) {
    fds_close(p->fds, p->fd_count);
    free(p);
}

void guardian_channel_done(struct guardian_channel *c) {
    while (c->first) {
        struct guardian_channel_packet *p = c->first;
        c->first = p->next;
        packet_free(p);
    }
    c->last = NULL;
    fds_close(c->fds, c->fd_count);
    c->fd_count = 0;
    buf_done(&c->in);
    if (c->fd >= 0) {
        (void)close(c->fd);
        c->fd = -1;
    }
}

/* One sendmsg; the number of bytes taken, 0 when the socket is full, or a negative code. */
static ssize_t socket_send(int socket_fd, struct iovec *parts, size_t part_count, const int *fds, size_t fd_count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * GUARDIAN_FRAME_FDS_MAX)];
    } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = part_count};
    if (fd_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(head), fds, sizeof(int) * fd_count);
    }
    for (;;) {
        ssize_t n = sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            return n;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS) {
            return 0; /* the last one: too many descriptors in flight; the receiver makes room */
        }
        if (errno == EBADF) {
            return status_fail_errno(errno, "a descriptor for a worker is not open");
        }
        if (errno != EINTR) {
            (void)status_fail_errno(errno, "the other end of the guardian's socket is gone");
            return MUSTER_ECLOSED;
        }
    }
}

int guardian_channel_flush(struct guardian_channel *c) {
    while (c->first) {
        struct guardian_channel_packet *p = c->first;
        struct iovec rest = {.iov_base = p->bytes + p->sent, .iov_len = p->length - p->sent};
        ssize_t n = socket_send(c->fd, &rest, 1, p->fds, p->fd_count);
        if (n < 0) {
            return (int)n;
        }
        if (n == 0) {
            return MUSTER_OK;
        }
        fds_close(p->fds, p->fd_count);
        p->fd_count = 0;
        p->sent += (size_t)n;
        c->queued_bytes -= (size_t)n;
        if (p->sent == p->length) {
            c->first = p->next;
            c->last = c->first ? c->last : NULL;
            packet_free(p);
        }
    }
    return MUSTER_OK;
}

static int packet_take_fds(struct guardian_channel_packet *p, const int *fds, size_t fd_count) {
    for (size_t i = 0; i < fd_count; i++) {
        int copy = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
        if (copy < 0) {
            return status_fail_errno(errno, "cannot duplicate a descriptor for a worker");
        }
        p->fds[p->fd_count++] = copy;
    }
    return MUSTER_OK;
}

static void packet_enqueue(struct guardian_channel *c, struct guardian_channel_packet *p) {
    if (c->last) {
        c->last->next = p;
    } else {
        c->first = p;
    }
    c->last = p;
    c->queued_bytes += p->length - p->sent;
}

/* Copies a frame of which the socket took `sent` bytes. */
static int frame_enqueue(struct guardian_channel *c, const struct iovec parts[2], size_t sent, const int *fds,
                         size_t fd_count) {
    size_t length = parts[0].iov_len + parts[1].iov_len;
    struct guardian_channel_packet *p = malloc(sizeof *p + length);
    if (!p) {
        return status_fail(MUSTER_ENOMEM, "no memory for a message of %zu bytes to the guardian", length);
    }
    *p = (struct guardian_channel_packet){.length = length, .sent = sent};
    memcpy(p->bytes, parts[0].iov_base, parts[0].iov_len);
    if (parts[1].iov_len > 0) {
        memcpy(p->bytes + parts[0].iov_len, parts[1].iov_base, parts[1].iov_len);
    }
    int status = sent == 0 ? packet_take_fds(p, fds, fd_count) : MUSTER_OK; /* they went with the first byte */
    if (status != MUSTER_OK) {
        packet_free(p);
        return status;
    }
    packet_enqueue(c, p);
    return MUSTER_OK;
}

/* Tries the socket first: then neither memory nor descriptors are needed, and the order to kill gets through without.
 */
int guardian_channel_send(struct guardian_channel *c, uint32_t kind, const void *body, size_t length, const int *fds,
                          size_t fd_count) {
    assert(fd_count <= GUARDIAN_FRAME_FDS_MAX);
    struct guardian_frame head = {.kind = kind, .length = (uint32_t)length};
    if (length > GUARDIAN_FRAME_BYTES_MAX || c->queued_bytes + length > c->queue_max_bytes) {
        return status_fail(MUSTER_ELIMIT, "a message of %zu bytes does not fit into the guardian's queue", length);
    }
    struct iovec parts[2] = {{.iov_base = &head, .iov_len = sizeof head},
                             {.iov_base = (void *)(uintptr_t)body, .iov_len = length}};
    ssize_t sent = 0;
    if (!c->first) {
        sent = socket_send(c->fd, parts, length > 0 ? 2 : 1, fds, fd_count);
    }
    if (sent < 0 || (size_t)sent == sizeof head + length) {
        return sent < 0 ? (int)sent : MUSTER_OK;
    }
    int status = frame_enqueue(c, parts, (size_t)sent, fds, fd_count);
    if (status != MUSTER_OK && sent > 0) {
        (void)shutdown(c->fd, SHUT_RDWR); /* half a frame is out: nothing can follow it */
    }
    return status;
}

/* Keeps the descriptors of one message; more than frames can carry is a broken peer. */
static int fds_keep(struct guardian_channel *c, struct msghdr *message) {
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        int fds[GUARDIAN_FRAME_FDS_MAX];
        assert(count <= GUARDIAN_FRAME_FDS_MAX); /* the control buffer has no room for more */
        memcpy(fds, CMSG_DATA(head), count * sizeof(int));
        if (c->fd_count + count > GUARDIAN_FDS_HELD_MAX) {
            fds_close(fds, count);
            return status_fail(MUSTER_EPROTOCOL, "more descriptors than frames on the guardian's socket");
        }
        memcpy(c->fds + c->fd_count, fds, count * sizeof(int));
        c->fd_count += count;
    }
    return message->msg_flags & MSG_CTRUNC
               ? status_fail(MUSTER_EPROTOCOL, "descriptors were lost on the guardian's socket: too many are open")
               : MUSTER_OK;
}

static void frame_drop_taken(struct guardian_channel *c) {
    buf_consume(&c->in, c->in_taken);
    c->in_taken = 0;
}

/* The head of the first frame, when it is there. */
static bool frame_head(const struct guardian_channel *c, struct guardian_frame *out) {
    if (c->in.len < sizeof *out) {
        return false;
    }
    memcpy(out, buf_bytes(&c->in), sizeof *out);
    return true;
}

int guardian_channel_receive(struct guardian_channel *c) {
    frame_drop_taken(c);
    uint8_t *room = buf_reserve(&c->in, READ_BYTES);
    if (!room) {
        return MUSTER_ENOMEM;
    }
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * GUARDIAN_FRAME_FDS_MAX)];
    } control;
    struct iovec part = {.iov_base = room, .iov_len = READ_BYTES};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(c->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? MUSTER_OK : MUSTER_ECLOSED;
    }
    if (n == 0) {
        return MUSTER_ECLOSED;
    }
    buf_commit(&c->in, (size_t)n);
    int status = fds_keep(c, &message);
    struct guardian_frame head;
    if (status == MUSTER_OK && frame_head(c, &head) && head.length > GUARDIAN_FRAME_BYTES_MAX) {
        status = status_fail(MUSTER_EPROTOCOL, "a frame of %u bytes on the guardian's socket", head.length);
    }
    return status;
}

bool guardian_channel_next(struct guardian_channel *c, struct guardian_frame *out, const uint8_t **body) {
    frame_drop_taken(c);
    struct guardian_frame head;
    if (!frame_head(c, &head) || c->in.len - sizeof head < head.length) {
        return false;
    }
    *out = head;
    *body = buf_bytes(&c->in) + sizeof head;
    c->in_taken = sizeof head + head.length;
    return true;
}

int guardian_channel_take_fd(struct guardian_channel *c) {
    if (c->fd_count == 0) {
        return -1;
    }
    int fd = c->fds[0];
    c->fd_count--;
    memmove(c->fds, c->fds + 1, c->fd_count * sizeof(int));
    return fd;
}
