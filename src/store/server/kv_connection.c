/* One client of the store: who may come, its life, its replies out, and the limits on them.
 *
 * Its bytes in are kv_serve.c; what requests mean is kv_machine.c; who listens is kv_engine.c. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/status.h"
#include "net/endpoint.h"
#include "store/server/kv_engine_impl.h"

/* ---- who may ---- */

/* Both ends have one address: it is a process of this machine. */
static bool is_own(const struct net_address_key *address, int fd) {
    struct sockaddr_storage here;
    struct net_address_key key;
    socklen_t len = sizeof here;
    if (getsockname(fd, (struct sockaddr *)&here, &len) < 0) {
        return false;
    }
    net_address_key((const struct sockaddr *)&here, &key);
    return memcmp(&key, address, sizeof key) == 0;
}

static bool is_admitted(const struct kv_engine *engine, const struct sockaddr *peer, int fd) {
    struct net_address_key address;
    net_address_key(peer, &address);
    return !engine->is_guarded || net_address_is_loopback(peer) || kv_admission_has(&engine->admission, &address) ||
           is_own(&address, fd);
}

bool kv_connection_may_come(struct kv_engine *engine, const struct sockaddr *peer, int fd) {
    char text[NET_ADDRESS_TEXT_MAX];
    if (is_admitted(engine, peer, fd)) {
        return true;
    }
    engine->refused_count++;
    kv_engine_warn(engine, "connection from %s refused: no node there has shown that it knows the job's secret",
                   net_address_format(peer, text));
    return false;
}

/* Too many of a kind. */
static void make_room(const struct kv_newcomers *newcomers, const char *what) {
    struct kv_newcomer *oldest = kv_newcomers_excess(newcomers);
    if (oldest) {
        (void)status_fail(MUSTER_ELIMIT,
                          "too many connections (%zu) that %s: dropped the oldest of the busiest address",
                          newcomers->count, what);
        kv_connection_drop((void *)((char *)oldest - offsetof(struct kv_connection, newcomer)));
    }
}

void kv_connection_settle(struct kv_connection *connection) {
    struct kv_engine *engine = connection->engine;
    kv_newcomers_remove(connection->is_stranger ? &engine->strangers : &engine->newcomers, &connection->newcomer);
}

bool kv_connection_make_stranger(struct kv_connection *connection) {
    struct kv_engine *engine = connection->engine;
    kv_connection_settle(connection);
    connection->is_stranger = true;
    if (kv_newcomers_add(&engine->strangers, &connection->newcomer, &connection->address)) {
        kv_connection_drop(connection);
        return false;
    }
    make_room(&engine->strangers, "have not shown what they want");
    return !connection->is_dead;
}

/* ---- its life ---- */

void kv_connection_open(struct kv_engine *engine, int fd) {
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &len) < 0) { /* gone already */
        (void)close(fd);
        return;
    }
    if (!engine->guest.serve && !kv_connection_may_come(engine, (const struct sockaddr *)&peer, fd)) {
        (void)close(fd);
        return;
    }
    struct kv_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        kv_engine_warn(engine, "no memory for another connection");
        (void)close(fd);
        return;
    }
    net_address_key((const struct sockaddr *)&peer, &connection->address);
    if (kv_newcomers_add(&engine->newcomers, &connection->newcomer, &connection->address)) {
        kv_engine_warn(engine, "%s", muster_detail());
        (void)close(fd);
        free(connection);
        return;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        kv_engine_warn(engine, "a connection cannot be watched: %s", strerror(errno));
        kv_newcomers_remove(&engine->newcomers, &connection->newcomer);
        (void)close(fd);
        free(connection);
        return;
    }
    connection->session.id = ++engine->last_id;
    connection->engine = engine;
    connection->fd = fd;
    connection->events = event.events;
    codec_scan_request(&connection->scan);
    buf_init(&connection->in, CODEC_MESSAGE_BYTES_MAX + KV_INPUT_BYTES);
    kv_output_init(&connection->out, &engine->machine.table,
                   KV_REPLY_BYTES_MAX + KV_OUTPUT_PAUSE_BYTES + CODEC_VALUE_BYTES_MAX + KV_INPUT_BYTES);
    connection->next = engine->connections;
    if (connection->next) {
        connection->next->previous = connection;
    }
    engine->connections = connection;
    engine->connection_count++;
    make_room(&engine->newcomers, "have said nothing");
}

