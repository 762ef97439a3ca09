/* Where stores listen, on hosts that have both kinds of loopback, or one; and that nobody asks first which they are.
 * The kernel's answer to bind() is the test's: as if the host had not got an address. */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <uv.h>

#include <cmocka.h>

#include "base/status.h"
#include "net/endpoint.h"
#include "net/event_loop.h"
#include "rendezvous/round/store_host.h"
#include "rendezvous/round/store_link.h"
#include "rendezvous/round/worker_store.h"

/* What the wrapped calls count, and which addresses they refuse. */
static unsigned sockets;
static sa_family_t missing;

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol) {
    sockets++;
    return __real_socket(domain, type, protocol);
}

int __real_bind(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t len) {
    if (address->sa_family == missing && net_address_is_loopback(address)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    return __real_bind(fd, address, len);
}

static int set_up(void **state) {
    static uv_loop_t loop;
    assert_int_equal(event_loop_init(&loop), 0);
    *state = &loop;
    sockets = 0;
    missing = AF_UNSPEC;
    return 0;
}

static int tear_down(void **state) {
    (void)uv_run(*state, UV_RUN_DEFAULT);
    return uv_loop_close(*state);
}

static bool has_v6(void) {
    struct net_addresses both;
    assert_int_equal(net_resolve_numeric("localhost", 0, &both), 0);
    return net_address_is_local((const struct sockaddr *)&both.list[1].sockaddr);
}

/* Opens one at `where`, everywhere without it; closes it, and tells where it can be reached. */
static const char *open_store(uv_loop_t *loop, const char *where, char out[NET_ADDRESS_TEXT_MAX]) {
    struct net_addresses at, named = {.count = 0};
    struct net_address own;
    struct kv_server *server = NULL;
    if (where) {
        assert_int_equal(net_resolve_numeric(where, 0, &at), 0);
    }
    sockets = 0;
    assert_int_equal(store_host_open(loop, where ? &at : NULL, 0, (struct kv_server_options){0}, &server), 0);
    store_host_own_address(server, &named, &own);
    assert_int_equal(net_address_port((const struct sockaddr *)&own.sockaddr), kv_server_port(server));
    kv_server_close(server);
    return net_address_host((const struct sockaddr *)&own.sockaddr, out);
}

static void a_store_on_loopback_asks_for_no_address(void **state) {
    char own[NET_ADDRESS_TEXT_MAX];
    assert_string_equal(open_store(*state, "127.0.0.1", own), "127.0.0.1");
    assert_int_equal(sockets, 1);
    assert_string_equal(open_store(*state, "localhost", own), "127.0.0.1");
    assert_int_equal(sockets, 2);
    assert_string_equal(open_store(*state, "127.0.0.2", own), "127.0.0.2"); /* it is nowhere else */
}

static void a_host_may_have_one_kind_of_loopback(void **state) {
    char own[NET_ADDRESS_TEXT_MAX];
    missing = AF_INET6;
    assert_string_equal(open_store(*state, "localhost", own), "127.0.0.1");
    missing = AF_INET;
    if (has_v6()) {
        assert_string_equal(open_store(*state, "localhost", own), "::1");
        assert_string_equal(open_store(*state, NULL, own), "::1");
    }
}

static void a_store_everywhere_is_reached_at_what_is_named_or_loopback(void **state) {
    char own[NET_ADDRESS_TEXT_MAX];
    struct net_addresses named;
    struct net_address at;
    struct kv_server *server = NULL;
    assert_string_equal(open_store(*state, NULL, own), "127.0.0.1");
    assert_int_equal(store_host_open(*state, NULL, 0, (struct kv_server_options){0}, &server), 0);
    assert_int_equal(net_resolve_numeric("192.0.2.1", 0, &named), 0); /* no machine's (RFC 5737) */
    store_host_own_address(server, &named, &at);
    assert_string_equal(net_address_host((const struct sockaddr *)&at.sockaddr, own), "127.0.0.1");
    assert_int_equal(net_resolve_numeric("127.0.0.3", 0, &named), 0);
    store_host_own_address(server, &named, &at);
    assert_string_equal(net_address_host((const struct sockaddr *)&at.sockaddr, own), "127.0.0.3");
    kv_server_close(server);
}

static void on_ready(void *ctx) {
    *(bool *)ctx = true;
}

static void on_failed(void *ctx, int status) {
    (void)ctx;
    assert_int_equal(status, 0); /* muster_detail() says more */
}

/* Of sockets: one that listens at each kind of loopback or everywhere, the client's, and one for each question. */
static void count_of_link(uv_loop_t *loop, struct store_link_options options, unsigned expected) {
    bool ready = false;
    struct store_link *link = NULL;
    options.host = "localhost";
    options.timeout_ms = 20000;
    options.silence_ms = 20000;
    options.on_ready = on_ready;
    options.on_failed = on_failed;
    options.ctx = &ready;
    sockets = 0;
    assert_int_equal(store_link_create(loop, &options, &link), 0);
    while (!ready) {
        (void)uv_run(loop, UV_RUN_ONCE);
    }
    assert_int_equal(sockets, expected);
    store_link_close(link);
}

static void whoever_hosts_asks_once_at_most(void **state) {
    count_of_link(*state, (struct store_link_options){.is_host = 1}, 2 + 1);
    count_of_link(*state, (struct store_link_options){.is_host = 1, .others_come = true}, 1 + 1 + 1);
    struct kv_server *probe = NULL;
    assert_int_equal(store_host_open(*state, NULL, 0, (struct kv_server_options){0}, &probe), 0);
    uint16_t port = kv_server_port(probe);
    kv_server_close(probe);
    count_of_link(*state, (struct store_link_options){.is_host = -1, .port = port, .others_come = true}, 1 + 1 + 1);
}

static void the_workers_store_asks_only_where_there_is_no_ipv4(void **state) {
    static const struct worker_store_place place = {.loopback = true};
    struct kv_server *server = NULL;
    char own[NET_ADDRESS_TEXT_MAX];
    sockets = 0;
    assert_int_equal(worker_store_open(*state, place, NULL, &server), 0);
    assert_int_equal(sockets, 1);
    assert_string_equal(net_address_host(kv_server_address(server), own), "127.0.0.1");
    kv_server_close(server);
    assert_int_equal(worker_store_open(*state, (struct worker_store_place){.loopback = false}, NULL, &server), 0);
    kv_server_close(server);
    missing = AF_INET;
    if (has_v6()) {
        assert_int_equal(worker_store_open(*state, place, NULL, &server), 0);
        assert_string_equal(net_address_host(kv_server_address(server), own), "::1");
        kv_server_close(server);
    }
    missing = AF_INET6;
    assert_int_equal(worker_store_open(*state, place, NULL, &server), 0);
    kv_server_close(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_store_on_loopback_asks_for_no_address, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_host_may_have_one_kind_of_loopback, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_store_everywhere_is_reached_at_what_is_named_or_loopback, set_up, tear_down),
        cmocka_unit_test_setup_teardown(whoever_hosts_asks_once_at_most, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_workers_store_asks_only_where_there_is_no_ipv4, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
