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

static void on_outbox(uv_timer_t *timer);

/* After an absence: workers may have ended well meanwhile, and this node owes the others nothing then. Their ends are
 * read before it hears that it is to stop them. */
static bool reads_first(struct rdzv *r) {
    enum { READ_MS = 200 };
    int64_t left_ms = loop_clock_left_ms(&r->clock, r->loop, INT64_MIN, READ_MS);
    if (left_ms > 0 && !r->is_change_held) { /* once: on a busy machine the next turn may be late as well */
        r->is_change_held = true;
        (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_OUTBOX), on_outbox, (uint64_t)left_ms, 0);
        return true;
    }
    return false;
}

/* Takes one message and delivers it. */
static bool deliver_one(struct rdzv *r) {
    bool has_more = r->has_change || r->has_stop || r->has_spare_released || r->has_barrier_done || r->has_failed ||
                    r->has_shutdown_done;
    if (r->has_world && r->is_world_held && !has_more) {
        return false;
    }
    if (!r->has_world && r->has_change && r->change != RDZV_CUT_OFF && reads_first(r)) {
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

static void forget_cause(struct rdzv *r) {
    r->has_cause = r->is_cause_reported = false;
    r->causes_on_their_way = 0;
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_CAUSE));
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
    r->has_spare = r->is_spare = false; /* no longer */
    forget_cause(r); /* of the round before: the store may have answered after this node had left it */
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
    r->is_change_held = false;
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
    r->has_spare = r->is_spare = true;
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

/* ---- time ---- */

int64_t rdzv_now_ms(struct rdzv *r) {
    return loop_clock_now_ms(&r->clock, r->loop);
}

int64_t rdzv_left_ms(struct rdzv *r, int64_t deadline_ms) {
    return loop_clock_left_ms(&r->clock, r->loop, deadline_ms, (int64_t)r->options.conf.keep_alive_interval_ms);
}

static void on_waited(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    const struct rdzv_wait *wait = &r->waits[timer - r->timers];
    int64_t left_ms = rdzv_left_ms(r, wait->deadline_ms);
    if (left_ms > 0) {
        (void)uv_timer_start(timer, on_waited, (uint64_t)left_ms, 0);
    } else {
        wait->done(timer);
    }
}

void rdzv_wait(struct rdzv *r, enum rdzv_timer which, uv_timer_cb done, uint64_t ms) {
    r->waits[which] = (struct rdzv_wait){.done = done, .deadline_ms = rdzv_now_ms(r) + (int64_t)ms};
    (void)uv_timer_start(rdzv_timer(r, which), on_waited, (uint64_t)rdzv_left_ms(r, r->waits[which].deadline_ms), 0);
}

/* ---- lifetime ---- */

static void free_memory(struct rdzv *r) {
    free((void *)(uintptr_t)r->options.run_id);
    free((void *)(uintptr_t)r->options.endpoint);
    free((void *)(uintptr_t)r->options.local_addr);
    free((void *)(uintptr_t)r->options.host_name);
    free((void *)(uintptr_t)r->options.role);
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
    const char **texts[] = {&r->options.run_id, &r->options.endpoint, &r->options.local_addr, &r->options.host_name,
                            &r->options.role};
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
        c->keep_alive_interval_ms == 0 || c->keep_alive_max_attempt == 0 || c->read_timeout_ms == 0) {
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
    r->has_world = r->has_change = r->is_world_held = false; /* of the round that is being left */
    forget_cause(r);
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

/* ---- the failure that counts ---- */

enum { CAUSE_LOOK_MS = 50, CAUSE_LOOKS_MAX = 20 };

static void settle_cause(struct rdzv *r) {
    void (*done)(void *ctx) = r->cause_done;
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_CAUSE));
    r->cause_done = NULL;
    if (done) {
        done(r->ctx);
    }
}

/* Of the failure that counts not all is known. */
static bool is_cut(const struct rdzv *r) {
    bool is_settled_elsewhere = r->backend->settles_cause && r->world.group_world_size > 1;
    return r->has_cause && !r->cause.is_told && (is_settled_elsewhere || rdzv_cause_is_remote(r));
}

static bool is_awaited(const struct rdzv *r) {
    return r->causes_on_their_way > 0 || is_cut(r);
}

static void on_cause_timer(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    if (!is_awaited(r) || ++r->cause_looks > CAUSE_LOOKS_MAX) {
        settle_cause(r);
    } else if (is_cut(r) && r->backend->ask_cause) { /* else it comes unasked */
        r->backend->ask_cause(r);
    }
}

/* Whoever waits for it need not wait for the next look. */
static void hurry(struct rdzv *r) {
    if (r->cause_done && !is_awaited(r)) {
        (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_CAUSE), on_cause_timer, 0, CAUSE_LOOK_MS);
    }
}

static void look_for_cause(struct rdzv *r) {
    r->cause_looks = 0;
    (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_CAUSE), on_cause_timer, CAUSE_LOOK_MS, CAUSE_LOOK_MS);
}

const struct rdzv_cause *rdzv_cause(const struct rdzv *r) {
    return r->has_cause ? &r->cause : NULL;
}

bool rdzv_cause_is_remote(const struct rdzv *r) {
    uint32_t first = r->world.base_global_rank;
    bool is_outside = r->is_spare || r->world.global_world_size == 0; /* of the world that has failed */
    return r->has_cause &&
           (is_outside || r->cause.rank < first || r->cause.rank - first >= r->options.local_world_size);
}

void rdzv_note_cause(struct rdzv *r, const struct rdzv_cause *cause) {
    bool is_another = !r->has_cause || cause->rank != r->cause.rank || cause->is_final != r->cause.is_final;
    if (r->is_cause_reported) {
        r->cause.is_told |= cause->is_told; /* who waits for the last words waits no more */
        return;
    }
    r->cause = *cause;
    r->has_cause = true;
    if (is_another && is_cut(r)) {
        look_for_cause(r);
    }
    hurry(r);
}

void rdzv_cause_reported(struct rdzv *r) {
    r->is_cause_reported = true;
}

bool rdzv_note_cause_text(struct rdzv *r, struct kv_slice text) {
    struct rdzv_cause cause;
    if (text.len == 0 || rdzv_cause_read((const char *)text.data, text.len, &cause) != MUSTER_OK) {
        return false;
    }
    rdzv_note_cause(r, &cause);
    return true;
}

void rdzv_cause_sent(struct rdzv *r) {
    r->causes_on_their_way++;
}

void rdzv_cause_answered(struct rdzv *r, const struct kv_reply *reply) {
    r->causes_on_their_way -= r->causes_on_their_way > 0; /* those of an earlier round count no more */
    if (reply->status == MUSTER_OK) {
        (void)rdzv_note_cause_text(r, reply->values[0]);
    }
    hurry(r);
}

void rdzv_causes_arrived(struct rdzv *r) {
    r->causes_on_their_way = 0;
    hurry(r);
}

int rdzv_fail_by_cause(const struct rdzv *r) {
    char text[RDZV_CAUSE_TEXT_MAX];
    return status_fail(MUSTER_ECLOSED, "the job has failed: %s", rdzv_cause_describe(&r->cause, text));
}

void rdzv_await_cause(struct rdzv *r, void (*done)(void *ctx)) {
    bool is_looking = uv_is_active((uv_handle_t *)rdzv_timer(r, RDZV_TIMER_CAUSE));
    bool has_given_up = !is_looking && r->causes_on_their_way == 0;
    if (!is_awaited(r) || has_given_up) {
        done(r->ctx);
        return;
    }
    r->cause_done = done;
    if (!is_looking) {
        look_for_cause(r);
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
