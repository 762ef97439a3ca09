/* The socket, its connections and the loop's handles around the table; see held.h. */
#include "agent/held/held.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/held/held_table.h"
#include "base/held/held_socket.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"

enum {
    ACCEPTS_PER_TURN = 4,   /* fewer than connections, so that those of one turn are heard before they are in the way */
    REQUESTS_PER_TURN = 16, /* of one connection */
    RELEASES_MAX = 64,      /* that another thread has been asked for; further ones are done at once */
    PAUSE_MS = 100,         /* while no descriptor is free for whoever connects */
    SOCKET_NAME_BYTES = 64,
};

struct connection {
    uv_poll_t poll;
    struct held *held;
    int fd;
    pid_t process;
    uint64_t used; /* by held->now */
};

struct held {
    char name[SOCKET_NAME_BYTES];
    uv_loop_t *loop;
    int listen_fd;
    uv_poll_t listener;
    uv_timer_t pause;
    struct held_table table;
    struct connection *connections[HELD_CONNECTIONS_MAX]; /* NULL: free */
    uint64_t now;                                         /* counts what connections do: who was silent longest? */
    unsigned handles_open, releases;                      /* what still points here */
    bool closing, has_warned;
};

/* ---- the end of things ---- */

static void free_when_alone(struct held *h) {
    if (h->closing && h->handles_open == 0 && h->releases == 0) {
        free(h);
    }
}

static void on_released(uv_fs_t *request) {
    struct held *h = request->data;
    uv_fs_req_cleanup(request);
    free(request);
    h->releases--;
    free_when_alone(h);
}

/* The last descriptor of many gigabytes: closing it takes seconds. */
static void release(struct held *h, int fd) {
    uv_fs_t *request = h->releases < RELEASES_MAX && !h->closing ? malloc(sizeof *request) : NULL;
    if (request) {
        request->data = h;
    }
    if (request && uv_fs_close(h->loop, request, fd, on_released) == 0) {
        h->releases++;
        return;
    }
    free(request);
    (void)close(fd);
}

static void on_connection_closed(uv_handle_t *handle) {
    struct connection *c = handle->data;
    struct held *h = c->held;
    (void)close(c->fd);
    free(c);
    h->handles_open--;
    free_when_alone(h);
}

static void disconnect(struct held *h, size_t place) {
    uv_close((uv_handle_t *)&h->connections[place]->poll, on_connection_closed);
    h->connections[place] = NULL;
}

static void connection_end(struct connection *c) {
    for (size_t i = 0; i < HELD_CONNECTIONS_MAX; i++) {
        if (c->held->connections[i] == c) {
            disconnect(c->held, i);
            return;
        }
    }
}

/* ---- requests ---- */

static void tell_first(const struct held *h) {
    if (h->table.count == 1) {
        log_info("holding memory of this node's workers for when they are started again");
    }
}

static bool has_ended(pid_t process) {
    return kill(process, 0) != 0 && errno == ESRCH;
}

/* What ended processes have left makes room for those that are here. */
static int put_in_table(struct held *h, const char *name, int fd, uint64_t bytes, pid_t owner,
                        struct held_old *out_old) {
    int status = held_table_put(&h->table, name, fd, bytes, owner, out_old);
    int left = status == MUSTER_ELIMIT ? held_table_drop_left(&h->table, has_ended) : -1;
    if (left >= 0) {
        release(h, left);
        status = held_table_put(&h->table, name, fd, bytes, owner, out_old);
    }
    return status;
}

static void tell_given_up(struct held *h, pid_t owner) {
    if (!h->has_warned) {
        log_warning("process %d has put more than %zu names of memory into its launcher: its oldest ones are given up",
                    (int)owner, held_table_share(&h->table));
        h->has_warned = true;
    }
}

