/* The rendezvous of c10d over real sockets, ending badly: each failure is told, with what it was about. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/status.h>

#include "net/socket.h"
#include "rendezvous/rdzv_nodes_test_support.h"

static void closed_rendezvous_refuses_newcomers(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 3);
    rdzv_shutdown(f->nodes[0].rdzv, true, nodes_on_shutdown);
    while (!f->nodes[0].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    nodes_start(f, 2);
    while (!f->nodes[2].failed) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[2].failed, MUSTER_ECLOSED);
    assert_non_null(strstr(f->nodes[2].why, "--rdzv-id"));
    assert_non_null(strstr(f->nodes[2].why, "too late"));
    assert_non_null(strstr(f->nodes[2].why, "no part in it"));
    assert_int_equal(f->nodes[1].failed, 0); /* members go on */
}

static void barrier_ends_when_the_other_fails(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 2);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    nodes_vanish(f, 1);
    while (!f->nodes[0].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[0].changes, 0);
}

static bool first_heard_of_a_change(const struct fixture *f) {
    return f->nodes[0].changes > 0;
}

static bool first_is_over_the_barrier(const struct fixture *f) {
    return f->nodes[0].barrier_done;
}

/* It was told while it ended its workers, and goes on to the end. */
static void lose_the_other_before_the_barrier(struct fixture *f) {
    f->nodes[0].rejoin = false;
    nodes_vanish(f, 1);
    nodes_run_until(f, first_heard_of_a_change);
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, first_is_over_the_barrier);
}

#define TERMINAL_STATE "torch.rendezvous.job.0/torchelastic/agent/terminal_state/"

static void barrier_does_not_wait_for_who_left_before(void **state) {
    struct fixture *f = *state;
    struct probe p;
    nodes_form_pair(f, 2);
    lose_the_other_before_the_barrier(f);
    probe_open(f, &p, f->port);
    assert_true(probe_has(f, &p, TERMINAL_STATE "num_members"));
    assert_false(probe_has(f, &p, TERMINAL_STATE "last_member"));
    kv_client_close(p.client);
}

static void who_left_after_coming_to_the_barrier_has_come(void **state) {
    struct fixture *f = *state;
    struct probe p;
    nodes_form_pair(f, 2);
    probe_open(f, &p, f->port);
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    while (!probe_has(f, &p, TERMINAL_STATE "num_members")) {
    }
    nodes_vanish(f, 1);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, first_is_over_the_barrier);
    assert_int_equal(f->nodes[0].changes, 0);
    assert_true(probe_has(f, &p, TERMINAL_STATE "last_member")); /* agents of PyTorch's may wait for it */
    kv_client_close(p.client);
}

static void lonely_node_times_out_and_says_who_is_missing(void **state) {
    struct fixture *f = *state;
    f->options.conf.join_timeout_ms = 300;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ETIMEOUT);
    assert_non_null(strstr(f->nodes[0].why, "missing"));
}

static void lost_host_is_a_clear_failure(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 2);
    nodes_vanish(f, 0);
    nodes_run_until(f, nodes_second_failed);
    assert_int_equal(f->nodes[1].failed, MUSTER_ECONNECT);
    assert_non_null(strstr(f->nodes[1].why, f->endpoint));
    rdzv_shutdown(f->nodes[1].rdzv, true, nodes_on_shutdown); /* still answers */
    while (!f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
}

static void refused_endpoint_names_address_and_error(void **state) {
    struct fixture *f = *state;
    f->options.conf.is_host = 0;
    f->options.conf.read_timeout_ms = 600;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ECONNECT);
    assert_non_null(strstr(f->nodes[0].why, f->endpoint));
    assert_non_null(strstr(f->nodes[0].why, "refused"));
}

static void must_host_but_port_is_taken(void **state) {
    struct fixture *f = *state;
    struct net_addresses at;
    int fd;
    (void)net_resolve_numeric("127.0.0.1", f->port, &at);
    assert_int_equal(net_socket_listen((struct sockaddr *)&at.list[0].sockaddr, true, &fd), 0);
    f->options.conf.is_host = 1;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ESYSTEM);
    assert_non_null(strstr(f->nodes[0].why, "in use"));
    (void)close(fd);
}

/* A listener that takes connections and never says a word, as many servers do that wait for a request. */
static void silent_port_is_no_store(void **state) {
    struct fixture *f = *state;
    f->options.conf.silence_timeout_ms = 500;
    struct net_addresses at;
    int fd;
    (void)net_resolve_numeric("127.0.0.1", f->port, &at);
    assert_int_equal(net_socket_listen((struct sockaddr *)&at.list[0].sockaddr, true, &fd), 0);
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_EPROTOCOL);
    assert_non_null(strstr(f->nodes[0].why, f->endpoint));
    assert_non_null(strstr(f->nodes[0].why, "another port"));
    (void)close(fd);
}

static void bad_options_are_refused_at_once(void **state) {
    struct fixture *f = *state;
    struct rdzv *r = NULL;
    f->options.endpoint = "host:99999";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    f->options.endpoint = f->endpoint;
    f->options.run_id = "";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    f->options.run_id = "job";
    f->options.min_nodes = 3;
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    f->options.min_nodes = 1;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.endpoint = "127.0.0.1";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "--master-port"));
    f->options.backend = RDZV_BACKEND_MUSTER;
    f->options.endpoint = f->endpoint;
    f->options.max_restarts = 1025;
    f->options.conf.restart_window_ms = 1000;
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "1024 at most"));
    f->options.max_restarts = 0;
    f->options.run_id = "a\nb";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "--rdzv-id is longer than 255 bytes, or has control characters"));
    f->options.run_id = "job";
    f->options.role = "\xff";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "--role is longer"));
    f->options.role = NULL;
    f->options.local_addr = "not an address";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, f, &r), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "--local-addr is neither"));
    f->options.local_addr = NULL;
    assert_null(r);
}

/* Whoever waits for a short time only does not wait for the time-out of the store. */
static void name_that_is_unknown_is_waited_for_as_long_as_for_the_others(void **state) {
    struct fixture *f = *state;
    f->options.endpoint = "nowhere.invalid:29400";
    f->options.conf.join_timeout_ms = 1000;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_non_null(strstr(f->nodes[0].why, "no rendezvous store at nowhere.invalid:29400 within 1 s"));
}

/* What a stranger has left under the key ends in a sentence, not in a crash. */
static void damaged_state_is_a_clear_failure(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 3);
    struct probe p;
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_set(p.client, "torch.rendezvous.job", kv_slice_text("Y29zCnN5c3RlbQo="), NULL, NULL), 0);
    nodes_run_until(f, nodes_first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ECORRUPT);
    assert_non_null(strstr(f->nodes[0].why, "class"));
    kv_client_close(p.client);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, nodes_setup, nodes_teardown)
    const struct CMUnitTest tests[] = {
        TEST(closed_rendezvous_refuses_newcomers),
        TEST(name_that_is_unknown_is_waited_for_as_long_as_for_the_others),
        TEST(barrier_ends_when_the_other_fails),
        TEST(barrier_does_not_wait_for_who_left_before),
        TEST(who_left_after_coming_to_the_barrier_has_come),
        TEST(lonely_node_times_out_and_says_who_is_missing),
        TEST(lost_host_is_a_clear_failure),
        TEST(refused_endpoint_names_address_and_error),
        TEST(must_host_but_port_is_taken),
        TEST(silent_port_is_no_store),
        TEST(bad_options_are_refused_at_once),
        TEST(damaged_state_is_a_clear_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