void kv_connection_kill(struct kv_connection *connection) {
    if (connection->is_dead) {
        return;
    }
    struct kv_engine *engine = connection->engine;
    connection->is_dead = true;
    kv_connection_settle(connection);
    connection->next_dead = engine->dead;
    engine->dead = connection;
    if (!engine->in_turn) {
        (void)shutdown(connection->fd, SHUT_RDWR); /* makes it ready, so that a turn comes and reaps it */
    }
}

void kv_connection_failed(struct kv_connection *connection, int error_number) {
    if (connection->is_dead) {
        return;
    }
    /* EPIPE: it has been closed before, and what was sent after that is not wanted. */
    connection->peer_has_reset = error_number == EPIPE || error_number == ECONNRESET;
    connection->is_given_up = error_number != 0 && !connection->peer_has_reset;
    kv_connection_kill(connection);
}

void kv_connection_replaced(void *ctx, struct kv_session *session) {
    struct kv_connection *connection = (struct kv_connection *)session;
    (void)ctx;
    connection->is_replaced = true;
    kv_connection_kill(connection);
}

static enum kv_end end_of(const struct kv_connection *connection) {
    if (connection->is_given_up) {
        return KV_END_SILENT;
    }
    return connection->peer_has_ended || connection->peer_has_reset ? KV_END_TOLD : KV_END_DROPPED;
}

static void free_connection(struct kv_connection *connection) {
    struct kv_engine *engine = connection->engine;
    /* After a reset as well: something on the way may have said so, and the client live. */
    kv_machine_end(&engine->machine, &connection->session, connection->is_given_up || connection->peer_has_reset);
    *(connection->previous ? &connection->previous->next : &engine->connections) = connection->next;
    if (connection->next) {
        connection->next->previous = connection->previous;
    }
    assert(engine->connection_count > 0);
    engine->connection_count--;
    /* Taken out by hand: a child between fork and exec may hold the socket, and then closing does not do it. */
    (void)epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    (void)close(connection->fd);
    kv_budget_give(&engine->machine.budget, connection->charged_bytes);
    if (connection->is_admitting) {
        kv_admission_remove(&engine->admission, &connection->address);
    }
    buf_done(&connection->in);
    kv_output_done(&connection->out);
    free(connection->seat);
    free(connection);
}

void kv_connections_reap(struct kv_engine *engine) {
    while (engine->dead) { /* on_disconnect may write, and so meet another broken connection */
        struct kv_connection *connection = engine->dead;
        engine->dead = connection->next_dead;
        uint64_t id = connection->session.id;
        enum kv_end end = end_of(connection);
        bool is_guests = connection->seat != NULL, is_event = !is_guests && !connection->is_replaced;
        if (is_guests && engine->guest.ended) { /* else the engine itself ends */
            engine->guest.ended(engine->guest.ctx, connection);
        }
        free_connection(connection);
        if (engine->on_disconnect && is_event) {
            engine->on_disconnect(engine->ctx, id, end);
        }
    }
}

void kv_connection_drop(struct kv_connection *connection) {
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    char text[NET_ADDRESS_TEXT_MAX] = "a client";
    if (connection->is_dead) {
        return;
    }
    if (getpeername(connection->fd, (struct sockaddr *)&peer, &len) == 0) {
        (void)net_address_format((const struct sockaddr *)&peer, text);
    }
    kv_engine_warn(connection->engine, "connection from %s dropped: %s", text, muster_detail());
    kv_connection_kill(connection);
}

void kv_connection_charge(struct kv_connection *connection) {
    struct kv_budget *budget = &connection->engine->machine.budget;
    size_t now = connection->in.capacity + kv_output_memory(&connection->out);
    if (now <= connection->charged_bytes) {
        kv_budget_give(budget, connection->charged_bytes - now);
    } else if (kv_budget_take(budget, now - connection->charged_bytes)) {
        kv_connection_drop(connection);
        return;
    }
    connection->charged_bytes = now;
}

