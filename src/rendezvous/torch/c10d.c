/* The backends c10d and etcd-v2: keeps the machine's state and the stored one in step; see c10d_impl.h.
 *
 * Writes are conditional on the text adopted last (the token), and whatever the store answers is adopted. With a store
 * of ours a second connection watches the key; otherwise it is read once a second, as torchrun does. An answer of the
 * watch is only adopted if no write was begun after the watch was: the two connections are not ordered, and an older
 * state must never replace a newer one. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "rendezvous/torch/c10d_impl.h"
#include "rendezvous/torch/pickle.h"

/* A big job's state is not read again for every heartbeat: n nodes that read n descriptions each at every one of n
 * writes would drown the store. From 500 nodes on this is torchrun's second. */
enum { SYNC_INTERVAL_MS = 1000, WATCH_GAP_NODES_DIVISOR = 250 };

static void rearm_watch(struct c10d *c);
static void start_write(struct c10d *c);
static void start_read(struct c10d *c);

/* ---- time ---- */

struct rdzv_now c10d_now(const struct c10d *c) {
    struct rdzv *r = c->rdzv;
    struct rdzv_now now = {
        .monotonic_ms = rdzv_now_ms(r), .real_ms = (int64_t)uv_now(r->loop), .wall_us = clock_realtime_us()};
    now.judges_from_ms = now.monotonic_ms + rdzv_left_ms(r, now.monotonic_ms);
    if (now.judges_from_ms < c->listens_until_ms) {
        now.judges_from_ms = c->listens_until_ms;
    }
    return now;
}

/* An etcd that was away has kept everybody silent. Whose heartbeat is due tries again within a second, and then once an
 * interval. */
static void excuse_silence_of_etcd(struct c10d *c) {
    enum { OTHERS_TRY_AGAIN_MS = 1000 };
    uint64_t silent_ms = c->etcd ? etcd_v2_silent_ms(c->etcd) : 0;
    if (silent_ms > c->silent_ms) {
        struct rdzv_now now = c10d_now(c);
        rdzv_roster_excuse(&c->machine.roster, (int64_t)(silent_ms - c->silent_ms), now);
        c->silent_ms = silent_ms;
        c->listens_until_ms =
            now.monotonic_ms + (int64_t)c->rdzv->options.conf.keep_alive_interval_ms + OTHERS_TRY_AGAIN_MS;
    }
}

/* A write that is not answered for so long: is there another way to the store? INT64_MAX: none is out. */
static int64_t redial_ms(const struct c10d *c) {
    return c->writing && c->link ? c->write_ms + (int64_t)c->rdzv->options.conf.keep_alive_interval_ms : INT64_MAX;
}

/* Where the kernel waits longer and longer before it sends again. */
static void redial(struct c10d *c) {
    struct kv_client *const clients[] = {c->client, c->watcher, c->waiter};
    for (size_t i = 0; i < sizeof clients / sizeof *clients; i++) {
        if (clients[i]) {
            kv_client_redial(clients[i]);
        }
    }
}

static void on_wake(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct c10d *c = r->state;
    if ((int64_t)uv_now(r->loop) >= redial_ms(c)) {
        redial(c);
    }
    c10d_report_store(c);
    c10d_feed(c, RDZV_EVENT_TIMER);
}

static void arm_wake(struct c10d *c, int64_t wake_ms) {
    enum { LOOK_MS = 1000 };
    uv_timer_t *timer = rdzv_timer(c->rdzv, RDZV_TIMER_WAKE);
    if (redial_ms(c) != INT64_MAX) {
        int64_t left_ms = redial_ms(c) - (int64_t)uv_now(c->rdzv->loop);
        int64_t look_ms = c10d_now(c).monotonic_ms + (left_ms > 0 ? left_ms : LOOK_MS);
        wake_ms = look_ms < wake_ms ? look_ms : wake_ms;
    }
    if (wake_ms == INT64_MAX) {
        (void)uv_timer_stop(timer);
        return;
    }
    int64_t delay = wake_ms - c10d_now(c).monotonic_ms;
    uv_update_time(c->rdzv->loop);
    (void)uv_timer_start(timer, on_wake, delay > 0 ? (uint64_t)delay : 0, 0);
}

