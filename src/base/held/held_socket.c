/* See held_socket.h. */
#include "base/held/held_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FDS_MAX = 4 /* that are taken off a message, to be closed if it is not one */ };

bool held_address(const char *name, struct sockaddr_un *out, socklen_t *out_length) {
    size_t length = strnlen(name, sizeof out->sun_path);
    if (length == 0 || length >= sizeof out->sun_path) {
        return false;
    }
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path + 1, name, length); /* behind the zero that makes it abstract */
    *out_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    return true;
}

bool held_peer_is_ours(int socket_fd) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

pid_t held_peer_process(int socket_fd) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    return getsockopt(socket_fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.pid : 0;
}

int held_send(int socket_fd, const void *bytes, size_t count, int fd) {
    union {
        char bytes[CMSG_SPACE(sizeof fd)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec body = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? errno : 0;
}

/* The descriptor that came, if it was one. */
static int take_fd(struct msghdr *message) {
    int fds[FDS_MAX];
    size_t count = 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
            size_t bytes = head->cmsg_len - CMSG_LEN(0); /* the kernel puts all of them into one */
            count = bytes / sizeof *fds;
            memcpy(fds, CMSG_DATA(head), bytes);
        }
    }
    for (size_t i = 0; count != 1 && i < count; i++) {
        (void)close(fds[i]);
    }
    return count == 1 ? fds[0] : -1;
}

int held_receive(int socket_fd, void *bytes, size_t max, struct held_received *out) {
    union {
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec body = {.iov_base = bytes, .iov_len = max};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t count;
    do {
        count = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
        return errno;
    }
    *out = (struct held_received){
        .count = (size_t)count, .fd = take_fd(&message), .is_cut = (message.msg_flags & MSG_CTRUNC) != 0};
    if (out->is_cut && out->fd >= 0) { /* there were more */
        (void)close(out->fd);
        out->fd = -1;
    }
    if (count == 0 && out->fd >= 0) {
        (void)close(out->fd);
        out->fd = -1;
    }
    return count > 0 ? 0 : ECONNRESET;
}

bool held_is_memory(int fd, uint64_t *out_bytes) {
    struct stat seen;
    if (fstat(fd, &seen) != 0 || !S_ISREG(seen.st_mode) || seen.st_nlink != 0 || fcntl(fd, F_GET_SEALS) < 0) {
        return false;
    }
    *out_bytes = (uint64_t)seen.st_size;
    return true;
}
