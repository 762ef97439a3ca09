/* The asynchronous client on a file: one request after the other, asked again while it has to wait; see kv_client.h. */
#include <assert.h>

#include "base/status.h"
#include "store/client/kv_client_impl.h"
#include "store/client/kv_file.h"

/* A file tells nobody that it has changed, at least not from one machine to another. */
enum { FILE_BUSY_MS = 2, FILE_WAIT_MS = 20 };

/* From the loop, and not while the request at the head has its own time set. */
void kv_client_file_wake(struct kv_client *client) {
    if (client->state == STATE_READY && !client->sent) {
        (void)uv_timer_start(&client->timer, kv_client_on_timer, 0, 0);
    }
}

static void look_again(struct kv_client *client, uint64_t pause_ms) {
    (void)uv_timer_start(&client->timer, kv_client_on_timer, pause_ms, 0);
}

static bool file_begins(struct kv_client *client) {
    int code = kv_file_open(client->file_path, &client->file);
    if (code == MUSTER_ETIMEOUT && kv_client_left_ms(client, client->started_ms + client->timeout_ms) > 0) {
        look_again(client, FILE_BUSY_MS);
        return false;
    }
    if (code) {
        kv_client_fail(client, code, "%s", muster_detail());
        return false;
    }
    client->state = STATE_READY;
    client->on_state(client->ctx, 0);
    return !client->is_closed && client->state == STATE_READY;
}

/* The request at the head cannot be answered now: later, or not any more. */
static void file_not_yet(struct kv_client *client, bool waits) {
    const struct kv_request *head = client->sent;
    assert(head);
    uint64_t limit_ms = waits ? head->timeout_ms : client->timeout_ms;
    if (limit_ms == 0 || kv_client_left_ms(client, head->since_ms + limit_ms) > 0) {
        look_again(client, waits ? FILE_WAIT_MS : FILE_BUSY_MS);
    } else if (waits) {
        kv_client_time_out(client);
        if (!client->is_closed) {
            kv_client_file_wake(client);
        }
    } else {
        kv_client_fail(client, MUSTER_ETIMEOUT, "%s", muster_detail());
    }
}

/* False when the rest has to wait. */
static bool file_answers(struct kv_client *client) {
    struct kv_file_answer answer_now;
    int code = kv_file_serve(client->file, client->sent, &answer_now);
    bool later = code == MUSTER_ETIMEOUT || (code == 0 && answer_now.waits);
    if (later) {
        file_not_yet(client, code == 0);
    } else if (code && code != MUSTER_EUNSUPPORTED) {
        kv_client_fail(client, code, "%s", muster_detail());
    } else {
        answer_now.reply.status = code;
        kv_client_answer(client, kv_request_take_first(&client->sent, &client->sent_last), &answer_now.reply);
    }
    kv_file_answer_done(&answer_now);
    return !later && !client->is_closed && client->state == STATE_READY;
}

void kv_client_file_turn(struct kv_client *client) {
    if (client->state != STATE_READY && (client->state == STATE_FAILED || !file_begins(client))) {
        return;
    }
    while (client->sent || client->queued) {
        if (!client->sent) {
            struct kv_request *next = kv_request_take_first(&client->queued, &client->queued_last);
            next->since_ms = kv_client_now_ms(client);
            kv_request_append(&client->sent_last, next);
        }
        if (!file_answers(client)) {
            return;
        }
    }
}
