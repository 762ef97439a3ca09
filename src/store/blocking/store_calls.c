/* A store of the program's own: functions of its own behind the calls of muster/store.h. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/sized.h"
#include "base/status.h"
#include "store/blocking/store_impl.h"
#include "store/wire/codec.h" /* the limits */

struct calls_store {
    struct store_backend backend;
    struct muster_store_calls calls;
    void *context;
};

/* Full keys, each ended by a zero byte. */
struct full_keys {
    const char **keys;
    char *texts;
};

static struct calls_store *calls_of(struct store_backend *backend) {
    return (struct calls_store *)backend;
}

/* prefix: "/", or "/a/b/". out: has room for as long a key as there may be, or for this one. */
static int full_key(const char *prefix, const char *key, char *out) {
    size_t prefix_len = strlen(prefix) - 1, len = strlen(key);
    if (len > CODEC_KEY_BYTES_MAX - prefix_len) {
        return status_fail(MUSTER_ELIMIT, "key of %zu bytes, prefixes included; the limit is %zu", prefix_len + len,
                           MUSTER_STORE_KEY_MAX);
    }
    memcpy(out, prefix + 1, prefix_len);
    memcpy(out + prefix_len, key, len + 1);
    return 0;
}

static int check_value(const char *key, size_t len) {
    return len <= MUSTER_STORE_VALUE_MAX ? 0
                                         : status_fail(MUSTER_ELIMIT, "key %s: a value of %zu bytes; the limit is %zu",
                                                       key, len, MUSTER_STORE_VALUE_MAX);
}

static void full_keys_done(struct full_keys *full) {
    free(full->keys);
    free(full->texts);
}

static int full_keys_make(const char *prefix, const char *const *keys, size_t key_count, struct full_keys *full) {
    size_t prefix_len = strlen(prefix) - 1, bytes = 1;
    for (size_t i = 0; i < key_count; i++) {
        bytes += prefix_len + strlen(keys[i]) + 1;
    }
    full->keys = calloc(key_count + 1, sizeof *full->keys);
    full->texts = malloc(bytes);
    int code = full->keys && full->texts ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %zu keys", key_count);
    char *text = full->texts;
    for (size_t i = 0; code == 0 && i < key_count; i++) {
        code = full_key(prefix, keys[i], text);
        full->keys[i] = text;
        text += prefix_len + strlen(keys[i]) + 1;
    }
    if (code) {
        full_keys_done(full);
    }
    return code;
}

static int calls_set(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                     int64_t deadline_ns) {
    struct calls_store *store = calls_of(backend);
    char full[CODEC_KEY_BYTES_MAX + 1];
    int code = full_key(prefix, key, full);
    code = code ? code : check_value(full, value.len);
    return code ? code : store->calls.set(store->context, full, value.data, value.len, store_remaining_ms(deadline_ns));
}

static int calls_add(struct store_backend *backend, const char *prefix, const char *key, int64_t delta,
                     int64_t deadline_ns, int64_t *out_sum) {
    struct calls_store *store = calls_of(backend);
    char full[CODEC_KEY_BYTES_MAX + 1];
    int code = full_key(prefix, key, full);
    return code ? code : store->calls.add(store->context, full, delta, store_remaining_ms(deadline_ns), out_sum);
}

static int calls_compare_set(struct store_backend *backend, const char *prefix, const char *key,
                             struct kv_slice expected, struct kv_slice desired, int64_t deadline_ns,
                             struct muster_store_value *out) {
    struct calls_store *store = calls_of(backend);
    char full[CODEC_KEY_BYTES_MAX + 1];
    int code = full_key(prefix, key, full);
    code = code ? code : check_value(full, expected.len);
    code = code ? code : check_value(full, desired.len);
    return code ? code
                : store->calls.compare_set(store->context, full, expected.data, expected.len, desired.data, desired.len,
                                           store_remaining_ms(deadline_ns), out);
}

static int calls_remove(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                        bool *out_deleted) {
    struct calls_store *store = calls_of(backend);
    char full[CODEC_KEY_BYTES_MAX + 1];
    int code = full_key(prefix, key, full);
    return code ? code : store->calls.remove(store->context, full, store_remaining_ms(deadline_ns), out_deleted);
}

