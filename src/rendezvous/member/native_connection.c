/* The agent's end of a coordinator connection; see native_connection.h. */
#include "rendezvous/member/native_connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "net/endpoint.h"
#include "net/tls_stream.h"
#include "rendezvous/wire/coordinator_auth.h"

enum {
    OUT_BYTES_MAX = 64 * 1024, /* owed by a socket that takes nothing: an agent sends a handful of frames a round */
    READ_BYTES = 8192,
    IN_BYTES_MAX =
        COORDINATOR_FRAME_BYTES_MAX + COORDINATOR_SEAL_BYTES + 4 * READ_BYTES, /* a frame, and one read's records */
    WIRE_BYTES_MAX = 64 * 1024, /* what TLS makes of a frame, or of what has come */
    /* So many messages are taken in such a time; the rest waits in the socket. A coordinator has a handful to say, and
     * to thousands of nodes that fail at once some thousands; one that floods costs this much and no more. */
    WINDOW_MESSAGES_MAX = 1000,
    WINDOW_MS = 100,
    KEEP_ALIVE_S = 5, /* a coordinator's machine that has vanished is noticed by probes */
};

struct native_connection {
    uv_tcp_t tcp;
    uv_timer_t pause;  /* active: nothing is read until it fires */
    int connect_error; /* that connect() told at once; then `pause` tells it */
    unsigned open_handles;
    uint64_t window_ms; /* when the window began, of the loop's clock */
    unsigned window_messages;
    bool has_warned;
    uv_connect_t connect;
    struct native_connection_callbacks callbacks;
    void *ctx;
    char peer[NET_ADDRESS_TEXT_MAX];
    const struct secret *secret; /* NULL: none */
    char run_id[COORDINATOR_NAME_BYTES_MAX + 1];
    struct coordinator_auth auth;
    struct tls_stream *tls; /* NULL: without */
    struct buf in;          /* plain, and not taken yet */
    bool is_connected;
    bool is_answered; /* something has come */
    bool has_greeted; /* with TLS: when its handshake is over */
    bool is_open;     /* with a secret: the other side has proved that it knows it */
    bool has_spoken;  /* at least one message of it has been understood */
    bool is_over, is_closed;
};

struct write {
    uv_write_t request;
    struct buf bytes;
};

static void lose(struct native_connection *c, int status) {
    if (!c->is_over && !c->is_closed) {
        c->is_over = true;
        c->callbacks.on_lost(c->ctx, status);
    }
}

/* ---- out ---- */

static void on_written(uv_write_t *request, int status) {
    struct write *write = (struct write *)request;
    (void)status; /* a broken connection is noticed by reading */
    buf_done(&write->bytes);
    free(write);
}

static int send_bytes(struct native_connection *c, struct write *write) {
    if (uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) + write->bytes.len > OUT_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "the coordinator at %s does not read what it is sent", c->peer);
    }
    uv_buf_t piece = uv_buf_init((char *)buf_bytes(&write->bytes), (unsigned)write->bytes.len);
    int failed = uv_write(&write->request, (uv_stream_t *)&c->tcp, &piece, 1, on_written);
    return failed ? status_fail(MUSTER_ECLOSED, "send to the coordinator at %s: %s", c->peer, uv_strerror(failed)) : 0;
}

static struct write *write_new(void) {
    struct write *write = calloc(1, sizeof *write);
    if (write) {
        buf_init(&write->bytes, COORDINATOR_FRAME_BYTES_MAX + 64);
    }
    return write;
}

/* Its bytes become what TLS makes of them. */
static int wrap(struct native_connection *c, struct write *write) {
    struct buf wire;
    buf_init(&wire, WIRE_BYTES_MAX);
    int code = tls_stream_put(c->tls, buf_bytes(&write->bytes), write->bytes.len, &wire);
    buf_done(&write->bytes);
    write->bytes = wire;
    return code;
}

/* Takes `write` if `code` is 0; frees it otherwise. */
static int finish(struct native_connection *c, struct write *write, int code) {
    if (write && code == 0 && c->tls) {
        code = wrap(c, write);
    }
    if (write && code == 0) {
        code = send_bytes(c, write);
    }
    if (write && code != 0) {
        buf_done(&write->bytes);
        free(write);
    }
    return write ? code : status_fail(MUSTER_ENOMEM, "no memory for a message to the coordinator");
}

/* A frame without a tag: all without a secret, and the handshake. */
static int send_plain(struct native_connection *c, const struct coordinator_message *message) {
    struct write *write = write_new();
    return finish(c, write, write ? coordinator_wire_put(&write->bytes, message) : 0);
}

