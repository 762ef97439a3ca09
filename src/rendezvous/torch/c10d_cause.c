/* Failures over the shared store: what this node tells the others of one, and what it reads of theirs.
 *
 * One key a round holds the failure that counts: that of the node whose record the store has had first. What follows
 * from it for the job is in c10d_end.c and job_end.c. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"

#include <muster/status.h>

void c10d_cause_key(const struct c10d *c, char key[2 * C10D_KEY_MAX]) {
    (void)str_format(key, (size_t)2 * C10D_KEY_MAX, "%s.%lld/muster/failed", c->key, (long long)c->world.round);
}

static void on_cause_stored(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    rdzv_cause_answered(c->rdzv, reply);
}

void c10d_cause_tell(struct rdzv *r, const struct rdzv_cause *cause) {
    struct c10d *c = r->state;
    char key[2 * C10D_KEY_MAX];
    if (!c->client || !c->has_machine || c->end.is_detached || rdzv_state_count(&c->world, RDZV_PARTICIPANT) < 2) {
        return;
    }
    char *text = rdzv_cause_write(cause);
    c10d_cause_key(c, key);
    const char *before = c->end.told_cause ? c->end.told_cause : "";
    if (text && kv_client_compare_set(c->client, key, kv_slice_text(before), kv_slice_text(text), on_cause_stored, c) ==
                    MUSTER_OK) {
        free(c->end.told_cause);
        c->end.told_cause = text;
        rdzv_cause_sent(r);
    } else {
        free(text);
    }
    /* The others end now, not when this node's other workers have been stopped. */
    if (cause->is_final && !c->end.has_failed) {
        c->end.has_failed = c->ending = true;
        c10d_feed(c, RDZV_EVENT_CLOSE);
    }
}

static void on_cause_read(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    bool is_cause = reply->status == MUSTER_OK && rdzv_note_cause_text(c->rdzv, reply->values[0]);
    bool is_awaited = c->end.looks_for_cause && !c->in_barrier && !c->ending;
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

static void on_cause_for_spare(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    if (reply->status == MUSTER_OK && rdzv_note_cause_text(c->rdzv, reply->values[0]) && c->rdzv->cause.is_final) {
        c10d_fail_job(c, rdzv_fail_by_cause(c->rdzv));
    } else {
        rdzv_tell_spare_released(c->rdzv);
    }
}

void c10d_cause_release_spare(struct c10d *c) {
    char key[2 * C10D_KEY_MAX];
    c->world.round = c->machine.state.round; /* it had no part in it, and knows it from outside */
    c10d_cause_key(c, key);
    if (kv_client_find(c->client, key, on_cause_for_spare, c) != MUSTER_OK) {
        rdzv_tell_spare_released(c->rdzv);
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
