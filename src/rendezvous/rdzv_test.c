/* Several rendezvous objects on one loop, over real sockets: rounds form, nodes arrive, leave, vanish, stand by. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "rendezvous/pickle.h"
#include "rendezvous/rdzv.h"
#include "store/kv_client.h"
#include "store/kv_server.h"

#include <errno.h>
#include <muster/status.h>
#include <netinet/in.h>
#include <unistd.h>

enum { NODES_MAX = 4, PATIENCE_MS = 20000 };

struct node {
    struct rdzv *rdzv;
    struct rdzv_world world;
    char master_addr[NET_HOST_MAX];
    int worlds;
    int changes;
    enum rdzv_change change;
    char why[1024];
    bool spare_released;
    int failed; /* status, 0: not */
    bool barrier_done;
    bool shut_down;
    bool rejoin; /* as an agent does on a change */
    unsigned local_id;
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t patience;
    bool out_of_patience;
    struct node nodes[NODES_MAX];
    uint16_t port;
    char endpoint[64];
    struct rdzv_options options;
};

/* ---- harness ---- */

static void drop_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    (void)text;
}

static void on_patience(uv_timer_t *timer) {
    struct fixture *f = timer->data;
    f->out_of_patience = true;
}

/* A port that was free a moment ago. */
static uint16_t free_port(uv_loop_t *loop) {
    struct net_addresses at;
    (void)net_resolve_numeric("127.0.0.1", 0, &at);
    const struct sockaddr *address = (const struct sockaddr *)&at.list[0].sockaddr;
    struct kv_server_options options = {.addresses = &address, .address_count = 1};
    struct kv_server *server;
    assert_int_equal(kv_server_create(loop, &options, &server), 0);
    uint16_t port = kv_server_port(server);
    kv_server_close(server);
    return port;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    (void)uv_timer_init(&f->loop, &f->patience);
    f->patience.data = f;
    f->port = free_port(&f->loop);
    (void)str_format(f->endpoint, sizeof f->endpoint, "127.0.0.1:%u", (unsigned)f->port);
    f->options = (struct rdzv_options){.backend = RDZV_BACKEND_C10D,
                                       .run_id = "job",
                                       .endpoint = f->endpoint,
                                       .role = "default",
                                       .min_nodes = 2,
                                       .max_nodes = 2,
                                       .local_world_size = 2,
                                       .share_store = true};
    rdzv_conf_init(&f->options.conf);
    log_set_sink(drop_log);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    for (int i = 0; i < NODES_MAX; i++) {
        rdzv_free(f->nodes[i].rdzv);
    }
    uv_close((uv_handle_t *)&f->patience, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT); /* ends: nothing is left open */
    assert_int_equal(uv_loop_close(&f->loop), 0);
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

static void on_spare_released(void *ctx) {
    ((struct node *)ctx)->spare_released = true;
}

static void on_failed(void *ctx, int status, const char *why) {
    struct node *n = ctx;
    n->failed = status;
    (void)str_copy(n->why, sizeof n->why, why);
}

static void on_barrier(void *ctx) {
    ((struct node *)ctx)->barrier_done = true;
}

static void on_shutdown(void *ctx) {
    ((struct node *)ctx)->shut_down = true;
}

static const struct rdzv_callbacks callbacks = {
    .on_world = on_world, .on_change = on_change, .on_spare_released = on_spare_released, .on_failed = on_failed};

static void start(struct fixture *f, int i) {
    static unsigned started; /* as the rendezvous counts them in a process */
    f->nodes[i] = (struct node){.rejoin = true, .local_id = started++};
    assert_int_equal(rdzv_create(&f->loop, &f->options, &callbacks, &f->nodes[i], &f->nodes[i].rdzv), 0);
    rdzv_join(f->nodes[i].rdzv);
}

static void vanish(struct fixture *f, int i) {
    rdzv_free(f->nodes[i].rdzv);
    f->nodes[i].rdzv = NULL;
}

typedef bool predicate(const struct fixture *f);

static void run_until(struct fixture *f, predicate *done) {
    f->out_of_patience = false;
    (void)uv_timer_start(&f->patience, on_patience, PATIENCE_MS, 0);
    while (!done(f) && !f->out_of_patience) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&f->patience);
    assert_false(f->out_of_patience);
}

static bool in_world(const struct node *n, uint32_t size) {
    return n->worlds > 0 && n->world.group_world_size == size;
}

