/* One client of the store: its bytes in, its replies out, and the limits on both.
 *
 * What requests mean is kv_machine.c; who may connect is kv_engine.c. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/status.h"
#include "net/endpoint.h"
#include "store/kv_engine_impl.h"

/* The start of a request up to this size is copied in front of what is read next; a longer one is read into place. */
enum { SPILL_COPY_BYTES = 2048 };
/* Room asked for at once when a long request is read into place. */
enum { SPILL_READ_MIN = 4096, SPILL_READ_MAX = 256 * 1024 };

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

/* May a client that cannot say who it is come from there? */
static bool is_admitted(const struct kv_engine *engine, const struct sockaddr *peer, int fd) {
    struct net_address_key address;
    net_address_key(peer, &address);
    return !engine->is_guarded || net_address_is_loopback(peer) || kv_admission_has(&engine->admission, &address) ||
           is_own(&address, fd);
}

static void note_refusal(struct kv_engine *engine, const struct sockaddr *peer) {
    char text[NET_ADDRESS_TEXT_MAX];
    engine->refused_count++;
    kv_engine_warn(engine, "connection from %s refused: no node there has shown that it knows the job's secret",
                   net_address_format(peer, text));
}

/* Too many of a kind. */
static void make_room(const struct kv_newcomers *newcomers, const char *what) {
    struct kv_newcomer *oldest = kv_newcomers_excess(newcomers);
    if (oldest) {
        (void)status_fail(MUSTER_ELIMIT, "of %zu connections that %s, this is the oldest of the address with the most",
                          newcomers->count, what);
        kv_connection_drop((void *)((char *)oldest - offsetof(struct kv_connection, newcomer)));
    }
}

void kv_connection_settle(struct kv_connection *connection) {
    struct kv_engine *engine = connection->engine;
    kv_newcomers_remove(connection->is_stranger ? &engine->strangers : &engine->newcomers, &connection->newcomer);
}

