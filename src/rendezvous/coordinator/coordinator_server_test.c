/* The coordinator on a store's port, over real sockets: rounds, failures, departures, ends. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/loop_clock.h"
#include "rendezvous/coordinator/coordinator_talk_test_support.h"

enum { AGENTS_MAX = 64, HOLD_MS = 3600 * 1000 };

/* ---- rounds ---- */

static void everybody_gets_the_world(void **state) {
    struct served *f = *state;
    struct talker agents[3];
    talk_start(f, 3, 3);
    for (unsigned i = 0; i < 3; i++) {
        talk_join(f, &agents[i], i, 3);
    }
    for (unsigned i = 0; i < 3; i++) {
        const struct coordinator_world *world = &talk_hear(f, &agents[i], COORDINATOR_WORLD)->world;
        assert_int_equal(world->round, 1);
        assert_int_equal(world->group_rank, i);
        assert_int_equal(world->group_world_size, 3);
        assert_int_equal(world->base_global_rank, 2 * i);
        assert_int_equal(world->global_world_size, 6);
        assert_int_equal(world->master_port, 29500);
        assert_true(kv_slice_equal(world->master_addr, kv_slice_text("127.0.0.1"))); /* where rank 0 calls from */
    }
    assert_int_equal(talk_look(f).phase, COORDINATOR_RUNNING);
    for (unsigned i = 0; i < 3; i++) {
        talk_hang_up(&agents[i]);
    }
    talk_serve_until_members(f, 0);
    assert_int_equal(f->warnings, 0);
}