static enum held_verdict put(struct held *h, const char *name, pid_t owner, const struct held_received *received) {
    uint64_t bytes;
    struct held_old old = {.fd = -1};
    if (received->fd < 0) {
        return received->is_cut ? HELD_FULL : HELD_NO_MEMORY;
    }
    if (!held_is_memory(received->fd, &bytes)) {
        release(h, received->fd);
        return HELD_NO_MEMORY;
    }
    if (put_in_table(h, name, received->fd, bytes, owner, &old) != MUSTER_OK) {
        log_warning("memory of a worker is not held: %s", muster_detail());
        release(h, received->fd);
        return HELD_FULL;
    }
    if (old.fd >= 0) {
        release(h, old.fd);
    } else {
        tell_first(h);
    }
    if (old.is_given_up) {
        tell_given_up(h, owner);
    }
    log_debug("held: %zu pieces of memory, %" PRIu64 " bytes", h->table.count, held_table_bytes(&h->table));
    return HELD_DONE;
}

static enum held_verdict drop(struct held *h, const char *name) {
    int fd = held_table_drop(&h->table, name);
    if (fd >= 0) {
        release(h, fd);
    }
    return HELD_DONE;
}

/* *out_fd: what goes with the answer, or -1. */
static enum held_verdict serve(struct held *h, const struct held_request *request, pid_t owner,
                               const struct held_received *received, int *out_fd) {
    if (request->kind == HELD_PUT) {
        return put(h, request->name, owner, received);
    }
    if (received->fd >= 0) {
        release(h, received->fd);
    }
    if (request->kind == HELD_DROP) {
        return drop(h, request->name);
    }
    *out_fd = held_table_get(&h->table, request->name);
    return *out_fd >= 0 ? HELD_DONE : HELD_UNKNOWN;
}

/* False: it is to be disconnected. An answer that its socket does not take at once is one that it does not read. */
static bool answer_one(struct held *h, const struct connection *c, const uint8_t *bytes,
                       const struct held_received *received) {
    struct held_request request;
    uint8_t answer[HELD_ANSWER_BYTES];
    enum held_verdict verdict = HELD_NOT_A_REQUEST;
    int fd = -1;
    if (held_request_decode(bytes, received->count, &request)) {
        verdict = serve(h, &request, c->process, received, &fd);
    } else if (received->fd >= 0) {
        release(h, received->fd);
    }
    held_answer_encode(verdict, answer);
    return held_send(c->fd, answer, sizeof answer, fd) == 0 && verdict != HELD_NOT_A_REQUEST;
}

static void on_request(uv_poll_t *poll, int status, int events) {
    struct connection *c = poll->data;
    struct held *h = c->held;
    uint8_t bytes[HELD_REQUEST_BYTES + 1]; /* a longer message is seen to be longer */
    (void)events;
    c->used = ++h->now;
    bool goes_on = status == 0;
    for (int i = 0; goes_on && i < REQUESTS_PER_TURN; i++) {
        struct held_received received;
        int error_number = held_receive(c->fd, bytes, sizeof bytes, &received);
        if (error_number == EAGAIN) {
            return;
        }
        goes_on = error_number == 0 && answer_one(h, c, bytes, &received);
    }
    if (!goes_on) {
        connection_end(c);
    }
}

/* ---- connections ---- */

/* A place that is free, or that of whoever has been silent longest. */
static size_t place_for_another(struct held *h) {
    size_t oldest = 0;
    for (size_t i = 0; i < HELD_CONNECTIONS_MAX; i++) {
        if (!h->connections[i]) {
            return i;
        }
        oldest = h->connections[i]->used < h->connections[oldest]->used ? i : oldest;
    }
    disconnect(h, oldest);
    return oldest;
}

static void welcome(struct held *h, int fd) {
    struct connection *c = held_peer_is_ours(fd) ? calloc(1, sizeof *c) : NULL;
    if (!c || uv_poll_init(h->loop, &c->poll, fd) != 0) {
        free(c);
        (void)close(fd);
        return;
    }
    c->poll.data = c;
    c->held = h;
    c->fd = fd;
    c->process = held_peer_process(fd);
    c->used = ++h->now;
    h->handles_open++;
    h->connections[place_for_another(h)] = c;
    (void)uv_poll_start(&c->poll, UV_READABLE, on_request);
}

