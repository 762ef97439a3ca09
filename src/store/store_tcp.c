/* The blocking TCPStore client: one connection, one request at a time, a deadline for each; see muster/store.h. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "store/codec.h"
#include "store/store_impl.h"

enum { BACK_OFF_FIRST_MS = 1, BACK_OFF_MAX_MS = 250, READ_MIN = 4096, READ_MAX = 256 * 1024 };
/* The server gets this long to confirm that a wait was canceled, beyond the caller's own time. */
enum { CANCEL_GRACE_MS = 10000 };
/* As many keys are named in a message, of a list. */
enum { KEYS_NAMED_MAX = 4 };

struct tcp_store {
    struct store_backend backend;
    int fd; /* -1: the connection is lost */
    char server[NET_HOST_MAX + 16];
    struct buf in, out;
    struct codec_scan scan;
    struct store_host *host; /* NULL: served elsewhere */
};

static struct tcp_store *tcp_of(struct store_backend *backend) {
    return (struct tcp_store *)backend;
}

/* The stream is out of step or gone: no later call can use it. */
static int lose(struct tcp_store *tcp, int code) {
    if (tcp->fd >= 0) {
        (void)close(tcp->fd);
        tcp->fd = -1;
    }
    return code;
}

/* Waits until the socket is ready. */
static int await(struct tcp_store *tcp, short events, int64_t deadline_ns) {
    for (;;) {
        struct pollfd poll_fd = {.fd = tcp->fd, .events = events};
        int left_ms = store_remaining_ms(deadline_ns);
        int ready = poll(&poll_fd, 1, left_ms);
        if (ready > 0) {
            return 0;
        }
        if (ready == 0 && store_remaining_ms(deadline_ns) == 0) {
            return status_fail(MUSTER_ETIMEOUT, "no answer in time");
        }
        if (ready < 0 && errno != EINTR) {
            return lose(tcp, status_fail_errno(errno, "poll"));
        }
    }
}

