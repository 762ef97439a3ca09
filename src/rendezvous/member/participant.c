/* An agent's part in a job; see participant.h. */
#include "rendezvous/member/participant.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

void participant_init(struct participant *p, struct rdzv *rdzv, const struct participant_way *way) {
    p->rdzv = rdzv;
    p->way = way;
}

/* ---- the end ---- */

void participant_end(struct participant *p) {
    static const enum rdzv_timer timers[] = {RDZV_TIMER_WAKE, RDZV_TIMER_REPORT, RDZV_TIMER_SYNC, RDZV_TIMER_SEARCH};
    p->phase = PARTICIPANT_OVER;
    rdzv_causes_arrived(p->rdzv);
    for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
        (void)uv_timer_stop(rdzv_timer(p->rdzv, timers[i]));
    }
    rdzv_tell_barrier_done(p->rdzv);
    rdzv_tell_shutdown_done(p->rdzv);
}

void participant_fail(struct participant *p, int status) {
    rdzv_tell_failed(p->rdzv, status);
    participant_end(p);
}

static struct participant *of_timer(const uv_timer_t *timer) {
    return ((struct rdzv *)timer->data)->state;
}

static void on_report(uv_timer_t *timer);

static void on_late(uv_timer_t *timer) {
    struct participant *p = of_timer(timer);
    char where[PARTICIPANT_WHERE_MAX];
    if (p->phase == PARTICIPANT_JOINING) {
        participant_fail(p, membership_late(p->rdzv, p->way->describe(p, where), p->waits_for));
    } else if (p->phase == PARTICIPANT_BARRIER && p->way->is_needed(p)) {
        log_info("this node is done; it stays while others need what it serves");
        participant_wait_at_most(p, RDZV_BARRIER_TIMEOUT_MS);
    } else if (p->phase == PARTICIPANT_BARRIER) {
        log_warning("not all nodes have ended within %d s of this one: waiting no longer",
                    RDZV_BARRIER_TIMEOUT_MS / 1000);
        p->phase = PARTICIPANT_DONE;
        p->waited_in_vain = true;
        rdzv_tell_barrier_done(p->rdzv);
    } else {
        participant_end(p);
    }
}

void participant_wait_at_most(struct participant *p, uint64_t ms) {
    rdzv_wait(p->rdzv, RDZV_TIMER_WAKE, on_late, ms);
}

static void start_reports(struct participant *p) {
    rdzv_report_start(p->rdzv, on_report);
}

void participant_spare_no_more(struct participant *p) {
    if (p->phase == PARTICIPANT_JOINING && p->is_spare) {
        p->is_spare = false;
        rdzv_report_spare_no_more(p->rdzv);
        start_reports(p);
        participant_wait_at_most(p, p->rdzv->options.conf.join_timeout_ms);
    }
}

/* ---- what it says ---- */

bool participant_say(struct participant *p, enum coordinator_kind kind, const char *why) {
    const struct coordinator_message message = {.kind = kind, .text = kv_slice_text(why)};
    return p->way->send(p, &message) == MUSTER_OK;
}

/* Who is here and who is missing, as the coordinator has just said. */
static void report(struct participant *p) {
    char where[PARTICIPANT_WHERE_MAX];
    p->is_report_due = false;
    if (p->is_spare) {
        rdzv_report_spare(p->rdzv, p->waits_for);
    } else {
        membership_report(p->rdzv, p->way->describe(p, where), p->waits_for);
    }
}

static void report_soon(struct participant *p) {
    if (p->is_report_due || p->way->ask(p) == 0) {
        report(p); /* it does not answer */
    } else {
        p->is_report_due = true; /* on_heard() */
    }
}

static void on_report(uv_timer_t *timer) {
    struct participant *p = of_timer(timer);
    if (!p->way->report_unreached(p)) {
        report_soon(p);
    }
}

/* ---- what the coordinator says ---- */

static void on_world(struct participant *p, const struct coordinator_message *message) {
    if (p->phase == PARTICIPANT_JOINING) { /* else this node is on its way out */
        p->phase = PARTICIPANT_MEMBER;
        membership_enter(&p->membership, p->rdzv, message);
        if (p->way->entered) {
            p->way->entered(p, &message->world);
        }
    }
}

void participant_end_barrier(struct participant *p) {
    p->phase = PARTICIPANT_DONE;
    p->is_closed = true;
    (void)uv_timer_stop(rdzv_timer(p->rdzv, RDZV_TIMER_WAKE));
    rdzv_tell_barrier_done(p->rdzv);
}

static void on_change(struct participant *p, const struct coordinator_message *message) {
    if (p->phase == PARTICIPANT_MEMBER) {
        membership_change(&p->membership, p->rdzv, message);
    } else if (p->phase == PARTICIPANT_BARRIER) {
        p->way->let_go(p);
    }
}

