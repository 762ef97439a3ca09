/* A job that stops and loses its coordinator: the workers save with what they have, while their agents go on to the
 * next one. And which nodes stay when they are done, and how a spare ends. Whole agents' rendezvous at two endpoints,
 * on one loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"
#include "net/port_test_support.h"
#include "rendezvous/member/native_impl.h"
#include "rendezvous/rdzv_nodes_test_support.h"

enum { GRACE_MS = 60000 };

static const struct native_reach *reach_of(const struct fixture *f, int i) {
    const struct native *n = f->nodes[i].rdzv->state;
    return &n->reach;
}

static bool second_hears_of_the_stop(const struct fixture *f) {
    const struct native *n = f->nodes[1].rdzv->state;
    return n->part.membership.stop_by_ms > 0;
}

static bool second_is_with_the_next_coordinator(const struct fixture *f) {
    return reach_of(f, 1)->is_open && reach_of(f, 1)->at == 1;
}

/* Node 0 serves the first endpoint, node 1 the second one, and the workers' store, since it is rank 0. Node 2 serves
 * nothing. */
static void form(struct fixture *f, char endpoints[128], int count) {
    const uint16_t first = f->port;
    uint16_t second;
    const int held = port_hold(&second);
    (void)str_format(endpoints, 128, "127.0.0.1:%u,127.0.0.1:%u", (unsigned)first, (unsigned)second);
    f->options.backend = RDZV_BACKEND_MUSTER;
    f->options.endpoint = endpoints;
    f->options.has_wished_rank = true;
    f->options.wished_rank = 1;
    f->options.min_nodes = f->options.max_nodes = (uint32_t)count;
    nodes_start(f, 0);
    f->options.wished_rank = 0;
    nodes_start(f, 1);
    f->options.wished_rank = 2;
    if (count == 3) {
        nodes_start(f, 2);
    }
    f->nodes[0].rejoin = f->nodes[1].rejoin = f->nodes[2].rejoin = false;
    nodes_run_until(f, count == 3 ? nodes_three_together : nodes_two_together);
    (void)close(held);
}

static void workers_that_save_keep_their_store(void **state) {
    struct fixture *f = *state;
    struct probe p;
    char endpoints[128];
    form(f, endpoints, 2);
    assert_int_equal(reach_of(f, 1)->at, 0);
    assert_int_equal(f->nodes[1].world.group_rank, 0);
    probe_open(f, &p, f->nodes[1].world.master_port);
    assert_int_equal(kv_client_set(p.client, "saved", kv_slice_text("half"), NULL, NULL), 0);
    assert_true(probe_has(f, &p, "saved"));
    assert_true(rdzv_preempt(f->nodes[1].rdzv, GRACE_MS, "SIGUSR1"));
    nodes_run_until(f, second_hears_of_the_stop);
    nodes_vanish(f, 0);
    nodes_run_until(f, second_is_with_the_next_coordinator);
    assert_true(probe_has(f, &p, "saved"));
    kv_client_close(p.client);
}

static bool third_is_a_spare(const struct fixture *f) {
    const struct native *n = f->nodes[2].rdzv->state;
    return n->part.is_spare;
}

/* To people, with the names that the coordinator has. */
static bool third_says_so(const struct fixture *f) {
    const struct native *n = f->nodes[2].rdzv->state;
    return f->nodes[2].rdzv->spare_since_us > 0 && strstr(n->part.waits_for, "members of round 1: ") != NULL;
}

static bool third_has_ended(const struct fixture *f) {
    return f->nodes[2].spare_released || f->nodes[2].failed != 0;
}

/* It has lost its coordinator, and comes to the next one when the job is over there. */
static void a_spare_ends_as_the_job_did(void **state) {
    static const struct {
        int status;
        bool is_released;
    } cases[] = {{MUSTER_ECLOSED, true}, {MUSTER_EABORTED, false}};
    char endpoints[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture *f = *state;
        form(f, endpoints, 2);
        nodes_start(f, 2);
        nodes_run_until(f, third_is_a_spare);
        assert_int_equal(uv_timer_get_repeat(rdzv_timer(f->nodes[2].rdzv, RDZV_TIMER_REPORT)), RDZV_SPARE_REPORT_MS);
        nodes_run_until(f, third_says_so);
        native_heard(f->nodes[2].rdzv->state, &(struct coordinator_message){.kind = COORDINATOR_REFUSED,
                                                                            .status = cases[i].status,
                                                                            .text = kv_slice_text("why")});
        nodes_run_until(f, third_has_ended);
        assert_int_equal(f->nodes[2].spare_released, cases[i].is_released);
        assert_int_equal(f->nodes[2].failed, cases[i].is_released ? 0 : MUSTER_ECLOSED);
        assert_int_equal(nodes_teardown(state), 0);
        assert_int_equal(nodes_setup(state), 0);
    }
}

/* The longest that a node waits for the others has passed. */
static void let_time_pass(struct fixture *f, int i) {
    struct rdzv *rdzv = f->nodes[i].rdzv;
    rdzv->waits[RDZV_TIMER_WAKE].done(rdzv_timer(rdzv, RDZV_TIMER_WAKE));
    for (int turn = 0; turn < 20; turn++) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

static bool is_over(const struct fixture *f) {
    return f->nodes[0].barrier_done && f->nodes[1].barrier_done && f->nodes[2].barrier_done;
}

/* As long as others work: the workers' store and the coordinator go with the nodes that have them. */
static void who_is_needed_stays_when_it_is_done(void **state) {
    struct fixture *f = *state;
    char endpoints[128];
    form(f, endpoints, 3);
    assert_int_equal(reach_of(f, 0)->own, 0);
    assert_int_equal(f->nodes[1].world.group_rank, 0);
    for (int done = 0; done < 2; done++) {
        rdzv_exit_barrier(f->nodes[done].rdzv, true, nodes_on_barrier);
        let_time_pass(f, done);
        let_time_pass(f, done);
        assert_false(f->nodes[done].barrier_done);
    }
    rdzv_exit_barrier(f->nodes[2].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, is_over);
}

static void who_is_not_needed_goes_when_it_is_done(void **state) {
    struct fixture *f = *state;
    char endpoints[128];
    form(f, endpoints, 3);
    rdzv_exit_barrier(f->nodes[2].rdzv, true, nodes_on_barrier);
    let_time_pass(f, 2);
    assert_true(f->nodes[2].barrier_done);
    assert_int_equal(f->nodes[0].changes + f->nodes[1].changes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_spare_ends_as_the_job_did, nodes_setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(who_is_needed_stays_when_it_is_done, nodes_setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(who_is_not_needed_goes_when_it_is_done, nodes_setup, nodes_teardown),
        cmocka_unit_test_setup_teardown(workers_that_save_keep_their_store, nodes_setup, nodes_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
