/* Who may use a guarded store: seen from three addresses that are not loopback, in a network namespace of this test's
 * own. Without the right to make one, the table alone is tested, and says so. */
#include "store/server/kv_admission.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "net/endpoint.h"
#include "store/server/kv_engine_test_support.h"

enum { HOST = 1, NODE = 2, STRANGER = 3, PATIENCE_MS = 20000, INPUT_MAX = 64 };

static bool has_network;
static char warning[512]; /* the last one */

static void keep_warning(enum log_level level, const char *file, int line, const char *text) {
    (void)file;
    (void)line;
    if (level == LOG_LEVEL_WARNING) {
        (void)snprintf(warning, sizeof warning, "%s", text);
    }
}

static struct sockaddr_in address_of(uint8_t who) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a090000U + who)}; /* 10.9.0.who */
}

static bool configure(int fd, const char *name, const struct sockaddr_in *address) {
    struct ifreq request = {0};
    (void)snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (address) {
        memcpy(&request.ifr_addr, address, sizeof *address);
        return ioctl(fd, SIOCSIFADDR, &request) == 0;
    }
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    return ioctl(fd, SIOCSIFFLAGS, &request) == 0;
}

/* Loopback, and three more addresses on it, which nobody takes for loopback. */
static int make_network(void **state) {
    static const char *const names[] = {"lo:1", "lo:2", "lo:3"};
    (void)state;
    log_set_sink(keep_warning);
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        print_message("SKIPPED in part: no network namespace can be made here (%s)\n", strerror(errno));
        return 0;
    }
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool fine = fd >= 0 && configure(fd, "lo", NULL);
    for (uint8_t i = 0; fine && i < 3; i++) {
        const struct sockaddr_in address = address_of((uint8_t)(i + 1));
        fine = configure(fd, names[i], &address);
    }
    (void)close(fd);
    has_network = fine;
    return fine ? 0 : -1;
}

/* ---- the table ---- */

static struct net_address_key key_of(uint8_t who) {
    const struct sockaddr_in address = address_of(who);
    struct net_address_key key;
    net_address_key((const struct sockaddr *)&address, &key);
    return key;
}

static void an_address_is_admitted_as_long_as_somebody_is_there(void **state) {
    static const uint64_t seed[2] = {3, 4};
    const struct net_address_key node = key_of(NODE), other = key_of(STRANGER);
    struct kv_admission admission;
    (void)state;
    kv_admission_init(&admission, seed, NULL);
    assert_false(kv_admission_has(&admission, &node));
    assert_int_equal(kv_admission_add(&admission, &node), 0);
    assert_int_equal(kv_admission_add(&admission, &node), 0);
    kv_admission_remove(&admission, &node);
    assert_true(kv_admission_has(&admission, &node));
    assert_false(kv_admission_has(&admission, &other));
    kv_admission_remove(&admission, &node);
    assert_false(kv_admission_has(&admission, &node));
    for (unsigned i = 0; i < 1000; i++) {
        struct net_address_key many = node;
        many.bytes[0] = (uint8_t)i;
        many.bytes[1] = (uint8_t)(i >> 8);
        assert_int_equal(kv_admission_add(&admission, &many), 0);
    }
    kv_admission_clear(&admission);
    assert_false(kv_admission_has(&admission, &node));
    kv_admission_done(&admission);
}

/* ---- the store ---- */

/* A guest that knows three words: they are about the connection that says them. */
static size_t serve(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    (void)ctx;
    if (len < 2) {
        return 0;
    }
    if (bytes[1] == 'a' || bytes[1] == 'l') {
        kv_guest_settle(connection);
        assert_int_equal(kv_guest_admit(connection, bytes[1] == 'l'), 0);
    }
    kv_guest_send(connection, "ok", 2);
    return 2;
}

static void on_ended(void *ctx, struct kv_connection *connection) {
    (void)ctx;
    (void)connection;
}

static const struct kv_guest guest = {.first_byte = 'G', .input_max = INPUT_MAX, .serve = serve, .ended = on_ended};

static void open_guarded(struct scene *scene, bool with_guest, const char *allowed) {
    const struct sockaddr_in any = {.sin_family = AF_INET};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&any};
    struct net_ranges ranges;
    assert_int_equal(net_ranges_parse(allowed, &ranges), 0);
    const struct kv_server_options options = {.addresses = addresses,
                                              .address_count = 1,
                                              .is_guarded = true,
                                              .allowed = &ranges,
                                              .guest = with_guest ? &guest : NULL};
    assert_int_equal(kv_engine_create(&options, &scene->engine), 0);
    scene->address = address_of(HOST);
    scene->address.sin_port = htons(kv_engine_port(scene->engine));
}

