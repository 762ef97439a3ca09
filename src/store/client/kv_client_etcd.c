/* The asynchronous client on an etcd (v2 API), with the keys and values of PyTorch's EtcdStore; see kv_client.h.
 *
 * The bytes that would go to a server are decoded again, as for a file. A request is a chain of calls: for each key it
 * names one GET or PUT, or for a key that is waited for GET and watch until it is there. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/status.h"
#include "base/str.h"
#include "store/client/etcd_v2.h"
#include "store/client/kv_client_impl.h"

enum { NUMBER_TEXT_MAX = 24 };

struct kv_etcd {
    struct etcd_v2 *etcd;
    char *folder;
    char *state_key;
    char *state_path;
    uint32_t state_ttl_s;
    struct etcd_v2_request *call; /* in flight; NULL: none */

    /* Of the request at the head. */
    struct codec_request message;
    struct codec_list keys; /* not yet dealt with */
    struct kv_slice key;    /* the one at hand */
    char path[ETCD_V2_PATH_MAX];
    struct buf text;   /* a value on its way */
    struct buf *found; /* values so far: message.keys of them at most */
    size_t found_count;
    bool waits; /* for keys that are not there */
};

/* ---- names and values ---- */

static bool is_state(const struct kv_etcd *etcd, struct kv_slice key) {
    return etcd->state_key && kv_slice_equal(key, kv_slice_text(etcd->state_key));
}

static int set_path(struct kv_etcd *etcd, struct kv_slice wire_key) {
    struct buf path;
    if (wire_key.len < 1 || wire_key.data[0] != '/') {
        return status_fail(MUSTER_EUNSUPPORTED, "an EtcdStore has no key without a slash");
    }
    etcd->key = kv_slice_of(wire_key.data + 1, wire_key.len - 1);
    if (is_state(etcd, etcd->key)) {
        return str_copy(etcd->path, sizeof etcd->path, etcd->state_path)
                   ? MUSTER_OK
                   : status_fail(MUSTER_ELIMIT, "a path in etcd is too long");
    }
    buf_init(&path, sizeof etcd->path - 1);
    int rc = buf_append(&path, etcd->folder, strlen(etcd->folder));
    rc = rc ? rc : base64_encode(etcd->key.data, etcd->key.len, &path);
    if (rc == MUSTER_OK) {
        memcpy(etcd->path, buf_bytes(&path), path.len);
        etcd->path[path.len] = '\0';
    }
    buf_done(&path);
    return rc;
}

/* The value as etcd keeps it, terminated, in etcd->text. */
static int encode(struct kv_etcd *etcd, struct kv_slice value) {
    buf_clear(&etcd->text);
    int rc = is_state(etcd, etcd->key) ? buf_append(&etcd->text, value.data, value.len)
                                       : base64_encode(value.data, value.len, &etcd->text);
    return rc ? rc : buf_append(&etcd->text, "", 1);
}

static int decode(const struct kv_etcd *etcd, const char *text, struct buf *out) {
    buf_clear(out);
    if (!text) {
        return MUSTER_OK;
    }
    return is_state(etcd, etcd->key) ? buf_append(out, text, strlen(text))
                                     : base64_decode((const uint8_t *)text, strlen(text), out);
}

/* ---- the end of a request ---- */

static void clear(struct kv_etcd *etcd) {
    for (size_t i = 0; i < etcd->found_count; i++) {
        buf_done(&etcd->found[i]);
    }
    free(etcd->found);
    etcd->found = NULL;
    etcd->found_count = 0;
    buf_clear(&etcd->text);
    etcd->waits = false;
}

static void answer(struct kv_client *client, int64_t number) {
    struct kv_etcd *etcd = client->etcd;
    struct kv_request *request = kv_request_take_first(&client->sent, &client->sent_last);
    struct kv_slice *values = etcd->found_count > 0 ? calloc(etcd->found_count, sizeof *values) : NULL;
    struct kv_reply reply = {.number = number, .values = values, .value_count = etcd->found_count};
    for (size_t i = 0; values && i < etcd->found_count; i++) {
        values[i] = kv_slice_of(buf_bytes(&etcd->found[i]), etcd->found[i].len);
    }
    if (etcd->found_count > 0 && !values) {
        reply = (struct kv_reply){.status = status_fail(MUSTER_ENOMEM, "no memory for values")};
    }
    struct buf *found = etcd->found;
    size_t count = etcd->found_count;
    etcd->found = NULL;
    etcd->found_count = 0;
    clear(etcd);
    kv_client_answer(client, request, &reply); /* may close the client */
    for (size_t i = 0; i < count; i++) {
        buf_done(&found[i]);
    }
    free(found);
    free(values);
    if (!client->is_closed) {
        kv_client_file_wake(client);
    }
}

