/* The rendezvous object: options, lifetime, calls. The work is done by the backends (c10d.c, static.c, native.c), which
 * answer through rdzv_outbox.c and rdzv_cause.c. */
#include "rendezvous/rdzv.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hold.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "net/host_name.h"
#include "rendezvous/backend.h"
#include "rendezvous/round/local_id.h"
#include "rendezvous/round/resolver.h"
#include "rendezvous/wire/coordinator_wire.h"

enum { FAREWELL_TOLD_MS = 3000 }; /* usually it takes milliseconds */

void rdzv_conf_init(struct rdzv_conf *conf) {
    *conf = (struct rdzv_conf){
        .join_timeout_ms = 600000,
        .last_call_timeout_ms = 30000,
        .close_timeout_ms = 30000,
        .heartbeat_timeout_ms = 5000,
        .keep_alive_interval_ms = 5000,
        .keep_alive_max_attempt = 3,
        .hold_timeout_ms = HOLD_DEFAULT_MS,
        .read_timeout_ms = 60000,
        .static_timeout_ms = 900000,
        .silence_timeout_ms = 10000,
        .is_host = -1,
        .max_membership_changes = RDZV_UNLIMITED,
        .max_preemptions = RDZV_UNLIMITED,
        .etcd = {.prefix = "/torchelastic/p2p"},
    };
}

/* ---- lifetime ---- */

static void free_memory(struct rdzv *r) {
    free((void *)(uintptr_t)r->options.run_id);
    free((void *)(uintptr_t)r->options.endpoint);
    free((void *)(uintptr_t)r->options.local_addr);
    free((void *)(uintptr_t)r->options.host_name);
    free((void *)(uintptr_t)r->options.role);
    free((void *)(uintptr_t)r->options.not_given);
    free(r);
}

static void on_handle_closed(uv_handle_t *handle) {
    struct rdzv *r = handle->data;
    if (--r->open_handles == 0) {
        free_memory(r);
    }
}

void rdzv_free(struct rdzv *r) {
    if (!r) {
        return;
    }
    assert(!r->freed);
    r->freed = true;
    failures_stop(&r->failures);
    r->backend->stop(r);
    resolver_close(r->naming);
    for (int i = 0; i < RDZV_TIMER_COUNT; i++) {
        uv_close((uv_handle_t *)&r->timers[i], on_handle_closed);
    }
    loop_clock_close(&r->clock, on_handle_closed);
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
    const char **texts[] = {&r->options.run_id,    &r->options.endpoint, &r->options.local_addr,
                            &r->options.host_name, &r->options.role,     &r->options.not_given};
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

static int check_options(const struct rdzv_options *o, size_t nodes_max) {
    const struct rdzv_conf *c = &o->conf;
    if (o->min_nodes < 1 || o->max_nodes < o->min_nodes || o->max_nodes > nodes_max || o->local_world_size < 1) {
        return status_fail(MUSTER_EINVAL,
                           "%u to %u nodes of %u workers: 1 to %zu nodes and at least 1 worker are possible",
                           o->min_nodes, o->max_nodes, o->local_world_size, nodes_max);
    }
    if (o->run_id[0] == '\0' || strlen(o->run_id) >= RDZV_RUN_ID_MAX) {
        return status_fail(MUSTER_EINVAL, "the run id must have 1 to %d bytes", RDZV_RUN_ID_MAX - 1);
    }
    if (o->local_addr && strlen(o->local_addr) >= RDZV_ADDR_MAX) {
        return status_fail(MUSTER_EINVAL, "--local-addr must have fewer than %d bytes", RDZV_ADDR_MAX);
    }
    if (c->join_timeout_ms == 0 || c->last_call_timeout_ms == 0 || c->close_timeout_ms == 0 ||
        c->keep_alive_interval_ms == 0 || c->keep_alive_max_attempt == 0 || c->hold_timeout_ms == 0 ||
        c->read_timeout_ms == 0) {
        return status_fail(MUSTER_EINVAL, "every rendezvous time-out must be positive");
    }
    if (o->backend == RDZV_BACKEND_STATIC && o->node_rank >= o->max_nodes) {
        return status_fail(MUSTER_EINVAL, "--node-rank %u is not below the number of nodes, %u", o->node_rank,
                           o->max_nodes);
    }
    return MUSTER_OK;
}

/* ---- this machine's name ---- */

/* torchrun waits as long as the resolver takes, which can be half a minute where a name server is down. */
enum { NAME_TIMEOUT_MS = 200 };

static bool needs_name(const struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    return r->backend->orders_by_name && o->max_nodes > 1 && !o->standalone && !o->local_addr && !o->host_name;
}

static void take_name(struct rdzv *r, const char *name) {
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_NAME));
    resolver_close(r->naming);
    r->naming = NULL;
    /* Without a name ranks follow the address. */
    r->options.host_name = strdup(coordinator_wire_is_name(kv_slice_text(name)) ? name : "");
    if (r->join_waits) {
        r->join_waits = false;
        rdzv_join(r);
    }
}

