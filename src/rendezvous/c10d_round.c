/* Once a round is complete: the workers' store, the exchange of ranks, and at the end the exit barrier. */
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/c10d_impl.h"
#include "rendezvous/worker_store.h"

#include <muster/status.h>

static size_t world_size(const struct c10d *c) {
    return rdzv_state_count(&c->world, RDZV_PARTICIPANT);
}

static uint32_t own_rank(const struct c10d *c) {
    const struct rdzv_member *self = rdzv_state_find(&c->world, &c->machine.self);
    return (uint32_t)self->rank;
}

static void prefix_of(const struct c10d *c, int64_t round, char out[C10D_KEY_MAX]) {
    (void)str_format(out, C10D_KEY_MAX, "%s.%lld/", c->key, (long long)round);
}

/* ---- the waiting connection ---- */

static void on_waiter_state(void *ctx, int status) {
    (void)ctx;
    (void)status; /* its requests are answered with the loss, and the link's own connection is lost too */
}

static int need_waiter(struct c10d *c) {
    return c->waiter ? MUSTER_OK : store_link_connect(c->link, on_waiter_state, c, &c->waiter);
}

void c10d_round_abort(struct c10d *c) {
    kv_client_close(c->waiter); /* no answer comes after this */
    c->waiter = NULL;
    exchange_close(c->exchange);
    c->exchange = NULL;
    c->in_barrier = false;
}

void c10d_round_stop(struct c10d *c) {
    c10d_round_abort(c);
    kv_server_close(c->worker_store);
    c->worker_store = NULL;
}

/* ---- the workers' store ---- */

/* Empties the store that earlier attempts used, or opens one. Everybody has left the old round by now, so no worker of
 * it is alive to write into the new one. */
static int prepare_worker_store(struct c10d *c, uint32_t rank, uint16_t *out_port) {
    bool loopback = store_link_is_loopback(c->link);
    if (c->worker_store) {
        kv_server_reset(c->worker_store);
    }
    if (rank != 0) {
        return MUSTER_OK;
    }
    if (!c->rdzv->options.share_store) {
        return worker_store_free_port(c->rdzv->loop, loopback, out_port);
    }
    int rc = c->worker_store ? MUSTER_OK : worker_store_open(c->rdzv->loop, loopback, &c->worker_store);
    if (rc == MUSTER_OK) {
        *out_port = kv_server_port(c->worker_store);
    }
    return rc;
}

/* ---- the exchange ---- */

static void tell_world(struct c10d *c, const struct exchange_result *result) {
    char why[MUSTER_DETAIL_MAX];
    c->known = *result;
    c10d_report_stop(c);
    rdzv_tell_world(c->rdzv, (uint64_t)c->world.round, own_rank(c), (uint32_t)world_size(c), result);
    if (c->change_seen) {
        c->change_seen = false;
        (void)c10d_report_change(c, false, why, sizeof why);
        rdzv_tell_change(c->rdzv, RDZV_NODE_ARRIVED, "%s", why);
    }
}

static void on_exchanged(void *ctx, int status, const struct exchange_result *result) {
    struct c10d *c = ctx;
    struct exchange_result copy = *result;
    exchange_close(c->exchange);
    c->exchange = NULL;
    if (status != MUSTER_OK) {
        c10d_fail(c,
                  status_prefix(status, "round %lld: the nodes could not agree on ranks", (long long)c->world.round));
        return;
    }
    tell_world(c, &copy);
}

/* A world of one node needs nobody's word, but tells where its store is: a later node may ask. */
static int begin_alone(struct c10d *c, const char *prefix, uint16_t port) {
    char key[C10D_KEY_MAX + 16];
    char text[8];
    uint32_t workers = c->rdzv->options.local_world_size;
    struct exchange_result result = {.global_world_size = workers, .role_world_size = workers, .master_port = port};
    (void)str_copy(result.master_addr, sizeof result.master_addr, c->machine.self.addr);
    (void)str_format(text, sizeof text, "%u", (unsigned)port);
    (void)str_format(key, sizeof key, "%sMASTER_ADDR", prefix);
    int rc = kv_client_set(c->client, key, kv_slice_text(result.master_addr), NULL, NULL);
    if (rc == MUSTER_OK) {
        (void)str_format(key, sizeof key, "%sMASTER_PORT", prefix);
        rc = kv_client_set(c->client, key, kv_slice_text(text), NULL, NULL);
    }
    if (rc == MUSTER_OK) {
        tell_world(c, &result);
    }
    return rc;
}

