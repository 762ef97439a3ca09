/* The pause before a restart, by a clock of the test's own; and the machine that obeys it. */
#include "agent/policy/backoff.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "agent/policy/machine.h"

enum { MAX_MS = 30000, LIFE_MS = 10 };

static void pauses_double_up_to_the_maximum(void **state) {
    (void)state;
    static const int64_t pauses_ms[] = {0, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000};
    struct agent_backoff b = {.max_ms = MAX_MS};
    for (size_t i = 0; i < sizeof pauses_ms / sizeof *pauses_ms; i++) {
        assert_int_equal(agent_backoff_ended(&b, AGENT_BACKOFF_YOUNG_MS - 1, true), pauses_ms[i]);
    }
    b.young_count = UINT32_MAX; /* after years of it */
    assert_int_equal(agent_backoff_ended(&b, 0, true), MAX_MS);
}

static void an_attempt_that_lived_begins_anew(void **state) {
    (void)state;
    struct agent_backoff b = {.max_ms = MAX_MS, .young_count = 7};
    assert_int_equal(agent_backoff_ended(&b, AGENT_BACKOFF_YOUNG_MS, true), 0);
    assert_int_equal(agent_backoff_ended(&b, 1, true), 500);
    assert_int_equal(agent_backoff_ended(&b, AGENT_BACKOFF_YOUNG_MS, false), 0);
    assert_int_equal(b.young_count, 0);
}

/* Nodes that come and go say nothing about the program. */
static void an_attempt_that_did_not_fail_counts_for_nothing(void **state) {
    (void)state;
    struct agent_backoff b = {.max_ms = MAX_MS, .young_count = 2};
    assert_int_equal(agent_backoff_ended(&b, 1, false), 0);
    assert_int_equal(b.young_count, 2);
    assert_int_equal(agent_backoff_ended(&b, 1, true), 1000);
}

static void a_maximum_of_nothing_is_no_pause(void **state) {
    (void)state;
    struct agent_backoff b = {.max_ms = 0};
    for (int i = 0; i < 10; i++) {
        assert_int_equal(agent_backoff_ended(&b, 0, true), 0);
    }
}

/* ---- the machine ---- */

struct node {
    struct agent_machine machine;
    struct agent_actions actions;
    int64_t now_ms;
};

static void node_begin(struct node *n, uint32_t restarts) {
    *n = (struct node){.now_ms = 1234};
    agent_machine_init(&n->machine, 1, restarts, 1000, false);
    agent_machine_set_backoff(&n->machine, MAX_MS);
}

static void feed(struct node *n, enum agent_event_kind kind, int number) {
    struct agent_event event = {.kind = kind, .number = number, .now_ms = n->now_ms};
    agent_machine_step(&n->machine, &event, &n->actions);
}

/* One attempt of `lived_ms` that fails; then the machine pauses, joins, or ends. */
static void fail_after(struct node *n, int64_t lived_ms) {
    feed(n, AGENT_EVENT_WORLD, 0);
    n->now_ms += lived_ms;
    feed(n, AGENT_EVENT_WORKER_FAILED, 0);
    feed(n, AGENT_EVENT_GONE, 0);
    feed(n, AGENT_EVENT_DRAINED, 0);
}

static void assert_only(const struct node *n, enum agent_action_kind kind, int64_t number) {
    assert_int_equal(n->actions.count, 1);
    assert_string_equal(agent_action_name(n->actions.list[0].kind), agent_action_name(kind));
    assert_int_equal(n->actions.list[0].number, number);
}

/* A node that pauses for 500 ms, after its second failure. */
static void node_pause(struct node *n) {
    node_begin(n, 9);
    fail_after(n, LIFE_MS);
    assert_only(n, AGENT_ACTION_JOIN, 0);
    fail_after(n, LIFE_MS);
    assert_int_equal(n->machine.state, AGENT_STATE_PAUSING);
    assert_only(n, AGENT_ACTION_PAUSE, 500);
}

/* A file server that is away for 1.5 s used up three restarts within 15 ms. */
static void three_restarts_carry_a_fault_of_a_second_and_a_half(void **state) {
    (void)state;
    struct node n;
    node_begin(&n, 3);
    const int64_t mended_ms = n.now_ms + 1500;
    for (;;) {
        if (n.now_ms >= mended_ms) {
            break;
        }
        fail_after(&n, LIFE_MS);
        assert_int_not_equal(n.machine.state, AGENT_STATE_CLOSING); /* the job would be lost */
        if (n.machine.state == AGENT_STATE_PAUSING) {
            n.now_ms += n.actions.list[0].number;
            feed(&n, AGENT_EVENT_DEADLINE, 0);
        }
        assert_only(&n, AGENT_ACTION_JOIN, 0);
    }
    assert_int_equal(agent_machine_restart_count(&n.machine), 3);
}

