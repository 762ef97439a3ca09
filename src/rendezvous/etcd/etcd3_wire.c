/* JSON of etcd's gateway; see etcd3_wire.h. */
#include "rendezvous/etcd/etcd3_wire.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/base64.h"
#include "base/status.h"
#include "base/str.h"

/* ---- requests ---- */

static int put_text(struct buf *out, const char *text) {
    return buf_append(out, text, strlen(text));
}

/* "name":"base64", with what stands before it. */
static int put_bytes(struct buf *out, const char *before, const char *name, struct kv_slice bytes) {
    int rc = buf_printf(out, "%s\"%s\":\"", before, name);
    rc = rc ? rc : base64_encode(bytes.data, bytes.len, out);
    return rc ? rc : put_text(out, "\"");
}

static int put_range(struct buf *out, struct etcd3_range range) {
    int rc = put_bytes(out, "", "key", range.key);
    return rc == 0 && range.end.len > 0 ? put_bytes(out, ",", "range_end", range.end) : rc;
}

int etcd3_wire_put_grant(struct buf *out, int64_t ttl_s) {
    return buf_printf(out, "{\"TTL\":\"%" PRId64 "\"}", ttl_s);
}

int etcd3_wire_put_lease(struct buf *out, int64_t lease_id) {
    return buf_printf(out, "{\"ID\":\"%" PRId64 "\"}", lease_id);
}

int etcd3_wire_put_operation(struct buf *out, const struct etcd3_operation *operation) {
    int rc = put_text(out, "{");
    rc = rc ? rc : put_range(out, operation->range);
    if (rc == 0 && operation->kind == ETCD3_PUT) {
        rc = put_bytes(out, ",", "value", operation->value);
        rc = rc ? rc : buf_printf(out, ",\"lease\":\"%" PRId64 "\"", operation->lease_id);
    }
    return rc ? rc : put_text(out, "}");
}

static int put_operations(struct buf *out, const char *name, const struct etcd3_operation *list, size_t count) {
    static const char *const names[] = {
        [ETCD3_PUT] = "request_put", [ETCD3_DELETE] = "request_delete_range", [ETCD3_RANGE] = "request_range"};
    int rc = buf_printf(out, ",\"%s\":[", name);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = buf_printf(out, "%s{\"%s\":", i > 0 ? "," : "", names[list[i].kind]);
        rc = rc ? rc : etcd3_wire_put_operation(out, &list[i]);
        rc = rc ? rc : put_text(out, "}");
    }
    return rc ? rc : put_text(out, "]");
}

int etcd3_wire_put_transaction(struct buf *out, const struct etcd3_transaction *t) {
    int rc = put_text(out, "{\"compare\":[{\"target\":\"CREATE\",");
    rc = rc ? rc : put_bytes(out, "", "key", t->key);
    rc = rc ? rc : buf_printf(out, ",\"create_revision\":\"%" PRId64 "\"}", t->create_revision);
    if (t->value.len > 0) {
        rc = rc ? rc : put_text(out, ",{\"target\":\"VALUE\",");
        rc = rc ? rc : put_bytes(out, "", "key", t->key);
        rc = rc ? rc : put_bytes(out, ",", "value", t->value);
        rc = rc ? rc : put_text(out, "}");
    }
    if (t->other_key.len > 0) {
        rc = rc ? rc : put_text(out, ",{\"target\":\"MOD\",");
        rc = rc ? rc : put_bytes(out, "", "key", t->other_key);
        rc = rc ? rc : buf_printf(out, ",\"mod_revision\":\"%" PRId64 "\"}", t->other_mod_revision);
    }
    rc = rc ? rc : put_text(out, "]");
    rc = rc ? rc : put_operations(out, "success", t->success, t->success_count);
    rc = rc ? rc : put_operations(out, "failure", t->failure, t->failure_count);
    return rc ? rc : put_text(out, "}");
}

int etcd3_wire_put_watch(struct buf *out, const struct etcd3_range *ranges, const int64_t *revisions, size_t count) {
    int rc = MUSTER_OK;
    assert(count > 0 && count <= ETCD3_RANGES_MAX);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = put_text(out, "{\"create_request\":{");
        rc = rc ? rc : put_range(out, ranges[i]);
        rc = rc ? rc
                : buf_printf(out, ",\"start_revision\":\"%" PRId64 "\",\"watch_id\":\"%zu\"}}", revisions[i], i + 1);
    }
    return rc;
}

