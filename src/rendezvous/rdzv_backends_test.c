/* Rendezvous in a file instead of a server, and the static one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/status.h>

#include "base/status.h"
#include "rendezvous/rdzv_nodes_test_support.h"

/* ---- a file instead of a server ---- */

static void nodes_meet_in_a_file(void **state) {
    struct fixture *f = *state;
    char path[] = "/tmp/rdzv_test.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    f->options.endpoint = path;
    f->options.conf.store_is_file = true;
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    nodes_assert_one_world(f, 0, 1);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    while (!f->nodes[0].barrier_done || !f->nodes[1].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    rdzv_shutdown(f->nodes[0].rdzv, true, nodes_on_shutdown);
    rdzv_shutdown(f->nodes[1].rdzv, true, nodes_on_shutdown);
    while (!f->nodes[0].shut_down || !f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    nodes_vanish(f, 0);
    nodes_vanish(f, 1);
    assert_int_equal(unlink(path), 0);
}

static void file_that_cannot_be_opened_is_a_clear_failure(void **state) {
    struct fixture *f = *state;
    f->options.endpoint = "/nowhere/at/all";
    f->options.conf.store_is_file = true;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ESYSTEM);
    assert_non_null(strstr(f->nodes[0].why, "/nowhere/at/all"));
}

/* ---- static ---- */

static void static_single_node(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.min_nodes = f->options.max_nodes = 1;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_one_alone);
    assert_int_equal(f->nodes[0].world.master_port, f->port);
    assert_string_equal(f->nodes[0].master_addr, "127.0.0.1");
    struct probe p;
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_set(p.client, "old", kv_slice_text("1"), NULL, NULL), 0);
    assert_true(probe_has(f, &p, "old"));
    kv_client_close(p.client);
    f->nodes[0].worlds = 0;
    rdzv_join(f->nodes[0].rdzv);
    nodes_run_until(f, nodes_one_alone);
    assert_int_equal(f->nodes[0].failed, 0);
    probe_open(f, &p, f->port);
    assert_false(probe_has(f, &p, "old"));
    kv_client_close(p.client);
}

static bool second_failed_or_in_world(const struct fixture *f) {
    return f->nodes[1].failed != 0 || f->nodes[1].worlds > 0;
}

static void static_both_pass(struct fixture *f) {
    for (int i = 0; i < 2; i++) {
        rdzv_exit_barrier(f->nodes[i].rdzv, true, nodes_on_barrier);
    }
    while (!f->nodes[0].barrier_done || !f->nodes[1].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
}

static bool barrier_of_first_done(const struct fixture *f) {
    return f->nodes[0].barrier_done;
}

static bool barrier_of_second_done(const struct fixture *f) {
    return f->nodes[1].barrier_done;
}

static bool first_heard_of_a_change(const struct fixture *f) {
    return f->nodes[0].changes > 0;
}

static bool replaced(const struct fixture *f) {
    return f->nodes[0].worlds == 2 && f->nodes[1].worlds == 1;
}

static bool store_has(struct fixture *f, const char *key) {
    struct probe p;
    probe_open(f, &p, f->port);
    bool has = probe_has(f, &p, key);
    kv_client_close(p.client);
    return has;
}

static void static_pair(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.node_rank = 1;
    nodes_start(f, 1);
    f->options.node_rank = 0;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_two_together);
    nodes_assert_one_world(f, 0, 1);
    assert_int_equal(f->nodes[1].world.group_rank, 1);
    assert_int_equal(f->nodes[1].world.master_port, f->port);
    static_both_pass(f);
}

static void start_static(struct fixture *f, uint32_t count) {
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.min_nodes = f->options.max_nodes = count;
    for (uint32_t rank = 0; rank < count; rank++) {
        f->options.node_rank = rank;
        nodes_start(f, (int)rank);
    }
    nodes_run_until(f, count == 2 ? nodes_two_together : nodes_three_together);
}

