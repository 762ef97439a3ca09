/* The calls of muster/store.h: prefixes, deadlines and the lock; the work is the backend's (store_tcp.c,
 * store_file.c, store_calls.c). */
#include <muster/store.h>

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "store/blocking/store_impl.h"
#include "store/wire/codec.h" /* the limits */

_Static_assert(MUSTER_STORE_KEY_MAX + 1 == CODEC_KEY_BYTES_MAX, "room for the leading slash");
_Static_assert(MUSTER_STORE_VALUE_MAX == CODEC_VALUE_BYTES_MAX, "as on the wire");
_Static_assert(MUSTER_STORE_KEYS_MAX == CODEC_KEYS_MAX, "as on the wire");

/* Between two tries to pop what others are popping too. */
enum { POP_PAUSE_MAX_MS = 10 };

/* What all handles of one connection or file share. */
struct shared {
    struct store_backend *backend;
    size_t handle_count; /* the rest under the lock, which is held for moments only */
    bool is_busy;        /* a call is under way: the backend is its caller's */
    pthread_mutex_t lock;
    pthread_cond_t is_free; /* on the monotonic clock */
};

struct muster_store {
    struct shared *shared;
    char prefix[]; /* "/", or "/a/b/" */
};

int64_t store_deadline(int64_t timeout_ms) {
    int64_t now = clock_monotonic_ns();
    return timeout_ms > (INT64_MAX - now) / CLOCK_NS_PER_MS ? INT64_MAX : now + timeout_ms * CLOCK_NS_PER_MS;
}

int store_remaining_ms(int64_t deadline_ns) {
    int64_t left = deadline_ns - clock_monotonic_ns();
    if (left <= 0) {
        return 0;
    }
    int64_t left_ms = (left - 1) / CLOCK_NS_PER_MS + 1;
    return left_ms > INT32_MAX ? INT32_MAX : (int)left_ms;
}

int store_value_new(struct kv_slice bytes, struct muster_store_value *out) {
    uint8_t *data = malloc(bytes.len + 1);
    if (!data) {
        return status_fail(MUSTER_ENOMEM, "no memory for a value of %zu bytes", bytes.len);
    }
    if (bytes.len > 0) {
        memcpy(data, bytes.data, bytes.len);
    }
    data[bytes.len] = 0;
    *out = (struct muster_store_value){.data = data, .len = bytes.len};
    return 0;
}

int muster_store_value_copy(const void *data, size_t len, struct muster_store_value *out) {
    if (!out || (!data && len > 0)) {
        return status_fail_null("muster_store_value_copy", out ? "data" : "out");
    }
    return store_value_new(kv_slice_of(data, len), out);
}

void muster_store_value_free(struct muster_store_value *value) {
    if (value) {
        free(value->data);
        *value = (struct muster_store_value){0};
    }
}

static struct muster_store *handle_new(struct shared *shared, const char *prefix, const char *added) {
    size_t len = strlen(prefix), added_len = strlen(added);
    struct muster_store *store = malloc(sizeof *store + len + added_len + 2);
    if (!store) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for a store");
        return NULL;
    }
    store->shared = shared;
    memcpy(store->prefix, prefix, len);
    memcpy(store->prefix + len, added, added_len);
    memcpy(store->prefix + len + added_len, "/", 2);
    return store;
}

/* None of this can fail on Linux. */
static void init_lock(struct shared *shared) {
    pthread_condattr_t attributes;
    int failed = pthread_mutex_init(&shared->lock, NULL);
    failed |= pthread_condattr_init(&attributes);
    failed |= pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    failed |= pthread_cond_init(&shared->is_free, &attributes);
    failed |= pthread_condattr_destroy(&attributes);
    assert(failed == 0);
}

int store_handle_new(struct store_backend *backend, struct muster_store **out) {
    struct shared *shared = malloc(sizeof *shared);
    struct muster_store *store = shared ? handle_new(shared, "", "") : NULL;
    if (!store) {
        free(shared);
        backend->operations->free(backend);
        return status_fail(MUSTER_ENOMEM, "no memory for a store");
    }
    *shared = (struct shared){.backend = backend, .handle_count = 1};
    init_lock(shared);
    *out = store;
    return 0;
}

void muster_store_close(struct muster_store *store) {
    if (!store) {
        return;
    }
    struct shared *shared = store->shared;
    (void)pthread_mutex_lock(&shared->lock);
    size_t left = --shared->handle_count;
    (void)pthread_mutex_unlock(&shared->lock);
    free(store);
    if (left == 0) {
        shared->backend->operations->free(shared->backend);
        (void)pthread_cond_destroy(&shared->is_free);
        (void)pthread_mutex_destroy(&shared->lock);
        free(shared);
    }
}