/* Once the handshake is over. Takes `write`, as finish() does. */
static int finish_sealed(struct native_connection *c, struct write *write, int code) {
    if (write && code == 0 && c->secret) {
        code = coordinator_auth_seal(&c->auth, c->secret, &write->bytes, 0);
    }
    return finish(c, write, code);
}

static int check_open(const struct native_connection *c) {
    return c->is_open && !c->is_over
               ? MUSTER_OK
               : status_fail(MUSTER_ECLOSED, "there is no connection to the coordinator at %s", c->peer);
}

int native_connection_send(struct native_connection *c, const struct coordinator_message *message) {
    int code = check_open(c);
    struct write *write = code == MUSTER_OK ? write_new() : NULL;
    return code ? code : finish_sealed(c, write, write ? coordinator_wire_put(&write->bytes, message) : 0);
}

int native_connection_send_frame(struct native_connection *c, const uint8_t *frame, size_t len) {
    int code = check_open(c);
    struct write *write = code == MUSTER_OK ? write_new() : NULL;
    return code ? code : finish_sealed(c, write, write ? buf_append(&write->bytes, frame, len) : 0);
}

static int send_hello(struct native_connection *c) {
    struct write *write = write_new();
    return finish(c, write, write ? buf_append(&write->bytes, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES) : 0);
}

static int send_greeting(struct native_connection *c) {
    uint8_t nonce[COORDINATOR_NONCE_BYTES];
    struct coordinator_message greet;
    if (random_fill(nonce, sizeof nonce) != 0) {
        return status_fail_errno(errno, "random bytes to greet the coordinator with");
    }
    coordinator_auth_greet(&c->auth, nonce, &greet);
    return send_plain(c, &greet);
}

/* ---- in ---- */

/* One frame from the front; *used are its bytes, and its tag's. */
static enum coordinator_parse take_frame(struct native_connection *c, const uint8_t *bytes, size_t len,
                                         struct coordinator_message *message, size_t *used) {
    size_t frame_len = len;
    if (!c->secret || !c->is_open) {
        return coordinator_wire_get(bytes, len, false, message, used);
    }
    enum coordinator_parse parsed = coordinator_auth_open(&c->auth, c->secret, bytes, len, &frame_len);
    parsed = parsed == COORDINATOR_COMPLETE ? coordinator_wire_get(bytes, frame_len, false, message, used) : parsed;
    *used += COORDINATOR_SEAL_BYTES;
    return parsed;
}

/* Before it is open: the coordinator's part of the handshake, or why there is none. */
static void take_challenge(struct native_connection *c, const struct coordinator_message *message) {
    struct coordinator_message proof;
    int code;
    if (message->kind == COORDINATOR_REFUSED) {
        code = status_fail(MUSTER_EPROTOCOL, "%.*s", (int)message->text.len, (const char *)message->text.data);
    } else if (message->kind != COORDINATOR_CHALLENGE) {
        code = status_fail(MUSTER_EPROTOCOL, "%s before it has proved that it knows the job's secret",
                           coordinator_kind_name(message->kind));
    } else {
        code = coordinator_auth_prove(&c->auth, c->secret, kv_slice_text(c->run_id), message, &proof);
        code = code ? code : send_plain(c, &proof);
    }
    if (code) {
        lose(c, status_prefix(code, "the coordinator at %s", c->peer));
        return;
    }
    c->is_open = true;
    c->callbacks.on_open(c->ctx);
}

static void on_pause_over(uv_timer_t *timer);

/* Has the window taken all the messages that it may? Then nothing is read until it is over. */
static bool must_pause(struct native_connection *c) {
    uint64_t now_ms = uv_now(c->tcp.loop);
    if (now_ms - c->window_ms >= WINDOW_MS) {
        c->window_ms = now_ms;
        c->window_messages = 0;
    }
    if (c->window_messages < WINDOW_MESSAGES_MAX) {
        return false;
    }
    if (!c->has_warned) {
        c->has_warned = true;
        log_warning("the coordinator at %s sends more than %d messages in %d ms: the rest is taken later", c->peer,
                    WINDOW_MESSAGES_MAX, WINDOW_MS);
    }
    (void)uv_read_stop((uv_stream_t *)&c->tcp);
    (void)uv_timer_start(&c->pause, on_pause_over, c->window_ms + WINDOW_MS - now_ms, 0);
    return true;
}

