/* A coordinator with TLS, over real sockets: agents with certificates and without, and strangers who begin a handshake
 * and do not end it. Everything in one thread on one libuv loop: nobody sleeps. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "net/tls_stream.h"
#include "net/tls_test_support.h"
#include "rendezvous/coordinator/coordinator_served_test_support.h"

enum { WIRE_BYTES_MAX = 64 * 1024, STRANGERS_MAX = 8, FLOOD = 100 };

struct fixture {
    struct served served;
    struct tls_context *member, *stranger, *expired;
    struct secret *secret;
};

static struct tls_context *context_of(struct tls_files files) {
    struct tls_context *context;
    assert_int_equal(tls_context_create(&files, &context), 0);
    return context;
}

static int set_up(void **out) {
    struct fixture *f = calloc(1, sizeof *f);
    struct secret_text text;
    assert_non_null(f);
    served_begin(&f->served);
    f->member = context_of(tls_test_member(&tls_test_files));
    f->stranger = context_of(tls_test_stranger(&tls_test_files));
    f->expired = context_of(tls_test_expired(&tls_test_files));
    assert_int_equal(secret_text_load(NULL, "the secret of this job", &text), 0);
    assert_int_equal(secret_create(&text, &f->secret), 0);
    *out = f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    served_end(&f->served);
    tls_context_free(f->member);
    tls_context_free(f->stranger);
    tls_context_free(f->expired);
    secret_free(f->secret);
    free(f);
    return 0;
}

static void open_server(struct fixture *f, const struct tls_context *tls, const struct secret *secret,
                        int64_t patience_ms) {
    served_open(&f->served, secret, tls, patience_ms, STRANGERS_MAX);
}

/* ---- agents ---- */

static void form(struct fixture *f, struct served_node nodes[2], const struct secret *secret) {
    served_form(&f->served, nodes, secret, f->member);
}

static void check_world(struct fixture *f, const struct secret *secret) {
    static const struct coordinator_message alive = {.kind = COORDINATOR_ALIVE};
    struct served_node nodes[2], status_client;
    open_server(f, f->member, secret, SERVED_LONG_MS);
    form(f, nodes, secret);
    for (unsigned i = 0; i < 300; i++) {
        assert_int_equal(native_connection_send(nodes[0].session, &alive), 0);
        served_run_until_heard(&nodes[0], COORDINATOR_HEARD, i + 1);
    }
    for (unsigned i = 0; i < 500; i++) { /* many in one record's time */
        assert_int_equal(native_connection_send(nodes[1].session, &alive), 0);
    }
    served_run_until_heard(&nodes[1], COORDINATOR_HEARD, 500);
    served_node_open(&f->served, &status_client, 2, secret, f->member);
    status_client.asks = true;
    served_run_until_heard(&status_client, COORDINATOR_REPORT, 1);
    served_expect_unharmed(&f->served, nodes);
    assert_int_equal(f->served.warnings, 0);
    served_nodes_close(&status_client, 1);
    served_nodes_close(nodes, 2);
}

static void agents_with_certificates_form_a_world(void **state) {
    check_world(*state, NULL);
}

static void a_secret_goes_inside(void **state) {
    struct fixture *f = *state;
    check_world(f, f->secret);
}

static void with_a_secret_a_certificate_is_not_enough(void **state) {
    struct fixture *f = *state;
    struct served_node node;
    open_server(f, f->member, f->secret, SERVED_LONG_MS);
    served_node_open(&f->served, &node, 0, NULL, f->member);
    served_run_until_lost(&node);
    assert_non_null(strstr(node.why, "secret_file=FILE"));
    assert_int_equal(served_member_count(&f->served), 0);
    served_nodes_close(&node, 1);
}