static void fail(struct kv_client *client, int status) {
    clear(client->etcd);
    kv_client_fail(client, status, "%s", muster_detail());
}

/* ---- calls ---- */

static void next_key(struct kv_client *client);

static int send_call(struct kv_client *client, struct etcd_v2_call call, etcd_v2_cb *cb) {
    struct kv_etcd *etcd = client->etcd;
    assert(!etcd->call);
    call.path = etcd->path;
    if (strcmp(call.method, "PUT") == 0) {
        call.value = (const char *)buf_bytes(&etcd->text);
        call.ttl_s = is_state(etcd, etcd->key) ? etcd->state_ttl_s : 0;
    }
    return etcd_v2_send(etcd->etcd, &call, cb, client, &etcd->call);
}

static void call_or_fail(struct kv_client *client, struct etcd_v2_call call, etcd_v2_cb *cb) {
    int rc = send_call(client, call, cb);
    if (rc != MUSTER_OK) {
        fail(client, rc);
    }
}

/* The start of every callback: false when there is nothing to look at. */
static bool came(struct kv_client *client, int status) {
    client->etcd->call = NULL;
    if (status != MUSTER_OK) {
        fail(client, status);
    }
    return status == MUSTER_OK;
}

static void refuse(struct kv_client *client, const struct etcd_v2_answer *refusal) {
    fail(client, etcd_v2_fail(refusal, client->etcd->path));
}

/* came(), where all but a key, or none, is a failure. */
static bool came_with_key_or_none(struct kv_client *client, int status, const struct etcd_v2_answer *got) {
    bool came_in = came(client, status);
    bool refused = came_in && got->error && got->error != ETCD_V2_KEY_NOT_FOUND;
    if (refused) {
        refuse(client, got);
    }
    return came_in && !refused;
}

/* One more value has been found; NULL: an empty one. */
static int keep(struct kv_client *client, const char *text) {
    struct kv_etcd *etcd = client->etcd;
    struct buf *longer = realloc(etcd->found, (etcd->found_count + 1) * sizeof *longer);
    if (!longer) {
        return status_fail(MUSTER_ENOMEM, "no memory for values");
    }
    etcd->found = longer;
    buf_init(&etcd->found[etcd->found_count], CODEC_VALUE_BYTES_MAX);
    return decode(etcd, text, &etcd->found[etcd->found_count++]);
}

static void answer_value(struct kv_client *client, const char *text) {
    int rc = keep(client, text);
    if (rc == MUSTER_OK) {
        answer(client, 0);
    } else {
        fail(client, rc);
    }
}

/* ---- reading ---- */

static void get_key(struct kv_client *client);
static void on_seen(void *ctx, int status, const struct etcd_v2_answer *got);

static void on_changed(void *ctx, int status, const struct etcd_v2_answer *got) {
    (void)got; /* whatever it was, and if etcd forgot the index: looked at again */
    if (came(ctx, status)) {
        get_key(ctx);
    }
}

static void wait_for_key(struct kv_client *client, uint64_t index) {
    call_or_fail(client, (struct etcd_v2_call){.method = "GET", .wait = true, .wait_index = index + 1}, on_changed);
}

static void on_got(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    struct kv_etcd *etcd = client->etcd;
    if (!came(client, status)) {
        return;
    }
    bool absent = got->error == ETCD_V2_KEY_NOT_FOUND;
    if (got->error && !absent) {
        refuse(client, got);
    } else if (absent && etcd->waits) {
        wait_for_key(client, got->index);
    } else if (etcd->message.command == CODEC_CHECK && absent) {
        answer(client, 0);
    } else {
        bool wanted = etcd->message.command == CODEC_GET || etcd->message.command == CODEC_MULTI_GET;
        int rc = wanted ? keep(client, got->node.value) : MUSTER_OK;
        if (rc == MUSTER_OK) {
            next_key(client);
        } else {
            fail(client, rc);
        }
    }
}

