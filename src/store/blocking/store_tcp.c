/* The operations of the blocking TCPStore client, one request at a time on one connection (store_stream.h), and how it
 * is opened; see muster/store.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sized.h"
#include "base/status.h"
#include "net/endpoint.h"
#include "store/blocking/store_impl.h"
#include "store/blocking/store_stream.h"
#include "store/wire/codec.h"

/* As many keys are named in a message, of a list. */
enum { KEYS_NAMED_MAX = 4 };

struct tcp_store {
    struct store_backend backend;
    struct store_stream stream;
    struct store_host *host; /* NULL: served elsewhere */
};

static struct tcp_store *tcp_of(struct store_backend *backend) {
    return (struct tcp_store *)backend;
}

/* "GET /a, /b at host:port: " in front of the detail. */
static int explain(const struct tcp_store *tcp, int code, enum codec_command command, const char *prefix,
                   const char *const *keys, size_t key_count) {
    char names[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < key_count && i < KEYS_NAMED_MAX && used < sizeof names; i++) {
        int n = snprintf(names + used, sizeof names - used, "%s%s%.100s", i ? ", " : " ", prefix, keys[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    return status_prefix(code, "%s%s%s at %s", codec_command_name(command), names,
                         key_count > KEYS_NAMED_MAX ? " ..." : "", tcp->stream.server);
}

/* Starts a request about one key. */
static int begin(struct tcp_store *tcp, enum codec_command command, const char *prefix, const char *key) {
    int code = store_stream_begin(&tcp->stream, command);
    return code ? code : codec_put_key(&tcp->stream.out, prefix, kv_slice_text(key));
}

/* A key and a value, no reply. */
static int send_value(struct store_backend *backend, enum codec_command command, const char *prefix, const char *key,
                      struct kv_slice value, int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = begin(tcp, command, prefix, key);
    code = code ? code : codec_put_value(&tcp->stream.out, value);
    code = store_stream_exchange(&tcp->stream, code, command, 0, deadline_ns, NULL);
    return code ? explain(tcp, code, command, prefix, &key, 1) : 0;
}

static int tcp_set(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                   int64_t deadline_ns) {
    return send_value(backend, CODEC_SET, prefix, key, value, deadline_ns);
}

static int tcp_append(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                      int64_t deadline_ns) {
    return send_value(backend, CODEC_APPEND, prefix, key, value, deadline_ns);
}

static int tcp_queue_push(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice value,
                          int64_t deadline_ns) {
    return send_value(backend, CODEC_QUEUE_PUSH, prefix, key, value, deadline_ns);
}

static int tcp_add(struct store_backend *backend, const char *prefix, const char *key, int64_t delta,
                   int64_t deadline_ns, int64_t *out_sum) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = begin(tcp, CODEC_ADD, prefix, key);
    code = code ? code : codec_put_i64(&tcp->stream.out, delta);
    code = store_stream_exchange(&tcp->stream, code, CODEC_ADD, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_ADD, prefix, &key, 1);
    }
    *out_sum = reply.number;
    store_stream_finish(&tcp->stream);
    return 0;
}

/* The first item of a reply as a value, and the end of the reply. */
static int take_value(struct tcp_store *tcp, struct codec_reply *reply, struct muster_store_value *out) {
    struct kv_slice slice = {0};
    (void)codec_list_next(&reply->list, &slice);
    int code = store_value_new(slice, out);
    store_stream_finish(&tcp->stream);
    return code;
}

static int tcp_compare_set(struct store_backend *backend, const char *prefix, const char *key, struct kv_slice expected,
                           struct kv_slice desired, int64_t deadline_ns, struct muster_store_value *out) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = begin(tcp, CODEC_COMPARE_SET, prefix, key);
    code = code ? code : codec_put_value(&tcp->stream.out, expected);
    code = code ? code : codec_put_value(&tcp->stream.out, desired);
    code = store_stream_exchange(&tcp->stream, code, CODEC_COMPARE_SET, 0, deadline_ns, &reply);
    code = code ? code : take_value(tcp, &reply, out);
    return code ? explain(tcp, code, CODEC_COMPARE_SET, prefix, &key, 1) : 0;
}

