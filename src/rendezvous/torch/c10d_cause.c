/* Failures over the shared store: what this node tells the others of one, and what it reads of theirs.
 *
 * One key a round holds the failure that counts (failures.h). What follows from it for the job is in c10d_end.c and
 * job_end.c. */
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"

#include <muster/status.h>

void c10d_cause_key(const struct c10d *c, char key[2 * C10D_KEY_MAX]) {
    (void)str_format(key, (size_t)2 * C10D_KEY_MAX, "%s.%lld/muster/failed", c->key, (long long)c->world.round);
}

/* ---- who states something ---- */

static void on_member_known(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    if (reply->status == MUSTER_OK && !c10d_introduction_is_at_work(reply->values[0])) {
        failures_excuse(&c->rdzv->failures, 1);
    }
}

/* Agents of PyTorch's and nodes that are done do not. In a big job a request for each node takes longer than to wait.
 */
static void excuse_others(void *ctx) {
    enum { ASK_NODES_MAX = 256 };
    struct c10d *c = ctx;
    char key[C10D_INTRODUCTION_MAX];
    for (size_t i = 0; i < c->world.member_count && c->world.member_count <= ASK_NODES_MAX; i++) {
        const struct rdzv_member *at = &c->world.members[i];
        if ((at->lists & RDZV_PARTICIPANT) && rdzv_node_compare(&at->node, &c->machine.self) != 0) {
            c10d_introduction(c, &at->node, key);
            (void)kv_client_find(c->client, key, on_member_known, c);
        }
    }
}

static void on_connection(void *ctx, int status) {
    (void)ctx;
    (void)status; /* its requests are answered with the loss */
}

static int connect_once_more(void *ctx, struct kv_client **out) {
    return c10d_store_connect(ctx, on_connection, out);
}

static void close_when_told(void *ctx) {
    struct c10d *c = ctx;
    if (c->end.closes_when_told && !failures_is_writing(&c->rdzv->failures)) {
        c->end.closes_when_told = false;
        c10d_feed(c, RDZV_EVENT_CLOSE);
    }
}

void c10d_cause_begin_round(struct c10d *c) {
    char key[2 * C10D_KEY_MAX];
    size_t count = rdzv_state_count(&c->world, RDZV_PARTICIPANT);
    c10d_cause_key(c, key);
    const struct failures_options options = {.client = c->client,
                                             .key = key,
                                             .other_count = (uint32_t)count - 1,
                                             .connect = connect_once_more,
                                             .on_written = close_when_told,
                                             .on_judging = excuse_others,
                                             .ctx = c};
    if (failures_begin(&c->rdzv->failures, c->rdzv, &options) != MUSTER_OK) {
        log_warning("the other nodes will not hear of a failure: %s", muster_detail());
    }
}

/* ---- a failure of this node's ---- */

void c10d_cause_tell(struct rdzv *r, const struct rdzv_cause *cause) {
    struct c10d *c = r->state;
    if (!c->client || !c->has_machine || c->end.is_detached || rdzv_state_count(&c->world, RDZV_PARTICIPANT) < 2) {
        return;
    }
    failures_tell(&r->failures, cause);
    /* The others end now, not when this node's other workers have been stopped. But they look for the record when the
     * job is closed: it is there by then. */
    if (cause->is_final && !c->end.has_failed) {
        c->end.has_failed = c->end.closes_when_told = c->ending = true;
        close_when_told(c);
    }
}

/* ---- failures of others ---- */

static void on_cause_read(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    bool is_cause = reply->status == MUSTER_OK && rdzv_note_cause_text(c->rdzv, reply->values[0]);
    bool is_awaited = c->end.looks_for_cause && !c->in_barrier && !c->ending;
    if (is_cause && !c->in_barrier) { /* a node that is done states nothing: the judge does not wait for it */
        failures_read(&c->rdzv->failures, reply->values[0]);
    }
    c->end.looks_for_cause = false;
    if (is_awaited && is_cause && c->rdzv->cause.is_final) {
        c10d_fail_job(c, rdzv_fail_by_cause(c->rdzv));
    } else if (is_awaited && c->machine.phase == RDZV_PHASE_OVER) {
        c10d_fail_closed(c);
    }
}

static bool read_cause(struct c10d *c) {
    char key[2 * C10D_KEY_MAX];
    c10d_cause_key(c, key);
    return c->client && kv_client_find(c->client, key, on_cause_read, c) == MUSTER_OK;
}

/* All nodes of the world that this one was a spare of have come to the exit barrier: nothing else is a success. */
static void on_counted_for_spare(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    const struct rdzv_machine *m = &c->machine;
    if (reply->status == MUSTER_OK && m->awaited_count > 0 && reply->number >= (int64_t)m->awaited_count) {
        rdzv_tell_spare_released(c->rdzv);
    } else if (reply->status == MUSTER_OK) {
        c10d_fail_job(c, status_fail(MUSTER_ECLOSED,
                                     "the job '%s', of which this node was a spare, has ended, and not all of its "
                                     "nodes have succeeded: %lld of %zu",
                                     c->rdzv->options.run_id, (long long)reply->number, m->awaited_count));
    } else {
        c10d_fail_job(c, status_prefix(reply->status, "the job has ended, and this spare node cannot learn how"));
    }
}

static void on_cause_for_spare(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    if (reply->status == MUSTER_OK && rdzv_note_cause_text(c->rdzv, reply->values[0]) && c->rdzv->cause.is_final) {
        c10d_fail_job(c, rdzv_fail_by_cause(c->rdzv));
    } else if (c10d_round_ask_count(c, c->world.round, on_counted_for_spare) != MUSTER_OK) {
        c10d_fail_closed(c);
    }
}

void c10d_cause_release_spare(struct c10d *c) {
    char key[2 * C10D_KEY_MAX];
    c->world.round = c->machine.awaited_round; /* it had no part in it, and knows it from outside */
    c10d_cause_key(c, key);
    if (kv_client_find(c->client, key, on_cause_for_spare, c) != MUSTER_OK) {
        c10d_fail_closed(c);
    }
}

void c10d_cause_ask(struct rdzv *r) {
    (void)read_cause(r->state);
}

void c10d_cause_look(struct c10d *c) {
    bool has_world = rdzv_state_count(&c->world, RDZV_PARTICIPANT) > 1 && !c->rdzv->options.survivors_continue;
    bool is_over = c->machine.phase == RDZV_PHASE_OVER;
    if (c->end.looks_for_cause || c->ending || c->rdzv->failed || (c->end.has_looked && !is_over)) {
        return;
    }
    c->end.has_looked = true;
    c->end.looks_for_cause = has_world && read_cause(c);
    if (!c->end.looks_for_cause && is_over) {
        c10d_fail_closed(c);
    }
}
