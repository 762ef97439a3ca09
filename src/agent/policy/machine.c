/* The supervision table; see machine.h. Each cell is a small function; an empty cell ignores its event. */
#include "agent/policy/machine.h"

#include <assert.h>
#include <signal.h>

typedef void cell_fn(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out);

static void act(struct agent_actions *out, enum agent_action_kind kind, int64_t number) {
    assert(out->count < AGENT_ACTIONS_MAX);
    out->list[out->count++] = (struct agent_action){.kind = kind, .number = number};
}

/* Everything that is left of the group must go, then the logs are drained. */
static void kill_rest(struct agent_machine *m, struct agent_actions *out) {
    m->any_failed = m->any_failed || m->running_count > 0;
    m->state = AGENT_STATE_KILLING;
    act(out, AGENT_ACTION_STOP_TIMER, 0);
    act(out, AGENT_ACTION_KILL_ALL, 0);
}

/* Asks the running workers to end with `signal_number`, for the reason `outcome`. */
static void stop_workers(struct agent_machine *m, enum agent_outcome outcome, int signal_number,
                         struct agent_actions *out) {
    m->outcome = outcome;
    if (m->running_count == 0) {
        kill_rest(m, out);
        return;
    }
    act(out, AGENT_ACTION_SIGNAL_WORKERS, signal_number);
    if (m->stop_timeout_ms == 0) {
        kill_rest(m, out);
        return;
    }
    m->state = AGENT_STATE_STOPPING;
    act(out, AGENT_ACTION_START_TIMER, m->stop_timeout_ms);
}

static void close_with(struct agent_machine *m, enum agent_outcome outcome, enum agent_action_kind how,
                       struct agent_actions *out) {
    m->outcome = outcome;
    m->state = AGENT_STATE_CLOSING;
    act(out, how, 0);
}

static void world_start(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    m->state = AGENT_STATE_RUNNING;
    m->outcome = AGENT_OUTCOME_NONE;
    m->attempt_started_ms = event->now_ms;
    m->pause_ms = 0;
    m->running_count = m->worker_count;
    m->any_succeeded = m->any_failed = false;
    m->world_count++;
    act(out, AGENT_ACTION_START_WORKERS, 0);
}

static void joining_spare(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    close_with(m, AGENT_OUTCOME_SPARE, AGENT_ACTION_LEAVE_JOB, out);
}

/* The job grants no other attempt after the failure of this node's workers: it is the last one, and told as such. */
static bool is_denied(const struct agent_machine *m) {
    return m->job_counts && m->outcome == AGENT_OUTCOME_RESTART_FAILURE;
}

static void joining_failed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    m->outcome = is_denied(m) ? AGENT_OUTCOME_FAILED : AGENT_OUTCOME_RDZV_LOST;
    m->state = AGENT_STATE_DRAINING;
    act(out, AGENT_ACTION_AWAIT_CAUSE, 0);
}

static void joining_signal(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    m->signal_number = event->number;
    close_with(m, AGENT_OUTCOME_SIGNALLED, AGENT_ACTION_LEAVE_JOB, out);
}

/* What the workers left behind gets SIGTERM, and as long as a worker would to end. A success is final: neither this nor
 * what the others do changes it. The timer runs from the start: it may be that nobody can be told (a guardian that is
 * stopped, a /proc that shows no processes), and LINGERING never comes. */
static void end_well(struct agent_machine *m, struct agent_actions *out) {
    m->outcome = AGENT_OUTCOME_SUCCESS;
    act(out, AGENT_ACTION_DISMISS, 0); /* without patience as well: it says who is left alone by what follows */
    if (m->stop_timeout_ms == 0) {
        kill_rest(m, out);
        return;
    }
    m->state = AGENT_STATE_ENDING;
    act(out, AGENT_ACTION_START_TIMER, m->stop_timeout_ms + AGENT_QUIET_MS);
}

static void ending_lingering(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    act(out, AGENT_ACTION_START_TIMER, m->stop_timeout_ms);
}

static void ending_hurry(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    kill_rest(m, out);
}

