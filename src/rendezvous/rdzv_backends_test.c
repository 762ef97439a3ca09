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
    rdzv_exit_barrier(f->nodes[0].rdzv, nodes_on_barrier);
    rdzv_exit_barrier(f->nodes[1].rdzv, nodes_on_barrier);
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
    f->nodes[1].worlds = 0;
    rdzv_join(f->nodes[1].rdzv); /* each node restarts alone */
    nodes_run_until(f, second_failed_or_in_world);
    assert_int_equal(f->nodes[1].failed, 0);
    rdzv_exit_barrier(f->nodes[0].rdzv, nodes_on_barrier);
    rdzv_exit_barrier(f->nodes[1].rdzv, nodes_on_barrier);
    while (!f->nodes[0].barrier_done || !f->nodes[1].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
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
        TEST(nodes_meet_in_a_file),    TEST(file_that_cannot_be_opened_is_a_clear_failure),
        TEST(static_single_node),      TEST(static_pair),
        TEST(static_master_is_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
