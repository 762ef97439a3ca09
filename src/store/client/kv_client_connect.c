/* The asynchronous client's connection: attempts with growing pauses, then the handshake. See kv_client.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/random.h"
#include "net/retry.h"
#include "net/socket.h"
#include "store/client/kv_client_impl.h"

static const struct retry_pace pace = {.first_ms = 1, .max_ms = 250};

void kv_client_try_later(struct kv_client *client, int error_number) {
    client->last_error = error_number;
    kv_client_drop_link(client);
    kv_client_forget_bytes(client);
    if (client->is_dial || !net_socket_error_is_transient(error_number)) {
        kv_client_fail(client, MUSTER_ECONNECT, "connect to %s: %s", client->address_text, strerror(error_number));
        return;
    }
    client->state = STATE_PAUSED;
    uint64_t deadline = kv_client_deadline_ms(client), now = kv_client_now_ms(client);
    uint64_t pause = retry_pause_ms(&pace, client->tries, 1);
    if (deadline != 0 && now + pause > deadline) {
        pause = deadline > now ? deadline - now : 0;
    }
    (void)uv_timer_start(&client->timer, kv_client_on_timer, pause, 0);
}

void kv_client_give_up(struct kv_client *client) {
    if (client->state == STATE_HANDSHAKE) {
        kv_client_fail(
            client, MUSTER_ETIMEOUT,
            "%s accepts connections but did not answer the TCPStore handshake within %llu ms: does another program "
            "hold this port?",
            client->address_text, (unsigned long long)client->timeout_ms);
    } else {
        kv_client_fail(client, MUSTER_ETIMEOUT, "connect to %s: gave up after %llu ms and %u tries: %s",
                       client->address_text, (unsigned long long)client->timeout_ms, client->tries,
                       client->last_error ? strerror(client->last_error) : "no answer");
    }
}

static int open_link(struct kv_client *client, int fd) {
    struct link *link = calloc(1, sizeof *link);
    if (!link) {
        return ENOMEM;
    }
    int failed = uv_poll_init(client->timer.loop, &link->poll, fd);
    if (failed) {
        free(link);
        return -failed;
    }
    *link = (struct link){.poll = link->poll, .client = client, .fd = fd};
    link->poll.data = link;
    client->link = link;
    return 0;
}

void kv_client_try_now(struct kv_client *client) {
    int fd = -1;
    client->tries++;
    if (net_socket_connect((const struct sockaddr *)&client->address, &fd)) {
        kv_client_try_later(client, errno);
        return;
    }
    int error_number = open_link(client, fd);
    if (error_number) {
        (void)close(fd);
        kv_client_try_later(client, error_number);
        return;
    }
    client->state = STATE_CONNECTING;
    kv_client_update_poll(client);
    kv_client_arm_timer(client);
}

static int put_question(struct kv_client *client, const char *key) {
    int code = codec_put_u8(&client->out, CODEC_CHECK);
    code = code ? code : codec_put_i64(&client->out, 1);
    return code ? code : codec_put_key(&client->out, "", kv_slice_text(key));
}

/* VALIDATE and PING as PyTorch's client sends them, and the questions whether the server is one of ours, and knows
 * clients again, as older ones of ours do not. One write. */
static int put_handshake(struct kv_client *client) {
    int code = codec_put_u8(&client->out, CODEC_VALIDATE);
    code = code ? code : codec_put_u32(&client->out, CODEC_MAGIC);
    code = code ? code : codec_put_u8(&client->out, CODEC_PING);
    code = code ? code : codec_put_u32(&client->out, client->nonce);
    code = code ? code : put_question(client, CODEC_WATCH_PROBE_KEY);
    return code ? code : put_question(client, CODEC_CLIENT_PROBE_KEY);
}

void kv_client_on_connected(struct kv_client *client) {
    int error_number = net_socket_connect_result(client->link->fd);
    if (error_number == 0 && put_handshake(client)) {
        error_number = ENOMEM;
    }
    if (error_number) {
        kv_client_try_later(client, error_number);
        return;
    }
    client->state = STATE_HANDSHAKE;
    kv_client_send_pending(client);
}

/* WATCH requests that were queued before it was known that the server cannot do it. */
static void refuse_watches(struct kv_client *client) {
    struct kv_request *queued = client->queued, *next;
    client->queued = NULL;
    client->queued_last = &client->queued;
    for (; queued && !client->is_closed; queued = next) {
        next = queued->next;
        if (queued->command != CODEC_WATCH) {
            kv_request_append(&client->queued_last, queued);
            continue;
        }
        struct kv_reply reply = {.status = MUSTER_EUNSUPPORTED};
        (void)status_fail(MUSTER_EUNSUPPORTED, "the store at %s does not offer WATCH", client->address_text);
        kv_client_answer(client, queued, &reply);
    }
    for (; queued; queued = next) { /* closed by a callback */
        next = queued->next;
        kv_request_free(queued);
    }
}

void kv_client_handle_handshake(struct kv_client *client) {
    uint8_t expected[4];
    for (size_t i = 0; i < sizeof expected; i++) {
        expected[i] = (uint8_t)(client->nonce >> (8 * i));
    }
    size_t have = client->in.len < sizeof expected ? client->in.len : sizeof expected;
    if (memcmp(buf_bytes(&client->in), expected, have) != 0) {
        kv_client_fail(client, MUSTER_EPROTOCOL,
                       "%s answers, but not as a TCPStore does: another program holds this port", client->address_text);
        return;
    }
    if (client->in.len < sizeof expected + 2) {
        return;
    }
    const uint8_t *present = buf_bytes(&client->in) + sizeof expected;
    client->server_is_muster = present[0] == CODEC_CHECK_PRESENT;
    client->offers_watch = client->server_is_muster;
    client->knows_clients = present[1] == CODEC_CHECK_PRESENT && random_fill(&client->name, sizeof client->name) == 0;
    buf_consume(&client->in, sizeof expected + 2);
    client->state = STATE_READY;
    kv_client_arm_timer(client);
    client->on_state(client->ctx, 0);
    if (!client->is_closed && !client->server_is_muster) {
        refuse_watches(client);
    }
    if (!client->is_closed) {
        kv_client_pump(client);
    }
}