static void on_stop(struct participant *p, const struct coordinator_message *message) {
    if (p->phase == PARTICIPANT_MEMBER || p->phase == PARTICIPANT_BARRIER || p->phase == PARTICIPANT_JOINING) {
        membership_stop(&p->membership, p->rdzv, message);
    }
}

/* The last words of the worker that failed come in another CLOSED; and those of this node's own are still to be told.
 */
static bool awaits_words(const struct participant *p) {
    const struct rdzv_cause *cause = rdzv_cause(p->rdzv);
    return cause && !cause->is_told;
}

static void drop_way(struct participant *p) {
    if (p->way->closed && !awaits_words(p)) {
        p->way->closed(p);
    }
}

/* An older coordinator takes no notice of it. */
static void on_answer_due(uv_timer_t *timer) {
    struct participant *p = of_timer(timer);
    const struct coordinator_message nobody = {.kind = COORDINATOR_FAILED};
    if (!p->has_failed && p->phase == PARTICIPANT_OVER) {
        (void)p->way->send(p, &nobody);
    }
}

static void answer_soon(struct participant *p) {
    p->was_at_work = true;
    (void)uv_timer_start(rdzv_timer(p->rdzv, RDZV_TIMER_ANSWER), on_answer_due, RDZV_NOTHING_FAILED_MS, 0);
}

/* The node that told of it may have had restarts left. The job has none. */
static void note_final_cause(const struct participant *p, struct kv_slice text) {
    struct rdzv_cause cause;
    if (text.len > 0 && rdzv_cause_read((const char *)text.data, text.len, &cause) == MUSTER_OK) {
        cause.is_final = true;
        rdzv_note_cause(p->rdzv, &cause);
    }
}

static void on_closed(struct participant *p, const struct coordinator_message *message) {
    bool is_repeated = p->is_closed && p->phase == PARTICIPANT_OVER;
    p->is_closed = true;
    if (message->has_failed) {
        note_final_cause(p, message->cause);
    }
    switch (p->phase) {
    case PARTICIPANT_JOINING:
        if (p->was_spare && !message->has_failed) {
            rdzv_tell_spare_released(p->rdzv);
            p->phase = PARTICIPANT_IDLE;
            break;
        }
        /* fall through */
    case PARTICIPANT_MEMBER:
        if (message->has_failed && p->phase == PARTICIPANT_MEMBER && !p->has_failed) {
            answer_soon(p);
        }
        participant_fail(p,
                         status_fail(MUSTER_ECLOSED, "the job has %s: %.*s%s", message->has_failed ? "failed" : "ended",
                                     (int)message->text.len, (const char *)message->text.data,
                                     p->membership.last_round == 0 ? "; this agent had no part in it" : ""));
        drop_way(p);
        break;
    case PARTICIPANT_BARRIER:
        participant_end_barrier(p);
        break;
    case PARTICIPANT_ENDING:
        p->way->end(p);
        break;
    case PARTICIPANT_OVER:
        if (is_repeated) {
            drop_way(p);
        }
        break;
    case PARTICIPANT_IDLE:
    case PARTICIPANT_DONE:
        break;
    }
}

static void on_refused(struct participant *p, const struct coordinator_message *message) {
    /* The job has ended well while it was on its way from another coordinator. */
    if (message->status == MUSTER_ECLOSED && p->was_spare) {
        on_closed(p, message);
    } else {
        p->way->refused(p, message);
    }
}

static void on_spare(struct participant *p) {
    p->is_spare = p->was_spare = true;
    rdzv_tell_spare(p->rdzv);
    (void)uv_timer_stop(rdzv_timer(p->rdzv, RDZV_TIMER_WAKE)); /* as long as the job lasts */
    (void)uv_timer_start(rdzv_timer(p->rdzv, RDZV_TIMER_REPORT), on_report, RDZV_SPARE_REPORT_MS, RDZV_SPARE_REPORT_MS);
    p->is_report_due = false;
    report_soon(p);
}

static void on_heard(struct participant *p, const struct coordinator_message *message) {
    if (p->phase == PARTICIPANT_BARRIER && p->heard_until_known > 0 && --p->heard_until_known == 0) {
        rdzv_note_done(p->rdzv);
    }
    (void)str_format(p->waits_for, sizeof p->waits_for, "%.*s", (int)message->text.len,
                     (const char *)message->text.data);
    if (p->is_report_due && p->phase == PARTICIPANT_JOINING) {
        report(p);
    }
}