static void on_name(void *ctx, const char *name) {
    char copy[NET_HOST_MAX];
    (void)str_copy(copy, sizeof copy, name); /* it dies with the resolver */
    log_debug("this machine is %s", copy);
    take_name(ctx, copy);
}

static void on_name_late(uv_timer_t *timer) {
    char name[NET_HOST_MAX];
    net_host_name(name);
    log_info("the full name of this machine could not be found within %d ms: ranks follow its host name, %s",
             NAME_TIMEOUT_MS, name);
    take_name(timer->data, name);
}

/* Without a thread for it ranks follow the address. */
static void start_naming(struct rdzv *r) {
    if (needs_name(r) && resolver_start_own_name(r->loop, on_name, r, &r->naming) == MUSTER_OK) {
        (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_NAME), on_name_late, NAME_TIMEOUT_MS, 0);
    }
}

/* To other agents at the same address. */
static void introduce(struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    char host[NET_HOST_MAX], name[NET_HOST_MAX + 32], nodes[24];
    net_host_name(host);
    (void)str_format(name, sizeof name, "%.90s (pid %d)", host[0] ? host : "a host without a name", (int)getpid());
    (void)str_format(nodes, sizeof nodes, o->min_nodes < o->max_nodes ? "%u:%u" : "%u", o->min_nodes, o->max_nodes);
    visitors_init(&r->visitors, rdzv_backend_name(o->backend), o->run_id, nodes, name);
    r->guest = rdzv_guest(r);
}

int rdzv_create(uv_loop_t *loop, const struct rdzv_options *options, const struct rdzv_callbacks *callbacks, void *ctx,
                struct rdzv **out) {
    int rc = check_options(options, rdzv_backend_operations(options->backend)->nodes_max);
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
    loop_clock_start(&r->clock, loop);
    loop_clock_set_data(&r->clock, r);
    introduce(r);
    r->open_handles = RDZV_TIMER_COUNT + 2; /* the clock's */
    r->backend = rdzv_backend_operations(options->backend);
    rc = r->backend->start(r);
    if (rc == MUSTER_EINVAL || rc == MUSTER_ENOMEM) {
        rdzv_free(r);
        return rc;
    }
    r->options.secret = NULL; /* the backend has what it needs of it */
    if (rc != MUSTER_OK) {    /* what the world around us says comes through on_failed */
        rdzv_tell_failed(r, rc);
    }
    if (!r->failed) {
        start_naming(r);
    }
    *out = r;
    return MUSTER_OK;
}

/* ---- calls ---- */

void rdzv_join(struct rdzv *r) {
    rdzv_withdraw_world(r); /* of the round that is being left */
    if (r->naming) {
        r->join_waits = true;
    } else if (!r->failed) {
        r->backend->join(r);
    }
}

void rdzv_worker_failed(struct rdzv *r, const struct rdzv_cause *cause) {
    bool is_of_this_round = !r->has_world; /* no worker runs in a world that the agent has not been told yet */
    if (is_of_this_round && r->backend->worker_failed) { /* after a failure as well: others may wait for it */
        r->backend->worker_failed(r, cause);
    }
}

bool rdzv_preempt(struct rdzv *r, uint64_t grace_ms, const char *why) {
    return !r->failed && r->backend->preempt && r->backend->preempt(r, grace_ms, why);
}

void rdzv_exit_barrier(struct rdzv *r, bool succeeded, void (*done)(void *ctx)) {
    r->barrier_done = done;
    r->succeeded = succeeded;
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
        "cannot report this node's end to the rendezvous; retrying for %llu s (close_timeout; a second signal stops "
        "waiting)",
        (unsigned long long)(r->options.conf.close_timeout_ms / 1000));
}

void rdzv_shutdown(struct rdzv *r, bool close_job, void (*done)(void *ctx)) {
    r->shutdown_done = done;
    r->join_waits = false;
    r->has_world = r->has_change = false;
    if (r->failed && !r->backend->is_needed_after_failure) {
        rdzv_tell_shutdown_done(r);
    } else {
        rdzv_wait(r, RDZV_TIMER_FAREWELL, on_farewell, FAREWELL_TOLD_MS);
        r->backend->shutdown(r, close_job);
    }
}
