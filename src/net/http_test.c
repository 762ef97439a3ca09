/* The HTTP client against a small server in the same loop: each test says, byte by byte, what the server answers and in
 * which pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#include <muster/status.h>

#include "net/http.h"
#include "net/http_test_support.h"
#include "net/port_test_support.h"

struct answer_seen {
    uv_loop_t *loop; /* stopped, so that a turn of it that needs no poll does not wait in one */
    unsigned calls;
    int status;
    long code;
    char body[512];
    size_t len;
    char header[HTTP_HEADER_VALUE_MAX];
    char detail[MUSTER_DETAIL_MAX];
    char data[4096]; /* by on_data */
    size_t data_len;
    size_t data_total;
    unsigned data_calls;
};

struct scene {
    struct http_test_stage stage;
    void (*on_request)(struct scene *scene, struct http_test_peer *peer);
    struct http_client *client;
    struct http_request *request;
    struct answer_seen seen;
    char url[64];
};

/* ---- the client's side ---- */

static void on_data(void *ctx, const uint8_t *bytes, size_t len) {
    struct answer_seen *seen = ctx;
    seen->data_calls++;
    seen->data_total += len;
    len = len < sizeof seen->data - 1 - seen->data_len ? len : sizeof seen->data - 1 - seen->data_len;
    memcpy(seen->data + seen->data_len, bytes, len);
    seen->data_len += len;
}

static void on_done(void *ctx, const struct http_answer *answer) {
    struct answer_seen *seen = ctx;
    seen->calls++;
    seen->status = answer->status;
    seen->code = answer->code;
    seen->len = answer->len;
    assert_non_null(answer->body);
    assert_string_equal(answer->local_address,
                        answer->status && answer->code == 0 ? answer->local_address : "127.0.0.1");
    memcpy(seen->body, answer->body, answer->len < sizeof seen->body ? answer->len : sizeof seen->body - 1);
    memcpy(seen->header, answer->header, sizeof seen->header);
    (void)snprintf(seen->detail, sizeof seen->detail, "%s", answer->status ? muster_detail() : "");
    uv_stop(seen->loop);
}

static const struct http_callbacks collects = {.on_done = on_done};
static const struct http_callbacks streams = {.on_data = on_data, .on_done = on_done};

static void run_until_requests(struct scene *scene, size_t wanted) {
    while (scene->stage.server.request_count < wanted) {
        assert_false(scene->stage.expired);
        (void)uv_run(&scene->stage.loop, UV_RUN_ONCE);
    }
}

static void make_client(struct scene *scene) {
    struct http_client_options options = {0};
    assert_int_equal(http_client_create(&scene->stage.loop, &options, &scene->client), 0);
}

static void send_call(struct scene *scene, const struct http_call *call, const struct http_callbacks *callbacks) {
    struct http_call full = *call;
    full.url = full.url ? full.url : scene->url;
    assert_int_equal(http_send(scene->client, &full, callbacks, &scene->seen, &scene->request), 0);
}

static void get(struct scene *scene) {
    send_call(scene, &(struct http_call){0}, &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
}

static void on_request(void *ctx, struct http_test_peer *peer) {
    struct scene *scene = ctx;
    scene->on_request(scene, peer);
}

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    http_test_stage_open(&scene->stage, on_request, scene);
    (void)snprintf(scene->url, sizeof scene->url, "http://127.0.0.1:%u/v2/keys?q=secret",
                   (unsigned)scene->stage.server.port);
    scene->seen.loop = &scene->stage.loop;
    make_client(scene);
    *out = scene;
    return 0;
}

static int tear_down(void **state) {
    struct scene *scene = *state;
    http_client_close(scene->client);
    http_test_stage_close(&scene->stage);
    free(scene);
    return 0;
}

/* ---- answers of every form ---- */

static void answer_hello(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_say(peer, "HTTP/1.1 200 OK\r\nx-ETCD-index:  17 \r\nContent-Length: 5\r\n\r\nhello");
}

static void a_body_and_a_header_come_back(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_hello;
    send_call(scene, &(struct http_call){.header_wanted = "X-Etcd-Index"}, &collects);
    assert_int_equal(scene->seen.calls, 0); /* never from inside the call */
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.status, 0);
    assert_int_equal(scene->seen.code, 200);
    assert_int_equal(scene->seen.len, 5);
    assert_string_equal(scene->seen.body, "hello");
    assert_string_equal(scene->seen.header, "17");
}

static void a_connection_is_used_again(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_hello;
    get(scene);
    send_call(scene, &(struct http_call){0}, &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 2);
    assert_int_equal(scene->stage.server.peer_count, 1);
    assert_int_equal(scene->stage.server.peers[0].answered, 2);
}

static void answer_missing(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_say(peer, "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}");
}

