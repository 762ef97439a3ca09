/* Once a round is complete: the exchange of ranks, and at the end the exit barrier. */
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"

#include <muster/status.h>

static size_t world_size(const struct c10d *c) {
    return rdzv_state_count(&c->world, RDZV_PARTICIPANT);
}

uint32_t c10d_round_rank(const struct c10d *c) {
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

int c10d_round_need_waiter(struct c10d *c) {
    return c->waiter ? MUSTER_OK : c10d_store_connect(c, on_waiter_state, &c->waiter);
}

static void drop_waiter(struct c10d *c) {
    kv_client_close(c->waiter); /* no answer comes after this */
    c->waiter = NULL;
    c->end.watches_host = false;
}

void c10d_round_abort(struct c10d *c) {
    drop_waiter(c);
    exchange_close(c->exchange);
    c->exchange = NULL;
    master_search_close(c->search);
    c->search = NULL;
    c->forming = c->change_seen = false;
    c->in_barrier = false;
    exit_barrier_stop(&c->barrier);
}

void c10d_round_stop(struct c10d *c) {
    c10d_round_abort(c);
    kv_server_close(c->worker_store);
    c->worker_store = NULL;
}

/* ---- the exchange ---- */

static void tell_world(struct c10d *c, const struct exchange_result *result) {
    char why[MUSTER_DETAIL_MAX];
    c->forming = false;
    c10d_past_formed(c, c10d_round_rank(c));
    c10d_report_stop(c);
    rdzv_tell_world(c->rdzv, (uint64_t)c->world.round, c10d_round_rank(c), (uint32_t)world_size(c), result);
    c10d_end_begin_round(c);
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
    if (status == MUSTER_ENOENT && !c->searched) {
        status = c10d_master_search(c);
    } else if (status == MUSTER_OK) {
        tell_world(c, &copy);
    }
    if (status != MUSTER_OK) {
        c10d_fail(c,
                  status_prefix(status, "round %lld: the nodes could not agree on ranks", (long long)c->world.round));
    }
}

static int tell_host(struct c10d *c, const char *prefix, const char *node) {
    char key[C10D_KEY_MAX + 16];
    (void)str_format(key, sizeof key, "%sMASTER_NODE", prefix);
    return kv_client_set(c->client, key, kv_slice_text(node), NULL, NULL);
}

/* A world of one node needs nobody's word, but tells where its store is: a later node may ask. */
static int begin_alone(struct c10d *c) {
    char prefix[C10D_KEY_MAX];
    char key[C10D_KEY_MAX + 16];
    char text[8];
    uint32_t workers = c->rdzv->options.local_world_size;
    struct exchange_result result = {.global_world_size = workers, .role_world_size = workers};
    int rc = c10d_master_host(c, &result.master_port);
    if (rc != MUSTER_OK) {
        return rc;
    }
    c->hosts_world = true;
    prefix_of(c, c->world.round, prefix);
    (void)str_copy(result.master_addr, sizeof result.master_addr, c->own_address);
    (void)str_format(text, sizeof text, "%u", (unsigned)result.master_port);
    (void)str_format(key, sizeof key, "%sMASTER_ADDR", prefix);
    rc = tell_host(c, prefix, c->machine.self.addr);
    rc = rc ? rc : kv_client_set(c->client, key, kv_slice_text(result.master_addr), NULL, NULL);
    if (rc == MUSTER_OK) {
        (void)str_format(key, sizeof key, "%sMASTER_PORT", prefix);
        rc = kv_client_set(c->client, key, kv_slice_text(text), NULL, NULL);
    }
    if (rc == MUSTER_OK) {
        tell_world(c, &result);
    }
    return rc;
}

int c10d_round_exchange(struct c10d *c, const char *master_addr, const char *master_node, uint16_t master_port) {
    const struct rdzv_options *o = &c->rdzv->options;
    char prefix[C10D_KEY_MAX];
    prefix_of(c, c->world.round, prefix);
    /* An agent of PyTorch's looks at the state once a second. */
    enum { ADDRESS_TIMEOUT_MS = 3000 };
    bool may_search = c->world.round > 0 && !c->searched && o->conf.read_timeout_ms > ADDRESS_TIMEOUT_MS;
    struct exchange_options options = {
        .client = c->client,
        .waiter = c->waiter,
        .prefix = prefix,
        .role = o->role ? o->role : "default",
        .rank = c10d_round_rank(c),
        .node_count = (uint32_t)world_size(c),
        .local_world_size = o->local_world_size,
        .identical = o->identical_workers,
        .address_known = master_addr != NULL,
        .publish_address = master_addr != NULL,
        .master_addr = master_addr,
        .master_port = master_port,
        .timeout_ms = o->conf.read_timeout_ms,
        .address_timeout_ms = may_search ? ADDRESS_TIMEOUT_MS : o->conf.read_timeout_ms,
    };
    int rc = master_addr ? tell_host(c, prefix, master_node) : MUSTER_OK;
    return rc ? rc : exchange_start(&options, on_exchanged, c, &c->exchange);
}

static int begin_together(struct c10d *c) {
    c->forming = true;
    c->searched = false;
    int rc = c10d_round_need_waiter(c);
    return rc == MUSTER_OK ? c10d_master_begin(c) : rc;
}

void c10d_round_begin(struct c10d *c) {
    int rc = rdzv_state_copy(&c->world, &c->machine.state);
    if (rc == MUSTER_OK) {
        c10d_master_reset(c);
        c->hosts_world = false;
        rc = world_size(c) == 1 ? begin_alone(c) : begin_together(c);
    }
    if (rc != MUSTER_OK) {
        c10d_fail(c, rc);
    }
}

/* ---- the exit barrier ---- */

void c10d_round_barrier_over(struct c10d *c, bool passed) {
    if (c->in_barrier) {
        c->barrier_passed = passed;
        c10d_round_abort(c);
        rdzv_tell_barrier_done(c->rdzv);
    }
}

/* How many come to the barrier. Where survivors go on, members may have left: those count that are still in the round,
 * and this one. (A node that dies after it came is counted as come, and the others then wait for one less.) */
static int64_t expected_count(const struct c10d *c) {
    if (!c->rdzv->options.survivors_continue) {
        return (int64_t)world_size(c);
    }
    int64_t count = 1;
    for (size_t i = 0; c->machine.state.round == c->world.round && i < c->world.member_count; i++) {
        const struct rdzv_member *was = &c->world.members[i];
        count += (was->lists & RDZV_PARTICIPANT) && rdzv_node_compare(&was->node, &c->machine.self) != 0 &&
                 rdzv_state_is(&c->machine.state, &was->node, RDZV_PARTICIPANT);
    }
    return count;
}

int c10d_round_ask_count(struct c10d *c, int64_t round, kv_reply_cb *cb) {
    char prefix[C10D_KEY_MAX];
    prefix_of(c, round, prefix);
    return exit_barrier_ask_count(c->client, prefix, cb, c);
}

/* News of a departure, or of the end of the job, comes once, perhaps between the end of this node's workers and its
 * coming here. The node has been counted nevertheless: the one that left may have come first, and an agent of PyTorch's
 * may wait for the others. */
static bool waits_in_vain(const void *ctx) {
    const struct c10d *c = ctx;
    bool is_lost = c->machine.told == RDZV_VERDICT_NODE_LEFT && !c->end.is_asking; /* else the answer decides */
    return !c->rdzv->options.survivors_continue && (is_lost || c->machine.state.closed);
}

static void on_over(void *ctx, int status) {
    struct c10d *c = ctx;
    bool is_in_vain = status == MUSTER_ECLOSED && waits_in_vain(c);
    if (status == MUSTER_ETIMEOUT && c10d_end_serves_on(c)) {
        return;
    }
    if (status != MUSTER_OK && !is_in_vain) {
        log_info("the exit barrier ended early (harmless): %s", muster_detail());
    }
    /* A job that was closed has ended for all: its barrier is passed. */
    c10d_round_barrier_over(c, status == MUSTER_OK || (is_in_vain && c->machine.told != RDZV_VERDICT_NODE_LEFT));
}

static void on_known(void *ctx, const struct kv_reply *reply) {
    const struct c10d *c = ctx;
    if (reply->status == MUSTER_OK && c->in_barrier) {
        rdzv_note_done(c->rdzv);
    }
}

/* Nobody else comes to it, but the node that hosts the store may be this one's spare and look. */
static void count_alone(const struct c10d *c) {
    char prefix[C10D_KEY_MAX], key[EXIT_BARRIER_KEY_MAX];
    if (c->rdzv->succeeded && c->link && !c10d_store_server(c) && c->machine.phase == RDZV_PHASE_MEMBER) {
        prefix_of(c, c->world.round, prefix);
        exit_barrier_count_key(prefix, key);
        (void)kv_client_add(c->client, key, 1, NULL, NULL);
    }
}

void c10d_round_barrier(struct c10d *c) {
    char prefix[C10D_KEY_MAX];
    if (c->end.is_detached) {
        rdzv_tell_barrier_done(c->rdzv);
        return;
    }
    drop_waiter(c); /* it has waited for the end of the store's host */
    if (c->has_machine && world_size(c) < 2) {
        count_alone(c);
    }
    if (!c->has_machine || c->machine.phase != RDZV_PHASE_MEMBER || world_size(c) < 2 ||
        c10d_round_need_waiter(c) != MUSTER_OK) {
        rdzv_tell_barrier_done(c->rdzv);
        return;
    }
    c->in_barrier = true;
    c10d_end_needs_store(c);
    prefix_of(c, c->world.round, prefix);
    const struct exit_barrier_options options = {
        .client = c->client,
        .waiter = c->waiter,
        .prefix = prefix,
        .expected_count = expected_count(c),
        .timeout_ms = c->rdzv->options.survivors_continue ? 0 : RDZV_BARRIER_TIMEOUT_MS, /* 0: none */
        .is_in_vain = waits_in_vain,
        .on_over = on_over,
        .ctx = c};
    /* On one connection, in this order: whoever is known to be done has been counted. */
    if (exit_barrier_begin(&c->barrier, &options) != MUSTER_OK) {
        c10d_round_barrier_over(c, false);
    } else if (c->rdzv->succeeded) {
        c10d_end_done(c);
        (void)exit_barrier_ask_count(c->client, prefix, on_known, c); /* answered after all of that */
    }
}

void c10d_round_tell_all_are_here(struct c10d *c) {
    char prefix[C10D_KEY_MAX];
    prefix_of(c, c->world.round, prefix);
    (void)exit_barrier_tell_all(c->client, prefix);
}

/* Where survivors go on, nodes that fail come as well, and only those that vanish are not waited for. Else a node that
 * is lost never comes, and one that is done has come, wherever it is now. */
void c10d_round_barrier_look(struct c10d *c, bool member_left) {
    if (c->rdzv->options.survivors_continue) {
        exit_barrier_expect(&c->barrier, expected_count(c)); /* those who are left may all be here */
    } else if (c->machine.state.closed) {
        c10d_round_barrier_over(c, !member_left);
    } else if (member_left) {
        c10d_end_ask_missing(c);
    }
}