static int number_of_key(struct tcp_store *tcp, enum codec_command command, const char *prefix, const char *key,
                         int64_t deadline_ns, int64_t *out) {
    struct codec_reply reply;
    int code = begin(tcp, command, prefix, key);
    code = store_stream_exchange(&tcp->stream, code, command, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, command, prefix, &key, 1);
    }
    *out = reply.number;
    store_stream_finish(&tcp->stream);
    return 0;
}

static int tcp_remove(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                      bool *out_deleted) {
    int64_t removed = 0;
    int code = number_of_key(tcp_of(backend), CODEC_DELETE_KEY, prefix, key, deadline_ns, &removed);
    if (code == 0) {
        *out_deleted = removed > 0;
    }
    return code;
}

static int tcp_queue_length(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                            int64_t *out_length) {
    return number_of_key(tcp_of(backend), CODEC_QUEUE_LEN, prefix, key, deadline_ns, out_length);
}

static int begin_list(struct tcp_store *tcp, enum codec_command command, const char *prefix, const char *const *keys,
                      size_t key_count) {
    int code = store_stream_begin(&tcp->stream, command);
    return code ? code : codec_put_keys(&tcp->stream.out, prefix, keys, key_count);
}

static int tcp_check(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                     int64_t deadline_ns, bool *out_all) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = begin_list(tcp, CODEC_CHECK, prefix, keys, key_count);
    code = store_stream_exchange(&tcp->stream, code, CODEC_CHECK, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_CHECK, prefix, keys, key_count);
    }
    *out_all = reply.number == CODEC_CHECK_PRESENT;
    store_stream_finish(&tcp->stream);
    return 0;
}

static int tcp_wait(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                    int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = begin_list(tcp, CODEC_WAIT, prefix, keys, key_count);
    code = store_stream_wait(&tcp->stream, code, store_deadline(backend->timeout_ms), deadline_ns);
    return code ? explain(tcp, code, CODEC_WAIT, prefix, keys, key_count) : 0;
}

static int tcp_barrier(struct store_backend *backend, const char *prefix, const char *key, int64_t world_size,
                       int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = begin(tcp, CODEC_BARRIER, prefix, key);
    code = code ? code : codec_put_i64(&tcp->stream.out, world_size);
    code = store_stream_wait(&tcp->stream, code, store_deadline(backend->timeout_ms), deadline_ns);
    return code ? explain(tcp, code, CODEC_BARRIER, prefix, &key, 1) : 0;
}

static int take_values(struct tcp_store *tcp, struct codec_reply *reply, struct muster_store_value *out, size_t count) {
    struct kv_slice slice;
    int code = 0;
    size_t taken = 0;
    while (code == 0 && taken < count && codec_list_next(&reply->list, &slice)) {
        code = store_value_new(slice, &out[taken]);
        taken += code == 0;
    }
    while (code && taken > 0) {
        muster_store_value_free(&out[--taken]);
    }
    store_stream_finish(&tcp->stream);
    return code;
}

/* One key goes as GET, as PyTorch's client sends it. */
static int tcp_multi_get(struct store_backend *backend, const char *prefix, const char *const *keys, size_t key_count,
                         int64_t deadline_ns, struct muster_store_value *out) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    enum codec_command command = key_count == 1 ? CODEC_GET : CODEC_MULTI_GET;
    int code = 0;
    if (key_count == 1) {
        code = begin(tcp, CODEC_GET, prefix, keys[0]);
    } else {
        code = begin_list(tcp, CODEC_MULTI_GET, prefix, keys, key_count);
    }
    code = store_stream_exchange(&tcp->stream, code, command, key_count, deadline_ns, &reply);
    code = code ? code : take_values(tcp, &reply, out, key_count);
    return code ? explain(tcp, code, command, prefix, keys, key_count) : 0;
}

