/* Workers as forks of a server that has imported; see guardian_preload.h. */
#include "agent/guardian/guardian_preload.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/guardian/spawn.h"
#include "base/absence.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

enum {
    NONE = -1,
    ORDER_FDS = 5,    /* streams, what it is given, and both ends of its socket */
    GUARDIAN_FDS = 32 /* of its own, and those of frames under way; a pidfd of each worker comes on top */
};

struct preload_order {
    struct preload_order *next;
    uint32_t id;
    struct spawn_fds fds; /* owned */
    int life_fd;          /* the packet socket to its child; NONE: the server has not been told */
    int64_t sent_ns;
    size_t length;
    uint8_t body[];
};

static void tell(struct guardian_preload *p, enum guardian_preload_kind kind, uint32_t id, const char *text) {
    struct guardian_preload_news news;
    memset(&news, 0, sizeof news); /* padding travels too */
    news.kind = kind;
    news.id = id;
    news.pid = p->pid;
    (void)snprintf(news.text, sizeof news.text, "%s", text);
    p->host.tell(p->host.ctx, &news);
}

/* ---- orders ---- */

static void fd_close(int *fd) {
    if (*fd >= 0) {
        (void)close(*fd);
        *fd = NONE;
    }
}

/* Takes it out of the list. */
static void order_unlink(struct guardian_preload *p, struct preload_order *order) {
    struct preload_order **at = &p->first;
    while (*at != order) {
        at = &(*at)->next;
    }
    *at = order->next;
    p->order_count--;
}

static void order_free(struct preload_order *order) {
    fd_close(&order->fds.out);
    fd_close(&order->fds.err);
    fd_close(&order->life_fd);
    if (order->fds.given > 0) {
        (void)close(order->fds.given);
    }
    free(order);
}

/* The end of its socket ends a child that comes after all. */
static void start_as_usual(struct guardian_preload *p, struct preload_order *order, const char *why) {
    order_unlink(p, order);
    fd_close(&order->life_fd);
    tell(p, GUARDIAN_PRELOAD_AS_USUAL, order->id, why);
    p->host.spawn(p->host.ctx, order->body, order->length, &order->fds);
    order_free(order);
}

static void start_all_as_usual(struct guardian_preload *p, const char *why) {
    while (p->first) {
        start_as_usual(p, p->first, why);
    }
}

/* ---- the server ---- */

static void channel_close(struct guardian_preload *p) {
    if (p->has_channel) {
        guardian_channel_done(&p->channel); /* leaves the epoll set with it */
        p->has_channel = false;
    }
    p->state = PRELOAD_NONE;
}

static void server_drop(struct guardian_preload *p, const char *why) {
    if (p->pid > 0) {
        (void)kill(p->pid, SIGKILL);
    }
    channel_close(p);
    start_all_as_usual(p, why);
}

static void channel_update(struct guardian_preload *p) {
    bool writes = p->has_channel && guardian_channel_waits(&p->channel);
    if (p->has_channel && writes != p->writes) {
        p->writes = writes;
        (void)p->host.watch(p->host.ctx, p->channel.fd, EPOLLIN | (writes ? EPOLLOUT : 0U), true, false);
    }
}

/* False: the server cannot be reached. */
static bool order_send(struct guardian_preload *p, struct preload_order *order) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return false;
    }
    /* Of its own streams the server's are others. */
    int fds[GUARDIAN_FRAME_FDS_MAX] = {order->fds.out >= 0 ? order->fds.out : STDOUT_FILENO,
                                       order->fds.err >= 0 ? order->fds.err : STDERR_FILENO, pair[1], order->fds.given};
    size_t fd_count = order->fds.given > 0 ? GUARDIAN_FRAME_FDS_MAX : GUARDIAN_FRAME_FDS_MAX - 1;
    bool sent =
        p->host.watch(p->host.ctx, pair[0], EPOLLIN, false, true) &&
        guardian_channel_send(&p->channel, PRELOAD_FRAME_ORDER, order->body, order->length, fds, fd_count) == MUSTER_OK;
    (void)close(pair[1]);
    order->life_fd = pair[0];
    order->sent_ns = clock_monotonic_ns();
    if (!sent) {
        fd_close(&order->life_fd);
    }
    return sent;
}

