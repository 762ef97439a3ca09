/* Once a round of the legacy etcd backend is complete: where workers meet, the exchange of ranks, and how it ends; all
 * in the round's own folder. Worker 0 hosts the workers' store: PyTorch's agents expect it of this backend.
 *
 * At the end this node tells the others of its success or its failure before it goes, and reads theirs. job_end.c has
 * the rules, etcd_machine.c applies them. A node that is done says so in its mark (etcd_members.h), after it has been
 * counted at the exit barrier. The failure that counts lies in the round's store, and is there before the job is
 * closed. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd_legacy/etcd_impl.h"
#include "rendezvous/round/worker_store.h"

#define CAUSE_KEY "muster/failed"

static void on_store_state(void *ctx, int status) {
    struct etcd_rdzv *e = ctx;
    if (status != MUSTER_OK) {
        e->driver->fail(e, status);
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
    exit_barrier_stop(&e->barrier);
}

void etcd_round_abort(struct etcd_rdzv *e) {
    drop_waiter(e);
    e->forming = e->change_seen = false;
}

void etcd_round_stop(struct etcd_rdzv *e) {
    etcd_round_abort(e);
    failures_stop(&e->rdzv->failures);
    kv_client_close(e->client);
    e->client = NULL;
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
        e->driver->fail(e, status_prefix(status, "version %s: the nodes could not agree on ranks", e->version));
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
    etcd_round_stop(e); /* the round before */
    etcd_end_begin_round(e);
    struct exchange_result alone = {.global_world_size = workers, .role_world_size = workers};
    e->forming = true;
    etcd_link_own_address(etcd_v2_local_address(e->etcd, local) ? local : "", &e->rdzv->options, address);
    int rc = e->rank == 0 ? worker_store_free_port(e->rdzv->loop, (struct worker_store_place){0}, &port) : MUSTER_OK;
    if (rc == MUSTER_OK && e->count == 1) {
        (void)str_copy(alone.master_addr, sizeof alone.master_addr, address);
        alone.master_port = port;
        tell_world(e, &alone);
        return MUSTER_OK;
    }
    rc = rc ? rc : connect_store(e, &e->client);
    rc = rc ? rc : etcd_end_hear_failures(e);
    rc = rc ? rc : connect_store(e, &e->waiter);
    return rc ? rc : exchange(e, address, port);
}

/* ---- the exit barrier ---- */

static void on_counted(void *ctx) {
    etcd_end_counted(ctx);
}

static void on_over(void *ctx, int status) {
    struct etcd_rdzv *e = ctx;
    if (status != MUSTER_OK) {
        log_info("the exit barrier ended early (harmless): %s", muster_detail());
    }
    e->end.barrier_passed = status == MUSTER_OK;
    e->end.is_recording = e->end.is_recording && e->barrier.is_counted;
    drop_waiter(e);
    rdzv_tell_barrier_done(e->rdzv);
}

/* The round may have changed between the end of this node's workers and its coming to the barrier: that is told once,
 * and etcd_round_barrier_look() hears of what changes from then on. */
static bool waits_in_vain(const void *ctx) {
    const struct etcd_rdzv *e = ctx;
    return e->machine.told == ETCD_VERDICT_NODE_LEFT || e->machine.world.status == ETCD_WORLD_CLOSED;
}

void etcd_round_barrier(struct etcd_rdzv *e) {
    bool together = e->ready && e->machine.phase == ETCD_PHASE_MEMBER && e->count > 1;
    if (!together || connect_store(e, &e->waiter) != MUSTER_OK) {
        rdzv_tell_barrier_done(e->rdzv);
        return;
    }
    const struct exit_barrier_options options = {.client = e->waiter,
                                                 .waiter = e->waiter,
                                                 .prefix = "",
                                                 .expected_count = e->count,
                                                 .timeout_ms = RDZV_BARRIER_TIMEOUT_MS,
                                                 .on_counted = on_counted,
                                                 .is_in_vain = waits_in_vain,
                                                 .on_over = on_over,
                                                 .ctx = e};
    e->end.is_recording = e->rdzv->succeeded;
    if (exit_barrier_begin(&e->barrier, &options) != MUSTER_OK) {
        e->end.is_recording = false;
        drop_waiter(e);
        rdzv_tell_barrier_done(e->rdzv);
    }
}

/* This node is counted first, whatever happens: others may wait for it. */
void etcd_round_barrier_look(struct etcd_rdzv *e, bool member_left) {
    if (e->barrier.is_active && e->barrier.is_counted &&
        (member_left || e->machine.world.status == ETCD_WORLD_CLOSED)) {
        drop_waiter(e);
        rdzv_tell_barrier_done(e->rdzv);
    }
}

static void go_on_ending(struct etcd_rdzv *e);

void etcd_end_begin_round(struct etcd_rdzv *e) {
    e->end = (struct etcd_end){.next = ETCD_EVENT_JOIN};
}

