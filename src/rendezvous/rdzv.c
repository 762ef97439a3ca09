/* The rendezvous object: options, outbox, lifetime. The work is done by the backends (c10d.c, static.c, native.c). */
#include "rendezvous/rdzv.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/local_id.h"
#include "rendezvous/rdzv_impl.h"

enum { FAREWELL_TOLD_MS = 3000 }; /* usually it takes milliseconds */

void rdzv_conf_init(struct rdzv_conf *conf) {
    *conf = (struct rdzv_conf){
        .join_timeout_ms = 600000,
        .last_call_timeout_ms = 30000,
        .close_timeout_ms = 30000,
        .heartbeat_timeout_ms = 5000,
        .keep_alive_interval_ms = 5000,
        .keep_alive_max_attempt = 3,
        .read_timeout_ms = 60000,
        .static_timeout_ms = 900000,
        .silence_timeout_ms = 10000,
        .is_host = -1,
        .max_membership_changes = RDZV_UNLIMITED,
        .max_preemptions = RDZV_UNLIMITED,
        .etcd = {.prefix = "/torchelastic/p2p"},
    };
}

/* ---- outbox ---- */

/* Takes one message and delivers it. */
static bool deliver_one(struct rdzv *r) {
    bool has_more = r->has_change || r->has_stop || r->has_spare_released || r->has_barrier_done || r->has_failed ||
                    r->has_shutdown_done;
    if (r->has_world && r->is_world_held && !has_more) {
        return false;
    }
    if (r->has_world) {
        r->has_world = r->is_world_held = false;
        r->callbacks.on_world(r->ctx, &r->world);
    } else if (r->has_change) {
        r->has_change = false;
        r->callbacks.on_change(r->ctx, r->change, r->change_why);
    } else if (r->has_stop) {
        r->has_stop = false;
        r->callbacks.on_stop(r->ctx, r->stop_grace_ms, r->stop_why);
    } else if (r->has_spare) {
        r->has_spare = false;
        if (r->callbacks.on_spare) {
            r->callbacks.on_spare(r->ctx);
        }
    } else if (r->has_spare_released) {
        r->has_spare_released = false;
        r->callbacks.on_spare_released(r->ctx);
    } else if (r->has_barrier_done) {
        r->has_barrier_done = false;
        r->barrier_done(r->ctx);
    } else if (r->has_failed) {
        r->has_failed = false;
        r->callbacks.on_failed(r->ctx, r->failed_status, r->failed_why);
    } else if (r->has_shutdown_done) {
        r->has_shutdown_done = false;
        r->shutdown_done(r->ctx);
    } else {
        return false;
    }
    return true;
}

static void on_outbox(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    while (!r->freed && deliver_one(r)) {
    }
}

static void post(struct rdzv *r) {
    (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_OUTBOX), on_outbox, 0, 0);
}

const char *rdzv_nodes_text(const struct rdzv_options *o, char out[RDZV_NODES_TEXT_SIZE]) {
    char least[16] = "";
    if (o->min_nodes < o->max_nodes) {
        (void)str_format(least, sizeof least, "%u to ", o->min_nodes);
    }
    (void)str_format(out, RDZV_NODES_TEXT_SIZE, "%s%u node%s", least, o->max_nodes, str_plural(o->max_nodes));
    return out;
}

void rdzv_tell_world(struct rdzv *r, uint64_t round, uint32_t rank, uint32_t count,
                     const struct exchange_result *result) {
    (void)str_copy(r->master_addr, sizeof r->master_addr, result->master_addr);
    r->world = (struct rdzv_world){
        .round = round,
        .group_rank = rank,
        .group_world_size = count,
        .base_global_rank = result->base_global_rank,
        .global_world_size = result->global_world_size,
        .base_role_rank = result->base_role_rank,
        .role_world_size = result->role_world_size,
        .master_addr = r->master_addr,
        .master_port = result->master_port,
        .use_agent_store = r->options.backend == RDZV_BACKEND_STATIC || r->options.share_store,
    };
    r->has_spare = false; /* no longer */
    r->has_world = true;
    post(r);
}