static bool second_round(const struct fixture *f) {
    return f->nodes[0].worlds == 2 && f->nodes[1].worlds == 2 && (f->options.max_nodes == 2 || f->nodes[2].worlds == 2);
}

/* The others are told to start again, too, and what workers have left in the store is gone by then. */
static void static_nodes_start_again_together(void **state) {
    struct fixture *f = *state;
    struct probe p;
    start_static(f, 3);
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_set(p.client, "address of a dead rank", kv_slice_text("1"), NULL, NULL), 0);
    assert_true(probe_has(f, &p, "address of a dead rank"));
    rdzv_join(f->nodes[1].rdzv);
    nodes_run_until(f, second_round);
    kv_client_close(p.client);
    nodes_assert_one_world(f, 0, 2);
    assert_int_equal(f->nodes[0].changes, 1);
    assert_int_equal(f->nodes[2].changes, 1);
    assert_int_equal(f->nodes[1].changes, 0);
    assert_non_null(strstr(f->nodes[2].why, "node rank 1 starts its workers again"));
    assert_int_equal(f->nodes[0].world.round, 1);
    probe_open(f, &p, f->port);
    assert_false(probe_has(f, &p, "address of a dead rank"));
    kv_client_close(p.client);
}

/* They hear of it when the worker dies, not when its node has stopped the other ones. */
static void static_failure_is_told_at_once(void **state) {
    struct fixture *f = *state;
    start_static(f, 2);
    f->nodes[0].rejoin = false;
    rdzv_worker_failed(f->nodes[1].rdzv, &(struct rdzv_cause){.rank = 2, .is_final = false});
    nodes_run_until(f, first_heard_of_a_change);
    rdzv_join(f->nodes[1].rdzv);
    rdzv_join(f->nodes[0].rdzv);
    nodes_run_until(f, second_round);
    assert_int_equal(f->nodes[1].changes, 0);
}

/* One that has no world yet hears of it, too: who was told first may fail while the others still agree on ranks. */
static void static_final_failure_reaches_who_has_no_world(void **state) {
    struct fixture *f = *state;
    struct probe p;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.min_nodes = f->options.max_nodes = 3;
    for (int i = 0; i < 2; i++) {
        f->options.node_rank = (uint32_t)i;
        nodes_start(f, i);
    }
    while (!store_has(f, "job/muster/node/1")) {
    }
    char *record = rdzv_cause_write(
        &(struct rdzv_cause){.rank = 0, .pid = 1, .wait_status = 1 << 8, .is_final = true, .how = "it was told to"});
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_set(p.client, "job/muster/failed", kv_slice_text(record), NULL, NULL), 0);
    free(record);
    nodes_run_until(f, nodes_second_failed);
    kv_client_close(p.client);
    assert_non_null(strstr(f->nodes[1].why, "the job has failed: rank 0"));
}

/* Another agent in the place of one that was killed is no newcomer to the running attempt: all begin the next one. */
static void static_agent_is_replaced(void **state) {
    struct fixture *f = *state;
    start_static(f, 2);
    nodes_vanish(f, 1);
    f->options.node_rank = 1;
    nodes_start(f, 1);
    nodes_run_until(f, replaced);
    nodes_assert_one_world(f, 0, 1);
    assert_int_equal(f->nodes[0].changes, 1);
}

/* Also of one that came and went before the first attempt: it said no more than the new one begins with. */
static void static_agent_is_replaced_before_the_first_attempt(void **state) {
    struct fixture *f = *state;
    struct probe p;
    f->options.backend = RDZV_BACKEND_STATIC;
    nodes_start(f, 0);
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_add(p.client, "job/muster/watcher/1", 1, NULL, NULL), 0);
    assert_int_equal(kv_client_set(p.client, "job/muster/node/1", kv_slice_text("here 1"), NULL, NULL), 0);
    assert_true(probe_has(f, &p, "job/muster/node/1"));
    kv_client_close(p.client);
    f->options.node_rank = 1;
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    rdzv_join(f->nodes[1].rdzv);
    nodes_run_until(f, second_round);
    assert_int_equal(f->nodes[0].changes, 1);
}

