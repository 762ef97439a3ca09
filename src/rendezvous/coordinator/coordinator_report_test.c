/* What a job does, as a document, and handing it out in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"
#include "rendezvous/coordinator/coordinator_status_clients.h"

static struct coordinator_history history;

static void note(struct peers *f) {
    char why[COORDINATOR_TEXT_BYTES_MAX];
    struct coordinator_view view = peers_look(f);
    coordinator_history_note(&history, &view, coordinator_why(f->coordinator, why), f->now_ms);
}

static int setup(void **state) {
    history = (struct coordinator_history){.count = 0};
    return peers_setup(state);
}

/* The report as a tree; the caller's to json_decref(). */
static json_t *report(struct peers *f) {
    struct buf text;
    json_error_t error;
    buf_init(&text, COORDINATOR_REPORT_DOCUMENT_MAX);
    assert_int_equal(coordinator_report(f->coordinator, &history, f->now_ms, &text), 0);
    json_t *tree = json_loadb((const char *)buf_bytes(&text), text.len, JSON_REJECT_DUPLICATES, &error);
    if (!tree) {
        fail_msg("%s: %.*s", error.text, (int)text.len, (const char *)buf_bytes(&text));
    }
    buf_done(&text);
    return tree;
}

static int64_t number(const json_t *tree, const char *name) {
    const json_t *value = json_object_get(tree, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static const char *text(const json_t *tree, const char *name) {
    const char *value = json_string_value(json_object_get(tree, name));
    assert_non_null(value);
    return value;
}

static void a_job_that_forms(void **state) {
    struct peers *f = *state;
    peers_begin(f, 2, 3, false);
    note(f);
    peers_join(f, 0);
    note(f);
    f->now_ms += 250;
    json_t *tree = report(f);
    assert_string_equal(text(tree, "backend"), "muster");
    assert_string_equal(text(tree, "run_id"), "job");
    assert_string_equal(text(tree, "phase"), "forming");
    assert_int_equal(number(tree, "phase_ms"), 250);
    assert_int_equal(number(tree, "round"), 0);
    assert_int_equal(number(json_object_get(tree, "nodes"), "joined"), 1);
    assert_int_equal(json_array_size(json_object_get(tree, "rounds")), 0);
    const json_t *member = json_array_get(json_object_get(tree, "members"), 0);
    assert_string_equal(text(member, "place"), "joined");
    assert_string_equal(text(member, "addr"), "host0");
    assert_null(json_object_get(member, "rank"));
    json_decref(tree);
}

/* Two nodes form within 40 ms, run for 500, one fails, and they form again within 60. */
static void run_two_rounds(struct peers *f) {
    peers_begin(f, 2, 2, false);
    note(f);
    peers_join(f, 0);
    note(f);
    f->now_ms += 40;
    peers_join(f, 1);
    note(f);
    f->now_ms += 500;
    peers_report_failure(f, 1);
    note(f);
    f->now_ms += 60;
    peers_join(f, 0);
    note(f);
    peers_join(f, 1);
    note(f);
    f->now_ms += 7;
}

static void a_failure_and_its_restart(void **state) {
    struct peers *f = *state;
    run_two_rounds(f);
    json_t *tree = report(f);
    assert_string_equal(text(tree, "phase"), "running");
    assert_int_equal(number(tree, "round"), 2);
    assert_int_equal(number(tree, "workers"), 4);
    assert_int_equal(number(json_object_get(tree, "charges"), "failures"), 1);
    const json_t *rounds = json_object_get(tree, "rounds");
    assert_int_equal(json_array_size(rounds), 2);
    const json_t *first = json_array_get(rounds, 0), *second = json_array_get(rounds, 1);
    assert_int_equal(number(first, "forming_ms"), 40);
    assert_int_equal(number(first, "running_ms"), 500);
    assert_string_equal(text(first, "cause"), "failure");
    assert_non_null(strstr(text(first, "why"), "node host1 (pid 7) failed"));
    assert_true(json_is_true(json_object_get(first, "ended")));
    assert_int_equal(number(second, "forming_ms"), 60);
    assert_int_equal(number(second, "running_ms"), 7);
    assert_true(json_is_false(json_object_get(second, "ended")));
    const json_t *member = json_array_get(json_object_get(tree, "members"), 1);
    assert_int_equal(number(member, "rank"), 1);
    assert_int_equal(number(member, "first_worker"), 2);
    json_decref(tree);
}

static void assert_engine(struct peers *f, const char *expected) {
    json_t *tree = report(f);
    assert_string_equal(text(tree, "engine"), expected);
    json_decref(tree);
}

static void tell_engine(struct peers *f, size_t i, const char *engine) {
    coordinator_note_engine(f->coordinator, f->list[i].member, kv_slice_text(engine));
}

/* As rank 0's node says, of the world that stands. */
static void an_engine_is_that_of_the_round(void **state) {
    struct peers *f = *state;
    char long_text[COORDINATOR_ENGINE_BYTES_MAX + 2];
    peers_begin(f, 2, 2, false);
    peers_join(f, 0);
    tell_engine(f, 0, "too early");
    peers_join(f, 1);
    assert_engine(f, "");
    tell_engine(f, 1, "of another rank");
    tell_engine(f, 0, "");
    assert_engine(f, "");
    tell_engine(f, 0, "mpi (as asked for)");
    assert_engine(f, "mpi (as asked for)");
    tell_engine(f, 0, "muster (\"a\")");
    assert_engine(f, "muster (\"a\")");
    peers_report_failure(f, 1);
    tell_engine(f, 0, "too late");
    assert_engine(f, "muster (\"a\")");
    peers_join(f, 0);
    peers_join(f, 1);
    assert_engine(f, ""); /* of the next one nothing is known */
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    tell_engine(f, 0, long_text);
    assert_engine(f, long_text + 1); /* as much as is kept */
}

static void a_job_that_is_over(void **state) {
    struct peers *f = *state;
    run_two_rounds(f);
    peers_done(f, 0);
    note(f);
    peers_done(f, 1);
    note(f);
    json_t *tree = report(f);
    assert_string_equal(text(tree, "phase"), "over");
    const json_t *last = json_array_get(json_object_get(tree, "rounds"), 1);
    assert_true(json_is_true(json_object_get(last, "last")));
    assert_string_equal(text(last, "cause"), "");
    assert_string_equal(text(last, "why"), "all nodes that took part are done");
    json_decref(tree);
}

/* One node that joins unasked ends its world and forms the next in one event. */
static void a_round_that_ends_and_forms_in_one_event(void **state) {
    struct peers *f = *state;
    peers_begin(f, 1, 1, false);
    peers_join(f, 0);
    note(f);
    f->now_ms += 10;
    peers_join(f, 0);
    note(f);
    assert_int_equal(coordinator_history_count(&history), 2);
    const struct coordinator_past_round *first = coordinator_history_at(&history, 0);
    assert_int_equal(first->ended_ms - first->formed_ms, 10);
    assert_int_equal(first->cause, COORDINATOR_CAUSE_CHANGE);
    assert_int_equal(coordinator_history_at(&history, 1)->ended_ms, -1);
}

static void old_rounds_are_forgotten(void **state) {
    struct peers *f = *state;
    (void)f;
    struct coordinator_view view = {.phase = COORDINATOR_RUNNING, .member_count = 1};
    for (view.round = 1; view.round <= COORDINATOR_HISTORY_ROUNDS_MAX + 5; view.round++) {
        coordinator_history_note(&history, &view, kv_slice_text("again"), (int64_t)view.round);
    }
    assert_int_equal(coordinator_history_count(&history), COORDINATOR_HISTORY_ROUNDS_MAX);
    assert_int_equal(coordinator_history_at(&history, 0)->round, 6);
    assert_int_equal(coordinator_history_at(&history, COORDINATOR_HISTORY_ROUNDS_MAX - 1)->round,
                     COORDINATOR_HISTORY_ROUNDS_MAX + 5);
}

static void members_that_find_no_room_are_counted(void **state) {
    struct peers *f = *state;
    peers_form(f, 4, 4, 4);
    note(f);
    struct buf small;
    buf_init(&small, 6000);
    assert_int_equal(coordinator_report(f->coordinator, &history, f->now_ms, &small), 0);
    json_t *tree = json_loadb((const char *)buf_bytes(&small), small.len, 0, NULL);
    assert_non_null(tree);
    size_t listed = json_array_size(json_object_get(tree, "members"));
    assert_true(listed < 4);
    assert_int_equal(number(tree, "omitted"), 4 - (int64_t)listed);
    json_decref(tree);
    buf_done(&small);
}

static void strings_are_escaped(void **state) {
    struct peers *f = *state;
    peers_begin(f, 1, 1, false);
    f->list[0].node.topology = kv_slice_text("a\"b\\c\xff");
    peers_join(f, 0);
    note(f);
    json_t *tree = report(f);
    assert_string_equal(text(json_array_get(json_object_get(tree, "members"), 0), "topology"), "a\"b\\c?");
    json_decref(tree);
}

/* ---- pieces ---- */

struct received {
    struct buf text;
    unsigned piece_count, last_count;
};

static void on_piece(void *ctx, void *session, const struct coordinator_message *message) {
    struct received *received = session;
    (void)ctx;
    assert_int_equal(message->kind, COORDINATOR_REPORT);
    assert_true(message->report.len <= COORDINATOR_REPORT_BYTES_MAX);
    assert_int_equal(received->last_count, 0);
    assert_int_equal(buf_append(&received->text, message->report.data, message->report.len), 0);
    received->piece_count++;
    received->last_count += message->is_last;
}

enum { CROWD = 1000 };

static void drop(void *ctx, void *session, const struct coordinator_message *message) {
    (void)ctx;
    (void)session;
    (void)message;
}

/* A coordinator with so many members that its report takes several batches. */
static struct coordinator *crowd(void) {
    const struct coordinator_settings settings = {
        .run_id = "job", .min_nodes = CROWD, .max_nodes = CROWD, .hash_seed = {1, 2}};
    struct coordinator *coordinator;
    assert_int_equal(coordinator_create(&settings, drop, NULL, &coordinator), 0);
    for (uint64_t i = 0; i < CROWD; i++) {
        struct coordinator_node node = {.run_id = kv_slice_text("job"),
                                        .addr = kv_slice_text("a-node-with-a-rather-long-name.cluster"),
                                        .role = kv_slice_text("default"),
                                        .pid = 1,
                                        .identity = {i + 1, 1},
                                        .min_nodes = CROWD,
                                        .max_nodes = CROWD,
                                        .local_world_size = 8,
                                        .store_port = 29500};
        assert_non_null(coordinator_join(coordinator, NULL, NULL, &node, 0));
    }
    return coordinator;
}

static void serve(struct coordinator_status_clients *status_clients, struct coordinator_status_client *status_client,
                  struct coordinator *c, int64_t now_ms, struct received *to) {
    assert_int_equal(
        coordinator_status_clients_serve(status_clients, status_client, c, &history, now_ms, on_piece, NULL, to), 0);
}

static void pieces_come_in_batches(void **state) {
    (void)state;
    struct coordinator *c = crowd();
    struct coordinator_status_clients status_clients = {.count = 0};
    struct coordinator_status_client first = {.sent = 0}, second = {.sent = 0};
    struct received a = {.piece_count = 0}, b = {.piece_count = 0};
    buf_init(&a.text, COORDINATOR_REPORT_DOCUMENT_MAX);
    buf_init(&b.text, COORDINATOR_REPORT_DOCUMENT_MAX);
    serve(&status_clients, &first, c, 0, &a);
    assert_int_equal(a.piece_count, COORDINATOR_REPORT_BATCH);
    assert_int_equal(a.last_count, 0);
    /* One who comes within the moment gets the same, one who comes later another; the first goes on with its own. */
    serve(&status_clients, &second, c, COORDINATOR_REPORT_AGE_MS - 1, &b);
    assert_ptr_equal(first.document, second.document);
    coordinator_status_clients_forget(&status_clients, &second);
    serve(&status_clients, &second, c, COORDINATOR_REPORT_AGE_MS, &b);
    assert_ptr_not_equal(first.document, second.document);
    for (unsigned batches = 0; a.last_count == 0; batches++) {
        assert_true(batches < 100);
        serve(&status_clients, &first, c, 1000, &a);
    }
    json_t *tree = json_loadb((const char *)buf_bytes(&a.text), a.text.len, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(tree, "members")), CROWD);
    json_decref(tree);
    coordinator_status_clients_forget(&status_clients, &first);
    coordinator_status_clients_forget(&status_clients, &second);
    assert_int_equal(status_clients.count, 0);
    coordinator_status_clients_done(&status_clients);
    coordinator_free(c);
    buf_done(&a.text);
    buf_done(&b.text);
}

static void status_clients_are_bounded(void **state) {
    struct peers *f = *state;
    static struct coordinator_status_client list[COORDINATOR_STATUS_CLIENTS_MAX + 1];
    struct coordinator_status_clients status_clients = {.count = 0};
    peers_begin(f, 1, 1, false);
    for (size_t i = 0; i <= COORDINATOR_STATUS_CLIENTS_MAX; i++) {
        int code =
            coordinator_status_clients_serve(&status_clients, &list[i], f->coordinator, &history, 0, drop, NULL, NULL);
        assert_int_equal(code, i < COORDINATOR_STATUS_CLIENTS_MAX ? 0 : MUSTER_ELIMIT);
    }
    for (size_t i = 0; i <= COORDINATOR_STATUS_CLIENTS_MAX; i++) {
        coordinator_status_clients_forget(&status_clients, &list[i]);
    }
    assert_int_equal(status_clients.count, 0);
    coordinator_status_clients_done(&status_clients);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, peers_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_job_that_forms),
        CASE(a_failure_and_its_restart),
        CASE(an_engine_is_that_of_the_round),
        CASE(a_job_that_is_over),
        CASE(a_round_that_ends_and_forms_in_one_event),
        CASE(old_rounds_are_forgotten),
        CASE(members_that_find_no_room_are_counted),
        CASE(strings_are_escaped),
        CASE(pieces_come_in_batches),
        CASE(status_clients_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