/* A worker has ended. In the states that hear of it one at least runs: the last one to end leads out of them. */
static void count_down(struct agent_machine *m) {
    assert(m->running_count > 0);
    m->running_count--;
}

static void running_succeeded(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    count_down(m);
    m->any_succeeded = true;
    if (m->running_count == 0) {
        end_well(m, out);
    }
}

/* Where the job counts restarts and has none left, it will say so: nothing is gained by a pause before that. */
static void note_attempt(struct agent_machine *m, const struct agent_event *event, bool failed) {
    int64_t pause_ms = agent_backoff_ended(&m->backoff, event->now_ms - m->attempt_started_ms, failed);
    m->pause_ms = m->restarts_left > 0 ? pause_ms : 0;
}

static void running_failed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    count_down(m);
    m->any_failed = true;
    if (m->survivors_continue && m->running_count > 0) {
        return;
    }
    if (m->survivors_continue && m->any_succeeded) {
        end_well(m, out);
        return;
    }
    bool again = (m->job_counts || m->restarts_left > 0) && !m->rdzv_lost;
    note_attempt(m, event, true);
    stop_workers(m, again ? AGENT_OUTCOME_RESTART_FAILURE : AGENT_OUTCOME_FAILED, SIGTERM, out);
}

/* What a worker that cannot end still holds, a new one on this node would want: no restart. */
static void running_stuck(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    stop_workers(m, AGENT_OUTCOME_FAILED, SIGTERM, out);
}

static void running_not_started(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    count_down(m);
    stop_workers(m, AGENT_OUTCOME_NOT_STARTED, SIGTERM, out);
}

/* Survivors shrink by themselves when a node leaves; one that arrives waits for the next round. */
static void running_changed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    if (!m->survivors_continue) {
        note_attempt(m, event, false);
        stop_workers(m, AGENT_OUTCOME_RESTART_CHANGE, SIGTERM, out);
    }
}

static void running_cut_off(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    if (!m->survivors_continue) {
        note_attempt(m, event, false);
        m->outcome = AGENT_OUTCOME_RESTART_CHANGE;
        act(out, AGENT_ACTION_SIGNAL_WORKERS, SIGTERM);
        kill_rest(m, out);
    }
}

static void running_rdzv_failed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    if (m->survivors_continue) {
        m->rdzv_lost = true;
        return;
    }
    stop_workers(m, AGENT_OUTCOME_RDZV_LOST, SIGTERM, out);
}

static void running_signal(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    m->signal_number = event->number;
    stop_workers(m, AGENT_OUTCOME_SIGNALLED, event->number, out);
}

/* ---- pre-emption ----
 *
 * Workers are asked to stop at a point of their own choice (docs/schedulers.md) for the first half of the time that is
 * left, told to by SIGTERM for the second, and killed at its end. Or they get SIGTERM at once, and all of the time. */

/* A node that was told by its own scheduler tells the others; one that was told by another knows that all have been. */
static void learn_preemption(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    if (event->kind == AGENT_EVENT_PREEMPT) {
        act(out, AGENT_ACTION_TELL_PREEMPTION, event->number);
    } else {
        m->stops_everywhere = true;
    }
}

static void joining_preempted(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    learn_preemption(m, event, out);
    close_with(m, AGENT_OUTCOME_PREEMPTED, AGENT_ACTION_LEAVE_JOB, out);
}

static void running_preempted(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    int64_t half_ms = m->preempt_term_now ? event->number : event->number / 2;
    learn_preemption(m, event, out);
    m->outcome = AGENT_OUTCOME_PREEMPTED;
    m->state = AGENT_STATE_STOPPING;
    m->preempt_rest_ms = event->number - half_ms;
    act(out, AGENT_ACTION_REQUEST_STOP, event->number);
    if (m->preempt_term_now) {
        act(out, AGENT_ACTION_SIGNAL_WORKERS, SIGTERM);
    }
    act(out, AGENT_ACTION_START_TIMER, half_ms);
}

static bool restarts(const struct agent_machine *m) {
    return m->outcome == AGENT_OUTCOME_RESTART_FAILURE || m->outcome == AGENT_OUTCOME_RESTART_CHANGE;
}