uint16_t muster_store_port(const struct muster_store *store) {
    return store ? store->shared->backend->port : 0;
}

/* Waits for this thread's turn. */
static int take_turn(struct shared *shared, int64_t deadline_ns) {
    struct timespec until = {.tv_sec = deadline_ns / CLOCK_NS_PER_S, .tv_nsec = deadline_ns % CLOCK_NS_PER_S};
    int failed = 0;
    (void)pthread_mutex_lock(&shared->lock);
    while (shared->is_busy && failed == 0) {
        failed = pthread_cond_timedwait(&shared->is_free, &shared->lock, &until);
    }
    bool has_turn = !shared->is_busy;
    shared->is_busy = true;
    (void)pthread_mutex_unlock(&shared->lock);
    return has_turn ? 0 : status_fail(MUSTER_ETIMEOUT, "another thread's call on the same store has not ended");
}

/* The start of one call: its turn and its deadline. */
static int begin(struct muster_store *store, int64_t timeout_ms, int64_t *out_deadline) {
    struct shared *shared = store->shared;
    if (timeout_ms < MUSTER_STORE_DEFAULT) {
        return status_fail(MUSTER_EINVAL, "a time-out of %lld ms", (long long)timeout_ms);
    }
    int64_t deadline = store_deadline(timeout_ms < 0 ? shared->backend->timeout_ms : timeout_ms);
    /* "Only look" still waits its turn, if another thread is just talking to the server. */
    int code = take_turn(shared, timeout_ms == 0 ? store_deadline(shared->backend->timeout_ms) : deadline);
    if (code == 0) {
        *out_deadline = deadline;
    }
    return code;
}

static int end(struct muster_store *store, int code) {
    struct shared *shared = store->shared;
    (void)pthread_mutex_lock(&shared->lock);
    shared->is_busy = false;
    (void)pthread_cond_signal(&shared->is_free);
    (void)pthread_mutex_unlock(&shared->lock);
    return code;
}

/* The arguments of a public call; `store` stands for those that it does not have, or that may be NULL. */
static int check_call(const struct muster_store *store, const void *key, const void *out) {
    return store && key && out ? 0
                               : status_fail_null("store call", !store ? "the store"
                                                                : key  ? "the result"
                                                                       : "the key");
}

int muster_store_prefix(struct muster_store *store, const char *prefix, struct muster_store **out) {
    int code = check_call(store, prefix, out);
    if (code) {
        return code;
    }
    if (strlen(store->prefix) + strlen(prefix) + 1 > CODEC_KEY_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "prefix of %zu bytes: no room is left for a key", strlen(prefix));
    }
    struct muster_store *view = handle_new(store->shared, store->prefix, prefix);
    if (!view) {
        return MUSTER_ENOMEM;
    }
    (void)pthread_mutex_lock(&store->shared->lock);
    store->shared->handle_count++;
    (void)pthread_mutex_unlock(&store->shared->lock);
    *out = view;
    return 0;
}

/* Between begin() and end(): one operation of the backend. */
#define CALL(operation, ...)                                                                                           \
    store->shared->backend->operations->operation(store->shared->backend, store->prefix, __VA_ARGS__)

#define HAS(operation) (store->shared->backend->operations->operation != NULL)

/* For operations that not every kind of store has. */
static int check_has(const struct muster_store *store, bool has, const char *what) {
    return has ? 0
               : status_fail(MUSTER_EUNSUPPORTED, "%s has no %s; use a TCPStore",
                             store->shared->backend->operations->kind, what);
}

int muster_store_set(struct muster_store *store, const char *key, const void *value, size_t len) {
    int64_t deadline = 0;
    int code = check_call(store, key, store);
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(set, key, kv_slice_of(value, len), deadline));
}

int muster_store_append(struct muster_store *store, const char *key, const void *value, size_t len) {
    int64_t deadline = 0;
    int code = check_call(store, key, store);
    code = code ? code : check_has(store, HAS(append), "append");
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(append, key, kv_slice_of(value, len), deadline));
}

int muster_store_add(struct muster_store *store, const char *key, int64_t delta, int64_t *out_sum) {
    int64_t deadline = 0;
    int code = check_call(store, key, out_sum);
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(add, key, delta, deadline, out_sum));
}

