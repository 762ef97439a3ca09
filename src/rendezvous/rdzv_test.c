/* Several rendezvous objects on one loop, over real sockets: rounds form, nodes arrive, leave, vanish, stand by. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/str.h"
#include "rendezvous/backend.h"
#include "rendezvous/rdzv_nodes_test_support.h"
#include "rendezvous/round/worker_store.h"
#include "rendezvous/torch/c10d_impl.h"
#include "rendezvous/torch/pickle.h"

/* ---- forming ---- */

static void standalone_forms_and_restarts_on_a_fresh_store(void **state) {
    struct fixture *f = *state;
    f->options.standalone = true;
    f->options.endpoint = "ignored:1";
    f->options.min_nodes = f->options.max_nodes = 1;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_one_alone);
    nodes_assert_one_world(f, 0, 0);
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
    nodes_run_until(f, nodes_one_alone);
    assert_int_equal(f->nodes[0].world.round, 1);
    assert_int_equal(f->nodes[0].world.master_port, port);
    probe_open(f, &p, port);
    assert_false(probe_has(f, &p, "old"));
    kv_client_close(p.client);
}

static void two_nodes_form_and_end_together(void **state) {
    struct fixture *f = *state;
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    nodes_assert_one_world(f, 0, 1);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    for (int i = 0; i < 20; i++) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_false(f->nodes[0].barrier_done); /* the other is still at work */
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    while (!f->nodes[0].barrier_done || !f->nodes[1].barrier_done) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    rdzv_shutdown(f->nodes[0].rdzv, true, nodes_on_shutdown);
    rdzv_shutdown(f->nodes[1].rdzv, true, nodes_on_shutdown);
    while (!f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    nodes_vanish(f, 1); /* the host has lingered for it */
    while (!f->nodes[0].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[0].changes + f->nodes[1].changes, 0);
    assert_int_equal(f->nodes[0].failed | f->nodes[1].failed, 0);
}

/* Nobody could take the port when the nodes began: one of them does when it is free. */
static void form_at_a_port_that_is_taken_at_first(struct fixture *f) {
    const int no = 0, yes = 1;
    assert_int_equal(setsockopt(f->held, SOL_SOCKET, SO_REUSEADDR, &no, sizeof no), 0);
    nodes_start(f, 0);
    nodes_start(f, 1);
    assert_int_equal(setsockopt(f->held, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    nodes_run_until(f, nodes_two_together);
    nodes_assert_one_world(f, 0, 1);
}

static void port_that_is_taken_at_first_is_served_later(void **state) {
    form_at_a_port_that_is_taken_at_first(*state);
}

static void port_that_is_taken_at_first_is_served_later_by_a_coordinator(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_MUSTER;
    form_at_a_port_that_is_taken_at_first(f);
}

static void nodes_of_two_roles_and_sizes(void **state) {
    struct fixture *f = *state;
    f->options.role = "first";
    f->options.local_world_size = 3;
    nodes_start(f, 0);
    f->options.role = "second \"r\u00f4le\"";
    f->options.local_world_size = 1;
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
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
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    nodes_assert_one_world(f, 0, 1);
    struct probe p;
    probe_open(f, &p, f->port);
    assert_false(probe_has(f, &p, "torch.rendezvous.job.0/torchelastic/role_info/0"));
    assert_true(probe_has(f, &p, "torch.rendezvous.job.0/MASTER_PORT"));
    kv_client_close(p.client);
}

static void unshared_store_is_only_a_free_port(void **state) {
    struct fixture *f = *state;
    f->options.share_store = false;
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    assert_false(f->nodes[0].world.use_agent_store);
    assert_int_not_equal(f->nodes[0].world.master_port, 0);
    assert_int_equal(f->nodes[0].world.master_port, f->nodes[1].world.master_port);
}

static void local_addr_is_the_master_address(void **state) {
    struct fixture *f = *state;
    f->options.local_addr = "127.0.0.9";
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    assert_string_equal(f->nodes[1].master_addr, "127.0.0.9");
}

/* As torchrun's agents order themselves; at one address, too. */
static void follow_host_names(struct fixture *f, const char *first, const char *second) {
    f->options.host_name = second;
    nodes_start(f, 0);
    f->options.host_name = first;
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    assert_int_equal(f->nodes[0].world.group_rank, 1);
    assert_int_equal(f->nodes[1].world.group_rank, 0);
    char own[NET_ADDRESS_TEXT_MAX]; /* a name may be unknown elsewhere, and loopback is */
    worker_store_own_address(own);
    assert_string_equal(f->nodes[0].master_addr, own);
}

static void ranks_follow_host_names(void **state) {
    follow_host_names(*state, "gpu10.cluster", "gpu9.cluster");
}

static void ranks_follow_host_names_with_the_native_backend(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_MUSTER;
    follow_host_names(f, "gpu10.cluster", "gpu9.cluster");
}

static void the_schedulers_rank_comes_before_the_host_name(void **state) {
    struct fixture *f = *state;
    f->options.backend = RDZV_BACKEND_MUSTER;
    f->options.has_wished_rank = true;
    f->options.host_name = "a";
    f->options.wished_rank = 1;
    nodes_start(f, 0);
    f->options.host_name = "b";
    f->options.wished_rank = 0;
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    assert_int_equal(f->nodes[1].world.group_rank, 0);
}

/* Nobody has said how this machine is called. */
static void the_host_name_is_looked_up(void **state) {
    struct fixture *f = *state;
    f->options.host_name = NULL;
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
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
    nodes_be_patient(f);
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
    char key[128], own[NET_ADDRESS_TEXT_MAX];
    worker_store_own_address(own);
    probe_open(f, &p, f->port);
    for (int i = first; i <= last; i++) {
        (void)str_format(key, sizeof key, "torch.rendezvous.job.muster/%s_%d_%u",
                         f->options.local_addr ? f->options.local_addr : own, (int)getpid(), f->nodes[i].local_id);
        assert_true(probe_has(f, &p, key));
        assert_int_equal(kv_client_delete(p.client, key, NULL, NULL), 0);
        assert_false(probe_has(f, &p, key));
    }
    kv_client_close(p.client);
}

/* ---- changing ---- */

static void third_node_arrives(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 3);
    uint16_t port = f->nodes[0].world.master_port;
    nodes_start(f, 2);
    nodes_run_until(f, nodes_three_together);
    nodes_assert_one_world(f, 0, 2);
    assert_int_equal(f->nodes[2].changes, 0);
    if (f->nodes[0].world.group_rank == 0) {
        assert_int_equal(f->nodes[0].world.master_port, port); /* the same agent keeps its address */
    }
}

static void vanished_node_is_noticed_by_its_connection(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 2);
    nodes_vanish(f, 1);
    nodes_run_until(
        f, nodes_one_alone); /* well before any heartbeat could expire: PATIENCE_MS is short of last call and expiry */
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
    assert_non_null(strstr(f->nodes[0].why, "left or died"));
    nodes_assert_one_world(f, 0, 0);
    assert_int_equal(f->nodes[0].world.round, 1);
}

static void node_that_leaves_frees_the_others_at_once(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 3);
    rdzv_shutdown(f->nodes[1].rdzv, false, nodes_on_shutdown);
    nodes_run_until(f, nodes_one_alone);
    assert_true(f->nodes[1].shut_down);
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
}