static void a_refusal_of_the_server_is_an_answer(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_missing;
    get(scene);
    assert_int_equal(scene->seen.status, 0);
    assert_int_equal(scene->seen.code, 404);
    assert_string_equal(scene->seen.body, "{}");
    assert_string_equal(scene->seen.header, "");
}

static void check_put(struct scene *scene, struct http_test_peer *peer) {
    assert_non_null(strstr(peer->request, "PUT /v2/keys?q=secret HTTP/1.1\r\n"));
    assert_non_null(strstr(peer->request, "X-Mine: yes\r\n"));
    assert_null(strstr(peer->request, "Expect:"));
    assert_string_equal(strstr(peer->request, "\r\n\r\n") + 4, "value=a&ttl=5");
    answer_hello(scene, peer);
}

static void method_headers_and_body_go_out(void **state) {
    struct scene *scene = *state;
    const char *headers[] = {"X-Mine: yes"};
    scene->on_request = check_put;
    send_call(scene,
              &(struct http_call){
                  .method = "PUT", .headers = headers, .header_count = 1, .body = "value=a&ttl=5", .body_len = 13},
              &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.code, 200);
}

static void answer_in_chunks(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_say(peer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n");
}

static void chunks_are_put_together(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_in_chunks;
    get(scene);
    assert_int_equal(scene->seen.status, 0);
    assert_string_equal(scene->seen.body, "abcdefg");
}

/* Says one byte of an answer each time that the loop turns. */
struct slow {
    uv_idle_t idle;
    struct http_test_peer *peer;
    const char *text;
};

static void on_turn(uv_idle_t *idle) {
    struct slow *slow = idle->data;
    if (*slow->text == '\0' || !slow->peer->open) {
        (void)uv_idle_stop(idle);
        return;
    }
    http_test_say_bytes(slow->peer, slow->text++, 1);
}

static struct slow slow;

static void answer_slowly(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    slow.peer = peer;
    slow.text = "HTTP/1.1 200 OK\r\nX-Etcd-Index: 5\r\nContent-Length: 4\r\n\r\nslow";
    assert_int_equal(uv_idle_start(&slow.idle, on_turn), 0);
}

static void an_answer_may_come_byte_by_byte(void **state) {
    struct scene *scene = *state;
    assert_int_equal(uv_idle_init(&scene->stage.loop, &slow.idle), 0);
    slow.idle.data = &slow;
    scene->on_request = answer_slowly;
    send_call(scene, &(struct http_call){.header_wanted = "X-Etcd-Index"}, &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    uv_close((uv_handle_t *)&slow.idle, NULL);
    assert_string_equal(scene->seen.body, "slow");
    assert_string_equal(scene->seen.header, "5");
}

static void redirect_then_answer(struct scene *scene, struct http_test_peer *peer) {
    char text[256];
    if (scene->stage.server.request_count == 1) {
        (void)snprintf(text, sizeof text,
                       "HTTP/1.1 307 Temporary Redirect\r\nX-Etcd-Index: 1\r\nLocation: http://localhost:%u/there\r\n"
                       "Content-Length: 4\r\n\r\ngone",
                       (unsigned)scene->stage.server.port);
        http_test_say(peer, text);
        return;
    }
    assert_non_null(strstr(peer->request, "PUT /there HTTP/1.1\r\n"));
    assert_non_null(strstr(peer->request, "\r\n\r\nvalue=a"));
    http_test_say(peer, "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok");
}

static void a_redirect_keeps_method_and_body(void **state) {
    struct scene *scene = *state;
    scene->on_request = redirect_then_answer;
    send_call(scene,
              &(struct http_call){.method = "PUT", .body = "value=a", .body_len = 7, .header_wanted = "X-Etcd-Index"},
              &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.status, 0);
    assert_int_equal(scene->seen.code, 201);
    assert_string_equal(scene->seen.body, "ok");
    assert_string_equal(scene->seen.header, ""); /* that of the redirect is not the answer's */
}

static void redirect_for_ever(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_say(peer, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n");
}

static void redirects_end(void **state) {
    struct scene *scene = *state;
    scene->on_request = redirect_for_ever;
    get(scene);
    assert_int_equal(scene->seen.status, MUSTER_EPROTOCOL);
}

/* ---- streams ---- */

static void answer_a_piece(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_say(peer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nfirst \r\n");
}

static void a_stream_is_handed_over_as_it_comes(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_a_piece;
    send_call(scene, &(struct http_call){0}, &streams);
    http_test_stage_run(&scene->stage, &scene->seen.data_calls, 1);
    assert_string_equal(scene->seen.data, "first ");
    assert_int_equal(http_request_code(scene->request), 200);
    http_test_say(&scene->stage.server.peers[0], "6\r\nsecond\r\n");
    http_test_stage_run(&scene->stage, &scene->seen.data_calls, 2);
    assert_string_equal(scene->seen.data, "first second");
    assert_int_equal(scene->seen.calls, 0);
    http_test_say(&scene->stage.server.peers[0], "0\r\n\r\n");
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.status, 0);
    assert_int_equal(scene->seen.len, 0);
}

static void on_written(uv_write_t *write, int status) {
    (void)status;
    free(write);
}

enum { LONG_BYTES = 3 << 20 };

/* More than libcurl reads at once. */
static void answer_at_length(struct scene *scene, struct http_test_peer *peer) {
    char head[96];
    char *bytes = calloc(1, LONG_BYTES);
    uv_write_t *write = calloc(1, sizeof *write);
    assert_non_null(bytes);
    assert_non_null(write);
    (void)scene;
    (void)snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", LONG_BYTES);
    http_test_say(peer, head);
    uv_buf_t buf = uv_buf_init(bytes, LONG_BYTES);
    peer->tcp.data = peer;
    assert_int_equal(uv_write(write, (uv_stream_t *)&peer->tcp, &buf, 1, on_written), 0);
    scene->stage.loop.data = bytes; /* freed by the test */
}

static void a_stream_longer_than_what_is_held_goes_through(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_at_length;
    send_call(scene, &(struct http_call){.response_bytes_max = 1}, &streams);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    free(scene->stage.loop.data);
    assert_int_equal(scene->seen.status, 0);
    assert_int_equal(scene->seen.data_total, LONG_BYTES);
}

/* ---- what goes wrong ---- */

static void too_long_an_answer_is_refused(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_hello;
    send_call(scene, &(struct http_call){.response_bytes_max = 4}, &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.status, MUSTER_ELIMIT);
    assert_non_null(strstr(scene->seen.detail, "longer than the 4 bytes"));
}

static void answer_garbage(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_say(peer, "\x01\x02 this is no HTTP at all \r\n\r\n\r\n");
    http_test_hang_up(peer);
}

static void garbage_is_an_error_in_words(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_garbage;
    get(scene);
    assert_int_not_equal(scene->seen.status, 0);
    assert_non_null(strstr(scene->seen.detail, "GET http://127.0.0.1:"));
    assert_null(strstr(scene->seen.detail, "secret")); /* no query */
}

static void answer_a_part(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_say(peer, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nonly this");
    http_test_hang_up(peer);
}

static void half_an_answer_is_none(void **state) {
    struct scene *scene = *state;
    scene->on_request = answer_a_part;
    get(scene);
    assert_int_equal(scene->seen.status, MUSTER_ECONNECT);
}

static void hang_up_at_once(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    http_test_hang_up(peer);
}

static void no_answer_is_an_error(void **state) {
    struct scene *scene = *state;
    scene->on_request = hang_up_at_once;
    get(scene);
    assert_int_equal(scene->seen.status, MUSTER_ECONNECT);
    assert_int_equal(scene->seen.code, 0);
}

static void a_refused_connection_names_the_host(void **state) {
    struct scene *scene = *state;
    char url[64];
    uint16_t port = 0;
    int held = port_hold(&port);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/", (unsigned)port);
    send_call(scene, &(struct http_call){.url = url}, &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    (void)close(held);
    assert_int_equal(scene->seen.status, MUSTER_ECONNECT);
    assert_non_null(strstr(scene->seen.detail, url));
    assert_non_null(strstr(scene->seen.detail, "Connection refused"));
}

static void say_nothing(struct scene *scene, struct http_test_peer *peer) {
    (void)scene;
    (void)peer;
}

static void silence_ends_by_the_time_out(void **state) {
    struct scene *scene = *state;
    scene->on_request = say_nothing;
    send_call(scene, &(struct http_call){.timeout_ms = 50}, &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.status, MUSTER_ETIMEOUT);
}

static void what_is_no_url_is_refused(void **state) {
    struct scene *scene = *state;
    send_call(scene, &(struct http_call){.url = "ftp://127.0.0.1/"}, &collects);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.status, MUSTER_EINVAL);
}

static void the_environment_sets_no_proxy(void **state) {
    struct scene *scene = *state;
    assert_int_equal(setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
    scene->on_request = answer_hello;
    get(scene);
    assert_int_equal(unsetenv("http_proxy"), 0);
    assert_int_equal(scene->seen.status, 0);
}

/* ---- cancelling and closing ---- */

static void count_done(void *ctx, const struct http_answer *answer) {
    (void)answer;
    (*(unsigned *)ctx)++;
}

static const struct http_callbacks counts = {.on_done = count_done};

static void a_cancelled_request_says_nothing(void **state) {
    struct scene *scene = *state;
    unsigned cancelled = 0;
    struct http_request *request = NULL;
    struct http_call call = {.url = scene->url};
    scene->on_request = say_nothing;
    assert_int_equal(http_send(scene->client, &call, &counts, &cancelled, &request), 0);
    run_until_requests(scene, 1);
    http_cancel(request);
    http_cancel(NULL);
    scene->on_request = answer_hello;
    get(scene);
    assert_int_equal(scene->seen.status, 0);
    assert_int_equal(cancelled, 0);
}

static void cancel_itself(void *ctx, const uint8_t *bytes, size_t len) {
    struct scene *scene = ctx;
    (void)bytes;
    (void)len;
    http_cancel(scene->request);
    scene->request = NULL;
}

static void done_of_cancelled(void *ctx, const struct http_answer *answer) {
    (void)ctx;
    (void)answer;
    fail();
}

static void a_stream_may_cancel_itself(void **state) {
    struct scene *scene = *state;
    struct http_callbacks callbacks = {.on_data = cancel_itself, .on_done = done_of_cancelled};
    struct http_call call = {.url = scene->url};
    scene->on_request = answer_a_piece;
    assert_int_equal(http_send(scene->client, &call, &callbacks, scene, &scene->request), 0);
    while (scene->request) {
        assert_false(scene->stage.expired);
        (void)uv_run(&scene->stage.loop, UV_RUN_ONCE);
    }
    scene->on_request = answer_hello;
    get(scene);
    assert_int_equal(scene->seen.code, 200);
}

static void close_client(void *ctx, const struct http_answer *answer) {
    struct scene *scene = ctx;
    assert_int_equal(answer->code, 200);
    http_client_close(scene->client);
    scene->client = NULL;
    scene->seen.calls++;
}

static void the_client_may_be_closed_from_an_answer(void **state) {
    struct scene *scene = *state;
    struct http_callbacks callbacks = {.on_done = close_client};
    struct http_call call = {.url = scene->url};
    struct http_request *silent = NULL, *request = NULL;
    unsigned done = 0;
    scene->on_request = say_nothing;
    assert_int_equal(http_send(scene->client, &call, &counts, &done, &silent), 0);
    run_until_requests(scene, 1);
    scene->on_request = answer_hello;
    assert_int_equal(http_send(scene->client, &call, &callbacks, scene, &request), 0);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(done, 0);
}

static void send_another(void *ctx, const struct http_answer *answer) {
    struct scene *scene = ctx;
    (void)answer;
    send_call(scene, &(struct http_call){0}, &collects);
}

static void an_answer_may_send_the_next_request(void **state) {
    struct scene *scene = *state;
    struct http_callbacks callbacks = {.on_done = send_another};
    struct http_call call = {.url = scene->url};
    struct http_request *request = NULL;
    scene->on_request = answer_hello;
    assert_int_equal(http_send(scene->client, &call, &callbacks, scene, &request), 0);
    http_test_stage_run(&scene->stage, &scene->seen.calls, 1);
    assert_int_equal(scene->seen.code, 200);
    assert_int_equal(scene->stage.server.peer_count, 1);
}

static void requests_run_side_by_side(void **state) {
    struct scene *scene = *state;
    enum { COUNT = 8 };
    unsigned done = 0;
    struct http_call call = {.url = scene->url};
    scene->on_request = say_nothing;
    for (size_t i = 0; i < COUNT; i++) {
        struct http_request *request = NULL;
        assert_int_equal(http_send(scene->client, &call, &counts, &done, &request), 0);
    }
    run_until_requests(scene, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        answer_hello(scene, &scene->stage.server.peers[i]);
    }
    http_test_stage_run(&scene->stage, &done, COUNT);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(a_body_and_a_header_come_back),
        CASE(a_connection_is_used_again),
        CASE(a_refusal_of_the_server_is_an_answer),
        CASE(method_headers_and_body_go_out),
        CASE(chunks_are_put_together),
        CASE(an_answer_may_come_byte_by_byte),
        CASE(a_redirect_keeps_method_and_body),
        CASE(redirects_end),
        CASE(a_stream_is_handed_over_as_it_comes),
        CASE(a_stream_longer_than_what_is_held_goes_through),
        CASE(too_long_an_answer_is_refused),
        CASE(garbage_is_an_error_in_words),
        CASE(half_an_answer_is_none),
        CASE(no_answer_is_an_error),
        CASE(a_refused_connection_names_the_host),
        CASE(silence_ends_by_the_time_out),
        CASE(what_is_no_url_is_refused),
        CASE(the_environment_sets_no_proxy),
        CASE(a_cancelled_request_says_nothing),
        CASE(a_stream_may_cancel_itself),
        CASE(the_client_may_be_closed_from_an_answer),
        CASE(an_answer_may_send_the_next_request),
        CASE(requests_run_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
