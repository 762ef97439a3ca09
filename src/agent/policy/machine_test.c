/* Every cell of the supervision table: what it answers, and that all other events change nothing. */
#include "agent/policy/machine.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 3, RESTARTS = 2, TIMEOUT_MS = 30000, GRACE_MS = 60000 };

/* A machine in `state` with `running` workers and the reason `outcome`. */
static struct agent_machine machine_in(enum agent_state state, uint32_t running, enum agent_outcome outcome) {
    struct agent_machine m;
    agent_machine_init(&m, WORKERS, RESTARTS, TIMEOUT_MS, false);
    m.state = state;
    m.running_count = running;
    m.outcome = outcome;
    m.world_count = 1;
    if (outcome == AGENT_OUTCOME_SIGNALLED) {
        m.signal_number = SIGINT;
    }
    return m;
}

struct expectation {
    enum agent_state state;
    uint32_t running;
    enum agent_outcome outcome;
    enum agent_event_kind event;
    int number;
    /* then */
    enum agent_state next;
    enum agent_outcome next_outcome;
    struct agent_action actions[AGENT_ACTIONS_MAX];
    size_t action_count;
};

#define S(name) AGENT_STATE_##name
#define E(name) AGENT_EVENT_##name
#define O(name) AGENT_OUTCOME_##name
#define A(name, value)                                                                                                 \
    { AGENT_ACTION_##name, (value) }
#define STOP(signal_number) {A(SIGNAL_WORKERS, signal_number), A(START_TIMER, TIMEOUT_MS)}, 2
#define KILL {A(STOP_TIMER, 0), A(KILL_ALL, 0)}, 2
#define DISMISS {A(DISMISS, 0), A(START_TIMER, TIMEOUT_MS + AGENT_QUIET_MS)}, 2
#define NOTHING {{0}}, 0
#define ONE(name, value) {A(name, value)}, 1

static const struct expectation expectations[] = {
    {S(JOINING), 0, O(NONE), E(WORLD), 0, S(RUNNING), O(NONE), ONE(START_WORKERS, 0)},
    {S(JOINING), 0, O(RESTART_FAILURE), E(WORLD), 0, S(RUNNING), O(NONE), ONE(START_WORKERS, 0)},
    {S(JOINING), 0, O(NONE), E(SPARE_RELEASED), 0, S(CLOSING), O(SPARE), ONE(LEAVE_JOB, 0)},
    {S(JOINING), 0, O(NONE), E(RDZV_FAILED), 0, S(DRAINING), O(RDZV_LOST), ONE(AWAIT_CAUSE, 0)},
    {S(JOINING), 0, O(NONE), E(SIGNAL), SIGINT, S(CLOSING), O(SIGNALLED), ONE(LEAVE_JOB, 0)},
    {S(JOINING),
     0,
     O(NONE),
     E(GUARDIAN_LOST),
     0,
     S(DRAINING),
     O(UNSUPERVISED),
     {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)},
     2},

    {S(RUNNING), 3, O(NONE), E(WORKER_SUCCEEDED), 0, S(RUNNING), O(NONE), NOTHING},
    {S(RUNNING), 1, O(NONE), E(WORKER_SUCCEEDED), 0, S(ENDING), O(SUCCESS), DISMISS},
    {S(ENDING), 0, O(SUCCESS), E(GONE), 0, S(DRAINING), O(SUCCESS), {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)}, 2},
    {S(ENDING), 0, O(SUCCESS), E(LINGERING), 2, S(ENDING), O(SUCCESS), ONE(START_TIMER, TIMEOUT_MS)},
    {S(ENDING), 0, O(SUCCESS), E(DEADLINE), 0, S(KILLING), O(SUCCESS), KILL},
    {S(ENDING), 0, O(SUCCESS), E(SIGNAL), SIGTERM, S(KILLING), O(SUCCESS), KILL},
    {S(ENDING), 0, O(SUCCESS), E(PREEMPT), GRACE_MS, S(ENDING), O(SUCCESS), ONE(TELL_PREEMPTION, GRACE_MS)},
    {S(ENDING), 0, O(SUCCESS), E(STOP), GRACE_MS, S(ENDING), O(PREEMPTED), NOTHING},
    {S(ENDING),
     0,
     O(SUCCESS),
     E(GUARDIAN_LOST),
     0,
     S(DRAINING),
     O(UNSUPERVISED),
     {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)},
     2},
    {S(ENDING), 0, O(SUCCESS), E(GUARDIAN_REPLACED), 0, S(KILLING), O(SUCCESS), KILL},
    {S(RUNNING), 3, O(NONE), E(WORKER_FAILED), 0, S(STOPPING), O(RESTART_FAILURE), STOP(SIGTERM)},
    {S(RUNNING), 1, O(NONE), E(WORKER_FAILED), 0, S(KILLING), O(RESTART_FAILURE), KILL},
    {S(RUNNING), 3, O(NONE), E(WORKER_STUCK), 0, S(STOPPING), O(FAILED), STOP(SIGTERM)},
    {S(RUNNING), 3, O(NONE), E(SPAWN_FAILED), 0, S(STOPPING), O(NOT_STARTED), STOP(SIGTERM)},
    {S(RUNNING), 1, O(NONE), E(SPAWN_FAILED), 0, S(KILLING), O(NOT_STARTED), KILL},
    {S(RUNNING), 3, O(NONE), E(WORLD_CHANGED), 0, S(STOPPING), O(RESTART_CHANGE), STOP(SIGTERM)},
    {S(RUNNING), 3, O(NONE), E(RDZV_FAILED), 0, S(STOPPING), O(RDZV_LOST), STOP(SIGTERM)},
    {S(RUNNING), 3, O(NONE), E(SIGNAL), SIGHUP, S(STOPPING), O(SIGNALLED), STOP(SIGHUP)},
    {S(RUNNING),
     3,
     O(NONE),
     E(GUARDIAN_LOST),
     0,
     S(DRAINING),
     O(UNSUPERVISED),
     {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)},
     2},

    {S(JOINING),
     0,
     O(NONE),
     E(PREEMPT),
     GRACE_MS,
     S(CLOSING),
     O(PREEMPTED),
     {A(TELL_PREEMPTION, GRACE_MS), A(LEAVE_JOB, 0)},
     2},
    {S(JOINING), 0, O(RESTART_CHANGE), E(STOP), GRACE_MS, S(CLOSING), O(PREEMPTED), ONE(LEAVE_JOB, 0)},
    {S(RUNNING),
     3,
     O(NONE),
     E(PREEMPT),
     GRACE_MS,
     S(STOPPING),
     O(PREEMPTED),
     {A(TELL_PREEMPTION, GRACE_MS), A(REQUEST_STOP, GRACE_MS), A(START_TIMER, GRACE_MS / 2)},
     3},
    {S(RUNNING),
     3,
     O(NONE),
     E(STOP),
     GRACE_MS,
     S(STOPPING),
     O(PREEMPTED),
     {A(REQUEST_STOP, GRACE_MS), A(START_TIMER, GRACE_MS / 2)},
     2},
    {S(STOPPING),
     2,
     O(RESTART_FAILURE),
     E(PREEMPT),
     GRACE_MS,
     S(STOPPING),
     O(PREEMPTED),
     {A(TELL_PREEMPTION, GRACE_MS), A(START_TIMER, TIMEOUT_MS)},
     2},
    {S(STOPPING), 2, O(RESTART_CHANGE), E(STOP), 1000, S(STOPPING), O(PREEMPTED), ONE(START_TIMER, 1000)},
    {S(STOPPING), 2, O(FAILED), E(PREEMPT), GRACE_MS, S(STOPPING), O(FAILED), NOTHING},
    {S(STOPPING), 2, O(SIGNALLED), E(STOP), GRACE_MS, S(STOPPING), O(SIGNALLED), NOTHING},
    {S(STOPPING), 2, O(PREEMPTED), E(PREEMPT), GRACE_MS, S(STOPPING), O(PREEMPTED), NOTHING},
    {S(STOPPING), 2, O(PREEMPTED), E(DEADLINE), 0, S(KILLING), O(PREEMPTED), KILL},
    {S(STOPPING), 2, O(RESTART_CHANGE), E(CUT_OFF), 0, S(KILLING), O(RESTART_CHANGE), KILL},
    {S(STOPPING), 2, O(SIGNALLED), E(CUT_OFF), 0, S(KILLING), O(SIGNALLED), KILL},
    {S(STOPPING), 2, O(PREEMPTED), E(CUT_OFF), 0, S(KILLING), O(PREEMPTED), KILL},
    {S(RUNNING),
     3,
     O(NONE),
     E(CUT_OFF),
     0,
     S(KILLING),
     O(RESTART_CHANGE),
     {A(SIGNAL_WORKERS, SIGTERM), A(STOP_TIMER, 0), A(KILL_ALL, 0)},
     3},
    {S(STOPPING), 2, O(PREEMPTED), E(WORLD_CHANGED), 0, S(STOPPING), O(PREEMPTED), NOTHING},
    {S(STOPPING), 2, O(RESTART_FAILURE), E(WORLD_CHANGED), 0, S(STOPPING), O(RESTART_FAILURE), NOTHING},
    {S(STOPPING), 2, O(PREEMPTED), E(SIGNAL), SIGTERM, S(KILLING), O(PREEMPTED), KILL},
    {S(STOPPING), 2, O(PREEMPTED), E(WORKER_FAILED), 0, S(STOPPING), O(PREEMPTED), NOTHING},
    {S(STOPPING), 1, O(PREEMPTED), E(WORKER_SUCCEEDED), 0, S(KILLING), O(PREEMPTED), KILL},
    {S(STOPPING), 1, O(PREEMPTED), E(RDZV_FAILED), 0, S(STOPPING), O(PREEMPTED), NOTHING},
    {S(KILLING), 1, O(RESTART_FAILURE), E(PREEMPT), GRACE_MS, S(KILLING), O(PREEMPTED), ONE(TELL_PREEMPTION, GRACE_MS)},
    {S(KILLING), 0, O(SUCCESS), E(STOP), GRACE_MS, S(KILLING), O(PREEMPTED), NOTHING},
    {S(KILLING), 0, O(FAILED), E(STOP), GRACE_MS, S(KILLING), O(FAILED), NOTHING},
    {S(DRAINING), 0, O(RESTART_CHANGE), E(STOP), GRACE_MS, S(DRAINING), O(PREEMPTED), NOTHING},
    {S(DRAINING), 0, O(SUCCESS), E(PREEMPT), GRACE_MS, S(DRAINING), O(SUCCESS), ONE(TELL_PREEMPTION, GRACE_MS)},
    {S(DRAINING), 0, O(PREEMPTED), E(DRAINED), 0, S(BARRIER), O(PREEMPTED), ONE(ENTER_BARRIER, 0)},
    {S(BARRIER), 0, O(SUCCESS), E(STOP), GRACE_MS, S(BARRIER), O(PREEMPTED), NOTHING},
    {S(BARRIER), 0, O(SUCCESS), E(PREEMPT), GRACE_MS, S(BARRIER), O(SUCCESS), ONE(TELL_PREEMPTION, GRACE_MS)},
    {S(BARRIER), 0, O(PREEMPTED), E(BARRIER_DONE), 0, S(CLOSING), O(PREEMPTED), ONE(CLOSE_JOB, 0)},
    {S(BARRIER), 0, O(PREEMPTED), E(SIGNAL), SIGTERM, S(CLOSING), O(PREEMPTED), ONE(LEAVE_JOB, 0)},
    {S(CLOSING), 0, O(PREEMPTED), E(CLOSED), 0, S(DONE), O(PREEMPTED), ONE(EXIT, AGENT_EXIT_PREEMPTED)},

    {S(STOPPING), 2, O(RESTART_FAILURE), E(WORKER_SUCCEEDED), 0, S(STOPPING), O(RESTART_FAILURE), NOTHING},
    {S(STOPPING), 1, O(RESTART_FAILURE), E(WORKER_SUCCEEDED), 0, S(KILLING), O(RESTART_FAILURE), KILL},
    {S(STOPPING), 2, O(FAILED), E(WORKER_FAILED), 0, S(STOPPING), O(FAILED), NOTHING},
    {S(STOPPING), 1, O(FAILED), E(WORKER_FAILED), 0, S(KILLING), O(FAILED), KILL},
    {S(STOPPING), 2, O(RESTART_FAILURE), E(SPAWN_FAILED), 0, S(STOPPING), O(NOT_STARTED), NOTHING},
    {S(STOPPING), 2, O(RESTART_CHANGE), E(SPAWN_FAILED), 0, S(STOPPING), O(NOT_STARTED), NOTHING},
    {S(STOPPING), 1, O(SIGNALLED), E(SPAWN_FAILED), 0, S(KILLING), O(SIGNALLED), KILL},
    {S(STOPPING), 2, O(RESTART_FAILURE), E(RDZV_FAILED), 0, S(STOPPING), O(RDZV_LOST), NOTHING},
    {S(STOPPING), 2, O(FAILED), E(RDZV_FAILED), 0, S(STOPPING), O(FAILED), NOTHING},
    {S(STOPPING), 2, O(RESTART_FAILURE), E(SIGNAL), SIGINT, S(STOPPING), O(SIGNALLED), STOP(SIGINT)},
    {S(STOPPING), 2, O(SIGNALLED), E(SIGNAL), SIGINT, S(KILLING), O(SIGNALLED), KILL},
    {S(STOPPING), 2, O(RESTART_CHANGE), E(DEADLINE), 0, S(KILLING), O(RESTART_CHANGE), KILL},
    {S(STOPPING),
     2,
     O(FAILED),
     E(GUARDIAN_LOST),
     0,
     S(DRAINING),
     O(UNSUPERVISED),
     {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)},
     2},
    {S(STOPPING),
     2,
     O(SIGNALLED),
     E(GUARDIAN_LOST),
     0,
     S(DRAINING),
     O(SIGNALLED),
     {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)},
     2},

    {S(KILLING), 1, O(RESTART_FAILURE), E(RDZV_FAILED), 0, S(KILLING), O(RDZV_LOST), NOTHING},
    {S(KILLING), 0, O(SUCCESS), E(RDZV_FAILED), 0, S(KILLING), O(SUCCESS), NOTHING},
    {S(KILLING), 1, O(FAILED), E(GONE), 0, S(DRAINING), O(FAILED), ONE(DRAIN_LOGS, 0)},
    {S(KILLING), 1, O(RESTART_CHANGE), E(SIGNAL), SIGTERM, S(KILLING), O(SIGNALLED), NOTHING},
    {S(KILLING), 1, O(FAILED), E(SIGNAL), SIGTERM, S(KILLING), O(FAILED), NOTHING},
    {S(KILLING), 1, O(FAILED), E(GUARDIAN_REPLACED), 0, S(KILLING), O(FAILED), ONE(KILL_ALL, 0)},
    {S(KILLING), 0, O(SUCCESS), E(GUARDIAN_REPLACED), 0, S(KILLING), O(SUCCESS), ONE(KILL_ALL, 0)},
    {S(KILLING),
     1,
     O(FAILED),
     E(GUARDIAN_LOST),
     0,
     S(DRAINING),
     O(UNSUPERVISED),
     {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)},
     2},

    {S(DRAINING), 0, O(SUCCESS), E(DRAINED), 0, S(BARRIER), O(SUCCESS), ONE(ENTER_BARRIER, 0)},
    {S(DRAINING), 0, O(RESTART_FAILURE), E(DRAINED), 0, S(JOINING), O(RESTART_FAILURE), ONE(JOIN, 0)},
    {S(DRAINING), 0, O(RESTART_CHANGE), E(DRAINED), 0, S(JOINING), O(RESTART_CHANGE), ONE(JOIN, 0)},
    {S(DRAINING), 0, O(FAILED), E(DRAINED), 0, S(CLOSING), O(FAILED), {A(REPORT, 0), A(CLOSE_JOB, 0)}, 2},
    {S(DRAINING), 0, O(NOT_STARTED), E(DRAINED), 0, S(CLOSING), O(NOT_STARTED), ONE(CLOSE_JOB, 0)},
    {S(DRAINING), 0, O(SIGNALLED), E(DRAINED), 0, S(CLOSING), O(SIGNALLED), ONE(LEAVE_JOB, 0)},
    {S(DRAINING), 0, O(RDZV_LOST), E(DRAINED), 0, S(CLOSING), O(RDZV_LOST), {A(REPORT, 0), A(LEAVE_JOB, 0)}, 2},
    {S(DRAINING), 0, O(UNSUPERVISED), E(DRAINED), 0, S(CLOSING), O(UNSUPERVISED), ONE(LEAVE_JOB, 0)},
    {S(DRAINING), 0, O(RESTART_FAILURE), E(RDZV_FAILED), 0, S(DRAINING), O(RDZV_LOST), NOTHING},
    {S(DRAINING), 0, O(RESTART_FAILURE), E(SIGNAL), SIGTERM, S(DRAINING), O(SIGNALLED), NOTHING},
    {S(DRAINING), 0, O(RESTART_FAILURE), E(GUARDIAN_LOST), 0, S(DRAINING), O(UNSUPERVISED), NOTHING},
    {S(DRAINING), 0, O(SUCCESS), E(GUARDIAN_LOST), 0, S(DRAINING), O(SUCCESS), NOTHING},

    {S(PAUSING), 0, O(RESTART_FAILURE), E(DEADLINE), 0, S(JOINING), O(RESTART_FAILURE), ONE(JOIN, 0)},
    {S(PAUSING),
     0,
     O(RESTART_FAILURE),
     E(RDZV_FAILED),
     0,
     S(DRAINING),
     O(RDZV_LOST),
     {A(STOP_TIMER, 0), A(AWAIT_CAUSE, 0)},
     2},
    {S(PAUSING),
     0,
     O(RESTART_FAILURE),
     E(SIGNAL),
     SIGINT,
     S(CLOSING),
     O(SIGNALLED),
     {A(STOP_TIMER, 0), A(LEAVE_JOB, 0)},
     2},
    {S(PAUSING),
     0,
     O(RESTART_FAILURE),
     E(PREEMPT),
     GRACE_MS,
     S(CLOSING),
     O(PREEMPTED),
     {A(STOP_TIMER, 0), A(TELL_PREEMPTION, GRACE_MS), A(LEAVE_JOB, 0)},
     3},
    {S(PAUSING),
     0,
     O(RESTART_FAILURE),
     E(STOP),
     GRACE_MS,
     S(CLOSING),
     O(PREEMPTED),
     {A(STOP_TIMER, 0), A(LEAVE_JOB, 0)},
     2},
    {S(PAUSING),
     0,
     O(RESTART_FAILURE),
     E(GUARDIAN_LOST),
     0,
     S(DRAINING),
     O(UNSUPERVISED),
     {A(STOP_TIMER, 0), A(DRAIN_LOGS, 0)},
     2},

    {S(BARRIER), 0, O(SUCCESS), E(BARRIER_DONE), 0, S(CLOSING), O(SUCCESS), ONE(CLOSE_JOB, 0)},
    {S(BARRIER), 0, O(SUCCESS), E(SIGNAL), SIGTERM, S(CLOSING), O(SUCCESS), ONE(LEAVE_JOB, 0)},
    {S(BARRIER), 0, O(FAILED), E(SIGNAL), SIGTERM, S(CLOSING), O(SIGNALLED), ONE(LEAVE_JOB, 0)},

    {S(CLOSING), 0, O(SUCCESS), E(CLOSED), 0, S(DONE), O(SUCCESS), ONE(EXIT, 0)},
    {S(CLOSING), 0, O(SPARE), E(CLOSED), 0, S(DONE), O(SPARE), ONE(EXIT, 0)},
    {S(CLOSING), 0, O(FAILED), E(CLOSED), 0, S(DONE), O(FAILED), ONE(EXIT, 1)},
    {S(CLOSING), 0, O(NOT_STARTED), E(CLOSED), 0, S(DONE), O(NOT_STARTED), ONE(EXIT, 1)},
    {S(CLOSING), 0, O(RDZV_LOST), E(CLOSED), 0, S(DONE), O(RDZV_LOST), ONE(EXIT, 1)},
    {S(CLOSING), 0, O(SIGNALLED), E(CLOSED), 0, S(DONE), O(SIGNALLED), ONE(EXIT, 1)},
    {S(CLOSING), 0, O(SUCCESS), E(SIGNAL), SIGTERM, S(DONE), O(SUCCESS), ONE(EXIT, 0)},
};

