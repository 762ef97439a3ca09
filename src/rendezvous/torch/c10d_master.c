/* Where the workers of a round meet: MASTER_ADDR and MASTER_PORT.
 *
 * Among our own agents rank 0 hosts the workers' store, empties it for every round, and tells its address in every
 * round. Agents of PyTorch's tell and ask once in their life: one that stays rank 0 is silent in later rounds, and one
 * that was a member before goes where it went before, whoever is rank 0 now. So where one of them takes part, the store
 * of the round before is kept as long as its host is there, and is emptied by us if it is theirs. Which nodes are
 * ours is told by a key a node (c10d_introduce.c). (docs/rendezvous.md, "Mixed jobs") */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/round/worker_store.h"
#include "rendezvous/torch/c10d_impl.h"

#include <muster/status.h>

/* ---- who is ours ---- */

int c10d_master_ask(struct c10d *c, struct kv_client *client, const struct rdzv_state *state, kv_reply_cb *cb) {
    size_t count = rdzv_state_count(state, RDZV_PARTICIPANT);
    const char **keys = calloc(count ? count : 1, sizeof *keys);
    char(*texts)[C10D_INTRODUCTION_MAX] = calloc(count ? count : 1, sizeof *texts);
    int rc = keys && texts ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory to ask who %zu nodes are", count);
    size_t used = 0;
    for (size_t i = 0; rc == MUSTER_OK && i < state->member_count; i++) {
        if (state->members[i].lists & RDZV_PARTICIPANT) {
            c10d_introduction(c, &state->members[i].node, texts[used]);
            keys[used] = texts[used];
            used++;
        }
    }
    if (rc == MUSTER_OK) {
        rc = kv_client_check(client, keys, used, cb, c);
    }
    free(keys);
    free(texts);
    return rc;
}

/* ---- a store here ---- */

/* Everybody has left the old round by now, so no worker of it is alive to write into the store, and none of the new
 * one has been started, because no rank is known before this node has told its role. */
void c10d_master_reset(struct c10d *c) {
    if (c->worker_store) {
        kv_server_reset(c->worker_store);
    }
}

int c10d_master_host(struct c10d *c, uint16_t *out_port) {
    const struct rdzv_options *o = &c->rdzv->options;
    struct worker_store_place place = {c10d_store_is_loopback(c), o->local_addr};
    if (!o->share_store) {
        return worker_store_free_port(c->rdzv->loop, place, out_port);
    }
    int rc = c->worker_store ? MUSTER_OK : worker_store_open(c->rdzv->loop, place, NULL, &c->worker_store);
    if (rc == MUSTER_OK) {
        *out_port = kv_server_port(c->worker_store);
    }
    return rc;
}

static int host_here(struct c10d *c) {
    uint16_t port = 0;
    int rc = c10d_master_host(c, &port);
    c->hosts_world = rc == MUSTER_OK && c10d_round_rank(c) == 0;
    return rc == MUSTER_OK ? c10d_round_exchange(c, c->own_address, c->machine.self.addr, port) : rc;
}

/* ---- a store elsewhere ---- */

/* Rank 0 keeps the store of any node that takes part; the others know that it is rank 0's. */
static bool accept_host(void *ctx, const char *host) {
    const struct c10d *c = ctx;
    for (size_t i = 0; i < c->world.member_count; i++) {
        const struct rdzv_member *at = &c->world.members[i];
        bool may_host = (at->lists & RDZV_PARTICIPANT) && (c10d_round_rank(c) == 0 || at->rank == 0);
        if (may_host && strcmp(at->node.addr, host) == 0) {
            return true;
        }
    }
    return false;
}

static void on_found(void *ctx, int status, const struct master_found *found) {
    struct c10d *c = ctx;
    struct master_found copy = *found;
    master_search_close(c->search);
    c->search = NULL;
    bool is_first = c10d_round_rank(c) == 0;
    if (status == MUSTER_OK) {
        status = c10d_round_exchange(c, copy.addr, copy.node, copy.port);
    } else if (status == MUSTER_ENOENT && is_first) {
        status = host_here(c);
    } else if (status == MUSTER_ENOENT && c->rdzv->options.identical_workers) {
        status = c10d_round_exchange(c, NULL, NULL, 0); /* rank 0 may only be slow */
    }
    if (status != MUSTER_OK) {
        c10d_fail(c, status_prefix(status, "round %lld: rank 0 does not say where the workers' store is",
                                   (long long)c->world.round));
    }
}

int c10d_master_search(struct c10d *c) {
    struct master_search_options options = {
        .loop = c->rdzv->loop,
        .waiter = c->waiter,
        .key = c->key,
        .round = c->world.round,
        .own_addr = c->own_address,
        .own_port = c->worker_store ? kv_server_port(c->worker_store) : 0,
        .accept_muster = c10d_round_rank(c) == 0,
        .accept_host = accept_host,
    };
    c->searched = true;
    return master_search_start(&options, on_found, c, &c->search);
}

static void on_asked(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    int rc = reply->status;
    if (rc == MUSTER_OK) {
        rc = reply->number != 0 ? host_here(c) : c10d_master_search(c);
    }
    if (rc != MUSTER_OK) {
        c10d_fail(c, rc);
    }
}

int c10d_master_begin(struct c10d *c) {
    if (c10d_round_rank(c) != 0) {
        return c10d_round_exchange(c, NULL, NULL, 0);
    }
    if (c->world.round == 0 || !c->rdzv->options.share_store) {
        return host_here(c);
    }
    return c10d_master_ask(c, c->waiter, &c->world, on_asked);
}
