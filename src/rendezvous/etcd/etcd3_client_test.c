/* Requests to an etcd, and watches, against a server that follows a script: endpoints that are dead, tokens that
 * expire, streams that break. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/log.h"
#include "base/str.h"
#include "net/http_test_support.h"
#include "net/port_test_support.h"
#include "rendezvous/etcd/etcd3_client.h"

#define HEADER "{\"header\":{\"revision\":\"7\"}"
#define FINE HEADER "}"
#define TOKEN(text) HEADER ",\"token\":\"" text "\"}"
#define ERROR(code, text) "{\"error\":\"" text "\",\"code\":" #code "}"
#define PUT "POST /v3/kv/put"
#define AUTHENTICATE "POST /v3/auth/authenticate"
#define WATCH "POST /v3/watch"
enum { ATTEMPT_MS = 5000 };

struct scene {
    struct http_test_stage stage;
    const struct http_test_line *script;
    size_t at;
    bool in_any_order;      /* lines 2n and 2n + 1 */
    char authorization[64]; /* of the last request; "": none */
    char form[512];
    struct http_test_peer *stream; /* of the last watch */
    struct etcd3_client *client;
    unsigned answers, events, gaps, failures, watches;
    int status;
    int64_t revision;
    char why[512];
};

/* ---- etcd ---- */

static void note_request(struct scene *scene, const struct http_test_peer *peer) {
    const char *token = strstr(peer->request, "Authorization: ");
    size_t len = token ? strcspn(token += strlen("Authorization: "), "\r") : 0;
    (void)str_format(scene->authorization, sizeof scene->authorization, "%.*s", (int)len, token ? token : "");
    (void)str_copy(scene->form, sizeof scene->form, strstr(peer->request, "\r\n\r\n") + 4);
}

static void begin_stream(struct scene *scene, struct http_test_peer *peer) {
    http_test_say(peer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    scene->stream = peer;
    scene->watches++;
}

static void on_request(void *ctx, struct http_test_peer *peer) {
    struct scene *scene = ctx;
    const struct http_test_line *line = &scene->script[scene->at];
    if (scene->in_any_order && strncmp(peer->request, line->asked, strlen(line->asked)) != 0) {
        line = &scene->script[scene->at ^ 1];
    }
    scene->at++;
    note_request(scene, peer);
    if (!http_test_follow(line, peer)) {
        return;
    }
    if (strcmp(line->asked, WATCH) == 0) {
        begin_stream(scene, peer);
    } else {
        http_test_answer(peer, strstr(line->body, "\"error\"") ? "400 Bad Request" : "200 OK", "", line->body);
    }
}

/* One object of the stream. */
static void say_object(struct scene *scene, const char *text) {
    char size[16];
    (void)str_format(size, sizeof size, "%zx\r\n", strlen(text));
    http_test_say(scene->stream, size);
    http_test_say(scene->stream, text);
    http_test_say(scene->stream, "\r\n");
}

static void say_event(struct scene *scene, unsigned revision) {
    char text[256];
    (void)str_format(text, sizeof text,
                     "{\"result\":{\"header\":{\"revision\":\"%u\"},\"watch_id\":\"1\",\"events\":"
                     "[{\"kv\":{\"key\":\"aw==\",\"mod_revision\":\"%u\"}}]}}",
                     revision, revision);
    say_object(scene, text);
}

/* ---- the client ---- */

static void drop_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    (void)text;
}

static void on_answer(void *ctx, int status, const struct etcd3_reply *reply) {
    struct scene *scene = ctx;
    scene->answers++;
    scene->status = status;
    scene->revision = reply ? reply->revision : 0;
    (void)str_copy(scene->why, sizeof scene->why, status ? muster_detail() : "");
}

static void on_events(void *ctx, const struct etcd3_reply *reply) {
    struct scene *scene = ctx;
    scene->events++;
    scene->revision = reply->pairs[0].mod_revision;
}

static void on_gap(void *ctx) {
    ((struct scene *)ctx)->gaps++;
}