static void orders_send(struct guardian_preload *p) {
    for (struct preload_order *order = p->first; order; order = order->next) {
        if (order->life_fd < 0 && !order_send(p, order)) {
            server_drop(p, "the preload server cannot be reached");
            return;
        }
    }
    channel_update(p);
}

bool guardian_preload_timeout(const char *text, int64_t *out_ns) {
    double seconds = GUARDIAN_PRELOAD_IMPORT_S, given = 0;
    bool is_number = text && str_parse_double(text, &given) && given > 0 && given <= GUARDIAN_PRELOAD_TIMEOUT_MAX_S;
    seconds = is_number ? given : seconds;
    *out_ns = (int64_t)(seconds * (double)CLOCK_NS_PER_S);
    return is_number || !text;
}

void guardian_preload_init(struct guardian_preload *p, const struct guardian_preload_host *host) {
    struct rlimit files;
    *p = (struct guardian_preload){.host = *host};
    (void)guardian_preload_timeout(getenv(GUARDIAN_PRELOAD_TIMEOUT_VARIABLE), &p->import_timeout_ns);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > GUARDIAN_FDS) {
        p->orders_max = (size_t)((files.rlim_cur - GUARDIAN_FDS) / (ORDER_FDS + 1));
    }
}

static int server_spawn(struct guardian_preload *p, const struct guardian_order *order, int socket_fd, char *why,
                        size_t size) {
    struct spawn_request request = {order->argv, order->envp, socket_fd, NONE, order->cpus, order->head.cpus_bytes, 0};
    struct spawn_failure failure;
    p->pid = spawn_process(&request, &failure);
    if (p->pid < 0) {
        p->pid = 0;
        spawn_explain(&request, &failure, why, size);
        return MUSTER_ESYSTEM;
    }
    return MUSTER_OK;
}

static void import_begun(struct guardian_preload *p, const char *module) {
    p->import_ns = clock_monotonic_ns();
    (void)snprintf(p->importing, sizeof p->importing, "%s", module);
}

void guardian_preload_start(struct guardian_preload *p, const struct guardian_order *order) {
    char why[GUARDIAN_WHY_BYTES] = "no socket for it";
    int pair[2];
    guardian_preload_stop(p);
    start_all_as_usual(p, "another preload server takes its place");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        tell(p, GUARDIAN_PRELOAD_REFUSED, 0, why);
        return;
    }
    (void)fcntl(pair[0], F_SETFL, O_NONBLOCK);
    int status = server_spawn(p, order, pair[1], why, sizeof why);
    (void)close(pair[1]);
    if (status == MUSTER_OK && p->host.watch(p->host.ctx, pair[0], EPOLLIN, true, true)) {
        guardian_channel_init(&p->channel, pair[0], GUARDIAN_QUEUE_BYTES_MAX);
        p->has_channel = true;
        p->writes = false;
        p->state = PRELOAD_IMPORTING;
        import_begun(p, "its first module");
        return;
    }
    (void)close(pair[0]);
    guardian_preload_stop(p);
    tell(p, GUARDIAN_PRELOAD_REFUSED, 0, why);
}

bool guardian_preload_take(struct guardian_preload *p, const uint8_t *body, size_t length,
                           const struct spawn_fds *fds) {
    struct guardian_spawn_head head;
    bool is_possible = p->state != PRELOAD_NONE && p->order_count < p->orders_max;
    struct preload_order *order = is_possible ? malloc(sizeof *order + length) : NULL;
    if (!order) {
        return false;
    }
    memcpy(&head, body, sizeof head);
    *order = (struct preload_order){.id = head.id, .fds = *fds, .life_fd = NONE, .length = length};
    memcpy(order->body, body, length);
    struct preload_order **at = &p->first;
    while (*at) {
        at = &(*at)->next;
    }
    *at = order;
    p->order_count++;
    if (p->state == PRELOAD_READY) {
        orders_send(p);
    }
    return true;
}