/* A restart that was on its way does not come; the workers have their signal already. */
static void stopping_preempted(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    if (restarts(m)) {
        learn_preemption(m, event, out);
        m->outcome = AGENT_OUTCOME_PREEMPTED;
        act(out, AGENT_ACTION_START_TIMER, event->number < m->stop_timeout_ms ? event->number : m->stop_timeout_ms);
    } else if (m->outcome == AGENT_OUTCOME_PREEMPTED && event->kind == AGENT_EVENT_STOP) {
        m->stops_everywhere = true;
    }
}

/* No worker is left to be asked. Those of this node may have stopped, all well, because of another node's request that
 * the workers heard first: the job has not ended, then. */
static void ending_preempted(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    bool was_told = event->kind == AGENT_EVENT_STOP;
    if (restarts(m) || m->outcome == AGENT_OUTCOME_SUCCESS) {
        learn_preemption(m, event, out);
    }
    if (restarts(m) || (m->outcome == AGENT_OUTCOME_SUCCESS && was_told)) {
        m->outcome = AGENT_OUTCOME_PREEMPTED;
    }
    m->stops_everywhere = m->stops_everywhere || was_told;
}

static void stopping_ended(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    m->any_failed = m->any_failed || event->kind == AGENT_EVENT_WORKER_FAILED;
    count_down(m);
    if (m->running_count == 0) {
        kill_rest(m, out);
    }
}

/* A worker that could not be started turns a restart into a failure: the next attempt would meet the same. */
static void stopping_not_started(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    if (m->outcome == AGENT_OUTCOME_RESTART_FAILURE || m->outcome == AGENT_OUTCOME_RESTART_CHANGE) {
        m->outcome = AGENT_OUTCOME_NOT_STARTED;
    }
    stopping_ended(m, event, out);
}

/* Somebody has no time left. It remains a pre-emption. */
static void hurry(struct agent_machine *m, int signal_number, int64_t rest_ms, struct agent_actions *out) {
    m->preempt_rest_ms = 0;
    act(out, AGENT_ACTION_SIGNAL_WORKERS, signal_number);
    act(out, AGENT_ACTION_START_TIMER, rest_ms);
}

/* Workers that were asked to stop cannot agree with those of a world that others leave. Where all have been told, they
 * only leave it before this node does. */
static void stopping_changed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    if (m->outcome == AGENT_OUTCOME_PREEMPTED && m->preempt_rest_ms > 0 && !m->stops_everywhere) {
        hurry(m, SIGTERM, m->preempt_rest_ms < m->stop_timeout_ms ? m->preempt_rest_ms : m->stop_timeout_ms, out);
    }
}

static void stopping_cut_off(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    kill_rest(m, out);
}

/* During a stop of another kind the signal takes over; a second signal ends the patience. */
static void stopping_signal(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    if (m->outcome == AGENT_OUTCOME_PREEMPTED && m->preempt_rest_ms > 0) {
        hurry(m, event->number, m->stop_timeout_ms, out);
        return;
    }
    if (m->outcome == AGENT_OUTCOME_SIGNALLED || m->outcome == AGENT_OUTCOME_PREEMPTED) {
        kill_rest(m, out);
        return;
    }
    running_signal(m, event, out);
}

static void stopping_deadline(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    if (m->preempt_rest_ms > 0) {
        hurry(m, SIGTERM, m->preempt_rest_ms, out);
    } else {
        kill_rest(m, out);
    }
}

/* Without a rendezvous a restart cannot follow any more; a success stays one. */
static void ending_rdzv_failed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    (void)out;
    if (is_denied(m)) {
        m->outcome = AGENT_OUTCOME_FAILED;
    } else if (restarts(m)) {
        m->outcome = AGENT_OUTCOME_RDZV_LOST;
    }
}

/* No worker is left to be told: remember it, so that no new attempt begins. */
static void ending_signal(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)out;
    if (restarts(m)) {
        m->outcome = AGENT_OUTCOME_SIGNALLED;
        m->signal_number = event->number;
    }
}

static void killing_gone(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    m->running_count = 0;
    m->state = AGENT_STATE_DRAINING;
    act(out, AGENT_ACTION_DRAIN_LOGS, 0);
}