static void on_failed(void *ctx, int status) {
    struct scene *scene = ctx;
    scene->failures++;
    scene->status = status;
    (void)str_copy(scene->why, sizeof scene->why, muster_detail());
}

static void open_client(struct scene *scene, const char *endpoints, const char *user) {
    const struct etcd3_client_options options = {
        .endpoints = endpoints, .user = user, .password = user ? "p" : NULL, .attempt_timeout_ms = ATTEMPT_MS};
    assert_int_equal(etcd3_client_create(&scene->stage.loop, &options, &scene->client), 0);
}

static void begin(struct scene *scene, const char *user, const struct http_test_line *script) {
    char endpoint[64];
    (void)str_format(endpoint, sizeof endpoint, "127.0.0.1:%u", (unsigned)scene->stage.server.port);
    scene->script = script;
    open_client(scene, endpoint, user);
}

static struct etcd3_call *put(struct scene *scene, uint64_t patience_ms) {
    const struct etcd3_operation operation = {
        .kind = ETCD3_PUT, .range = {.key = kv_slice_text("k")}, .value = kv_slice_text("v")};
    struct etcd3_call *call;
    struct buf body;
    buf_init(&body, 1024);
    assert_int_equal(etcd3_wire_put_operation(&body, &operation), 0);
    assert_int_equal(etcd3_client_call(scene->client, "kv/put", &body, patience_ms, on_answer, scene, &call), 0);
    buf_done(&body);
    return call;
}

static void put_and_wait(struct scene *scene, uint64_t patience_ms) {
    (void)put(scene, patience_ms);
    http_test_stage_run(&scene->stage, &scene->answers, scene->answers + 1);
}

static struct etcd3_watch *watch(struct scene *scene, int64_t revision) {
    static const struct etcd3_watch_callbacks callbacks = {
        .on_events = on_events, .on_gap = on_gap, .on_failed = on_failed};
    const struct etcd3_range range = {.key = kv_slice_text("k")};
    struct etcd3_watch *watch;
    assert_int_equal(etcd3_watch_open(scene->client, &range, 1, revision, &callbacks, scene, &watch), 0);
    http_test_stage_run(&scene->stage, &scene->watches, 1);
    return watch;
}

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    log_set_sink(drop_log);
    http_test_stage_open(&scene->stage, on_request, scene);
    *out = scene;
    return 0;
}

static int tear_down(void **state) {
    struct scene *scene = *state;
    if (scene->script) {
        assert_null(scene->script[scene->at].asked); /* all of it has been asked */
    }
    etcd3_client_close(scene->client);
    http_test_stage_close(&scene->stage);
    log_set_sink(NULL);
    free(scene);
    return 0;
}

/* ---- calls ---- */

static void answer_is_handed_over(void **state) {
    static const struct http_test_line script[] = {{PUT, "{\"key\":\"aw==\",\"value\":\"dg==\",\"lease\":\"0\"}", FINE},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    assert_string_equal(etcd3_client_local_address(scene->client), "");
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->status, 0);
    assert_int_equal(scene->revision, 7);
    assert_string_equal(etcd3_client_local_address(scene->client), "127.0.0.1");
}

