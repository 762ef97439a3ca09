/* The client's requests on a FileStore; see kv_file.h. The bytes that would go to a server are decoded again: there is
 * one form of a request. */
#include "store/client/kv_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#include <muster/store.h>

/* flock() is tried for this long before the loop goes on with something else. */
enum { LOCK_MS = 1 };

struct kv_file {
    struct muster_store *store;
};

int kv_file_open(const char *path, struct kv_file **out) {
    struct kv_file *file = calloc(1, sizeof *file);
    if (!file) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store");
    }
    int code = muster_store_open_file(path, 0, LOCK_MS, &file->store);
    if (code) {
        free(file);
        return code;
    }
    *out = file;
    return 0;
}

void kv_file_close(struct kv_file *file) {
    if (file) {
        muster_store_close(file->store);
        free(file);
    }
}

void kv_file_answer_done(struct kv_file_answer *answer) {
    for (size_t i = 0; i < answer->value_count; i++) {
        muster_store_value_free(&answer->values[i]);
    }
    free(answer->values);
    free(answer->slices);
    *answer = (struct kv_file_answer){.waits = false};
}

/* ---- keys and values ---- */

struct texts {
    char *bytes;
    const char **list;
    size_t count;
};

static void texts_done(struct texts *texts) {
    free(texts->bytes);
    free(texts->list);
    *texts = (struct texts){.count = 0};
}

/* Keys as the store's calls take them: without the slash, with a terminator. `stride` 2 skips the values of pairs. */
static int texts_of(struct codec_list list, size_t stride, struct texts *out) {
    size_t count = list.item_count / stride;
    *out = (struct texts){.bytes = malloc((size_t)(list.end - list.at) + count + 1),
                          .list = calloc(count ? count : 1, sizeof *out->list)};
    char *at = out->bytes;
    struct kv_slice key, value;
    if (!out->bytes || !out->list) {
        texts_done(out);
        return status_fail(MUSTER_ENOMEM, "no memory for %zu keys", count);
    }
    while (out->count < count && codec_list_next(&list, &key)) {
        if (key.len < 1 || key.data[0] != '/') {
            texts_done(out);
            return status_fail(MUSTER_EUNSUPPORTED, "a FileStore has no key without a slash");
        }
        out->list[out->count++] = at;
        memcpy(at, key.data + 1, key.len - 1);
        at += key.len - 1;
        *at++ = '\0';
        if (stride == 2) {
            (void)codec_list_next(&list, &value);
        }
    }
    return 0;
}

static int make_room(struct kv_file_answer *out, size_t count) {
    out->values = calloc(count ? count : 1, sizeof *out->values);
    out->slices = calloc(count ? count : 1, sizeof *out->slices);
    if (!out->values || !out->slices) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu values", count);
    }
    return 0;
}

static void take_values(struct kv_file_answer *out, size_t count) {
    out->value_count = count;
    for (size_t i = 0; i < count; i++) {
        out->slices[i] = kv_slice_of(out->values[i].data, out->values[i].len);
    }
    out->reply.values = out->slices;
    out->reply.value_count = count;
}

/* ---- the commands ---- */

static int serve_one_key(struct kv_file *file, const struct codec_request *request, const char *key,
                         struct kv_file_answer *out) {
    struct kv_slice value = request->value, desired = request->desired;
    bool yes = false;
    int code = 0;
    switch (request->command) {
    case CODEC_SET:
        return muster_store_set(file->store, key, value.data, value.len);
    case CODEC_ADD:
        return muster_store_add(file->store, key, request->number, &out->reply.number);
    case CODEC_DELETE_KEY:
        code = muster_store_delete(file->store, key, &yes);
        out->reply.number = yes;
        return code;
    case CODEC_COMPARE_SET:
        code = make_room(out, 1);
        code = code ? code
                    : muster_store_compare_set(file->store, key, value.data, value.len, desired.data, desired.len,
                                               out->values);
        break;
    default: /* GET: an absent key is an empty value */
        code = make_room(out, 1);
        code = code ? code : muster_store_check(file->store, &key, 1, &yes);
        code = code || !yes ? code : muster_store_get(file->store, key, LOCK_MS, out->values);
        break;
    }
    if (code == 0) {
        take_values(out, 1);
    }
    return code;
}

