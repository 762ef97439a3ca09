/* The key-value interface of comm (kv.h) over the store's client. */
#include "comm/context/kv.h"

static int store_set(void *context, const char *key, const void *value, size_t len) {
    return muster_store_set(context, key, value, len);
}

static int store_get(void *context, const char *key, int64_t timeout_ms, struct muster_store_value *out) {
    return muster_store_get(context, key, timeout_ms, out);
}

static int store_multi_get(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms,
                           struct muster_store_value *out) {
    return muster_store_multi_get(context, keys, key_count, timeout_ms, out);
}

static int store_set_if_absent(void *context, const char *key, const void *value, size_t len,
                               struct muster_store_value *out) {
    return muster_store_compare_set(context, key, NULL, 0, value, len, out);
}

static int store_remove(void *context, const char *key) {
    bool was_there;
    return muster_store_delete(context, key, &was_there);
}

struct comm_kv comm_kv_of_store(struct muster_store *store) {
    return (struct comm_kv){store, store_set, store_get, store_multi_get, store_set_if_absent, store_remove};
}