void rdzv_hold_world(struct rdzv *r) {
    r->is_world_held = true;
}

void rdzv_release_world(struct rdzv *r) {
    r->is_world_held = false;
    post(r);
}

void rdzv_tell_change(struct rdzv *r, enum rdzv_change change, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(r->change_why, sizeof r->change_why, format, args);
    va_end(args);
    r->change = change;
    r->has_change = true;
    post(r);
}

void rdzv_tell_stop(struct rdzv *r, uint64_t grace_ms, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(r->stop_why, sizeof r->stop_why, format, args);
    va_end(args);
    r->stop_grace_ms = grace_ms;
    r->has_stop = true;
    post(r);
}

void rdzv_tell_spare(struct rdzv *r) {
    r->has_spare = true;
    post(r);
}

void rdzv_tell_spare_released(struct rdzv *r) {
    r->has_spare_released = true;
    post(r);
}

void rdzv_tell_failed(struct rdzv *r, int status) {
    if (r->failed) {
        return;
    }
    r->failed = r->has_failed = true;
    r->failed_status = status;
    (void)str_copy(r->failed_why, sizeof r->failed_why, muster_detail());
    post(r);
}

void rdzv_tell_barrier_done(struct rdzv *r) {
    if (r->barrier_done && !r->has_barrier_done) {
        r->has_barrier_done = true;
        post(r);
    }
}

void rdzv_tell_shutdown_done(struct rdzv *r) {
    if (r->shutdown_done && !r->has_shutdown_done) {
        r->has_shutdown_done = true;
        (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_FAREWELL));
        post(r);
    }
}

/* ---- lifetime ---- */

static void free_memory(struct rdzv *r) {
    free((void *)(uintptr_t)r->options.run_id);
    free((void *)(uintptr_t)r->options.endpoint);
    free((void *)(uintptr_t)r->options.local_addr);
    free((void *)(uintptr_t)r->options.role);
    free(r);
}

static void on_timer_closed(uv_handle_t *handle) {
    struct rdzv *r = handle->data;
    if (--r->open_timers == 0) {
        free_memory(r);
    }
}

void rdzv_free(struct rdzv *r) {
    if (!r) {
        return;
    }
    assert(!r->freed);
    r->freed = true;
    r->backend->stop(r);
    for (int i = 0; i < RDZV_TIMER_COUNT; i++) {
        uv_close((uv_handle_t *)&r->timers[i], on_timer_closed);
    }
}

static int copy_text(const char **text) {
    if (*text) {
        *text = strdup(*text);
        return *text ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the rendezvous options");
    }
    return MUSTER_OK;
}

static int copy_options(struct rdzv *r, const struct rdzv_options *options) {
    r->options = *options;
    const char **texts[] = {&r->options.run_id, &r->options.endpoint, &r->options.local_addr, &r->options.role};
    int rc = MUSTER_OK;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (rc != MUSTER_OK) {
            *texts[i] = NULL; /* not ours */
        } else {
            rc = copy_text(texts[i]);
        }
    }
    return rc;
}

static int check_options(const struct rdzv_options *o) {
    const struct rdzv_conf *c = &o->conf;
    size_t nodes_max = o->backend == RDZV_BACKEND_MUSTER ? COORDINATOR_NODES_MAX : RDZV_NODES_MAX;
    if (o->min_nodes < 1 || o->max_nodes < o->min_nodes || o->max_nodes > nodes_max || o->local_world_size < 1) {
        return status_fail(MUSTER_EINVAL, "%u to %u nodes of %u workers: that is no world (at most %zu nodes)",
                           o->min_nodes, o->max_nodes, o->local_world_size, nodes_max);
    }
    if (o->run_id[0] == '\0' || strlen(o->run_id) >= RDZV_RUN_ID_MAX) {
        return status_fail(MUSTER_EINVAL, "the run id must have 1 to %d bytes", RDZV_RUN_ID_MAX - 1);
    }
    if (o->local_addr && strlen(o->local_addr) >= RDZV_ADDR_MAX) {
        return status_fail(MUSTER_EINVAL, "--local-addr must have fewer than %d bytes", RDZV_ADDR_MAX);
    }
    if (c->join_timeout_ms == 0 || c->last_call_timeout_ms == 0 || c->close_timeout_ms == 0 ||
        c->keep_alive_interval_ms == 0 || c->keep_alive_max_attempt == 0 || c->read_timeout_ms == 0) {
        return status_fail(MUSTER_EINVAL, "every rendezvous time-out must be positive");
    }
    if (o->backend == RDZV_BACKEND_STATIC && o->node_rank >= o->max_nodes) {
        return status_fail(MUSTER_EINVAL, "--node-rank %u is not below the number of nodes, %u", o->node_rank,
                           o->max_nodes);
    }
    return MUSTER_OK;
}

