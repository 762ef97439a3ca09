/* The legacy etcd rendezvous of one node against an etcd that is a few variables: each test plays the other nodes by
 * writing the value themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/etcd_legacy/etcd_machine.h"

enum { JOIN_MS = 60000, LAST_CALL_MS = 30000, CLOSE_MS = 20000, CALLS_MAX = 40 };

/* What etcd holds, and the node that talks to it. */
struct scene {
    struct etcd_machine machine;
    int64_t now_ms;
    char *world; /* NULL: none */
    uint32_t ttl_s;
    uint64_t counter;
    unsigned calls[ETCD_CALL_TOUCH + 1];
    bool misses, all_muster; /* what READ_MEMBERS finds: of two members */
    uint32_t done;           /* so many of them are, and those that are missing first */
    bool refuse_next_write;
    int64_t wake_ms;
};

static void set_world(struct scene *s, char *text) {
    assert_non_null(text);
    free(s->world);
    s->world = text;
}

static void begin(struct scene *s, uint32_t min_nodes, uint32_t max_nodes) {
    struct etcd_machine_settings settings = {.min_nodes = min_nodes,
                                             .max_nodes = max_nodes,
                                             .join_timeout_ms = JOIN_MS,
                                             .last_call_timeout_ms = LAST_CALL_MS,
                                             .close_timeout_ms = CLOSE_MS,
                                             .versions = "/r/v_"};
    *s = (struct scene){.now_ms = 1000};
    etcd_machine_init(&s->machine, &settings);
}

static void end(struct scene *s) {
    etcd_machine_done(&s->machine);
    free(s->world);
}

/* Carries out one call; returns the event to feed. */
static enum etcd_event carry_out(struct scene *s, struct etcd_actions *actions) {
    s->calls[actions->call]++;
    switch (actions->call) {
    case ETCD_CALL_READ_WORLD:
        break;
    case ETCD_CALL_CREATE_WORLD:
    case ETCD_CALL_WRITE_WORLD:
        if (s->refuse_next_write || (actions->call == ETCD_CALL_CREATE_WORLD && s->world)) {
            s->refuse_next_write = false;
            free(actions->value);
            return ETCD_EVENT_REFUSED;
        }
        set_world(s, actions->value);
        s->ttl_s = actions->ttl_s;
        break;
    case ETCD_CALL_DELETE_WORLD:
        free(s->world);
        s->world = NULL;
        break;
    case ETCD_CALL_READ_COUNTER:
        s->machine.counter = s->counter;
        return ETCD_EVENT_COUNTER;
    case ETCD_CALL_WRITE_COUNTER:
        s->counter = s->machine.counter;
        return ETCD_EVENT_DONE;
    case ETCD_CALL_READ_MEMBERS:
        s->machine.members = (struct etcd_members){.all_muster = s->all_muster,
                                                   .view = {.world_size = 2,
                                                            .arrived = s->done,
                                                            .missing = s->misses,
                                                            .missing_done = s->misses && s->done > 0,
                                                            .recorded_done = s->done}};
        return ETCD_EVENT_MEMBERS;
    case ETCD_CALL_MAKE_VERSION:
    case ETCD_CALL_TOUCH:
        return ETCD_EVENT_DONE;
    case ETCD_CALL_NONE:
        fail();
    }
    assert_int_equal(etcd_machine_adopt(&s->machine, s->world), 0);
    return ETCD_EVENT_DONE;
}

/* Feeds the event and carries out all calls that follow from it; the first verdict. */
static enum etcd_verdict feed(struct scene *s, enum etcd_event event) {
    enum etcd_verdict verdict = ETCD_VERDICT_NONE;
    for (unsigned i = 0; i < CALLS_MAX; i++) {
        struct etcd_actions actions;
        assert_int_equal(etcd_machine_step(&s->machine, event, s->now_ms, &actions), 0);
        verdict = verdict ? verdict : actions.verdict;
        s->wake_ms = actions.wake_ms;
        if (actions.call == ETCD_CALL_NONE) {
            return verdict;
        }
        event = carry_out(s, &actions);
    }
    fail_msg("calls without an end");
    return verdict;
}

/* Another node has written; the watch tells. */
static enum etcd_verdict other_writes(struct scene *s, char *text) {
    set_world(s, text);
    assert_int_equal(etcd_machine_adopt(&s->machine, s->world), 0);
    return feed(s, ETCD_EVENT_SEEN);
}

static enum etcd_verdict other_deletes(struct scene *s) {
    free(s->world);
    s->world = NULL;
    assert_int_equal(etcd_machine_adopt(&s->machine, NULL), 0);
    return feed(s, ETCD_EVENT_SEEN);
}

