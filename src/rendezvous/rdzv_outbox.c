/* What backends tell the agent: kept until the loop's next turn, so that no callback runs inside a call. And the time
 * that they wait, in which an absence of this process does not count. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/backend.h"
#include "rendezvous/round/exchange.h"

#include <muster/status.h>

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
    rdzv_report_spare_no_more(r);
    r->lost[0] = '\0';
    rdzv_forget_cause(r); /* of the round before: the store may have answered after this node had left it */
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

void rdzv_withdraw_world(struct rdzv *r) {
    r->has_world = r->has_change = r->is_world_held = false;
    /* When the job has failed the agent may not have been told yet, and will ask for the cause. One that was to be
     * followed by a restart is no cause of what came instead, such as the loss of the store. */
    if (!r->failed || !r->has_cause || !r->cause.is_final) {
        rdzv_forget_cause(r);
    }
}

void rdzv_note_lost(struct rdzv *r, const char *why) {
    (void)str_format(r->lost, sizeof r->lost, "%s", why);
}

const char *rdzv_lost(const struct rdzv *r) {
    return r->lost;
}

void rdzv_tell_change(struct rdzv *r, enum rdzv_change change, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(r->change_why, sizeof r->change_why, format, args);
    va_end(args);
    if (change == RDZV_NODE_LEFT) {
        rdzv_note_lost(r, r->change_why);
    }
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

void rdzv_report_spare(struct rdzv *r, const char *who) {
    char since[16] = "";
    int64_t now_us = clock_realtime_us();
    bool is_first = r->spare_since_us == 0;
    r->spare_since_us = is_first ? now_us : r->spare_since_us;
    time_t seconds = (time_t)(r->spare_since_us / CLOCK_US_PER_S);
    struct tm local;
    if (localtime_r(&seconds, &local)) {
        (void)strftime(since, sizeof since, "%H:%M:%S", &local);
    }
    log_warning("%s of the job '%s' since %s%s%s",
                is_first ? "all places are taken; waiting as a spare" : "still waiting as a spare", r->options.run_id,
                since, who[0] ? "; " : "", who);
}

void rdzv_report_spare_no_more(struct rdzv *r) {
    r->spare_since_us = 0;
}

int rdzv_refuse_second(const struct rdzv *r, const char *where, const char *holder) {
    const struct rdzv_options *o = &r->options;
    char others[VISITORS_TEXT_SIZE];
    bool is_shared = o->backend == RDZV_BACKEND_ETCD_V2 || o->backend == RDZV_BACKEND_ETCD || o->conf.store_is_file;
    return status_fail(MUSTER_ELIMIT,
                       "the job '%s' at %s has one node (--nnodes=1%s), and it runs already: %s. Another "
                       "job needs %s, or --standalone%s",
                       o->run_id, where,
                       o->not_given && strstr(o->not_given, "--nnodes=") ? ", since it is not given here" : "", holder,
                       is_shared ? "another --rdzv-id" : "another port in --rdzv-endpoint, or another --rdzv-id",
                       visitors_text(&r->visitors, others));
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

void rdzv_note_done(const struct rdzv *r) {
    if (r->succeeded && !r->has_barrier_done) {
        log_info("this node's workers have succeeded; waiting for the other nodes to end");
    }
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