static int begin_exchange(struct c10d *c, const char *prefix, uint32_t rank, uint16_t port) {
    const struct rdzv_options *o = &c->rdzv->options;
    int rc = need_waiter(c);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct exchange_options options = {
        .client = c->client,
        .waiter = c->waiter,
        .prefix = prefix,
        .role = o->role ? o->role : "default",
        .rank = rank,
        .node_count = (uint32_t)world_size(c),
        .local_world_size = o->local_world_size,
        .identical = o->identical_workers,
        .address_known = rank == 0,
        .publish_address = rank == 0,
        .master_addr = c->machine.self.addr,
        .master_port = port,
        .timeout_ms = o->conf.read_timeout_ms,
    };
    return exchange_start(&options, on_exchanged, c, &c->exchange);
}

void c10d_round_begin(struct c10d *c) {
    char prefix[C10D_KEY_MAX];
    uint16_t port = 0;
    int rc = rdzv_state_copy(&c->world, &c->machine.state);
    if (rc == MUSTER_OK) {
        rc = prepare_worker_store(c, own_rank(c), &port);
    }
    if (rc == MUSTER_OK) {
        prefix_of(c, c->world.round, prefix);
        rc = world_size(c) == 1 ? begin_alone(c, prefix, port) : begin_exchange(c, prefix, own_rank(c), port);
    }
    if (rc != MUSTER_OK) {
        c10d_fail(c, rc);
    }
}

/* ---- the exit barrier ---- */

static void barrier_over(struct c10d *c, bool passed) {
    if (c->in_barrier) {
        c->barrier_passed = passed;
        c10d_round_abort(c);
        rdzv_tell_barrier_done(c->rdzv);
    }
}

static void on_last_member(void *ctx, const struct kv_reply *reply) {
    if (reply->status != MUSTER_OK) {
        log_info("the exit barrier ended early, which changes nothing: %s", muster_detail());
    }
    barrier_over(ctx, reply->status == MUSTER_OK);
}

static void last_member_key(const struct c10d *c, char key[2 * C10D_KEY_MAX], const char *name) {
    char prefix[C10D_KEY_MAX];
    prefix_of(c, c->world.round, prefix);
    (void)str_format(key, (size_t)2 * C10D_KEY_MAX, "%storchelastic/agent/terminal_state/%s", prefix, name);
}

static void on_counted(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    char key[2 * C10D_KEY_MAX];
    last_member_key(c, key, "last_member");
    if (reply->status == MUSTER_OK && reply->number == (int64_t)world_size(c)) {
        (void)kv_client_set(c->waiter, key, kv_slice_text("<val_ignored>"), NULL, NULL);
    }
    const char *keys[] = {key};
    if (reply->status != MUSTER_OK ||
        kv_client_wait(c->waiter, keys, 1, RDZV_BARRIER_TIMEOUT_MS, on_last_member, c) != MUSTER_OK) {
        barrier_over(c, false);
    }
}

void c10d_round_barrier(struct c10d *c) {
    char key[2 * C10D_KEY_MAX];
    if (!c->has_machine || c->machine.phase != RDZV_PHASE_MEMBER || world_size(c) < 2 || need_waiter(c) != MUSTER_OK) {
        rdzv_tell_barrier_done(c->rdzv);
        return;
    }
    c->in_barrier = true;
    last_member_key(c, key, "num_members");
    if (kv_client_add(c->waiter, key, 1, on_counted, c) != MUSTER_OK) {
        barrier_over(c, false);
    }
}

/* A node that has failed never comes to the barrier: it closes the job or vanishes, and there is nobody to wait for. */
void c10d_round_barrier_look(struct c10d *c, bool member_left) {
    if (member_left || c->machine.state.closed) {
        barrier_over(c, c->machine.state.closed && !member_left);
    }
}
