/* libc's names for the code under test: the linker sends them here (--wrap, see CMakeLists.txt). Only what this code
 * calls, on the simulated kernel of the host that runs. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "sim_kernel.h"

enum { RANDOM_BYTES_A_DRAW = 8 };

/* The names are the linker's. */
int __real_close(int fd);
int __real_open(const char *path, int flags, ...);
int __wrap_socket(int family, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_listen(int fd, int backlog);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t len, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *len);
int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_shutdown(int fd, int how);
int __wrap_close(int fd);
int __wrap_open(const char *path, int flags, ...);
int __wrap_epoll_create1(int flags);
int __wrap_epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event);
int __wrap_epoll_wait(int epoll_fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
ssize_t __wrap_getrandom(void *out, size_t len, unsigned flags);
pid_t __wrap_getpid(void);
int __wrap_malloc_trim(size_t pad);

static int result(int error_number) {
    errno = error_number;
    return error_number ? -1 : 0;
}

static ssize_t count_or_error(ssize_t count) {
    if (count >= 0) {
        return count;
    }
    errno = (int)-count;
    return -1;
}

/* ---- sockets ---- */

int __wrap_socket(int family, int type, int protocol) {
    (void)type;
    (void)protocol;
    struct sim_file *file = sim_file_new(SIM_STREAM);
    file->family = family;
    return file->fd;
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len) {
    struct sim_file *file = sim_file_of(fd);
    (void)len;
    return result(file ? sim_tcp_bind(file, sim_address_of(address)) : EBADF);
}

int __wrap_listen(int fd, int backlog) {
    struct sim_file *file = sim_file_of(fd);
    (void)backlog;
    return result(file ? sim_tcp_listen(file) : EBADF);
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t len) {
    struct sim_file *file = sim_file_of(fd);
    (void)len;
    return result(file ? sim_tcp_connect(file, sim_address_of(address)) : EBADF);
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags) {
    struct sim_file *listener = sim_file_of(fd);
    (void)address; /* nobody asks for it */
    (void)len;
    (void)flags;
    struct sim_file *file = listener ? sim_tcp_accept(listener) : NULL;
    return file ? file->fd : result(listener ? EAGAIN : EBADF);
}

ssize_t __wrap_recv(int fd, void *bytes, size_t len, int flags) {
    struct sim_file *file = sim_file_of(fd);
    (void)flags;
    return count_or_error(file ? sim_tcp_recv(file, bytes, len) : -EBADF);
}

ssize_t __wrap_send(int fd, const void *bytes, size_t len, int flags) {
    struct sim_file *file = sim_file_of(fd);
    (void)flags;
    return count_or_error(file ? sim_tcp_send(file, bytes, len) : -EBADF);
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
    ssize_t sum = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        ssize_t sent = __wrap_send(fd, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len, flags);
        if (sent < 0) {
            return sum > 0 ? sum : -1;
        }
        sum += sent;
        if ((size_t)sent < message->msg_iov[i].iov_len) {
            break;
        }
    }
    return sum;
}

int __wrap_getsockname(int fd, struct sockaddr *address, socklen_t *len) {
    struct sim_file *file = sim_file_of(fd);
    if (file) {
        sim_address_put(file, file->local, address, len);
    }
    return result(file ? 0 : EBADF);
}

int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *len) {
    struct sim_file *file = sim_file_of(fd);
    if (file && file->state != SIM_CONNECTED) {
        return result(ENOTCONN);
    }
    if (file) {
        sim_address_put(file, file->remote, address, len);
    }
    return result(file ? 0 : EBADF);
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len) {
    struct sim_file *file = sim_file_of(fd);
    if (!file || level != SOL_SOCKET || name != SO_ERROR || *len < sizeof file->error) {
        return result(file ? ENOPROTOOPT : EBADF);
    }
    memcpy(value, &file->error, sizeof file->error);
    file->error = 0;
    return 0;
}

/* Keep-alive is what the simulation knows of; the rest changes nothing that is seen. */
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len) {
    enum { IDLE_S = 60, PROBES_S = 60 }; /* net/socket.c sets these */
    struct sim_file *file = sim_file_of(fd);
    (void)value;
    (void)len;
    if (file && level == SOL_SOCKET && name == SO_KEEPALIVE) {
        file->keep_alive_us = (IDLE_S + PROBES_S) * SIM_S;
    }
    return result(file ? 0 : EBADF);
}