static bool third_failed(const struct fixture *f) {
    return f->nodes[2].failed != 0;
}

static void start_newcomer(struct fixture *f, int i, uint32_t rank) {
    f->options.node_rank = rank;
    nodes_start(f, i);
}

static void expect_refused(const struct node *n) {
    assert_int_equal(n->failed, MUSTER_EINVAL);
    assert_int_equal(n->worlds, 0);
    assert_non_null(strstr(n->why, "node rank 1 of this job is "));
    assert_non_null(strstr(n->why, "give each node a rank of its own"));
}

/* One after the other, and two at once: who works goes on undisturbed. */
static void static_taken_rank_is_refused(void **state) {
    struct fixture *f = *state;
    start_static(f, 2);
    start_newcomer(f, 2, 1);
    nodes_run_until(f, third_failed);
    expect_refused(&f->nodes[2]);
    nodes_vanish(f, 2);
    start_newcomer(f, 2, 1);
    start_newcomer(f, 3, 1);
    nodes_run_until(f, third_failed);
    while (!f->nodes[3].failed) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[2].failed, MUSTER_EINVAL);
    assert_int_equal(f->nodes[3].failed, MUSTER_EINVAL);
    for (int i = 0; i < 2; i++) {
        assert_true(f->nodes[i].changes == 0 && f->nodes[i].worlds == 1 && !f->nodes[i].failed);
    }
    static_both_pass(f);
}

static void static_taken_rank_is_refused_before_the_first_attempt(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.min_nodes = f->options.max_nodes = 3;
    start_newcomer(f, 0, 0);
    start_newcomer(f, 1, 1);
    while (!store_has(f, "job/muster/node/1")) {
    }
    start_newcomer(f, 2, 1);
    nodes_run_until(f, third_failed);
    expect_refused(&f->nodes[2]);
    nodes_vanish(f, 2);
    start_newcomer(f, 2, 2);
    nodes_run_until(f, nodes_three_together);
}

/* Nor is one replaced that is done, or that goes on after the failure of another. */
static void static_rank_of_a_done_or_surviving_node_is_refused(void **state) {
    struct fixture *f = *state;
    for (int survives = 0; survives < 2; survives++) {
        f->options.survivors_continue = survives;
        start_static(f, 2);
        if (survives) {
            rdzv_worker_failed(f->nodes[0].rdzv, &(struct rdzv_cause){.rank = 0, .is_final = true});
            while (!store_has(f, "job/muster/failed")) {
            }
        } else {
            rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
            while (!store_has(f, "job/torchelastic/agent/terminal_state/num_members")) {
            }
        }
        start_newcomer(f, 2, 1);
        nodes_run_until(f, third_failed);
        expect_refused(&f->nodes[2]);
        assert_int_equal(f->nodes[0].changes + f->nodes[1].changes, 0);
        nodes_vanish(f, 2);
        nodes_vanish(f, 1);
        nodes_vanish(f, 0);
    }
}

/* Its connection stands, and nothing is heard of it: the newcomer has its place after the time of a beat. */
static void static_agent_that_does_not_answer_is_replaced(void **state) {
    struct fixture *f = *state;
    struct probe p;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.conf.keep_alive_interval_ms = 20;
    f->options.conf.keep_alive_max_attempt = 3;
    start_newcomer(f, 0, 0);
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_add(p.client, "job/muster/watcher/1", 1, NULL, NULL), 0);
    assert_int_equal(kv_client_set(p.client, "job/muster/node/1", kv_slice_text("here 1"), NULL, NULL), 0);
    assert_true(probe_has(f, &p, "job/muster/node/1"));
    start_newcomer(f, 1, 1);
    nodes_run_until(f, nodes_two_together);
    assert_true(store_has(f, "job/muster/asked/1"));
    kv_client_close(p.client);
}

