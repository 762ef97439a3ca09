/* What node rank 0 of a static job makes of writes and of connections that end, without a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "rendezvous/torch/static_host.h"

static void comes_as(struct static_host *host, uint32_t rank, uint64_t connection, const char *words) {
    char key[64];
    (void)snprintf(key, sizeof key, "/job/muster/node/%u", rank);
    assert_true(static_host_heard(host, connection, kv_slice_text(key), kv_slice_text(words)));
}

static void comes(struct static_host *host, uint32_t rank, uint64_t connection) {
    comes_as(host, rank, connection, "here 1");
}

static void the_end_of_a_replaced_agent_is_nothing(void **state) {
    (void)state;
    struct static_host host;
    char missing[STATIC_MISSING_SIZE];
    assert_int_equal(static_host_init(&host, "job/", 3, true), 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        comes(&host, rank, 10 + rank);
    }
    comes_as(&host, 1, 21, "here 2");
    host.newcomers[1].stage = STATIC_NEWCOMER_ASKED;
    static_host_give_up_silent(&host);
    (void)static_host_lost(&host, 11);
    assert_int_equal(static_round_missing(&host.round, missing), 0);
    assert_true(static_host_lost(&host, 21));
    assert_int_equal(static_round_missing(&host.round, missing), 1);
    static_host_done(&host);
}

/* The other one works on; of two newcomers the later one has the place when it goes. */
static void a_newcomer_waits_for_its_place(void **state) {
    (void)state;
    struct static_host host;
    char missing[STATIC_MISSING_SIZE];
    assert_int_equal(static_host_init(&host, "job/", 2, true), 0);
    comes(&host, 0, 10);
    comes(&host, 1, 11);
    comes_as(&host, 1, 21, "here 2");
    comes_as(&host, 1, 31, "here 3");
    assert_int_equal(host.newcomers[1].stage, STATIC_NEWCOMER_WAITS);
    assert_false(static_host_lost(&host, 21)); /* whose turn has passed */
    assert_true(static_host_lost(&host, 11));
    assert_int_equal(host.newcomers[1].stage, STATIC_NEWCOMER_LET_IN);
    assert_int_equal(static_round_missing(&host.round, missing), 0);
    assert_true(static_host_lost(&host, 31));
    assert_int_equal(static_round_missing(&host.round, missing), 1);
    comes_as(&host, 1, 41, "here 4"); /* nobody is in its way */
    assert_int_equal(static_round_missing(&host.round, missing), 0);
    static_host_done(&host);
}

static void watches(struct static_host *host, uint32_t rank, uint64_t connection, const char *number) {
    char key[64];
    (void)snprintf(key, sizeof key, "/job/muster/watcher/%u", rank);
    assert_true(static_host_heard(host, connection, kv_slice_text(key), kv_slice_text(number)));
}

/* Numbers are given on one connection, and told on another. */
static void newcomers_may_speak_in_another_order(void **state) {
    (void)state;
    struct static_host host;
    assert_int_equal(static_host_init(&host, "job/", 2, true), 0);
    comes(&host, 0, 10);
    comes(&host, 1, 11);
    comes_as(&host, 1, 31, "here 3");
    comes_as(&host, 1, 21, "here 2");
    assert_int_equal(host.newcomers[1].number, 3);
    assert_true(static_host_lost(&host, 31)); /* the later one is awaited no more */
    comes_as(&host, 1, 41, "here 2");
    assert_int_equal(host.newcomers[1].number, 2);
    static_host_done(&host);
}

/* Two agents of one rank start at the same time, and the second is the first to speak. */
static void the_first_agent_may_speak_late(void **state) {
    (void)state;
    struct static_host host;
    for (int speaks = 0; speaks < 2; speaks++) {
        assert_int_equal(static_host_init(&host, "job/", 2, true), 0);
        comes(&host, 0, 10);
        watches(&host, 1, 12, "1");
        watches(&host, 1, 22, "2");
        comes_as(&host, 1, 21, "here 2");
        assert_int_equal(host.newcomers[1].stage, STATIC_NEWCOMER_WAITS);
        if (speaks) {
            comes(&host, 1, 11);
            assert_int_equal(host.newcomers[1].stage, STATIC_NEWCOMER_WAITS);
            assert_true(static_host_lost(&host, 12));
            assert_int_equal(host.newcomers[1].stage, STATIC_NEWCOMER_WAITS);
            assert_true(static_host_lost(&host, 11));
        } else { /* and dies before */
            assert_true(static_host_lost(&host, 12));
        }
        assert_int_equal(host.newcomers[1].stage, STATIC_NEWCOMER_LET_IN);
        static_host_done(&host);
    }
}

/* At each attempt the connections of all workers end. */
static void many_workers_go_quickly(void **state) {
    (void)state;
    enum { NODES = 10000, WORKERS = 8, ATTEMPTS = 10, SECONDS_MAX = 2 };
    struct static_host host;
    assert_int_equal(static_host_init(&host, "job/", NODES, false), 0);
    for (uint32_t rank = 0; rank < NODES; rank++) {
        comes(&host, rank, 1 + rank);
    }
    clock_t began = clock();
    for (uint64_t i = 1; i <= (uint64_t)NODES * WORKERS * ATTEMPTS; i++) {
        assert_false(static_host_lost(&host, NODES + i));
    }
    assert_true((clock() - began) / CLOCKS_PER_SEC < SECONDS_MAX);
    static_host_done(&host);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_replaced_agent_is_nothing),
        cmocka_unit_test(a_newcomer_waits_for_its_place),
        cmocka_unit_test(newcomers_may_speak_in_another_order),
        cmocka_unit_test(the_first_agent_may_speak_late),
        cmocka_unit_test(many_workers_go_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