int etcd3_wire_put_authenticate(struct buf *out, const char *user, const char *password) {
    json_t *root = json_pack("{s:s, s:s}", "name", user, "password", password);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    int rc = text ? put_text(out, text) : status_fail(MUSTER_EINVAL, "the user or its password is not UTF-8");
    free(text);
    json_decref(root);
    return rc;
}

/* ---- answers ---- */

/* 64-bit numbers come as text, small ones as numbers; 0 for anything else. */
static int64_t number_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    int64_t number = 0;
    if (json_is_integer(value)) {
        return json_integer_value(value);
    }
    if (json_is_string(value) && strlen(json_string_value(value)) < 24) {
        (void)str_parse_i64(json_string_value(value), &number);
    }
    return number;
}

static void copy_line(char *out, size_t size, const char *text) {
    size_t len = 0;
    for (; text[len] != '\0' && len + 1 < size; len++) {
        unsigned char c = (unsigned char)text[len];
        out[len] = (char)(c < ' ' || c == 0x7f ? ' ' : c);
    }
    while (len > 0 && (text[len] & 0xc0) == 0x80) { /* not through a character */
        len--;
    }
    out[len] = '\0';
}

/* {"error": "...", "message": "...", "code": n}, or within a stream {"error": {"message": ..., "grpc_code": n}}. */
static void read_error(const json_t *root, struct etcd3_reply *out) {
    const json_t *error = json_object_get(root, "error");
    const json_t *at = json_is_object(error) ? error : root;
    const char *message = json_string_value(json_object_get(at, "message"));
    message = message ? message : json_string_value(error);
    int64_t code = number_of(at, "grpc_code");
    code = code ? code : number_of(at, "code");
    if (error || (message && code != 0)) {
        out->error = code > 0 && code < 1000 ? (int)code : ETCD3_UNKNOWN;
        copy_line(out->error_text, sizeof out->error_text, message ? message : "without a reason");
    }
}

static int take_bytes(const json_t *object, const char *name, struct buf *bytes, struct kv_slice *out) {
    const json_t *value = json_object_get(object, name);
    size_t before = bytes->len;
    int rc = json_is_string(value)
                 ? base64_decode((const uint8_t *)json_string_value(value), json_string_length(value), bytes)
                 : MUSTER_OK;
    *out = kv_slice_of(bytes->data ? bytes->data + before : NULL, bytes->len - before);
    return rc;
}

static int take_pair(const json_t *object, struct buf *bytes, struct etcd3_reply *out) {
    struct etcd3_pair *pair = &out->pairs[out->pair_count];
    *pair = (struct etcd3_pair){.create_revision = number_of(object, "create_revision"),
                                .mod_revision = number_of(object, "mod_revision")};
    int rc = take_bytes(object, "key", bytes, &pair->key);
    rc = rc ? rc : take_bytes(object, "value", bytes, &pair->value);
    out->pair_count += rc == 0;
    return rc;
}

/* Of {"kvs": [...]}; or, with out->pairs NULL, how many there are. */
static int take_range(const json_t *range, struct buf *bytes, struct etcd3_reply *out, size_t *count) {
    size_t i;
    json_t *pair;
    int rc = MUSTER_OK;
    json_array_foreach(json_object_get(range, "kvs"), i, pair) {
        rc = out->pairs && rc == 0 ? take_pair(pair, bytes, out) : rc;
        (*count)++;
    }
    return rc;
}

static int take_event(const json_t *event, struct buf *bytes, struct etcd3_reply *out) {
    const char *type = json_string_value(json_object_get(event, "type"));
    int rc = take_pair(json_object_get(event, "kv"), bytes, out);
    if (rc == 0) {
        out->pairs[out->pair_count - 1].is_deleted = type && strcmp(type, "DELETE") == 0;
    }
    return rc;
}

static int take_pairs(const json_t *root, struct buf *bytes, struct etcd3_reply *out, size_t *count) {
    size_t i;
    json_t *item;
    *count = 0;
    int rc = take_range(root, bytes, out, count);
    json_array_foreach(json_object_get(root, "responses"), i, item) {
        rc = rc ? rc : take_range(json_object_get(item, "response_range"), bytes, out, count);
    }
    json_array_foreach(json_object_get(root, "events"), i, item) {
        rc = out->pairs && rc == 0 ? take_event(item, bytes, out) : rc;
        (*count)++;
    }
    return rc;
}

