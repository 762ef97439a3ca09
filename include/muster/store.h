/* The store: a small shared map from keys to bytes, through which the processes of a job find and await each other.
 *
 * There are three kinds. A TCPStore speaks PyTorch 2.13's protocol: server and other clients may be Muster's or
 * PyTorch's. A FileStore is a file in PyTorch's format, on a file system that all processes see. The third is what the
 * program itself makes one of (struct muster_store_calls). Only the C library is needed.
 *
 * Keys are texts of at most MUSTER_STORE_KEY_MAX bytes (prefixes included), values any bytes up to
 * MUSTER_STORE_VALUE_MAX.
 *
 * Blocking: every call below may block, and every one has a deadline. `timeout_ms` is for waiting calls: a number >= 0
 * (0: do not wait, only look), or MUSTER_STORE_DEFAULT for the store's own time-out. That time-out also limits how long
 * the answer to any other call may take.
 *
 * Threads: several threads may use a store, and all prefixes made from it. Calls take turns, so one that waits holds
 * the others back until it is done. Open a second store if that matters.
 *
 * Errors of every call: MUSTER_ENOMEM; MUSTER_ELIMIT (key, value or number of keys too large; nothing was sent);
 * MUSTER_ETIMEOUT; MUSTER_ECONNECT (the connection broke); MUSTER_EPROTOCOL (the server is no TCPStore);
 * MUSTER_ESYSTEM and MUSTER_ECORRUPT (files). After ECONNECT and EPROTOCOL the store can only be closed; later calls
 * give MUSTER_ECLOSED. muster_detail() names the operation, the server or file, and the key. Results are written on
 * success only. */
#ifndef MUSTER_STORE_H
#define MUSTER_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_STORE_KEY_MAX ((size_t)8191)
#define MUSTER_STORE_VALUE_MAX ((size_t)8388608)
#define MUSTER_STORE_KEYS_MAX ((size_t)131072) /* of one call with several keys */

#define MUSTER_STORE_DEFAULT INT64_C(-1)
#define MUSTER_STORE_TIMEOUT_MS INT64_C(300000) /* of a store that was given no other */

struct muster_store;

/* A value that a call gave: yours to free with muster_store_value_free(). `data` is never NULL and is followed by one
 * zero byte that `len` does not count, so that a text can be used as one. */
struct muster_store_value {
    uint8_t *data;
    size_t len;
};

/* A copy of `len` bytes at `data` as a value, for functions that give one (struct muster_store_calls). MUSTER_ENOMEM.
 */
int muster_store_value_copy(const void *data, size_t len, struct muster_store_value *out);

/* Frees what `value` holds and empties it. NULL and an empty struct are accepted. */
void muster_store_value_free(struct muster_store_value *value);

/* How to open a TCPStore. Start from MUSTER_STORE_OPTIONS_INIT; strings are borrowed during the call. */
struct muster_store_options {
    size_t size;           /* of this struct, set by the initializer: lets it grow later */
    const char *host;      /* name or numeric address of the server */
    uint16_t port;         /* 0 with is_host: the kernel chooses, see muster_store_port() */
    uint32_t world_size;   /* > 0: this process counts itself in, as PyTorch's clients do; 0: it does not */
    bool is_host;          /* serve the store from a thread of this process, on `port` of all addresses of bind_host */
    const char *bind_host; /* with is_host; NULL: "::" and "0.0.0.0", since other machines are to reach it */
    bool wait_for_workers; /* with is_host and world_size: return when world_size processes are counted in */
    int64_t timeout_ms;    /* for connecting, and the store's default afterwards; > 0 */
};
#define MUSTER_STORE_OPTIONS_INIT                                                                                      \
    { sizeof(struct muster_store_options), NULL, 0, 0, false, NULL, true, MUSTER_STORE_TIMEOUT_MS }

/* Connects, hosting the store first if asked to. Tries again while nobody listens, until the time-out. A host name is
 * asked of the system's resolver, whose own time-out applies; numeric addresses and "localhost" never are.
 * Errors besides the common ones: MUSTER_EINVAL (options), MUSTER_ERESOLVE, MUSTER_ESYSTEM (the port is taken). */
int muster_store_open_tcp(const struct muster_store_options *options, struct muster_store **out);

/* Opens the store whose file is `path` (created if need be; its folder must exist). world_size: how many processes will
 * use it; the last one to close it removes the file. 0: nobody removes it. timeout_ms: the store's default, > 0 or
 * MUSTER_STORE_DEFAULT. Queues are not supported (MUSTER_EUNSUPPORTED). */
int muster_store_open_file(const char *path, uint32_t world_size, int64_t timeout_ms, struct muster_store **out);

/* Opens the job's store as the launcher's environment describes it: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE. If
 * TORCHELASTIC_USE_AGENT_STORE is "True" the launcher serves it; otherwise rank 0 hosts it and waits for all ranks.
 * Keys are the same as those of PyTorch's workers with the env:// method, before their "default_pg" prefix.
 * MUSTER_EINVAL names the variable that is missing or wrong. */
int muster_store_open_env(int64_t timeout_ms, struct muster_store **out);

/* A store of the program's own: anything that keeps bytes under keys for all processes of a job, and lets one wait for
 * a key that another will set. A group can meet there (muster_group_create_store()), for example on a store of PyTorch.
 *
 * Start from MUSTER_STORE_CALLS_INIT. Keys come with all prefixes in front of them and without a slash before those.
 * timeout_ms is never negative: how long the answer may take, for wait how long the keys may. get is called for keys
 * that exist; those that may not are waited for before. A function returns
 * MUSTER_OK, or one of the codes of muster/status.h with a sentence by muster_fail(). It gives values that
 * muster_store_value_copy() has made, and writes results on success only. One call at a time is made on a store, in the
 * thread that calls the store or a group that meets there. The functions are what the calls of the same names are to a
 * program: see there. */