static const size_t expectation_count = sizeof expectations / sizeof expectations[0];

static void each_cell_answers_as_the_table_says(void **state) {
    (void)state;
    for (size_t i = 0; i < expectation_count; i++) {
        const struct expectation *e = &expectations[i];
        struct agent_machine m = machine_in(e->state, e->running, e->outcome);
        struct agent_event event = {.kind = e->event, .number = e->number};
        struct agent_actions actions;
        agent_machine_step(&m, &event, &actions);
        if (m.state != e->next || m.outcome != e->next_outcome || actions.count != e->action_count) {
            fail_msg("%s/%s on %s: got %s/%s with %zu actions, want %s/%s with %zu", agent_state_name(e->state),
                     agent_outcome_name(e->outcome), agent_event_name(e->event), agent_state_name(m.state),
                     agent_outcome_name(m.outcome), actions.count, agent_state_name(e->next),
                     agent_outcome_name(e->next_outcome), e->action_count);
        }
        for (size_t k = 0; k < actions.count; k++) {
            assert_string_equal(agent_action_name(actions.list[k].kind), agent_action_name(e->actions[k].kind));
            assert_int_equal(actions.list[k].number, e->actions[k].number);
        }
    }
}

static bool expected(enum agent_state s, enum agent_event_kind kind) {
    for (size_t i = 0; i < expectation_count; i++) {
        if (expectations[i].state == s && expectations[i].event == kind) {
            return true;
        }
    }
    return false;
}

