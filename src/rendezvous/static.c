/* The static backend: ranks are given on the command line, node rank 0 hosts the one store at the endpoint, and the
 * workers meet in that same store. There is no membership: nobody arrives or is missed, each node restarts alone. Only
 * where survivors go on, node rank 0 looks which agents are still connected: at the end it waits for them. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/rdzv_impl.h"
#include "rendezvous/store_link.h"

struct static_rdzv {
    struct rdzv *rdzv;
    struct net_endpoint endpoint;
    struct store_link *link;
    struct kv_client *client;
    struct kv_client *waiter;
    struct exchange *exchange;
    char prefix[RDZV_RUN_ID_MAX + 1];
    uint64_t round;
    int64_t here;     /* on rank 0: nodes that have counted themselves */
    uint64_t *agents; /* on rank 0: their connections, as far as they stand; max_nodes of them */
    size_t agent_count;
    bool counted; /* all nodes have */
    bool join_wanted;
    bool settled; /* a world was formed: the loss of the store is not ours to mind any longer */
    bool in_barrier;
};

static bool is_single(const struct static_rdzv *s) {
    return s->rdzv->options.max_nodes == 1;
}

static void fail(struct static_rdzv *s, int status) {
    rdzv_tell_failed(s->rdzv, status);
    rdzv_tell_barrier_done(s->rdzv);
    rdzv_tell_shutdown_done(s->rdzv);
}

/* ---- worlds ---- */

static void drop_exchange(struct static_rdzv *s) {
    kv_client_close(s->waiter);
    s->waiter = NULL;
    exchange_close(s->exchange);
    s->exchange = NULL;
    s->in_barrier = false;
}

static void tell_world(struct static_rdzv *s, const struct exchange_result *result) {
    const struct rdzv_options *o = &s->rdzv->options;
    struct exchange_result world = *result;
    (void)str_copy(world.master_addr, sizeof world.master_addr, s->endpoint.host);
    world.master_port = (uint16_t)s->endpoint.port;
    s->settled = true;
    (void)uv_timer_stop(rdzv_timer(s->rdzv, RDZV_TIMER_REPORT));
    rdzv_tell_world(s->rdzv, s->round++, o->node_rank, o->max_nodes, &world);
}

static void on_exchanged(void *ctx, int status, const struct exchange_result *result) {
    struct static_rdzv *s = ctx;
    struct exchange_result copy = *result;
    drop_exchange(s);
    if (status == MUSTER_OK) {
        tell_world(s, &copy);
    } else {
        fail(s, status_prefix(status, "the nodes of the static rendezvous could not agree on ranks"));
    }
}

static void on_waiter_state(void *ctx, int status) {
    (void)ctx;
    (void)status; /* its requests are answered with the loss */
}

static int need_waiter(struct static_rdzv *s) {
    return s->waiter ? MUSTER_OK : store_link_connect(s->link, on_waiter_state, s, &s->waiter);
}

static void begin_exchange(struct static_rdzv *s) {
    const struct rdzv_options *o = &s->rdzv->options;
    int rc = need_waiter(s);
    struct exchange_options options = {
        .client = s->client,
        .waiter = s->waiter,
        .prefix = s->prefix,
        .role = o->role ? o->role : "default",
        .rank = o->node_rank,
        .node_count = o->max_nodes,
        .local_world_size = o->local_world_size,
        .identical = o->identical_workers,
        .address_known = true,
        .master_addr = s->endpoint.host,
        .master_port = (uint16_t)s->endpoint.port,
        .timeout_ms = o->conf.static_timeout_ms,
    };
    rc = rc == MUSTER_OK ? exchange_start(&options, on_exchanged, s, &s->exchange) : rc;
    if (rc != MUSTER_OK) {
        fail(s, rc);
    }
}

/* The only node meets nobody: each attempt gets an empty store on the same port. */
static void begin_alone(struct static_rdzv *s) {
    uint32_t workers = s->rdzv->options.local_world_size;
    kv_server_reset(store_link_server(s->link));
    tell_world(s, &(struct exchange_result){.global_world_size = workers, .role_world_size = workers});
}

static void go_on(struct static_rdzv *s) {
    bool all_here = s->counted || s->rdzv->options.node_rank != 0;
    if (s->join_wanted && s->client && all_here && !s->exchange) {
        s->join_wanted = false;
        begin_exchange(s);
    }
}

/* ---- counting the nodes in ---- */

