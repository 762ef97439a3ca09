/* The calls of the asynchronous client: each builds the bytes of one request; see kv_client.h. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "store/client/kv_client_impl.h"

void kv_request_free(struct kv_request *request) {
    if (request) {
        buf_done(&request->bytes);
        free(request);
    }
}

static int request_new(enum codec_command command, size_t value_count, kv_reply_cb *cb, void *ctx,
                       struct kv_request **out) {
    struct kv_request *request = calloc(1, sizeof *request + value_count * sizeof request->values[0]);
    if (!request) {
        return status_fail(MUSTER_ENOMEM, "no memory for a %s request", codec_command_name(command));
    }
    buf_init(&request->bytes, CODEC_MESSAGE_BYTES_MAX);
    request->command = command;
    request->stage = KV_STAGE_COMMAND;
    request->has_reply = true;
    request->cb = cb;
    request->ctx = ctx;
    request->value_count = value_count;
    *out = request;
    return 0;
}

/* Names the key in messages; the list is cut where it gets long. */
static void remember_key(struct kv_request *request, const char *prefix, const char *key) {
    size_t used = strlen(request->keys);
    (void)snprintf(request->keys + used, sizeof request->keys - used, "%s%s%s", used > 0 ? ", " : "", prefix, key);
}

static int put_key(struct kv_request *request, const char *key) {
    return codec_put_key(&request->bytes, "/", kv_slice_text(key));
}

static int put_keys(struct kv_request *request, enum codec_command command, const char *prefix, const char *const *keys,
                    size_t key_count) {
    int code = codec_put_u8(&request->bytes, (uint8_t)command);
    return code ? code : codec_put_keys(&request->bytes, prefix, keys, key_count);
}

static void remember_keys(struct kv_request *request, const char *prefix, const char *const *keys, size_t key_count) {
    for (size_t i = 0; i < key_count && strlen(request->keys) + 1 < sizeof request->keys; i++) {
        remember_key(request, prefix, keys[i]);
    }
}

/* Puts a WAIT for the keys in front. */
static int put_wait(struct kv_request *request, const char *prefix, const char *const *keys, size_t key_count,
                    uint64_t timeout_ms) {
    assert(request->bytes.len == 0);
    int code = put_keys(request, CODEC_WAIT, prefix, keys, key_count);
    request->wait_len = request->bytes.len;
    request->stage = KV_STAGE_WAIT;
    request->holds_back = true;
    request->timeout_ms = timeout_ms;
    return code;
}

/* The end of every call: `code` is how building the request went. */
static int finish(struct kv_client *client, struct kv_request *request, int code) {
    if (code) {
        code = status_prefix(code, "%s %s", codec_command_name(request->command), request->keys);
        kv_request_free(request);
        return code;
    }
    return kv_client_submit(client, request);
}

int kv_request_add_ping(struct kv_request *request) {
    int code = codec_put_u8(&request->bytes, CODEC_PING);
    code = code ? code : codec_put_u32(&request->bytes, 0);
    if (code == 0) {
        request->command = CODEC_PING;
        request->has_reply = true;
    }
    return code;
}

/* SET, MULTI_SET: the protocol has no reply, but a PING behind them is answered when they are done. */
static int finish_silent(struct kv_client *client, struct kv_request *request, int code) {
    request->has_reply = false;
    if (request->cb) {
        code = code ? code : kv_request_add_ping(request);
    }
    return finish(client, request, code);
}

int kv_client_set(struct kv_client *client, const char *key, struct kv_slice value, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_SET, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_key(request, "/", key);
    code = codec_put_u8(&request->bytes, CODEC_SET);
    code = code ? code : put_key(request, key);
    code = code ? code : codec_put_value(&request->bytes, value);
    return finish_silent(client, request, code);
}

int kv_client_multi_set(struct kv_client *client, const char *const *keys, const struct kv_slice *values,
                        size_t key_count, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_MULTI_SET, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    if (key_count > CODEC_KEYS_MAX) {
        code = status_fail(MUSTER_ELIMIT, "%zu keys, the limit is %zu", key_count, CODEC_KEYS_MAX);
    }
    code = code ? code : codec_put_u8(&request->bytes, CODEC_MULTI_SET);
    code = code ? code : codec_put_i64(&request->bytes, (int64_t)key_count);
    for (size_t i = 0; i < key_count && code == 0; i++) {
        code = put_key(request, keys[i]);
        code = code ? code : codec_put_value(&request->bytes, values[i]);
    }
    return finish_silent(client, request, code);
}

static int compare_set(struct kv_client *client, const char *key, struct kv_slice expected, struct kv_slice desired,
                       bool finds, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_COMPARE_SET, 1, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_key(request, "/", key);
    code = codec_put_u8(&request->bytes, CODEC_COMPARE_SET);
    code = code ? code : put_key(request, key);
    code = code ? code : codec_put_value(&request->bytes, expected);
    code = code ? code : codec_put_value(&request->bytes, desired);
    request->finds = finds;
    return finish(client, request, code);
}