static const struct rdzv_backend_table *const backends[] = {
    [RDZV_BACKEND_C10D] = &rdzv_c10d,    [RDZV_BACKEND_STATIC] = &rdzv_static, [RDZV_BACKEND_MUSTER] = &rdzv_native,
    [RDZV_BACKEND_ETCD_V2] = &rdzv_c10d, [RDZV_BACKEND_ETCD] = &rdzv_etcd,     [RDZV_BACKEND_ETCD_V3] = &rdzv_etcd3};

int rdzv_create(uv_loop_t *loop, const struct rdzv_options *options, const struct rdzv_callbacks *callbacks, void *ctx,
                struct rdzv **out) {
    int rc = check_options(options);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct rdzv *r = calloc(1, sizeof *r);
    if (!r) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->loop = loop;
    r->callbacks = *callbacks;
    r->ctx = ctx;
    rc = copy_options(r, options);
    if (rc != MUSTER_OK) {
        free_memory(r);
        return rc;
    }
    r->local_id = rdzv_next_local_id();
    for (int i = 0; i < RDZV_TIMER_COUNT; i++) {
        (void)uv_timer_init(loop, &r->timers[i]);
        r->timers[i].data = r;
    }
    r->open_timers = RDZV_TIMER_COUNT;
    r->backend = backends[options->backend];
    rc = r->backend->start(r);
    if (rc == MUSTER_EINVAL || rc == MUSTER_ENOMEM) {
        rdzv_free(r);
        return rc;
    }
    r->options.secret = NULL; /* the backend has what it needs of it */
    if (rc != MUSTER_OK) {    /* what the world around us says comes through on_failed */
        rdzv_tell_failed(r, rc);
    }
    *out = r;
    return MUSTER_OK;
}

/* ---- calls ---- */

void rdzv_join(struct rdzv *r) {
    r->has_world = r->has_change = r->is_world_held = false; /* of the round that is being left */
    if (!r->failed) {
        r->backend->join(r);
    }
}

void rdzv_worker_failed(struct rdzv *r, const char *why) {
    if (!r->failed && r->backend->worker_failed) {
        r->backend->worker_failed(r, why);
    }
}

bool rdzv_preempt(struct rdzv *r, uint64_t grace_ms, const char *why) {
    return !r->failed && r->backend->preempt && r->backend->preempt(r, grace_ms, why);
}

void rdzv_exit_barrier(struct rdzv *r, void (*done)(void *ctx)) {
    r->barrier_done = done;
    r->has_change = false;
    if (r->failed) {
        rdzv_tell_barrier_done(r);
    } else {
        r->backend->barrier(r);
    }
}

static void on_farewell(uv_timer_t *timer) {
    const struct rdzv *r = timer->data;
    log_warning(
        "it could not be told yet that this node's part has ended: whoever is to hear it does not answer. It is "
        "waited for until close_timeout (%llu s) is over, or for a second signal",
        (unsigned long long)(r->options.conf.close_timeout_ms / 1000));
}

void rdzv_shutdown(struct rdzv *r, bool close_job, void (*done)(void *ctx)) {
    r->shutdown_done = done;
    r->has_world = r->has_change = false;
    if (r->failed && !r->backend->is_needed_after_failure) {
        rdzv_tell_shutdown_done(r);
    } else {
        (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_FAREWELL), on_farewell, FAREWELL_TOLD_MS, 0);
        r->backend->shutdown(r, close_job);
    }
}