/* ---- failing ---- */

void c10d_fail(struct c10d *c, int status) {
    if (c->end.is_detached || c10d_end_outlives_store(c)) {
        c10d_end_detach(c);
    } else {
        c10d_fail_job(c, status);
    }
}

void c10d_fail_job(struct c10d *c, int status) {
    rdzv_tell_failed(c->rdzv, status);
    c10d_round_abort(c);
    c10d_report_stop(c);
    (void)uv_timer_stop(rdzv_timer(c->rdzv, RDZV_TIMER_WAKE));
    (void)uv_timer_stop(rdzv_timer(c->rdzv, RDZV_TIMER_SYNC));
    rdzv_tell_barrier_done(c->rdzv);
    rdzv_tell_shutdown_done(c->rdzv);
}

void c10d_fail_closed(struct c10d *c) {
    const char *id = c->rdzv->options.run_id;
    bool had_part = rdzv_state_count(&c->world, RDZV_PARTICIPANT) > 0;
    bool has_waited = rdzv_state_is(&c->machine.state, &c->machine.self, RDZV_LISTED);
    c10d_fail_job(c, status_fail(MUSTER_ECLOSED,
                                 "%s the job '%s' has ended, well or not%s: start a new one under another --rdzv-id",
                                 had_part     ? "the rendezvous is closed, and"
                                 : has_waited ? "this agent has waited for a place until"
                                              : "this agent has come too late:",
                                 id, had_part ? "" : ". It had no part in it"));
}

/* ---- deciding ---- */

static void on_linger(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    rdzv_tell_shutdown_done(r);
}

/* The host stays until the others have read the end of the barrier, or why the job has failed. */
static void linger(struct c10d *c, bool is_needed) {
    enum { LINGER_MS = 300, LINGER_FOR_SPARES_MS = 3000 };
    if (is_needed && c10d_store_server(c) && liveness_count_others(&c->liveness, &c->machine.self) > 0) {
        /* Spares read here whether the job has succeeded: what they end with hangs on it. */
        bool has_spares = rdzv_state_count(&c->machine.state, RDZV_SPARE | RDZV_WAITING) > 0;
        (void)uv_timer_start(rdzv_timer(c->rdzv, RDZV_TIMER_LINGER), on_linger,
                             has_spares ? LINGER_FOR_SPARES_MS : LINGER_MS, 0);
    } else {
        rdzv_tell_shutdown_done(c->rdzv);
    }
}

static void end(struct c10d *c) {
    c10d_report_stop(c);
    if (c->end.fails_when_closed) {
        c10d_fail_job(c, status_fail(MUSTER_ECLOSED, "%s", c->end.why));
        return;
    }
    linger(c, c->barrier_passed || c->end.has_failed || c->end.serves_on);
}

static void on_member_change(struct c10d *c, bool left) {
    char why[MUSTER_DETAIL_MAX];
    if (c->ending) {
        return;
    }
    if (c->in_barrier) {
        c10d_round_barrier_look(c, left);
        return;
    }
    if (c->forming && left) {
        /* The world is void before it began: no need to trouble the agent. */
        c10d_round_abort(c);
        c10d_feed(c, RDZV_EVENT_JOIN);
        return;
    }
    if (c->forming) {
        c->change_seen = true;
        return;
    }
    if (c->rdzv->options.survivors_continue) {
        (void)c10d_report_change(c, left, why, sizeof why);
        rdzv_tell_change(c->rdzv, left ? RDZV_NODE_LEFT : RDZV_NODE_ARRIVED, "%s", why);
    } else if (left) {
        c10d_end_ask_missing(c);
    } else {
        c10d_end_ask_arrival(c);
    }
}

/* The place goes to another node once its lease is over: at once, or when workers have had their time to end. */
static void on_cut_off(struct c10d *c) {
    bool is_held = rdzv_machine_is_held(&c->machine);
    int64_t silent_ms = (int64_t)uv_now(c->rdzv->loop) - c->machine.answered_ms;
    if (c->in_barrier || c->ending) {
        return; /* its workers have ended */
    }
    if (c->forming) {
        c10d_round_abort(c);
        c10d_feed(c, RDZV_EVENT_JOIN);
        return;
    }
    rdzv_tell_change(c->rdzv, is_held ? RDZV_NODE_LEFT : RDZV_CUT_OFF,
                     "this node has lost its place: the store of the rendezvous has been silent for %lld s",
                     (long long)(silent_ms / 1000));
}