int kv_client_compare_set(struct kv_client *client, const char *key, struct kv_slice expected, struct kv_slice desired,
                          kv_reply_cb *cb, void *ctx) {
    return compare_set(client, key, expected, desired, false, cb, ctx);
}

static int get(struct kv_client *client, const char *prefix, const char *key, bool wait, uint64_t timeout_ms,
               kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_GET, 1, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_key(request, prefix, key);
    code = wait ? put_wait(request, prefix, &key, 1, timeout_ms) : 0;
    code = code ? code : codec_put_u8(&request->bytes, CODEC_GET);
    code = code ? code : codec_put_key(&request->bytes, prefix, kv_slice_text(key));
    return finish(client, request, code);
}

int kv_client_get(struct kv_client *client, const char *key, bool wait, uint64_t timeout_ms, kv_reply_cb *cb,
                  void *ctx) {
    return get(client, "/", key, wait, timeout_ms, cb, ctx);
}

/* PyTorch's servers answer a COMPARE_SET on an absent key with what was expected, and set nothing. */
int kv_client_find(struct kv_client *client, const char *key, kv_reply_cb *cb, void *ctx) {
    struct kv_slice none = kv_slice_text(KV_CLIENT_NO_VALUE);
    bool answers_get = client->server_is_muster || client->file_path || client->etcd;
    return answers_get ? kv_client_get(client, key, false, 0, cb, ctx)
                       : compare_set(client, key, none, none, true, cb, ctx);
}

/* Written by whoever asks to be counted, so it is there: no wait. */
int kv_client_get_init(struct kv_client *client, kv_reply_cb *cb, void *ctx) {
    return get(client, "", "init/", false, 0, cb, ctx);
}

int kv_client_multi_get(struct kv_client *client, const char *const *keys, size_t key_count, uint64_t timeout_ms,
                        kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    size_t room = key_count <= CODEC_KEYS_MAX ? key_count : 0; /* put_wait() refuses more */
    int code = request_new(CODEC_MULTI_GET, room, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_keys(request, "/", keys, room);
    code = put_wait(request, "/", keys, key_count, timeout_ms);
    code = code ? code : put_keys(request, CODEC_MULTI_GET, "/", keys, key_count);
    return finish(client, request, code);
}

static int add(struct kv_client *client, const char *prefix, const char *key, int64_t delta, kv_reply_cb *cb,
               void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_ADD, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_key(request, prefix, key);
    code = codec_put_u8(&request->bytes, CODEC_ADD);
    code = code ? code : codec_put_key(&request->bytes, prefix, kv_slice_text(key));
    code = code ? code : codec_put_i64(&request->bytes, delta);
    return finish(client, request, code);
}

int kv_client_add(struct kv_client *client, const char *key, int64_t delta, kv_reply_cb *cb, void *ctx) {
    return add(client, "/", key, delta, cb, ctx);
}

int kv_client_add_init(struct kv_client *client, kv_reply_cb *cb, void *ctx) {
    return add(client, "", "init/", 1, cb, ctx);
}

int kv_client_check(struct kv_client *client, const char *const *keys, size_t key_count, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_CHECK, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    code = put_keys(request, CODEC_CHECK, "/", keys, key_count);
    return finish(client, request, code);
}

int kv_client_wait(struct kv_client *client, const char *const *keys, size_t key_count, uint64_t timeout_ms,
                   kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_WAIT, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_keys(request, "/", keys, key_count);
    code = put_wait(request, "/", keys, key_count, timeout_ms);
    return finish(client, request, code);
}

int kv_client_delete(struct kv_client *client, const char *key, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_DELETE_KEY, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_key(request, "/", key);
    code = codec_put_u8(&request->bytes, CODEC_DELETE_KEY);
    code = code ? code : put_key(request, key);
    return finish(client, request, code);
}

int kv_client_list_keys(struct kv_client *client, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_LIST_KEYS, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    code = codec_put_u8(&request->bytes, CODEC_LIST_KEYS);
    return finish(client, request, code);
}

int kv_client_return(struct kv_client *client, uint64_t name, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_RETURN, 0, cb, ctx, &request);
    if (code) {
        return code;
    }
    code = codec_put_u8(&request->bytes, CODEC_RETURN);
    code = code ? code : codec_put_i64(&request->bytes, (int64_t)name);
    return finish(client, request, code);
}

int kv_client_watch(struct kv_client *client, const char *key, struct kv_slice known, kv_reply_cb *cb, void *ctx) {
    struct kv_request *request = NULL;
    int code = request_new(CODEC_WATCH, 1, cb, ctx, &request);
    if (code) {
        return code;
    }
    remember_key(request, "/", key);
    request->holds_back = true;
    code = codec_put_u8(&request->bytes, CODEC_WATCH);
    code = code ? code : put_key(request, key);
    code = code ? code : codec_put_value(&request->bytes, known);
    return finish(client, request, code);
}
