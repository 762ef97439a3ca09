/* The asynchronous client: its life, its queues, bytes out and in, time-outs. kv_client_connect.c gets the connection,
 * kv_client_replies.c reads what comes back, kv_client_requests.c builds requests; see kv_client.h. */
#include "store/client/kv_client.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "store/client/kv_client_impl.h"
#include "store/client/kv_file.h"

/* A store that has been away as long as this process needs no longer to answer what it was asked. */
enum { LISTEN_MS = 5000 };
enum { READ_MIN = 4096, READ_MAX = 256 * 1024, FAILURE_TEXT_MAX = 512 };

/* ---- the end of a link, a request, the client ---- */

static void on_link_closed(uv_handle_t *handle) {
    free(handle->data);
}

static void drop(struct link *link) {
    if (link) {
        link->client = NULL;
        uv_close((uv_handle_t *)&link->poll, on_link_closed);
        (void)close(link->fd);
    }
}

void kv_client_drop_link(struct kv_client *client) {
    struct link *link = client->link;
    client->link = NULL;
    drop(link);
}

/* What it has not sent yet has been sent on the other one, and must not come after that. */
void kv_client_drop_retired(struct kv_client *client) {
    const struct linger at_once = {.l_onoff = 1};
    struct link *link = client->retired;
    client->retired = NULL;
    if (link) {
        (void)setsockopt(link->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        drop(link);
    }
}

void kv_client_forget_bytes(struct kv_client *client) {
    buf_done(&client->in);
    buf_done(&client->out);
}

void kv_client_stop_dial(struct kv_client *client) {
    kv_client_close(client->dial);
    client->dial = NULL;
}

void kv_client_answer(struct kv_client *client, struct kv_request *request, const struct kv_reply *reply) {
    client->request_count--;
    if (request->cb) {
        request->cb(request->ctx, reply);
    }
    kv_request_free(request);
}

/* The connection, or the attempt to get one, is over: `format` says why. */
void kv_client_fail(struct kv_client *client, int code, const char *format, ...) {
    char text[FAILURE_TEXT_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    client->state = STATE_FAILED;
    kv_client_stop_dial(client);
    kv_client_drop_retired(client);
    kv_client_drop_link(client);
    kv_client_forget_bytes(client);
    (void)uv_timer_stop(&client->timer);
    struct kv_request *request;
    while (!client->is_closed && ((request = kv_request_take_first(&client->sent, &client->sent_last)) != NULL ||
                                  (request = kv_request_take_first(&client->queued, &client->queued_last)) != NULL)) {
        struct kv_reply reply = {.status = MUSTER_ECONNECT};
        (void)status_fail(MUSTER_ECONNECT, "%s %s: %s", codec_command_name(request->command), request->keys, text);
        kv_client_answer(client, request, &reply);
    }
    if (!client->is_closed) {
        client->on_state(client->ctx, status_fail(code, "%s", text));
    }
}

static void on_timer_closed(uv_handle_t *handle) {
    struct kv_client *client = handle->data;
    kv_client_forget_bytes(client); /* not earlier: a callback that closes may still look at its reply */
    free(client->file_path);
    free(client);
}

void kv_client_close(struct kv_client *client) {
    if (!client) {
        return;
    }
    assert(!client->is_closed);
    client->is_closed = true;
    kv_client_stop_dial(client);
    kv_client_drop_retired(client);
    kv_client_drop_link(client);
    kv_file_close(client->file); /* now: whoever closes may remove the file next */
    client->file = NULL;
    kv_etcd_close(client->etcd);
    client->etcd = NULL;
    struct kv_request *request;
    while ((request = kv_request_take_first(&client->sent, &client->sent_last)) != NULL ||
           (request = kv_request_take_first(&client->queued, &client->queued_last)) != NULL) {
        kv_request_free(request);
    }
    uv_close((uv_handle_t *)&client->timer, on_timer_closed);
}

/* ---- time ---- */

/* What was asked before the time-out was set has all of it from then on: the store was perhaps away, and its answer is
 * on its way. */
static uint64_t timeout_from_ms(const struct kv_client *client, uint64_t since_ms) {
    uint64_t from_ms = since_ms > client->timeout_since_ms ? since_ms : client->timeout_since_ms;
    return client->timeout_ms ? from_ms + client->timeout_ms : 0;
}

static bool has_stood(const struct kv_client *client) {
    return client->state == STATE_READY || client->state == STATE_LOST;
}

struct kv_request *kv_client_head(const struct kv_client *client) {
    struct kv_request *head = client->state == STATE_LOST ? client->queued : client->sent;
    while (head && !head->has_reply) {
        head = head->next;
    }
    return head;
}

uint64_t kv_client_deadline_ms(const struct kv_client *client) {
    const struct kv_request *head = kv_client_head(client);
    if (!has_stood(client)) {
        return timeout_from_ms(client, client->started_ms);
    }
    if (!head) {
        return 0;
    }
    if (head->stage == KV_STAGE_WAIT) {
        return head->timeout_ms ? head->since_ms + head->timeout_ms : 0;
    }
    if (head->command == CODEC_WATCH) {
        return 0;
    }
    return timeout_from_ms(client, head->since_ms);
}

uint64_t kv_client_left_ms(const struct kv_client *client, uint64_t deadline_ms) {
    return (uint64_t)loop_clock_left_ms(client->clock, client->timer.loop, (int64_t)deadline_ms, LISTEN_MS);
}

void kv_client_arm_timer(struct kv_client *client) {
    uint64_t deadline = kv_client_deadline_ms(client);
    if (client->state == STATE_PAUSED || client->state == STATE_FAILED || client->is_closed) {
        return; /* paused: the timer is set for the next try */
    }
    if (deadline == 0) {
        (void)uv_timer_stop(&client->timer);
    } else {
        (void)uv_timer_start(&client->timer, kv_client_on_timer, kv_client_left_ms(client, deadline), 0);
    }
}

/* ---- bytes ---- */

static void on_poll(uv_poll_t *poll, int status, int events);

void kv_client_update_poll(struct kv_client *client) {
    int events = client->state == STATE_CONNECTING ? UV_WRITABLE : UV_READABLE | (client->is_full ? UV_WRITABLE : 0);
    (void)uv_poll_start(&client->link->poll, events, on_poll);
}

/* A failure shows up as a readable socket with an error, so that it is handled from the loop, never inside a call; the
 * socket may be writable all the time, which is of no interest then. */
void kv_client_send_pending(struct kv_client *client) {
    client->is_full = false;
    while (client->out.len > 0) {
        ssize_t sent = send(client->link->fd, buf_bytes(&client->out), client->out.len, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            client->is_full = errno == EAGAIN || errno == EWOULDBLOCK;
            client->link->send_error = client->is_full ? 0 : errno;
            break;
        }
        buf_consume(&client->out, (size_t)sent);
    }
    kv_client_update_poll(client);
}

void kv_client_expect_reply(struct kv_client *client) {
    struct kv_request *head = kv_client_head(client);
    if (head) {
        codec_scan_reply(&client->scan, head->stage == KV_STAGE_COMMAND ? head->command : CODEC_WAIT,
                         head->value_count);
        head->since_ms = head->since_ms ? head->since_ms : kv_client_now_ms(client);
    }
    kv_client_arm_timer(client);
}

/* Does a request that was sent forbid sending this one? The server remembers one addition of each client. */
static bool is_held_back(const struct kv_client *client, const struct kv_request *next) {
    bool adds = next->command == CODEC_ADD || next->command == CODEC_ADD_ONCE;
    for (const struct kv_request *request = client->sent; request; request = request->next) {
        if (request->holds_back || (adds && request->command == CODEC_ADD_ONCE)) {
            return true;
        }
    }
    return false;
}

/* Who this is goes out with the first request, so that it costs no message of its own. */
static int put_name(struct kv_client *client) {
    int code = 0;
    if (client->knows_clients && !client->is_named && !client->is_dial) {
        code = codec_put_u8(&client->out, CODEC_CLIENT);
        code = code ? code : codec_put_i64(&client->out, (int64_t)client->name);
        client->is_named = code == 0;
        client->messages = 0;
    }
    return code;
}

/* An addition, to who knows it again: once it has its number it keeps it. */
static int number_addition(struct kv_client *client, struct kv_request *request) {
    int code = 0;
    if (request->command == CODEC_ADD && client->knows_clients) {
        code = codec_put_i64(&request->bytes, client->additions + 1);
        if (code == 0) {
            client->additions++;
            request->command = CODEC_ADD_ONCE;
            buf_bytes(&request->bytes)[0] = CODEC_ADD_ONCE;
        }
    }
    return code;
}

/* A server that answers nothing for long says now and then how far it is, so that few requests have to be kept. */
static int limit_silent(const struct kv_client *client, struct kv_request *request) {
    int code = 0;
    if (!request->has_reply && client->silent_count >= KV_CLIENT_SILENT_MAX) {
        code = kv_request_add_ping(request);
    }
    return code;
}

/* What is to be sent of it in its stage; after another connection it may be any. */
static int put_request(struct kv_client *client, struct kv_request *request) {
    int code = put_name(client);
    code = code ? code : number_addition(client, request);
    code = code ? code : limit_silent(client, request);
    if (code) {
        return code;
    }
    const uint8_t *bytes = buf_bytes(&request->bytes);
    bool has_ping = request->command == CODEC_PING && !request->is_done;
    request->sent_as = client->messages + 1;
    client->messages += 1 + has_ping;
    switch (request->stage) {
    case KV_STAGE_WAIT:
        return buf_append(&client->out, bytes, request->wait_len);
    case KV_STAGE_CANCEL: /* is answered whether or not there is a wait */
        return codec_put_u8(&client->out, CODEC_CANCEL_WAIT);
    case KV_STAGE_COMMAND:
        break;
    }
    size_t at = request->is_done ? request->bytes.len - KV_CLIENT_PING_BYTES : request->wait_len;
    return buf_append(&client->out, bytes + at, request->bytes.len - at);
}

/* When there is no memory for it the connection is of no more use; that is reported from the loop, since this may run
 * inside a call. */
void kv_client_pump(struct kv_client *client) {
    while (client->state == STATE_READY && client->queued && !is_held_back(client, client->queued)) {
        struct kv_request *request = client->queued;
        client->broken = put_request(client, request);
        if (client->broken) {
            (void)uv_timer_start(&client->timer, kv_client_on_timer, 0, 0);
            return;
        }
        (void)kv_request_take_first(&client->queued, &client->queued_last);
        bool was_idle = kv_client_head(client) == NULL;
        kv_request_append(&client->sent_last, request);
        client->silent_count += !request->has_reply;
        if (was_idle && request->has_reply) {
            kv_client_expect_reply(client);
        }
    }
    if (client->state == STATE_READY) {
        kv_client_send_pending(client);
    }
}

int kv_client_submit(struct kv_client *client, struct kv_request *request) {
    assert(!client->is_closed);
    int code = 0;
    if (client->state == STATE_FAILED) {
        code = status_fail(MUSTER_ECLOSED, "the connection to %s has ended", client->address_text);
    } else if (request->command == CODEC_WATCH && client->state == STATE_READY && !client->offers_watch) {
        code = status_fail(MUSTER_EUNSUPPORTED, "the store at %s does not offer WATCH", client->address_text);
    } else if (client->request_count >= KV_CLIENT_REQUESTS_MAX) {
        code = status_fail(MUSTER_ELIMIT, "%zu requests to %s are unanswered", client->request_count,
                           client->address_text);
    }
    if (code) {
        kv_request_free(request);
        return code;
    }
    client->request_count++;
    kv_request_append(&client->queued_last, request);
    if (client->file_path || client->etcd) {
        kv_client_file_wake(client);
    } else if (client->state == STATE_LOST) {
        kv_client_expect_reply(client);
    } else {
        kv_client_pump(client);
    }
    return 0;
}

/* ---- events ---- */

/* Reads what there is; false when the connection is over. */
static bool receive(struct kv_client *client) {
    size_t room = client->state == STATE_READY && client->scan.need > client->in.len
                      ? client->scan.need - client->in.len
                      : READ_MIN;
    room = room < READ_MIN ? READ_MIN : room > READ_MAX ? READ_MAX : room;
    uint8_t *at = buf_reserve(&client->in, room);
    if (!at) {
        kv_client_fail(client, MUSTER_ENOMEM, "receive from %s: no memory", client->address_text);
        return false;
    }
    ssize_t got = recv(client->link->fd, at, room, 0);
    if (got > 0) {
        kv_client_stop_dial(client);
        buf_commit(&client->in, (size_t)got);
        return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        return false;
    }
    int error_number = got == 0 ? client->link->send_error : errno;
    if (client->state == STATE_HANDSHAKE) {
        kv_client_try_later(client, error_number ? error_number : ECONNRESET);
    } else if (!client->lost || !client->lost(client, error_number)) {
        kv_client_fail(client, MUSTER_ECONNECT, "connection to the store at %s lost: %s", client->address_text,
                       got == 0 ? "closed by the other side" : strerror(error_number));
    }
    return false;
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    struct link *link = poll->data;
    struct kv_client *client = link->client;
    if (client->state == STATE_CONNECTING) {
        kv_client_on_connected(client);
        return;
    }
    if (status == 0 && (events & UV_WRITABLE)) {
        kv_client_send_pending(client);
    }
    if (status == 0 && !(events & UV_READABLE)) {
        return;
    }
    if (!receive(client)) {
        if (status != 0 && client->link == link) { /* libuv has stopped watching after an error */
            kv_client_update_poll(client);
        }
        return;
    }
    if (client->state == STATE_HANDSHAKE) {
        kv_client_handle_handshake(client);
    }
    if (!client->is_closed && client->state == STATE_READY) {
        kv_client_handle_input(client);
    }
    if (!client->is_closed && client->state == STATE_READY) {
        kv_client_pump(client);
    }
}

static void cancel_wait(struct kv_client *client, struct kv_request *head) {
    head->stage = KV_STAGE_CANCEL;
    head->since_ms = 0;
    if (client->state == STATE_LOST) { /* the next connection hears of it */
        kv_client_expect_reply(client);
        return;
    }
    if (codec_put_u8(&client->out, CODEC_CANCEL_WAIT)) {
        kv_client_fail(client, MUSTER_ENOMEM, "no memory to send to %s", client->address_text);
        return;
    }
    client->messages++;
    kv_client_expect_reply(client);
    kv_client_send_pending(client);
}

static void on_late(struct kv_client *client) {
    struct kv_request *head = kv_client_head(client);
    if (!has_stood(client)) {
        kv_client_give_up(client);
    } else if (head->stage == KV_STAGE_WAIT) {
        cancel_wait(client, head);
    } else {
        kv_client_fail(client, MUSTER_ETIMEOUT, "the store at %s did not answer %s %s within %llu ms",
                       client->address_text, codec_command_name(head->command), head->keys,
                       (unsigned long long)client->timeout_ms);
    }
}

void kv_client_on_timer(uv_timer_t *timer) {
    struct kv_client *client = timer->data;
    if (client->file_path) {
        kv_client_file_turn(client);
        return;
    }
    if (client->etcd) {
        kv_client_etcd_turn(client);
        return;
    }
    uint64_t deadline = kv_client_deadline_ms(client);
    bool is_late = deadline != 0 && kv_client_left_ms(client, deadline) == 0;
    if (client->broken) {
        kv_client_fail(client, client->broken, "no memory to send to %s", client->address_text);
    } else if (client->state == STATE_PAUSED && (!is_late || client->tries == 0)) {
        kv_client_try_now(client);
    } else if (!is_late) {
        kv_client_arm_timer(client);
    } else {
        on_late(client);
    }
}

void kv_client_set_timeout(struct kv_client *client, uint64_t timeout_ms) {
    client->timeout_ms = timeout_ms;
    client->timeout_since_ms = kv_client_now_ms(client);
    kv_client_arm_timer(client);
}

struct kv_client *kv_client_new(uv_loop_t *loop, uint64_t timeout_ms, kv_client_state_cb *on_state, void *ctx) {
    struct kv_client *client = calloc(1, sizeof *client);
    if (!client) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for a store client");
        return NULL;
    }
    int failed = uv_timer_init(loop, &client->timer);
    assert(failed == 0); /* cannot fail */
    client->timer.data = client;
    client->timeout_ms = timeout_ms;
    uv_update_time(loop);
    client->started_ms = uv_now(loop);
    client->nonce = (uint32_t)getpid();
    client->queued_last = &client->queued;
    client->sent_last = &client->sent;
    buf_init(&client->in, CODEC_MESSAGE_BYTES_MAX + READ_MAX);
    buf_init(&client->out, 2 * CODEC_MESSAGE_BYTES_MAX);
    client->on_state = on_state;
    client->ctx = ctx;
    failed = uv_timer_start(&client->timer, kv_client_on_timer, 0, 0);
    assert(failed == 0);
    return client;
}

void kv_client_set_clock(struct kv_client *client, struct loop_clock *clock) {
    client->clock = clock;
    client->started_ms = kv_client_now_ms(client);
}

int kv_client_create(uv_loop_t *loop, const struct sockaddr *address, uint64_t timeout_ms, kv_client_state_cb *on_state,
                     void *ctx, struct kv_client **out) {
    struct kv_client *client = kv_client_new(loop, timeout_ms, on_state, ctx);
    if (!client) {
        return MUSTER_ENOMEM;
    }
    memcpy(&client->address, address, net_sockaddr_len(address));
    client->dialled = client->address;
    (void)net_address_format(address, client->address_text);
    *out = client;
    return 0;
}

int kv_client_create_file(uv_loop_t *loop, const char *path, uint64_t timeout_ms, kv_client_state_cb *on_state,
                          void *ctx, struct kv_client **out) {
    char *copy = strdup(path);
    struct kv_client *client = copy ? kv_client_new(loop, timeout_ms, on_state, ctx) : NULL;
    if (!client) {
        free(copy);
        return status_fail(MUSTER_ENOMEM, "no memory for a store client");
    }
    client->file_path = copy;
    (void)str_format(client->address_text, sizeof client->address_text, "%s", path);
    *out = client;
    return 0;
}

enum kv_client_stage kv_client_stage(const struct kv_client *client, int *out_error) {
    *out_error = client->last_error;
    switch (client->state) {
    case STATE_PAUSED:
    case STATE_CONNECTING:
    case STATE_LOST:
        return KV_CLIENT_CONNECTING;
    case STATE_HANDSHAKE:
        return KV_CLIENT_HANDSHAKE;
    case STATE_READY:
        return KV_CLIENT_READY;
    case STATE_FAILED:
        break;
    }
    return KV_CLIENT_ENDED;
}

int kv_client_local_address(const struct kv_client *client, struct sockaddr_storage *out) {
    socklen_t len = sizeof *out;
    if (!client->link || getsockname(client->link->fd, (struct sockaddr *)out, &len) < 0) {
        return status_fail(MUSTER_ECLOSED, "no connection to %s", client->address_text);
    }
    return 0;
}

bool kv_client_server_is_muster(const struct kv_client *client) {
    return client->server_is_muster;
}

bool kv_client_offers_watch(const struct kv_client *client) {
    return client->offers_watch;
}
