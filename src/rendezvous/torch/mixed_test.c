/* What agents of PyTorch's leave unsaid: a rank 0 that tells no address, stores of earlier rounds, stale keys. The
 * stores are ours; `plain` ones pass for PyTorch's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "net/endpoint.h"
#include "rendezvous/round/exchange.h"
#include "rendezvous/torch/master_search.h"
#include "store/server/kv_server.h"

#include <muster/status.h>

enum { PATIENCE_MS = 20000 };

struct fixture {
    uv_loop_t loop;
    uv_timer_t patience;
    bool out_of_patience;
    struct kv_server *rendezvous;
    struct kv_server *theirs; /* a workers' store of PyTorch's */
    struct kv_server *ours;
    struct kv_client *client;
    struct kv_client *waiter;
    struct master_search *search;
    struct exchange *exchange;
    const char *known_host;
    bool done;
    int status;
    struct master_found found;
    struct exchange_result result;
};

/* ---- harness ---- */

static void on_patience(uv_timer_t *timer) {
    struct fixture *f = timer->data;
    f->out_of_patience = true;
}

static struct kv_server *open_server(struct fixture *f, bool plain) {
    struct net_addresses at;
    (void)net_resolve_numeric("127.0.0.1", 0, &at);
    const struct sockaddr *address = (const struct sockaddr *)&at.list[0].sockaddr;
    struct kv_server_options options = {.addresses = &address, .address_count = 1, .plain = plain};
    struct kv_server *server = NULL;
    assert_int_equal(kv_server_create(&f->loop, &options, &server), 0);
    return server;
}

static void on_state(void *ctx, int status) {
    (void)ctx;
    assert_int_equal(status, 0);
}

