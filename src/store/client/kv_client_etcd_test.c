/* The asynchronous client on an etcd: against a server that follows a script. Each line of it says what must be asked
 * and what is answered, so races and restarts of etcd are lines. */
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

#include "net/http_test_support.h"
#include "net/port_test_support.h"
#include "store/client/etcd_v2.h"
#include "store/client/kv_client.h"

enum { VALUES_MAX = 4, PATIENCE_MS = 30000 };

#define NODE(value, index)                                                                                             \
    "{\"action\":\"get\",\"node\":{\"key\":\"/k\",\"value\":\"" value "\",\"modifiedIndex\":" #index "}}"
#define EVENT(value, index)                                                                                            \
    "{\"action\":\"set\",\"node\":{\"key\":\"/k\",\"value\":\"" value "\",\"modifiedIndex\":" #index "}}"
#define ERROR(code) "{\"errorCode\":" #code ",\"message\":\"no\",\"cause\":\"/k\",\"index\":40}"
#define STORE "/v2/keys/store/"
#define STATE "/v2/keys/states/job"

struct scene {
    struct http_test_stage stage;
    const struct http_test_line *script;
    size_t at;
    struct etcd_v2 *etcd;
    struct kv_client *client;
    unsigned states;
    int state;
    char state_detail[512];
    unsigned answers;
    int status;
    int64_t number;
    size_t value_count;
    char values[VALUES_MAX][64];
};

/* ---- etcd ---- */

static void on_request(void *ctx, struct http_test_peer *peer) {
    struct scene *scene = ctx;
    const struct http_test_line *line = &scene->script[scene->at++];
    if (http_test_follow(line, peer)) {
        bool is_error = strstr(line->body, "errorCode") != NULL;
        http_test_answer(peer, is_error ? "412 Precondition Failed" : "200 OK", "X-Etcd-Index: 30\r\n", line->body);
    }
}

/* ---- the client ---- */

static void on_state(void *ctx, int status) {
    struct scene *scene = ctx;
    scene->states++;
    scene->state = status;
    (void)snprintf(scene->state_detail, sizeof scene->state_detail, "%s", status ? muster_detail() : "");
    uv_stop(&scene->stage.loop);
}

static void on_answer(void *ctx, const struct kv_reply *reply) {
    struct scene *scene = ctx;
    scene->answers++;
    scene->status = reply->status;
    scene->number = reply->number;
    scene->value_count = reply->value_count;
    for (size_t i = 0; i < reply->value_count && i < VALUES_MAX; i++) {
        assert_true(reply->values[i].len < sizeof scene->values[i]);
        memcpy(scene->values[i], reply->values[i].data ? (const char *)reply->values[i].data : "",
               reply->values[i].len);
        scene->values[i][reply->values[i].len] = '\0';
    }
    uv_stop(&scene->stage.loop);
}

static void open_client(struct scene *scene, const char *endpoints, uint64_t patience_ms) {
    struct etcd_v2_options etcd = {.endpoints = endpoints, .patience_ms = patience_ms};
    assert_int_equal(etcd_v2_create(&scene->stage.loop, &etcd, &scene->etcd), 0);
    struct kv_client_etcd_options options = {
        .etcd = scene->etcd, .folder = "/store/", .state_key = "job", .state_path = "/states/job", .state_ttl_s = 7200};
    assert_int_equal(kv_client_create_etcd(&scene->stage.loop, &options, on_state, scene, &scene->client), 0);
}

static void begin(struct scene *scene, const struct http_test_line *script) {
    char endpoint[64];
    static const struct http_test_line reached[] = {{"GET " STATE, NULL, ERROR(100)}, {NULL, NULL, NULL}};
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", (unsigned)scene->stage.server.port);
    scene->script = reached;
    scene->at = 0;
    open_client(scene, endpoint, PATIENCE_MS);
    http_test_stage_run(&scene->stage, &scene->states, 1);
    assert_int_equal(scene->state, 0);
    assert_true(kv_client_offers_watch(scene->client));
    scene->script = script;
    scene->at = 0;
}

