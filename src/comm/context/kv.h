/* The few things that comm asks of a key-value store, so that it can be tested without a server. The store's client
 * (muster/store.h) is one implementation of it, comm_kv_of_store(); a list in memory, for a world of one rank, the
 * other.
 */
#ifndef COMM_KV_H
#define COMM_KV_H

#include <stddef.h>
#include <stdint.h>

#include <muster/store.h>

/* Keys are texts, values bytes. Each call may block, up to its own time-out. Codes and details as in muster/store.h. */
struct comm_kv {
    void *context;
    int (*set)(void *context, const char *key, const void *value, size_t len);
    /* Wait until the key (all keys) exist. Values are the caller's to free with muster_store_value_free(). */
    int (*get)(void *context, const char *key, int64_t timeout_ms, struct muster_store_value *out);
    int (*multi_get)(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms,
                     struct muster_store_value *out);
    /* Stores `value` if the key is absent. *out: what the key has afterwards (ours or another's), to be freed likewise.
     */
    int (*set_if_absent)(void *context, const char *key, const void *value, size_t len, struct muster_store_value *out);
    /* There need be no such key. */
    int (*remove)(void *context, const char *key);
};

/* `store` is borrowed. Safe to use from one thread beside the store's other users. */
struct comm_kv comm_kv_of_store(struct muster_store *store);

/* Keys in this process's memory, for a world of one rank: what is not there gives MUSTER_ETIMEOUT at once, since nobody
 * else could set it. Any thread. The list outlives its users; NULL is accepted by the free. */
struct comm_kv_alone;
int comm_kv_alone_create(struct comm_kv_alone **out_alone, struct comm_kv *out);
void comm_kv_alone_free(struct comm_kv_alone *alone);

#endif
