/* Once a round of the legacy etcd backend is complete: where workers meet, the exchange of ranks, at the end the exit
 * barrier; all in the round's own folder. Worker 0 hosts the workers' store: PyTorch's agents expect it of this
 * backend. */
#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd_impl.h"
#include "rendezvous/worker_store.h"

static void on_store_state(void *ctx, int status) {
    struct etcd_rdzv *e = ctx;
    if (status != MUSTER_OK) {
        etcd_rdzv_fail(e, status);
    }
}

static int connect_store(struct etcd_rdzv *e, struct kv_client **out) {
    char folder[ETCD_FOLDER_MAX + ETCD_WORLD_VERSION_MAX + 8];
    (void)str_format(folder, sizeof folder, "%s%s/kv/", e->versions, e->version);
    struct kv_client_etcd_options options = {.etcd = e->etcd, .folder = folder};
    return kv_client_create_etcd(e->rdzv->loop, &options, on_store_state, e, out);
}

static void drop_waiter(struct etcd_rdzv *e) {
    kv_client_close(e->waiter); /* no answer comes after this */
    e->waiter = NULL;
    exchange_close(e->exchange);
    e->exchange = NULL;
    exit_barrier_close(e->barrier);
    e->barrier = NULL;
}

void etcd_round_abort(struct etcd_rdzv *e) {
    drop_waiter(e);
    kv_client_close(e->client);
    e->client = NULL;
    e->forming = e->change_seen = false;
}

/* ---- the exchange ---- */

static void tell_world(struct etcd_rdzv *e, const struct exchange_result *result) {
    e->forming = false;
    (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_REPORT));
    rdzv_tell_world(e->rdzv, strtoull(e->version, NULL, 10), e->rank, e->count, result);
    if (e->change_seen) {
        e->change_seen = false;
        rdzv_tell_change(e->rdzv, RDZV_NODE_ARRIVED, "a node waits to be let in");
    }
}

static void on_exchanged(void *ctx, int status, const struct exchange_result *result) {
    struct etcd_rdzv *e = ctx;
    struct exchange_result copy = *result;
    drop_waiter(e);
    if (status == MUSTER_OK) {
        tell_world(e, &copy);
    } else {
        etcd_rdzv_fail(e, status_prefix(status, "version %s: the nodes could not agree on ranks", e->version));
    }
}

static int exchange(struct etcd_rdzv *e, const char *own_address, uint16_t port) {
    const struct rdzv_options *o = &e->rdzv->options;
    struct exchange_options options = {
        .client = e->client,
        .waiter = e->waiter,
        .prefix = "",
        .role = o->role ? o->role : "default",
        .rank = e->rank,
        .node_count = e->count,
        .local_world_size = o->local_world_size,
        .identical = o->identical_workers,
        .address_known = e->rank == 0,
        .publish_address = e->rank == 0,
        .master_addr = own_address,
        .master_port = port,
        .timeout_ms = o->conf.static_timeout_ms,
        .address_timeout_ms = o->conf.static_timeout_ms,
    };
    return exchange_start(&options, on_exchanged, e, &e->exchange);
}

int etcd_round_begin(struct etcd_rdzv *e) {
    char address[RDZV_ADDR_MAX], local[NET_ADDRESS_TEXT_MAX];
    uint16_t port = 0;
    uint32_t workers = e->rdzv->options.local_world_size;
    struct exchange_result alone = {.global_world_size = workers, .role_world_size = workers};
    e->forming = true;
    etcd_link_own_address(etcd_v2_local_address(e->etcd, local) ? local : "", &e->rdzv->options, address);
    int rc = e->rank == 0 ? worker_store_free_port(e->rdzv->loop, false, &port) : MUSTER_OK;
    if (rc == MUSTER_OK && e->count == 1) {
        (void)str_copy(alone.master_addr, sizeof alone.master_addr, address);
        alone.master_port = port;
        tell_world(e, &alone);
        return MUSTER_OK;
    }
    rc = rc ? rc : connect_store(e, &e->client);
    rc = rc ? rc : connect_store(e, &e->waiter);
    return rc ? rc : exchange(e, address, port);
}

/* ---- the exit barrier ---- */

static void barrier_over(struct etcd_rdzv *e) {
    if (e->barrier) {
        drop_waiter(e);
        rdzv_tell_barrier_done(e->rdzv);
    }
}

static void on_barrier(void *ctx, bool passed) {
    if (!passed) {
        log_info("the exit barrier ended early, which changes nothing: %s", muster_detail());
    }
    barrier_over(ctx);
}

/* The round may have changed between the end of this node's workers and its coming to the barrier: that is told once,
 * and etcd_round_barrier_look() hears of what changes from then on. */
static bool waits_in_vain(const void *ctx) {
    const struct etcd_rdzv *e = ctx;
    return e->machine.told == ETCD_VERDICT_NODE_LEFT || e->machine.world.status == ETCD_WORLD_CLOSED;
}

void etcd_round_barrier(struct etcd_rdzv *e) {
    bool together = e->ready && e->machine.phase == ETCD_PHASE_MEMBER && e->count > 1;
    if (!together || connect_store(e, &e->waiter) != MUSTER_OK ||
        exit_barrier_start(e->waiter, "", e->count, RDZV_BARRIER_TIMEOUT_MS, waits_in_vain, on_barrier, e,
                           &e->barrier) != MUSTER_OK) {
        rdzv_tell_barrier_done(e->rdzv);
    }
}

void etcd_round_barrier_look(struct etcd_rdzv *e, bool member_left) {
    if (e->barrier && (member_left || e->machine.world.status == ETCD_WORLD_CLOSED)) {
        barrier_over(e);
    }
}