static void get_key(struct kv_client *client) {
    etcd_v2_cb *cb = client->etcd->message.command == CODEC_WATCH ? on_seen : on_got;
    call_or_fail(client, (struct etcd_v2_call){.method = "GET"}, cb);
}

/* ---- writing ---- */

static void on_put(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    if (!came(client, status)) {
        return;
    }
    if (got->error) {
        refuse(client, got);
    } else {
        next_key(client);
    }
}

static void put_key(struct kv_client *client, struct kv_slice value) {
    int rc = encode(client->etcd, value);
    rc = rc ? rc : send_call(client, (struct etcd_v2_call){.method = "PUT"}, on_put);
    if (rc != MUSTER_OK) {
        fail(client, rc);
    }
}

/* A value with which a conditional write has ended, its own or another's. */
static void on_current(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    if (!came_with_key_or_none(client, status, got)) {
        return;
    }
    answer_value(client, got->node.value);
}

static void on_compared(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    bool failed = status == MUSTER_OK && (got->error == ETCD_V2_COMPARE_FAILED || got->error == ETCD_V2_NODE_EXIST);
    if (!failed) {
        on_current(ctx, status, got);
    } else if (came(client, status)) {
        call_or_fail(client, (struct etcd_v2_call){.method = "GET"}, on_current);
    }
}

static void compare_set(struct kv_client *client) {
    struct kv_etcd *etcd = client->etcd;
    struct kv_slice expected = etcd->message.value;
    struct etcd_v2_call call = {.method = "PUT", .exist = ETCD_V2_IF_ABSENT};
    char *previous = NULL;
    int rc = MUSTER_OK;
    if (expected.len > 0) {
        rc = encode(etcd, expected);
        previous = rc == MUSTER_OK ? strdup((const char *)buf_bytes(&etcd->text)) : NULL;
        rc = rc || previous ? rc : status_fail(MUSTER_ENOMEM, "no memory for a value");
        call = (struct etcd_v2_call){.method = "PUT", .prev_value = previous};
    }
    rc = rc ? rc : encode(etcd, etcd->message.desired);
    rc = rc ? rc : send_call(client, call, on_compared);
    free(previous);
    if (rc != MUSTER_OK) {
        fail(client, rc);
    }
}

/* ---- ADD: a number in decimals, written if nobody else has written since ---- */

static void add_to(struct kv_client *client, const char *old_text, uint64_t old_index);

static void on_old_number(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    if (came_with_key_or_none(client, status, got)) {
        add_to(client, got->node.value, got->error ? 0 : got->node.modified_index);
    }
}

static int read_number(const struct kv_etcd *etcd, const char *text, int64_t *out) {
    struct buf decimals;
    *out = 0;
    buf_init(&decimals, NUMBER_TEXT_MAX);
    int rc = decode(etcd, text, &decimals);
    rc = rc ? rc : buf_append(&decimals, "", 1);
    bool ok = rc == MUSTER_OK && (!text || str_parse_i64((const char *)buf_bytes(&decimals), out));
    buf_done(&decimals);
    return ok ? MUSTER_OK : status_fail(MUSTER_EPROTOCOL, "the value of %s in etcd is no number", etcd->path);
}

static void on_added(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    int64_t number = 0;
    if (!came(client, status)) {
        return;
    }
    bool again =
        got->error == ETCD_V2_COMPARE_FAILED || got->error == ETCD_V2_NODE_EXIST || got->error == ETCD_V2_KEY_NOT_FOUND;
    if (again) {
        call_or_fail(client, (struct etcd_v2_call){.method = "GET"}, on_old_number);
        return;
    }
    if (got->error) {
        refuse(client, got);
        return;
    }
    int rc = read_number(client->etcd, got->node.value, &number);
    if (rc == MUSTER_OK) {
        answer(client, number);
    } else {
        fail(client, rc);
    }
}