static void take_frames(struct native_connection *c) {
    while (!c->is_over && !c->is_closed && !must_pause(c)) {
        struct coordinator_message message;
        size_t used = 0;
        enum coordinator_parse parsed = take_frame(c, buf_bytes(&c->in), c->in.len, &message, &used);
        if (parsed == COORDINATOR_MORE) {
            break;
        }
        if (parsed != COORDINATOR_COMPLETE) {
            lose(c, c->has_spoken ? status_prefix(MUSTER_EPROTOCOL, "the coordinator at %s", c->peer)
                                  : status_prefix(MUSTER_EPROTOCOL,
                                                  "what answers at %s is no coordinator: does another program hold "
                                                  "this port? Choose another one",
                                                  c->peer));
            return;
        }
        c->window_messages++;
        c->has_spoken = true;
        if (c->is_open) {
            c->callbacks.on_message(c->ctx, &message);
        } else {
            take_challenge(c, &message);
        }
        buf_consume(&c->in, used);
    }
}

/* ---- TLS ---- */

/* What OpenSSL has to say by itself. Takes the bytes. */
static int send_wire(struct native_connection *c, struct buf *wire) {
    struct write *write = wire->len > 0 ? calloc(1, sizeof *write) : NULL;
    if (!write) {
        bool is_short = wire->len > 0;
        buf_done(wire);
        return is_short ? status_fail(MUSTER_ENOMEM, "no memory for a message to the coordinator") : MUSTER_OK;
    }
    write->bytes = *wire;
    int code = send_bytes(c, write);
    if (code) {
        buf_done(&write->bytes);
        free(write);
    }
    return code;
}

static int begin_tls(struct native_connection *c) {
    struct buf wire;
    buf_init(&wire, WIRE_BYTES_MAX);
    int code = tls_stream_begin(c->tls, &wire);
    if (code) {
        buf_done(&wire);
    }
    return code ? code : send_wire(c, &wire);
}

static int take_tls(struct native_connection *c, const uint8_t *bytes, size_t len) {
    struct buf wire;
    char why[MUSTER_DETAIL_MAX];
    if (!c->is_answered && !tls_stream_is_answer(bytes, len)) {
        return status_fail(MUSTER_EPROTOCOL, "it does not use TLS, and this node does: start all nodes with tls_cert, "
                                             "tls_key and tls_ca, or none");
    }
    buf_init(&wire, WIRE_BYTES_MAX);
    int code = tls_stream_take(c->tls, bytes, len, &c->in, &wire);
    (void)str_copy(why, sizeof why, code ? muster_detail() : "");
    int sent = send_wire(c, &wire);
    return code ? status_fail(code, "%s", why) : sent;
}

/* Until on_read() has copied what came: a session holds no memory for what is seldom said. */
static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    (void)handle;
    (void)suggested;
    out->base = malloc(READ_BYTES);
    out->len = out->base ? READ_BYTES : 0; /* none: on_read() hears UV_ENOBUFS */
}

/* Greets, once whatever comes before is over. */
static int greet(struct native_connection *c) {
    c->has_greeted = true;
    int code = send_hello(c);
    return code == 0 && c->secret ? send_greeting(c) : code;
}

static void open_without_secret(struct native_connection *c) {
    if (!c->secret) {
        c->is_open = true;
        c->callbacks.on_open(c->ctx);
    }
}

/* Appends what has come to `in`, out of TLS if it came in that. */
static int keep(struct native_connection *c, const uint8_t *bytes, size_t len) {
    int code = c->tls ? take_tls(c, bytes, len) : buf_append(&c->in, bytes, len);
    c->is_answered = true;
    return code;
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *room) {
    struct native_connection *c = stream->data;
    int code = got > 0 ? keep(c, (const uint8_t *)room->base, (size_t)got) : MUSTER_OK;
    free(room->base);
    if (got < 0) {
        const char *when = c->has_greeted ? "" : " in place of a TLS handshake: does it use TLS?";
        lose(c, got == UV_EOF || got == UV_EPIPE /* an end in good order, and a reset for what was sent afterwards */
                    ? status_fail(MUSTER_ECLOSED, "the coordinator at %s has ended the connection%s", c->peer, when)
                    : status_fail(MUSTER_ECONNECT, "the connection to the coordinator at %s: %s", c->peer,
                                  uv_strerror((int)got)));
        return;
    }
    bool is_agreed = code == 0 && !c->has_greeted && tls_stream_is_open(c->tls);
    code = is_agreed ? greet(c) : code;
    if (code) {
        lose(c, status_prefix(code, "the coordinator at %s", c->peer));
        return;
    }
    if (is_agreed) {
        open_without_secret(c);
    }
    take_frames(c);
}

/* Goes on with what has come before the pause, then with the socket. */
static void on_pause_over(uv_timer_t *timer) {
    struct native_connection *c = timer->data;
    if (c->is_over) {
        return;
    }
    take_frames(c);
    if (!c->is_over && !c->is_closed && !uv_is_active((uv_handle_t *)&c->pause)) {
        int failed = uv_read_start((uv_stream_t *)&c->tcp, on_room, on_read);
        if (failed) {
            lose(c, status_fail(MUSTER_ESYSTEM, "read from %s: %s", c->peer, uv_strerror(failed)));
        }
    }
}