/* What says nothing is replaced by where the connection comes from; what says something stays. */
static void addresses_come_from_the_connection(void **state) {
    static const struct {
        const char *said, *used;
    } cases[] = {
        {"", "127.0.0.9"},        {"0.0.0.0", "127.0.0.9"}, {"::", "127.0.0.9"}, {"0::0", "127.0.0.9"},
        {"10.1.2.3", "10.1.2.3"}, {"node-a", "node-a"},     {"::1", "::1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct served *f = *state;
        struct talker agent;
        talk_start(f, 1, 1);
        const struct coordinator_message message = talk_join_of(0, cases[i].said, 1, 1);
        talk_call(f, &agent, 9);
        talk_send(&agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
        talk_say(&agent, &message);
        const struct coordinator_world *world = &talk_hear(f, &agent, COORDINATOR_WORLD)->world;
        assert_true(kv_slice_equal(world->master_addr, kv_slice_text(cases[i].used)));
        talk_hang_up(&agent);
        served_close(f);
    }
}

static void a_failure_is_told_and_the_world_formed_anew(void **state) {
    struct served *f = *state;
    struct talker agents[3];
    talk_start(f, 3, 3);
    talk_form(f, agents, 3);
    talk_say_kind(&agents[1], COORDINATOR_FAILED, "rank 2 has ended with exit code 1");
    for (unsigned i = 0; i < 3; i += 2) {
        assert_int_equal(talk_hear(f, &agents[i], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_FAILED);
        assert_true(talk_has_text(&agents[i], "exit code 1"));
        assert_true(talk_has_text(&agents[i], "127.0.0.2"));
    }
    for (unsigned i = 0; i < 3; i++) {
        talk_join_again(&agents[i], i, "", 3, 1);
    }
    for (unsigned i = 0; i < 3; i++) {
        const struct coordinator_message *message = talk_hear(f, &agents[i], COORDINATOR_WORLD);
        assert_int_equal(message->world.round, 2);
        assert_int_equal(message->world.group_rank, i);
        assert_true(talk_has_text(&agents[i], "exit code 1"));
        talk_hang_up(&agents[i]);
    }
}

static void a_lost_connection_is_a_departure(void **state) {
    struct served *f = *state;
    struct talker agents[3], late;
    talk_start(f, 3, 3);
    talk_form(f, agents, 3);
    talk_hang_up(&agents[0]);
    for (unsigned i = 1; i < 3; i++) {
        assert_int_equal(talk_hear(f, &agents[i], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
        talk_join_again(&agents[i], i, "", 3, 1);
    }
    talk_join(f, &late, 5, 3);
    assert_int_equal(talk_hear(f, &late, COORDINATOR_WORLD)->world.group_rank, 2);
    assert_int_equal(talk_hear(f, &agents[1], COORDINATOR_WORLD)->world.group_rank, 0);
    assert_int_equal(talk_hear(f, &agents[2], COORDINATOR_WORLD)->world.group_rank, 1);
    talk_hang_up(&agents[1]);
    talk_hang_up(&agents[2]);
    talk_hang_up(&late);
}

static void leaving_ends_the_connection(void **state) {
    struct served *f = *state;
    struct talker agents[2];
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    talk_say_kind(&agents[0], COORDINATOR_LEAVE, "a signal");
    talk_expect_end(f, &agents[0]);
    assert_int_equal(talk_hear(f, &agents[1], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
    assert_true(talk_has_text(&agents[1], "a signal"));
    assert_int_equal(talk_look(f).member_count, 1);
    assert_int_equal(f->warnings, 0);
    talk_hang_up(&agents[1]);
}

static void the_end_of_a_good_job(void **state) {
    struct served *f = *state;
    struct talker agents[2], late;
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    talk_say_kind(&agents[1], COORDINATOR_DONE, "");
    talk_say_kind(&agents[0], COORDINATOR_DONE, "");
    (void)talk_hear(f, &agents[0], COORDINATOR_ALL_DONE);
    (void)talk_hear(f, &agents[1], COORDINATOR_ALL_DONE);
    talk_join(f, &late, 2, 2);
    assert_int_equal(talk_hear(f, &late, COORDINATOR_REFUSED)->status, MUSTER_ECLOSED);
    talk_expect_end(f, &late);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
    assert_int_equal(f->warnings, 0);
}

static void a_closed_job_is_told_to_everybody(void **state) {
    struct served *f = *state;
    struct talker agents[2], spare;
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    talk_join(f, &spare, 2, 2);
    (void)talk_hear(f, &spare, COORDINATOR_SPARE);
    talk_say_kind(&agents[0], COORDINATOR_CLOSE, "no restarts are left");
    (void)talk_hear(f, &agents[1], COORDINATOR_CLOSED);
    assert_true(talk_has_text(&agents[1], "no restarts are left"));
    (void)talk_hear(f, &spare, COORDINATOR_CLOSED);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
    talk_hang_up(&spare);
}

/* The only thing that happens is that time passes. */
static void the_last_call_ends_by_the_clock(void **state) {
    struct served *f = *state;
    struct talker agents[2];
    struct coordinator_server_options options = talk_options(2, 3);
    options.coordinator.last_call_timeout_ms = 20;
    served_open_with(f, &options, (struct kv_server_options){0});
    for (unsigned i = 0; i < 2; i++) {
        talk_join_some(f, &agents[i], i, 2, 3);
    }
    assert_int_equal(talk_hear(f, &agents[0], COORDINATOR_WORLD)->world.group_world_size, 2);
    assert_int_equal(talk_hear(f, &agents[1], COORDINATOR_WORLD)->world.group_world_size, 2);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

/* A coordinator of several that was away when the last call ended: a member has left meanwhile. */
static void what_came_during_an_absence_is_read_first(void **state) {
    enum { LAST_CALL_MS = 20, AWAY_MS = 2000, TURNS = 20 };
    struct served *f = *state;
    struct talker agents[2];
    struct loop_clock clock;
    struct coordinator_server_options options = talk_options(2, 3);
    options.coordinator.last_call_timeout_ms = LAST_CALL_MS;
    options.coordinator.places.count = 3;
    options.clock = &clock;
    loop_clock_start(&clock, &f->loop);
    served_open_with(f, &options, (struct kv_server_options){0});
    for (unsigned i = 0; i < 2; i++) {
        talk_join_some(f, &agents[i], i, 2, 3);
    }
    talk_serve_until_members(f, 2);
    talk_say_kind(&agents[0], COORDINATOR_LEAVE, "");
    for (uint64_t began_ms = uv_now(&f->loop); uv_now(&f->loop) <= began_ms + LAST_CALL_MS;) {
        uv_update_time(&f->loop);
    }
    clock.absence.due_ms -= AWAY_MS;
    for (int i = 0; i < TURNS; i++) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(talk_look(f).member_count, 1);
    struct pollfd heard = {.fd = agents[1].fd, .events = POLLIN};
    assert_int_equal(poll(&heard, 1, 0), 0); /* nothing was proposed to it */
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
    loop_clock_close(&clock, NULL);
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
}

/* Nobody of the world is left to be waited for: the departure itself starts the clock. */
static void a_last_call_begins_with_a_departure(void **state) {
    struct served *f = *state;
    struct talker agents[2], late;
    struct coordinator_server_options options = talk_options(1, 2);
    options.coordinator.last_call_timeout_ms = 20;
    served_open_with(f, &options, (struct kv_server_options){0});
    for (unsigned i = 0; i < 2; i++) {
        talk_join_some(f, &agents[i], i, 1, 2);
    }
    (void)talk_hear(f, &agents[0], COORDINATOR_WORLD);
    (void)talk_hear(f, &agents[1], COORDINATOR_WORLD);
    talk_hang_up(&agents[0]);
    (void)talk_hear(f, &agents[1], COORDINATOR_CHANGE);
    talk_join_some(f, &late, 2, 1, 2);
    talk_serve_until_members(f, 2);
    talk_hang_up(&agents[1]);
    const struct coordinator_world *world = &talk_hear(f, &late, COORDINATOR_WORLD)->world;
    assert_int_equal(world->group_world_size, 1);
    assert_int_equal(world->round, 2);
    talk_hang_up(&late);
}

/* ---- silence ---- */

/* Nodes that are all needed, of which the last falls silent. */
static void fall_silent(struct served *f, struct talker agents[2], int64_t hold_ms) {
    struct coordinator_server_options options = talk_options(2, 2);
    options.coordinator.silence_ms = 600; /* a busy machine may stop this process for less */
    options.interval_ms = 20;
    options.coordinator.hold_ms = hold_ms;
    served_open_with(f, &options, (struct kv_server_options){0});
    talk_form(f, agents, 2);
}

/* Over a new connection. */
static void say_first(struct served *f, struct talker *agent, unsigned number,
                      const struct coordinator_message *message) {
    talk_call(f, agent, (uint8_t)(number + 1));
    talk_send(agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    talk_say(agent, message);
}

static struct coordinator_message resume_of(unsigned number, uint64_t session, uint64_t received_count) {
    struct coordinator_message message = talk_join_of(number, "", 2, 2);
    message.kind = COORDINATOR_RESUME;
    message.node.session = session;
    message.received_count = received_count;
    return message;
}

/* Node 0 goes on saying that it is there, until the condition holds; it hears nothing else than answers. */
#define KEEP_TALKING_UNTIL(f, agent, condition)                                                                        \
    while (!(condition)) {                                                                                             \
        talk_say_kind(agent, COORDINATOR_ALIVE, "");                                                                   \
        (void)talk_hear(f, agent, COORDINATOR_HEARD);                                                                  \
    }

static void a_silent_node_that_is_needed_keeps_its_place(void **state) {
    struct served *f = *state;
    struct talker agents[2];
    fall_silent(f, agents, HOLD_MS);
    KEEP_TALKING_UNTIL(f, &agents[0], strstr(f->warning, "no sign of life from node 127.0.0.2 (pid 101)"));
    talk_say_kind(&agents[1], COORDINATOR_ALIVE, "");
    (void)talk_hear(f, &agents[1], COORDINATOR_HEARD);
    assert_non_null(strstr(f->warning, "answers again"));
    assert_int_equal(talk_look(f).phase, COORDINATOR_RUNNING);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

static void a_silent_node_is_given_up_in_the_end(void **state) {
    struct served *f = *state;
    struct talker agents[2];
    fall_silent(f, agents, 700);
    KEEP_TALKING_UNTIL(f, &agents[0], strstr(f->warning, "no sign of life from node 127.0.0.2 (pid 101)"));
    (void)talk_hear(f, &agents[0], COORDINATOR_CHANGE);
    talk_expect_end(f, &agents[1]);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

/* Its first connection still stands here, and nobody will ever speak over it. */
static void a_silent_node_comes_back_over_another_connection(void **state) {
    struct served *f = *state;
    struct talker agents[2], back;
    fall_silent(f, agents, HOLD_MS);
    KEEP_TALKING_UNTIL(f, &agents[0], strstr(f->warning, "no sign of life from node 127.0.0.2 (pid 101)"));
    struct coordinator_message join = talk_join_of(1, "", 2, 2);
    join.node.session = 2;
    say_first(f, &back, 1, &join);
    (void)talk_hear(f, &agents[0], COORDINATOR_CHANGE);
    talk_join_again(&agents[0], 0, "", 2, 1);
    assert_int_equal(talk_hear(f, &back, COORDINATOR_WORLD)->world.round, 2);
    (void)talk_hear(f, &agents[0], COORDINATOR_WORLD);
    talk_expect_end(f, &agents[1]);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
    talk_hang_up(&back);
}

/* Nothing that was said to it is lost, nor said twice. */
static void a_session_outlives_its_connection(void **state) {
    struct served *f = *state;
    struct talker agents[2], back, again;
    fall_silent(f, agents, HOLD_MS);
    KEEP_TALKING_UNTIL(f, &agents[0], strstr(f->warning, "no sign of life from node 127.0.0.2 (pid 101)"));
    const struct coordinator_message resume = resume_of(1, 1, 1); /* it has had the WORLD */
    say_first(f, &back, 1, &resume);
    assert_int_equal(talk_hear(f, &back, COORDINATOR_RESUMED)->received_count, 1);
    assert_non_null(strstr(f->warning, "node 127.0.0.2 (pid 101) answers again after"));
    assert_int_equal(talk_look(f).phase, COORDINATOR_RUNNING);
    talk_expect_end(f, &agents[1]);
    talk_say_kind(&agents[0], COORDINATOR_FAILED, "a worker");
    (void)talk_hear(f, &back, COORDINATOR_CHANGE); /* it gets lost on its way */
    say_first(f, &again, 1, &resume);
    (void)talk_hear(f, &again, COORDINATOR_RESUMED);
    (void)talk_hear(f, &again, COORDINATOR_CHANGE);
    talk_expect_end(f, &back);
    talk_join_again(&agents[0], 0, "", 2, 1);
    talk_join_again(&again, 1, "", 2, 1);
    assert_int_equal(talk_hear(f, &again, COORDINATOR_WORLD)->world.round, 2);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
    talk_hang_up(&back);
    talk_hang_up(&again);
}

static void a_session_that_is_not_known_is_refused(void **state) {
    struct served *f = *state;
    struct talker agents[2], other;
    const struct coordinator_message wrong[] = {resume_of(1, 2, 1), resume_of(2, 1, 1), resume_of(1, 1, 2)};
    fall_silent(f, agents, HOLD_MS);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        say_first(f, &other, 1, &wrong[i]);
        assert_int_equal(talk_hear(f, &other, COORDINATOR_REFUSED)->status, MUSTER_ECONNECT);
        talk_expect_end(f, &other);
        talk_hang_up(&other);
    }
    talk_say_kind(&agents[1], COORDINATOR_ALIVE, "");
    assert_int_equal(talk_hear(f, &agents[1], COORDINATOR_HEARD)->lease_ms, HOLD_MS);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

/* ---- several endpoints ---- */

/* What it says may have been on its way for long: only an answer that it has heard shows that it is here. */
static void talk_that_answers_nothing_is_silence(void **state) {
    struct served *f = *state;
    struct talker deaf;
    struct coordinator_server_options options = talk_options(2, 2);
    options.coordinator.silence_ms = 200;
    options.coordinator.places =
        (struct coordinator_places){.count = 2, .endpoints = 9, .silence_ms = 200, .stop_ms = 100};
    served_open_with(f, &options, (struct kv_server_options){0});
    struct coordinator_message join = talk_join_of(0, "", 2, 2);
    join.node.endpoints = 9;
    talk_call(f, &deaf, 1);
    talk_send(&deaf, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    talk_say(&deaf, &join);
    talk_serve_until_members(f, 1);
    const struct coordinator_message alive = {.kind = COORDINATOR_ALIVE};
    while (talk_look(f).member_count > 0) {
        struct buf frame;
        buf_init(&frame, COORDINATOR_FRAME_BYTES_MAX);
        assert_int_equal(coordinator_wire_put(&frame, &alive), MUSTER_OK);
        (void)send(deaf.fd, buf_bytes(&frame), frame.len, MSG_NOSIGNAL);
        buf_done(&frame);
        (void)talk_serve_once(f, -1);
    }
    assert_non_null(strstr(f->warning, "its agent has been silent for 2"));
    talk_hang_up(&deaf);
}

/* ---- ends ---- */

static void closing_ends_all_connections(void **state) {
    struct served *f = *state;
    struct talker agents[2], stranger, waiting;
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    talk_join(f, &waiting, 2, 2);
    (void)talk_hear(f, &waiting, COORDINATOR_SPARE);
    talk_call(f, &stranger, 1);
    talk_send(&stranger, "MUST", 4);
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    served_close(f);
    talk_expect_end(f, &agents[0]);
    talk_expect_end(f, &agents[1]);
    talk_expect_end(f, &waiting);
    talk_expect_end(f, &stranger);
}

static void a_reset_of_the_store_loses_all_members(void **state) {
    struct served *f = *state;
    struct talker agents[2];
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    kv_server_reset(f->store);
    assert_int_equal(talk_look(f).member_count, 0);
    talk_expect_end(f, &agents[0]);
    talk_expect_end(f, &agents[1]);
}

static void many_agents_come_and_go(void **state) {
    static struct talker agents[AGENTS_MAX];
    struct served *f = *state;
    talk_start(f, AGENTS_MAX, AGENTS_MAX);
    talk_form(f, agents, AGENTS_MAX);
    for (uint64_t round = 1; round < 4; round++) {
        talk_say_kind(&agents[round], COORDINATOR_FAILED, "again");
        for (unsigned i = 0; i < AGENTS_MAX; i++) {
            if (i != round) {
                (void)talk_hear(f, &agents[i], COORDINATOR_CHANGE);
            }
            talk_join_again(&agents[i], i, "", AGENTS_MAX, round);
        }
        for (unsigned i = 0; i < AGENTS_MAX; i++) {
            const struct coordinator_world *world = &talk_hear(f, &agents[i], COORDINATOR_WORLD)->world;
            assert_int_equal(world->round, round + 1);
            assert_int_equal(world->group_rank, i);
        }
    }
    for (unsigned i = 0; i < AGENTS_MAX; i++) {
        talk_hang_up(&agents[i]);
    }
    talk_serve_until_members(f, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TALK_TEST(everybody_gets_the_world),
        TALK_TEST(addresses_come_from_the_connection),
        TALK_TEST(a_failure_is_told_and_the_world_formed_anew),
        TALK_TEST(a_lost_connection_is_a_departure),
        TALK_TEST(leaving_ends_the_connection),
        TALK_TEST(the_end_of_a_good_job),
        TALK_TEST(a_closed_job_is_told_to_everybody),
        TALK_TEST(the_last_call_ends_by_the_clock),
        TALK_TEST(what_came_during_an_absence_is_read_first),
        TALK_TEST(a_last_call_begins_with_a_departure),
        TALK_TEST(a_silent_node_that_is_needed_keeps_its_place),
        TALK_TEST(a_session_outlives_its_connection),
        TALK_TEST(a_session_that_is_not_known_is_refused),
        TALK_TEST(a_silent_node_is_given_up_in_the_end),
        TALK_TEST(a_silent_node_comes_back_over_another_connection),
        TALK_TEST(talk_that_answers_nothing_is_silence),
        TALK_TEST(closing_ends_all_connections),
        TALK_TEST(a_reset_of_the_store_loses_all_members),
        TALK_TEST(many_agents_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