static void add_to(struct kv_client *client, const char *old_text, uint64_t old_index) {
    struct kv_etcd *etcd = client->etcd;
    char decimals[NUMBER_TEXT_MAX];
    int64_t number = 0;
    int rc = read_number(etcd, old_text, &number);
    if (rc == MUSTER_OK && __builtin_add_overflow(number, etcd->message.number, &number)) {
        rc = status_fail(MUSTER_ELIMIT, "the value of %s in etcd is too large", etcd->path);
    }
    (void)str_format(decimals, sizeof decimals, "%" PRId64, number);
    rc = rc ? rc : encode(etcd, kv_slice_text(decimals));
    struct etcd_v2_call call = {.method = "PUT", .prev_index = old_index};
    call.exist = old_index == 0 ? ETCD_V2_IF_ABSENT : ETCD_V2_EITHER;
    rc = rc ? rc : send_call(client, call, on_added);
    if (rc != MUSTER_OK) {
        fail(client, rc);
    }
}

/* ---- WATCH of the state ---- */

/* From where on nothing has been seen yet: etcd tells in each answer how far it was when it was asked. */
static uint64_t index_seen(const struct etcd_v2_answer *got) {
    bool is_event = !got->error && strcmp(got->action, "get") != 0;
    return is_event ? got->node.modified_index : got->index;
}

static void on_event(void *ctx, int status, const struct etcd_v2_answer *got) {
    if (status != MUSTER_OK || got->error) {
        on_changed(ctx, status, got); /* looked at again: on_seen() */
    } else {
        on_seen(ctx, status, got);
    }
}

static void on_seen(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    if (!came_with_key_or_none(client, status, got)) {
        return;
    }
    const char *value = got->node.value ? got->node.value : "";
    if (kv_slice_equal(kv_slice_text(value), client->etcd->message.value)) {
        call_or_fail(client, (struct etcd_v2_call){.method = "GET", .wait = true, .wait_index = index_seen(got) + 1},
                     on_event);
        return;
    }
    answer_value(client, value);
}

/* ---- one request after the other ---- */

/* The key at hand is dealt with. */
static void next_key(struct kv_client *client) {
    struct kv_etcd *etcd = client->etcd;
    struct kv_slice key, value;
    if (!codec_list_next(&etcd->keys, &key)) {
        answer(client, etcd->message.command == CODEC_CHECK);
        return;
    }
    int rc = set_path(etcd, key);
    if (rc != MUSTER_OK) {
        fail(client, rc);
    } else if (etcd->message.command == CODEC_MULTI_SET) {
        (void)codec_list_next(&etcd->keys, &value);
        put_key(client, value);
    } else {
        get_key(client);
    }
}

static void begin_message(struct kv_client *client) {
    struct kv_etcd *etcd = client->etcd;
    const struct codec_request *message = &etcd->message;
    bool is_list = message->command == CODEC_CHECK || message->command == CODEC_WAIT ||
                   message->command == CODEC_MULTI_GET || message->command == CODEC_MULTI_SET;
    etcd->keys = is_list ? message->list : (struct codec_list){0};
    int rc = is_list ? MUSTER_OK : set_path(etcd, message->key);
    if (rc != MUSTER_OK) {
        fail(client, rc);
    } else if (is_list) {
        next_key(client);
    } else if (message->command == CODEC_SET) {
        put_key(client, message->value);
    } else if (message->command == CODEC_ADD) {
        add_to(client, NULL, 0);
    } else if (message->command == CODEC_COMPARE_SET) {
        compare_set(client);
    } else if (message->command == CODEC_GET || message->command == CODEC_WATCH) {
        get_key(client);
    } else {
        fail(client, status_fail(MUSTER_EUNSUPPORTED, "an EtcdStore has no %s", codec_command_name(message->command)));
    }
}

