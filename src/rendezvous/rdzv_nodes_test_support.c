/* See rdzv_nodes_test_support.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "net/port_test_support.h"
#include "rendezvous/rdzv_nodes_test_support.h"
#include "store/server/kv_server.h"

enum { PATIENCE_MS = 20000 };

/* ---- harness ---- */

static void drop_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    (void)text;
}

/* Often, since what is waited for may come true before the loop goes to sleep. */
static void on_patience(uv_timer_t *timer) {
    struct fixture *f = timer->data;
    f->out_of_patience = clock_monotonic_ns() > f->patience_ends_ns;
}

int nodes_setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    (void)uv_timer_init(&f->loop, &f->patience);
    f->patience.data = f;
    f->held = port_hold(&f->port);
    (void)str_format(f->endpoint, sizeof f->endpoint, "127.0.0.1:%u", (unsigned)f->port);
    f->options = (struct rdzv_options){.backend = RDZV_BACKEND_C10D,
                                       .run_id = "job",
                                       .endpoint = f->endpoint,
                                       .host_name = "", /* ranks follow addresses and pids */
                                       .role = "default",
                                       .min_nodes = 2,
                                       .max_nodes = 2,
                                       .local_world_size = 2,
                                       .max_restarts = 100,
                                       .share_store = true};
    rdzv_conf_init(&f->options.conf);
    log_set_sink(drop_log);
    *state = f;
    return 0;
}

int nodes_teardown(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < NODES_MAX; i++) {
        rdzv_free(f->nodes[i].rdzv);
    }
    uv_close((uv_handle_t *)&f->patience, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT); /* ends: nothing is left open */
    assert_int_equal(uv_loop_close(&f->loop), 0);
    (void)close(f->held);
    log_set_sink(NULL);
    free(f);
    return 0;
}

static void on_world(void *ctx, const struct rdzv_world *world) {
    struct node *n = ctx;
    n->worlds++;
    n->world = *world;
    (void)str_copy(n->master_addr, sizeof n->master_addr, world->master_addr);
}

static void on_change(void *ctx, enum rdzv_change change, const char *why) {
    struct node *n = ctx;
    n->changes++;
    n->change = change;
    (void)str_copy(n->why, sizeof n->why, why);
    if (n->rejoin) {
        rdzv_join(n->rdzv);
    }
}

static void on_stop(void *ctx, uint64_t grace_ms, const char *why) {
    (void)grace_ms;
    (void)why;
    ((struct node *)ctx)->stops++;
}

static void on_spare_released(void *ctx) {
    ((struct node *)ctx)->spare_released = true;
}

static void on_failed(void *ctx, int status, const char *why) {
    struct node *n = ctx;
    n->failed = status;
    (void)str_copy(n->why, sizeof n->why, why);
}

void nodes_on_barrier(void *ctx) {
    ((struct node *)ctx)->barrier_done = true;
}

void nodes_on_shutdown(void *ctx) {
    ((struct node *)ctx)->shut_down = true;
}

const struct rdzv_callbacks nodes_callbacks = {.on_world = on_world,
                                               .on_change = on_change,
                                               .on_stop = on_stop,
                                               .on_spare_released = on_spare_released,
                                               .on_failed = on_failed};

void nodes_start(struct fixture *f, int i) {
    static unsigned started; /* as the rendezvous counts them in a process */
    f->nodes[i] = (struct node){.rejoin = true, .local_id = started++};
    assert_int_equal(rdzv_create(&f->loop, &f->options, &nodes_callbacks, &f->nodes[i], &f->nodes[i].rdzv), 0);
    rdzv_join(f->nodes[i].rdzv);
}

void nodes_vanish(struct fixture *f, int i) {
    rdzv_free(f->nodes[i].rdzv);
    f->nodes[i].rdzv = NULL;
}

void nodes_be_patient(struct fixture *f) {
    f->out_of_patience = false;
    f->patience_ends_ns = clock_monotonic_ns() + PATIENCE_MS * CLOCK_NS_PER_MS;
    (void)uv_timer_start(&f->patience, on_patience, 10, 10);
}

void nodes_run_until(struct fixture *f, nodes_predicate *done) {
    nodes_be_patient(f);
    while (!done(f) && !f->out_of_patience) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&f->patience);
    assert_false(f->out_of_patience);
}

bool node_in_world(const struct node *n, uint32_t size) {
    return n->worlds > 0 && n->world.group_world_size == size;
}

bool nodes_one_alone(const struct fixture *f) {
    return node_in_world(&f->nodes[0], 1);
}

bool nodes_two_together(const struct fixture *f) {
    return node_in_world(&f->nodes[0], 2) && node_in_world(&f->nodes[1], 2) &&
           f->nodes[0].world.round == f->nodes[1].world.round;
}

bool nodes_three_together(const struct fixture *f) {
    return node_in_world(&f->nodes[0], 3) && node_in_world(&f->nodes[1], 3) && node_in_world(&f->nodes[2], 3) &&
           f->nodes[0].world.round == f->nodes[1].world.round && f->nodes[0].world.round == f->nodes[2].world.round;
}

bool nodes_first_failed(const struct fixture *f) {
    return f->nodes[0].failed != 0;
}

bool nodes_second_failed(const struct fixture *f) {
    return f->nodes[1].failed != 0;
}

void nodes_assert_one_world(const struct fixture *f, int first, int last) {
    uint32_t count = (uint32_t)(last - first + 1);
    uint32_t seen = 0;
    for (int i = first; i <= last; i++) {
        const struct rdzv_world *w = &f->nodes[i].world;
        assert_int_equal(w->group_world_size, count);
        assert_int_equal(w->global_world_size, 2 * count);
        assert_int_equal(w->role_world_size, 2 * count);
        assert_int_equal(w->base_global_rank, 2 * w->group_rank);
        assert_int_equal(w->base_role_rank, 2 * w->group_rank);
        assert_string_equal(f->nodes[i].master_addr, f->nodes[first].master_addr);
        assert_int_equal(w->master_port, f->nodes[first].world.master_port);
        assert_true(w->use_agent_store);
        seen |= 1u << w->group_rank;
    }
    assert_int_equal(seen, (1u << count) - 1);
}

void nodes_form_pair(struct fixture *f, uint32_t max_nodes) {
    f->options.min_nodes = 1;
    f->options.max_nodes = max_nodes;
    f->options.conf.last_call_timeout_ms = max_nodes == 2 ? 30000 : 200;
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
}

/* ---- a client to look into stores with ---- */

static void on_probe_state(void *ctx, int status) {
    ((struct probe *)ctx)->state = status;
}

static void on_probe_reply(void *ctx, const struct kv_reply *reply) {
    ((struct probe *)ctx)->present = reply->status == 0 ? reply->number : -2;
}

void probe_open(struct fixture *f, struct probe *p, uint16_t port) {
    struct net_addresses at;
    *p = (struct probe){.state = 1, .present = -1};
    (void)net_resolve_numeric("127.0.0.1", port, &at);
    assert_int_equal(
        kv_client_create(&f->loop, (struct sockaddr *)&at.list[0].sockaddr, 5000, on_probe_state, p, &p->client), 0);
}

bool probe_has(struct fixture *f, struct probe *p, const char *key) {
    p->present = -1;
    assert_int_equal(kv_client_check(p->client, &key, 1, on_probe_reply, p), 0);
    while (p->present == -1) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_true(p->present >= 0);
    return p->present == 1;
}