/* Sends all of `out`; whatever goes wrong, time included, breaks the stream. */
static int flush(struct tcp_store *tcp, int64_t deadline_ns) {
    while (tcp->out.len > 0) {
        ssize_t sent = send(tcp->fd, buf_bytes(&tcp->out), tcp->out.len, MSG_NOSIGNAL);
        if (sent > 0) {
            buf_consume(&tcp->out, (size_t)sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int code = await(tcp, POLLOUT, deadline_ns);
            if (code) {
                return lose(tcp, code);
            }
        } else if (errno != EINTR) {
            return lose(tcp, status_fail(MUSTER_ECONNECT, "the connection is lost: %s", strerror(errno)));
        }
    }
    return 0;
}

/* Reads once. MUSTER_ETIMEOUT leaves the stream as it is. */
static int receive(struct tcp_store *tcp, int64_t deadline_ns) {
    int code = await(tcp, POLLIN, deadline_ns);
    if (code) {
        return code;
    }
    size_t room = tcp->scan.need > tcp->in.len ? tcp->scan.need - tcp->in.len : READ_MIN;
    room = room < READ_MIN ? READ_MIN : room > READ_MAX ? READ_MAX : room;
    uint8_t *at = buf_reserve(&tcp->in, room);
    if (!at) {
        return lose(tcp, MUSTER_ENOMEM);
    }
    ssize_t got = recv(tcp->fd, at, room, 0);
    if (got > 0) {
        buf_commit(&tcp->in, (size_t)got);
    } else if (got == 0) {
        return lose(tcp, status_fail(MUSTER_ECONNECT, "the server closed the connection"));
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        return lose(tcp, status_fail(MUSTER_ECONNECT, "the connection is lost: %s", strerror(errno)));
    }
    return 0;
}

/* Reads the reply of `command`; its bytes stay in `in` until finish_reply(). MUSTER_ETIMEOUT leaves the stream as it
 * is, so that a wait can be canceled and read on. */
static int read_reply(struct tcp_store *tcp, enum codec_command command, size_t value_count, int64_t deadline_ns,
                      struct codec_reply *out) {
    codec_scan_reply(&tcp->scan, command, value_count);
    for (;;) {
        switch (codec_scan_step(&tcp->scan, buf_bytes(&tcp->in), tcp->in.len)) {
        case CODEC_COMPLETE:
            codec_reply_decode(command, buf_bytes(&tcp->in), tcp->scan.at, out);
            return 0;
        case CODEC_MALFORMED:
            return lose(tcp, MUSTER_EPROTOCOL);
        case CODEC_MORE:
            break;
        }
        int code = receive(tcp, deadline_ns);
        if (code) {
            return code;
        }
    }
}

static void finish_reply(struct tcp_store *tcp) {
    buf_consume(&tcp->in, tcp->scan.at);
}

/* "GET /a, /b at host:port: " in front of the detail. */
static int explain(const struct tcp_store *tcp, int code, enum codec_command command, const char *prefix,
                   const char *const *keys, size_t key_count) {
    char names[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < key_count && i < KEYS_NAMED_MAX && used < sizeof names; i++) {
        int n = snprintf(names + used, sizeof names - used, "%s%s%.100s", i ? ", " : " ", prefix, keys[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    return status_prefix(code, "%s%s%s at %s", codec_command_name(command), names,
                         key_count > KEYS_NAMED_MAX ? " ..." : "", tcp->server);
}

/* The start of each request. */
static int open_request(struct tcp_store *tcp, enum codec_command command) {
    if (tcp->fd < 0) {
        return status_fail(MUSTER_ECLOSED, "the connection was lost earlier");
    }
    buf_clear(&tcp->out);
    return codec_put_u8(&tcp->out, (uint8_t)command);
}

/* Sends the request if building it went well, and reads its reply, which must come in time. `out` NULL: the command has
 * none. */
static int exchange(struct tcp_store *tcp, int code, enum codec_command command, size_t value_count,
                    int64_t deadline_ns, struct codec_reply *out) {
    code = code ? code : flush(tcp, deadline_ns);
    if (code == 0 && out) {
        code = read_reply(tcp, command, value_count, deadline_ns, out);
        code = code ? lose(tcp, code) : 0;
    }
    return code;
}

static int tcp_set(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                   int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = open_request(tcp, CODEC_SET);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = code ? code : codec_put_value(&tcp->out, value);
    code = exchange(tcp, code, CODEC_SET, 0, deadline_ns, NULL);
    return code ? explain(tcp, code, CODEC_SET, prefix, &key, 1) : 0;
}

static int tcp_append(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                      int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = open_request(tcp, CODEC_APPEND);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = code ? code : codec_put_value(&tcp->out, value);
    code = exchange(tcp, code, CODEC_APPEND, 0, deadline_ns, NULL);
    return code ? explain(tcp, code, CODEC_APPEND, prefix, &key, 1) : 0;
}

static int tcp_queue_push(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                          int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = open_request(tcp, CODEC_QUEUE_PUSH);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = code ? code : codec_put_value(&tcp->out, value);
    code = exchange(tcp, code, CODEC_QUEUE_PUSH, 0, deadline_ns, NULL);
    return code ? explain(tcp, code, CODEC_QUEUE_PUSH, prefix, &key, 1) : 0;
}

static int tcp_add(struct store_backend *backend, const char *prefix, const char *key, int64_t delta,
                   int64_t deadline_ns, int64_t *out_sum) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = open_request(tcp, CODEC_ADD);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = code ? code : codec_put_i64(&tcp->out, delta);
    code = exchange(tcp, code, CODEC_ADD, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_ADD, prefix, &key, 1);
    }
    *out_sum = reply.number;
    finish_reply(tcp);
    return 0;
}

/* The first item of a reply as a value, and the end of the reply. */
static int take_value(struct tcp_store *tcp, struct codec_reply *reply, struct muster_store_value *out) {
    struct kv_slice slice = {0};
    (void)codec_list_next(&reply->list, &slice);
    int code = store_value_new(slice, out);
    finish_reply(tcp);
    return code;
}

static int tcp_compare_set(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice expected,
                           struct kv_slice desired, int64_t deadline_ns, struct muster_store_value *out) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = open_request(tcp, CODEC_COMPARE_SET);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = code ? code : codec_put_value(&tcp->out, expected);
    code = code ? code : codec_put_value(&tcp->out, desired);
    code = exchange(tcp, code, CODEC_COMPARE_SET, 0, deadline_ns, &reply);
    code = code ? code : take_value(tcp, &reply, out);
    return code ? explain(tcp, code, CODEC_COMPARE_SET, prefix, &key, 1) : 0;
}

static int number_of_key(struct tcp_store *tcp, enum codec_command command, const char *prefix, const char *key,
                         int64_t deadline_ns, int64_t *out) {
    struct codec_reply reply;
    int code = open_request(tcp, command);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = exchange(tcp, code, command, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, command, prefix, &key, 1);
    }
    *out = reply.number;
    finish_reply(tcp);
    return 0;
}

