/* The connection of the blocking TCPStore client; see store_stream.h. */
#include "store/blocking/store_stream.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/hold.h"
#include "base/status.h"
#include "net/retry.h"
#include "net/socket.h"
#include "store/blocking/store_impl.h"

enum { READ_MIN = 4096, READ_MAX = 256 * 1024 };
/* What a server gets to answer who only looks, and to take the byte that takes a wait back. */
enum { LOOK_MS = 10000 };
/* An idle connection bears the silence of a network. */
enum { KEEP_ALIVE_IDLE_S = 60, KEEP_ALIVE_INTERVAL_S = 15 };

void store_stream_init(struct store_stream *stream) {
    *stream = (struct store_stream){.fd = -1};
    buf_init(&stream->in, CODEC_MESSAGE_BYTES_MAX + READ_MAX);
    buf_init(&stream->out, CODEC_MESSAGE_BYTES_MAX);
}

void store_stream_done(struct store_stream *stream) {
    (void)store_stream_lose(stream, 0);
    buf_done(&stream->in);
    buf_done(&stream->out);
}

int store_stream_lose(struct store_stream *stream, int code) {
    if (stream->fd >= 0) {
        (void)close(stream->fd);
        stream->fd = -1;
    }
    stream->owes_answer = false;
    return code;
}

/* Waits until the socket is ready. */
static int await(struct store_stream *stream, short events, int64_t deadline_ns) {
    for (;;) {
        struct pollfd poll_fd = {.fd = stream->fd, .events = events};
        int left_ms = store_remaining_ms(deadline_ns);
        int ready = poll(&poll_fd, 1, left_ms);
        if (ready > 0) {
            return 0;
        }
        if (ready == 0 && store_remaining_ms(deadline_ns) == 0) {
            return status_fail(MUSTER_ETIMEOUT, "no answer in time");
        }
        if (ready < 0 && errno != EINTR) {
            return store_stream_lose(stream, status_fail_errno(errno, "poll"));
        }
    }
}