static void an_agent_without_tls_is_told_so(void **state) {
    struct fixture *f = *state;
    const struct secret *const secrets[] = {NULL, f->secret};
    open_server(f, f->member, f->secret, SERVED_LONG_MS);
    for (unsigned i = 0; i < 2; i++) {
        struct served_node node;
        served_node_open(&f->served, &node, 0, secrets[i], NULL);
        served_run_until_lost(&node);
        assert_non_null(strstr(node.why, "uses TLS, and this one does not"));
        assert_non_null(strstr(node.why, "tls_cert=FILE"));
        assert_true(i == 0 ? node.heard[COORDINATOR_REFUSED] == 1 : node.status == MUSTER_EPROTOCOL);
        assert_non_null(strstr(f->served.warning, "connection from 127.0.0.1:"));
        assert_non_null(strstr(f->served.warning, "uses TLS"));
        served_nodes_close(&node, 1);
    }
    assert_int_equal(served_member_count(&f->served), 0);
}

static void a_coordinator_without_tls_is_not_joined(void **state) {
    struct fixture *f = *state;
    struct served_node node;
    open_server(f, NULL, NULL, SERVED_LONG_MS);
    served_node_open(&f->served, &node, 0, NULL, f->member);
    served_run_until_lost(&node);
    assert_false(node.is_open);
    assert_int_equal(node.status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(node.why, "the coordinator at 127.0.0.1:"));
    assert_non_null(strstr(node.why, "does not use TLS, and this node does"));
    served_run_until_warned(&f->served, 1);
    assert_non_null(strstr(f->served.warning, "does not use TLS"));
    served_nodes_close(&node, 1);
}

static void a_mere_store_is_not_joined(void **state) {
    struct fixture *f = *state;
    struct served_node node;
    served_listen(&f->served, NULL, STRANGERS_MAX);
    served_node_open(&f->served, &node, 0, NULL, f->member);
    served_run_until_lost(&node);
    assert_false(node.is_open);
    assert_true(node.status == MUSTER_ECLOSED || node.status == MUSTER_ECONNECT); /* worth another attempt */
    served_nodes_close(&node, 1);
}

/* One side's certificate is not accepted; both learn why. */
static void check_refused(struct fixture *f, const struct tls_context *agent, const char *reason) {
    struct served_node node;
    unsigned before = f->served.warnings;
    served_node_open(&f->served, &node, 0, NULL, agent);
    served_run_until_lost(&node);
    assert_int_equal(node.status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(node.why, "the coordinator at 127.0.0.1:"));
    served_run_until_warned(&f->served, before + 1);
    if (agent != f->member) {
        assert_non_null(strstr(node.why, "it does not accept this side"));
        assert_non_null(strstr(f->served.warning, reason));
    } else {
        assert_false(node.is_open);
        assert_non_null(strstr(node.why, reason));
        assert_non_null(strstr(f->served.warning, "it does not accept this side"));
    }
    assert_int_equal(served_member_count(&f->served), 0);
    served_nodes_close(&node, 1);
}

static void agents_of_other_authorities_are_refused(void **state) {
    struct fixture *f = *state;
    open_server(f, f->member, NULL, SERVED_LONG_MS);
    check_refused(f, f->stranger, "its certificate: unable to get local issuer certificate");
    check_refused(f, f->expired, "its certificate: certificate has expired");
}

static void coordinators_of_other_authorities_are_refused(void **state) {
    struct fixture *f = *state;
    open_server(f, f->stranger, NULL, SERVED_LONG_MS);
    check_refused(f, f->member, "its certificate: unable to get local issuer certificate");
}

/* ---- strangers: bytes ---- */

/* A member's own first bytes. */
static void client_hello(const struct fixture *f, struct buf *out) {
    struct tls_stream *stream;
    buf_init(out, WIRE_BYTES_MAX);
    assert_int_equal(tls_stream_create(f->member, true, &stream), 0);
    assert_int_equal(tls_stream_begin(stream, out), 0);
    tls_stream_free(stream);
}

