/* A coordinator with a secret, over real sockets: agents that know it, agents that do not, and attackers who have
 * recorded, forge, reflect and cut. Everything in one thread on one libuv loop: nobody sleeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_served_test_support.h"
#include "rendezvous/wire/coordinator_auth.h"

enum { INPUT_BYTES_MAX = 64 * 1024 };

struct fixture {
    struct served served;
    struct secret *ours, *other;
};

static struct secret *secret_of(const char *value) {
    struct secret_text text;
    struct secret *secret;
    assert_int_equal(secret_text_load(NULL, value, &text), 0);
    assert_int_equal(secret_create(&text, &secret), 0);
    return secret;
}

static int set_up(void **out) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    served_begin(&f->served);
    f->ours = secret_of("the secret of this job");
    f->other = secret_of("the secret of another job");
    *out = f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    served_end(&f->served);
    secret_free(f->ours);
    secret_free(f->other);
    free(f);
    return 0;
}

static void open_server(struct fixture *f, const struct secret *secret) {
    served_open(&f->served, secret, NULL, SERVED_LONG_MS, 0);
}

/* ---- agents: as they are ---- */

static void form(struct fixture *f, struct served_node nodes[2]) {
    served_form(&f->served, nodes, f->ours, NULL);
}

static void agents_that_know_it_form_a_world(void **state) {
    struct fixture *f = *state;
    struct served_node nodes[2];
    const struct coordinator_message alive = {.kind = COORDINATOR_ALIVE};
    open_server(f, f->ours);
    form(f, nodes);
    for (unsigned i = 0; i < 300; i++) { /* numbers of more than a byte */
        assert_int_equal(native_connection_send(nodes[0].session, &alive), 0);
        served_run_until_heard(&nodes[0], COORDINATOR_HEARD, i + 1);
    }
    served_expect_unharmed(&f->served, nodes);
    assert_int_equal(f->served.warnings, 0);
    served_nodes_close(nodes, 2);
}

static void another_secret_is_told_on_both_sides(void **state) {
    struct fixture *f = *state;
    struct served_node node;
    open_server(f, f->ours);
    served_node_open(&f->served, &node, 0, f->other, NULL);
    served_run_until_lost(&node);
    assert_false(node.is_open);
    assert_int_equal(node.status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(node.why, "the coordinator at 127.0.0.1:"));
    assert_non_null(strstr(node.why, "its secret or --rdzv-id"));
    served_nodes_close(&node, 1);
    served_run_until_warned(&f->served, 1);
    assert_non_null(strstr(f->served.warning, "connection from 127.0.0.1:"));
    assert_non_null(strstr(f->served.warning, "its secret or --rdzv-id differs"));
    assert_int_equal(served_member_count(&f->served), 0);
}

static void an_agent_without_it_is_refused(void **state) {
    struct fixture *f = *state;
    struct served_node node;
    open_server(f, f->ours);
    served_node_open(&f->served, &node, 0, NULL, NULL);
    served_run_until_lost(&node);
    assert_int_equal(node.heard[COORDINATOR_REFUSED], 1);
    assert_non_null(strstr(node.why, "secret_file=FILE"));
    assert_non_null(strstr(f->served.warning, "JOIN without the job's secret"));
    assert_int_equal(served_member_count(&f->served), 0);
    served_nodes_close(&node, 1);
}

static void a_coordinator_without_it_is_not_joined(void **state) {
    struct fixture *f = *state;
    struct served_node node;
    open_server(f, NULL);
    served_node_open(&f->served, &node, 0, f->ours, NULL);
    served_run_until_lost(&node);
    assert_false(node.is_open);
    assert_int_equal(node.status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(node.why, "has no secret"));
    assert_non_null(strstr(f->served.warning, "has no secret"));
    served_nodes_close(&node, 1);
}

/* ---- attackers: bytes ---- */

struct caller {
    int fd;
    struct coordinator_auth auth;
    struct buf in, sent; /* what has come and is not used; all that it has said */
};

static void call(const struct fixture *f, struct caller *c) {
    c->fd = served_call(&f->served);
    buf_init(&c->in, INPUT_BYTES_MAX);
    buf_init(&c->sent, INPUT_BYTES_MAX);
}

static void hang_up(struct caller *c) {
    (void)close(c->fd);
    buf_done(&c->in);
    buf_done(&c->sent);
}