static enum etcd_verdict time_passes(struct scene *s, int64_t ms) {
    s->now_ms += ms;
    return feed(s, ETCD_EVENT_TIMER);
}

/* A member of a world of two, of which the other one confirms last. */
static void become_member(struct scene *s, uint32_t max_nodes, bool all_muster) {
    begin(s, 1, max_nodes);
    s->all_muster = all_muster;
    assert_int_equal(feed(s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    (void)other_writes(s, etcd_world_join(s->world, max_nodes == 2));
    if (max_nodes > 2) {
        (void)time_passes(s, LAST_CALL_MS);
    }
    assert_int_equal(other_writes(s, etcd_world_confirm(s->world, "/r/v_1/rank_1")), ETCD_VERDICT_JOINED);
}

/* ---- forming ---- */

static void one_node_forms_a_world_of_one(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 1);
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_JOINED);
    assert_string_equal(s.world, "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": "
                                 "[\"/r/v_1/rank_0\"], \"num_workers_waiting\": 0}");
    assert_int_equal(s.ttl_s, 0);
    assert_int_equal(s.counter, 1);
    assert_int_equal(s.calls[ETCD_CALL_TOUCH], 1);
    end(&s);
}

static void the_first_of_two_waits_without_a_time_to_live(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 2, 2);
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_string_equal(s.world, "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [0]}");
    assert_int_equal(s.ttl_s, 0);
    assert_int_equal(other_writes(&s, etcd_world_join(s.world, true)), ETCD_VERDICT_NONE); /* confirms */
    assert_int_equal(s.ttl_s, 10);
    assert_int_equal(other_writes(&s, etcd_world_confirm(s.world, "/r/v_1/rank_1")), ETCD_VERDICT_JOINED);
    assert_int_equal(s.machine.rank, 0);
    end(&s);
}

static void the_last_of_two_freezes(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 2, 2);
    set_world(&s, etcd_world_join("{\"status\": \"joinable\", \"version\": \"4\", \"participants\": []}", false));
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.machine.rank, 1);
    assert_int_equal(s.machine.world.status, ETCD_WORLD_FROZEN);
    assert_int_equal(s.machine.world.confirmed, 1);
    assert_int_equal(s.ttl_s, 10);
    assert_int_equal(other_writes(&s, etcd_world_confirm(s.world, "/r/v_4/rank_0")), ETCD_VERDICT_JOINED);
    end(&s);
}

static void who_makes_the_minimum_complete_holds_the_last_call(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 3);
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.ttl_s, 10);
    assert_int_equal(s.wake_ms, s.now_ms + 5000);
    unsigned writes = s.calls[ETCD_CALL_WRITE_WORLD];
    assert_int_equal(time_passes(&s, 5000), ETCD_VERDICT_NONE); /* keeps it alive */
    assert_int_equal(s.calls[ETCD_CALL_WRITE_WORLD], writes + 1);
    assert_int_equal(s.machine.world.status, ETCD_WORLD_JOINABLE);
    assert_int_equal(time_passes(&s, LAST_CALL_MS - 5000), ETCD_VERDICT_JOINED);
    assert_int_equal(s.machine.world.participants, 1);
    end(&s);
}

static void the_others_do_not_hold_it(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 3);
    set_world(&s, etcd_world_join("{\"status\": \"joinable\", \"version\": \"1\", \"participants\": []}", false));
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.wake_ms, s.now_ms + JOIN_MS);
    assert_int_equal(time_passes(&s, LAST_CALL_MS), ETCD_VERDICT_NONE);
    assert_int_equal(s.machine.world.status, ETCD_WORLD_JOINABLE);
    end(&s);
}

static void a_lost_race_is_run_again(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 1);
    set_world(&s, etcd_world_joinable("1"));
    s.refuse_next_write = true;
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_JOINED);
    assert_int_equal(s.calls[ETCD_CALL_READ_WORLD], 2);
    end(&s);
}

static void a_setup_of_another_is_waited_for(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 1);
    set_world(&s, etcd_world_setup());
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.calls[ETCD_CALL_WRITE_WORLD], 0);
    assert_int_equal(other_deletes(&s), ETCD_VERDICT_JOINED); /* its maker died: it has expired */
    end(&s);
}

static void nobody_confirms_in_time(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 2, 2);
    (void)feed(&s, ETCD_EVENT_JOIN);
    (void)other_writes(&s, etcd_world_join(s.world, true));
    assert_int_equal(other_deletes(&s), ETCD_VERDICT_NONE); /* the frozen world has expired: a new one */
    assert_string_equal(s.world, "{\"status\": \"joinable\", \"version\": \"2\", \"participants\": [0]}");
    end(&s);
}