static void on_own_count(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    if (reply->status != MUSTER_OK) {
        fail(s, reply->status);
        return;
    }
    go_on(s);
}

static void barrier_key(const struct static_rdzv *s, char key[2 * RDZV_RUN_ID_MAX], const char *name) {
    (void)str_format(key, (size_t)2 * RDZV_RUN_ID_MAX, "%storchelastic/agent/terminal_state/%s", s->prefix, name);
}

/* Its value as a number; 0 where there is none. */
static int64_t number_of(struct kv_slice value) {
    char text[24] = "";
    int64_t number = 0;
    if (value.len < sizeof text) {
        memcpy(text, value.data, value.len);
    }
    return str_parse_i64(text, &number) ? number : 0;
}

/* On rank 0, where survivors go on: the barrier is passed when all agents that are left have come, however many
 * there were. */
static void look_at_barrier(struct static_rdzv *s) {
    char key[2 * RDZV_RUN_ID_MAX + 1] = "/"; /* of the wire */
    struct kv_slice value;
    if (!s->rdzv->options.survivors_continue || !s->in_barrier || !s->agents) {
        return;
    }
    barrier_key(s, key + 1, "num_members");
    if (kv_server_get(store_link_server(s->link), kv_slice_text(key), &value) &&
        number_of(value) >= (int64_t)s->agent_count) {
        barrier_key(s, key + 1, "last_member");
        (void)kv_server_set(store_link_server(s->link), kv_slice_text(key), kv_slice_text("<val_ignored>"));
    }
}

static void on_wake(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    go_on(r->state);
    look_at_barrier(r->state);
}

/* Not from inside the server. */
static void wake(struct static_rdzv *s) {
    (void)uv_timer_start(rdzv_timer(s->rdzv, RDZV_TIMER_WAKE), on_wake, 0, 0);
}

static void on_store_disconnect(void *ctx, uint64_t connection) {
    struct static_rdzv *s = ctx;
    for (size_t i = 0; i < s->agent_count; i++) {
        if (s->agents[i] == connection) {
            s->agents[i] = s->agents[--s->agent_count];
            wake(s);
            return;
        }
    }
}

static void on_store_change(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                            struct kv_slice new_value) {
    struct static_rdzv *s = ctx;
    (void)old_value;
    if (s->in_barrier && s->agents) {
        wake(s);
    }
    if (s->counted || !kv_slice_equal(key, kv_slice_text("init/"))) {
        return;
    }
    if (s->agents && s->agent_count < s->rdzv->options.max_nodes) {
        s->agents[s->agent_count++] = connection;
    }
    s->here = number_of(new_value);
    s->counted = s->here >= (int64_t)s->rdzv->options.max_nodes;
    if (s->counted) {
        wake(s);
    }
}

/* ---- the store ---- */

static void on_link_ready(void *ctx) {
    struct static_rdzv *s = ctx;
    s->client = store_link_client(s->link);
    if (is_single(s)) {
        return;
    }
    int rc = kv_client_add_init(s->client, on_own_count, s);
    if (rc != MUSTER_OK) {
        fail(s, rc);
    }
}

static void on_link_failed(void *ctx, int status) {
    struct static_rdzv *s = ctx;
    s->client = NULL;
    if (is_single(s)) {
        return; /* its own connection, dropped when the store was emptied */
    }
    if (!s->settled || s->exchange) {
        fail(s, status);
    } else if (s->in_barrier) {
        drop_exchange(s);
        rdzv_tell_barrier_done(s->rdzv);
    }
    /* Otherwise workers are running: they notice themselves, and need the store no more than they do. */
}

static int start(struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    struct static_rdzv *s = calloc(1, sizeof *s);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->state = s;
    s->rdzv = r;
    (void)str_format(s->prefix, sizeof s->prefix, "%s/", o->run_id);
    int rc = net_endpoint_parse(o->endpoint ? o->endpoint : "", &s->endpoint);
    if (rc == MUSTER_OK && s->endpoint.port < 0) {
        rc = status_fail(MUSTER_EINVAL, "port is missing in endpoint: %s. Try to specify --master-port",
                         s->endpoint.host);
    }
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct store_link_options link = {
        .host = s->endpoint.host,
        .port = (uint16_t)s->endpoint.port,
        .is_host = o->node_rank == 0,
        .any_address = o->node_rank == 0,
        .timeout_ms = o->conf.static_timeout_ms,
        .silence_ms = o->conf.silence_timeout_ms,
        .on_change = on_store_change,
        .on_disconnect = on_store_disconnect,
        .on_ready = on_link_ready,
        .on_failed = on_link_failed,
        .ctx = s,
    };
    if (o->survivors_continue && o->node_rank == 0) {
        s->agents = calloc(o->max_nodes, sizeof *s->agents);
        if (!s->agents) {
            return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous of %u nodes", o->max_nodes);
        }
    }
    rc = store_link_create(r->loop, &link, &s->link);
    if (rc == MUSTER_OK && store_link_server(s->link)) {
        s->endpoint.port = kv_server_port(store_link_server(s->link)); /* if the kernel was to choose */
    }
    return rc;
}