/* ---- this node is done ---- */

static void on_recorded(void *ctx, int status, const struct etcd_v2_answer *answer) {
    struct etcd_rdzv *e = ctx;
    e->end.record = NULL;
    if (status != MUSTER_OK || answer->error) {
        log_debug("etcd did not take the note that this node is done");
    } else if (e->barrier.is_active) {
        rdzv_note_done(e->rdzv);
    }
    e->end.is_recording = false;
    go_on_ending(e);
}

void etcd_end_counted(struct etcd_rdzv *e) {
    char mark[ETCD_MEMBERS_NAME_MAX];
    if (!e->end.is_recording) {
        return; /* its workers were stopped */
    }
    e->machine.is_done = true;
    const struct etcd_v2_call call = {
        .method = "PUT", .path = e->mark, .value = etcd_members_mark(e->name, true, mark)};
    e->end.is_recording = etcd_v2_send(e->etcd, &call, on_recorded, e, &e->end.record) == MUSTER_OK;
}

/* ---- the end of this node's part ---- */

/* Its end is that of the job: nobody else works, or can go on. */
static bool closes(const struct etcd_rdzv *e) {
    return !e->rdzv->succeeded || e->end.barrier_passed || e->end.is_doomed ||
           e->machine.world.status == ETCD_WORLD_CLOSED || e->count < 2;
}

static void end_now(struct etcd_rdzv *e) {
    enum etcd_event next = e->end.next;
    (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_LEAVE));
    e->end.next = ETCD_EVENT_JOIN;
    etcd_round_abort(e);
    e->driver->feed(e, next);
}

static void on_late(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    end_now(r->state);
}

static void go_on_ending(struct etcd_rdzv *e) {
    bool has_to_tell = e->end.is_recording || failures_is_writing(&e->rdzv->failures);
    if (e->end.next == ETCD_EVENT_JOIN || e->rdzv->failed) {
        return;
    }
    if (!has_to_tell) {
        end_now(e);
    } else if (!uv_is_active((uv_handle_t *)rdzv_timer(e->rdzv, RDZV_TIMER_LEAVE))) {
        rdzv_wait(e->rdzv, RDZV_TIMER_LEAVE, on_late, e->rdzv->options.conf.close_timeout_ms);
    }
}

void etcd_end_begin(struct etcd_rdzv *e, bool close_job) {
    e->ending = true;
    e->end.next = close_job && closes(e) ? ETCD_EVENT_CLOSE : ETCD_EVENT_LEAVE;
    go_on_ending(e);
}

void etcd_end_finish(struct etcd_rdzv *e) {
    if (e->end.fails_when_closed) {
        e->driver->fail(e, status_fail(MUSTER_ECLOSED, "%s", e->end.why));
    } else {
        rdzv_tell_shutdown_done(e->rdzv);
    }
}

void etcd_end_stop(struct etcd_rdzv *e) {
    etcd_v2_cancel(e->end.record);
    e->end.record = NULL;
    e->end.is_recording = false;
    e->end.next = ETCD_EVENT_JOIN;
    (void)uv_timer_stop(rdzv_timer(e->rdzv, RDZV_TIMER_LEAVE));
}

/* ---- other nodes have gone ---- */

void etcd_end_excuse(struct etcd_rdzv *e) {
    const struct job_end_view *view = &e->machine.members.view;
    log_info("a node has gone after its workers had succeeded: %u of %u nodes of version %s are done. The others go on",
             view->arrived, view->world_size, e->version);
    /* The last one to come tells the others that all have; it may have gone before it could. */
    if (e->barrier.is_active && view->arrived >= view->world_size) {
        (void)exit_barrier_tell_all(e->client, "");
    }
}

void etcd_end_fail(struct etcd_rdzv *e) {
    const char *lost = e->machine.members.lost;
    if (e->ending || e->barrier.is_active) {
        return;
    }
    if (e->rdzv->options.survivors_continue) {
        rdzv_tell_change(e->rdzv, RDZV_NODE_LEFT, "%s has left or died", lost);
    } else {
        e->driver->fail(e, status_fail(MUSTER_ECLOSED,
                                       "%s has left or died, and the job is closed: no further round can be formed",
                                       lost));
    }
}

/* ---- failures ---- */

static int ask_cause(struct etcd_rdzv *e, kv_reply_cb *cb) {
    return e->client ? kv_client_get(e->client, CAUSE_KEY, false, 0, cb, e)
                     : status_fail(MUSTER_ECLOSED, "this node was in no round");
}

static bool note_cause(struct etcd_rdzv *e, const struct kv_reply *reply) {
    bool is_cause = reply->status == MUSTER_OK && rdzv_note_cause_text(e->rdzv, reply->values[0]);
    if (is_cause) {
        failures_read(&e->rdzv->failures, reply->values[0]);
    }
    return is_cause;
}