static void send_bytes(struct caller *c, const void *bytes, size_t len) {
    (void)send(c->fd, bytes, len, MSG_NOSIGNAL); /* it may have been dropped already */
    assert_int_equal(buf_append(&c->sent, bytes, len), 0);
}

static void say(struct fixture *f, struct caller *c, const struct coordinator_message *message, bool is_sealed) {
    struct buf frame;
    buf_init(&frame, INPUT_BYTES_MAX);
    assert_int_equal(coordinator_wire_put(&frame, message), MUSTER_OK);
    if (is_sealed) {
        assert_int_equal(coordinator_auth_seal(&c->auth, f->ours, &frame, 0), 0);
    }
    send_bytes(c, buf_bytes(&frame), frame.len);
    buf_done(&frame);
}

/* Serves until something has come for the caller; false at the end of the connection. */
static bool receive(struct fixture *f, struct caller *c) {
    uint8_t bytes[4096];
    size_t got = served_receive(&f->served, c->fd, bytes, sizeof bytes);
    assert_int_equal(buf_append(&c->in, bytes, got), 0);
    return got > 0;
}

static void expect_end(struct fixture *f, struct caller *c) {
    while (receive(f, c)) {
    }
    hang_up(c);
}

/* HELLO and GREET, and the coordinator's CHALLENGE. */
static void greet(struct fixture *f, struct caller *c, uint8_t nonce, struct coordinator_message *challenge) {
    uint8_t bytes[COORDINATOR_NONCE_BYTES];
    struct coordinator_message message;
    size_t used;
    memset(bytes, nonce, sizeof bytes);
    coordinator_auth_greet(&c->auth, bytes, &message);
    send_bytes(c, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    say(f, c, &message, false);
    while (coordinator_wire_get(buf_bytes(&c->in), c->in.len, false, challenge, &used) == COORDINATOR_MORE) {
        assert_true(receive(f, c));
    }
    assert_int_equal(challenge->kind, COORDINATOR_CHALLENGE);
    buf_consume(&c->in, used);
}

/* A caller that knows the secret, up to its PROOF. */
static void enter(struct fixture *f, struct caller *c) {
    struct coordinator_message challenge, proof;
    call(f, c);
    greet(f, c, 9, &challenge);
    assert_int_equal(coordinator_auth_prove(&c->auth, f->ours, kv_slice_text("job"), &challenge, &proof), 0);
    say(f, c, &proof, false);
}

/* All that a good agent has said, once more: to the coordinator that heard it, and to its successor. */
static void a_recording_does_not_get_in(void **state) {
    struct fixture *f = *state;
    struct caller good, attacker;
    struct served_node nodes[2];
    const struct coordinator_message join = served_join(0), close_job = {.kind = COORDINATOR_CLOSE};
    open_server(f, f->ours);
    enter(f, &good);
    say(f, &good, &join, true);
    served_run_until_members(&f->served, 1);
    (void)close(good.fd);
    served_run_until_members(&f->served, 0);
    struct buf tail; /* recorded elsewhere: the end of the job */
    buf_init(&tail, INPUT_BYTES_MAX);
    assert_int_equal(coordinator_wire_put(&tail, &close_job), 0);
    assert_int_equal(coordinator_auth_seal(&good.auth, f->ours, &tail, 0), 0);
    for (unsigned again = 0; again < 2; again++) {
        form(f, nodes);
        call(f, &attacker);
        send_bytes(&attacker, buf_bytes(&good.sent), good.sent.len);
        send_bytes(&attacker, buf_bytes(&tail), tail.len);
        expect_end(f, &attacker);
        assert_non_null(strstr(f->served.warning, "does not know the job's secret"));
        served_expect_unharmed(&f->served, nodes);
        served_nodes_close(nodes, 2);
        served_close(&f->served);
        open_server(f, f->ours);
    }
    buf_done(&tail);
    buf_done(&good.in);
    buf_done(&good.sent);
}

/* An attacker in the middle, who sees a good connection and adds to it. */
static void what_is_added_to_a_connection_ends_it(void **state) {
    static const struct coordinator_message close_job = {.kind = COORDINATOR_CLOSE};
    struct fixture *f = *state;
    struct caller good;
    const struct coordinator_message join = served_join(0), alive = {.kind = COORDINATOR_ALIVE};
    open_server(f, f->ours);
    for (unsigned how = 0; how < 4; how++) {
        enter(f, &good);
        say(f, &good, &join, true);
        served_run_until_members(&f->served, 1);
        size_t before = good.sent.len;
        if (how == 0) { /* without a tag: what comes next is taken for one */
            say(f, &good, &close_job, false);
            say(f, &good, &alive, true);
        } else if (how == 1) { /* with one that is wrong */
            say(f, &good, &close_job, false);
            send_bytes(&good, "0123456789abcdef", COORDINATOR_SEAL_BYTES);
        } else if (how == 2) { /* one frame twice */
            say(f, &good, &alive, true);
            size_t len = good.sent.len - before;
            uint8_t copy[64];
            memcpy(copy, buf_bytes(&good.sent) + before, len);
            send_bytes(&good, copy, len);
        } else { /* one left out */
            good.auth.out_count++;
            say(f, &good, &alive, true);
        }
        expect_end(f, &good);
        assert_non_null(strstr(f->served.warning, "forged"));
        assert_int_equal(served_member_count(&f->served), 0); /* lost, and the job not closed */
    }
    struct served_node nodes[2];
    form(f, nodes);
    served_expect_unharmed(&f->served, nodes);
    served_nodes_close(nodes, 2);
}

/* The coordinator's own challenge, as a proof; and a proof of the same connection, as a challenge, cannot be had. */
static void a_challenge_is_no_proof(void **state) {
    struct fixture *f = *state;
    struct caller attacker;
    struct coordinator_message challenge, second;
    open_server(f, f->ours);
    call(f, &attacker);
    greet(f, &attacker, 1, &challenge);
    struct coordinator_message proof = {.kind = COORDINATOR_PROOF};
    memcpy(proof.tag, challenge.tag, sizeof proof.tag);
    say(f, &attacker, &proof, false);
    expect_end(f, &attacker);
    /* Asked a second time with its own nonce: a tag of the same two nonces, but the coordinator's. */
    call(f, &attacker);
    greet(f, &attacker, 1, &challenge);
    struct caller helper;
    call(f, &helper);
    struct coordinator_message greeting = {.kind = COORDINATOR_GREET};
    memcpy(greeting.nonce, challenge.nonce, sizeof greeting.nonce);
    send_bytes(&helper, COORDINATOR_HELLO, COORDINATOR_HELLO_BYTES);
    say(f, &helper, &greeting, false);
    size_t used;
    while (coordinator_wire_get(buf_bytes(&helper.in), helper.in.len, false, &second, &used) == COORDINATOR_MORE) {
        assert_true(receive(f, &helper));
    }
    memcpy(proof.tag, second.tag, sizeof proof.tag);
    say(f, &attacker, &proof, false);
    expect_end(f, &attacker);
    assert_non_null(strstr(f->served.warning, "does not know the job's secret"));
    hang_up(&helper);
    assert_int_equal(served_member_count(&f->served), 0);
}

/* A good connection, cut after each byte; and each of its first messages with each byte changed. */
static void cut_and_damaged_handshakes_harm_nobody(void **state) {
    struct fixture *f = *state;
    struct caller good, attacker;
    struct served_node nodes[2];
    const struct coordinator_message join = served_join(0);
    open_server(f, f->ours);
    form(f, nodes);
    enter(f, &good);
    say(f, &good, &join, true);
    for (size_t len = 0; len <= good.sent.len; len++) {
        call(f, &attacker);
        send_bytes(&attacker, buf_bytes(&good.sent), len);
        (void)shutdown(attacker.fd, SHUT_WR);
        expect_end(f, &attacker);
    }
    for (size_t at = 0; at < good.sent.len; at++) {
        call(f, &attacker);
        buf_bytes(&good.sent)[at] ^= 0xff;
        send_bytes(&attacker, buf_bytes(&good.sent), good.sent.len);
        buf_bytes(&good.sent)[at] ^= 0xff;
        (void)shutdown(attacker.fd, SHUT_WR);
        expect_end(f, &attacker);
    }
    hang_up(&good);
    served_run_until_members(&f->served, 2);
    served_expect_unharmed(&f->served, nodes);
    served_nodes_close(nodes, 2);
}

#define SECRET_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SECRET_TEST(agents_that_know_it_form_a_world), SECRET_TEST(another_secret_is_told_on_both_sides),
        SECRET_TEST(an_agent_without_it_is_refused),   SECRET_TEST(a_coordinator_without_it_is_not_joined),
        SECRET_TEST(a_recording_does_not_get_in),      SECRET_TEST(what_is_added_to_a_connection_ends_it),
        SECRET_TEST(a_challenge_is_no_proof),          SECRET_TEST(cut_and_damaged_handshakes_harm_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