/* A request is one command; WAIT may come before it, for the same keys, and PING behind. */
static void begin_request(struct kv_client *client) {
    struct kv_etcd *etcd = client->etcd;
    struct kv_request *head = kv_request_take_first(&client->queued, &client->queued_last);
    struct codec_scan scan;
    kv_request_append(&client->sent_last, head);
    head->since_ms = kv_client_now_ms(client);
    size_t start = head->command == CODEC_WAIT ? 0 : head->wait_len;
    const uint8_t *bytes = buf_bytes(&head->bytes) + start;
    codec_scan_request(&scan);
    enum codec_result result = codec_scan_step(&scan, bytes, head->bytes.len - start);
    assert(result == CODEC_COMPLETE); /* our own */
    codec_request_decode(bytes, scan.at, &etcd->message);
    etcd->waits = head->wait_len > 0;
    if (etcd->waits && head->timeout_ms > 0) {
        (void)uv_timer_start(&client->timer, kv_client_on_timer, head->timeout_ms, 0);
    }
    begin_message(client);
}

static void on_reached(void *ctx, int status, const struct etcd_v2_answer *got) {
    struct kv_client *client = ctx;
    if (!came_with_key_or_none(client, status, got)) {
        return;
    }
    client->state = STATE_READY;
    client->offers_watch = client->etcd->state_key != NULL;
    client->on_state(client->ctx, 0);
    if (!client->is_closed) {
        kv_client_file_wake(client);
    }
}

/* Whatever is there: it is only to be seen whether etcd answers. */
static void reach(struct kv_client *client) {
    struct kv_etcd *etcd = client->etcd;
    client->state = STATE_CONNECTING;
    (void)str_copy(etcd->path, sizeof etcd->path, etcd->state_path ? etcd->state_path : etcd->folder);
    call_or_fail(client, (struct etcd_v2_call){.method = "GET"}, on_reached);
}

static uint64_t wait_left_ms(const struct kv_client *client) {
    return kv_client_left_ms(client, client->sent->since_ms + client->sent->timeout_ms);
}

void kv_client_etcd_turn(struct kv_client *client) {
    if (client->state == STATE_PAUSED) {
        reach(client);
    } else if (client->state == STATE_READY && client->sent && wait_left_ms(client) > 0) {
        (void)uv_timer_start(&client->timer, kv_client_on_timer, wait_left_ms(client), 0);
    } else if (client->state == STATE_READY && client->sent) {
        etcd_v2_cancel(client->etcd->call);
        client->etcd->call = NULL;
        clear(client->etcd);
        kv_client_time_out(client);
        if (!client->is_closed) {
            kv_client_file_wake(client);
        }
    } else if (client->state == STATE_READY && client->queued) {
        begin_request(client);
    }
}

/* ---- lifetime ---- */

void kv_etcd_close(struct kv_etcd *etcd) {
    if (etcd) {
        etcd_v2_cancel(etcd->call);
        clear(etcd);
        buf_done(&etcd->text);
        free(etcd->folder);
        free(etcd->state_key);
        free(etcd->state_path);
        free(etcd);
    }
}

static int kv_etcd_create(const struct kv_client_etcd_options *options, struct kv_etcd **out) {
    struct kv_etcd *etcd = calloc(1, sizeof *etcd);
    if (etcd) {
        buf_init(&etcd->text, CODEC_VALUE_BYTES_MAX * 2);
        etcd->etcd = options->etcd;
        etcd->folder = strdup(options->folder);
        etcd->state_key = options->state_key ? strdup(options->state_key) : NULL;
        etcd->state_path = options->state_key ? strdup(options->state_path) : NULL;
        etcd->state_ttl_s = options->state_ttl_s;
    }
    if (!etcd || !etcd->folder || (options->state_key && (!etcd->state_key || !etcd->state_path))) {
        kv_etcd_close(etcd);
        return status_fail(MUSTER_ENOMEM, "no memory for a store client");
    }
    *out = etcd;
    return MUSTER_OK;
}

int kv_client_create_etcd(uv_loop_t *loop, const struct kv_client_etcd_options *options, kv_client_state_cb *on_state,
                          void *ctx, struct kv_client **out) {
    struct kv_etcd *etcd = NULL;
    int rc = kv_etcd_create(options, &etcd);
    struct kv_client *client = rc == MUSTER_OK ? kv_client_new(loop, 0, on_state, ctx) : NULL;
    if (!client) {
        kv_etcd_close(etcd);
        return MUSTER_ENOMEM;
    }
    client->etcd = etcd;
    (void)str_format(client->address_text, sizeof client->address_text, "etcd");
    *out = client;
    return MUSTER_OK;
}