static int connect_once_more(void *ctx, struct kv_client **out) {
    return connect_store(ctx, out);
}

static void on_written(void *ctx) {
    go_on_ending(ctx);
}

int etcd_end_hear_failures(struct etcd_rdzv *e) {
    const struct failures_options options = {.client = e->client,
                                             .key = CAUSE_KEY,
                                             .other_count = e->count - 1,
                                             .connect = connect_once_more,
                                             .on_written = on_written,
                                             .ctx = e};
    return failures_begin(&e->rdzv->failures, e->rdzv, &options);
}

void etcd_end_worker_failed(struct rdzv *r, const struct rdzv_cause *cause) {
    struct etcd_rdzv *e = r->state;
    if (!e->client || !e->ready || e->count < 2) {
        return;
    }
    failures_tell(&r->failures, cause);
    /* The others end now, not when this node's other workers have been stopped. */
    if (cause->is_final && !e->end.has_failed) {
        e->end.has_failed = e->ending = true;
        e->end.next = ETCD_EVENT_CLOSE;
        go_on_ending(e);
    }
}

static void on_cause(void *ctx, const struct kv_reply *reply) {
    (void)note_cause(ctx, reply);
}

void etcd_end_ask_cause(struct rdzv *r) {
    (void)ask_cause(r->state, on_cause);
}

static void on_cause_of_close(void *ctx, const struct kv_reply *reply) {
    struct etcd_rdzv *e = ctx;
    bool is_final = note_cause(e, reply) && e->rdzv->cause.is_final;
    if (is_final && !e->barrier.is_active && !e->ending && !e->rdzv->failed) {
        e->driver->fail(e, rdzv_fail_by_cause(e->rdzv));
    }
}

/* The rendezvous is, and this node cannot join it. */
static void fail_closed(struct etcd_rdzv *e) {
    e->driver->fail(e, status_fail(MUSTER_ECLOSED,
                                   "%s the job '%s' has ended, well or not%s: start a new one under another --rdzv-id",
                                   e->count > 0 ? "the rendezvous is closed, and"
                                   : e->rdzv->spare_since_us != 0
                                       ? "this agent was a spare, and not all nodes have succeeded:"
                                       : "this agent has come too late:",
                                   e->rdzv->options.run_id, e->count > 0 ? "" : ". It had no part in it"));
}

void etcd_end_look(struct etcd_rdzv *e) {
    bool is_concerned = e->machine.phase == ETCD_PHASE_MEMBER && e->machine.world.status == ETCD_WORLD_CLOSED &&
                        e->client && !e->barrier.is_active && !e->ending && !e->rdzv->failed &&
                        !e->rdzv->options.survivors_continue;
    if (is_concerned && !e->end.has_looked) {
        e->end.has_looked = true;
        (void)ask_cause(e, on_cause_of_close);
    }
}

static void on_cause_of_closed(void *ctx, const struct kv_reply *reply) {
    struct etcd_rdzv *e = ctx;
    if (note_cause(e, reply) && e->rdzv->cause.is_final) {
        e->driver->fail(e, rdzv_fail_by_cause(e->rdzv));
    } else {
        fail_closed(e);
    }
}

void etcd_end_closed(struct etcd_rdzv *e) {
    if (ask_cause(e, on_cause_of_closed) != MUSTER_OK) {
        fail_closed(e);
    }
}

/* ---- there are too few nodes for the next round ---- */

/* The others hear that first, and why. What failed here did so for good. */
static void close_and_fail(struct etcd_rdzv *e) {
    struct rdzv_cause cause;
    e->end.fails_when_closed = e->ending = true;
    if (failures_own(&e->rdzv->failures, &cause)) {
        cause.is_final = cause.is_told = e->end.has_failed = true;
        failures_tell(&e->rdzv->failures, &cause);
    }
    e->end.next = ETCD_EVENT_CLOSE;
    go_on_ending(e);
}

static void on_cause_of_round(void *ctx, const struct kv_reply *reply) {
    struct etcd_rdzv *e = ctx;
    (void)note_cause(e, reply); /* what the next round was wanted for */
    close_and_fail(e);
}

void etcd_end_too_few(struct etcd_rdzv *e) {
    const struct etcd_members *members = &e->machine.members;
    const struct job_end_view *view = &members->view;
    uint32_t left = view->world_size - (view->arrived < view->world_size ? view->arrived : view->world_size);
    (void)str_format(e->end.why, sizeof e->end.why,
                     "no further round can be formed: %s succeeded already, and without %s %u of the %u nodes that a "
                     "round needs are left",
                     members->done[0] ? members->done : "some nodes of the last one have",
                     view->arrived == 1 ? "it" : "them", left + (uint32_t)e->machine.world.waiting,
                     e->machine.settings.min_nodes);
    if (ask_cause(e, on_cause_of_round) != MUSTER_OK) {
        close_and_fail(e);
    }
}