static int serve_many_keys(struct kv_file *file, const struct codec_request *request, const struct texts *keys,
                           struct kv_file_answer *out) {
    bool all = false;
    int code = muster_store_check(file->store, keys->list, keys->count, &all);
    if (code || request->command == CODEC_CHECK) {
        out->reply.number = all;
        return code;
    }
    out->waits = !all;
    if (!all || request->command == CODEC_WAIT) {
        return 0;
    }
    code = make_room(out, keys->count);
    code = code ? code : muster_store_multi_get(file->store, keys->list, keys->count, LOCK_MS, out->values);
    if (code == 0) {
        take_values(out, keys->count);
    }
    return code;
}

static int serve_pairs(struct kv_file *file, struct codec_list list, const struct texts *keys) {
    struct muster_store_value *values = calloc(keys->count ? keys->count : 1, sizeof *values);
    struct kv_slice key, value;
    if (!values) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu values", keys->count);
    }
    for (size_t i = 0; i < keys->count && codec_list_next(&list, &key) && codec_list_next(&list, &value); i++) {
        values[i] = (struct muster_store_value){.data = (uint8_t *)(uintptr_t)value.data, .len = value.len};
    }
    int code = muster_store_multi_set(file->store, keys->list, values, keys->count);
    free(values);
    return code;
}

static int serve_message(struct kv_file *file, const struct codec_request *request, struct kv_file_answer *out) {
    struct texts keys = {0};
    char key[CODEC_KEY_BYTES_MAX + 1];
    int code = 0;
    switch (request->command) {
    case CODEC_PING:
        return 0;
    case CODEC_SET:
    case CODEC_GET:
    case CODEC_ADD:
    case CODEC_DELETE_KEY:
    case CODEC_COMPARE_SET:
        if (request->key.len < 1 || request->key.len > CODEC_KEY_BYTES_MAX || request->key.data[0] != '/') {
            return status_fail(MUSTER_EUNSUPPORTED, "a FileStore has no key without a slash");
        }
        memcpy(key, request->key.data + 1, request->key.len - 1);
        key[request->key.len - 1] = '\0';
        return serve_one_key(file, request, key, out);
    case CODEC_CHECK:
    case CODEC_WAIT:
    case CODEC_MULTI_GET:
        code = texts_of(request->list, 1, &keys);
        code = code ? code : serve_many_keys(file, request, &keys, out);
        break;
    case CODEC_MULTI_SET:
        code = texts_of(request->list, 2, &keys);
        code = code ? code : serve_pairs(file, request->list, &keys);
        break;
    default:
        return status_fail(MUSTER_EUNSUPPORTED, "a FileStore has no %s", codec_command_name(request->command));
    }
    texts_done(&keys);
    return code;
}

int kv_file_serve(struct kv_file *file, const struct kv_request *request, struct kv_file_answer *out) {
    *out = (struct kv_file_answer){.waits = false};
    const uint8_t *at = buf_bytes(&request->bytes), *end = at + request->bytes.len;
    int code = 0;
    while (code == 0 && !out->waits && at < end) {
        struct codec_scan scan;
        struct codec_request message;
        codec_scan_request(&scan);
        enum codec_result result = codec_scan_step(&scan, at, (size_t)(end - at));
        if (result != CODEC_COMPLETE) {
            return status_fail(MUSTER_EPROTOCOL, "a request of ours is not one");
        }
        codec_request_decode(at, scan.at, &message);
        at += scan.at;
        code = serve_message(file, &message, out);
    }
    return code;
}