void participant_heard(struct participant *p, const struct coordinator_message *message) {
    switch (message->kind) {
    case COORDINATOR_WORLD:
        on_world(p, message);
        return;
    case COORDINATOR_CHANGE:
        on_change(p, message);
        return;
    case COORDINATOR_ALL_DONE:
        if (p->phase == PARTICIPANT_BARRIER) {
            participant_end_barrier(p);
        }
        return;
    case COORDINATOR_CLOSED:
        on_closed(p, message);
        return;
    case COORDINATOR_STOP:
        on_stop(p, message);
        return;
    case COORDINATOR_REFUSED:
        on_refused(p, message);
        return;
    case COORDINATOR_SPARE:
        on_spare(p);
        return;
    case COORDINATOR_HOST_DONE:
        p->is_host_done = true;
        return;
    case COORDINATOR_LET_IN:
        participant_spare_no_more(p);
        return;
    case COORDINATOR_HEARD:
        on_heard(p, message);
        return;
    default:
        return; /* answers to what this agent does not ask; the codec lets no agent's kinds through */
    }
}

/* ---- the agent's calls ---- */

void participant_join(struct participant *p) {
    p->phase = PARTICIPANT_JOINING;
    p->is_spare = p->was_spare = p->has_failed = p->was_at_work = p->is_report_due = false;
    p->waits_for[0] = '\0';
    rdzv_report_spare_no_more(p->rdzv);
    start_reports(p);
    participant_wait_at_most(p, p->rdzv->options.conf.join_timeout_ms);
}

void participant_worker_failed(struct rdzv *r, const struct rdzv_cause *cause) {
    struct participant *p = r->state;
    char why[RDZV_CAUSE_TEXT_MAX];
    bool was_ended_by_one = (p->has_failed || p->was_at_work) && p->is_closed && p->phase == PARTICIPANT_OVER;
    if (p->phase != PARTICIPANT_MEMBER && !was_ended_by_one) {
        return;
    }
    char *record = rdzv_cause_write_within(cause, COORDINATOR_CAUSE_BYTES_MAX);
    (void)str_format(why, sizeof why, "rank %u (pid %lld) has failed: %s", cause->rank, (long long)cause->pid,
                     cause->how);
    const struct coordinator_message message = {.kind = COORDINATOR_FAILED,
                                                .is_final = cause->is_final,
                                                .cause = kv_slice_text(record ? record : ""),
                                                .text = kv_slice_text(why)};
    bool is_sent = p->way->send(p, &message) == MUSTER_OK;
    if (is_sent && cause->is_final && !p->is_closed && !r->options.survivors_continue) {
        rdzv_cause_sent(r); /* a CLOSED answers it */
    }
    p->has_failed |= is_sent;
    free(record);
}

bool participant_takes_part(const struct participant *p) {
    return p->phase == PARTICIPANT_MEMBER || p->phase == PARTICIPANT_BARRIER ||
           (p->phase == PARTICIPANT_JOINING && !p->is_spare);
}

bool participant_preempt(struct rdzv *r, uint64_t grace_ms, const char *why) {
    struct participant *p = r->state;
    const struct coordinator_message message = {
        .kind = COORDINATOR_PREEMPT, .grace_ms = grace_ms, .text = kv_slice_text(why)};
    if (!participant_takes_part(p)) {
        return false;
    }
    membership_note_stop(&p->membership, r, grace_ms);
    return p->way->send(p, &message) == MUSTER_OK;
}

void participant_barrier(struct rdzv *r) {
    struct participant *p = r->state;
    if (p->phase != PARTICIPANT_MEMBER || !participant_say(p, COORDINATOR_DONE, "")) {
        rdzv_tell_barrier_done(r);
        return;
    }
    p->phase = PARTICIPANT_BARRIER;
    if (p->membership.has_changed) { /* it was told that already, and is told nothing more */
        p->way->let_go(p);
        return;
    }
    p->heard_until_known = p->way->ask(p);
    participant_wait_at_most(p, RDZV_BARRIER_TIMEOUT_MS);
}

bool participant_say_farewell(struct participant *p, bool close_job) {
    (void)uv_timer_stop(rdzv_timer(p->rdzv, RDZV_TIMER_REPORT));
    close_job = close_job && !p->waited_in_vain; /* they go on */
    p->phase = PARTICIPANT_ENDING; /* also after a failure: the way may serve others, and has its own end */
    const struct coordinator_message message = {
        .kind = close_job ? COORDINATOR_CLOSE : COORDINATOR_LEAVE,
        .has_failed = close_job && !p->rdzv->succeeded && p->membership.stop_by_ms == 0,
        .text = kv_slice_text(close_job           ? ""
                              : p->waited_in_vain ? "it was done"
                                                  : "the node was told to end")};
    return !p->is_closed && p->way->send(p, &message) == MUSTER_OK;
}