static int tcp_remove(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                      bool *out_deleted) {
    int64_t removed = 0;
    int code = number_of_key(tcp_of(backend), CODEC_DELETE_KEY, prefix, key, deadline_ns, &removed);
    if (code == 0) {
        *out_deleted = removed > 0;
    }
    return code;
}

static int tcp_queue_length(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                            int64_t *out_length) {
    return number_of_key(tcp_of(backend), CODEC_QUEUE_LEN, prefix, key, deadline_ns, out_length);
}

static int put_keys(struct tcp_store *tcp, enum codec_command command, const char *prefix, const char *const *keys,
                    size_t key_count) {
    int code = open_request(tcp, command);
    code = code ? code : codec_put_i64(&tcp->out, (int64_t)key_count);
    for (size_t i = 0; i < key_count && code == 0; i++) {
        code = codec_put_key(&tcp->out, prefix, kv_slice_text(keys[i]));
    }
    return code;
}

static int tcp_check(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                     int64_t deadline_ns, bool *out_all) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = put_keys(tcp, CODEC_CHECK, prefix, keys, key_count);
    code = exchange(tcp, code, CODEC_CHECK, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_CHECK, prefix, keys, key_count);
    }
    *out_all = reply.number == CODEC_CHECK_PRESENT;
    finish_reply(tcp);
    return 0;
}

/* One byte, the answer to a wait or to its cancellation. */
static int read_wait_byte(struct tcp_store *tcp, int64_t deadline_ns, int64_t *out) {
    struct codec_reply reply;
    int code = read_reply(tcp, CODEC_WAIT, 0, deadline_ns, &reply);
    if (code == 0) {
        *out = reply.number;
        finish_reply(tcp);
    }
    return code;
}

/* Time is up: takes the wait back. The answer may have crossed the cancellation; then it counts. */
static int cancel_wait(struct tcp_store *tcp) {
    int64_t deadline = store_deadline(CANCEL_GRACE_MS), answer = -1;
    int code = open_request(tcp, CODEC_CANCEL_WAIT);
    code = code ? code : flush(tcp, deadline);
    code = code ? code : read_wait_byte(tcp, deadline, &answer);
    bool crossed = code == 0 && answer == CODEC_WAIT_DONE;
    if (crossed) {
        code = read_wait_byte(tcp, deadline, &answer);
    }
    if (code) {
        return lose(tcp, code);
    }
    if (answer != CODEC_WAIT_CANCELED) {
        return lose(tcp, status_fail(MUSTER_EPROTOCOL, "%lld is no answer to CANCEL_WAIT", (long long)answer));
    }
    return crossed ? 0 : status_fail(MUSTER_ETIMEOUT, "waited in vain until the time was up");
}

/* The reply of a command that may take as long as the caller allows. */
static int finish_wait(struct tcp_store *tcp, int code, int64_t deadline_ns) {
    int64_t answer = -1;
    /* "Only look" must still be given the time to ask. */
    code = code ? code : flush(tcp, store_deadline(tcp->backend.timeout_ms));
    code = code ? code : read_wait_byte(tcp, deadline_ns, &answer);
    if (code == MUSTER_ETIMEOUT && tcp->fd >= 0) {
        return cancel_wait(tcp);
    }
    if (code == 0 && answer != CODEC_WAIT_DONE) {
        return lose(tcp, status_fail(MUSTER_EPROTOCOL, "%lld is no answer to a wait", (long long)answer));
    }
    return code;
}

static int tcp_wait(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                    int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = put_keys(tcp, CODEC_WAIT, prefix, keys, key_count);
    code = finish_wait(tcp, code, deadline_ns);
    return code ? explain(tcp, code, CODEC_WAIT, prefix, keys, key_count) : 0;
}

