/* For tests: a loop that does not run for ever, and in it an HTTP server, whose answers are bytes that the test says,
 * or lines of a script. */
#ifndef NET_HTTP_TEST_SUPPORT_H
#define NET_HTTP_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

enum { HTTP_TEST_PEERS_MAX = 16, HTTP_TEST_REQUEST_MAX = 8192 };

struct http_test_server;

/* One connection that the server has accepted. */
struct http_test_peer {
    uv_tcp_t tcp;
    struct http_test_server *server;
    char request[HTTP_TEST_REQUEST_MAX]; /* head and body, terminated */
    size_t len;
    size_t answered; /* requests */
    bool open;
};

struct http_test_server {
    uv_tcp_t tcp;
    uint16_t port; /* of 127.0.0.1 */
    struct http_test_peer peers[HTTP_TEST_PEERS_MAX];
    size_t peer_count;
    size_t request_count;
    void (*on_request)(void *ctx, struct http_test_peer *peer); /* a whole request has come */
    void *ctx;
};

void http_test_server_start(struct http_test_server *server, uv_loop_t *loop,
                            void (*on_request)(void *ctx, struct http_test_peer *peer), void *ctx);
void http_test_server_stop(struct http_test_server *server);

void http_test_say_bytes(struct http_test_peer *peer, const char *bytes, size_t len);
void http_test_say(struct http_test_peer *peer, const char *text);
void http_test_hang_up(struct http_test_peer *peer);

/* ---- the loop, with the server in it ---- */

struct http_test_stage {
    uv_loop_t loop;
    uv_timer_t watchdog;
    bool expired;
    struct http_test_server server;
};

void http_test_stage_open(struct http_test_stage *stage, void (*on_request)(void *ctx, struct http_test_peer *peer),
                          void *ctx);
/* All else in the loop is closed, or closing: it ends. */
void http_test_stage_close(struct http_test_stage *stage);
/* Until *count has reached it; fails the test when that takes too long. */
void http_test_stage_run(struct http_test_stage *stage, const unsigned *count, unsigned wanted);

/* ---- scripts ---- */

/* What must be asked next, and what is answered. The last line asks nothing. */
struct http_test_line {
    const char *asked; /* how the request begins: "GET /v2/keys/..." */
    const char *form;  /* its body; NULL: whatever */
    const char *body;  /* of the answer; NULL: the connection ends; "": no answer at all */
};

/* Checks the request against the line. False: there is nothing to be said to it any more. */
bool http_test_follow(const struct http_test_line *line, struct http_test_peer *peer);
/* Headers end with "\r\n" each. */
void http_test_answer(struct http_test_peer *peer, const char *status, const char *headers, const char *body);

#endif