/* ---- what it says ---- */

static void frame_handle(struct guardian_preload *p, const struct guardian_frame *frame, const uint8_t *body) {
    char text[GUARDIAN_PRELOAD_TEXT_BYTES];
    size_t length = frame->length < sizeof text ? frame->length : sizeof text - 1;
    if (length > 0) {
        memcpy(text, body, length);
    }
    text[length] = '\0';
    if (frame->kind == PRELOAD_FRAME_READY && p->state == PRELOAD_IMPORTING) {
        p->state = PRELOAD_READY;
        tell(p, GUARDIAN_PRELOAD_READY, 0, text);
        orders_send(p);
        return;
    }
    if (frame->kind == PRELOAD_FRAME_IMPORTING && p->state == PRELOAD_IMPORTING) {
        import_begun(p, text);
        return;
    }
    if (frame->kind == PRELOAD_FRAME_LEFT_OUT && p->state == PRELOAD_IMPORTING) {
        tell(p, GUARDIAN_PRELOAD_LEFT_OUT, 0, text);
        return;
    }
    bool is_refusal = frame->kind == PRELOAD_FRAME_REFUSED;
    tell(p, GUARDIAN_PRELOAD_REFUSED, 0, is_refusal ? text : "it does not speak as it should");
    server_drop(p, "the preload server has refused");
}

void guardian_preload_heard(struct guardian_preload *p, uint32_t events) {
    if (!p->has_channel) {
        return;
    }
    bool is_open = guardian_channel_flush(&p->channel) == MUSTER_OK;
    if (is_open && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
        is_open = guardian_channel_receive(&p->channel) == MUSTER_OK;
        struct guardian_frame frame;
        for (const uint8_t *body; p->has_channel && guardian_channel_next(&p->channel, &frame, &body);) {
            frame_handle(p, &frame, body);
        }
    }
    if (!is_open && p->has_channel) {
        server_drop(p, "the preload server has ended");
    }
    channel_update(p);
}

/* ---- what a child says ---- */