static void ending_gone(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    act(out, AGENT_ACTION_STOP_TIMER, 0);
    killing_gone(m, event, out);
}

static void enter_barrier(struct agent_machine *m, struct agent_actions *out) {
    m->state = AGENT_STATE_BARRIER;
    act(out, AGENT_ACTION_ENTER_BARRIER, 0);
}

/* Where survivors go on, other nodes may still run, and may need the stores that this agent serves. */
static void drained_failed(struct agent_machine *m, struct agent_actions *out) {
    act(out, AGENT_ACTION_REPORT, 0);
    if (m->survivors_continue) {
        enter_barrier(m, out);
    } else {
        close_with(m, m->outcome, AGENT_ACTION_CLOSE_JOB, out);
    }
}

static void drained_restart(struct agent_machine *m, struct agent_actions *out) {
    if (m->outcome == AGENT_OUTCOME_RESTART_FAILURE && !m->job_counts) {
        assert(m->restarts_left > 0);
        m->restarts_left--;
        m->restart_count++;
    }
    if (m->outcome == AGENT_OUTCOME_RESTART_FAILURE && m->pause_ms > 0) {
        m->state = AGENT_STATE_PAUSING;
        act(out, AGENT_ACTION_PAUSE, m->pause_ms);
        return;
    }
    m->state = AGENT_STATE_JOINING;
    act(out, AGENT_ACTION_JOIN, 0);
}

/* ---- a pause: this node has not joined yet, so that it uses up no join time-out; the others are charged nothing ----
 */

static void pausing_deadline(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    m->state = AGENT_STATE_JOINING;
    act(out, AGENT_ACTION_JOIN, 0);
}

static void pausing_failed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    act(out, AGENT_ACTION_STOP_TIMER, 0);
    joining_failed(m, event, out);
}

static void pausing_signal(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    act(out, AGENT_ACTION_STOP_TIMER, 0);
    joining_signal(m, event, out);
}

static void pausing_preempted(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    act(out, AGENT_ACTION_STOP_TIMER, 0);
    joining_preempted(m, event, out);
}

/* The workers of other nodes may still save, and need the store that this agent may serve for it. Where the others were
 * not told, and workers here did not end well, they would not come to the barrier. */
static void drained_preempted(struct agent_machine *m, struct agent_actions *out) {
    if (m->stops_everywhere || !m->any_failed) {
        enter_barrier(m, out);
    } else {
        close_with(m, m->outcome, AGENT_ACTION_LEAVE_JOB, out);
    }
}

static void draining_drained(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    switch (m->outcome) {
    case AGENT_OUTCOME_SUCCESS:
        enter_barrier(m, out);
        return;
    case AGENT_OUTCOME_RESTART_FAILURE:
    case AGENT_OUTCOME_RESTART_CHANGE:
        drained_restart(m, out);
        return;
    case AGENT_OUTCOME_FAILED:
        drained_failed(m, out);
        return;
    case AGENT_OUTCOME_PREEMPTED:
        drained_preempted(m, out);
        return;
    case AGENT_OUTCOME_NOT_STARTED:
        close_with(m, m->outcome, AGENT_ACTION_CLOSE_JOB, out);
        return;
    case AGENT_OUTCOME_RDZV_LOST: /* maybe since a worker of another node has failed */
        act(out, AGENT_ACTION_REPORT, 0);
        close_with(m, m->outcome, AGENT_ACTION_LEAVE_JOB, out);
        return;
    default: /* SIGNALLED, UNSUPERVISED: the other nodes may go on without this one */
        close_with(m, m->outcome, AGENT_ACTION_LEAVE_JOB, out);
        return;
    }
}

static void barrier_done(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    close_with(m, m->outcome, AGENT_ACTION_CLOSE_JOB, out);
}

/* The work is done; only the wait for others is cut short. A success is final: a scheduler that ends the node now is
 * not told that it has failed. (With torchrun the signal decides.) */