static void it_takes_too_long(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 2, 2);
    (void)feed(&s, ETCD_EVENT_JOIN);
    assert_int_equal(time_passes(&s, JOIN_MS - 1), ETCD_VERDICT_NONE);
    assert_int_equal(time_passes(&s, 1), ETCD_VERDICT_TIMEOUT);
    end(&s);
}

static void a_closed_one_is_not_joined(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 1);
    set_world(&s, etcd_world_close("{\"status\": \"setup\"}"));
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_CLOSED);
    end(&s);
}

/* ---- arriving at a round that runs ---- */

#define RUNNING                                                                                                        \
    "{\"status\": \"final\", \"version\": \"3\", \"participants\": [0], \"keep_alives\": [\"/r/v_3/rank_0\"], "        \
    "\"num_workers_waiting\": 0}"

static void a_newcomer_says_that_it_waits(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 2);
    s.counter = 3;
    set_world(&s, strdup(RUNNING));
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.machine.world.waiting, 1);
    assert_int_equal(other_writes(&s, etcd_world_wait(s.world)), ETCD_VERDICT_NONE);
    assert_int_equal(s.machine.world.waiting, 2); /* once is enough */
    (void)other_deletes(&s);
    assert_string_equal(s.machine.version, "4");
    end(&s);
}

/* Its keep-alive would have expired, had it been killed before. */
static void a_second_node_of_a_job_of_one_is_refused(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 1);
    set_world(&s, strdup(RUNNING));
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_string_equal(s.world, RUNNING); /* nobody is counted as waiting */
    assert_int_equal(time_passes(&s, s.wake_ms - s.now_ms), ETCD_VERDICT_TAKEN);
    end(&s);
}

/* A full round of two, and its spare, when the job is closed after `done` members have succeeded. */
static enum etcd_verdict close_with_a_spare(uint32_t done) {
    struct scene s;
    begin(&s, 2, 2);
    set_world(&s, strdup("{\"status\": \"final\", \"version\": \"3\", \"participants\": [0, 1], \"keep_alives\": "
                         "[\"/r/v_3/rank_0\", \"/r/v_3/rank_1\"], \"num_workers_waiting\": 0}"));
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_true(etcd_machine_is_spare(&s.machine));
    s.done = done;
    enum etcd_verdict verdict = other_writes(&s, etcd_world_close(s.world));
    assert_false(etcd_machine_is_spare(&s.machine));
    end(&s);
    return verdict;
}

static void a_spare_ends_as_the_job_does(void **state) {
    (void)state;
    assert_int_equal(close_with_a_spare(2), ETCD_VERDICT_SPARE_RELEASED);
    assert_int_equal(close_with_a_spare(1), ETCD_VERDICT_CLOSED);
}

static void a_newcomer_ends_a_round_with_a_dead_member(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 1);
    s.counter = 3;
    set_world(&s, strdup(RUNNING));
    (void)feed(&s, ETCD_EVENT_JOIN);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 0);
    s.misses = true;
    assert_int_equal(feed(&s, ETCD_EVENT_EXPIRED), ETCD_VERDICT_JOINED);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 1);
    assert_string_equal(s.machine.version, "4");
    end(&s);
}

/* ---- a member ---- */

static void a_member_hears_who_waits_once(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 3, true);
    assert_int_equal(other_writes(&s, etcd_world_wait(s.world)), ETCD_VERDICT_NODE_ARRIVED);
    assert_int_equal(other_writes(&s, etcd_world_wait(s.world)), ETCD_VERDICT_NONE);
    assert_int_equal(other_deletes(&s), ETCD_VERDICT_NODE_LEFT); /* who agrees on ranks yet must not wait for it */
    end(&s);
}

static void a_full_round_of_ours_lets_spares_wait(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    assert_int_equal(other_writes(&s, etcd_world_wait(s.world)), ETCD_VERDICT_NONE);
    end(&s);
    become_member(&s, 2, false); /* PyTorch's: a member that restarts is seen like that */
    assert_int_equal(other_writes(&s, etcd_world_wait(s.world)), ETCD_VERDICT_NODE_ARRIVED);
    end(&s);
}

static void a_member_hears_that_its_round_is_over(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    assert_int_equal(other_deletes(&s), ETCD_VERDICT_NODE_LEFT);
    end(&s);
}