static void on_timeout(struct c10d *c) {
    char who[MUSTER_DETAIL_MAX / 2];
    (void)c10d_report_who(c, who, sizeof who);
    c10d_fail(c, status_fail(MUSTER_ETIMEOUT, "no world was formed within join_timeout (%llu s): %s",
                             (unsigned long long)(c->rdzv->options.conf.join_timeout_ms / 1000), who));
}

static void obey(struct c10d *c, enum rdzv_verdict verdict) {
    switch (verdict) {
    case RDZV_VERDICT_NONE:
        break;
    case RDZV_VERDICT_JOINED:
        c10d_round_begin(c);
        break;
    case RDZV_VERDICT_CLOSED:
        c10d_cause_look(c);
        break;
    case RDZV_VERDICT_TIMEOUT:
        on_timeout(c);
        break;
    case RDZV_VERDICT_TAKEN:
        c10d_fail_job(c, c10d_report_taken(c));
        break;
    case RDZV_VERDICT_SPARE_RELEASED:
        c10d_report_stop(c);
        c10d_cause_release_spare(c);
        break;
    case RDZV_VERDICT_NODE_LEFT:
        on_member_change(c, true);
        break;
    case RDZV_VERDICT_NODE_ARRIVED:
        on_member_change(c, false);
        break;
    case RDZV_VERDICT_CUT_OFF:
        on_cut_off(c);
        break;
    case RDZV_VERDICT_GIVEN_UP:
        log_warning("could not report this node's end to the rendezvous within close_timeout");
        end(c);
        break;
    case RDZV_VERDICT_DONE:
        end(c);
        break;
    }
}

void c10d_feed(struct c10d *c, enum rdzv_event event) {
    struct rdzv_actions actions;
    if (c->rdzv->failed || c->end.is_detached) {
        return;
    }
    excuse_silence_of_etcd(c);
    rdzv_step(&c->machine, event, c10d_now(c), &actions);
    arm_wake(c, actions.wake_ms);
    if (actions.write) {
        start_write(c);
    } else if (actions.read) {
        start_read(c);
    }
    obey(c, actions.verdict);
}

/* ---- the stored value ---- */

int c10d_read_state(struct kv_slice value, struct rdzv_state *out) {
    if (value.len == 0 || kv_slice_equal(value, kv_slice_text(C10D_SENTINEL))) {
        return MUSTER_OK;
    }
    return pickle_read_text(value.data, value.len, out);
}

static void adopt(struct c10d *c, struct kv_slice value) {
    struct rdzv_state state;
    rdzv_state_init(&state);
    int rc = c10d_read_state(value, &state);
    if (rc == MUSTER_OK) {
        buf_clear(&c->token);
        rc = buf_append(&c->token, value.data, value.len);
    }
    if (rc == MUSTER_OK) {
        rc = rdzv_machine_adopt(&c->machine, &state);
    }
    rdzv_state_done(&state);
    if (rc != MUSTER_OK) {
        c10d_fail(c, status_prefix(rc, "the rendezvous key '%s'", c->key));
        return;
    }
    c10d_feed(c, RDZV_EVENT_SYNCED);
    if (c->rdzv->failed) { /* in time-out, say: the connection is closed */
        return;
    }
    c10d_report_silent(c);
    c10d_report_store(c);
    c10d_report_spare(c);
    c10d_introduce_look(c);
    if (c->in_barrier) {
        c10d_round_barrier_look(c, false);
    }
    c10d_end_look_while_joining(c);
    c10d_end_look_while_waiting(c);
    if (c->machine.state.closed && c->machine.phase == RDZV_PHASE_MEMBER && !c->in_barrier) {
        c10d_cause_look(c);
    }
    rearm_watch(c);
}

static struct kv_slice token(const struct c10d *c) {
    assert(buf_bytes(&c->token) || c->token.len == 0);
    return kv_slice_of(buf_bytes(&c->token), c->token.len);
}