static void every_other_event_is_ignored(void **state) {
    (void)state;
    for (int s = 0; s < AGENT_STATE_COUNT; s++) {
        for (int kind = 0; kind < AGENT_EVENT_COUNT; kind++) {
            if (expected((enum agent_state)s, (enum agent_event_kind)kind)) {
                continue;
            }
            struct agent_machine before = machine_in((enum agent_state)s, 2, O(SUCCESS));
            struct agent_machine after = before;
            struct agent_event event = {.kind = (enum agent_event_kind)kind, .number = SIGTERM};
            struct agent_actions actions;
            agent_machine_step(&after, &event, &actions);
            assert_int_equal(actions.count, 0);
            assert_memory_equal(&before, &after, sizeof before);
        }
    }
}

static void step(struct agent_machine *m, enum agent_event_kind kind, int number, struct agent_actions *out) {
    struct agent_event event = {.kind = kind, .number = number};
    agent_machine_step(m, &event, out);
}

/* Runs one attempt in which a worker fails and the others obey, up to the end of the drain. */
static void fail_one_attempt(struct agent_machine *m, struct agent_actions *out) {
    step(m, E(WORLD), 0, out);
    for (int i = 0; i < WORKERS; i++) {
        step(m, E(WORKER_FAILED), 0, out);
    }
    step(m, E(GONE), 0, out);
    step(m, E(DRAINED), 0, out);
}