static bool one_alone(const struct fixture *f) {
    return in_world(&f->nodes[0], 1);
}

static bool two_together(const struct fixture *f) {
    return in_world(&f->nodes[0], 2) && in_world(&f->nodes[1], 2) && f->nodes[0].world.round == f->nodes[1].world.round;
}

static bool three_together(const struct fixture *f) {
    return in_world(&f->nodes[0], 3) && in_world(&f->nodes[1], 3) && in_world(&f->nodes[2], 3) &&
           f->nodes[0].world.round == f->nodes[1].world.round && f->nodes[0].world.round == f->nodes[2].world.round;
}

static bool first_failed(const struct fixture *f) {
    return f->nodes[0].failed != 0;
}

static bool second_failed_or_in_world(const struct fixture *f) {
    return f->nodes[1].failed != 0 || f->nodes[1].worlds > 0;
}

static bool second_failed(const struct fixture *f) {
    return f->nodes[1].failed != 0;
}

/* Checks ranks, sizes and master of nodes first..last, which are all of one world. */
static void assert_one_world(const struct fixture *f, int first, int last) {
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

/* ---- a client to look into stores with ---- */

struct probe {
    struct kv_client *client;
    int64_t present; /* -1: no answer yet */
    int state;       /* 1: not heard */
};

static void on_probe_state(void *ctx, int status) {
    ((struct probe *)ctx)->state = status;
}

static void on_probe_reply(void *ctx, const struct kv_reply *reply) {
    ((struct probe *)ctx)->present = reply->status == 0 ? reply->number : -2;
}

static void probe_open(struct fixture *f, struct probe *p, uint16_t port) {
    struct net_addresses at;
    *p = (struct probe){.state = 1, .present = -1};
    (void)net_resolve_numeric("127.0.0.1", port, &at);
    assert_int_equal(
        kv_client_create(&f->loop, (struct sockaddr *)&at.list[0].sockaddr, 5000, on_probe_state, p, &p->client), 0);
}

static bool probe_has(struct fixture *f, struct probe *p, const char *key) {
    p->present = -1;
    assert_int_equal(kv_client_check(p->client, &key, 1, on_probe_reply, p), 0);
    while (p->present == -1) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_true(p->present >= 0);
    return p->present == 1;
}

/* ---- forming ---- */

static void standalone_forms_and_restarts_on_a_fresh_store(void **state) {
    struct fixture *f = *state;
    f->options.standalone = true;
    f->options.endpoint = "ignored:1";
    f->options.min_nodes = f->options.max_nodes = 1;
    start(f, 0);
    run_until(f, one_alone);
    assert_one_world(f, 0, 0);
    assert_string_equal(f->nodes[0].master_addr, "127.0.0.1");
    assert_int_equal(f->nodes[0].world.round, 0);
    uint16_t port = f->nodes[0].world.master_port;
    struct probe p;
    probe_open(f, &p, port);
    assert_int_equal(kv_client_set(p.client, "old", kv_slice_text("1"), NULL, NULL), 0);
    assert_true(probe_has(f, &p, "old"));
    kv_client_close(p.client);

    f->nodes[0].worlds = 0;
    rdzv_join(f->nodes[0].rdzv);
    run_until(f, one_alone);
    assert_int_equal(f->nodes[0].world.round, 1);
    assert_int_equal(f->nodes[0].world.master_port, port);
    probe_open(f, &p, port);
    assert_false(probe_has(f, &p, "old"));
    kv_client_close(p.client);
}

static void two_nodes_form_and_end_together(void **state) {
    struct fixture *f = *state;
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
    assert_one_world(f, 0, 1);
    rdzv_exit_barrier(f->nodes[0].rdzv, on_barrier);
    for (int i = 0; i < 20; i++) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_false(f->nodes[0].barrier_done); /* the other is still at work */
    rdzv_exit_barrier(f->nodes[1].rdzv, on_barrier);
    while (!f->nodes[0].barrier_done || !f->nodes[1].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    rdzv_shutdown(f->nodes[0].rdzv, true, on_shutdown);
    rdzv_shutdown(f->nodes[1].rdzv, true, on_shutdown);
    while (!f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    vanish(f, 1); /* the host has lingered for it */
    while (!f->nodes[0].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[0].changes + f->nodes[1].changes, 0);
    assert_int_equal(f->nodes[0].failed | f->nodes[1].failed, 0);
}

static void nodes_of_two_roles_and_sizes(void **state) {
    struct fixture *f = *state;
    f->options.role = "first";
    f->options.local_world_size = 3;
    start(f, 0);
    f->options.role = "second \"r\u00f4le\"";
    f->options.local_world_size = 1;
    start(f, 1);
    run_until(f, two_together);
    const struct rdzv_world *a = &f->nodes[0].world;
    const struct rdzv_world *b = &f->nodes[1].world;
    assert_int_equal(a->global_world_size, 4);
    assert_int_equal(a->role_world_size, 3);
    assert_int_equal(b->role_world_size, 1);
    assert_int_equal(b->base_role_rank, 0);
    assert_int_equal(a->base_global_rank, a->group_rank == 0 ? 0 : 1);
    assert_int_equal(b->base_global_rank, b->group_rank == 0 ? 0 : 3);
}

static void identical_workers_need_no_exchange(void **state) {
    struct fixture *f = *state;
    f->options.identical_workers = true;
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
    assert_one_world(f, 0, 1);
    struct probe p;
    probe_open(f, &p, f->port);
    assert_false(probe_has(f, &p, "torch.rendezvous.job.0/torchelastic/role_info/0"));
    assert_true(probe_has(f, &p, "torch.rendezvous.job.0/MASTER_PORT"));
    kv_client_close(p.client);
}

static void unshared_store_is_only_a_free_port(void **state) {
    struct fixture *f = *state;
    f->options.share_store = false;
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
    assert_false(f->nodes[0].world.use_agent_store);
    assert_int_not_equal(f->nodes[0].world.master_port, 0);
    assert_int_equal(f->nodes[0].world.master_port, f->nodes[1].world.master_port);
}

static void local_addr_is_the_master_address(void **state) {
    struct fixture *f = *state;
    f->options.local_addr = "127.0.0.9";
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
    assert_string_equal(f->nodes[1].master_addr, "127.0.0.9");
}

struct watched {
    bool came;
    char text[4096];
    size_t len;
};

static void on_watched(void *ctx, const struct kv_reply *reply) {
    struct watched *w = ctx;
    assert_int_equal(reply->status, 0);
    assert_true(reply->values[0].len < sizeof w->text);
    w->len = reply->values[0].len;
    memcpy(w->text, reply->values[0].data, w->len);
    w->came = true;
}

static size_t count_in(const struct watched *w, enum rdzv_list list) {
    struct rdzv_state state;
    rdzv_state_init(&state);
    assert_int_equal(pickle_read_text((const uint8_t *)w->text, w->len, &state), 0);
    size_t count = rdzv_state_count(&state, list);
    rdzv_state_done(&state);
    return count;
}

/* Until the stored state has a node in this list. */
static void wait_for_one_in(struct fixture *f, enum rdzv_list list) {
    struct probe p;
    struct watched w = {.len = 0};
    probe_open(f, &p, f->port);
    f->out_of_patience = false;
    (void)uv_timer_start(&f->patience, on_patience, PATIENCE_MS, 0);
    do {
        w.came = false;
        struct kv_slice known = kv_slice_of(w.text, w.len);
        assert_int_equal(kv_client_watch(p.client, "torch.rendezvous.job", known, on_watched, &w), 0);
        while (!w.came) {
            assert_false(f->out_of_patience);
            (void)uv_run(&f->loop, UV_RUN_ONCE);
        }
    } while (count_in(&w, list) == 0);
    (void)uv_timer_stop(&f->patience);
    kv_client_close(p.client);
}

/* These nodes become agents of PyTorch's to the others: those do not introduce themselves. */
static void pass_for_pytorch(struct fixture *f, int first, int last) {
    struct probe p;
    char key[128];
    probe_open(f, &p, f->port);
    for (int i = first; i <= last; i++) {
        (void)str_format(key, sizeof key, "torch.rendezvous.job.muster/%s_%d_%u",
                         f->options.local_addr ? f->options.local_addr : "127.0.0.1", (int)getpid(),
                         f->nodes[i].local_id);
        assert_true(probe_has(f, &p, key));
        assert_int_equal(kv_client_delete(p.client, key, NULL, NULL), 0);
        assert_false(probe_has(f, &p, key));
    }
    kv_client_close(p.client);
}

/* ---- changing ---- */

static void form_pair(struct fixture *f, uint32_t max_nodes) {
    f->options.min_nodes = 1;
    f->options.max_nodes = max_nodes;
    f->options.conf.last_call_timeout_ms = max_nodes == 2 ? 30000 : 200;
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
}

static void third_node_arrives(void **state) {
    struct fixture *f = *state;
    form_pair(f, 3);
    uint16_t port = f->nodes[0].world.master_port;
    start(f, 2);
    run_until(f, three_together);
    assert_one_world(f, 0, 2);
    assert_int_equal(f->nodes[2].changes, 0);
    if (f->nodes[0].world.group_rank == 0) {
        assert_int_equal(f->nodes[0].world.master_port, port); /* the same agent keeps its address */
    }
}

static void vanished_node_is_noticed_by_its_connection(void **state) {
    struct fixture *f = *state;
    form_pair(f, 2);
    vanish(f, 1);
    run_until(f, one_alone); /* well before any heartbeat could expire: PATIENCE_MS is short of last call and expiry */
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
    assert_non_null(strstr(f->nodes[0].why, "left or died"));
    assert_one_world(f, 0, 0);
    assert_int_equal(f->nodes[0].world.round, 1);
}

static void node_that_leaves_frees_the_others_at_once(void **state) {
    struct fixture *f = *state;
    form_pair(f, 3);
    rdzv_shutdown(f->nodes[1].rdzv, false, on_shutdown);
    run_until(f, one_alone);
    assert_true(f->nodes[1].shut_down);
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
}

static void node_that_leaves_pytorchs_agents_is_seen_waiting(void **state) {
    struct fixture *f = *state;
    form_pair(f, 2);
    pass_for_pytorch(f, 0, 0);
    f->nodes[0].rejoin = false;
    rdzv_shutdown(f->nodes[1].rdzv, false, on_shutdown);
    wait_for_one_in(f, RDZV_WAITING);
    assert_false(f->nodes[1].shut_down);
    f->nodes[0].worlds = 0;
    rdzv_join(f->nodes[0].rdzv); /* it has stopped its workers */
    run_until(f, one_alone);
    while (!f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
}

/* A newcomer sorts first and becomes rank 0 of three. */
static void form_three_with_a_new_first_rank(struct fixture *f, bool pytorch) {
    f->options.local_addr = "localhost";
    form_pair(f, 3);
    assert_string_equal(f->nodes[0].master_addr, "localhost");
    if (pytorch) {
        pass_for_pytorch(f, 1, 1);
    }
    f->options.local_addr = "127.0.0.1";
    start(f, 2);
    run_until(f, three_together);
    assert_int_equal(f->nodes[2].world.group_rank, 0);
    assert_one_world(f, 0, 2);
}

static void new_first_rank_hosts_the_workers_store(void **state) {
    struct fixture *f = *state;
    form_three_with_a_new_first_rank(f, false);
    assert_string_equal(f->nodes[1].master_addr, "127.0.0.1");
}

static void new_first_rank_keeps_to_the_store_that_pytorchs_members_know(void **state) {
    struct fixture *f = *state;
    form_three_with_a_new_first_rank(f, true);
    assert_string_equal(f->nodes[1].master_addr, "localhost");
}

static void restart_of_one_node_reaches_the_other(void **state) {
    struct fixture *f = *state;
    form_pair(f, 2);
    f->nodes[0].worlds = f->nodes[1].worlds = 0;
    rdzv_join(f->nodes[1].rdzv); /* its workers have failed */
    run_until(f, two_together);
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
    assert_non_null(strstr(f->nodes[0].why, "join again"));
    assert_int_equal(f->nodes[0].world.round, 1);
    assert_one_world(f, 0, 1);
}

static void node_comes_and_goes(void **state) {
    struct fixture *f = *state;
    form_pair(f, 2);
    for (int turn = 0; turn < 3; turn++) {
        vanish(f, 1);
        run_until(f, one_alone);
        start(f, 1);
        run_until(f, two_together);
        assert_one_world(f, 0, 1);
    }
}

static void spare_takes_over(void **state) {
    struct fixture *f = *state;
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
    start(f, 2);
    wait_for_one_in(f, RDZV_SPARE);
    assert_int_equal(f->nodes[0].changes, 0);
    vanish(f, 1);
    f->nodes[1] = f->nodes[2]; /* not yet in a world: look at both */
    f->nodes[1].rdzv = NULL;
    f->nodes[1].worlds = 0;
    f->nodes[0].worlds = 0;
    while (!in_world(&f->nodes[0], 2) || !in_world(&f->nodes[2], 2)) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[0].world.round, f->nodes[2].world.round);
}

static bool third_released(const struct fixture *f) {
    return f->nodes[2].spare_released;
}

static void spare_is_released_when_the_job_ends(void **state) {
    struct fixture *f = *state;
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
    start(f, 2);
    wait_for_one_in(f, RDZV_SPARE);
    rdzv_shutdown(f->nodes[1].rdzv, true, on_shutdown);
    run_until(f, third_released);
    assert_int_equal(f->nodes[2].failed, 0);
}

/* ---- ending badly ---- */

static void closed_rendezvous_refuses_newcomers(void **state) {
    struct fixture *f = *state;
    form_pair(f, 3);
    rdzv_shutdown(f->nodes[0].rdzv, true, on_shutdown);
    while (!f->nodes[0].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    start(f, 2);
    while (!f->nodes[2].failed) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[2].failed, MUSTER_ECLOSED);
    assert_non_null(strstr(f->nodes[2].why, "--rdzv-id"));
    assert_int_equal(f->nodes[1].failed, 0); /* members go on */
}

static void barrier_ends_when_the_other_fails(void **state) {
    struct fixture *f = *state;
    form_pair(f, 2);
    rdzv_exit_barrier(f->nodes[0].rdzv, on_barrier);
    vanish(f, 1);
    while (!f->nodes[0].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[0].changes, 0);
}

static void lonely_node_times_out_and_says_who_is_missing(void **state) {
    struct fixture *f = *state;
    f->options.conf.join_timeout_ms = 300;
    start(f, 0);
    run_until(f, first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ETIMEOUT);
    assert_non_null(strstr(f->nodes[0].why, "missing"));
}

static void lost_host_is_a_clear_failure(void **state) {
    struct fixture *f = *state;
    form_pair(f, 2);
    vanish(f, 0);
    run_until(f, second_failed);
    assert_int_equal(f->nodes[1].failed, MUSTER_ECONNECT);
    assert_non_null(strstr(f->nodes[1].why, f->endpoint));
    rdzv_shutdown(f->nodes[1].rdzv, true, on_shutdown); /* still answers */
    while (!f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
}

static void refused_endpoint_names_address_and_error(void **state) {
    struct fixture *f = *state;
    f->options.conf.is_host = 0;
    f->options.conf.read_timeout_ms = 600;
    start(f, 0);
    run_until(f, first_failed);
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
    start(f, 0);
    run_until(f, first_failed);
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
    start(f, 0);
    run_until(f, first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_EPROTOCOL);
    assert_non_null(strstr(f->nodes[0].why, f->endpoint));
    assert_non_null(strstr(f->nodes[0].why, "another port"));
    (void)close(fd);
}

static void bad_options_are_refused_at_once(void **state) {
    struct fixture *f = *state;
    struct rdzv *r = NULL;
    f->options.endpoint = "host:99999";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &callbacks, f, &r), MUSTER_EINVAL);
    f->options.endpoint = f->endpoint;
    f->options.run_id = "";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &callbacks, f, &r), MUSTER_EINVAL);
    f->options.run_id = "job";
    f->options.min_nodes = 3;
    assert_int_equal(rdzv_create(&f->loop, &f->options, &callbacks, f, &r), MUSTER_EINVAL);
    f->options.min_nodes = 1;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.endpoint = "127.0.0.1";
    assert_int_equal(rdzv_create(&f->loop, &f->options, &callbacks, f, &r), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "--master-port"));
    assert_null(r);
}