static void on_connect(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer) {
    struct held *h = timer->data;
    (void)uv_poll_start(&h->listener, UV_READABLE, on_connect);
}

static void on_connect(uv_poll_t *poll, int status, int events) {
    struct held *h = poll->data;
    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(h->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            welcome(h, fd);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) { /* no descriptor, no memory: the socket stays ready */
            (void)uv_poll_stop(&h->listener);
            (void)uv_timer_start(&h->pause, on_pause_over, PAUSE_MS, 0);
            return;
        }
    }
}

/* ---- a life ---- */

static int listen_on_fresh_name(struct held *h) {
    struct sockaddr_un address;
    socklen_t length;
    uint64_t random[2];
    if (random_fill(random, sizeof random) != 0) {
        return status_fail_errno(errno, "no random numbers for a name");
    }
    (void)str_format(h->name, sizeof h->name, "muster-held-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    (void)held_address(h->name, &address, &length);
    h->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (h->listen_fd < 0 || bind(h->listen_fd, (struct sockaddr *)&address, length) != 0 ||
        listen(h->listen_fd, SOMAXCONN) != 0) {
        return status_fail_errno(errno, "listen on the abstract socket %s", h->name);
    }
    return MUSTER_OK;
}

static void on_handle_closed(uv_handle_t *handle) {
    struct held *h = handle->data;
    h->handles_open--;
    free_when_alone(h);
}

static int handles_start(struct held *h) {
    int status = uv_poll_init(h->loop, &h->listener, h->listen_fd);
    if (status != 0) {
        return status_fail(MUSTER_ESYSTEM, "watch the abstract socket %s: %s", h->name, uv_strerror(status));
    }
    (void)uv_timer_init(h->loop, &h->pause);
    h->listener.data = h->pause.data = h;
    h->handles_open = 2;
    status = uv_poll_start(&h->listener, UV_READABLE, on_connect);
    return status == 0 ? MUSTER_OK
                       : status_fail(MUSTER_ESYSTEM, "watch the abstract socket %s: %s", h->name, uv_strerror(status));
}

int held_create(uv_loop_t *loop, size_t names_max, struct held **out) {
    struct held *h = calloc(1, sizeof *h);
    if (!h) {
        return status_fail(MUSTER_ENOMEM, "no memory for a holder of memory");
    }
    h->loop = loop;
    h->listen_fd = -1;
    held_table_init(&h->table, names_max);
    int status = listen_on_fresh_name(h);
    status = status == MUSTER_OK ? handles_start(h) : status;
    if (status != MUSTER_OK) {
        held_close(h);
        return status;
    }
    *out = h;
    return MUSTER_OK;
}

const char *held_socket_name(const struct held *h) {
    return h->name;
}

size_t held_count(const struct held *h, uint64_t *out_bytes) {
    *out_bytes = held_table_bytes(&h->table);
    return h->table.count;
}

void held_close(struct held *h) {
    if (!h || h->closing) {
        return;
    }
    h->closing = true;
    for (size_t i = 0; i < HELD_CONNECTIONS_MAX; i++) {
        if (h->connections[i]) {
            disconnect(h, i);
        }
    }
    if (h->handles_open > 0) {
        uv_close((uv_handle_t *)&h->listener, on_handle_closed);
        uv_close((uv_handle_t *)&h->pause, on_handle_closed);
    }
    if (h->listen_fd >= 0) {
        (void)close(h->listen_fd);
    }
    for (int fd; (fd = held_table_drop_any(&h->table)) >= 0;) {
        (void)close(fd);
    }
    held_table_done(&h->table);
    free_when_alone(h);
}