/* --survivors=continue: what a running group answers to an event, with `succeeded` saying whether a worker has ended
 * well before. */
struct survivors_expectation {
    uint32_t running;
    uint32_t restarts_left;
    bool succeeded, rdzv_lost;
    enum agent_event_kind event;
    int number;
    /* then */
    enum agent_state next;
    enum agent_outcome next_outcome;
    struct agent_action actions[AGENT_ACTIONS_MAX];
    size_t action_count;
};

static const struct survivors_expectation survivors_expectations[] = {
    {3, 2, false, false, E(WORKER_FAILED), 0, S(RUNNING), O(NONE), NOTHING},
    {2, 0, false, false, E(WORKER_FAILED), 0, S(RUNNING), O(NONE), NOTHING},
    {1, 2, true, false, E(WORKER_FAILED), 0, S(ENDING), O(SUCCESS), DISMISS},
    {1, 2, false, false, E(WORKER_FAILED), 0, S(KILLING), O(RESTART_FAILURE), KILL},
    {1, 0, false, false, E(WORKER_FAILED), 0, S(KILLING), O(FAILED), KILL},
    {1, 2, false, true, E(WORKER_FAILED), 0, S(KILLING), O(FAILED), KILL},
    {3, 2, false, false, E(WORKER_SUCCEEDED), 0, S(RUNNING), O(NONE), NOTHING},
    {1, 2, false, false, E(WORKER_SUCCEEDED), 0, S(ENDING), O(SUCCESS), DISMISS},
    {3, 2, false, false, E(WORLD_CHANGED), 0, S(RUNNING), O(NONE), NOTHING},
    {3, 2, false, false, E(CUT_OFF), 0, S(RUNNING), O(NONE), NOTHING},
    {3, 2, false, false, E(RDZV_FAILED), 0, S(RUNNING), O(NONE), NOTHING},
    {3, 2, false, false, E(WORKER_STUCK), 0, S(STOPPING), O(FAILED), STOP(SIGTERM)},
    {3, 2, false, false, E(SPAWN_FAILED), 0, S(STOPPING), O(NOT_STARTED), STOP(SIGTERM)},
    {3, 2, true, false, E(SIGNAL), SIGINT, S(STOPPING), O(SIGNALLED), STOP(SIGINT)},
};