/* ---- people ---- */

static void on_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct static_rdzv *s = r->state;
    char tried[MUSTER_DETAIL_MAX / 2];
    if (!s->client) {
        log_warning("node rank %u is still waiting for node rank 0 at %s:%d (%s)", r->options.node_rank,
                    s->endpoint.host, s->endpoint.port, store_link_describe(s->link, tried, sizeof tried));
    } else if (r->options.node_rank == 0 && !s->counted) {
        log_warning("still waiting for nodes at %s:%d: %lld of %u are here", s->endpoint.host, s->endpoint.port,
                    (long long)s->here, r->options.max_nodes);
    } else {
        log_warning("still waiting for all %u nodes to tell their ranks through %s:%d", r->options.max_nodes,
                    s->endpoint.host, s->endpoint.port);
    }
}

/* ---- the agent's calls ---- */

static void join(struct rdzv *r) {
    enum { REPORT_FIRST_MS = 5000, REPORT_AGAIN_MS = 30000 };
    struct static_rdzv *s = r->state;
    drop_exchange(s);
    if (is_single(s)) {
        begin_alone(s);
        return;
    }
    s->join_wanted = true;
    (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_REPORT), on_report, REPORT_FIRST_MS, REPORT_AGAIN_MS);
    if (!s->client && s->settled) {
        fail(s, status_fail(MUSTER_ECONNECT, "the store of node rank 0 at %s:%d is lost", s->endpoint.host,
                            s->endpoint.port));
        return;
    }
    go_on(s);
}

static void barrier_over(struct static_rdzv *s) {
    drop_exchange(s);
    rdzv_tell_barrier_done(s->rdzv);
}

static void on_last_member(void *ctx, const struct kv_reply *reply) {
    if (reply->status != MUSTER_OK) {
        log_info("the exit barrier ended early, which changes nothing: %s", muster_detail());
    }
    barrier_over(ctx);
}

static void on_barrier_counted(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    char key[2 * RDZV_RUN_ID_MAX];
    barrier_key(s, key, "last_member");
    if (reply->status == MUSTER_OK && reply->number == (int64_t)s->rdzv->options.max_nodes) {
        (void)kv_client_set(s->waiter, key, kv_slice_text("<val_ignored>"), NULL, NULL);
    }
    const char *keys[] = {key};
    uint64_t timeout_ms = s->rdzv->options.survivors_continue ? 0 : RDZV_BARRIER_TIMEOUT_MS; /* 0: none */
    if (reply->status != MUSTER_OK || kv_client_wait(s->waiter, keys, 1, timeout_ms, on_last_member, s) != MUSTER_OK) {
        barrier_over(s);
    }
}

static void barrier(struct rdzv *r) {
    struct static_rdzv *s = r->state;
    char key[2 * RDZV_RUN_ID_MAX];
    if (is_single(s) || !s->client || need_waiter(s) != MUSTER_OK) {
        rdzv_tell_barrier_done(r);
        return;
    }
    s->in_barrier = true;
    barrier_key(s, key, "num_members");
    if (kv_client_add(s->waiter, key, 1, on_barrier_counted, s) != MUSTER_OK) {
        barrier_over(s);
    }
}

static void shutdown_node(struct rdzv *r, bool close_job) {
    (void)close_job; /* there is nothing to close and no list to leave */
    drop_exchange(r->state);
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_REPORT));
    rdzv_tell_shutdown_done(r);
}

static void stop(struct rdzv *r) {
    struct static_rdzv *s = r->state;
    if (s) {
        drop_exchange(s);
        store_link_close(s->link);
        free(s->agents);
        free(s);
    }
}

const struct rdzv_backend_table rdzv_static = {
    .start = start, .join = join, .barrier = barrier, .shutdown = shutdown_node, .stop = stop};