static void barrier_signal(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    bool has_ended = m->outcome == AGENT_OUTCOME_SUCCESS || m->outcome == AGENT_OUTCOME_PREEMPTED;
    m->signal_number = event->number;
    close_with(m, has_ended ? m->outcome : AGENT_OUTCOME_SIGNALLED, AGENT_ACTION_LEAVE_JOB, out);
}

static void finish(struct agent_machine *m, struct agent_actions *out) {
    m->state = AGENT_STATE_DONE;
    if (m->outcome == AGENT_OUTCOME_SIGNALLED && m->world_count == 0) {
        act(out, AGENT_ACTION_EXIT_BY_SIGNAL, m->signal_number);
        return;
    }
    bool good = m->outcome == AGENT_OUTCOME_SUCCESS || m->outcome == AGENT_OUTCOME_SPARE;
    bool again = m->outcome == AGENT_OUTCOME_PREEMPTED;
    act(out, AGENT_ACTION_EXIT, good ? 0 : again ? AGENT_EXIT_PREEMPTED : 1);
}

static void closing_closed(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    finish(m, out);
}

/* A signal while saying good-bye: do not wait for the network any longer. */
static void closing_signal(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    finish(m, out);
}

/* The guardian module has already killed what was left of the group when it says so. */
static void guardian_lost(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)event;
    act(out, AGENT_ACTION_STOP_TIMER, 0);
    m->running_count = 0;
    if (m->outcome != AGENT_OUTCOME_SIGNALLED) {
        m->outcome = AGENT_OUTCOME_UNSUPERVISED;
    }
    m->state = AGENT_STATE_DRAINING;
    act(out, AGENT_ACTION_DRAIN_LOGS, 0);
}

/* The order to the one that was lost is not answered any more: it is given to the next, which has nothing to kill. */
static void killing_replaced(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    (void)m;
    (void)event;
    act(out, AGENT_ACTION_KILL_ALL, 0);
}

/* The group had ended already; only a next attempt cannot be supervised. */
static void draining_guardian_lost(struct agent_machine *m, const struct agent_event *event,
                                   struct agent_actions *out) {
    (void)event;
    (void)out;
    if (restarts(m)) {
        m->outcome = AGENT_OUTCOME_UNSUPERVISED;
    }
}

#define ON(event_name, function) [AGENT_EVENT_##event_name] = (function)

static cell_fn *const cells[AGENT_STATE_COUNT][AGENT_EVENT_COUNT] = {
    [AGENT_STATE_JOINING] = {ON(WORLD, world_start), ON(SPARE_RELEASED, joining_spare), ON(RDZV_FAILED, joining_failed),
                             ON(SIGNAL, joining_signal), ON(PREEMPT, joining_preempted), ON(STOP, joining_preempted),
                             ON(GUARDIAN_LOST, guardian_lost)},
    [AGENT_STATE_RUNNING] = {ON(WORKER_SUCCEEDED, running_succeeded), ON(WORKER_FAILED, running_failed),
                             ON(WORKER_STUCK, running_stuck), ON(SPAWN_FAILED, running_not_started),
                             ON(WORLD_CHANGED, running_changed), ON(CUT_OFF, running_cut_off),
                             ON(RDZV_FAILED, running_rdzv_failed), ON(SIGNAL, running_signal),
                             ON(PREEMPT, running_preempted), ON(STOP, running_preempted),
                             ON(GUARDIAN_LOST, guardian_lost)},
    [AGENT_STATE_STOPPING] = {ON(WORKER_SUCCEEDED, stopping_ended), ON(WORKER_FAILED, stopping_ended),
                              ON(SPAWN_FAILED, stopping_not_started), ON(WORLD_CHANGED, stopping_changed),
                              ON(CUT_OFF, stopping_cut_off), ON(RDZV_FAILED, ending_rdzv_failed),
                              ON(SIGNAL, stopping_signal), ON(PREEMPT, stopping_preempted),
                              ON(STOP, stopping_preempted), ON(DEADLINE, stopping_deadline),
                              ON(GUARDIAN_LOST, guardian_lost)},
    [AGENT_STATE_ENDING] = {ON(LINGERING, ending_lingering), ON(GONE, ending_gone), ON(DEADLINE, ending_hurry),
                            ON(SIGNAL, ending_hurry), ON(PREEMPT, ending_preempted), ON(STOP, ending_preempted),
                            ON(GUARDIAN_LOST, guardian_lost), ON(GUARDIAN_REPLACED, ending_hurry)},
    [AGENT_STATE_KILLING] = {ON(RDZV_FAILED, ending_rdzv_failed), ON(GONE, killing_gone), ON(SIGNAL, ending_signal),
                             ON(PREEMPT, ending_preempted), ON(STOP, ending_preempted),
                             ON(GUARDIAN_LOST, guardian_lost), ON(GUARDIAN_REPLACED, killing_replaced)},
    [AGENT_STATE_DRAINING] = {ON(RDZV_FAILED, ending_rdzv_failed), ON(DRAINED, draining_drained),
                              ON(SIGNAL, ending_signal), ON(PREEMPT, ending_preempted), ON(STOP, ending_preempted),
                              ON(GUARDIAN_LOST, draining_guardian_lost)},
    [AGENT_STATE_PAUSING] = {ON(DEADLINE, pausing_deadline), ON(RDZV_FAILED, pausing_failed),
                             ON(SIGNAL, pausing_signal), ON(PREEMPT, pausing_preempted), ON(STOP, pausing_preempted),
                             ON(GUARDIAN_LOST, guardian_lost)},
    [AGENT_STATE_BARRIER] = {ON(BARRIER_DONE, barrier_done), ON(SIGNAL, barrier_signal), ON(PREEMPT, ending_preempted),
                             ON(STOP, ending_preempted)},
    [AGENT_STATE_CLOSING] = {ON(CLOSED, closing_closed), ON(SIGNAL, closing_signal)},
};

