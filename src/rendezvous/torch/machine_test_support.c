/* See machine_test_support.h. */
#include "rendezvous/torch/machine_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

const struct rdzv_settings settings = {.min_nodes = 2,
                                       .max_nodes = 3,
                                       .join_timeout_ms = 600000,
                                       .last_call_timeout_ms = 30000,
                                       .close_timeout_ms = 30000,
                                       .keep_alive_interval_ms = 5000,
                                       .expiry_ms = 15000};

struct rdzv_node node(const char *addr) {
    struct rdzv_node out = {.pid = 7};
    (void)snprintf(out.addr, sizeof out.addr, "%s", addr);
    return out;
}

void begin(struct fixture *f, const struct rdzv_settings *with) {
    rdzv_machine_done(&f->machine);
    struct rdzv_node self = node("self");
    rdzv_machine_init(&f->machine, with, &self);
}

int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    f->now = (struct rdzv_now){.monotonic_ms = 1000000, .real_ms = 1000000, .wall_us = WALL_US};
    rdzv_state_init(&f->stored);
    begin(f, &settings);
    *state = f;
    return 0;
}

int teardown(void **state) {
    struct fixture *f = *state;
    rdzv_machine_done(&f->machine);
    rdzv_state_done(&f->stored);
    free(f);
    return 0;
}

void pass_ms(struct fixture *f, int64_t ms) {
    f->now.monotonic_ms += ms;
    f->now.real_ms += ms;
    f->now.wall_us += ms * 1000;
}

void put_aged(struct fixture *f, const char *addr, unsigned lists, int64_t age_s) {
    struct rdzv_node n = node(addr);
    assert_int_equal(rdzv_state_reserve(&f->stored, f->stored.member_count + 1), 0);
    struct rdzv_member *m = rdzv_state_insert(&f->stored, &n);
    m->lists = (uint8_t)(lists | RDZV_HEARTBEAT);
    m->heartbeat_us = f->now.wall_us - age_s * SECOND_US;
}

void put(struct fixture *f, const char *addr, unsigned lists) {
    put_aged(f, addr, lists, 0);
}

void drop(struct fixture *f, const char *addr) {
    struct rdzv_node n = node(addr);
    (void)rdzv_state_remove(&f->stored, &n, 0xff);
}

void event(struct fixture *f, enum rdzv_event e) {
    rdzv_step(&f->machine, e, f->now, &f->actions);
}

void sync_state(struct fixture *f) {
    struct rdzv_state copy;
    rdzv_state_init(&copy);
    assert_int_equal(rdzv_state_copy(&copy, &f->stored), 0);
    assert_int_equal(rdzv_machine_adopt(&f->machine, &copy), 0);
    event(f, RDZV_EVENT_SYNCED);
}

void commit(struct fixture *f) {
    assert_true(f->actions.write);
    assert_int_equal(f->actions.verdict, RDZV_VERDICT_NONE);
    assert_int_equal(rdzv_state_copy(&f->stored, &f->machine.state), 0);
    sync_state(f);
}

void assert_list(struct fixture *f, const char *addr, unsigned lists) {
    struct rdzv_node n = node(addr);
    const struct rdzv_member *m = rdzv_state_find(&f->machine.state, &n);
    assert_int_equal(m ? m->lists & RDZV_LISTED : 0, lists);
}

void assert_turn(const struct fixture *f, bool write, enum rdzv_verdict verdict) {
    assert_int_equal(f->actions.write, write);
    assert_int_equal(f->actions.verdict, verdict);
}

void become_member(struct fixture *f) {
    f->stored.round = 4;
    put(f, "a", RDZV_PARTICIPANT);
    put(f, "self", RDZV_PARTICIPANT);
    rdzv_state_complete(&f->stored);
    event(f, RDZV_EVENT_JOIN);
    sync_state(f);
    assert_turn(f, false, RDZV_VERDICT_JOINED);
}