static void survivors_go_on_where_they_are_to(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof survivors_expectations / sizeof *survivors_expectations; i++) {
        const struct survivors_expectation *e = &survivors_expectations[i];
        struct agent_machine m = machine_in(S(RUNNING), e->running, O(NONE));
        m.survivors_continue = true;
        m.any_succeeded = e->succeeded;
        m.restarts_left = e->restarts_left;
        m.rdzv_lost = e->rdzv_lost;
        struct agent_event event = {.kind = e->event, .number = e->number};
        struct agent_actions actions;
        agent_machine_step(&m, &event, &actions);
        if (m.state != e->next || m.outcome != e->next_outcome || actions.count != e->action_count) {
            fail_msg("row %zu: got %s/%s with %zu actions", i, agent_state_name(m.state), agent_outcome_name(m.outcome),
                     actions.count);
        }
        for (size_t k = 0; k < actions.count; k++) {
            assert_int_equal(actions.list[k].kind, e->actions[k].kind);
            assert_int_equal(actions.list[k].number, e->actions[k].number);
        }
        assert_int_equal(m.rdzv_lost, e->rdzv_lost || e->event == E(RDZV_FAILED));
    }
}

/* Asked for half of the time, told to by a signal for the other half. */
static void patience_of_a_preemption(void **state) {
    (void)state;
    struct agent_machine m = machine_in(S(RUNNING), 3, O(NONE));
    struct agent_actions out;
    step(&m, E(PREEMPT), 60001, &out);
    step(&m, E(DEADLINE), 0, &out);
    assert_int_equal(m.state, S(STOPPING));
    assert_int_equal(out.count, 2);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_SIGNAL_WORKERS);
    assert_int_equal(out.list[0].number, SIGTERM);
    assert_int_equal(out.list[1].kind, AGENT_ACTION_START_TIMER);
    assert_int_equal(out.list[1].number, 30001);
    step(&m, E(DEADLINE), 0, &out);
    assert_int_equal(m.state, S(KILLING));
    assert_int_equal(m.outcome, O(PREEMPTED));
}