static int call_from(const struct scene *scene, uint8_t who) {
    struct sockaddr_in from = address_of(who);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&from, sizeof from), 0);
    int rc = connect(fd, (const struct sockaddr *)&scene->address, sizeof scene->address);
    assert_true(rc == 0 || errno == EINPROGRESS);
    serve_all(scene);
    return fd;
}

/* A plain client of the store. */
static int use_from(const struct scene *scene, uint8_t who) {
    int fd = call_from(scene, who);
    (void)send(fd, store_handshake, STORE_HANDSHAKE_BYTES, MSG_NOSIGNAL);
    (void)send(fd, "\x0dping", 5, MSG_NOSIGNAL);
    serve_all(scene);
    return fd;
}

static void expect_served(const struct scene *scene, uint8_t who) {
    int fd = use_from(scene, who);
    expect(scene, fd, "ping", 4);
    (void)close(fd);
    serve_all(scene);
}

static void expect_refused(const struct scene *scene, uint8_t who) {
    uint64_t before = kv_engine_refused_count(scene->engine);
    expect_end(scene, use_from(scene, who));
    serve_all(scene);
    assert_int_equal(kv_engine_refused_count(scene->engine), before + 1);
    assert_non_null(strstr(warning, "10.9.0."));
    assert_non_null(strstr(warning, "refused: no node there"));
}

static void without_a_guest_strangers_are_turned_away_at_once(void **state) {
    struct scene scene = {0};
    (void)state;
    if (!has_network) {
        print_message("SKIP: no network namespace of its own\n");
        skip();
    }
    open_guarded(&scene, false, "10.9.0.2/32");
    expect_served(&scene, HOST); /* from this machine, by its own address */
    expect_served(&scene, NODE); /* allowed */
    expect_refused(&scene, STRANGER);
    int fd = call_from(&scene, STRANGER); /* nor does it keep a place by saying nothing */
    expect_end(&scene, fd);
    assert_int_equal(scene.engine->connection_count, 0);
    scene.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int own = open_client(&scene);
    (void)close(own);
    kv_engine_free(scene.engine);
}

static void a_node_lets_its_workers_in(void **state) {
    struct scene scene = {0};
    (void)state;
    if (!has_network) {
        print_message("SKIP: no network namespace of its own\n");
        skip();
    }
    open_guarded(&scene, true, "");
    expect_refused(&scene, NODE);
    int known = call_from(&scene, NODE);
    send_all(&scene, known, "Gx", 2); /* who talks to the guest is not let in for that */
    expect(&scene, known, "ok", 2);
    expect_refused(&scene, NODE);
    send_all(&scene, known, "Ga", 2);
    expect(&scene, known, "ok", 2);
    send_all(&scene, known, "Ga", 2); /* twice is once */
    expect(&scene, known, "ok", 2);
    expect_served(&scene, NODE);
    expect_refused(&scene, STRANGER);
    int second = call_from(&scene, NODE);
    send_all(&scene, second, "Ga", 2);
    expect(&scene, second, "ok", 2);
    (void)close(known);
    serve_all(&scene);
    expect_served(&scene, NODE);
    (void)close(second);
    serve_all(&scene);
    expect_refused(&scene, NODE);
    kv_engine_free(scene.engine);
}

static void what_lasts_ends_with_a_reset(void **state) {
    struct scene scene = {0};
    (void)state;
    if (!has_network) {
        print_message("SKIP: no network namespace of its own\n");
        skip();
    }
    open_guarded(&scene, true, "");
    int known = call_from(&scene, NODE);
    send_all(&scene, known, "Gl", 2);
    expect(&scene, known, "ok", 2);
    (void)close(known);
    serve_all(&scene);
    expect_served(&scene, NODE);
    int held = call_from(&scene, NODE);
    send_all(&scene, held, "Ga", 2);
    expect(&scene, held, "ok", 2);
    kv_engine_reset(scene.engine);
    (void)close(held);
    expect_refused(&scene, NODE);
    kv_engine_free(scene.engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_is_admitted_as_long_as_somebody_is_there),
        cmocka_unit_test(without_a_guest_strangers_are_turned_away_at_once),
        cmocka_unit_test(a_node_lets_its_workers_in),
        cmocka_unit_test(what_lasts_ends_with_a_reset),
    };
    return cmocka_run_group_tests(tests, make_network, NULL);
}