static void on_reply_lost(struct c10d *c, int status) {
    if (!c->ending) {
        c10d_fail(c, status);
    }
}

/* ---- writing and reading ---- */

static void on_written(void *ctx, const struct kv_reply *reply);

/* A write is out, or was outrun: what is heard meanwhile is older than what comes of it, and nobody asks. */
static bool owes_state(const struct c10d *c) {
    return c->writing || c->backing_off;
}

static void compare_set(struct c10d *c, struct kv_slice expected, struct kv_slice desired) {
    c->writing = true;
    c->writes++;
    c->write_ms = (int64_t)uv_now(c->rdzv->loop);
    int rc = kv_client_compare_set(c->client, c->key, expected, desired, on_written, c);
    if (rc != MUSTER_OK) {
        c10d_fail(c, rc);
    }
}

/* "If there is nothing yet, say that there is no state": whatever is there comes back. In etcd nothing says so. */
static void seed(struct c10d *c) {
    if (c->etcd) {
        start_read(c);
        return;
    }
    compare_set(c, kv_slice_text(""), kv_slice_text(C10D_SENTINEL));
}

static void on_backoff_over(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct c10d *c = r->state;
    c->backing_off = false;
    start_read(c);
}

/* Many nodes that write at once outrun each other: each waits as long as it happens to draw, and looks again then. */
static void back_off(struct c10d *c) {
    uint32_t random = 0;
    if (random_fill(&random, sizeof random) != 0) {
        random = UINT32_MAX;
    }
    uint64_t ms = c->rdzv->options.conf.cas_backoff_max_ms * random / UINT32_MAX;
    c->backing_off = true;
    (void)uv_timer_start(rdzv_timer(c->rdzv, RDZV_TIMER_BACKOFF), on_backoff_over, ms, 0);
}

static void on_written(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    c->writing = false;
    if (reply->status != MUSTER_OK) {
        on_reply_lost(c, reply->status);
        return;
    }
    struct kv_slice value = reply->values[0];
    struct kv_slice wrote = kv_slice_of(buf_bytes(&c->text), c->text.len);
    /* Nothing changed and yet the write failed: the store has lost the key, and answers so in its way. */
    if (c->token.len > 0 && kv_slice_equal(value, token(c)) && c->text.len > 0 && !kv_slice_equal(value, wrote)) {
        buf_clear(&c->token);
        buf_clear(&c->text);
        seed(c);
        return;
    }
    assert(wrote.data || wrote.len == 0);
    bool is_outrun = c->text.len > 0 && !kv_slice_equal(value, wrote);
    buf_clear(&c->text);
    if (is_outrun && c->rdzv->options.conf.cas_backoff_max_ms > 0) {
        back_off(c);
    } else {
        adopt(c, value);
    }
}

static void start_write(struct c10d *c) {
    buf_clear(&c->text);
    int rc = pickle_write_text(&c->machine.state, &c->text);
    if (rc != MUSTER_OK) {
        c10d_fail(c, rc);
        return;
    }
    compare_set(c, token(c), kv_slice_of(buf_bytes(&c->text), c->text.len));
}

static void on_read(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    c->reading = false;
    if (reply->status != MUSTER_OK) {
        on_reply_lost(c, reply->status);
    } else if (!owes_state(c)) {
        adopt(c, reply->values[0]);
    }
}

static void start_read(struct c10d *c) {
    if (c->reading || owes_state(c) || c->rdzv->failed || c->end.is_detached) {
        return;
    }
    int rc = kv_client_get(c->client, c->key, false, 0, on_read, c);
    c->reading = rc == MUSTER_OK;
    if (rc != MUSTER_OK) {
        on_reply_lost(c, rc);
    }
}

static void on_sync_timer(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    start_read(r->state);
}

static void start_polling(struct c10d *c) {
    (void)uv_timer_start(rdzv_timer(c->rdzv, RDZV_TIMER_SYNC), on_sync_timer, SYNC_INTERVAL_MS, SYNC_INTERVAL_MS);
}

/* ---- watching ---- */

