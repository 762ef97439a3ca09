/* The inside of muster/store.h: a handle is a prefix on a shared backend; backends are TCP, file, and calls of the
 * program's own. */
#ifndef STORE_STORE_IMPL_H
#define STORE_STORE_IMPL_H

#include <muster/store.h>

#include "store/wire/slice.h"

struct store_backend;

/* What both kinds can do. Wire keys are `prefix` + key, the prefix beginning with the slash that PyTorch's clients put
 * in front. Deadlines are on clock_monotonic_ns(). Called by one thread at a time. NULL: not supported. */
struct store_operations {
    const char *kind; /* "a FileStore": for sentences about what it lacks */
    int (*set)(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
               int64_t deadline_ns);
    int (*append)(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                  int64_t deadline_ns);
    int (*add)(struct store_backend *backend, const char *prefix, const char *key, int64_t delta, int64_t deadline_ns,
               int64_t *out_sum);
    int (*compare_set)(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice expected,
                       struct kv_slice desired, int64_t deadline_ns, struct muster_store_value *out);
    int (*remove)(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                  bool *out_deleted);
    int (*check)(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                 int64_t deadline_ns, bool *out_all);
    int (*wait)(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                int64_t deadline_ns);
    /* The keys exist. */
    int (*multi_get)(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                     int64_t deadline_ns, struct muster_store_value *out);
    int (*multi_set)(struct store_backend *backend, const char *prefix, const char *const *keys,
                     const struct muster_store_value *values, size_t key_count, int64_t deadline_ns);
    int (*num_keys)(struct store_backend *backend, int64_t deadline_ns, int64_t *out_count);
    /* Calls `each` for every raw key until it fails. */
    int (*list_keys)(struct store_backend *backend, int64_t deadline_ns, int (*each)(void *ctx, struct kv_slice key),
                     void *ctx);
    int (*queue_push)(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                      int64_t deadline_ns);
    /* MUSTER_ENOENT: empty. */
    int (*queue_pop)(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                     struct muster_store_value *out);
    int (*queue_length)(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                        int64_t *out_length);
    int (*barrier)(struct store_backend *backend, const char *prefix, const char *key, int64_t world_size,
                   int64_t deadline_ns);
    void (*free)(struct store_backend *backend);
};

/* First member of each backend. */
struct store_backend {
    const struct store_operations *operations;
    int64_t timeout_ms;
    uint16_t port; /* 0: not TCP */
};

/* Makes the first handle of a backend, and takes it: on failure it is freed. */
int store_handle_new(struct store_backend *backend, struct muster_store **out);

/* now + timeout_ms, at most INT64_MAX. */
int64_t store_deadline(int64_t timeout_ms);
/* Milliseconds left until then, rounded up, for poll(): 0 when it has passed. */
int store_remaining_ms(int64_t deadline_ns);

/* A copy of `bytes` as the public header describes it. MUSTER_ENOMEM. */
int store_value_new(struct kv_slice bytes, struct muster_store_value *out);

/* The server in this process: a thread that serves until store_host_stop(). */
struct store_host;
int store_host_start(const char *bind_host, uint16_t port, struct store_host **out);
uint16_t store_host_port(const struct store_host *host);
void store_host_stop(struct store_host *host); /* NULL accepted */

#endif
