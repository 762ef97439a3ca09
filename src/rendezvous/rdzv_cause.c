/* Which failure of the round counts, as far as this node knows, and whether all is known of it. */
#include "base/status.h"
#include "rendezvous/backend.h"

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

void rdzv_forget_cause(struct rdzv *r) {
    r->has_cause = r->is_cause_reported = false;
    r->causes_on_their_way = 0;
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_CAUSE));
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