bool kv_connection_estrange(struct kv_connection *connection) {
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
    if (!engine->guest.serve && !is_admitted(engine, (const struct sockaddr *)&peer, fd)) {
        note_refusal(engine, (const struct sockaddr *)&peer);
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
    buf_init(&connection->out, KV_REPLY_BYTES_MAX + KV_OUTPUT_PAUSE_BYTES + CODEC_VALUE_BYTES_MAX + KV_INPUT_BYTES);
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

static void free_connection(struct kv_connection *connection) {
    struct kv_engine *engine = connection->engine;
    kv_machine_end(&engine->machine, &connection->session);
    *(connection->previous ? &connection->previous->next : &engine->connections) = connection->next;
    if (connection->next) {
        connection->next->previous = connection->previous;
    }
    engine->connection_count--;
    /* Taken out by hand: a child between fork and exec may hold the socket, and then closing does not do it. */
    (void)epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    (void)close(connection->fd);
    kv_budget_give(&engine->machine.budget, connection->charged_bytes);
    if (connection->is_admitting) {
        kv_admission_remove(&engine->admission, &connection->address);
    }
    buf_done(&connection->in);
    buf_done(&connection->out);
    free(connection->seat);
    free(connection);
}

void kv_connections_reap(struct kv_engine *engine) {
    while (engine->dead) { /* on_disconnect may write, and so meet another broken connection */
        struct kv_connection *connection = engine->dead;
        engine->dead = connection->next_dead;
        uint64_t id = connection->session.id;
        bool is_guests = connection->seat != NULL;
        if (is_guests) {
            kv_guest_ended(connection);
        }
        free_connection(connection);
        if (engine->on_disconnect && !is_guests) {
            engine->on_disconnect(engine->ctx, id);
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

/* Memory that the client's unfinished messages hold is on the store's account. */
static void charge(struct kv_connection *connection) {
    struct kv_budget *budget = &connection->engine->machine.budget;
    size_t now = connection->in.capacity + connection->out.capacity;
    if (now <= connection->charged_bytes) {
        kv_budget_give(budget, connection->charged_bytes - now);
    } else if (kv_budget_take(budget, now - connection->charged_bytes)) {
        kv_connection_drop(connection);
        return;
    }
    connection->charged_bytes = now;
}

/* Has epoll watch for what the connection's state asks for. */
static void update_events(struct kv_connection *connection) {
    uint32_t wanted = 0;
    if (!connection->is_paused && !connection->is_at_end) {
        wanted |= EPOLLIN;
    }
    if (connection->out.len > 0) {
        wanted |= EPOLLOUT;
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

/* What the socket takes of `bytes`; kills the connection when it is broken. */
static size_t send_some(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    ssize_t sent;
    do {
        sent = send(connection->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        return (size_t)sent;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
        connection->peer_has_reset = errno == EPIPE || errno == ECONNRESET;
        kv_connection_kill(connection); /* the peer is gone: nothing to report */
    }
    return 0;
}

/* Sends `bytes` behind what is still unsent. */
static void send_or_keep(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    size_t sent = connection->out.len == 0 ? send_some(connection, bytes, len) : 0;
    if (sent < len && !connection->is_dead && buf_append(&connection->out, bytes + sent, len - sent)) {
        kv_connection_drop(connection);
    }
}

/* In one call. */
void kv_connection_flush(struct kv_connection *connection) {
    struct buf *reply = &connection->engine->reply;
    if (reply->len > 0 && !connection->is_dead) {
        send_or_keep(connection, buf_bytes(reply), reply->len);
    }
    buf_clear(reply);
}

void kv_connection_deliver(void *ctx, struct kv_session *session, const struct kv_slice *parts, size_t part_count) {
    struct kv_engine *engine = ctx;
    struct kv_connection *connection = (struct kv_connection *)session;
    for (size_t i = 0; i < part_count && !connection->is_dead; i++) {
        if (connection != engine->current) {
            send_or_keep(connection, parts[i].data, parts[i].len);
        } else if (buf_append(&engine->reply, parts[i].data, parts[i].len)) {
            kv_connection_drop(connection); /* it is being served itself: keep the order of its replies */
        }
    }
    if (connection != engine->current && !connection->is_dead) {
        charge(connection);
        update_events(connection);
    }
}

void kv_connection_end(struct kv_connection *connection) {
    connection->is_at_end = true;
    if (connection == connection->engine->current) {
        return; /* its replies are still being gathered */
    }
    if (connection->out.len == 0) {
        kv_connection_kill(connection);
    } else {
        update_events(connection);
    }
}

/* One complete request. */
static void serve_one(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct kv_engine *engine = connection->engine;
    if (!connection->is_validated) {
        connection->is_validated = true; /* the scan has compared the magic number */
        kv_connection_settle(connection);
        return;
    }
    struct codec_request request;
    codec_request_decode(bytes, len, &request);
    if (kv_machine_step(&engine->machine, &connection->session, &request, &engine->reply)) {
        (void)status_prefix(MUSTER_EPROTOCOL, "%s", codec_command_name(bytes[0]));
        kv_connection_drop(connection);
    }
}

/* Serves the requests in `bytes` until one is incomplete or the client owes too much; returns the bytes used. */
static size_t serve_client(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct kv_engine *engine = connection->engine;
    size_t used = 0;
    engine->current = connection;
    while (used < len && !connection->is_dead) {
        if (connection->out.len > KV_OUTPUT_PAUSE_BYTES) {
            connection->is_paused = true;
            break;
        }
        if (!connection->is_validated && bytes[used] != CODEC_VALIDATE) {
            (void)status_fail(MUSTER_EPROTOCOL, "first byte 0x%02x is not a TCPStore handshake", bytes[used]);
            kv_connection_drop(connection);
            break;
        }
        enum codec_result result = codec_scan_step(&connection->scan, bytes + used, len - used);
        if (result == CODEC_MORE) {
            break;
        }
        if (result == CODEC_MALFORMED) {
            (void)status_prefix(MUSTER_EPROTOCOL, "%s", codec_command_name(bytes[used]));
            kv_connection_drop(connection);
            break;
        }
        size_t size = connection->scan.at;
        codec_scan_request(&connection->scan);
        serve_one(connection, bytes + used, size);
        used += size;
        if (engine->reply.len > KV_OUTPUT_PAUSE_BYTES) {
            kv_connection_flush(connection);
        }
    }
    kv_connection_flush(connection);
    engine->current = NULL;
    return used;
}

/* The same for a guest, which ends it with a message that is not whole. */
static size_t serve_guest(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct kv_engine *engine = connection->engine;
    size_t used = 0, step = 1;
    engine->current = connection;
    while (step > 0 && used < len && !connection->is_dead && !connection->is_at_end) {
        if (connection->out.len > KV_OUTPUT_PAUSE_BYTES) {
            connection->is_paused = true;
            break;
        }
        step = kv_guest_serve(connection, bytes + used, len - used);
        used += step;
        if (engine->reply.len > KV_OUTPUT_PAUSE_BYTES) {
            kv_connection_flush(connection);
        }
    }
    kv_connection_flush(connection);
    engine->current = NULL;
    if (connection->is_at_end && connection->out.len == 0) {
        kv_connection_kill(connection);
    }
    return used;
}

/* The first byte that has come on a connection (and stays in front until the handshake is complete) says whose it is.
 */
static size_t serve(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof peer;
    if (connection->is_validated) {
        return serve_client(connection, bytes, len);
    }
    if (kv_guest_owns(connection, bytes[0])) {
        return serve_guest(connection, bytes, len);
    }
    if (!connection->engine->is_guarded) {
        return serve_client(connection, bytes, len);
    }
    if (getpeername(connection->fd, (struct sockaddr *)&peer, &peer_len) < 0) {
        kv_connection_kill(connection);
        return 0;
    }
    if (is_admitted(connection->engine, (const struct sockaddr *)&peer, connection->fd)) {
        return serve_client(connection, bytes, len);
    }
    note_refusal(connection->engine, (const struct sockaddr *)&peer);
    kv_connection_kill(connection);
    return 0;
}

/* recv() came back with `got` <= 0. */
static void receive_failed(struct kv_connection *connection, ssize_t got) {
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return;
    }
    connection->peer_has_reset = got < 0 && errno == ECONNRESET;
    connection->peer_has_ended = got == 0 && !connection->is_dead && !connection->is_at_end;
    if (got == 0 && connection->out.len > 0) {
        connection->is_at_end = true;
        kv_machine_end(&connection->engine->machine, &connection->session);
        return;
    }
    kv_connection_kill(connection);
}

/* The usual way: onto the stack, behind what is left from before. Nothing stays with the connection when the bytes end
 * where a request ends. */
static void receive_passing(struct kv_connection *connection) {
    uint8_t input[KV_INPUT_BYTES];
    size_t kept = connection->in.len;
    if (kept > 0) {
        memcpy(input, buf_bytes(&connection->in), kept);
    }
    ssize_t got = recv(connection->fd, input + kept, KV_INPUT_BYTES - kept, MSG_DONTWAIT);
    if (got <= 0) {
        receive_failed(connection, got);
        return;
    }
    size_t len = kept + (size_t)got;
    size_t used = serve(connection, input, len);
    if (used == len) {
        buf_done(&connection->in);
        return;
    }
    if (used > 0) {
        buf_done(&connection->in);
        kept = 0;
    }
    size_t from = used > 0 ? used : kept;
    if (!connection->is_dead && buf_append(&connection->in, input + from, len - from)) {
        kv_connection_drop(connection);
    }
}

/* Serves from the connection's own memory, and gives that back when what remains is small. */
static void serve_spill(struct kv_connection *connection) {
    size_t used = serve(connection, buf_bytes(&connection->in), connection->in.len);
    buf_consume(&connection->in, used);
    if (connection->in.len == 0) {
        buf_done(&connection->in);
    } else if (used > 0 && connection->in.capacity > KV_INPUT_BYTES && connection->in.len < KV_INPUT_BYTES / 2) {
        struct buf rest;
        buf_init(&rest, connection->in.max);
        if (buf_append(&rest, buf_bytes(&connection->in), connection->in.len) == 0) {
            buf_done(&connection->in);
            connection->in = rest;
        }
    }
}

/* A long request is read to where it will be served from. */
static void receive_in_place(struct kv_connection *connection) {
    size_t room = connection->scan.need > connection->in.len ? connection->scan.need - connection->in.len : 1;
    room = room < SPILL_READ_MIN ? SPILL_READ_MIN : room > SPILL_READ_MAX ? SPILL_READ_MAX : room;
    uint8_t *at = buf_reserve(&connection->in, room);
    if (!at) {
        kv_connection_drop(connection);
        return;
    }
    ssize_t got = recv(connection->fd, at, room, MSG_DONTWAIT);
    if (got <= 0) {
        receive_failed(connection, got);
        return;
    }
    buf_commit(&connection->in, (size_t)got);
    serve_spill(connection);
}

static void send_pending(struct kv_connection *connection) {
    if (connection->out.len > 0) {
        buf_consume(&connection->out, send_some(connection, buf_bytes(&connection->out), connection->out.len));
    }
    if (connection->out.len > 0 || connection->is_dead) {
        return;
    }
    buf_done(&connection->out);
    if (connection->is_at_end) {
        kv_connection_kill(connection);
    } else if (connection->is_paused) {
        connection->is_paused = false;
        serve_spill(connection);
    }
}

void kv_connection_ready(struct kv_connection *connection, uint32_t events) {
    if (connection->is_dead) {
        return;
    }
    bool reads = (connection->events & EPOLLIN) != 0;
    if (!reads && (events & (EPOLLHUP | EPOLLERR))) { /* nobody would ever see the end of it */
        kv_connection_kill(connection);
        return;
    }
    if (events & EPOLLOUT) {
        send_pending(connection);
    }
    if (reads && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !connection->is_dead) {
        if (connection->in.len > SPILL_COPY_BYTES) {
            receive_in_place(connection);
        } else {
            receive_passing(connection);
        }
    }
    if (!connection->is_dead && (connection->charged_bytes | connection->in.capacity | connection->out.capacity)) {
        charge(connection);
    }
    update_events(connection);
}