static void on_watched(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    c->watching = false;
    if (reply->status != MUSTER_OK) {
        return; /* the connection is lost: on_watcher_state() goes on */
    }
    if (!owes_state(c) && c->writes == c->watch_writes && !kv_slice_equal(reply->values[0], token(c))) {
        adopt(c, reply->values[0]);
    } else {
        rearm_watch(c);
    }
}

static void watch_now(struct c10d *c) {
    if (c->watcher && !c->watching && !owes_state(c) && !c->rdzv->failed && !c->end.is_detached) {
        c->watch_writes = c->writes;
        c->watching = kv_client_watch(c->watcher, c->key, token(c), on_watched, c) == MUSTER_OK;
    }
}

static void on_watch_gap(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    watch_now(r->state);
}

static void rearm_watch(struct c10d *c) {
    uint64_t nodes = c->machine.state.member_count;
    uint64_t gap_ms = nodes * nodes / WATCH_GAP_NODES_DIVISOR; /* 4 n^2 microseconds */
    if (!c->watcher) {
        return;
    }
    if (gap_ms == 0) {
        watch_now(c);
    } else {
        gap_ms = gap_ms < SYNC_INTERVAL_MS ? gap_ms : SYNC_INTERVAL_MS;
        (void)uv_timer_start(rdzv_timer(c->rdzv, RDZV_TIMER_SYNC), on_watch_gap, gap_ms, 0);
    }
}

static void on_watcher_state(void *ctx, int status) {
    struct c10d *c = ctx;
    if (status != 0 && !c->rdzv->failed && !c->end.is_detached) {
        kv_client_close(c->watcher);
        c->watcher = NULL;
        c->watching = false;
        start_polling(c);
    }
}

/* ---- beginning ---- */

/* FNV-1a, 31 bits of it. */
static int64_t number_of(const char *text) {
    uint32_t hash = UINT32_C(2166136261);
    for (; *text; text++) {
        hash = (hash ^ (uint8_t)*text) * UINT32_C(16777619);
    }
    return hash & INT32_MAX;
}

/* As PyTorch's agents name themselves, since ranks follow these names: --local-addr, else the machine's full name. Pids
 * of containers that are named alike are alike, too: the local id tells these apart. */
static void name_self(const struct c10d *c, struct rdzv_node *self) {
    const struct rdzv_options *o = &c->rdzv->options;
    bool is_named = !o->local_addr && o->host_name && o->host_name[0] != '\0';
    (void)str_copy(self->addr, sizeof self->addr, is_named ? o->host_name : c->own_address);
    if (is_named) {
        self->local_id += number_of(c->own_address);
    }
}

static void init_machine(struct c10d *c) {
    const struct rdzv_options *o = &c->rdzv->options;
    struct rdzv_node self = {.pid = getpid(), .local_id = c->rdzv->local_id};
    c10d_store_own_address(c, c->own_address);
    name_self(c, &self);
    struct rdzv_settings settings = {
        .min_nodes = o->min_nodes,
        .max_nodes = o->max_nodes,
        .join_timeout_ms = (int64_t)o->conf.join_timeout_ms,
        .last_call_timeout_ms = (int64_t)o->conf.last_call_timeout_ms,
        .last_call_given = o->conf.last_call_given,
        .close_timeout_ms = (int64_t)o->conf.close_timeout_ms,
        .keep_alive_interval_ms = (int64_t)o->conf.keep_alive_interval_ms,
        .expiry_ms = (int64_t)rdzv_conf_silence_ms(&o->conf),
        .hold_ms = (int64_t)rdzv_conf_hold_ms(&o->conf),
        .stop_ms = (int64_t)o->stop_timeout_ms,
        .knows_departures = c->link && kv_client_offers_watch(c->client),
        .serves_others = c10d_store_server(c) != NULL,
    };
    rdzv_machine_init(&c->machine, &settings, &self);
    c->has_machine = true;
    kv_client_set_resumes(c->client, true);
}

void c10d_begin(struct c10d *c) {
    c->is_reached = true;
    if (!c->join_wanted) {
        return;
    }
    init_machine(c);
    int rc = c10d_introduce(c);
    if (rc != MUSTER_OK) {
        c10d_fail(c, rc);
        return;
    }
    if (!kv_client_offers_watch(c->client) || c10d_store_connect(c, on_watcher_state, &c->watcher) != MUSTER_OK) {
        start_polling(c);
    }
    c10d_feed(c, RDZV_EVENT_JOIN);
    seed(c);
}