/* A new agent in the place of one that failed for good works with those who went on. */
static void static_survivors_are_joined_after_a_failure(void **state) {
    struct fixture *f = *state;
    f->options.survivors_continue = true;
    start_static(f, 2);
    rdzv_worker_failed(f->nodes[1].rdzv, &(struct rdzv_cause){.rank = 2, .is_final = true});
    while (!store_has(f, "job/muster/failed")) {
    }
    nodes_vanish(f, 1);
    f->options.node_rank = 1;
    nodes_start(f, 1);
    nodes_run_until(f, second_failed_or_in_world);
    assert_int_equal(f->nodes[1].failed, 0);
    nodes_assert_one_world(f, 0, 1);
}

static int watches_until_no_memory = -1; /* below 0: there is always some */

int __real_kv_client_watch(struct kv_client *client, const char *key, struct kv_slice known, kv_reply_cb *cb,
                           void *ctx);
int __wrap_kv_client_watch(struct kv_client *client, const char *key, struct kv_slice known, kv_reply_cb *cb,
                           void *ctx);
int __wrap_kv_client_watch(struct kv_client *client, const char *key, struct kv_slice known, kv_reply_cb *cb,
                           void *ctx) {
    return watches_until_no_memory-- == 0 ? status_fail(MUSTER_ENOMEM, "no memory for a watch")
                                          : __real_kv_client_watch(client, key, known, cb, ctx);
}

/* From the first, or when something has been heard: it would hear nothing more. */
static void static_node_that_cannot_listen_fails(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    for (int heard = 0; heard < 2; heard++) {
        watches_until_no_memory = heard;
        nodes_start(f, 0);
        nodes_run_until(f, nodes_first_failed);
        assert_int_equal(f->nodes[0].failed, MUSTER_ENOMEM);
        nodes_vanish(f, 0);
    }
}

/* Nobody can wait for a node that is done: its agent is in the exit barrier. */
static void static_node_restarts_alone_when_another_is_done(void **state) {
    struct fixture *f = *state;
    start_static(f, 2);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    while (!store_has(f, "job/torchelastic/agent/terminal_state/num_members")) {
    }
    f->nodes[1].worlds = 0;
    rdzv_join(f->nodes[1].rdzv);
    nodes_run_until(f, second_failed_or_in_world);
    assert_int_equal(f->nodes[1].failed, 0);
    assert_false(f->nodes[0].barrier_done);
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, barrier_of_first_done);
    nodes_run_until(f, barrier_of_second_done);
}

/* Whichever node waits, be it the host of the store or not. */
static void static_barrier_does_not_wait_for_who_is_gone(void **state) {
    struct fixture *f = *state;
    start_static(f, 2);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    while (!store_has(f, "job/torchelastic/agent/terminal_state/num_members")) {
    }
    assert_false(f->nodes[0].barrier_done);
    nodes_vanish(f, 1);
    nodes_run_until(f, barrier_of_first_done);
    nodes_vanish(f, 0);
    start_static(f, 3);
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    while (!store_has(f, "job/torchelastic/agent/terminal_state/num_members")) {
    }
    nodes_vanish(f, 2);
    nodes_run_until(f, barrier_of_second_done);
    nodes_run_until(f, barrier_of_first_done);
}

static void static_node_is_absent(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.conf.static_timeout_ms = 300;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ETIMEOUT);
    assert_non_null(strstr(f->nodes[0].why, "node rank 1 did not come to 127.0.0.1:"));
}

static bool both_failed(const struct fixture *f) {
    return f->nodes[0].failed && f->nodes[1].failed;
}

/* All nodes name it, be they the host of the store or not; and also when it was there before. */
static void static_lost_node_is_named(void **state) {
    struct fixture *f = *state;
    f->options.conf.static_timeout_ms = 1500; /* in which the three must meet, too */
    start_static(f, 3);
    nodes_vanish(f, 2);
    rdzv_join(f->nodes[0].rdzv);
    nodes_run_until(f, both_failed);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(f->nodes[i].failed, MUSTER_ETIMEOUT);
        assert_non_null(strstr(f->nodes[i].why, "node rank 2 did not come"));
    }
}