int muster_store_compare_set(struct muster_store *store, const char *key, const void *expected, size_t expected_len,
                             const void *desired, size_t desired_len, struct muster_store_value *out) {
    int64_t deadline = 0;
    int code = check_call(store, key, out);
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code
                : end(store, CALL(compare_set, key, kv_slice_of(expected, expected_len),
                                  kv_slice_of(desired, desired_len), deadline, out));
}

int muster_store_delete(struct muster_store *store, const char *key, bool *out_deleted) {
    int64_t deadline = 0;
    int code = check_call(store, key, out_deleted);
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(remove, key, deadline, out_deleted));
}

static int check_count(size_t key_count) {
    if (key_count > MUSTER_STORE_KEYS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu keys in one call, the limit is %zu", key_count, MUSTER_STORE_KEYS_MAX);
    }
    return 0;
}

int muster_store_check(struct muster_store *store, const char *const *keys, size_t key_count, bool *out_all) {
    int64_t deadline = 0;
    int code = check_call(store, key_count > 0 ? (const void *)keys : store, out_all);
    code = code ? code : check_count(key_count);
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(check, keys, key_count, deadline, out_all));
}

int muster_store_wait(struct muster_store *store, const char *const *keys, size_t key_count, int64_t timeout_ms) {
    int64_t deadline = 0;
    int code = check_call(store, key_count > 0 ? (const void *)keys : store, store);
    code = code ? code : check_count(key_count);
    code = code ? code : begin(store, timeout_ms, &deadline);
    return code ? code : end(store, CALL(wait, keys, key_count, deadline));
}

int muster_store_multi_get(struct muster_store *store, const char *const *keys, size_t key_count, int64_t timeout_ms,
                           struct muster_store_value *out) {
    int64_t deadline = 0;
    int code = check_call(store, key_count > 0 ? (const void *)keys : store, key_count > 0 ? out : (const void *)store);
    code = code ? code : check_count(key_count);
    code = code ? code : begin(store, timeout_ms, &deadline);
    if (code) {
        return code;
    }
    code = CALL(wait, keys, key_count, deadline);
    if (code == 0) { /* waiting is over: the answer has the usual time */
        code = CALL(multi_get, keys, key_count, store_deadline(store->shared->backend->timeout_ms), out);
    }
    return end(store, code);
}

int muster_store_get(struct muster_store *store, const char *key, int64_t timeout_ms, struct muster_store_value *out) {
    return key ? muster_store_multi_get(store, &key, 1, timeout_ms, out) : check_call(store, key, out);
}

int muster_store_multi_set(struct muster_store *store, const char *const *keys, const struct muster_store_value *values,
                           size_t key_count) {
    int64_t deadline = 0;
    int code =
        check_call(store, key_count > 0 ? (const void *)keys : store, key_count > 0 ? values : (const void *)store);
    code = code ? code : check_count(key_count);
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(multi_set, keys, values, key_count, deadline));
}

int muster_store_num_keys(struct muster_store *store, int64_t *out_count) {
    int64_t deadline = 0;
    int code = check_call(store, store, out_count);
    code = code ? code : check_has(store, HAS(num_keys), "number of keys");
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    struct store_backend *backend = store->shared->backend;
    return code ? code : end(store, backend->operations->num_keys(backend, deadline, out_count));
}

int muster_store_queue_push(struct muster_store *store, const char *key, const void *value, size_t len) {
    int64_t deadline = 0;
    int code = check_call(store, key, store);
    code = code ? code : check_has(store, HAS(queue_push), "queues");
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(queue_push, key, kv_slice_of(value, len), deadline));
}

/* Somebody else may take the item between the wait and the pop: then wait again, after a moment (a key of the queue's
 * name would end each wait at once). */
int muster_store_queue_pop(struct muster_store *store, const char *key, int64_t timeout_ms,
                           struct muster_store_value *out) {
    int64_t deadline = 0;
    int code = check_call(store, key, out);
    code = code ? code : check_has(store, HAS(queue_push), "queues");
    code = code ? code : begin(store, timeout_ms, &deadline);
    if (code) {
        return code;
    }
    for (int pause_ms = 0;; pause_ms = pause_ms < POP_PAUSE_MAX_MS ? pause_ms + 1 : pause_ms) {
        int left_ms = store_remaining_ms(deadline);
        (void)poll(NULL, 0, pause_ms < left_ms ? pause_ms : left_ms);
        code = timeout_ms == 0 ? 0 : CALL(wait, &key, 1, deadline);
        if (code == 0) {
            code = CALL(queue_pop, key, store_deadline(store->shared->backend->timeout_ms), out);
        }
        if (code != MUSTER_ENOENT || timeout_ms == 0) {
            return end(store, code);
        }
        if (store_remaining_ms(deadline) == 0) {
            return end(store, status_prefix(MUSTER_ETIMEOUT, "time is up"));
        }
    }
}