/* Sends all of `out`; whatever goes wrong, time included, breaks the stream. */
static int flush(struct store_stream *stream, int64_t deadline_ns) {
    while (stream->out.len > 0) {
        ssize_t sent = send(stream->fd, buf_bytes(&stream->out), stream->out.len, MSG_NOSIGNAL);
        if (sent > 0) {
            buf_consume(&stream->out, (size_t)sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int code = await(stream, POLLOUT, deadline_ns);
            if (code) {
                return store_stream_lose(stream, code);
            }
        } else if (errno != EINTR) {
            return store_stream_lose(stream,
                                     status_fail(MUSTER_ECONNECT, "the connection is lost: %s", strerror(errno)));
        }
    }
    return 0;
}

/* Reads once. MUSTER_ETIMEOUT leaves the stream as it is. */
static int receive(struct store_stream *stream, int64_t deadline_ns) {
    int code = await(stream, POLLIN, deadline_ns);
    if (code) {
        return code;
    }
    size_t room = stream->scan.need > stream->in.len ? stream->scan.need - stream->in.len : READ_MIN;
    room = room < READ_MIN ? READ_MIN : room > READ_MAX ? READ_MAX : room;
    uint8_t *at = buf_reserve(&stream->in, room);
    if (!at) {
        return store_stream_lose(stream, MUSTER_ENOMEM);
    }
    ssize_t got = recv(stream->fd, at, room, 0);
    if (got > 0) {
        stream->is_silent = false;
        buf_commit(&stream->in, (size_t)got);
    } else if (got == 0) {
        return store_stream_lose(stream, status_fail(MUSTER_ECONNECT, "the server closed the connection"));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        return store_stream_lose(stream, status_fail(MUSTER_ECONNECT, "the connection is lost: %s", strerror(errno)));
    }
    return 0;
}

/* Reads the reply of `command`; its bytes stay in `in` until store_stream_finish(). MUSTER_ETIMEOUT leaves the stream
 * as it is, so that a wait can be canceled and read on. */
static int read_reply(struct store_stream *stream, enum codec_command command, size_t value_count, int64_t deadline_ns,
                      struct codec_reply *out) {
    codec_scan_reply(&stream->scan, command, value_count);
    for (;;) {
        switch (codec_scan_step(&stream->scan, buf_bytes(&stream->in), stream->in.len)) {
        case CODEC_COMPLETE:
            codec_reply_decode(command, buf_bytes(&stream->in), stream->scan.at, out);
            return 0;
        case CODEC_MALFORMED:
            return store_stream_lose(stream, MUSTER_EPROTOCOL);
        case CODEC_MORE:
            break;
        }
        int code = receive(stream, deadline_ns);
        if (code) {
            return code;
        }
    }
}

void store_stream_finish(struct store_stream *stream) {
    buf_consume(&stream->in, stream->scan.at);
}

/* One byte, the answer to a wait or to its cancellation. */
static int read_wait_byte(struct store_stream *stream, int64_t deadline_ns, int64_t *out) {
    struct codec_reply reply;
    int code = read_reply(stream, CODEC_WAIT, 0, deadline_ns, &reply);
    if (code == 0) {
        *out = reply.number;
        store_stream_finish(stream);
    }
    return code;
}

/* What the server says of the wait that was taken back. Its answer may have crossed that. MUSTER_ETIMEOUT leaves the
 * stream as it is. */
static int read_owed(struct store_stream *stream, int64_t deadline_ns, bool *out_crossed) {
    int64_t answer = -1;
    *out_crossed = false;
    while (stream->owes_answer) {
        int code = read_wait_byte(stream, deadline_ns, &answer);
        if (code) {
            return code;
        }
        stream->owes_answer = answer == CODEC_WAIT_DONE && !*out_crossed;
        *out_crossed = *out_crossed || stream->owes_answer;
        if (!stream->owes_answer && answer != CODEC_WAIT_CANCELED) {
            return store_stream_lose(
                stream, status_fail(MUSTER_EPROTOCOL, "%lld is no answer to CANCEL_WAIT", (long long)answer));
        }
    }
    return 0;
}

int store_stream_begin(struct store_stream *stream, enum codec_command command) {
    if (stream->fd < 0) {
        return status_fail(MUSTER_ECLOSED, "the connection was lost earlier");
    }
    buf_clear(&stream->out);
    return codec_put_u8(&stream->out, (uint8_t)command);
}

int store_stream_exchange(struct store_stream *stream, int code, enum codec_command command, size_t value_count,
                          int64_t deadline_ns, struct codec_reply *out) {
    bool crossed;
    code = code ? code : read_owed(stream, deadline_ns, &crossed);
    code = code == MUSTER_ETIMEOUT ? store_stream_lose(stream, code) : code;
    code = code ? code : flush(stream, deadline_ns);
    if (code == 0 && out) {
        code = read_reply(stream, command, value_count, deadline_ns, out);
        code = code ? store_stream_lose(stream, code) : 0;
    }
    return code;
}

static int take_back(struct store_stream *stream) {
    int code = store_stream_begin(stream, CODEC_CANCEL_WAIT);
    code = code ? code : flush(stream, store_deadline(LOOK_MS));
    stream->owes_answer = code == 0;
    return code ? store_stream_lose(stream, code) : 0;
}

/* By when who only looks is to be answered. */
static int64_t look_deadline(const struct store_stream *stream) {
    return store_deadline(stream->is_silent ? 0 : LOOK_MS);
}

/* Time is up. */
static int give_up_wait(struct store_stream *stream, bool only_looks) {
    bool crossed = false;
    int code = take_back(stream);
    if (code == 0 && only_looks) {
        code = read_owed(stream, look_deadline(stream), &crossed);
        stream->is_silent = code == MUSTER_ETIMEOUT;
    }
    return code || crossed ? code : status_fail(MUSTER_ETIMEOUT, "the time-out is over");
}

int store_stream_wait(struct store_stream *stream, int code, int64_t send_deadline_ns, int64_t deadline_ns) {
    int64_t answer = -1;
    bool only_looks = store_remaining_ms(deadline_ns) == 0, crossed;
    code = code ? code : read_owed(stream, only_looks ? look_deadline(stream) : deadline_ns, &crossed);
    if (code) {
        stream->is_silent = stream->is_silent || (only_looks && code == MUSTER_ETIMEOUT);
        return code;
    }
    code = flush(stream, send_deadline_ns);
    code = code ? code : read_wait_byte(stream, deadline_ns, &answer);
    if (code == MUSTER_ETIMEOUT && stream->fd >= 0) {
        return give_up_wait(stream, only_looks);
    }
    if (code == 0 && answer != CODEC_WAIT_DONE) {
        return store_stream_lose(stream,
                                 status_fail(MUSTER_EPROTOCOL, "%lld is no answer to a wait", (long long)answer));
    }
    return code;
}

/* Connects to one address. *out_errno: how it ended. */
static int connect_to(struct store_stream *stream, const struct sockaddr *address, int64_t deadline_ns,
                      int *out_errno) {
    *out_errno = 0;
    if (net_socket_connect(address, &stream->fd)) {
        *out_errno = errno;
        stream->fd = -1;
        return MUSTER_ECONNECT;
    }
    net_socket_keep_alive(stream->fd, KEEP_ALIVE_IDLE_S, KEEP_ALIVE_INTERVAL_S, hold_from_env_ms());
    int code = await(stream, POLLOUT, deadline_ns);
    *out_errno = code ? ETIMEDOUT : net_socket_connect_result(stream->fd);
    return *out_errno ? store_stream_lose(stream, MUSTER_ECONNECT) : 0;
}

/* VALIDATE and PING in one write; the answer must be the nonce. */
static int shake_hands(struct store_stream *stream, int64_t deadline_ns) {
    uint32_t nonce = (uint32_t)getpid();
    struct codec_reply reply = {0};
    buf_clear(&stream->in);
    int code = store_stream_begin(stream, CODEC_VALIDATE);
    code = code ? code : codec_put_u32(&stream->out, CODEC_MAGIC);
    code = code ? code : codec_put_u8(&stream->out, CODEC_PING);
    code = code ? code : codec_put_u32(&stream->out, nonce);
    code = store_stream_exchange(stream, code, CODEC_PING, 0, deadline_ns, &reply);
    if (code) {
        return code;
    }
    store_stream_finish(stream);
    if (reply.number != nonce) {
        return store_stream_lose(
            stream, status_fail(MUSTER_EPROTOCOL,
                                "something answers, but not as a TCPStore does: another program holds this port"));
    }
    return 0;
}

/* One round over all addresses. *out_errno: of the last attempt; transient ones are worth another round. */
static int connect_once(struct store_stream *stream, const struct net_addresses *addresses, int64_t deadline_ns,
                        int *out_errno) {
    int code = MUSTER_ECONNECT;
    for (size_t i = 0; i < addresses->count; i++) {
        const struct sockaddr *address = (const struct sockaddr *)&addresses->list[i].sockaddr;
        code = connect_to(stream, address, deadline_ns, out_errno);
        if (code == 0) {
            code = shake_hands(stream, deadline_ns);
            *out_errno = code == MUSTER_ECONNECT ? ECONNRESET : 0;
        }
        if (code != MUSTER_ECONNECT) {
            return code;
        }
    }
    return code;
}

static const struct retry_pace pace = {.first_ms = 1, .max_ms = 250};

static void pause_until(int64_t deadline_ns, uint64_t pause_ms) {
    int left_ms = store_remaining_ms(deadline_ns);
    (void)poll(NULL, 0, pause_ms < (uint64_t)left_ms ? (int)pause_ms : left_ms);
}

int store_stream_connect(struct store_stream *stream, const struct net_addresses *addresses, int64_t timeout_ms) {
    int64_t deadline = store_deadline(timeout_ms);
    for (unsigned tries = 1;; tries++) {
        int error_number = 0;
        int code = connect_once(stream, addresses, deadline, &error_number);
        if (code == MUSTER_ETIMEOUT) {
            return status_fail(code,
                               "%s accepts connections but did not answer the TCPStore handshake within %lld ms: does "
                               "another program hold this port?",
                               stream->server, (long long)timeout_ms);
        }
        if (code != MUSTER_ECONNECT) {
            return code ? status_prefix(code, "connect to %s", stream->server) : 0;
        }
        if (!net_socket_error_is_transient(error_number)) {
            return status_fail(code, "connect to %s: %s", stream->server, strerror(error_number));
        }
        if (store_remaining_ms(deadline) == 0) {
            return status_fail(MUSTER_ETIMEOUT, "connect to %s: gave up after %lld ms and %u tries: %s", stream->server,
                               (long long)timeout_ms, tries, strerror(error_number));
        }
        pause_until(deadline, retry_pause_ms(&pace, tries, 1));
    }
}