static int start(struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    struct c10d *c = calloc(1, sizeof *c);
    if (!c) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->state = c;
    c->rdzv = r;
    buf_init(&c->token, PICKLE_BYTES_MAX);
    buf_init(&c->text, PICKLE_BYTES_MAX);
    liveness_init(&c->liveness);
    rdzv_state_init(&c->world);
    (void)str_format(c->key, sizeof c->key, "torch.rendezvous.%s", o->run_id);
    return c10d_store_open(c);
}

/* ---- the agent's calls ---- */

static void join(struct rdzv *r) {
    struct c10d *c = r->state;
    c10d_round_abort(c);
    if (c->end.is_detached) {
        rdzv_tell_failed(r, c10d_end_fail_detached());
        return;
    }
    c10d_report_start(c);
    c->join_wanted = true;
    if (c->has_machine) {
        c10d_end_join(c);
    } else if (c->is_reached) {
        c10d_begin(c);
    }
}

static void barrier(struct rdzv *r) {
    c10d_round_barrier(r->state);
}

static void on_asked_before_leaving(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    if (c->asking) {
        c->asking = false;
        c->machine.lingers = reply->status == MUSTER_OK && reply->number == 0;
        c10d_feed(c, RDZV_EVENT_LEAVE);
    }
}

static void on_asked_in_vain(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct c10d *c = r->state;
    if (c->asking) {
        c->asking = false;
        obey(c, RDZV_VERDICT_GIVEN_UP);
    }
}

/* A member that is an agent of PyTorch's would not hear of it: it is asked for first. The host need not ask, since
 * nothing goes on without its store. In a big job, all of whose nodes may be leaving at once, nobody asks for so many.
 */
static void leave(struct c10d *c) {
    enum { ASK_NODES_MAX = 256 };
    bool asks = c->machine.phase == RDZV_PHASE_MEMBER && !c10d_store_server(c) && !c->rdzv->succeeded &&
                rdzv_state_count(&c->machine.state, RDZV_PARTICIPANT) <= ASK_NODES_MAX;
    if (!asks || c10d_master_ask(c, c->client, &c->machine.state, on_asked_before_leaving) != MUSTER_OK) {
        c10d_feed(c, RDZV_EVENT_LEAVE);
        return;
    }
    c->asking = true;
    rdzv_wait(c->rdzv, RDZV_TIMER_LEAVE, on_asked_in_vain, c->rdzv->options.conf.close_timeout_ms);
}

static void shutdown_node(struct rdzv *r, bool close_job) {
    struct c10d *c = r->state;
    if (r->failed) {
        linger(c, c->has_machine && rdzv_cause(r) != NULL);
        return;
    }
    c->ending = true;
    c->join_wanted = false;
    c10d_round_abort(c);
    c10d_report_stop(c);
    if (!c->has_machine || c->end.is_detached) {
        rdzv_tell_shutdown_done(r);
    } else if (close_job && c10d_end_closes(c)) {
        c10d_feed(c, RDZV_EVENT_CLOSE);
    } else {
        leave(c);
    }
}

static void stop(struct rdzv *r) {
    struct c10d *c = r->state;
    if (!c) {
        return;
    }
    c10d_round_stop(c);
    kv_client_close(c->watcher);
    c10d_store_close(c);
    if (c->has_machine) {
        rdzv_machine_done(&c->machine);
    }
    rdzv_state_done(&c->world);
    liveness_done(&c->liveness);
    buf_done(&c->token);
    buf_done(&c->text);
    free(c->protocol.nodes);
    free(c);
}

const struct rdzv_backend_table rdzv_c10d = {.nodes_max = RDZV_NODES_MAX,
                                             .orders_by_name = true,
                                             .start = start,
                                             .join = join,
                                             .worker_failed = c10d_cause_tell,
                                             .ask_cause = c10d_cause_ask,
                                             .barrier = barrier,
                                             .shutdown = shutdown_node,
                                             .settles_cause = true,
                                             .is_needed_after_failure = true,
                                             .stop = stop};