/* What a stranger has left under the key ends in a sentence, not in a crash. */
static void damaged_state_is_a_clear_failure(void **state) {
    struct fixture *f = *state;
    form_pair(f, 3);
    struct probe p;
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_set(p.client, "torch.rendezvous.job", kv_slice_text("Y29zCnN5c3RlbQo="), NULL, NULL), 0);
    run_until(f, first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ECORRUPT);
    assert_non_null(strstr(f->nodes[0].why, "class"));
    kv_client_close(p.client);
}

/* ---- a file instead of a server ---- */

static void nodes_meet_in_a_file(void **state) {
    struct fixture *f = *state;
    char path[] = "/tmp/rdzv_test.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    f->options.endpoint = path;
    f->options.conf.store_is_file = true;
    start(f, 0);
    start(f, 1);
    run_until(f, two_together);
    assert_one_world(f, 0, 1);
    rdzv_exit_barrier(f->nodes[0].rdzv, on_barrier);
    rdzv_exit_barrier(f->nodes[1].rdzv, on_barrier);
    while (!f->nodes[0].barrier_done || !f->nodes[1].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    rdzv_shutdown(f->nodes[0].rdzv, true, on_shutdown);
    rdzv_shutdown(f->nodes[1].rdzv, true, on_shutdown);
    while (!f->nodes[0].shut_down || !f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    vanish(f, 0);
    vanish(f, 1);
    assert_int_equal(unlink(path), 0);
}

static void file_that_cannot_be_opened_is_a_clear_failure(void **state) {
    struct fixture *f = *state;
    f->options.endpoint = "/nowhere/at/all";
    f->options.conf.store_is_file = true;
    start(f, 0);
    run_until(f, first_failed);
    assert_int_equal(f->nodes[0].failed, MUSTER_ESYSTEM);
    assert_non_null(strstr(f->nodes[0].why, "/nowhere/at/all"));
}

/* ---- static ---- */

static void static_single_node(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.min_nodes = f->options.max_nodes = 1;
    start(f, 0);
    run_until(f, one_alone);
    assert_int_equal(f->nodes[0].world.master_port, f->port);
    assert_string_equal(f->nodes[0].master_addr, "127.0.0.1");
    struct probe p;
    probe_open(f, &p, f->port);
    assert_int_equal(kv_client_set(p.client, "old", kv_slice_text("1"), NULL, NULL), 0);
    assert_true(probe_has(f, &p, "old"));
    kv_client_close(p.client);
    f->nodes[0].worlds = 0;
    rdzv_join(f->nodes[0].rdzv);
    run_until(f, one_alone);
    assert_int_equal(f->nodes[0].failed, 0);
    probe_open(f, &p, f->port);
    assert_false(probe_has(f, &p, "old"));
    kv_client_close(p.client);
}

static void static_pair(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.node_rank = 1;
    start(f, 1);
    f->options.node_rank = 0;
    start(f, 0);
    run_until(f, two_together);
    assert_one_world(f, 0, 1);
    assert_int_equal(f->nodes[1].world.group_rank, 1);
    assert_int_equal(f->nodes[1].world.master_port, f->port);
    f->nodes[1].worlds = 0;
    rdzv_join(f->nodes[1].rdzv); /* each node restarts alone */
    run_until(f, second_failed_or_in_world);
    assert_int_equal(f->nodes[1].failed, 0);
    rdzv_exit_barrier(f->nodes[0].rdzv, on_barrier);
    rdzv_exit_barrier(f->nodes[1].rdzv, on_barrier);
    while (!f->nodes[0].barrier_done || !f->nodes[1].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
}

static void static_master_is_absent(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.node_rank = 1;
    f->options.conf.static_timeout_ms = 600;
    start(f, 0);
    run_until(f, first_failed);
    assert_non_null(strstr(f->nodes[0].why, f->endpoint));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(standalone_forms_and_restarts_on_a_fresh_store),
        TEST(two_nodes_form_and_end_together),
        TEST(nodes_of_two_roles_and_sizes),
        TEST(identical_workers_need_no_exchange),
        TEST(unshared_store_is_only_a_free_port),
        TEST(local_addr_is_the_master_address),
        TEST(third_node_arrives),
        TEST(vanished_node_is_noticed_by_its_connection),
        TEST(node_that_leaves_frees_the_others_at_once),
        TEST(node_that_leaves_pytorchs_agents_is_seen_waiting),
        TEST(new_first_rank_hosts_the_workers_store),
        TEST(new_first_rank_keeps_to_the_store_that_pytorchs_members_know),
        TEST(restart_of_one_node_reaches_the_other),
        TEST(node_comes_and_goes),
        TEST(spare_takes_over),
        TEST(spare_is_released_when_the_job_ends),
        TEST(closed_rendezvous_refuses_newcomers),
        TEST(barrier_ends_when_the_other_fails),
        TEST(lonely_node_times_out_and_says_who_is_missing),
        TEST(lost_host_is_a_clear_failure),
        TEST(refused_endpoint_names_address_and_error),
        TEST(must_host_but_port_is_taken),
        TEST(silent_port_is_no_store),
        TEST(bad_options_are_refused_at_once),
        TEST(damaged_state_is_a_clear_failure),
        TEST(nodes_meet_in_a_file),
        TEST(file_that_cannot_be_opened_is_a_clear_failure),
        TEST(static_single_node),
        TEST(static_pair),
        TEST(static_master_is_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