static void call_that_breaks_is_asked_again(void **state) {
    static const struct http_test_line script[] = {
        {PUT, NULL, NULL}, {PUT, NULL, ERROR(14, "etcdserver: no leader")}, {PUT, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->status, 0);
}

static void error_of_etcd_is_told(void **state) {
    static const struct http_test_line script[] = {{PUT, NULL, ERROR(5, "etcdserver: requested lease not found")},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->status, MUSTER_ENOENT);
}

static void dead_endpoint_is_passed_over(void **state) {
    static const struct http_test_line script[] = {{PUT, NULL, FINE}, {PUT, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    char endpoints[64], tried[128];
    uint16_t dead;
    int held = port_hold(&dead);
    (void)str_format(endpoints, sizeof endpoints, "127.0.0.1:%u,127.0.0.1:%u", (unsigned)dead,
                     (unsigned)scene->stage.server.port);
    scene->script = script;
    open_client(scene, endpoints, NULL); /* begins with either */
    put_and_wait(scene, ETCD3_PATIENT);
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->status, 0);
    (void)str_format(endpoints, sizeof endpoints, "http://127.0.0.1:%u", (unsigned)scene->stage.server.port);
    assert_string_equal(etcd3_client_describe(scene->client, tried, sizeof tried), endpoints);
    (void)close(held);
}

static void dead_endpoints_are_told_in_the_end(void **state) {
    struct scene *scene = *state;
    char endpoints[64];
    uint16_t dead, other;
    int held[2] = {port_hold(&dead), port_hold(&other)};
    (void)str_format(endpoints, sizeof endpoints, "127.0.0.1:%u,127.0.0.1:%u", (unsigned)dead, (unsigned)other);
    open_client(scene, endpoints, NULL);
    put_and_wait(scene, 1);
    assert_int_equal(scene->status, MUSTER_ETIMEOUT);
    assert_non_null(strstr(scene->why, "no etcd has answered in time: http://127.0.0.1:"));
    (void)close(held[0]);
    (void)close(held[1]);
}

/* ---- tokens ---- */

static void token_is_got_first_and_renewed(void **state) {
    static const struct http_test_line script[] = {{AUTHENTICATE, "{\"name\":\"u\",\"password\":\"p\"}", TOKEN("one")},
                                                   {PUT, NULL, FINE},
                                                   {PUT, NULL, ERROR(16, "etcdserver: invalid auth token")},
                                                   {AUTHENTICATE, NULL, TOKEN("two")},
                                                   {PUT, NULL, FINE},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, "u", script);
    put_and_wait(scene, ETCD3_PATIENT);
    assert_string_equal(scene->authorization, "one");
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->status, 0);
    assert_string_equal(scene->authorization, "two");
}

static void two_calls_wait_for_one_token(void **state) {
    static const struct http_test_line script[] = {
        {AUTHENTICATE, NULL, TOKEN("one")}, {PUT, NULL, FINE}, {PUT, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, "u", script);
    (void)put(scene, ETCD3_PATIENT);
    (void)put(scene, ETCD3_PATIENT);
    http_test_stage_run(&scene->stage, &scene->answers, 2);
    assert_int_equal(scene->status, 0);
}

static void refused_user_fails_the_call(void **state) {
    static const struct http_test_line script[] = {
        {AUTHENTICATE, NULL, ERROR(3, "etcdserver: authentication failed, invalid user ID or password")},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, "u", script);
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->status, MUSTER_EINVAL);
    assert_non_null(strstr(scene->why, "authentication failed"));
}

static void etcd_without_users_needs_no_token(void **state) {
    static const struct http_test_line script[] = {
        {AUTHENTICATE, NULL, ERROR(9, "etcdserver: authentication is not enabled")},
        {PUT, NULL, FINE},
        {PUT, NULL, FINE},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, "u", script);
    put_and_wait(scene, ETCD3_PATIENT);
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->status, 0);
    assert_string_equal(scene->authorization, "");
}

/* Nobody answers who could give one. */
static void patience_ends_while_a_token_is_awaited(void **state) {
    static const struct http_test_line script[] = {{AUTHENTICATE, NULL, ""}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, "u", script);
    put_and_wait(scene, 50);
    assert_int_equal(scene->status, MUSTER_ETIMEOUT);
}

/* ---- watches ---- */