static int tcp_barrier(struct store_backend *backend, const char *prefix, const char *key, int64_t world_size,
                       int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = open_request(tcp, CODEC_BARRIER);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = code ? code : codec_put_i64(&tcp->out, world_size);
    code = finish_wait(tcp, code, deadline_ns);
    return code ? explain(tcp, code, CODEC_BARRIER, prefix, &key, 1) : 0;
}

static int take_values(struct tcp_store *tcp, struct codec_reply *reply, struct muster_store_value *out, size_t count) {
    struct kv_slice slice;
    int code = 0;
    size_t taken = 0;
    while (code == 0 && taken < count && codec_list_next(&reply->list, &slice)) {
        code = store_value_new(slice, &out[taken]);
        taken += code == 0;
    }
    while (code && taken > 0) {
        muster_store_value_free(&out[--taken]);
    }
    finish_reply(tcp);
    return code;
}

/* One key goes as GET, as PyTorch's client sends it. */
static int tcp_multi_get(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                         int64_t deadline_ns, struct muster_store_value *out) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    enum codec_command command = key_count == 1 ? CODEC_GET : CODEC_MULTI_GET;
    int code = 0;
    if (key_count == 1) {
        code = open_request(tcp, CODEC_GET);
        code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(keys[0]));
    } else {
        code = put_keys(tcp, CODEC_MULTI_GET, prefix, keys, key_count);
    }
    code = exchange(tcp, code, command, key_count, deadline_ns, &reply);
    code = code ? code : take_values(tcp, &reply, out, key_count);
    return code ? explain(tcp, code, command, prefix, keys, key_count) : 0;
}

static int tcp_multi_set(struct store_backend *backend, const char *prefix, const char *const *keys,
                         const struct muster_store_value *values, size_t key_count, int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = open_request(tcp, CODEC_MULTI_SET);
    code = code ? code : codec_put_i64(&tcp->out, (int64_t)key_count);
    for (size_t i = 0; i < key_count && code == 0; i++) {
        code = codec_put_key(&tcp->out, prefix, kv_slice_text(keys[i]));
        code = code ? code : codec_put_value(&tcp->out, kv_slice_of(values[i].data, values[i].len));
    }
    code = exchange(tcp, code, CODEC_MULTI_SET, 0, deadline_ns, NULL);
    return code ? explain(tcp, code, CODEC_MULTI_SET, prefix, keys, key_count) : 0;
}

static int tcp_num_keys(struct store_backend *backend, int64_t deadline_ns, int64_t *out_count) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = open_request(tcp, CODEC_GETNUMKEYS);
    code = exchange(tcp, code, CODEC_GETNUMKEYS, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_GETNUMKEYS, "", NULL, 0);
    }
    *out_count = reply.number;
    finish_reply(tcp);
    return 0;
}

static int tcp_list_keys(struct store_backend *backend, int64_t deadline_ns,
                         int (*each)(void *ctx, struct kv_slice key), void *ctx) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    struct kv_slice key;
    int code = open_request(tcp, CODEC_LIST_KEYS);
    code = exchange(tcp, code, CODEC_LIST_KEYS, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_LIST_KEYS, "", NULL, 0);
    }
    while (code == 0 && codec_list_next(&reply.list, &key)) {
        code = each(ctx, key);
    }
    finish_reply(tcp);
    return code;
}

static int tcp_queue_pop(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                         struct muster_store_value *out) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = open_request(tcp, CODEC_QUEUE_POP);
    code = code ? code : codec_put_key(&tcp->out, prefix, kv_slice_text(key));
    code = exchange(tcp, code, CODEC_QUEUE_POP, 0, deadline_ns, &reply);
    if (code == 0 && reply.number <= 0) {
        finish_reply(tcp);
        code = status_fail(MUSTER_ENOENT, "the queue is empty");
    } else if (code == 0) {
        code = take_value(tcp, &reply, out);
    }
    return code ? explain(tcp, code, CODEC_QUEUE_POP, prefix, &key, 1) : 0;
}

static void tcp_free(struct store_backend *backend) {
    struct tcp_store *tcp = tcp_of(backend);
    (void)lose(tcp, 0);
    store_host_stop(tcp->host);
    buf_done(&tcp->in);
    buf_done(&tcp->out);
    free(tcp);
}

