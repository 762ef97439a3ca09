/* The bytes of one client of the store, in: read, cut into requests, served, or handed to the guest on the port.
 *
 * What requests mean is kv_machine.c; replies go out by kv_connection.c. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "base/status.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "store/server/kv_engine_impl.h"

/* Of the native rendezvous' HELLO (docs/formats/coordinator.md). */
enum { COORDINATOR_FIRST_BYTE = 'M' };

/* The start of a request up to this size is copied in front of what is read next; a longer one is read into place. */
enum { SPILL_COPY_BYTES = 2048 };
/* Room asked for at once when a long request is read into place. */
enum { SPILL_READ_MIN = 4096, SPILL_READ_MAX = 256 * 1024 };
/* Whether the slice is over is asked once in so many requests: most take less time than the clock. */
enum { REQUESTS_PER_LOOK = 8 };

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
    if (kv_machine_step(&engine->machine, &connection->session, &request, &connection->out)) {
        (void)status_prefix(MUSTER_EPROTOCOL, "%s", codec_command_name(bytes[0]));
        kv_connection_drop(connection);
    }
}

/* Does it have to wait: for its client to read what it is owed, or, after some of its requests, for another turn? */
static bool must_pause(struct kv_connection *connection, size_t served) {
    if (kv_output_len(&connection->out) > KV_OUTPUT_PAUSE_BYTES) {
        kv_connection_flush(connection);
    }
    connection->is_paused =
        kv_output_len(&connection->out) > KV_OUTPUT_PAUSE_BYTES ||
        (served % REQUESTS_PER_LOOK == REQUESTS_PER_LOOK - 1 && kv_engine_slice_is_over(connection->engine));
    return connection->is_paused;
}

static void end_service(struct kv_connection *connection) {
    kv_connection_flush(connection);
    connection->engine->current = NULL;
    kv_connection_return_memory(connection);
}

/* `muster status` asks each port for a coordinator first: nothing to warn the job of. */
static void turn_away(struct kv_connection *connection, uint8_t first_byte) {
    if (first_byte == COORDINATOR_FIRST_BYTE) {
        log_debug("store: somebody asks for a coordinator here, and is turned away");
        kv_connection_kill(connection);
        return;
    }
    (void)status_fail(MUSTER_EPROTOCOL, "first byte 0x%02x is not a TCPStore handshake", first_byte);
    kv_connection_drop(connection);
}

/* Serves the requests in `bytes` until one is incomplete or it has to pause; returns the bytes used. */
static size_t serve_client(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct kv_engine *engine = connection->engine;
    size_t used = 0, served = 0;
    engine->current = connection;
    kv_connection_borrow_memory(connection);
    while (used < len && !connection->is_dead && !must_pause(connection, served)) {
        if (!connection->is_validated && bytes[used] != CODEC_VALIDATE) {
            turn_away(connection, bytes[used]);
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
        served++;
    }
    end_service(connection);
    return used;
}

/* The same for a guest, which ends it with a message that is not whole. */
static size_t serve_guest(struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct kv_engine *engine = connection->engine;
    size_t used = 0, step = 1, served = 0;
    engine->current = connection;
    kv_connection_borrow_memory(connection);
    while (step > 0 && used < len && !connection->is_dead && !connection->is_at_end &&
           !must_pause(connection, served++)) {
        step = kv_guest_serve(connection, bytes + used, len - used);
        used += step;
    }
    end_service(connection);
    if (connection->is_at_end && kv_output_len(&connection->out) == 0) {
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
    if (kv_connection_may_come(connection->engine, (const struct sockaddr *)&peer, connection->fd)) {
        return serve_client(connection, bytes, len);
    }
    kv_connection_kill(connection);
    return 0;
}

/* recv() came back with `got` <= 0. */
static void receive_failed(struct kv_connection *connection, ssize_t got) {
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return;
    }
    if (got < 0) {
        kv_connection_failed(connection, errno);
        return;
    }
    connection->peer_has_ended = !connection->is_dead && !connection->is_at_end;
    if (kv_output_len(&connection->out) > 0) {
        connection->is_at_end = true;
        kv_machine_end(&connection->engine->machine, &connection->session, false);
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
    kv_connection_flush(connection);
    if (connection->is_dead || kv_output_len(&connection->out) > 0) {
        return;
    }
    kv_connection_return_memory(connection);
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
        kv_connection_failed(connection, net_socket_connect_result(connection->fd));
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
    if (!connection->is_dead &&
        (connection->charged_bytes | connection->in.capacity | kv_output_memory(&connection->out))) {
        kv_connection_charge(connection);
    }
    kv_connection_update_events(connection);
}