static void watch_goes_on_where_it_broke_off(void **state) {
    static const struct http_test_line script[] = {{WATCH, NULL, FINE}, {WATCH, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    (void)watch(scene, 40);
    assert_non_null(strstr(scene->form, "\"start_revision\":\"40\""));
    say_event(scene, 41);
    http_test_stage_run(&scene->stage, &scene->events, 1);
    assert_int_equal(scene->revision, 41);
    http_test_hang_up(scene->stream);
    http_test_stage_run(&scene->stage, &scene->watches, 2);
    assert_non_null(strstr(scene->form, "\"start_revision\":\"42\""));
    say_event(scene, 45);
    http_test_stage_run(&scene->stage, &scene->events, 2);
}

static void watch_tells_what_was_compacted(void **state) {
    static const struct http_test_line script[] = {{WATCH, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    (void)watch(scene, 40);
    say_object(scene, "{\"result\":" HEADER ",\"watch_id\":\"1\",\"canceled\":true,\"compact_revision\":\"60\"}}");
    http_test_stage_run(&scene->stage, &scene->gaps, 1);
}

static void watch_that_is_refused_fails(void **state) {
    static const struct http_test_line script[] = {{WATCH, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    (void)watch(scene, 40);
    say_object(scene, "{\"result\":" HEADER ",\"watch_id\":\"1\",\"canceled\":true,"
                      "\"cancel_reason\":\"etcdserver: permission denied\"}}");
    http_test_stage_run(&scene->stage, &scene->failures, 1);
    assert_int_equal(scene->status, MUSTER_EINVAL);
}

static void watch_of_no_etcd_fails(void **state) {
    static const struct http_test_line script[] = {{WATCH, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    (void)watch(scene, 40);
    say_object(scene, "hello");
    http_test_stage_run(&scene->stage, &scene->failures, 1);
    assert_int_equal(scene->status, MUSTER_EPROTOCOL);
}

static void watch_goes_along_with_a_call_that_moves_on(void **state) {
    static const struct http_test_line script[] = {{WATCH, NULL, FINE},
                                                   {PUT, NULL, ERROR(14, "etcdserver: server stopped")},
                                                   {WATCH, NULL, FINE},
                                                   {PUT, NULL, FINE},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    char endpoints[64];
    (void)str_format(endpoints, sizeof endpoints, "127.0.0.1:%u,127.0.0.1:%u", (unsigned)scene->stage.server.port,
                     (unsigned)scene->stage.server.port);
    scene->script = script;
    scene->in_any_order = true;
    open_client(scene, endpoints, NULL);
    (void)watch(scene, 40);
    put_and_wait(scene, ETCD3_PATIENT);
    http_test_stage_run(&scene->stage, &scene->watches, 2);
    assert_int_equal(scene->status, 0);
}

/* ---- the end ---- */

static void nothing_comes_after_cancel_and_close(void **state) {
    static const struct http_test_line script[] = {
        {WATCH, NULL, FINE}, {PUT, NULL, ""}, {PUT, NULL, ""}, {PUT, NULL, FINE}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, NULL, script);
    (void)watch(scene, 40);
    struct etcd3_call *call = put(scene, ETCD3_PATIENT);
    while (scene->at < 2) {
        (void)uv_run(&scene->stage.loop, UV_RUN_ONCE);
    }
    etcd3_call_cancel(call);
    (void)put(scene, ETCD3_PATIENT); /* is closed with the client */
    while (scene->at < 3) {
        (void)uv_run(&scene->stage.loop, UV_RUN_ONCE);
    }
    put_and_wait(scene, ETCD3_PATIENT);
    assert_int_equal(scene->answers, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answer_is_handed_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(call_that_breaks_is_asked_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(error_of_etcd_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(dead_endpoint_is_passed_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(dead_endpoints_are_told_in_the_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(token_is_got_first_and_renewed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(two_calls_wait_for_one_token, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refused_user_fails_the_call, set_up, tear_down),
        cmocka_unit_test_setup_teardown(etcd_without_users_needs_no_token, set_up, tear_down),
        cmocka_unit_test_setup_teardown(patience_ends_while_a_token_is_awaited, set_up, tear_down),
        cmocka_unit_test_setup_teardown(watch_goes_on_where_it_broke_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(watch_tells_what_was_compacted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(watch_that_is_refused_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(watch_of_no_etcd_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(watch_goes_along_with_a_call_that_moves_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_comes_after_cancel_and_close, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