/* ---- life ---- */

/* A rare accident on loopback: nobody listens, and the kernel chose the very port as this socket's own. */
static bool is_connected_to_itself(const struct native_connection *c) {
    struct sockaddr_storage own;
    char text[NET_ADDRESS_TEXT_MAX];
    return native_connection_local_address(c, &own) == MUSTER_OK &&
           strcmp(net_address_format((const struct sockaddr *)&own, text), c->peer) == 0;
}

static void lose_unconnected(struct native_connection *c, int error) {
    lose(c, status_fail(error == UV_ECONNREFUSED ? MUSTER_ENOENT : MUSTER_ECONNECT,
                        "connect to the coordinator at %s: %s", c->peer, uv_strerror(error)));
}

static void on_failed_at_once(uv_timer_t *timer) {
    struct native_connection *c = timer->data;
    lose_unconnected(c, c->connect_error);
}

static void on_connected(uv_connect_t *request, int status) {
    struct native_connection *c = request->data;
    if (c->is_closed) {
        return;
    }
    status = status == 0 && is_connected_to_itself(c) ? UV_ECONNREFUSED : status;
    if (status != 0) {
        lose_unconnected(c, status);
        return;
    }
    c->is_connected = true;
    (void)uv_tcp_nodelay(&c->tcp, 1);
    (void)uv_tcp_keepalive(&c->tcp, 1, KEEP_ALIVE_S);
    int code = c->tls ? begin_tls(c) : greet(c);
    int failed = code ? 0 : uv_read_start((uv_stream_t *)&c->tcp, on_room, on_read);
    if (code || failed) {
        lose(c, code ? code : status_fail(MUSTER_ESYSTEM, "read from %s: %s", c->peer, uv_strerror(failed)));
    } else if (!c->tls) {
        open_without_secret(c);
    }
}

int native_connection_open(uv_loop_t *loop, const struct sockaddr *address, const struct native_connection_key *key,
                           const struct native_connection_callbacks *callbacks, void *ctx,
                           struct native_connection **out) {
    struct native_connection *c = calloc(1, sizeof *c);
    if (!c) {
        return status_fail(MUSTER_ENOMEM, "no memory for a connection to the coordinator");
    }
    int code = key && key->tls ? tls_stream_create(key->tls, true, &c->tls) : MUSTER_OK;
    if (code) {
        free(c);
        return code;
    }
    c->callbacks = *callbacks;
    c->ctx = ctx;
    buf_init(&c->in, IN_BYTES_MAX);
    if (key && key->secret) {
        c->secret = key->secret;
        (void)str_copy(c->run_id, sizeof c->run_id, key->run_id);
    }
    (void)net_address_format(address, c->peer);
    (void)uv_tcp_init(loop, &c->tcp);
    (void)uv_timer_init(loop, &c->pause);
    c->open_handles = 2;
    c->tcp.data = c->connect.data = c->pause.data = c;
    c->connect_error = uv_tcp_connect(&c->connect, &c->tcp, address, on_connected);
    if (c->connect_error) { /* no route at the moment, no descriptor: it may pass, as what is told later may */
        (void)uv_timer_start(&c->pause, on_failed_at_once, 0, 0);
    }
    *out = c;
    return MUSTER_OK;
}

int native_connection_local_address(const struct native_connection *c, struct sockaddr_storage *out) {
    int len = sizeof *out;
    int failed = uv_tcp_getsockname(&c->tcp, (struct sockaddr *)out, &len);
    return failed ? status_fail(MUSTER_ESYSTEM, "the address of a socket: %s", uv_strerror(failed)) : MUSTER_OK;
}

bool native_connection_is_connected(const struct native_connection *c) {
    return c->is_connected;
}

static void on_closed(uv_handle_t *handle) {
    struct native_connection *c = handle->data;
    if (--c->open_handles > 0) {
        return;
    }
    tls_stream_free(c->tls);
    buf_done(&c->in);
    free(c);
}

void native_connection_close(struct native_connection *c) {
    if (c) {
        c->is_closed = true;
        coordinator_auth_wipe(&c->auth);
        uv_close((uv_handle_t *)&c->pause, on_closed);
        uv_close((uv_handle_t *)&c->tcp, on_closed);
    }
}

void native_connection_give_up(struct native_connection *c) {
    if (c) {
        c->is_closed = true;
        coordinator_auth_wipe(&c->auth);
        uv_close((uv_handle_t *)&c->pause, on_closed);
        if (uv_tcp_close_reset(&c->tcp, on_closed) != 0) { /* it is not connected yet */
            uv_close((uv_handle_t *)&c->tcp, on_closed);
        }
    }
}