static void child_comes(struct guardian_preload *p, struct preload_order *order, pid_t pid) {
    if (!p->host.adopt(p->host.ctx, order->id, pid)) {
        start_as_usual(p, order, "the fork has ended before it was the worker");
        return;
    }
    (void)send(order->life_fd, "G", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    order_unlink(p, order);
    order_free(order);
}

static void order_heard(struct guardian_preload *p, struct preload_order *order) {
    char packet[GUARDIAN_PRELOAD_TEXT_BYTES];
    ssize_t length = recv(order->life_fd, packet, sizeof packet - 1, MSG_DONTWAIT);
    int32_t pid = 0;
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    p->answered_ns = clock_monotonic_ns();
    if (length == (ssize_t)(1 + sizeof pid) && packet[0] == 'P') {
        memcpy(&pid, packet + 1, sizeof pid);
        child_comes(p, order, pid);
    } else if (length > 1 && packet[0] == 'N') {
        packet[length] = '\0';
        start_as_usual(p, order, packet + 1);
    } else {
        start_as_usual(p, order, "the fork has ended before it was the worker");
    }
}

void guardian_preload_child_heard(struct guardian_preload *p, int fd) {
    struct preload_order *order = p->first;
    while (order && order->life_fd != fd) {
        order = order->next;
    }
    if (order) {
        order_heard(p, order);
    }
}

/* ---- time ---- */

static int left_ms(int64_t since_ns, int64_t timeout_ns, int64_t now_ns) {
    int64_t left_ns = since_ns + timeout_ns - now_ns;
    return left_ns > 0 ? (int)(left_ns / CLOCK_NS_PER_MS) + 1 : 0;
}

/* From its last answer on: hundreds of orders may wait for their turn. */
static int order_left_ms(const struct guardian_preload *p, const struct preload_order *order, int64_t now_ns) {
    int64_t since_ns = order->sent_ns > p->answered_ns ? order->sent_ns : p->answered_ns;
    return left_ms(since_ns, GUARDIAN_PRELOAD_FORK_MS * CLOCK_NS_PER_MS, now_ns);
}

/* Orders go out in the order of the list. */
static const struct preload_order *oldest(const struct guardian_preload *p) {
    return p->first && p->first->life_fd >= 0 ? p->first : NULL;
}

int guardian_preload_wait_ms(const struct guardian_preload *p, int64_t now_ns) {
    const struct preload_order *order = oldest(p);
    if (p->state == PRELOAD_IMPORTING) {
        return left_ms(p->import_ns, p->import_timeout_ns, now_ns);
    }
    return order ? order_left_ms(p, order, now_ns) : -1;
}

/* Who comes too late to judge was away itself, and perhaps the server with it: it has as long again. */
static void import_expire(struct guardian_preload *p, int64_t now_ns) {
    char why[GUARDIAN_PRELOAD_TEXT_BYTES];
    if (left_ms(p->import_ns, p->import_timeout_ns, now_ns) > 0) {
        return;
    }
    if (now_ns - p->import_ns - p->import_timeout_ns > ABSENCE_LONG_MS * CLOCK_NS_PER_MS) {
        p->import_ns = now_ns;
        return;
    }
    (void)snprintf(why, sizeof why, "the import of %s has made no progress for %.3g s (%s), and is given up",
                   p->importing, (double)p->import_timeout_ns / (double)CLOCK_NS_PER_S,
                   GUARDIAN_PRELOAD_TIMEOUT_VARIABLE);
    tell(p, GUARDIAN_PRELOAD_REFUSED, 0, why);
    server_drop(p, "the preload server makes no progress");
}

void guardian_preload_expire(struct guardian_preload *p, int64_t now_ns) {
    const struct preload_order *order = oldest(p);
    if (p->state == PRELOAD_IMPORTING) {
        import_expire(p, now_ns);
    } else if (order && order_left_ms(p, order, now_ns) == 0) {
        server_drop(p, "the preload server does not answer");
    }
}

void guardian_preload_settle(struct guardian_preload *p) {
    while (p->first) {
        struct preload_order *order = p->first;
        if (order->life_fd < 0) {
            p->host.skip(p->host.ctx, order->id);
            order_unlink(p, order);
            order_free(order);
            continue;
        }
        struct pollfd wait = {.fd = order->life_fd, .events = POLLIN};
        if (p->has_channel) {
            (void)guardian_channel_flush(&p->channel);
        }
        (void)poll(&wait, 1, order_left_ms(p, order, clock_monotonic_ns()));
        if (wait.revents != 0) {
            order_heard(p, order);
        }
        guardian_preload_expire(p, clock_monotonic_ns());
    }
}

/* ---- its end ---- */

bool guardian_preload_ended(struct guardian_preload *p, pid_t pid, int wait_status) {
    if (p->pid == 0 || pid != p->pid) {
        return false;
    }
    struct guardian_preload_news news;
    memset(&news, 0, sizeof news);
    news.kind = GUARDIAN_PRELOAD_ENDED;
    news.pid = pid;
    news.wait_status = wait_status;
    p->pid = 0;           /* reaped: the number may be another process's by now */
    if (p->has_channel) { /* what it said before */
        guardian_preload_heard(p, EPOLLIN);
    }
    channel_close(p);
    start_all_as_usual(p, "the preload server has ended");
    p->host.tell(p->host.ctx, &news);
    return true;
}

void guardian_preload_stop(struct guardian_preload *p) {
    channel_close(p);
    if (p->pid > 0) {
        (void)kill(p->pid, SIGKILL); /* reaped as an orphan */
        p->pid = 0;
    }
}