void agent_machine_init(struct agent_machine *m, uint32_t worker_count, uint32_t max_restarts, int64_t stop_timeout_ms,
                        bool survivors_continue) {
    assert(worker_count > 0 && stop_timeout_ms >= 0);
    *m = (struct agent_machine){.state = AGENT_STATE_JOINING,
                                .worker_count = worker_count,
                                .restarts_left = max_restarts,
                                .max_restarts = max_restarts,
                                .stop_timeout_ms = stop_timeout_ms,
                                .survivors_continue = survivors_continue};
}

void agent_machine_set_backoff(struct agent_machine *m, int64_t max_ms) {
    assert(max_ms >= 0);
    m->backoff.max_ms = max_ms;
}

void agent_machine_set_preempt_term_now(struct agent_machine *m, bool now) {
    m->preempt_term_now = now;
}

void agent_machine_start(struct agent_machine *m, struct agent_actions *out) {
    assert(m->state == AGENT_STATE_JOINING);
    out->count = 0;
    act(out, AGENT_ACTION_JOIN, 0);
}

void agent_machine_step(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out) {
    out->count = 0;
    cell_fn *cell = cells[m->state][event->kind];
    if (cell != NULL) {
        cell(m, event, out);
    }
}

void agent_machine_set_job_restarts(struct agent_machine *m, uint32_t restart_count, uint32_t max_restarts) {
    m->job_counts = true;
    m->restart_count = restart_count;
    m->max_restarts = max_restarts;
    m->restarts_left = max_restarts > restart_count ? max_restarts - restart_count : 0;
}

uint32_t agent_machine_restart_count(const struct agent_machine *m) {
    return m->restart_count;
}

#define NAME_OF(name) #name,

const char *agent_state_name(enum agent_state state) {
    static const char *const names[] = {AGENT_STATE_TABLE(NAME_OF)};
    return names[state];
}

const char *agent_event_name(enum agent_event_kind kind) {
    static const char *const names[] = {AGENT_EVENT_TABLE(NAME_OF)};
    return names[kind];
}

const char *agent_outcome_name(enum agent_outcome outcome) {
    static const char *const names[] = {AGENT_OUTCOME_TABLE(NAME_OF)};
    return names[outcome];
}

const char *agent_action_name(enum agent_action_kind kind) {
    static const char *const names[] = {AGENT_ACTION_TABLE(NAME_OF)};
    return names[kind];
}