static void an_expired_keep_alive_gets_grace(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    unsigned reads = s.calls[ETCD_CALL_READ_MEMBERS];
    assert_int_equal(feed(&s, ETCD_EVENT_EXPIRED), ETCD_VERDICT_NONE);
    assert_int_equal(s.calls[ETCD_CALL_READ_MEMBERS], reads);
    assert_int_equal(time_passes(&s, s.wake_ms - s.now_ms), ETCD_VERDICT_NONE); /* it is back */
    assert_int_equal(s.calls[ETCD_CALL_READ_MEMBERS], reads + 1);
    s.misses = true;
    assert_int_equal(feed(&s, ETCD_EVENT_EXPIRED), ETCD_VERDICT_NONE);
    assert_int_equal(time_passes(&s, s.wake_ms - s.now_ms), ETCD_VERDICT_NODE_LEFT);
    end(&s);
}

static void an_etcd_that_was_away_gives_grace_to_all(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    (void)feed(&s, ETCD_EVENT_EXPIRED); /* the watch has ended with etcd */
    s.misses = true;
    s.now_ms += 60000;
    etcd_machine_excuse(&s.machine, s.now_ms);
    assert_int_equal(feed(&s, ETCD_EVENT_TIMER), ETCD_VERDICT_NONE);
    assert_int_equal(time_passes(&s, s.wake_ms - s.now_ms), ETCD_VERDICT_NODE_LEFT);
    end(&s);
}

static void a_newcomer_gives_grace_too(void **state) {
    struct scene s;
    (void)state;
    begin(&s, 1, 1);
    s.counter = 3;
    set_world(&s, strdup(RUNNING));
    (void)feed(&s, ETCD_EVENT_JOIN);
    s.misses = true;
    etcd_machine_excuse(&s.machine, s.now_ms);
    (void)feed(&s, ETCD_EVENT_EXPIRED);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 0);
    assert_int_equal(time_passes(&s, s.wake_ms - s.now_ms), ETCD_VERDICT_JOINED);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 1);
    end(&s);
}

static void a_done_member_is_not_missed(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    s.misses = true;
    s.done = 1;
    assert_int_equal(feed(&s, ETCD_EVENT_DELETED), ETCD_VERDICT_DONE_NODE_LEFT);
    assert_int_equal(s.wake_ms, INT64_MAX);
    s.done = 0; /* another one, which was not */
    assert_int_equal(feed(&s, ETCD_EVENT_DELETED), ETCD_VERDICT_NODE_LEFT);
    end(&s);
}

static void a_newcomer_stays_out_once_a_member_is_done(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 3, true);
    s.done = 1;
    assert_int_equal(other_writes(&s, etcd_world_wait(s.world)), ETCD_VERDICT_NODE_STAYS_OUT);
    assert_int_equal(other_writes(&s, etcd_world_wait(s.world)), ETCD_VERDICT_NONE);
    end(&s);
}

static void a_member_lost_from_a_closed_job_is_a_failure(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    assert_int_equal(other_writes(&s, etcd_world_close(s.world)), ETCD_VERDICT_NONE);
    assert_int_equal(feed(&s, ETCD_EVENT_DELETED), ETCD_VERDICT_NONE); /* it is there */
    s.misses = true;
    assert_int_equal(feed(&s, ETCD_EVENT_DELETED), ETCD_VERDICT_FAILED);
    end(&s);
}

static void a_round_that_needs_a_done_member_is_not_joined(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    s.machine.settings.min_nodes = 2;
    s.done = 1;
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_TOO_FEW);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 0);
    assert_int_equal(feed(&s, ETCD_EVENT_CLOSE), ETCD_VERDICT_DONE);
    assert_int_equal(s.machine.world.status, ETCD_WORLD_CLOSED);
    end(&s);
    become_member(&s, 2, true); /* one node is enough */
    s.done = 1;
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 1);
    end(&s);
}

static void a_done_member_leaves_the_round_alone(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    s.machine.is_done = true;
    assert_int_equal(feed(&s, ETCD_EVENT_LEAVE), ETCD_VERDICT_DONE);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 0);
    assert_int_equal(s.machine.world.waiting, 0);
    end(&s);
}

static void one_that_was_taken_back_gets_none(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    s.misses = true;
    assert_int_equal(feed(&s, ETCD_EVENT_DELETED), ETCD_VERDICT_NODE_LEFT);
    end(&s);
}

static void ours_end_their_round_when_they_join_again(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 1);
    assert_string_equal(s.world, "{\"status\": \"joinable\", \"version\": \"2\", \"participants\": [0]}");
    end(&s);
}