static int calls_check(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                       int64_t deadline_ns, bool *out_all) {
    struct calls_store *store = calls_of(backend);
    struct full_keys full;
    int code = full_keys_make(prefix, keys, key_count, &full);
    if (code == 0) {
        code = store->calls.check(store->context, full.keys, key_count, store_remaining_ms(deadline_ns), out_all);
        full_keys_done(&full);
    }
    return code;
}

static int calls_wait(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                      int64_t deadline_ns) {
    struct calls_store *store = calls_of(backend);
    struct full_keys full;
    int code = full_keys_make(prefix, keys, key_count, &full);
    if (code == 0) {
        code = store->calls.wait(store->context, full.keys, key_count, store_remaining_ms(deadline_ns));
        full_keys_done(&full);
    }
    return code;
}

static int calls_multi_get(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                           int64_t deadline_ns, struct muster_store_value *out) {
    struct calls_store *store = calls_of(backend);
    int code = 0;
    size_t got = 0;
    while (code == 0 && got < key_count) {
        char full[CODEC_KEY_BYTES_MAX + 1];
        out[got] = (struct muster_store_value){0};
        code = full_key(prefix, keys[got], full);
        code = code ? code : store->calls.get(store->context, full, store_remaining_ms(deadline_ns), &out[got]);
        got += code == 0 ? 1 : 0;
    }
    while (code && got > 0) {
        muster_store_value_free(&out[--got]);
    }
    return code;
}

static int calls_multi_set(struct store_backend *backend, const char *prefix, const char *const *keys,
                           const struct muster_store_value *values, size_t key_count, int64_t deadline_ns) {
    int code = 0;
    for (size_t i = 0; code == 0 && i < key_count; i++) {
        code = calls_set(backend, prefix, keys[i], kv_slice_of(values[i].data, values[i].len), deadline_ns);
    }
    return code;
}

static void calls_free(struct store_backend *backend) {
    struct calls_store *store = calls_of(backend);
    if (store->calls.close) {
        store->calls.close(store->context);
    }
    free(store);
}

static const struct store_operations calls_operations = {
    .kind = "a store of the program's own",
    .set = calls_set,
    .add = calls_add,
    .compare_set = calls_compare_set,
    .remove = calls_remove,
    .check = calls_check,
    .wait = calls_wait,
    .multi_get = calls_multi_get,
    .multi_set = calls_multi_set,
    .free = calls_free,
};

int muster_store_open_calls(const struct muster_store_calls *calls, void *context, int64_t timeout_ms,
                            struct muster_store **out) {
    struct muster_store_calls own = MUSTER_STORE_CALLS_INIT;
    if (!calls || !out) {
        return status_fail_null("muster_store_open_calls", calls ? "out" : "calls");
    }
    int code = sized_read_options(&own, sizeof own, calls, "muster_store_calls", "MUSTER_STORE_CALLS_INIT");
    if (code) {
        return code;
    }
    if (!own.set || !own.get || !own.add || !own.compare_set || !own.remove || !own.check || !own.wait) {
        return status_fail(MUSTER_EINVAL, "muster_store_open_calls: a function besides close is NULL");
    }
    if (timeout_ms != MUSTER_STORE_DEFAULT && timeout_ms <= 0) {
        return status_fail(MUSTER_EINVAL, "muster_store_open_calls: timeout_ms is %lld, a number above 0 is needed",
                           (long long)timeout_ms);
    }
    struct calls_store *store = malloc(sizeof *store);
    if (!store) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store");
    }
    *store = (struct calls_store){
        .backend = {.operations = &calls_operations,
                    .timeout_ms = timeout_ms == MUSTER_STORE_DEFAULT ? MUSTER_STORE_TIMEOUT_MS : timeout_ms},
        .calls = own,
        .context = context,
    };
    store->calls.close = NULL; /* until there is a handle: on failure the caller keeps its context */
    code = store_handle_new(&store->backend, out);
    if (code == 0) {
        store->calls.close = own.close;
    }
    return code;
}
