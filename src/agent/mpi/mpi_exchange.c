/* See mpi_exchange.h. A wait holds up what is asked for behind it on a connection of the store, so each exchange under
 * way has a connection to itself; one that has ended leaves it to the next. */
#include "agent/mpi/mpi_exchange.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "store/client/kv_client.h"

enum { KEY_MAX = MPI_EXCHANGE_NAME_MAX + 96, CONNECT_MS = 60 * 1000, TRY_S = 5 };

struct exchange { /* under way; or idle, with a connection */
    struct exchange *next;
    struct mpi_exchange *owner;
    struct kv_client *client;
    mpi_exchange_cb *done;
    void *ctx;
    bool is_idle;
};

struct mpi_exchange {
    uv_loop_t *loop;
    struct net_address address;
    uint64_t round;
    uint32_t node, node_count;
    struct kv_client *client; /* for what does not wait */
    struct exchange *first;
};

static void key_of(const struct mpi_exchange *x, const char *name, uint32_t node, char out[KEY_MAX]) {
    (void)str_format(out, KEY_MAX, "muster/pmi/%" PRIu64 "/%s/%u", x->round, name, node);
}

/* What fails is answered to whoever waits. */
static void on_state(void *ctx, int status) {
    (void)ctx;
    (void)status;
}

static bool answers(const struct net_address *address) {
    const struct timeval patience = {.tv_sec = TRY_S};
    int fd = socket(address->sockaddr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connects = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) == 0 &&
                    connect(fd, (const struct sockaddr *)&address->sockaddr, address->len) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return connects;
}

/* A name may have addresses at which nobody listens. */
static struct net_address choose(const struct net_addresses *addresses) {
    size_t at = 0;
    while (at + 1 < addresses->count && !answers(&addresses->list[at])) {
        at++;
    }
    return addresses->list[at];
}

int mpi_exchange_create(uv_loop_t *loop, const struct mpi_exchange_options *options, struct mpi_exchange **out) {
    struct net_addresses addresses;
    int code = net_resolve(options->master_addr, options->master_port, &addresses);
    if (code) {
        return status_prefix(code, "the workers' store");
    }
    struct mpi_exchange *x = calloc(1, sizeof *x);
    if (!x) {
        return status_fail(MUSTER_ENOMEM, "no memory to reach the workers' store");
    }
    *x = (struct mpi_exchange){.loop = loop,
                               .address = choose(&addresses),
                               .round = options->round,
                               .node = options->node,
                               .node_count = options->node_count};
    code = kv_client_create(loop, (const struct sockaddr *)&x->address.sockaddr, CONNECT_MS, on_state, x, &x->client);
    if (code) {
        free(x);
        return code;
    }
    *out = x;
    return 0;
}

/* ---- one exchange ---- */

static struct exchange *exchange_take(struct mpi_exchange *x) {
    for (struct exchange *e = x->first; e; e = e->next) {
        if (e->is_idle) {
            return e;
        }
    }
    struct exchange *e = calloc(1, sizeof *e);
    if (!e) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for an exchange");
        return NULL;
    }
    e->owner = x;
    if (kv_client_create(x->loop, (const struct sockaddr *)&x->address.sockaddr, CONNECT_MS, on_state, e, &e->client)) {
        free(e);
        return NULL;
    }
    e->next = x->first;
    x->first = e;
    return e;
}

static void on_values(void *ctx, const struct kv_reply *reply) {
    struct exchange *e = ctx;
    int status = reply->status ? status_prefix(reply->status, "the workers' store") : 0;
    e->is_idle = status == 0;
    e->done(e->ctx, status, reply->values, reply->value_count);
}

/* The keys of `nodes`, as kv_client_multi_get() wants them: one allocation. NULL: no memory. */
static const char **keys_of(const struct mpi_exchange *x, const char *name, const uint32_t *nodes, size_t count) {
    const char **keys = malloc(count * (sizeof *keys + KEY_MAX));
    char *room = (char *)(keys + count);
    for (size_t i = 0; keys && i < count; i++) {
        keys[i] = room + i * KEY_MAX;
        key_of(x, name, nodes ? nodes[i] : (uint32_t)i, room + i * KEY_MAX);
    }
    return keys;
}

int mpi_exchange_start(struct mpi_exchange *x, const char *name, const uint32_t *nodes, size_t count,
                       struct kv_slice value, mpi_exchange_cb *done, void *ctx) {
    char own[KEY_MAX];
    const char **keys = keys_of(x, name, nodes, count);
    struct exchange *e = keys ? exchange_take(x) : NULL;
    int code = !keys ? status_fail(MUSTER_ENOMEM, "no memory for an exchange") : e ? 0 : MUSTER_ENOMEM;
    key_of(x, name, x->node, own);
    code = code ? code : kv_client_set(x->client, own, value, NULL, NULL);
    if (code == 0) {
        e->done = done;
        e->ctx = ctx;
        e->is_idle = false;
        code = kv_client_multi_get(e->client, keys, count, 0, on_values, e);
        e->is_idle = code != 0;
    }
    free(keys);
    return code;
}

static void on_deleted(void *ctx, const struct kv_reply *reply) {
    (void)ctx;
    (void)reply;
}

void mpi_exchange_forget(struct mpi_exchange *x, const char *name) {
    char own[KEY_MAX];
    key_of(x, name, x->node, own);
    (void)kv_client_delete(x->client, own, on_deleted, x);
}