/* All bytes go into one block, which must not move: what they can need at most is taken at once. */
static int read_pairs(const json_t *root, size_t text_len, struct etcd3_reply *out) {
    struct buf bytes;
    size_t count = 0;
    (void)take_pairs(root, NULL, out, &count);
    if (count == 0) {
        return MUSTER_OK;
    }
    size_t room = text_len + 6 * count + 16;
    buf_init(&bytes, room);
    out->pairs = calloc(count, sizeof *out->pairs);
    int rc = out->pairs && buf_reserve(&bytes, room) ? MUSTER_OK
                                                     : status_fail(MUSTER_ENOMEM, "no memory for an answer of etcd's");
    const uint8_t *block = bytes.data;
    rc = rc ? rc : take_pairs(root, &bytes, out, &count);
    assert(bytes.data == block);
    out->bytes = bytes.data;
    return rc == MUSTER_ECORRUPT || rc == MUSTER_ELIMIT ? status_prefix(MUSTER_EPROTOCOL, "a key or value") : rc;
}

static int read_reply(const json_t *root, size_t text_len, struct etcd3_reply *out) {
    read_error(root, out);
    const json_t *result = json_object_get(root, "result");
    root = json_is_object(result) ? result : root;
    out->revision = number_of(json_object_get(root, "header"), "revision");
    out->lease_id = number_of(root, "ID");
    out->ttl_s = number_of(root, "TTL");
    out->has_succeeded = json_is_true(json_object_get(root, "succeeded"));
    out->is_canceled = json_is_true(json_object_get(root, "canceled"));
    out->compact_revision = number_of(root, "compact_revision");
    out->watch_index = (size_t)(number_of(root, "watch_id") - 1);
    const char *reason = json_string_value(json_object_get(root, "cancel_reason"));
    if (reason && out->error == 0) {
        copy_line(out->error_text, sizeof out->error_text, reason);
    }
    const char *token = json_string_value(json_object_get(root, "token"));
    if (token && !str_copy(out->token, sizeof out->token, token)) {
        return status_fail(MUSTER_EPROTOCOL, "a token of %zu bytes is too long", strlen(token));
    }
    if (out->error == 0 && !json_is_object(json_object_get(root, "header"))) {
        return status_fail(MUSTER_EPROTOCOL, "an answer without the header that all of etcd's have");
    }
    return read_pairs(root, text_len, out);
}

int etcd3_wire_get(const uint8_t *text, size_t len, struct etcd3_reply *out) {
    json_error_t error;
    *out = (struct etcd3_reply){.error = 0};
    json_t *root = json_loadb((const char *)text, len, 0, &error);
    int rc = json_is_object(root) ? read_reply(root, len, out)
                                  : status_fail(MUSTER_EPROTOCOL, "that is no JSON object (%s)",
                                                root ? "but another value" : error.text);
    json_decref(root);
    if (rc != MUSTER_OK) {
        etcd3_reply_done(out);
    }
    return rc;
}

void etcd3_reply_done(struct etcd3_reply *reply) {
    free(reply->pairs);
    free(reply->bytes);
    reply->pairs = NULL;
    reply->bytes = NULL;
    reply->pair_count = 0;
}

/* ---- streams ---- */

/* Within an object: one byte. True when it ends the object. */
static bool step(struct etcd3_splitter *s, uint8_t byte) {
    if (s->in_string) {
        bool ends = byte == '"' && !s->is_escaped;
        s->is_escaped = byte == '\\' && !s->is_escaped;
        s->in_string = !ends;
        return false;
    }
    if (byte == '"') {
        s->in_string = true;
    } else if (byte == '{' || byte == '[') {
        s->depth++;
    } else if ((byte == '}' || byte == ']') && --s->depth == 0) {
        return true;
    }
    return false;
}

enum etcd3_split etcd3_wire_split(struct etcd3_splitter *s, const uint8_t *text, size_t len, size_t *used) {
    while (s->seen < len) {
        uint8_t byte = text[s->seen++];
        if (s->depth == 0) {
            if (byte == '{') {
                s->depth = 1;
            } else if (byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t') {
                return ETCD3_MALFORMED;
            }
        } else if (step(s, byte)) {
            *used = s->seen;
            return ETCD3_COMPLETE;
        }
    }
    return ETCD3_MORE;
}