static struct kv_client *open_client(struct fixture *f) {
    struct net_addresses at;
    struct kv_client *client = NULL;
    (void)net_resolve_numeric("127.0.0.1", kv_server_port(f->rendezvous), &at);
    assert_int_equal(
        kv_client_create(&f->loop, (const struct sockaddr *)&at.list[0].sockaddr, PATIENCE_MS, on_state, f, &client),
        0);
    return client;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    (void)uv_timer_init(&f->loop, &f->patience);
    f->patience.data = f;
    (void)uv_timer_start(&f->patience, on_patience, PATIENCE_MS, 0);
    f->rendezvous = open_server(f, false);
    f->theirs = open_server(f, true);
    f->ours = open_server(f, false);
    f->client = open_client(f);
    f->waiter = open_client(f);
    f->known_host = "127.0.0.1";
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    kv_client_close(f->waiter);
    kv_client_close(f->client);
    master_search_close(f->search);
    exchange_close(f->exchange);
    kv_server_close(f->rendezvous);
    kv_server_close(f->theirs);
    kv_server_close(f->ours);
    uv_close((uv_handle_t *)&f->patience, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
    return 0;
}

static void wait_until_done(struct fixture *f) {
    while (!f->done) {
        assert_false(f->out_of_patience);
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
}

static void put(struct kv_server *server, const char *key, const char *value) {
    assert_int_equal(kv_server_set(server, kv_slice_text(key), kv_slice_text(value)), 0);
}

static bool has(const struct kv_server *server, const char *key) {
    struct kv_slice value;
    return kv_server_get(server, kv_slice_text(key), &value);
}

/* Round `round` was told that its workers meet at host:port. */
static void tell(struct fixture *f, int round, const char *host, unsigned port) {
    char key[64];
    char text[8];
    (void)str_format(key, sizeof key, "/job.%d/MASTER_ADDR", round);
    put(f->rendezvous, key, host);
    (void)str_format(key, sizeof key, "/job.%d/MASTER_PORT", round);
    (void)str_format(text, sizeof text, "%u", port);
    put(f->rendezvous, key, text);
}

/* A port at which nobody listens any more. */
static unsigned dead_port(struct fixture *f) {
    struct kv_server *server = open_server(f, false);
    unsigned port = kv_server_port(server);
    kv_server_close(server);
    return port;
}

/* ---- looking for the store ---- */

static bool accept_host(void *ctx, const char *host) {
    const struct fixture *f = ctx;
    return strcmp(host, f->known_host) == 0;
}

static void on_found(void *ctx, int status, const struct master_found *found) {
    struct fixture *f = ctx;
    f->done = true;
    f->status = status;
    f->found = *found;
}

static void search(struct fixture *f, int64_t round, bool accept_muster, uint16_t own_port) {
    struct master_search_options options = {.loop = &f->loop,
                                            .waiter = f->waiter,
                                            .key = "job",
                                            .round = round,
                                            .own_addr = "127.0.0.1",
                                            .own_port = own_port,
                                            .accept_muster = accept_muster,
                                            .accept_host = accept_host};
    assert_int_equal(master_search_start(&options, on_found, f, &f->search), 0);
    wait_until_done(f);
}

static void assert_found(const struct fixture *f, const struct kv_server *server) {
    assert_int_equal(f->status, MUSTER_OK);
    assert_string_equal(f->found.addr, "127.0.0.1");
    assert_int_equal(f->found.port, kv_server_port(server));
}

static void store_of_an_earlier_round_is_found_and_emptied(void **state) {
    struct fixture *f = *state;
    put(f->theirs, "/old", "1");
    put(f->theirs, "/default_pg/0//cpu//0/1", "");
    put(f->theirs, "init/", "4");
    tell(f, 2, "127.0.0.1", kv_server_port(f->theirs));
    search(f, 7, false, 0);
    assert_found(f, f->theirs);
    assert_false(has(f->theirs, "/old"));
    assert_false(has(f->theirs, "/default_pg/0//cpu//0/1"));
    assert_true(has(f->theirs, "init/"));
}

static void many_keys_are_emptied_in_pieces(void **state) {
    struct fixture *f = *state;
    enum { KEYS = 10000 };
    char key[32];
    for (int i = 0; i < KEYS; i++) {
        (void)str_format(key, sizeof key, "/%d", i);
        put(f->theirs, key, "x");
    }
    tell(f, 0, "127.0.0.1", kv_server_port(f->theirs));
    search(f, 1, false, 0);
    assert_found(f, f->theirs);
    for (int i = 0; i < KEYS; i++) {
        (void)str_format(key, sizeof key, "/%d", i);
        assert_false(has(f->theirs, key));
    }
}

static void later_rounds_come_first(void **state) {
    struct fixture *f = *state;
    tell(f, 0, "127.0.0.1", kv_server_port(f->ours));
    tell(f, 1, "127.0.0.1", kv_server_port(f->theirs));
    search(f, 2, true, 0);
    assert_found(f, f->theirs);
}

static void dead_stores_and_strangers_are_passed_over(void **state) {
    struct fixture *f = *state;
    tell(f, 0, "127.0.0.1", kv_server_port(f->theirs));
    tell(f, 1, "127.0.0.1", dead_port(f));
    tell(f, 2, "10.0.0.9", 29400);
    put(f->rendezvous, "/job.3/MASTER_ADDR", "127.0.0.1"); /* and no port */
    tell(f, 4, "127.0.0.1", 70000);
    search(f, 5, false, 0);
    assert_found(f, f->theirs);
}

static void store_of_ours_is_kept_full_and_only_if_wanted(void **state) {
    struct fixture *f = *state;
    put(f->ours, "/kept", "1"); /* its host empties it */
    tell(f, 0, "127.0.0.1", kv_server_port(f->ours));
    search(f, 1, true, 0);
    assert_found(f, f->ours);
    assert_true(has(f->ours, "/kept"));
    master_search_close(f->search);
    f->done = false;
    search(f, 1, false, 0);
    assert_int_equal(f->status, MUSTER_ENOENT);
}

static void own_store_is_not_visited(void **state) {
    struct fixture *f = *state;
    uint16_t port = (uint16_t)dead_port(f);
    tell(f, 0, "127.0.0.1", port);
    search(f, 1, true, port);
    assert_int_equal(f->status, MUSTER_OK);
    assert_int_equal(f->found.port, port);
}

static void nothing_told_is_nothing_found(void **state) {
    struct fixture *f = *state;
    search(f, 3, true, 0);
    assert_int_equal(f->status, MUSTER_ENOENT);
    master_search_close(f->search);
    f->done = false;
    search(f, 0, true, 0);
    assert_int_equal(f->status, MUSTER_ENOENT);
}

/* ---- a rank 0 that is silent about the address ---- */

static void on_exchanged(void *ctx, int status, const struct exchange_result *result) {
    struct fixture *f = ctx;
    f->done = true;
    f->status = status;
    f->result = *result;
}

static void exchange(struct fixture *f, bool identical, const char *addr, uint16_t port) {
    struct exchange_options options = {.client = f->client,
                                       .waiter = f->waiter,
                                       .prefix = "job.5/",
                                       .role = "default",
                                       .rank = 1,
                                       .node_count = 2,
                                       .local_world_size = 2,
                                       .identical = identical,
                                       .address_known = addr != NULL,
                                       .publish_address = addr != NULL,
                                       .master_addr = addr,
                                       .master_port = port,
                                       .timeout_ms = PATIENCE_MS,
                                       .address_timeout_ms = 20};
    exchange_close(f->exchange);
    f->done = false;
    assert_int_equal(exchange_start(&options, on_exchanged, f, &f->exchange), 0);
    wait_until_done(f);
}

static void silence_of_rank_0_is_noticed_by_its_role(void **state) {
    struct fixture *f = *state;
    put(f->rendezvous, "/job.5/torchelastic/role_info/0",
        "{\"role\": \"default\", \"rank\": 0, \"local_world_size\": 2}");
    exchange(f, false, NULL, 0);
    assert_int_equal(f->status, MUSTER_ENOENT);
    assert_false(has(f->rendezvous, "/job.5/torchelastic/role_info/1")); /* nobody starts before the store is found */

    put(f->rendezvous, "/job.5/torchelastic/assigned_ranks/1", "[2, 4, 2, 4]");
    exchange(f, false, "hostA", 4711);
    assert_int_equal(f->status, MUSTER_OK);
    assert_string_equal(f->result.master_addr, "hostA");
    assert_int_equal(f->result.master_port, 4711);
    assert_int_equal(f->result.base_global_rank, 2);
    assert_true(has(f->rendezvous, "/job.5/torchelastic/role_info/1"));
    assert_true(has(f->rendezvous, "/job.5/MASTER_ADDR")); /* told for others who cannot know it either */
    assert_true(has(f->rendezvous, "/job.5/MASTER_PORT"));
}

static void silence_of_identical_nodes_is_noticed_by_time(void **state) {
    struct fixture *f = *state;
    exchange(f, true, NULL, 0);
    assert_int_equal(f->status, MUSTER_ENOENT);
    tell(f, 5, "hostA", 4711);
    exchange(f, true, NULL, 0);
    assert_int_equal(f->status, MUSTER_OK);
    assert_int_equal(f->result.master_port, 4711);
    assert_int_equal(f->result.base_global_rank, 2);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(store_of_an_earlier_round_is_found_and_emptied),
        TEST(many_keys_are_emptied_in_pieces),
        TEST(later_rounds_come_first),
        TEST(dead_stores_and_strangers_are_passed_over),
        TEST(store_of_ours_is_kept_full_and_only_if_wanted),
        TEST(own_store_is_not_visited),
        TEST(nothing_told_is_nothing_found),
        TEST(silence_of_rank_0_is_noticed_by_its_role),
        TEST(silence_of_identical_nodes_is_noticed_by_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