/* Programs that save on SIGTERM get it at once, and all of the time. */
static void a_preemption_by_sigterm_at_once(void **state) {
    (void)state;
    static const enum agent_event_kind told[] = {E(PREEMPT), E(STOP)};
    for (size_t i = 0; i < 2; i++) {
        struct agent_machine m = machine_in(S(RUNNING), 1, O(NONE));
        struct agent_actions out;
        agent_machine_set_preempt_term_now(&m, true);
        step(&m, told[i], GRACE_MS, &out);
        assert_int_equal(m.state, S(STOPPING));
        assert_int_equal(out.count, i == 0 ? 4 : 3);
        assert_int_equal(out.list[out.count - 3].kind, AGENT_ACTION_REQUEST_STOP);
        assert_int_equal(out.list[out.count - 2].kind, AGENT_ACTION_SIGNAL_WORKERS);
        assert_int_equal(out.list[out.count - 2].number, SIGTERM);
        assert_int_equal(out.list[out.count - 1].kind, AGENT_ACTION_START_TIMER);
        assert_int_equal(out.list[out.count - 1].number, GRACE_MS);
        struct agent_machine late = m;
        step(&late, E(DEADLINE), 0, &out);
        assert_int_equal(late.state, S(KILLING));
        assert_int_equal(late.outcome, O(PREEMPTED));
        step(&m, E(WORKER_FAILED), 0, &out); /* of that signal, without a save */
        step(&m, E(GONE), 0, &out);
        step(&m, E(DRAINED), 0, &out);
        step(&m, i == 0 ? E(CLOSED) : E(BARRIER_DONE), 0, &out);
        step(&m, E(CLOSED), 0, &out);
        assert_int_equal(m.state, S(DONE));
        assert_int_equal(m.outcome, O(PREEMPTED));
    }
}

/* Its workers cannot agree to stop with those of nodes that have left the world, unless these stop, too. */
static void a_change_hurries_a_preemption_of_this_node_alone(void **state) {
    (void)state;
    struct agent_machine m = machine_in(S(RUNNING), 3, O(NONE));
    struct agent_actions out;
    step(&m, E(PREEMPT), 4 * TIMEOUT_MS, &out);
    step(&m, E(WORLD_CHANGED), 0, &out);
    assert_int_equal(m.state, S(STOPPING));
    assert_int_equal(out.count, 2);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_SIGNAL_WORKERS);
    assert_int_equal(out.list[0].number, SIGTERM);
    assert_int_equal(out.list[1].kind, AGENT_ACTION_START_TIMER);
    assert_int_equal(out.list[1].number, TIMEOUT_MS);
    step(&m, E(WORLD_CHANGED), 0, &out); /* once */
    assert_int_equal(out.count, 0);
    step(&m, E(DEADLINE), 0, &out);
    assert_int_equal(m.state, S(KILLING));
    assert_int_equal(m.outcome, O(PREEMPTED));

    m = machine_in(S(RUNNING), 3, O(NONE));
    step(&m, E(PREEMPT), GRACE_MS, &out);
    step(&m, E(STOP), GRACE_MS, &out);
    step(&m, E(WORLD_CHANGED), 0, &out);
    assert_int_equal(out.count, 0);
}