int muster_store_queue_length(struct muster_store *store, const char *key, int64_t *out_length) {
    int64_t deadline = 0;
    int code = check_call(store, key, out_length);
    code = code ? code : check_has(store, HAS(queue_push), "queues");
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    return code ? code : end(store, CALL(queue_length, key, deadline, out_length));
}

/* What PyTorch's stores do that have no barrier command, its PrefixStore and FileStore: count at one key, set by the
 * last one to arrive, all wait for the other. */
static int meet(struct muster_store *store, const char *members_key, const char *last_key, uint32_t world_size,
                int64_t deadline) {
    int64_t arrived = 0, answer_deadline = store_deadline(store->shared->backend->timeout_ms);
    int code = CALL(add, members_key, 1, answer_deadline, &arrived);
    if (code == 0 && arrived == (int64_t)world_size) {
        code = CALL(set, last_key, kv_slice_text("1"), answer_deadline);
    }
    return code ? code : CALL(wait, &last_key, 1, deadline);
}

static int meet_at(struct muster_store *store, const char *key, uint32_t world_size, int64_t deadline) {
    char *members_key = str_format_new("%s/num_members", key);
    char *last_key = str_format_new("%s/last_member", key);
    int code = members_key && last_key ? meet(store, members_key, last_key, world_size, deadline)
                                       : status_fail(MUSTER_ENOMEM, "no memory for a barrier");
    free(members_key);
    free(last_key);
    return code;
}

int muster_store_barrier(struct muster_store *store, const char *key, uint32_t world_size, int64_t timeout_ms) {
    int64_t deadline = 0;
    int code = check_call(store, key, store);
    code = code ? code : begin(store, timeout_ms, &deadline);
    if (code) {
        return code;
    }
    bool is_prefixed = strlen(store->prefix) > 1;
    if (is_prefixed || !store->shared->backend->operations->barrier) {
        return end(store, meet_at(store, key, world_size, deadline));
    }
    return end(store, CALL(barrier, key, world_size, deadline));
}

/* Keys as they come, gathered as one run of texts. */
struct gathered {
    const char *prefix;
    size_t prefix_len;
    struct buf texts;
    size_t count;
};

static int gather(void *ctx, struct kv_slice key) {
    struct gathered *gathered = ctx;
    if (key.len < gathered->prefix_len || memcmp(key.data, gathered->prefix, gathered->prefix_len) != 0) {
        return 0; /* bookkeeping, or outside the prefix */
    }
    int code = buf_append(&gathered->texts, key.data + gathered->prefix_len, key.len - gathered->prefix_len);
    code = code ? code : buf_append(&gathered->texts, "", 1);
    gathered->count++;
    return code;
}

/* One allocation: the pointers, then the texts. */
static int key_array(const struct gathered *gathered, char ***out_keys) {
    char **keys = malloc((gathered->count + 1) * sizeof *keys + gathered->texts.len);
    if (!keys) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu keys", gathered->count);
    }
    char *text = (char *)(keys + gathered->count + 1);
    if (gathered->texts.len > 0) {
        memcpy(text, buf_bytes(&gathered->texts), gathered->texts.len);
    }
    for (size_t i = 0; i < gathered->count; i++) {
        keys[i] = text;
        text += strlen(text) + 1;
    }
    keys[gathered->count] = NULL;
    *out_keys = keys;
    return 0;
}

int muster_store_list_keys(struct muster_store *store, char ***out_keys, size_t *out_count) {
    int64_t deadline = 0;
    int code = check_call(store, store, out_keys);
    code = code ? code : check_has(store, HAS(list_keys), "list of keys");
    code = code ? code : begin(store, MUSTER_STORE_DEFAULT, &deadline);
    if (code) {
        return code;
    }
    struct gathered gathered = {.prefix = store->prefix, .prefix_len = strlen(store->prefix)};
    buf_init(&gathered.texts, CODEC_MESSAGE_BYTES_MAX);
    struct store_backend *backend = store->shared->backend;
    code = backend->operations->list_keys(backend, deadline, gather, &gathered);
    code = code ? code : key_array(&gathered, out_keys);
    if (code == 0) {
        *out_count = gathered.count;
    }
    buf_done(&gathered.texts);
    return end(store, code);
}