static const struct store_operations tcp_operations = {
    .set = tcp_set,
    .append = tcp_append,
    .add = tcp_add,
    .compare_set = tcp_compare_set,
    .remove = tcp_remove,
    .check = tcp_check,
    .wait = tcp_wait,
    .multi_get = tcp_multi_get,
    .multi_set = tcp_multi_set,
    .num_keys = tcp_num_keys,
    .list_keys = tcp_list_keys,
    .queue_push = tcp_queue_push,
    .queue_pop = tcp_queue_pop,
    .queue_length = tcp_queue_length,
    .barrier = tcp_barrier,
    .free = tcp_free,
};

/* ---- opening ---- */

/* Connects to one address. *out_errno: how it ended. */
static int connect_to(struct tcp_store *tcp, const struct sockaddr *address, int64_t deadline_ns, int *out_errno) {
    *out_errno = 0;
    if (net_socket_connect(address, &tcp->fd)) {
        *out_errno = errno;
        tcp->fd = -1;
        return MUSTER_ECONNECT;
    }
    int code = await(tcp, POLLOUT, deadline_ns);
    *out_errno = code ? ETIMEDOUT : net_socket_connect_result(tcp->fd);
    return *out_errno ? lose(tcp, MUSTER_ECONNECT) : 0;
}

/* VALIDATE and PING in one write; the answer must be the nonce. */
static int shake_hands(struct tcp_store *tcp, int64_t deadline_ns) {
    uint32_t nonce = (uint32_t)getpid();
    struct codec_reply reply;
    buf_clear(&tcp->in);
    int code = open_request(tcp, CODEC_VALIDATE);
    code = code ? code : codec_put_u32(&tcp->out, CODEC_MAGIC);
    code = code ? code : codec_put_u8(&tcp->out, CODEC_PING);
    code = code ? code : codec_put_u32(&tcp->out, nonce);
    code = exchange(tcp, code, CODEC_PING, 0, deadline_ns, &reply);
    if (code) {
        return code;
    }
    finish_reply(tcp);
    if (reply.number != nonce) {
        return lose(tcp, status_fail(MUSTER_EPROTOCOL,
                                     "something answers, but not as a TCPStore does: another program holds this port"));
    }
    return 0;
}

/* One round over all addresses. *out_errno: of the last attempt; transient ones are worth another round. */
static int connect_once(struct tcp_store *tcp, const struct net_addresses *addresses, int64_t deadline_ns,
                        int *out_errno) {
    int code = MUSTER_ECONNECT;
    for (size_t i = 0; i < addresses->count; i++) {
        const struct sockaddr *address = (const struct sockaddr *)&addresses->list[i].sockaddr;
        code = connect_to(tcp, address, deadline_ns, out_errno);
        if (code == 0) {
            code = shake_hands(tcp, deadline_ns);
            *out_errno = code == MUSTER_ECONNECT ? ECONNRESET : 0;
        }
        if (code != MUSTER_ECONNECT) {
            return code;
        }
    }
    return code;
}

static void pause_until(int64_t deadline_ns, int pause_ms) {
    int left_ms = store_remaining_ms(deadline_ns);
    (void)poll(NULL, 0, pause_ms < left_ms ? pause_ms : left_ms);
}

static int connect_in_time(struct tcp_store *tcp, const struct net_addresses *addresses, int64_t timeout_ms) {
    int64_t deadline = store_deadline(timeout_ms);
    unsigned tries = 0;
    for (int pause_ms = BACK_OFF_FIRST_MS;;
         pause_ms = pause_ms * 2 < BACK_OFF_MAX_MS ? pause_ms * 2 : BACK_OFF_MAX_MS) {
        int error_number = 0;
        int code = connect_once(tcp, addresses, deadline, &error_number);
        tries++;
        if (code == MUSTER_ETIMEOUT) {
            return status_fail(code,
                               "%s accepts connections but did not answer the TCPStore handshake within %lld ms: does "
                               "another program hold this port?",
                               tcp->server, (long long)timeout_ms);
        }
        if (code != MUSTER_ECONNECT) {
            return code ? status_prefix(code, "connect to %s", tcp->server) : 0;
        }
        if (!net_socket_error_is_transient(error_number)) {
            return status_fail(code, "connect to %s: %s", tcp->server, strerror(error_number));
        }
        if (store_remaining_ms(deadline) == 0) {
            return status_fail(MUSTER_ETIMEOUT, "connect to %s: gave up after %lld ms and %u tries: %s", tcp->server,
                               (long long)timeout_ms, tries, strerror(error_number));
        }
        pause_until(deadline, pause_ms);
    }
}