static int tcp_multi_set(struct store_backend *backend, const char *prefix, const char *const *keys,
                         const struct muster_store_value *values, size_t key_count, int64_t deadline_ns) {
    struct tcp_store *tcp = tcp_of(backend);
    int code = store_stream_begin(&tcp->stream, CODEC_MULTI_SET);
    code = code ? code : codec_put_i64(&tcp->stream.out, (int64_t)key_count);
    for (size_t i = 0; i < key_count && code == 0; i++) {
        code = codec_put_key(&tcp->stream.out, prefix, kv_slice_text(keys[i]));
        code = code ? code : codec_put_value(&tcp->stream.out, kv_slice_of(values[i].data, values[i].len));
    }
    code = store_stream_exchange(&tcp->stream, code, CODEC_MULTI_SET, 0, deadline_ns, NULL);
    return code ? explain(tcp, code, CODEC_MULTI_SET, prefix, keys, key_count) : 0;
}

static int tcp_num_keys(struct store_backend *backend, int64_t deadline_ns, int64_t *out_count) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = store_stream_begin(&tcp->stream, CODEC_GETNUMKEYS);
    code = store_stream_exchange(&tcp->stream, code, CODEC_GETNUMKEYS, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_GETNUMKEYS, "", NULL, 0);
    }
    *out_count = reply.number;
    store_stream_finish(&tcp->stream);
    return 0;
}

static int tcp_list_keys(struct store_backend *backend, int64_t deadline_ns,
                         int (*each)(void *ctx, struct kv_slice key), void *ctx) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    struct kv_slice key;
    int code = store_stream_begin(&tcp->stream, CODEC_LIST_KEYS);
    code = store_stream_exchange(&tcp->stream, code, CODEC_LIST_KEYS, 0, deadline_ns, &reply);
    if (code) {
        return explain(tcp, code, CODEC_LIST_KEYS, "", NULL, 0);
    }
    while (code == 0 && codec_list_next(&reply.list, &key)) {
        code = each(ctx, key);
    }
    store_stream_finish(&tcp->stream);
    return code;
}

static int tcp_queue_pop(struct store_backend *backend, const char *prefix, const char *key, int64_t deadline_ns,
                         struct muster_store_value *out) {
    struct tcp_store *tcp = tcp_of(backend);
    struct codec_reply reply;
    int code = begin(tcp, CODEC_QUEUE_POP, prefix, key);
    code = store_stream_exchange(&tcp->stream, code, CODEC_QUEUE_POP, 0, deadline_ns, &reply);
    if (code == 0 && reply.number <= 0) {
        store_stream_finish(&tcp->stream);
        code = status_fail(MUSTER_ENOENT, "the queue is empty");
    } else if (code == 0) {
        code = take_value(tcp, &reply, out);
    }
    return code ? explain(tcp, code, CODEC_QUEUE_POP, prefix, &key, 1) : 0;
}

static void tcp_free(struct store_backend *backend) {
    struct tcp_store *tcp = tcp_of(backend);
    store_stream_done(&tcp->stream);
    store_host_stop(tcp->host);
    free(tcp);
}

static const struct store_operations tcp_operations = {
    .kind = "a TCPStore",
    .set = tcp_set,
    .append = tcp_append,
    .add = tcp_add,
    .compare_set = tcp_compare_set,
    .remove = tcp_remove,
    .check = tcp_check,
    .wait = tcp_wait,
    .multi_get = tcp_multi_get,
    .multi_set = tcp_multi_set,
    .num_keys = tcp_num_keys,
    .list_keys = tcp_list_keys,
    .queue_push = tcp_queue_push,
    .queue_pop = tcp_queue_pop,
    .queue_length = tcp_queue_length,
    .barrier = tcp_barrier,
    .free = tcp_free,
};

/* ---- opening ---- */

