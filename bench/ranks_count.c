/* The store's calls that comm makes, counted; the linker puts these in their place (--wrap). See ranks_count.h. */
#include "ranks_count.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include <muster/status.h>
#include <muster/store.h>

static _Atomic uint32_t operations;

uint32_t ranks_store_operations(void) {
    return atomic_load(&operations);
}

/* One that has waited in vain is asked again: how often depends on how busy the machine is. */
static int count(int code) {
    (void)atomic_fetch_add(&operations, code == MUSTER_ETIMEOUT ? 0 : 1);
    return code;
}

int __real_muster_store_set(struct muster_store *store, const char *key, const void *value, size_t len);
int __wrap_muster_store_set(struct muster_store *store, const char *key, const void *value, size_t len);
int __wrap_muster_store_set(struct muster_store *store, const char *key, const void *value, size_t len) {
    return count(__real_muster_store_set(store, key, value, len));
}

int __real_muster_store_get(struct muster_store *store, const char *key, int64_t timeout_ms,
                            struct muster_store_value *out);
int __wrap_muster_store_get(struct muster_store *store, const char *key, int64_t timeout_ms,
                            struct muster_store_value *out);
int __wrap_muster_store_get(struct muster_store *store, const char *key, int64_t timeout_ms,
                            struct muster_store_value *out) {
    return count(__real_muster_store_get(store, key, timeout_ms, out));
}

int __real_muster_store_multi_get(struct muster_store *store, const char *const *keys, size_t key_count,
                                  int64_t timeout_ms, struct muster_store_value *out);
int __wrap_muster_store_multi_get(struct muster_store *store, const char *const *keys, size_t key_count,
                                  int64_t timeout_ms, struct muster_store_value *out);
int __wrap_muster_store_multi_get(struct muster_store *store, const char *const *keys, size_t key_count,
                                  int64_t timeout_ms, struct muster_store_value *out) {
    return count(__real_muster_store_multi_get(store, keys, key_count, timeout_ms, out));
}

int __real_muster_store_compare_set(struct muster_store *store, const char *key, const void *expected,
                                    size_t expected_len, const void *desired, size_t desired_len,
                                    struct muster_store_value *out);
int __wrap_muster_store_compare_set(struct muster_store *store, const char *key, const void *expected,
                                    size_t expected_len, const void *desired, size_t desired_len,
                                    struct muster_store_value *out);
int __wrap_muster_store_compare_set(struct muster_store *store, const char *key, const void *expected,
                                    size_t expected_len, const void *desired, size_t desired_len,
                                    struct muster_store_value *out) {
    return count(__real_muster_store_compare_set(store, key, expected, expected_len, desired, desired_len, out));
}

int __real_muster_store_delete(struct muster_store *store, const char *key, bool *out_deleted);
int __wrap_muster_store_delete(struct muster_store *store, const char *key, bool *out_deleted);
int __wrap_muster_store_delete(struct muster_store *store, const char *key, bool *out_deleted) {
    return count(__real_muster_store_delete(store, key, out_deleted));
}
