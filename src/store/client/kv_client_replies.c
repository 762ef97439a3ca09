/* The asynchronous client's answers: matches what has arrived with the requests that were sent. See kv_client.h. */
#include <stdlib.h>

#include "base/status.h"
#include "store/client/kv_client_impl.h"

/* Only this reply says itself how many values it holds. */
static void complete_list(struct kv_client *client, struct codec_list list) {
    struct kv_request *request = kv_request_take_first(&client->sent, &client->sent_last);
    size_t count = list.item_count;
    struct kv_reply reply = {.number = (int64_t)count};
    struct kv_slice *values = calloc(count ? count : 1, sizeof *values);
    if (!values) {
        reply.status = status_fail(MUSTER_ENOMEM, "no memory for the list of %zu keys", count);
    }
    while (values && reply.value_count < count && codec_list_next(&list, &values[reply.value_count])) {
        reply.value_count++;
    }
    reply.values = values;
    kv_client_answer(client, request, &reply);
    free(values);
}

static void complete(struct kv_client *client, int64_t number, struct codec_list list) {
    struct kv_request *request = kv_request_take_first(&client->sent, &client->sent_last);
    size_t count = 0;
    while (count < request->value_count && codec_list_next(&list, &request->values[count])) {
        count++;
    }
    if (request->finds && count > 0 && kv_slice_equal(request->values[0], kv_slice_text(KV_CLIENT_NO_VALUE))) {
        request->values[0] = kv_slice_text("");
    }
    if (request->command == CODEC_CHECK) {
        number = number == CODEC_CHECK_PRESENT;
    }
    struct kv_reply reply = {.number = number, .values = request->values, .value_count = count};
    kv_client_answer(client, request, &reply);
}

void kv_client_time_out(struct kv_client *client) {
    struct kv_request *request = kv_request_take_first(&client->sent, &client->sent_last);
    struct kv_reply reply = {.status = MUSTER_ETIMEOUT};
    (void)status_fail(MUSTER_ETIMEOUT, "wait timeout after %llums at %s, keys: %s",
                      (unsigned long long)request->timeout_ms, client->address_text, request->keys);
    kv_client_answer(client, request, &reply);
}

/* The one-byte answer to WAIT or CANCEL_WAIT at the head. */
static void handle_wait_reply(struct kv_client *client, int64_t number) {
    struct kv_request *head = client->sent;
    if (number != CODEC_WAIT_DONE && number != CODEC_WAIT_CANCELED) {
        kv_client_fail(client, MUSTER_EPROTOCOL, "%s answered WAIT with %lld", client->address_text, (long long)number);
    } else if (head->stage == KV_STAGE_CANCEL && number == CODEC_WAIT_DONE) {
        /* It came true while the cancellation was on its way, whose own answer is still to come. */
        kv_client_expect_reply(client);
    } else if (head->stage == KV_STAGE_CANCEL) {
        kv_client_time_out(client);
    } else if (number == CODEC_WAIT_CANCELED) {
        kv_client_fail(client, MUSTER_EPROTOCOL, "%s canceled a wait that goes on", client->address_text);
    } else if (head->command == CODEC_WAIT) {
        complete(client, 0, (struct codec_list){0});
    } else {
        head->stage = KV_STAGE_COMMAND;
        head->holds_back = false;
        head->since_ms = 0;
        client->messages++;
        if (buf_append(&client->out, buf_bytes(&head->bytes) + head->wait_len, head->bytes.len - head->wait_len)) {
            kv_client_fail(client, MUSTER_ENOMEM, "no memory to send to %s", client->address_text);
        }
    }
}

static void handle_reply(struct kv_client *client, const uint8_t *bytes, size_t len) {
    struct codec_reply reply;
    const struct kv_request *head = client->sent;
    enum codec_command command = head->stage == KV_STAGE_COMMAND ? head->command : CODEC_WAIT;
    codec_reply_decode(command, bytes, len, &reply);
    if (head->stage != KV_STAGE_COMMAND) {
        handle_wait_reply(client, reply.number);
    } else if (command == CODEC_LIST_KEYS) {
        complete_list(client, reply.list);
    } else {
        complete(client, reply.number, reply.list);
    }
}

/* What was sent without a reply to come has been served when a later reply comes. */
static void drop_silent(struct kv_client *client) {
    while (client->sent && !client->sent->has_reply) {
        struct kv_request *request = kv_request_take_first(&client->sent, &client->sent_last);
        client->silent_count--;
        client->request_count--;
        kv_request_free(request);
    }
}

void kv_client_handle_input(struct kv_client *client) {
    while (client->state == STATE_READY && client->in.len > 0) {
        drop_silent(client);
        if (!client->sent) {
            kv_client_fail(client, MUSTER_EPROTOCOL, "%s sent %zu bytes that nobody asked for", client->address_text,
                           client->in.len);
            return;
        }
        enum codec_result result = codec_scan_step(&client->scan, buf_bytes(&client->in), client->in.len);
        if (result == CODEC_MORE) {
            return;
        }
        if (result == CODEC_MALFORMED) {
            kv_client_fail(client, MUSTER_EPROTOCOL, "%s sent a bad answer to %s %s: %s", client->address_text,
                           codec_command_name(client->sent->command), client->sent->keys, muster_detail());
            return;
        }
        size_t size = client->scan.at;
        client->is_known = client->is_named;
        kv_client_drop_retired(client);
        handle_reply(client, buf_bytes(&client->in), size); /* the callback may close or fail the client */
        if (client->is_closed || client->state != STATE_READY) {
            return;
        }
        buf_consume(&client->in, size);
        kv_client_expect_reply(client);
    }
}
