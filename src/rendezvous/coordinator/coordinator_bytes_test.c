/* The coordinator on a store's port, over real sockets: bytes in pieces, strangers of all kinds, broken messages, those
 * who ask and do not join. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "rendezvous/coordinator/coordinator_report.h"
#include "rendezvous/coordinator/coordinator_talk_test_support.h"

enum { WARNINGS_MAX = 20 };

/* ---- bytes ---- */

static void messages_in_single_bytes(void **state) {
    struct served *f = *state;
    struct talker agent;
    struct buf bytes;
    const struct coordinator_message message = talk_join_of(0, "", 1, 1);
    const struct coordinator_message failed = {.kind = COORDINATOR_FAILED, .text = kv_slice_text("oh")};
    const struct coordinator_message leave = {.kind = COORDINATOR_LEAVE};
    talk_start(f, 1, 1);
    buf_init(&bytes, TALK_INPUT_BYTES_MAX);
    assert_int_equal(buf_append(&bytes, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES), 0);
    assert_int_equal(coordinator_wire_put(&bytes, &message), 0);
    assert_int_equal(coordinator_wire_put(&bytes, &failed), 0);
    assert_int_equal(coordinator_wire_put(&bytes, &leave), 0);
    talk_call(f, &agent, 1);
    for (size_t i = 0; i < bytes.len; i++) {
        talk_send(&agent, buf_bytes(&bytes) + i, 1);
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    (void)talk_hear(f, &agent, COORDINATOR_WORLD);
    talk_expect_end(f, &agent);
    buf_done(&bytes);
    assert_int_equal(f->warnings, 0);
}

static void the_store_serves_its_own_clients(void **state) {
    struct served *f = *state;
    struct talker agents[2], client;
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    talk_call(f, &client, 1);
    talk_send(&client, "\0\xce\xf7\x85\x3c\x0dPING", 10);
    assert_true(talk_receive(f, &client));
    assert_int_equal(client.in.len, 4);
    assert_memory_equal(buf_bytes(&client.in), "PING", 4);
    talk_hang_up(&client);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

/* Wrong from the first bytes on: no answer, as nobody knows what the caller speaks. */
static void strangers_are_dropped(void **state) {
    static const char *const said[] = {"M", "MUSTER", "MUSTEX", "MUSTER\r\r", "MUTTER\r\n and more", "Muster\r\n"};
    struct served *f = *state;
    struct talker agents[2], stranger;
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        talk_call(f, &stranger, 1);
        talk_send(&stranger, said[i], strlen(said[i]));
        if (strncmp(said[i], COORDINATOR_HELLO, strlen(said[i])) == 0) {
            talk_hang_up(&stranger); /* a beginning, and never more */
        } else {
            talk_expect_end(f, &stranger);
        }
    }
    assert_int_equal(f->warnings, 4);
    talk_say_kind(&agents[0], COORDINATOR_FAILED, "still served");
    (void)talk_hear(f, &agents[1], COORDINATOR_CHANGE);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

static void expect_refused(struct served *f, struct talker *agent, const char *part) {
    assert_int_equal(talk_hear(f, agent, COORDINATOR_REFUSED)->status, MUSTER_EPROTOCOL);
    assert_true(talk_has_text(agent, part));
    talk_expect_end(f, agent);
    assert_non_null(strstr(f->warning, part)); /* the log says the same, and who */
    assert_non_null(strstr(f->warning, "127.0.0.1"));
}

static void broken_messages_are_answered_and_dropped(void **state) {
    static const struct {
        const char *bytes;
        size_t len;
        const char *why;
    } cases[] = {
        {"\0\0\0\0", 4, "0 bytes"},          {"\xff\xff\xff\xff", 4, "4294967295 bytes"},
        {"\1\0\0\0\x63", 5, "kind 99"},      {"\1\0\0\0\x10", 5, "WORLD"}, /* nothing that an agent says */
        {"\3\0\0\0\2\0\0", 7, "FAILED"},                                   /* without having joined */
        {"\1\0\0\0\4", 5, "DONE"},           {"\3\0\0\0\3\0\0", 7, "LEAVE"},
        {"\3\0\0\0\5\0\0", 7, "CLOSE"},      {"\3\0\0\0\1\1\0", 7, "protocol 1"},
        {"\3\0\0\0\1\3\0", 7, "do not fit"},
    };
    struct served *f = *state;
    struct talker agent;
    talk_start(f, 2, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        talk_call(f, &agent, 1);
        talk_send(&agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
        talk_send(&agent, cases[i].bytes, cases[i].len);
        expect_refused(f, &agent, cases[i].why);
    }
    assert_int_equal(f->warnings, sizeof cases / sizeof *cases);
    assert_int_equal(talk_look(f).member_count, 0);
}

/* A member that breaks the protocol is gone, like one whose connection ends. */
static void a_broken_member_is_a_departure(void **state) {
    struct served *f = *state;
    struct talker agents[2];
    talk_start(f, 2, 2);
    talk_form(f, agents, 2);
    talk_send(&agents[0], "\1\0\0\0\x63", 5);
    expect_refused(f, &agents[0], "kind 99");
    assert_int_equal(talk_hear(f, &agents[1], COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
    talk_hang_up(&agents[1]);
}

/* The whole report; the caller's to json_decref(). */
static json_t *ask(struct served *f, struct talker *agent) {
    struct buf text;
    bool is_last = false;
    buf_init(&text, COORDINATOR_REPORT_DOCUMENT_MAX);
    while (!is_last) {
        talk_say_kind(agent, COORDINATOR_STATUS, "");
        for (unsigned i = 0; i < COORDINATOR_REPORT_BATCH && !is_last; i++) {
            const struct coordinator_message *piece = talk_hear(f, agent, COORDINATOR_REPORT);
            assert_int_equal(buf_append(&text, piece->report.data, piece->report.len), 0);
            is_last = piece->is_last;
        }
    }
    json_t *tree = json_loadb((const char *)buf_bytes(&text), text.len, 0, NULL);
    assert_non_null(tree);
    buf_done(&text);
    return tree;
}

static json_int_t asked_number(const json_t *tree, const char *name) {
    return json_integer_value(json_object_get(tree, name));
}

static void who_asks_is_told_how_the_job_does(void **state) {
    struct served *f = *state;
    struct talker agents[2], status_client;
    talk_start(f, 2, 2);
    talk_call(f, &status_client, 9);
    talk_send(&status_client, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    json_t *before = ask(f, &status_client);
    assert_int_equal(asked_number(before, "round"), 0);
    talk_form(f, agents, 2);
    json_t *after = ask(f, &status_client);
    assert_int_equal(asked_number(after, "round"), 1);
    assert_int_equal(json_array_size(json_object_get(after, "members")), 2);
    json_decref(before);
    json_decref(after);
    talk_hang_up(&status_client);
    assert_int_equal(talk_look(f).member_count, 2); /* it was none of them */
    talk_say_kind(&agents[0], COORDINATOR_FAILED, "still served");
    (void)talk_hear(f, &agents[1], COORDINATOR_CHANGE);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

static void who_asks_is_told_the_engine(void **state) {
    struct served *f = *state;
    struct talker agents[2], status_client, early;
    talk_start(f, 2, 2);
    talk_call(f, &early, 1);
    talk_send(&early, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    talk_say_kind(&early, COORDINATOR_ENGINE, "mpi (as asked for)");
    expect_refused(f, &early, "ENGINE before a JOIN");
    talk_form(f, agents, 2);
    talk_say_kind(&agents[0], COORDINATOR_ALIVE, "");
    (void)talk_hear(f, &agents[0], COORDINATOR_HEARD);
    talk_say_kind(&agents[0], COORDINATOR_ENGINE, "mpi (as asked for)");
    talk_say_kind(&agents[0], COORDINATOR_ALIVE, "");
    (void)talk_hear(f, &agents[0], COORDINATOR_HEARD); /* so the one before has come */
    talk_call(f, &status_client, 9);
    talk_send(&status_client, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    json_t *told = ask(f, &status_client);
    assert_string_equal(json_string_value(json_object_get(told, "engine")), "mpi (as asked for)");
    json_decref(told);
    talk_hang_up(&status_client);
    talk_hang_up(&agents[0]);
    talk_hang_up(&agents[1]);
}

static void who_asks_does_not_join(void **state) {
    struct served *f = *state;
    struct talker agents[2], status_client;
    const struct coordinator_message message = talk_join_of(5, "", 2, 2);
    talk_start(f, 2, 2);
    talk_call(f, &status_client, 1);
    talk_send(&status_client, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    json_decref(ask(f, &status_client));
    talk_say(&status_client, &message);
    expect_refused(f, &status_client, "JOIN after a STATUS");
    talk_form(f, agents, 2);
    talk_say_kind(&agents[0], COORDINATOR_STATUS, "");
    expect_refused(f, &agents[0], "STATUS from a node that has joined");
    talk_hang_up(&agents[1]);
}

static void another_job_is_refused_in_words(void **state) {
    struct served *f = *state;
    struct talker agent;
    struct coordinator_message message = talk_join_of(0, "", 2, 2);
    talk_start(f, 2, 2);
    message.node.run_id = kv_slice_text("another");
    talk_call(f, &agent, 1);
    talk_send(&agent, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    talk_say(&agent, &message);
    assert_int_equal(talk_hear(f, &agent, COORDINATOR_REFUSED)->status, MUSTER_EINVAL);
    talk_expect_end(f, &agent);
    assert_int_equal(f->warnings, 0); /* it was told; that is its own log's business */
}

/* ---- who does not join ---- */

static void whoever_does_not_join_in_time_is_dropped(void **state) {
    struct served *f = *state;
    struct talker member, silent, half, greeted;
    struct coordinator_server_options options = talk_options(2, 2);
    options.join_patience_ms = 50;
    served_open_with(f, &options, (struct kv_server_options){0});
    talk_join(f, &member, 0, 2);
    talk_serve_until_members(f, 1);
    talk_call(f, &silent, 1);
    talk_send(&silent, "M", 1);
    talk_call(f, &greeted, 1);
    talk_send(&greeted, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    talk_call(f, &half, 1);
    talk_send(&half, COORDINATOR_HELLO "\x40\0\0\0\1", COORDINATOR_HELLO_BYTES + 5);
    talk_expect_end(f, &silent);
    talk_expect_end(f, &greeted);
    talk_expect_end(f, &half);
    assert_int_equal(f->warnings, 3);
    assert_non_null(strstr(f->warning, "within 50 ms"));
    assert_int_equal(talk_look(f).member_count, 1); /* it waits for the other node, as long as that takes */
    talk_hang_up(&member);
}

static void a_flood_of_strangers_ends_the_oldest(void **state) {
    struct served *f = *state;
    struct talker strangers[4], agents[2];
    const struct coordinator_server_options options = talk_options(2, 2);
    served_open_with(f, &options, (struct kv_server_options){.strangers_max = 2});
    for (unsigned i = 0; i < 4; i++) {
        talk_call(f, &strangers[i], 1);
        talk_send(&strangers[i], COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
        if (i >= 2) {
            talk_expect_end(f, &strangers[i - 2]);
        }
    }
    assert_int_equal(f->warnings, 2);
    talk_join(f, &agents[0], 0, 2); /* an agent that joins at once does not mind, but takes a place for a moment */
    talk_join(f, &agents[1], 1, 2);
    (void)talk_hear(f, &agents[0], COORDINATOR_WORLD);
    (void)talk_hear(f, &agents[1], COORDINATOR_WORLD);
    for (unsigned i = 0; i < 2; i++) {
        talk_hang_up(&strangers[i + 2]);
        talk_hang_up(&agents[i]);
    }
}

/* The log is not filled by who comes again and again. */
static void warnings_are_bounded(void **state) {
    struct served *f = *state;
    struct talker agent;
    talk_start(f, 2, 2);
    for (unsigned i = 0; i < 2 * WARNINGS_MAX; i++) {
        talk_call(f, &agent, 1);
        talk_send(&agent, "MASTER", 6);
        talk_expect_end(f, &agent);
    }
    assert_int_equal(f->warnings, WARNINGS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TALK_TEST(messages_in_single_bytes),
        TALK_TEST(the_store_serves_its_own_clients),
        TALK_TEST(strangers_are_dropped),
        TALK_TEST(broken_messages_are_answered_and_dropped),
        TALK_TEST(a_broken_member_is_a_departure),
        TALK_TEST(who_asks_is_told_the_engine),
        TALK_TEST(who_asks_is_told_how_the_job_does),
        TALK_TEST(who_asks_does_not_join),
        TALK_TEST(another_job_is_refused_in_words),
        TALK_TEST(whoever_does_not_join_in_time_is_dropped),
        TALK_TEST(a_flood_of_strangers_ends_the_oldest),
        TALK_TEST(warnings_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