static void node_that_leaves_pytorchs_agents_is_seen_waiting(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 2);
    pass_for_pytorch(f, 0, 0);
    f->nodes[0].rejoin = false;
    rdzv_shutdown(f->nodes[1].rdzv, false, nodes_on_shutdown);
    wait_for_one_in(f, RDZV_WAITING);
    assert_false(f->nodes[1].shut_down);
    f->nodes[0].worlds = 0;
    rdzv_join(f->nodes[0].rdzv); /* it has stopped its workers */
    nodes_run_until(f, nodes_one_alone);
    while (!f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
}

/* A newcomer sorts first and becomes rank 0 of three. */
static void form_three_with_a_new_first_rank(struct fixture *f, bool pytorch) {
    f->options.local_addr = "localhost";
    nodes_form_pair(f, 3);
    assert_string_equal(f->nodes[0].master_addr, "localhost");
    if (pytorch) {
        pass_for_pytorch(f, 1, 1);
    }
    f->options.local_addr = "127.0.0.1";
    nodes_start(f, 2);
    nodes_run_until(f, nodes_three_together);
    assert_int_equal(f->nodes[2].world.group_rank, 0);
    nodes_assert_one_world(f, 0, 2);
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
    nodes_form_pair(f, 2);
    f->nodes[0].worlds = f->nodes[1].worlds = 0;
    rdzv_join(f->nodes[1].rdzv); /* its workers have failed */
    nodes_run_until(f, nodes_two_together);
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
    assert_non_null(strstr(f->nodes[0].why, "join again"));
    assert_int_equal(f->nodes[0].world.round, 1);
    nodes_assert_one_world(f, 0, 1);
}