/* Another world may run already: no time for a snapshot either. */
static void whoever_is_cut_off_is_killed(void **state) {
    (void)state;
    struct agent_machine m = machine_in(S(RUNNING), 3, O(NONE));
    struct agent_actions out;
    step(&m, E(STOP), GRACE_MS, &out);
    step(&m, E(CUT_OFF), 0, &out);
    assert_int_equal(m.state, S(KILLING));
    assert_int_equal(m.outcome, O(PREEMPTED));
}

/* Somebody else's patience ends before: the signal is passed on, and a second one kills. */
static void a_signal_hurries_a_preemption(void **state) {
    (void)state;
    struct agent_machine m = machine_in(S(RUNNING), 3, O(NONE));
    struct agent_actions out;
    step(&m, E(STOP), GRACE_MS, &out);
    step(&m, E(SIGNAL), SIGHUP, &out);
    assert_int_equal(m.state, S(STOPPING));
    assert_int_equal(out.list[0].kind, AGENT_ACTION_SIGNAL_WORKERS);
    assert_int_equal(out.list[0].number, SIGHUP);
    assert_int_equal(out.list[1].number, TIMEOUT_MS);
    step(&m, E(SIGNAL), SIGHUP, &out);
    assert_int_equal(m.state, S(KILLING));
    assert_int_equal(m.outcome, O(PREEMPTED));
}

/* Whether the exit barrier can be met: if all nodes stop, or workers here ended as the others' will. */
static void who_waits_for_others_after_a_preemption(void **state) {
    (void)state;
    static const struct {
        enum agent_event_kind told, ended;
        enum agent_state then;
    } cases[] = {
        {E(PREEMPT), E(WORKER_SUCCEEDED), S(BARRIER)},
        {E(PREEMPT), E(WORKER_FAILED), S(CLOSING)},
        {E(PREEMPT), E(CUT_OFF), S(CLOSING)},
        {E(STOP), E(WORKER_FAILED), S(BARRIER)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct agent_machine m = machine_in(S(RUNNING), 1, O(NONE));
        struct agent_actions out;
        step(&m, cases[i].told, GRACE_MS, &out);
        step(&m, cases[i].ended, 0, &out);
        step(&m, E(GONE), 0, &out);
        step(&m, E(DRAINED), 0, &out);
        assert_int_equal(m.state, cases[i].then);
    }
}

/* Where the job counts, an agent asks for every restart, and takes the last report for granted when it is denied. */
static void the_job_decides_on_restarts(void **state) {
    (void)state;
    struct agent_machine m;
    struct agent_actions out;
    agent_machine_init(&m, WORKERS, 0, TIMEOUT_MS, false);
    agent_machine_set_job_restarts(&m, 1, 3);
    fail_one_attempt(&m, &out);
    assert_int_equal(m.state, S(JOINING));
    assert_int_equal(agent_machine_restart_count(&m), 1); /* until the next world tells */
    agent_machine_set_job_restarts(&m, 2, 3);
    assert_int_equal(agent_machine_restart_count(&m), 2);
    assert_int_equal(m.restarts_left, 1);
    agent_machine_set_job_restarts(&m, 7, 3); /* only those of a window count against the maximum */
    assert_int_equal(m.restarts_left, 0);
    fail_one_attempt(&m, &out);
    assert_int_equal(m.state, S(JOINING));
    step(&m, E(RDZV_FAILED), 0, &out);
    assert_int_equal(m.outcome, O(FAILED));
    assert_int_equal(out.count, 1);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_AWAIT_CAUSE); /* another node's worker may have died before */
    step(&m, E(DRAINED), 0, &out);
    assert_int_equal(m.outcome, O(FAILED));
    assert_int_equal(out.count, 2);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_REPORT);
    assert_int_equal(out.list[1].kind, AGENT_ACTION_CLOSE_JOB);
}

/* The denial comes while the failed attempt is being stopped: its report is still to come. */
static void a_denial_while_stopping_ends_with_the_report(void **state) {
    (void)state;
    static const enum agent_state during[] = {S(STOPPING), S(KILLING), S(DRAINING)};
    for (size_t i = 0; i < sizeof during / sizeof *during; i++) {
        struct agent_machine m = machine_in(during[i], 1, O(RESTART_FAILURE));
        struct agent_actions out;
        agent_machine_set_job_restarts(&m, 0, 0);
        step(&m, E(RDZV_FAILED), 0, &out);
        assert_int_equal(m.outcome, O(FAILED));
        struct agent_machine other = machine_in(during[i], 1, O(RESTART_CHANGE));
        agent_machine_set_job_restarts(&other, 0, 0);
        step(&other, E(RDZV_FAILED), 0, &out);
        assert_int_equal(other.outcome, O(RDZV_LOST));
    }
}

static void a_success_of_one_attempt_is_none_of_the_next(void **state) {
    (void)state;
    struct agent_machine m = machine_in(S(JOINING), 0, O(RESTART_FAILURE));
    struct agent_actions out;
    m.survivors_continue = m.any_succeeded = true;
    step(&m, E(WORLD), 0, &out);
    assert_false(m.any_succeeded);
}