/* The host waits until everybody has counted himself in. Its server is ours, which says when the number changes. */
static int wait_for_workers(struct tcp_store *tcp, uint32_t world_size, int64_t deadline_ns) {
    char known[24] = "";
    long long joined = 0;
    for (;;) {
        struct codec_reply reply;
        struct kv_slice value = {0};
        int code = store_stream_begin(&tcp->stream, CODEC_WATCH);
        code = code ? code : codec_put_key(&tcp->stream.out, "init/", kv_slice_text(""));
        code = code ? code : codec_put_value(&tcp->stream.out, kv_slice_text(known));
        code = store_stream_exchange(&tcp->stream, code, CODEC_WATCH, 0, deadline_ns, &reply);
        if (code == MUSTER_ETIMEOUT) {
            return status_fail(code, "%lld of %u processes have opened the store at %s in time", joined, world_size,
                               tcp->stream.server);
        }
        if (code) {
            return status_prefix(code, "wait for %u processes", world_size);
        }
        (void)codec_list_next(&reply.list, &value);
        size_t len = value.len < sizeof known ? value.len : sizeof known - 1;
        if (len > 0) {
            memcpy(known, value.data, len);
        }
        known[len] = '\0';
        store_stream_finish(&tcp->stream);
        joined = strtoll(known, NULL, 10);
        if (joined >= (long long)world_size) {
            return 0;
        }
    }
}

static int join(struct tcp_store *tcp, const struct muster_store_options *options, int64_t deadline_ns) {
    int64_t count = 0;
    if (options->world_size == 0) {
        return 0;
    }
    int code = tcp_add(&tcp->backend, "", "init/", 1, deadline_ns, &count);
    if (code == 0 && tcp->host && options->wait_for_workers) {
        code = wait_for_workers(tcp, options->world_size, deadline_ns);
    }
    return code;
}

static int check_options(const struct muster_store_options *options) {
    if (options->timeout_ms <= 0) {
        return status_fail(MUSTER_EINVAL, "store: timeout_ms is %lld, a number above 0 is needed",
                           (long long)options->timeout_ms);
    }
    if (!options->is_host && (!options->host || options->host[0] == '\0' || options->port == 0)) {
        return status_fail(MUSTER_EINVAL, "store: host and port of the server are needed");
    }
    return 0;
}

static int start(struct tcp_store *tcp, const struct muster_store_options *options) {
    int64_t deadline = store_deadline(options->timeout_ms);
    struct net_addresses addresses;
    const char *host = options->is_host ? "localhost" : options->host;
    tcp->backend.port = options->port;
    if (options->is_host) {
        int code = store_host_start(options->bind_host, options->port, &tcp->host);
        if (code) {
            return code;
        }
        tcp->backend.port = store_host_port(tcp->host);
        host = options->bind_host ? options->bind_host : host;
    }
    (void)snprintf(tcp->stream.server, sizeof tcp->stream.server, "%s:%u", options->host ? options->host : host,
                   (unsigned)tcp->backend.port);
    int code = net_resolve(host, tcp->backend.port, &addresses);
    code = code ? code : store_stream_connect(&tcp->stream, &addresses, options->timeout_ms);
    return code ? code : join(tcp, options, deadline);
}

int muster_store_open_tcp(const struct muster_store_options *options, struct muster_store **out) {
    struct muster_store_options own = MUSTER_STORE_OPTIONS_INIT;
    if (!options || !out) {
        return status_fail_null("muster_store_open_tcp", options ? "out" : "options");
    }
    int code = sized_read_options(&own, sizeof own, options, "muster_store_options", "MUSTER_STORE_OPTIONS_INIT");
    code = code ? code : check_options(&own);
    if (code) {
        return code;
    }
    struct tcp_store *tcp = calloc(1, sizeof *tcp);
    if (!tcp) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store");
    }
    tcp->backend = (struct store_backend){.operations = &tcp_operations, .timeout_ms = own.timeout_ms};
    store_stream_init(&tcp->stream);
    code = start(tcp, &own);
    if (code) {
        tcp_free(&tcp->backend);
        return code;
    }
    return store_handle_new(&tcp->backend, out);
}