static void among_pytorchs_a_member_waits_for_its_keep_alive_to_expire(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, false);
    assert_int_equal(feed(&s, ETCD_EVENT_JOIN), ETCD_VERDICT_NONE);
    assert_int_equal(s.machine.world.waiting, 1);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 0);
    s.misses = true;
    (void)feed(&s, ETCD_EVENT_EXPIRED);
    assert_int_equal(s.calls[ETCD_CALL_DELETE_WORLD], 1);
    assert_string_equal(s.machine.version, "2");
    end(&s);
}

/* ---- the end ---- */

static void closing_marks_the_world(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, false);
    s.refuse_next_write = true;
    assert_int_equal(feed(&s, ETCD_EVENT_CLOSE), ETCD_VERDICT_DONE);
    assert_int_equal(s.machine.world.status, ETCD_WORLD_CLOSED);
    assert_int_equal(s.ttl_s, 0);
    end(&s);
    begin(&s, 1, 1);
    assert_int_equal(feed(&s, ETCD_EVENT_CLOSE), ETCD_VERDICT_DONE); /* there is nothing to close */
    assert_null(s.world);
    end(&s);
}

static void a_member_that_leaves_is_seen(void **state) {
    struct scene s;
    (void)state;
    become_member(&s, 2, true);
    assert_int_equal(feed(&s, ETCD_EVENT_LEAVE), ETCD_VERDICT_DONE);
    assert_null(s.world);
    end(&s);
    become_member(&s, 2, false);
    assert_int_equal(feed(&s, ETCD_EVENT_LEAVE), ETCD_VERDICT_DONE);
    assert_int_equal(s.machine.world.waiting, 1);
    end(&s);
}

static void an_etcd_that_does_not_answer_delays_no_end(void **state) {
    struct scene s;
    struct etcd_actions actions;
    (void)state;
    become_member(&s, 2, false);
    assert_int_equal(etcd_machine_step(&s.machine, ETCD_EVENT_CLOSE, s.now_ms, &actions), 0);
    assert_int_equal(actions.call, ETCD_CALL_WRITE_WORLD);
    free(actions.value);
    assert_int_equal(actions.wake_ms, s.now_ms + CLOSE_MS);
    assert_int_equal(etcd_machine_step(&s.machine, ETCD_EVENT_TIMER, s.now_ms + CLOSE_MS, &actions), 0);
    assert_int_equal(actions.verdict, ETCD_VERDICT_GIVEN_UP);
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_forms_a_world_of_one),
        cmocka_unit_test(the_first_of_two_waits_without_a_time_to_live),
        cmocka_unit_test(the_last_of_two_freezes),
        cmocka_unit_test(who_makes_the_minimum_complete_holds_the_last_call),
        cmocka_unit_test(the_others_do_not_hold_it),
        cmocka_unit_test(a_lost_race_is_run_again),
        cmocka_unit_test(a_setup_of_another_is_waited_for),
        cmocka_unit_test(nobody_confirms_in_time),
        cmocka_unit_test(it_takes_too_long),
        cmocka_unit_test(a_closed_one_is_not_joined),
        cmocka_unit_test(a_newcomer_says_that_it_waits),
        cmocka_unit_test(a_newcomer_ends_a_round_with_a_dead_member),
        cmocka_unit_test(a_member_hears_who_waits_once),
        cmocka_unit_test(a_full_round_of_ours_lets_spares_wait),
        cmocka_unit_test(a_second_node_of_a_job_of_one_is_refused),
        cmocka_unit_test(a_spare_ends_as_the_job_does),
        cmocka_unit_test(a_member_hears_that_its_round_is_over),
        cmocka_unit_test(an_expired_keep_alive_gets_grace),
        cmocka_unit_test(an_etcd_that_was_away_gives_grace_to_all),
        cmocka_unit_test(a_newcomer_gives_grace_too),
        cmocka_unit_test(a_done_member_is_not_missed),
        cmocka_unit_test(a_newcomer_stays_out_once_a_member_is_done),
        cmocka_unit_test(a_member_lost_from_a_closed_job_is_a_failure),
        cmocka_unit_test(a_round_that_needs_a_done_member_is_not_joined),
        cmocka_unit_test(a_done_member_leaves_the_round_alone),
        cmocka_unit_test(one_that_was_taken_back_gets_none),
        cmocka_unit_test(ours_end_their_round_when_they_join_again),
        cmocka_unit_test(among_pytorchs_a_member_waits_for_its_keep_alive_to_expire),
        cmocka_unit_test(closing_marks_the_world),
        cmocka_unit_test(a_member_that_leaves_is_seen),
        cmocka_unit_test(an_etcd_that_does_not_answer_delays_no_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
