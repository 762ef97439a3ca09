/* How a static job ends: a failure for good, which the others hear of, and the exit barrier. See static.c. */
#include "base/log.h"
#include "base/status.h"
#include "rendezvous/torch/static_impl.h"

/* ---- failures ----
 *
 * One key holds the failure for good that counts (failures.h). */

static void on_cause(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    bool is_cause = reply->status == MUSTER_OK && rdzv_note_cause_text(s->rdzv, reply->values[0]);
    if (is_cause &&
        s->stage != STATIC_BARRIER) { /* a node that is done states nothing: the judge does not wait for it */
        failures_read(&s->rdzv->failures, reply->values[0]);
    }
    if (is_cause && rdzv_cause_is_remote(s->rdzv) && s->stage != STATIC_BARRIER && !s->has_failed &&
        !s->rdzv->options.survivors_continue && !s->rdzv->failed) {
        static_fail(s, rdzv_fail_by_cause(s->rdzv));
    }
}

void static_end_ask_cause(struct rdzv *r) {
    struct static_rdzv *s = r->state;
    char key[STATIC_KEY_MAX];
    static_key(s, key, STATIC_KEY_FAILED);
    if (s->client) {
        (void)kv_client_find(s->client, key, on_cause, s);
    }
}

static void on_sync(uv_timer_t *timer) {
    static_end_ask_cause(timer->data);
}

/* Of a store of PyTorch's nobody hears: it is asked once a second. */
void static_end_watch_failures(struct static_rdzv *s) {
    enum { SYNC_MS = 1000 };
    if (!static_is_single(s) && !s->rdzv->options.survivors_continue && s->client && !s->watcher) {
        (void)uv_timer_start(rdzv_timer(s->rdzv, RDZV_TIMER_SYNC), on_sync, SYNC_MS, SYNC_MS);
    }
}

static void on_node_known(void *ctx, const struct kv_reply *reply) {
    struct static_rdzv *s = ctx;
    struct static_says says;
    bool is_at_work =
        reply->status == MUSTER_OK && static_says_read(reply->values[0], &says) && says.what != STATIC_SAYS_DONE;
    if (reply->status == MUSTER_OK && !is_at_work) {
        failures_excuse(&s->rdzv->failures, 1);
    }
}

/* Agents of PyTorch's and nodes that are done state nothing. In a store of PyTorch's nobody says who is which. */
static void excuse_others(void *ctx) {
    enum { ASK_NODES_MAX = 256 };
    struct static_rdzv *s = ctx;
    char name[STATIC_KEY_MAX], key[STATIC_KEY_MAX];
    const struct rdzv_options *o = &s->rdzv->options;
    for (uint32_t rank = 0; s->watcher && rank < o->max_nodes && o->max_nodes <= ASK_NODES_MAX; rank++) {
        if (rank != o->node_rank) {
            (void)str_format(name, sizeof name, STATIC_KEY_NODE "%u", rank);
            static_key(s, key, name);
            (void)kv_client_find(s->client, key, on_node_known, s);
        }
    }
}

static int connect_once_more(void *ctx, struct kv_client **out) {
    return static_connect((struct static_rdzv *)ctx, out);
}

void static_end_begin_round(struct static_rdzv *s) {
    char key[STATIC_KEY_MAX];
    static_key(s, key, STATIC_KEY_FAILED);
    const struct failures_options options = {.client = s->client,
                                             .key = key,
                                             .other_count = s->rdzv->options.max_nodes - 1,
                                             .only_final = true,
                                             .connect = connect_once_more,
                                             .on_judging = excuse_others,
                                             .ctx = s};
    if (!static_is_single(s) && failures_begin(&s->rdzv->failures, s->rdzv, &options) != MUSTER_OK) {
        log_warning("the other nodes will not hear of a failure: %s", muster_detail());
    }
}

/* Restarts are left: the others need not wait until this node's other workers have ended. */
void static_end_worker_failed(struct rdzv *r, const struct rdzv_cause *cause) {
    struct static_rdzv *s = r->state;
    if (static_is_single(s) || !s->client) {
        return;
    }
    failures_tell(&r->failures, cause);
    if (cause->is_final) {
        s->has_failed = true;
    } else if (s->stage == STATIC_WORKING && s->word.phase == STATIC_RUNNING) {
        static_say(s, STATIC_SAYS_BROKE, s->round);
    }
}

/* ---- the exit barrier ---- */

void static_end_barrier_over(struct static_rdzv *s) {
    static_drop(s);
    rdzv_tell_barrier_done(s->rdzv);
}

static void on_barrier(void *ctx, int status) {
    if (status != MUSTER_OK) {
        log_info("the exit barrier ended early (harmless): %s", muster_detail());
    }
    static_end_barrier_over(ctx);
}

static void on_known(void *ctx, const struct kv_reply *reply) {
    const struct static_rdzv *s = ctx;
    if (reply->status == MUSTER_OK && s->stage == STATIC_BARRIER) {
        rdzv_note_done(s->rdzv);
    }
}

/* The host hears what this node says by another connection than the barrier's: an answer there comes after it. */
static void on_counted(void *ctx) {
    struct static_rdzv *s = ctx;
    if (s->client) {
        (void)exit_barrier_ask_count(s->client, s->prefix, on_known, s);
    }
}

/* The host stays while somebody works, as the others need its store; so does everybody where survivors go on. */
static uint64_t barrier_timeout_ms(const struct static_rdzv *s) {
    bool sees_all_go = static_is_host(s) && static_round_knows_all(&s->host.round);
    return sees_all_go || s->rdzv->options.survivors_continue ? 0 : RDZV_BARRIER_TIMEOUT_MS; /* 0: none */
}

void static_end_barrier(struct rdzv *r) {
    struct static_rdzv *s = r->state;
    static_drop(s);
    if (static_is_single(s) || !s->client || static_need_waiter(s) != MUSTER_OK) {
        rdzv_tell_barrier_done(r);
        return;
    }
    s->stage = STATIC_BARRIER;
    static_say(s, STATIC_SAYS_DONE, s->round);
    const struct exit_barrier_options options = {.client = s->waiter,
                                                 .waiter = s->waiter,
                                                 .prefix = s->prefix,
                                                 .expected_count = r->options.max_nodes,
                                                 .timeout_ms = barrier_timeout_ms(s),
                                                 .on_counted = on_counted,
                                                 .on_over = on_barrier, /* who does not come is known to the host */
                                                 .ctx = s};
    if (exit_barrier_begin(&s->exit_barrier, &options) != MUSTER_OK) {
        static_end_barrier_over(s);
    }
}

/* ---- the end of this node's part ---- */

static void on_linger(uv_timer_t *timer) {
    rdzv_tell_shutdown_done(timer->data);
}

void static_end_look(struct static_rdzv *s) {
    if (s->lingers && static_round_is_alone(&s->host.round, s->rdzv->options.node_rank)) {
        rdzv_tell_shutdown_done(s->rdzv);
    }
}

/* There is nothing to close and no list to leave. The host of a job that has failed on any node, or has given up, stays
 * until the others have gone, as they have to read why; but not for long. */
void static_end_shutdown(struct rdzv *r, bool close_job) {
    enum { LINGER_MS = 1000 };
    struct static_rdzv *s = r->state;
    (void)close_job;
    static_drop(s);
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_REPORT));
    s->lingers = static_is_host(s) && s->link && (s->has_failed || s->host.has_failed || s->host.has_given_up);
    if (s->lingers) {
        (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_LINGER), on_linger, LINGER_MS, 0);
        static_end_look(s);
    } else {
        rdzv_tell_shutdown_done(r);
    }
}