static void on_list(void *ctx, const struct kv_reply *reply) {
    assert_int_equal(reply->status, 0);
    ((struct probe *)ctx)->present = (int64_t)reply->value_count;
}

/* What is in the shared store, once no request is under way: they are served in the order in which they are sent. */
static int64_t count_keys(struct fixture *f) {
    struct probe p;
    probe_open(f, &p, f->port);
    p.present = -1;
    nodes_be_patient(f);
    assert_int_equal(kv_client_list_keys(p.client, on_list, &p), 0);
    while (p.present < 0) {
        assert_false(f->out_of_patience);
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&f->patience);
    kv_client_close(p.client);
    return p.present;
}

static void keys_of_old_rounds_go(void **state) {
    enum { ROUNDS = 30, EARLY = 5, SLACK = 20 };
    static const struct rdzv_cause restarts_left = {.rank = 0, .is_final = false};
    struct fixture *f = *state;
    int64_t early = 0;
    nodes_form_pair(f, 2);
    for (int round = 0; round < ROUNDS; round++) {
        f->nodes[0].worlds = f->nodes[1].worlds = 0;
        rdzv_worker_failed(f->nodes[round % 2].rdzv, &restarts_left);
        rdzv_join(f->nodes[round % 2].rdzv);
        nodes_run_until(f, nodes_two_together);
        early = round == EARLY ? count_keys(f) : early;
    }
    assert_true(count_keys(f) <= early + SLACK);
}

static void node_comes_and_goes(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 2);
    for (int turn = 0; turn < 3; turn++) {
        nodes_vanish(f, 1);
        nodes_run_until(f, nodes_one_alone);
        nodes_start(f, 1);
        nodes_run_until(f, nodes_two_together);
        nodes_assert_one_world(f, 0, 1);
    }
}

static void spare_takes_over(void **state) {
    struct fixture *f = *state;
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    nodes_start(f, 2);
    wait_for_one_in(f, RDZV_SPARE);
    assert_int_equal(f->nodes[0].changes, 0);
    nodes_vanish(f, 1);
    f->nodes[1] = f->nodes[2]; /* not yet in a world: look at both */
    f->nodes[1].rdzv = NULL;
    f->nodes[1].worlds = 0;
    f->nodes[0].worlds = 0;
    while (!node_in_world(&f->nodes[0], 2) || !node_in_world(&f->nodes[2], 2)) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[0].world.round, f->nodes[2].world.round);
}

static bool both_over_the_barrier(const struct fixture *f) {
    return f->nodes[0].barrier_done && f->nodes[1].barrier_done;
}

static bool third_has_ended(const struct fixture *f) {
    return f->nodes[2].spare_released || f->nodes[2].failed != 0;
}

static void form_with_a_spare(struct fixture *f) {
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
    nodes_start(f, 2);
    wait_for_one_in(f, RDZV_SPARE);
}

static uint64_t reports_every_ms(const struct fixture *f, int i) {
    return uv_timer_get_repeat(rdzv_timer(f->nodes[i].rdzv, RDZV_TIMER_REPORT));
}

/* When it begins, and each minute. */
static void people_are_told_of_a_spare(void **state) {
    struct fixture *f = *state;
    form_with_a_spare(f);
    assert_int_equal(reports_every_ms(f, 2), RDZV_SPARE_REPORT_MS);
    assert_true(f->nodes[2].rdzv->spare_since_us > 0);
    nodes_vanish(f, 1);
    while (!node_in_world(&f->nodes[2], 2)) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[2].rdzv->spare_since_us, 0);
    assert_int_not_equal(reports_every_ms(f, 2), RDZV_SPARE_REPORT_MS);
}

static void spare_is_released_when_the_job_has_succeeded(void **state) {
    struct fixture *f = *state;
    form_with_a_spare(f);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, both_over_the_barrier);
    rdzv_shutdown(f->nodes[0].rdzv, true, nodes_on_shutdown);
    nodes_run_until(f, third_has_ended);
    assert_int_equal(f->nodes[2].failed, 0);
    assert_true(f->nodes[2].spare_released);
}

