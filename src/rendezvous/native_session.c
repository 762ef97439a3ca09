/* The agent's end of a coordinator connection; see native_session.h. */
#include "rendezvous/native_session.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "net/endpoint.h"

enum {
    OUT_BYTES_MAX = 64 * 1024, /* owed by a socket that takes nothing: an agent sends a handful of frames a round */
    KEEP_ALIVE_S = 5,          /* a coordinator's machine that has vanished is noticed by probes */
};

struct native_session {
    uv_tcp_t tcp;
    uv_connect_t connect;
    struct native_session_callbacks callbacks;
    void *ctx;
    char peer[NET_ADDRESS_TEXT_MAX];
    uint8_t in[COORDINATOR_FRAME_BYTES_MAX + 64]; /* the longest frame and its length */
    size_t in_len;
    bool is_open, is_over, is_closed;
};

struct write {
    uv_write_t request;
    struct buf bytes;
};

static void lose(struct native_session *s, int status) {
    if (!s->is_over && !s->is_closed) {
        s->is_over = true;
        s->callbacks.on_lost(s->ctx, status);
    }
}

/* ---- in ---- */

static void take_frames(struct native_session *s) {
    size_t at = 0;
    while (!s->is_over && !s->is_closed) {
        struct coordinator_message message;
        size_t used = 0;
        enum coordinator_parse parsed = coordinator_wire_get(s->in + at, s->in_len - at, false, &message, &used);
        if (parsed == COORDINATOR_MORE) {
            break;
        }
        if (parsed == COORDINATOR_MALFORMED) {
            lose(s, status_prefix(MUSTER_EPROTOCOL, "the coordinator at %s", s->peer));
            return;
        }
        s->callbacks.on_message(s->ctx, &message);
        at += used;
    }
    s->in_len -= at;
    memmove(s->in, s->in + at, s->in_len);
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    struct native_session *s = handle->data;
    (void)suggested;
    *out = uv_buf_init((char *)s->in + s->in_len, (unsigned)(sizeof s->in - s->in_len));
}

static void on_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *room) {
    struct native_session *s = stream->data;
    (void)room;
    if (got < 0) {
        lose(s, got == UV_EOF ? status_fail(MUSTER_ECLOSED, "the coordinator at %s has ended the connection", s->peer)
                              : status_fail(MUSTER_ECONNECT, "the connection to the coordinator at %s: %s", s->peer,
                                            uv_strerror((int)got)));
        return;
    }
    s->in_len += (size_t)got;
    take_frames(s);
}

/* ---- out ---- */

static void on_written(uv_write_t *request, int status) {
    struct write *write = (struct write *)request;
    (void)status; /* a broken connection is noticed by reading */
    buf_done(&write->bytes);
    free(write);
}

static int send_bytes(struct native_session *s, struct write *write) {
    if (uv_stream_get_write_queue_size((uv_stream_t *)&s->tcp) + write->bytes.len > OUT_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "the coordinator at %s does not read what it is sent", s->peer);
    }
    uv_buf_t piece = uv_buf_init((char *)buf_bytes(&write->bytes), (unsigned)write->bytes.len);
    int failed = uv_write(&write->request, (uv_stream_t *)&s->tcp, &piece, 1, on_written);
    return failed ? status_fail(MUSTER_ECLOSED, "send to the coordinator at %s: %s", s->peer, uv_strerror(failed)) : 0;
}

static struct write *write_new(void) {
    struct write *write = calloc(1, sizeof *write);
    if (write) {
        buf_init(&write->bytes, COORDINATOR_FRAME_BYTES_MAX + 64);
    }
    return write;
}

/* Takes `write` if `code` is 0; frees it otherwise. */
static int finish(struct native_session *s, struct write *write, int code) {
    if (write && code == 0) {
        code = send_bytes(s, write);
    }
    if (write && code != 0) {
        buf_done(&write->bytes);
        free(write);
    }
    return write ? code : status_fail(MUSTER_ENOMEM, "no memory for a message to the coordinator");
}

int native_session_send(struct native_session *s, const struct coordinator_message *message) {
    if (!s->is_open || s->is_over) {
        return status_fail(MUSTER_ECLOSED, "there is no connection to the coordinator at %s", s->peer);
    }
    struct write *write = write_new();
    return finish(s, write, write ? coordinator_wire_put(&write->bytes, message) : 0);
}

/* ---- life ---- */

static void on_connected(uv_connect_t *request, int status) {
    struct native_session *s = request->data;
    if (s->is_closed) {
        return;
    }
    if (status != 0) {
        lose(s, status_fail(MUSTER_ECONNECT, "connect to the coordinator at %s: %s", s->peer, uv_strerror(status)));
        return;
    }
    s->is_open = true;
    (void)uv_tcp_nodelay(&s->tcp, 1);
    (void)uv_tcp_keepalive(&s->tcp, 1, KEEP_ALIVE_S);
    struct write *write = write_new();
    int code = finish(s, write, write ? buf_append(&write->bytes, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES) : 0);
    int failed = code ? 0 : uv_read_start((uv_stream_t *)&s->tcp, on_room, on_read);
    if (code == 0 && failed == 0) {
        s->callbacks.on_open(s->ctx);
    } else {
        lose(s, code ? code : status_fail(MUSTER_ESYSTEM, "read from %s: %s", s->peer, uv_strerror(failed)));
    }
}

int native_session_open(uv_loop_t *loop, const struct sockaddr *address,
                        const struct native_session_callbacks *callbacks, void *ctx, struct native_session **out) {
    struct native_session *s = calloc(1, sizeof *s);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory for a connection to the coordinator");
    }
    s->callbacks = *callbacks;
    s->ctx = ctx;
    (void)net_address_format(address, s->peer);
    (void)uv_tcp_init(loop, &s->tcp);
    s->tcp.data = s->connect.data = s;
    int failed = uv_tcp_connect(&s->connect, &s->tcp, address, on_connected);
    if (failed) {
        native_session_close(s);
        return status_fail(MUSTER_ESYSTEM, "connect to %s: %s", s->peer, uv_strerror(failed));
    }
    *out = s;
    return MUSTER_OK;
}

int native_session_local_address(const struct native_session *s, struct sockaddr_storage *out) {
    int len = sizeof *out;
    int failed = uv_tcp_getsockname(&s->tcp, (struct sockaddr *)out, &len);
    return failed ? status_fail(MUSTER_ESYSTEM, "the address of a socket: %s", uv_strerror(failed)) : MUSTER_OK;
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void native_session_close(struct native_session *s) {
    if (s) {
        s->is_closed = true;
        uv_close((uv_handle_t *)&s->tcp, on_closed);
    }
}