/* The host waits until everybody has counted himself in. Its server is ours, which says when the number changes. */
static int wait_for_workers(struct tcp_store *tcp, uint32_t world_size, int64_t deadline_ns) {
    char known[24] = "";
    long long joined = 0;
    for (;;) {
        struct codec_reply reply;
        struct kv_slice value = {0};
        int code = open_request(tcp, CODEC_WATCH);
        code = code ? code : codec_put_key(&tcp->out, "init/", kv_slice_text(""));
        code = code ? code : codec_put_value(&tcp->out, kv_slice_text(known));
        code = exchange(tcp, code, CODEC_WATCH, 0, deadline_ns, &reply);
        if (code == MUSTER_ETIMEOUT) {
            return status_fail(code, "%lld of %u processes have opened the store at %s in time", joined, world_size,
                               tcp->server);
        }
        if (code) {
            return status_prefix(code, "wait for %u processes", world_size);
        }
        (void)codec_list_next(&reply.list, &value);
        size_t len = value.len < sizeof known ? value.len : sizeof known - 1;
        if (len > 0) {
            memcpy(known, value.data, len);
        }
        known[len] = '\0';
        finish_reply(tcp);
        joined = strtoll(known, NULL, 10);
        if (joined >= (long long)world_size) {
            return 0;
        }
    }
}

static int join(struct tcp_store *tcp, const struct muster_store_options *options, int64_t deadline_ns) {
    int64_t count = 0;
    if (options->world_size == 0) {
        return 0;
    }
    int code = tcp_add(&tcp->backend, "", "init/", 1, deadline_ns, &count);
    if (code == 0 && tcp->host && options->wait_for_workers) {
        code = wait_for_workers(tcp, options->world_size, deadline_ns);
    }
    return code;
}

static int check_options(const struct muster_store_options *options) {
    if (options->size != sizeof *options) {
        return status_fail(MUSTER_EINVAL, "store options of %zu bytes: start from MUSTER_STORE_OPTIONS_INIT",
                           options->size);
    }
    if (options->timeout_ms <= 0) {
        return status_fail(MUSTER_EINVAL, "store: timeout_ms is %lld, a number above 0 is needed",
                           (long long)options->timeout_ms);
    }
    if (!options->is_host && (!options->host || options->host[0] == '\0' || options->port == 0)) {
        return status_fail(MUSTER_EINVAL, "store: host and port of the server are needed");
    }
    return 0;
}

static int start(struct tcp_store *tcp, const struct muster_store_options *options) {
    int64_t deadline = store_deadline(options->timeout_ms);
    struct net_addresses addresses;
    const char *host = options->is_host ? "localhost" : options->host;
    tcp->backend.port = options->port;
    if (options->is_host) {
        int code = store_host_start(options->bind_host, options->port, &tcp->host);
        if (code) {
            return code;
        }
        tcp->backend.port = store_host_port(tcp->host);
        host = options->bind_host ? options->bind_host : host;
    }
    (void)snprintf(tcp->server, sizeof tcp->server, "%s:%u", options->host ? options->host : host,
                   (unsigned)tcp->backend.port);
    int code = net_resolve(host, tcp->backend.port, &addresses);
    code = code ? code : connect_in_time(tcp, &addresses, options->timeout_ms);
    return code ? code : join(tcp, options, deadline);
}

int muster_store_open_tcp(const struct muster_store_options *options, struct muster_store **out) {
    int code = check_options(options);
    if (code) {
        return code;
    }
    struct tcp_store *tcp = calloc(1, sizeof *tcp);
    if (!tcp) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store");
    }
    tcp->backend = (struct store_backend){.operations = &tcp_operations, .timeout_ms = options->timeout_ms};
    tcp->fd = -1;
    buf_init(&tcp->in, CODEC_MESSAGE_BYTES_MAX + READ_MAX);
    buf_init(&tcp->out, CODEC_MESSAGE_BYTES_MAX);
    code = start(tcp, options);
    if (code) {
        tcp_free(&tcp->backend);
        return code;
    }
    return store_handle_new(&tcp->backend, out);
}