/* Other nodes' survivors may need the stores that this agent serves, so it waits before it closes the job. */
static void a_node_without_survivors_waits_for_the_others(void **state) {
    (void)state;
    struct agent_machine m;
    struct agent_actions out;
    agent_machine_init(&m, WORKERS, 0, TIMEOUT_MS, true);
    fail_one_attempt(&m, &out);
    assert_int_equal(m.state, S(BARRIER));
    assert_int_equal(m.outcome, O(FAILED));
    assert_int_equal(out.count, 2);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_REPORT);
    assert_int_equal(out.list[1].kind, AGENT_ACTION_ENTER_BARRIER);
    step(&m, E(BARRIER_DONE), 0, &out);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_CLOSE_JOB);
    assert_int_equal(m.outcome, O(FAILED));
    step(&m, E(CLOSED), 0, &out);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_EXIT);
    assert_int_equal(out.list[0].number, 1);
}

static void restarts_are_consumed_by_failures_only(void **state) {
    (void)state;
    struct agent_machine m;
    struct agent_actions out;
    agent_machine_init(&m, WORKERS, RESTARTS, TIMEOUT_MS, false);
    agent_machine_start(&m, &out);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_JOIN);
    for (uint32_t used = 1; used <= RESTARTS; used++) {
        fail_one_attempt(&m, &out);
        assert_int_equal(m.state, S(JOINING));
        assert_int_equal(agent_machine_restart_count(&m), used);
        step(&m, E(WORLD), 0, &out);
        step(&m, E(WORLD_CHANGED), 0, &out);
        for (int i = 0; i < WORKERS; i++) {
            step(&m, E(WORKER_FAILED), 0, &out);
        }
        step(&m, E(GONE), 0, &out);
        step(&m, E(DRAINED), 0, &out);
        assert_int_equal(agent_machine_restart_count(&m), used);
    }
    fail_one_attempt(&m, &out);
    assert_int_equal(m.state, S(CLOSING));
    assert_int_equal(out.list[0].kind, AGENT_ACTION_REPORT);
}

static void a_signal_before_the_first_world_is_died_of(void **state) {
    (void)state;
    struct agent_machine m;
    struct agent_actions out;
    agent_machine_init(&m, WORKERS, 0, TIMEOUT_MS, false);
    agent_machine_start(&m, &out);
    step(&m, E(SIGNAL), SIGTERM, &out);
    step(&m, E(CLOSED), 0, &out);
    assert_int_equal(out.list[0].kind, AGENT_ACTION_EXIT_BY_SIGNAL);
    assert_int_equal(out.list[0].number, SIGTERM);
}

static void without_patience_nobody_is_asked_to_end(void **state) {
    (void)state;
    struct agent_machine m;
    struct agent_actions out;
    agent_machine_init(&m, 1, 0, 0, false);
    step(&m, E(WORLD), 0, &out);
    step(&m, E(WORKER_SUCCEEDED), 0, &out);
    assert_int_equal(m.state, S(KILLING));
    assert_int_equal(m.outcome, O(SUCCESS));
    assert_int_equal(out.list[0].kind, AGENT_ACTION_DISMISS); /* who may be left alone has to be known */
    assert_int_equal(out.list[out.count - 1].kind, AGENT_ACTION_KILL_ALL);
}

static void without_patience_workers_are_killed_at_once(void **state) {
    (void)state;
    struct agent_machine m;
    struct agent_actions out;
    agent_machine_init(&m, WORKERS, 0, 0, false);
    step(&m, E(WORLD), 0, &out);
    step(&m, E(SIGNAL), SIGTERM, &out);
    assert_int_equal(m.state, S(KILLING));
    assert_int_equal(out.list[0].kind, AGENT_ACTION_SIGNAL_WORKERS);
    assert_int_equal(out.list[out.count - 1].kind, AGENT_ACTION_KILL_ALL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_cell_answers_as_the_table_says),
        cmocka_unit_test(every_other_event_is_ignored),
        cmocka_unit_test(survivors_go_on_where_they_are_to),
        cmocka_unit_test(patience_of_a_preemption),
        cmocka_unit_test(a_preemption_by_sigterm_at_once),
        cmocka_unit_test(a_signal_hurries_a_preemption),
        cmocka_unit_test(a_change_hurries_a_preemption_of_this_node_alone),
        cmocka_unit_test(whoever_is_cut_off_is_killed),
        cmocka_unit_test(who_waits_for_others_after_a_preemption),
        cmocka_unit_test(the_job_decides_on_restarts),
        cmocka_unit_test(a_denial_while_stopping_ends_with_the_report),
        cmocka_unit_test(a_success_of_one_attempt_is_none_of_the_next),
        cmocka_unit_test(a_node_without_survivors_waits_for_the_others),
        cmocka_unit_test(restarts_are_consumed_by_failures_only),
        cmocka_unit_test(a_signal_before_the_first_world_is_died_of),
        cmocka_unit_test(without_patience_nobody_is_asked_to_end),
        cmocka_unit_test(without_patience_workers_are_killed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
