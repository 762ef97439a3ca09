/* The order in which an agent's events are taken and its actions carried out. */
#include "agent/dispatch.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CAPACITY = 3 };

struct scene {
    struct agent_machine machine;
    struct agent_dispatch dispatch;
    char log[512]; /* "+event" and "action", in their order */
    /* Raised when that action is carried out. */
    enum agent_action_kind raising;
    enum agent_event_kind raised[CAPACITY + 1];
    size_t raised_count, dropped_count;
    bool stops; /* instead */
};

static void note(struct scene *s, const char *mark, const char *name) {
    size_t used = strlen(s->log);
    (void)snprintf(s->log + used, sizeof s->log - used, "%s%s ", mark, name);
}

static bool feed(struct agent_dispatch *d, enum agent_event_kind kind, int number) {
    return agent_dispatch_feed(d, (struct agent_event){.kind = kind, .number = number});
}

static void perform(void *ctx, const struct agent_action *action) {
    struct scene *s = ctx;
    note(s, "", agent_action_name(action->kind));
    if (action->kind != s->raising) {
        return;
    }
    if (s->stops) {
        agent_dispatch_stop(&s->dispatch);
    }
    for (size_t i = 0; i < s->raised_count; i++) {
        s->dropped_count += !feed(&s->dispatch, s->raised[i], SIGTERM);
    }
}

static void on_step(void *ctx, enum agent_state before, const struct agent_event *event) {
    (void)before;
    note(ctx, "+", agent_event_name(event->kind));
}

static void begin(struct scene *s, enum agent_action_kind raising, const enum agent_event_kind *raised, size_t count) {
    static const struct agent_dispatch_callbacks callbacks = {.perform = perform, .on_step = on_step};
    *s = (struct scene){.raising = raising, .raised_count = count};
    memcpy(s->raised, raised, count * sizeof *raised);
    agent_machine_init(&s->machine, 1, 1, 1000, false);
    assert_int_equal(agent_dispatch_init(&s->dispatch, &s->machine, CAPACITY, &callbacks, s), 0);
}

static void end(struct scene *s) {
    agent_dispatch_done(&s->dispatch);
    agent_dispatch_done(&s->dispatch); /* harmless */
}

/* The world changes while the workers are being signalled because of one that failed: the timer comes first. */
static void what_an_action_raises_comes_after_all_of_its_event(void **state) {
    (void)state;
    struct scene s;
    begin(&s, AGENT_ACTION_SIGNAL_WORKERS, (enum agent_event_kind[]){AGENT_EVENT_WORKER_FAILED}, 1);
    agent_dispatch_start(&s.dispatch);
    assert_true(feed(&s.dispatch, AGENT_EVENT_WORLD, 0));
    assert_true(feed(&s.dispatch, AGENT_EVENT_SIGNAL, SIGTERM));
    assert_string_equal(s.log, "JOIN +WORLD START_WORKERS +SIGNAL SIGNAL_WORKERS START_TIMER +WORKER_FAILED STOP_TIMER "
                               "KILL_ALL ");
    end(&s);
}

static void what_the_first_action_raises_is_taken(void **state) {
    (void)state;
    struct scene s;
    begin(&s, AGENT_ACTION_JOIN, (enum agent_event_kind[]){AGENT_EVENT_WORLD}, 1);
    agent_dispatch_start(&s.dispatch);
    assert_string_equal(s.log, "JOIN +WORLD START_WORKERS ");
    end(&s);
}

/* Round the ring, and one too many. */
static void one_event_too_many_is_dropped(void **state) {
    (void)state;
    struct scene s;
    enum agent_event_kind many[] = {AGENT_EVENT_STOP, AGENT_EVENT_DRAINED, AGENT_EVENT_GONE, AGENT_EVENT_CLOSED};
    begin(&s, AGENT_ACTION_START_WORKERS, many, CAPACITY + 1);
    agent_dispatch_start(&s.dispatch);
    assert_true(feed(&s.dispatch, AGENT_EVENT_CLOSED, 0));
    assert_true(feed(&s.dispatch, AGENT_EVENT_WORLD, 0));
    assert_int_equal(s.dropped_count, 1);
    assert_string_equal(s.log, "JOIN +CLOSED +WORLD START_WORKERS +STOP REQUEST_STOP START_TIMER +DRAINED +GONE ");
    end(&s);
}

static void nothing_is_taken_after_the_end(void **state) {
    (void)state;
    struct scene s;
    begin(&s, AGENT_ACTION_START_WORKERS, (enum agent_event_kind[]){AGENT_EVENT_SIGNAL}, 1);
    s.stops = true;
    agent_dispatch_start(&s.dispatch);
    assert_true(feed(&s.dispatch, AGENT_EVENT_WORLD, 0));
    assert_true(feed(&s.dispatch, AGENT_EVENT_SIGNAL, SIGTERM));
    assert_string_equal(s.log, "JOIN +WORLD START_WORKERS ");
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_action_raises_comes_after_all_of_its_event),
        cmocka_unit_test(what_the_first_action_raises_is_taken),
        cmocka_unit_test(one_event_too_many_is_dropped),
        cmocka_unit_test(nothing_is_taken_after_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