static void a_signal_ends_the_pause(void **state) {
    (void)state;
    struct node n;
    node_pause(&n);
    feed(&n, AGENT_EVENT_SIGNAL, SIGTERM);
    assert_int_equal(n.machine.state, AGENT_STATE_CLOSING);
    assert_int_equal(n.machine.outcome, AGENT_OUTCOME_SIGNALLED);
    assert_int_equal(n.actions.list[0].kind, AGENT_ACTION_STOP_TIMER);
    assert_int_equal(n.actions.list[1].kind, AGENT_ACTION_LEAVE_JOB);
    feed(&n, AGENT_EVENT_CLOSED, 0);
    assert_only(&n, AGENT_ACTION_EXIT, 1);
}

static void a_preemption_ends_the_pause(void **state) {
    (void)state;
    static const enum agent_event_kind told[] = {AGENT_EVENT_PREEMPT, AGENT_EVENT_STOP};
    for (size_t i = 0; i < 2; i++) {
        struct node n;
        node_pause(&n);
        feed(&n, told[i], 5000);
        assert_int_equal(n.machine.state, AGENT_STATE_CLOSING);
        assert_int_equal(n.machine.outcome, AGENT_OUTCOME_PREEMPTED);
    }
}

static void a_lost_rendezvous_ends_the_pause(void **state) {
    (void)state;
    struct node n;
    node_pause(&n);
    feed(&n, AGENT_EVENT_RDZV_FAILED, 0);
    assert_int_equal(n.machine.state, AGENT_STATE_DRAINING); /* the cause may come from another node */
    feed(&n, AGENT_EVENT_DRAINED, 0);
    assert_int_equal(n.machine.state, AGENT_STATE_CLOSING);
    assert_int_equal(n.machine.outcome, AGENT_OUTCOME_RDZV_LOST);
}

/* What happens to the others does not matter to a node that has not joined. */
static void the_others_do_not_end_the_pause(void **state) {
    (void)state;
    struct node n;
    node_pause(&n);
    feed(&n, AGENT_EVENT_WORLD_CHANGED, 0);
    assert_int_equal(n.actions.count, 0);
    feed(&n, AGENT_EVENT_DEADLINE, 0);
    assert_only(&n, AGENT_ACTION_JOIN, 0);
}

/* The job counts restarts: a node whose workers were stopped for another's failure does not pause, and one that will be
 * denied a restart asks at once. */
static void only_a_failure_of_ones_own_that_can_be_made_good_is_waited_for(void **state) {
    (void)state;
    struct node n;
    node_pause(&n);
    feed(&n, AGENT_EVENT_DEADLINE, 0);
    feed(&n, AGENT_EVENT_WORLD, 0);
    feed(&n, AGENT_EVENT_WORLD_CHANGED, 0);
    feed(&n, AGENT_EVENT_WORKER_FAILED, 0);
    feed(&n, AGENT_EVENT_GONE, 0);
    feed(&n, AGENT_EVENT_DRAINED, 0);
    assert_only(&n, AGENT_ACTION_JOIN, 0);

    agent_machine_set_job_restarts(&n.machine, 4, 4);
    fail_after(&n, LIFE_MS);
    assert_only(&n, AGENT_ACTION_JOIN, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_double_up_to_the_maximum),
        cmocka_unit_test(an_attempt_that_lived_begins_anew),
        cmocka_unit_test(an_attempt_that_did_not_fail_counts_for_nothing),
        cmocka_unit_test(a_maximum_of_nothing_is_no_pause),
        cmocka_unit_test(three_restarts_carry_a_fault_of_a_second_and_a_half),
        cmocka_unit_test(a_signal_ends_the_pause),
        cmocka_unit_test(a_preemption_ends_the_pause),
        cmocka_unit_test(a_lost_rendezvous_ends_the_pause),
        cmocka_unit_test(the_others_do_not_end_the_pause),
        cmocka_unit_test(only_a_failure_of_ones_own_that_can_be_made_good_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