int __wrap_shutdown(int fd, int how) {
    struct sim_file *file = sim_file_of(fd);
    (void)how; /* always both */
    if (file) {
        sim_tcp_shutdown(file);
    }
    return result(file ? 0 : EBADF);
}

int __wrap_close(int fd) {
    if (fd < SIM_FD_FIRST) {
        return __real_close(fd);
    }
    struct sim_file *file = sim_file_of(fd);
    if (file) {
        sim_file_close(file);
    }
    return result(file ? 0 : EBADF);
}

int __wrap_open(const char *path, int flags, ...) {
    return strcmp(path, "/dev/null") == 0 ? sim_file_new(SIM_NOTHING)->fd : __real_open(path, flags);
}

/* ---- epoll ---- */

int __wrap_epoll_create1(int flags) {
    (void)flags;
    return sim_file_new(SIM_EPOLL)->fd;
}

int __wrap_epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event) {
    struct sim_file *epoll = sim_file_of(epoll_fd);
    struct sim_file *file = sim_file_of(fd);
    if (!epoll || !file) {
        return result(EBADF);
    }
    sim_list_remove(&file->in_epoll);
    file->epoll = operation == EPOLL_CTL_DEL ? NULL : epoll;
    if (file->epoll) {
        file->epoll_events = event->events;
        file->epoll_data = event->data.u64;
        sim_file_changed(file);
    }
    return 0;
}

int __wrap_epoll_wait(int epoll_fd, struct epoll_event *events, int max, int timeout_ms) {
    struct sim_file *epoll = sim_file_of(epoll_fd);
    struct sim_list mark;
    int count = 0;
    (void)timeout_ms; /* always 0: nothing blocks */
    if (!epoll) {
        return result(EBADF);
    }
    sim_list_init(&mark);
    sim_list_append(&epoll->ready, &mark);
    while (count < max && epoll->ready.next != &mark) {
        struct sim_list *item = epoll->ready.next;
        struct sim_file *file = (struct sim_file *)(void *)((char *)item - offsetof(struct sim_file, in_epoll));
        uint32_t state = sim_file_state(file) & (file->epoll_events | EPOLLERR | EPOLLHUP);
        sim_list_remove(item);
        if (state == 0) {
            continue;
        }
        events[count].events = state;
        events[count++].data.u64 = file->epoll_data;
        if (!(file->epoll_events & EPOLLET)) {
            sim_list_append(&epoll->ready, item); /* until it is seen not to be ready */
        }
    }
    sim_list_remove(&mark);
    return count;
}

/* ---- clocks, random numbers, identity ---- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    const struct sim_host *host = sim_kernel.current;
    int64_t us = clock == CLOCK_REALTIME ? sim_wall_us(host) : sim_monotonic_us(host);
    *out = (struct timespec){.tv_sec = us / SIM_S, .tv_nsec = us % SIM_S * 1000};
    return 0;
}

ssize_t __wrap_getrandom(void *out, size_t len, unsigned flags) {
    uint8_t *at = out;
    (void)flags;
    for (size_t done = 0; done < len; done += RANDOM_BYTES_A_DRAW) {
        uint64_t drawn = sim_random_next(&sim_kernel.current->random);
        memcpy(at + done, &drawn, len - done < RANDOM_BYTES_A_DRAW ? len - done : RANDOM_BYTES_A_DRAW);
    }
    return (ssize_t)len;
}

pid_t __wrap_getpid(void) {
    return sim_kernel.current->pid;
}

int __wrap_malloc_trim(size_t pad) {
    (void)pad;
    return 0;
}

/* ---- the interfaces of the host ---- */

int uv_interface_addresses(uv_interface_address_t **out, int *count) {
    static uv_interface_address_t one; /* read at once, and given back */
    one = (uv_interface_address_t){.name = (char *)(uintptr_t) "sim0"};
    one.address.address4.sin_family = AF_INET;
    one.address.address4.sin_addr.s_addr = htonl(sim_kernel.current->addr);
    *out = &one;
    *count = 1;
    return 0;
}

void uv_free_interface_addresses(uv_interface_address_t *list, int count) {
    (void)list;
    (void)count;
}