static void cut_and_damaged_handshakes_harm_nobody(void **state) {
    static const char garbage[] = "this is no TLS at all, nor anything else";
    struct fixture *f = *state;
    struct served_node nodes[2];
    struct buf hello;
    open_server(f, f->member, NULL, SERVED_LONG_MS);
    form(f, nodes, NULL);
    client_hello(f, &hello);
    for (size_t len = 1; len <= hello.len; len++) {
        for (int how = 0; how < 3; how++) {
            int fd = served_call(&f->served);
            uint8_t *bytes = buf_bytes(&hello);
            bytes[len - 1] ^= how == 2 ? 0xff : 0;
            (void)send(fd, bytes, how == 2 ? hello.len : len, MSG_NOSIGNAL);
            bytes[len - 1] ^= how == 2 ? 0xff : 0;
            if (how == 1) {
                (void)send(fd, garbage, sizeof garbage, MSG_NOSIGNAL);
            }
            (void)shutdown(fd, SHUT_WR);
            served_expect_end(&f->served, fd);
        }
    }
    buf_done(&hello);
    served_expect_unharmed(&f->served, nodes);
    served_nodes_close(nodes, 2);
}

static void who_is_too_slow_is_dropped(void **state) {
    struct fixture *f = *state;
    struct buf hello;
    open_server(f, f->member, NULL, 20);
    client_hello(f, &hello);
    for (unsigned i = 0; i < 2; i++) { /* without an end of the ClientHello, and without the rest of the handshake */
        int fd = served_call(&f->served);
        (void)send(fd, buf_bytes(&hello), i == 0 ? 10 : hello.len, MSG_NOSIGNAL);
        served_expect_end(&f->served, fd);
        assert_non_null(strstr(f->served.warning, "has not joined the rendezvous within 20 ms"));
    }
    buf_done(&hello);
}

/* Those that have been ended since; their descriptors are -1 then. */
static unsigned count_ended(int *fds, unsigned count) {
    unsigned ended = 0;
    uint8_t bytes[4096];
    for (unsigned i = 0; i < count; i++) {
        ssize_t got = 1;
        while (fds[i] >= 0 && got > 0) {
            got = recv(fds[i], bytes, sizeof bytes, 0);
        }
        if (fds[i] >= 0 && (got == 0 || (errno != EAGAIN && errno != ENOTCONN))) {
            (void)close(fds[i]);
            fds[i] = -1;
            ended++;
        }
    }
    return ended;
}

/* More than may be strangers at a time: the oldest make way, members do not. */
static void a_flood_pushes_out_itself(void **state) {
    struct fixture *f = *state;
    struct served_node nodes[2];
    struct buf hello;
    int fds[FLOOD];
    open_server(f, f->member, NULL, SERVED_LONG_MS);
    form(f, nodes, NULL);
    client_hello(f, &hello);
    for (unsigned i = 0; i < FLOOD; i++) {
        fds[i] = served_call(&f->served);
        (void)send(fds[i], buf_bytes(&hello), i % 2 ? hello.len : 10, MSG_NOSIGNAL);
        (void)uv_run(&f->served.loop, UV_RUN_NOWAIT);
    }
    unsigned ended = 0;
    while ((ended += count_ended(fds, FLOOD)) < FLOOD - STRANGERS_MAX) {
        (void)uv_run(&f->served.loop, UV_RUN_ONCE);
    }
    served_expect_unharmed(&f->served, nodes);
    for (unsigned i = 0; i < FLOOD; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    buf_done(&hello);
    served_nodes_close(nodes, 2);
}

#define TLS_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TLS_TEST(agents_with_certificates_form_a_world),
        TLS_TEST(a_secret_goes_inside),
        TLS_TEST(with_a_secret_a_certificate_is_not_enough),
        TLS_TEST(an_agent_without_tls_is_told_so),
        TLS_TEST(a_coordinator_without_tls_is_not_joined),
        TLS_TEST(a_mere_store_is_not_joined),
        TLS_TEST(agents_of_other_authorities_are_refused),
        TLS_TEST(coordinators_of_other_authorities_are_refused),
        TLS_TEST(cut_and_damaged_handshakes_harm_nobody),
        TLS_TEST(who_is_too_slow_is_dropped),
        TLS_TEST(a_flood_pushes_out_itself),
    };
    return cmocka_run_group_tests(tests, tls_test_begin, tls_test_end);
}