struct muster_store_calls {
    size_t size; /* of this struct, set by the initializer: lets it grow later */
    int (*set)(void *context, const char *key, const void *value, size_t len, int64_t timeout_ms);
    int (*get)(void *context, const char *key, int64_t timeout_ms, struct muster_store_value *out);
    int (*add)(void *context, const char *key, int64_t delta, int64_t timeout_ms, int64_t *out_sum);
    int (*compare_set)(void *context, const char *key, const void *expected, size_t expected_len, const void *desired,
                       size_t desired_len, int64_t timeout_ms, struct muster_store_value *out);
    int (*remove)(void *context, const char *key, int64_t timeout_ms, bool *out_deleted);
    int (*check)(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms, bool *out_all);
    int (*wait)(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms);
    void (*close)(void *context); /* the last handle has been closed; NULL: nothing to do */
};
#define MUSTER_STORE_CALLS_INIT                                                                                        \
    { sizeof(struct muster_store_calls), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* Opens the store that `calls` (copied) are; all but close must be there. timeout_ms: the store's default, > 0 or
 * MUSTER_STORE_DEFAULT. It has no queues, appends, numbers or lists of keys: those calls give MUSTER_EUNSUPPORTED. On
 * failure `close` is not called. MUSTER_EINVAL. */
int muster_store_open_calls(const struct muster_store_calls *calls, void *context, int64_t timeout_ms,
                            struct muster_store **out);

/* A view of `store` in which every key has "`prefix`/" in front. Both share one connection and its lock, and each must
 * be closed; the order does not matter. */
int muster_store_prefix(struct muster_store *store, const char *prefix, struct muster_store **out);

/* Ends this handle; the connection, file or hosted server ends with the last one. NULL is accepted. No other thread may
 * be using the handle. */
void muster_store_close(struct muster_store *store);

/* The port of the server (a TCPStore), else 0. Does not block. */
uint16_t muster_store_port(const struct muster_store *store);

/* key = value; wakes whoever waits for the key. `value` is borrowed until return (may be NULL when len is 0). Over TCP
 * set, append, multi_set and queue_push return when the kernel has the bytes, since the protocol has no answer to them.
 * Calls on one store are served in order. But a call that another process makes afterwards may be served first. If that
 * matters, make any call with a result on this store: once it returns, what came before is done. (If it was lost, the
 * call says so.) */
int muster_store_set(struct muster_store *store, const char *key, const void *value, size_t len);

/* Waits until the key exists, then gives its value. */
int muster_store_get(struct muster_store *store, const char *key, int64_t timeout_ms, struct muster_store_value *out);

/* Adds `delta` to the decimal number at the key (absent: 0) and gives the sum. The value must begin with a number. */
int muster_store_add(struct muster_store *store, const char *key, int64_t delta, int64_t *out_sum);

/* Appends to the value (absent: creates it). */
int muster_store_append(struct muster_store *store, const char *key, const void *value, size_t len);

/* Stores `desired` if the key's value is `expected`, or if the key is absent and `expected` is empty. *out: the value
 * that the key has now. The protocol has one exception: if the key is absent and `expected` is not empty, nothing is
 * stored and *out is `expected`. */
int muster_store_compare_set(struct muster_store *store, const char *key, const void *expected, size_t expected_len,
                             const void *desired, size_t desired_len, struct muster_store_value *out);

/* *out_deleted: was there such a key? (A FileStore does not know and says yes, as PyTorch's does.) Wakes nobody. */
int muster_store_delete(struct muster_store *store, const char *key, bool *out_deleted);

/* Do all keys exist? A queue that is not empty counts as a key. */
int muster_store_check(struct muster_store *store, const char *const *keys, size_t key_count, bool *out_all);

/* Waits until all keys exist. */
int muster_store_wait(struct muster_store *store, const char *const *keys, size_t key_count, int64_t timeout_ms);

/* Number of keys of the whole store, bookkeeping keys and those outside the prefix included. */
int muster_store_num_keys(struct muster_store *store, int64_t *out_count);

/* The keys with this handle's prefix, without it, in no particular order; without a prefix all of them. `*out_keys` is
 * one allocation, freed with free(). */
int muster_store_list_keys(struct muster_store *store, char ***out_keys, size_t *out_count);

/* Waits for all keys, then gives their values in order. `out` has room for key_count. */
int muster_store_multi_get(struct muster_store *store, const char *const *keys, size_t key_count, int64_t timeout_ms,
                           struct muster_store_value *out);

/* Sets all keys; with Muster's server, all of them at once. Values are borrowed until return. */
int muster_store_multi_set(struct muster_store *store, const char *const *keys, const struct muster_store_value *values,
                           size_t key_count);

/* First in, first out queues; they live beside the keys. pop waits for an item; with timeout_ms 0 an empty queue gives
 * MUSTER_ENOENT. MUSTER_EUNSUPPORTED by a FileStore; PyTorch's classic (not libuv) server closes the connection. */
int muster_store_queue_push(struct muster_store *store, const char *key, const void *value, size_t len);
int muster_store_queue_pop(struct muster_store *store, const char *key, int64_t timeout_ms,
                           struct muster_store_value *out);
int muster_store_queue_length(struct muster_store *store, const char *key, int64_t *out_length);

/* Waits until `world_size` calls have been made for this key. The count is kept in the store and is never reset: use a
 * new key for each barrier. All must come through the same prefix: as PyTorch's barriers, they count at the key itself,
 * but with a prefix, in a file and in a store of the program's own at key + "/num_members". */
int muster_store_barrier(struct muster_store *store, const char *key, uint32_t world_size, int64_t timeout_ms);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