static void static_nodes_of_different_counts(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    for (uint32_t first = 2; first <= 3; first++) {
        f->options.node_rank = 0;
        f->options.min_nodes = f->options.max_nodes = first;
        nodes_start(f, 0);
        f->options.node_rank = 1;
        f->options.min_nodes = f->options.max_nodes = 5 - first;
        nodes_start(f, 1);
        nodes_run_until(f, both_failed);
        assert_int_equal(f->nodes[0].worlds + f->nodes[1].worlds, 0);
        assert_int_equal(f->nodes[0].failed, MUSTER_EINVAL);
        assert_non_null(strstr(f->nodes[0].why, first == 2 ? "--nnodes=2" : "--nnodes=3"));
        assert_non_null(strstr(f->nodes[1].why, "start all nodes with the same"));
        nodes_vanish(f, 1);
        nodes_vanish(f, 0);
    }
}

static bool first_is_shut_down(const struct fixture *f) {
    return f->nodes[0].shut_down;
}

/* Two of three others differ, each in its way. The one that does not hears why from the host, which waits for that. */
static void static_nodes_of_three_counts(void **state) {
    static const uint32_t counts[] = {4, 4, 3, 2}, ranks[] = {0, 1, 2, 1};
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    for (int i = 0; i < 4; i++) {
        f->options.node_rank = ranks[i];
        f->options.min_nodes = f->options.max_nodes = counts[i];
        nodes_start(f, i);
        while (i < 2 && !store_has(f, i == 0 ? "job/muster/node/0" : "job/muster/node/1")) {
        }
    }
    nodes_run_until(f, nodes_first_failed);
    rdzv_shutdown(f->nodes[0].rdzv, false, nodes_on_shutdown);
    nodes_run_until(f, nodes_second_failed);
    nodes_vanish(f, 1);
    nodes_run_until(f, first_is_shut_down);
    for (int i = 0; i < 2; i++) {
        bool is_two = strstr(f->nodes[i].why, "--nnodes=4, another one with --nnodes=2:") != NULL;
        assert_int_equal(f->nodes[i].failed, MUSTER_EINVAL);
        assert_true(is_two || strstr(f->nodes[i].why, "--nnodes=4, another one with --nnodes=3:"));
    }
}

static void static_master_is_absent(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.node_rank = 1;
    f->options.conf.static_timeout_ms = 600;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_first_failed);
    assert_non_null(strstr(f->nodes[0].why, f->endpoint));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, nodes_setup, nodes_teardown)
    const struct CMUnitTest tests[] = {
        TEST(nodes_meet_in_a_file),
        TEST(file_that_cannot_be_opened_is_a_clear_failure),
        TEST(static_single_node),
        TEST(static_pair),
        TEST(static_master_is_absent),
        TEST(static_node_is_absent),
        TEST(static_nodes_start_again_together),
        TEST(static_failure_is_told_at_once),
        TEST(static_final_failure_reaches_who_has_no_world),
        TEST(static_agent_is_replaced),
        TEST(static_agent_is_replaced_before_the_first_attempt),
        TEST(static_taken_rank_is_refused),
        TEST(static_taken_rank_is_refused_before_the_first_attempt),
        TEST(static_rank_of_a_done_or_surviving_node_is_refused),
        TEST(static_agent_that_does_not_answer_is_replaced),
        TEST(static_survivors_are_joined_after_a_failure),
        TEST(static_node_that_cannot_listen_fails),
        TEST(static_node_restarts_alone_when_another_is_done),
        TEST(static_barrier_does_not_wait_for_who_is_gone),
        TEST(static_lost_node_is_named),
        TEST(static_nodes_of_different_counts),
        TEST(static_nodes_of_three_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