void kv_connection_update_events(struct kv_connection *connection) {
    uint32_t wanted = 0;
    if (!connection->is_paused && !connection->is_at_end) {
        wanted |= EPOLLIN;
    }
    if (connection->is_paused || kv_output_len(&connection->out) > 0) {
        wanted |= EPOLLOUT; /* or it goes on with what it has received */
    }
    if (wanted == connection->events || connection->is_dead) {
        return;
    }
    struct epoll_event event = {.events = wanted, .data.ptr = connection};
    if (epoll_ctl(connection->engine->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) < 0) {
        (void)status_fail_errno(errno, "watch a connection");
        kv_connection_drop(connection);
        return;
    }
    connection->events = wanted;
}

/* The next pieces of what it is owed, for the kernel; returns how many, at most KV_SEND_BYTES_MAX together. */
static size_t gather(const struct kv_output *out, struct iovec *pieces) {
    struct kv_slice slices[KV_SEND_PIECES_MAX];
    size_t count = kv_output_peek(out, slices, KV_SEND_PIECES_MAX), used = 0, sum = 0;
    for (; used < count && sum < KV_SEND_BYTES_MAX; used++) {
        size_t room = KV_SEND_BYTES_MAX - sum, len = slices[used].len < room ? slices[used].len : room;
        pieces[used] = (struct iovec){.iov_base = (void *)(uintptr_t)slices[used].data, .iov_len = len};
        sum += len;
    }
    return used;
}

/* Of an empty buffer, to one that has none. */
static void move_memory(struct buf *from, struct buf *to) {
    assert(from->len == 0 && !to->data);
    to->data = from->data;
    to->capacity = from->capacity;
    buf_init(from, from->max);
}

void kv_connection_borrow_memory(struct kv_connection *connection) {
    if (!connection->out.bytes.data) {
        move_memory(&connection->engine->spare, &connection->out.bytes);
    }
}

void kv_connection_return_memory(struct kv_connection *connection) {
    struct kv_engine *engine = connection->engine;
    if (connection == engine->current || kv_output_len(&connection->out) > 0) {
        return;
    }
    if (!engine->spare.data) {
        move_memory(&connection->out.bytes, &engine->spare);
    }
    kv_output_done(&connection->out);
}

void kv_connection_flush(struct kv_connection *connection) {
    struct iovec pieces[KV_SEND_PIECES_MAX];
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = gather(&connection->out, pieces)};
    if (message.msg_iovlen == 0 || connection->is_dead) {
        return;
    }
    ssize_t sent;
    do {
        sent = message.msg_iovlen == 1
                   ? send(connection->fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
                   : sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        kv_output_consume(&connection->out, (size_t)sent);
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        kv_connection_failed(connection, errno); /* the peer is gone: nothing to report */
    }
}

void kv_connection_deliver(void *ctx, struct kv_session *session, struct kv_slice head, struct kv_entry *entry) {
    struct kv_engine *engine = ctx;
    struct kv_connection *connection = (struct kv_connection *)session;
    if (connection->is_dead) {
        return;
    }
    kv_connection_borrow_memory(connection);
    if (buf_append(&connection->out.bytes, head.data, head.len) || (entry && kv_output_put(&connection->out, entry))) {
        kv_connection_drop(connection);
        return;
    }
    if (connection == engine->current) {
        return; /* it is being served itself: all goes out together */
    }
    /* Who is not sent it now is sent it when epoll says that there is room, in a slice of another turn. */
    if (connection->seat || !kv_engine_slice_is_over(engine)) {
        kv_connection_flush(connection);
        kv_connection_return_memory(connection);
    }
    if (!connection->is_dead) {
        kv_connection_charge(connection);
        kv_connection_update_events(connection);
    }
}

void kv_connection_end(struct kv_connection *connection) {
    connection->is_at_end = true;
    if (connection == connection->engine->current) {
        return; /* its replies are still being gathered */
    }
    if (kv_output_len(&connection->out) == 0) {
        kv_connection_kill(connection);
    } else {
        kv_connection_update_events(connection);
    }
}