static void await_answer(struct scene *scene) {
    http_test_stage_run(&scene->stage, &scene->answers, 1);
    assert_null(scene->script[scene->at].asked); /* all of the script has been asked */
}

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    http_test_stage_open(&scene->stage, on_request, scene);
    *out = scene;
    return 0;
}

static int tear_down(void **state) {
    struct scene *scene = *state;
    kv_client_close(scene->client);
    etcd_v2_close(scene->etcd);
    http_test_stage_close(&scene->stage);
    free(scene);
    return 0;
}

/* ---- keys of the store: base64 ---- */

static void set_and_get_are_base64(void **state) {
    /* EtcdStore's "/" in base64 makes a folder; it is no escape in a path. */
    static const struct http_test_line script[] = {{"PUT " STORE "YS9iPz8/", "value=YjE%3D&", NODE("YjE=", 7)},
                                                   {"GET " STORE "Zm9v", NULL, NODE("YmFy", 7)},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_set(scene->client, "a/b???", kv_slice_text("b1"), NULL, NULL), 0);
    assert_int_equal(kv_client_get(scene->client, "foo", false, 0, on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->status, 0);
    assert_int_equal(scene->value_count, 1);
    assert_string_equal(scene->values[0], "bar");
}

static void an_absent_key_is_empty(void **state) {
    static const struct http_test_line script[] = {{"GET " STORE "Zm9v", NULL, ERROR(100)}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_get(scene->client, "foo", false, 0, on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->status, 0);
    assert_string_equal(scene->values[0], "");
}

static void keys_are_waited_for_one_after_the_other(void **state) {
    static const struct http_test_line script[] = {
        {"GET " STORE "YQ%3D%3D", NULL, NODE("MQ==", 7)},
        {"GET " STORE "Yg%3D%3D", NULL, ERROR(100)},
        {"GET " STORE "Yg%3D%3D?wait=true&waitIndex=31", NULL, EVENT("Mg==", 35)},
        {"GET " STORE "Yg%3D%3D", NULL, NODE("Mg==", 35)},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    const char *keys[] = {"a", "b"};
    begin(scene, script);
    assert_int_equal(kv_client_multi_get(scene->client, keys, 2, 0, on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->value_count, 2);
    assert_string_equal(scene->values[0], "1");
    assert_string_equal(scene->values[1], "2");
}

static void a_wait_ends_by_its_time_out(void **state) {
    static const struct http_test_line script[] = {{"GET " STORE "YQ%3D%3D", NULL, ERROR(100)},
                                                   {"GET " STORE "YQ%3D%3D?wait=true&waitIndex=31", NULL, ""},
                                                   {"GET " STORE "Yg%3D%3D", NULL, NODE("Mg==", 7)},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    const char *keys[] = {"a"};
    begin(scene, script);
    assert_int_equal(kv_client_wait(scene->client, keys, 1, 100, on_answer, scene), 0);
    http_test_stage_run(&scene->stage, &scene->answers, 1);
    assert_int_equal(scene->status, MUSTER_ETIMEOUT);
    assert_int_equal(kv_client_get(scene->client, "b", false, 0, on_answer, scene), 0); /* the client goes on */
    http_test_stage_run(&scene->stage, &scene->answers, 2);
    assert_string_equal(scene->values[0], "2");
}

static void check_looks_without_waiting(void **state) {
    static const struct http_test_line script[] = {{"GET " STORE "YQ%3D%3D", NULL, NODE("MQ==", 7)},
                                                   {"GET " STORE "Yg%3D%3D", NULL, ERROR(100)},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    const char *keys[] = {"a", "b"};
    begin(scene, script);
    assert_int_equal(kv_client_check(scene->client, keys, 2, on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->number, 0);
}

static void add_wins_its_races(void **state) {
    static const struct http_test_line script[] = {
        {"PUT " STORE "bg%3D%3D", "value=Mg%3D%3D&prevExist=false&", ERROR(105)},
        {"GET " STORE "bg%3D%3D", NULL, NODE("NQ==", 9)}, /* 5 */
        {"PUT " STORE "bg%3D%3D", "value=Nw%3D%3D&prevIndex=9&", ERROR(101)},
        {"GET " STORE "bg%3D%3D", NULL, NODE("OA==", 10)}, /* 8 */
        {"PUT " STORE "bg%3D%3D", "value=MTA%3D&prevIndex=10&", EVENT("MTA=", 11)},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_add(scene->client, "n", 2, on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->number, 10);
}

static void what_is_no_number_is_refused(void **state) {
    static const struct http_test_line script[] = {{"PUT " STORE "bg%3D%3D", NULL, ERROR(105)},
                                                   {"GET " STORE "bg%3D%3D", NULL, NODE("eA==", 9)},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_add(scene->client, "n", 2, on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->status, MUSTER_ECONNECT);
    http_test_stage_run(&scene->stage, &scene->states, 2);
    assert_non_null(strstr(scene->state_detail, "is no number"));
}

/* ---- the state: as it is, with a time to live ---- */

static void the_first_state_must_find_none(void **state) {
    static const struct http_test_line script[] = {
        {"PUT " STATE, "value=new&ttl=7200&prevExist=false&", EVENT("new", 8)}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(
        kv_client_compare_set(scene->client, "job", kv_slice_text(""), kv_slice_text("new"), on_answer, scene), 0);
    await_answer(scene);
    assert_string_equal(scene->values[0], "new");
}

static void a_lost_race_gives_the_winners_state(void **state) {
    static const struct http_test_line script[] = {
        {"PUT " STATE, "value=new&ttl=7200&prevValue=old%2B%2F&", ERROR(101)},
        {"GET " STATE, NULL, NODE("theirs", 9)},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(
        kv_client_compare_set(scene->client, "job", kv_slice_text("old+/"), kv_slice_text("new"), on_answer, scene), 0);
    await_answer(scene);
    assert_string_equal(scene->values[0], "theirs");
}

static void a_state_that_has_vanished_is_empty(void **state) {
    static const struct http_test_line script[] = {{"PUT " STATE, NULL, ERROR(100)}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(
        kv_client_compare_set(scene->client, "job", kv_slice_text("old"), kv_slice_text("new"), on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->status, 0);
    assert_string_equal(scene->values[0], "");
}

static void a_watch_goes_on_until_it_differs(void **state) {
    static const struct http_test_line script[] = {
        {"GET " STATE, NULL, NODE("known", 20)},
        {"GET " STATE "?wait=true&waitIndex=31", NULL, EVENT("known", 33)}, /* our own write */
        {"GET " STATE "?wait=true&waitIndex=34", NULL, ERROR(401)},         /* etcd remembers 1000 events */
        {"GET " STATE, NULL, NODE("other", 2000)},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_watch(scene->client, "job", kv_slice_text("known"), on_answer, scene), 0);
    await_answer(scene);
    assert_string_equal(scene->values[0], "other");
}

static void a_watch_that_is_interrupted_looks_again(void **state) {
    static const struct http_test_line script[] = {
        {"GET " STATE, NULL, NODE("known", 20)},
        {"GET " STATE "?wait=true&waitIndex=31", NULL, NULL}, /* etcd restarts, maybe without its data */
        {"GET " STATE, NULL, NODE("other", 3)},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_watch(scene->client, "job", kv_slice_text("known"), on_answer, scene), 0);
    await_answer(scene);
    assert_string_equal(scene->values[0], "other");
}

static void a_watch_tells_of_an_expired_state(void **state) {
    static const struct http_test_line script[] = {
        {"GET " STATE, NULL, NODE("known", 20)},
        {"GET " STATE "?wait=true&waitIndex=31", NULL,
         "{\"action\":\"expire\",\"node\":{\"key\":\"/states/job\",\"modifiedIndex\":35}}"},
        {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_watch(scene->client, "job", kv_slice_text("known"), on_answer, scene), 0);
    await_answer(scene);
    assert_int_equal(scene->status, 0);
    assert_string_equal(scene->values[0], "");
}

/* ---- an etcd that has trouble ---- */

static void what_passes_is_tried_again(void **state) {
    static const struct http_test_line script[] = {{"GET " STORE "Zm9v", NULL, NULL},       /* it restarts */
                                                   {"GET " STORE "Zm9v", NULL, ERROR(300)}, /* raft is busy */
                                                   {"GET " STORE "Zm9v", NULL, NODE("YmFy", 7)},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    begin(scene, script);
    assert_int_equal(kv_client_get(scene->client, "foo", false, 0, on_answer, scene), 0);
    await_answer(scene);
    assert_string_equal(scene->values[0], "bar");
}

static void the_next_endpoint_is_asked(void **state) {
    static const struct http_test_line script[] = {{"GET " STATE, NULL, ERROR(100)}, {NULL, NULL, NULL}};
    struct scene *scene = *state;
    char endpoints[96];
    uint16_t port = 0;
    int held = port_hold(&port);
    (void)snprintf(endpoints, sizeof endpoints, "127.0.0.1:%u,127.0.0.1:%u", (unsigned)port,
                   (unsigned)scene->stage.server.port);
    scene->script = script;
    open_client(scene, endpoints, PATIENCE_MS);
    http_test_stage_run(&scene->stage, &scene->states, 1);
    (void)close(held);
    assert_int_equal(scene->state, 0);
}

static void patience_ends(void **state) {
    struct scene *scene = *state;
    char endpoint[64];
    uint16_t port = 0;
    int held = port_hold(&port);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", (unsigned)port);
    open_client(scene, endpoint, 100);
    http_test_stage_run(&scene->stage, &scene->states, 1);
    (void)close(held);
    assert_int_equal(scene->state, MUSTER_ECONNECT);
    assert_non_null(strstr(scene->state_detail, "has not answered"));
    assert_non_null(strstr(scene->state_detail, endpoint));
    assert_non_null(strstr(scene->state_detail, "Connection refused"));
}

static void endpoints_are_checked(void **state) {
    static const char *const wrong[] = {"a,,b", ",a", "a,", "a:x", "a:70000"};
    struct scene *scene = *state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct etcd_v2_options options = {.endpoints = wrong[i]};
        assert_int_equal(etcd_v2_create(&scene->stage.loop, &options, &scene->etcd), MUSTER_EINVAL);
    }
    struct etcd_v2_options options = {.endpoints = "a, [::1]:77 ,b:5", .https = true};
    assert_int_equal(etcd_v2_create(&scene->stage.loop, &options, &scene->etcd), 0);
    assert_string_equal(etcd_v2_describe(scene->etcd), "https://a:2379, https://[::1]:77, https://b:5");
}

static void the_client_may_be_closed_while_it_waits(void **state) {
    static const struct http_test_line script[] = {{"GET " STORE "YQ%3D%3D", NULL, ERROR(100)},
                                                   {"GET " STORE "YQ%3D%3D?wait=true&waitIndex=31", NULL, ""},
                                                   {NULL, NULL, NULL}};
    struct scene *scene = *state;
    const char *keys[] = {"a"};
    begin(scene, script);
    assert_int_equal(kv_client_wait(scene->client, keys, 1, 0, on_answer, scene), 0);
    while (scene->at < 2) {
        assert_false(scene->stage.expired);
        (void)uv_run(&scene->stage.loop, UV_RUN_ONCE);
    }
    kv_client_close(scene->client);
    scene->client = NULL;
    (void)uv_run(&scene->stage.loop, UV_RUN_NOWAIT);
    assert_int_equal(scene->answers, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(set_and_get_are_base64),
        CASE(an_absent_key_is_empty),
        CASE(keys_are_waited_for_one_after_the_other),
        CASE(a_wait_ends_by_its_time_out),
        CASE(check_looks_without_waiting),
        CASE(add_wins_its_races),
        CASE(what_is_no_number_is_refused),
        CASE(the_first_state_must_find_none),
        CASE(a_lost_race_gives_the_winners_state),
        CASE(a_state_that_has_vanished_is_empty),
        CASE(a_watch_goes_on_until_it_differs),
        CASE(a_watch_that_is_interrupted_looks_again),
        CASE(a_watch_tells_of_an_expired_state),
        CASE(what_passes_is_tried_again),
        CASE(the_next_endpoint_is_asked),
        CASE(patience_ends),
        CASE(endpoints_are_checked),
        CASE(the_client_may_be_closed_while_it_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