/* As an agent of PyTorch's does when its workers have failed: without a word on why. */
static void spare_fails_when_the_job_is_closed_before_its_end(void **state) {
    struct fixture *f = *state;
    form_with_a_spare(f);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    rdzv_shutdown(f->nodes[1].rdzv, true, nodes_on_shutdown);
    nodes_run_until(f, third_has_ended);
    assert_int_equal(f->nodes[2].failed, MUSTER_ECLOSED);
    assert_non_null(strstr(f->nodes[2].why, "not all of its nodes have succeeded"));
}

static void second_agent_of_a_one_node_job_is_refused(void **state) {
    struct fixture *f = *state;
    char pid[32];
    f->options.min_nodes = f->options.max_nodes = 1;
    nodes_start(f, 0);
    nodes_run_until(f, nodes_one_alone);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_second_failed);
    (void)snprintf(pid, sizeof pid, "(pid %lld)", (long long)getpid());
    const char *said[] = {f->endpoint, pid, "--rdzv-endpoint", "--rdzv-id", "--standalone"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        assert_non_null(strstr(f->nodes[1].why, said[i]));
    }
    assert_int_equal(f->nodes[0].worlds, 1); /* and runs on */
    assert_int_equal(f->nodes[0].changes, 0);
}

/* Who has waited may be gone when its arrival is told, after the ranks. */
static void nobody_that_waits_is_no_name(void **state) {
    (void)state;
    struct c10d c = {.world = {.member_count = 0}}; /* and a state without members */
    char text[64] = "before: ";
    const size_t used = strlen(text);
    (void)c10d_report_change(&c, false, text + used, sizeof text - used);
    assert_string_equal(text, "before: a node has waited to be let in");
}

static void nodes_are_counted_in_words(void **state) {
    static const struct {
        uint32_t min, max;
        const char *text;
    } cases[] = {{1, 1, "1 node"}, {2, 2, "2 nodes"}, {1, 4, "1 to 4 nodes"}, {65535, 65536, "65535 to 65536 nodes"}};
    char text[RDZV_NODES_TEXT_SIZE];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rdzv_options options = {.min_nodes = cases[i].min, .max_nodes = cases[i].max};
        assert_string_equal(rdzv_nodes_text(&options, text), cases[i].text);
    }
}

/* Writes outrun each other, and each node waits before the next try. */
static void nodes_that_back_off_meet(void **state) {
    struct fixture *f = *state;
    f->options.conf.cas_backoff_max_ms = 50;
    f->options.min_nodes = f->options.max_nodes = 3;
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_start(f, 2);
    nodes_run_until(f, nodes_three_together);
    nodes_assert_one_world(f, 0, 2);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, nodes_setup, nodes_teardown)
    const struct CMUnitTest tests[] = {
        TEST(nodes_that_back_off_meet),
        TEST(standalone_forms_and_restarts_on_a_fresh_store),
        TEST(two_nodes_form_and_end_together),
        TEST(port_that_is_taken_at_first_is_served_later),
        TEST(port_that_is_taken_at_first_is_served_later_by_a_coordinator),
        TEST(nodes_of_two_roles_and_sizes),
        TEST(identical_workers_need_no_exchange),
        TEST(unshared_store_is_only_a_free_port),
        TEST(local_addr_is_the_master_address),
        TEST(ranks_follow_host_names),
        TEST(ranks_follow_host_names_with_the_native_backend),
        TEST(the_schedulers_rank_comes_before_the_host_name),
        TEST(the_host_name_is_looked_up),
        TEST(third_node_arrives),
        TEST(vanished_node_is_noticed_by_its_connection),
        TEST(node_that_leaves_frees_the_others_at_once),
        TEST(node_that_leaves_pytorchs_agents_is_seen_waiting),
        TEST(new_first_rank_hosts_the_workers_store),
        TEST(new_first_rank_keeps_to_the_store_that_pytorchs_members_know),
        TEST(restart_of_one_node_reaches_the_other),
        TEST(keys_of_old_rounds_go),
        TEST(node_comes_and_goes),
        TEST(spare_takes_over),
        TEST(people_are_told_of_a_spare),
        TEST(spare_is_released_when_the_job_has_succeeded),
        TEST(spare_fails_when_the_job_is_closed_before_its_end),
        TEST(second_agent_of_a_one_node_job_is_refused),
        cmocka_unit_test(nobody_that_waits_is_no_name),
        cmocka_unit_test(nodes_are_counted_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
