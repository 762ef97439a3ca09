/* The server over real loopback sockets: segmentation, pipelining, limits, strangers, slow readers, ends of all kinds.
 * Engine and raw clients share this one thread: nobody sleeps, everybody is served when the kernel says so. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "net/endpoint.h"
#include "store/server/kv_engine_test_support.h"
#include "store/wire/codec.h"

enum { TEXT_MAX = 128 };

static void on_disconnect(void *ctx, uint64_t connection, enum kv_end end) {
    struct scene *scene = ctx;
    assert_true(connection > 0);
    scene->ended++;
    scene->last_ended = connection;
    scene->last_end = end;
}

static void on_return(void *ctx, uint64_t connection) {
    struct scene *scene = ctx;
    scene->last_returned = connection;
}

static void start(struct scene *scene, size_t connections_max, size_t bytes_max) {
    scene->ended = 0;
    scene_open(scene, &(struct kv_server_options){.connections_max = connections_max,
                                                  .bytes_max = bytes_max,
                                                  .on_disconnect = on_disconnect,
                                                  .on_return = on_return,
                                                  .ctx = scene});
}

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    start(scene, 0, 0);
    *out = scene;
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    kv_engine_free(scene->engine);
    free(scene);
    return 0;
}

static size_t put(uint8_t *out, size_t at, const void *bytes, size_t len) {
    memcpy(out + at, bytes, len);
    return at + len;
}

static size_t put_u64(uint8_t *out, size_t at, uint64_t value) {
    for (size_t i = 0; i < 8; i++) {
        out[at + i] = (uint8_t)(value >> (8 * i));
    }
    return at + 8;
}

/* Command, key and optional value. */
static size_t make(uint8_t out[TEXT_MAX], uint8_t command, const char *key, const char *value) {
    size_t at = put(out, 0, &command, 1);
    at = put(out, put_u64(out, at, strlen(key)), key, strlen(key));
    return value ? put(out, put_u64(out, at, strlen(value)), value, strlen(value)) : at;
}

static void request(const struct scene *scene, int fd, uint8_t command, const char *key, const char *value) {
    uint8_t bytes[TEXT_MAX];
    send_all(scene, fd, bytes, make(bytes, command, key, value));
}

static void expect_bytes(const struct scene *scene, int fd, const char *text) {
    uint8_t bytes[TEXT_MAX];
    size_t len = put(bytes, put_u64(bytes, 0, strlen(text)), text, strlen(text));
    expect(scene, fd, bytes, len);
}

static void request_wait(const struct scene *scene, int fd, const char *key) {
    uint8_t bytes[TEXT_MAX] = {CODEC_WAIT};
    size_t at = put_u64(bytes, put_u64(bytes, 1, 1), strlen(key));
    send_all(scene, fd, bytes, put(bytes, at, key, strlen(key)));
}

/* A conversation with every kind of request, as one run of bytes, and all its answers. */
static const char conversation[] = "00cef7853c0d884f0000"
                                   "0103000000000000002f6b3102000000000000007631"
                                   "06010000000000000003000000000000002f6b31"
                                   "0303000000000000002f6b31"
                                   "0404000000000000002f636e740500000000000000"
                                   "0404000000000000002f636e74f9ffffffffffffff"
                                   "0203000000000000002f6373000000000000000005000000000000006669727374"
                                   "05020000000000000003000000000000002f6b3103000000000000002f6373"
                                   "07"
                                   "0803000000000000002f6b31"
                                   "0903000000000000002f617002000000000000006162"
                                   "0a020000000000000003000000000000002f637303000000000000002f6170"
                                   "0b0100000000000000"
                                   "03000000000000002f6d31010000000000000078"
                                   "0c"
                                   "0e02000000000000002f7105000000000000006974656d31"
                                   "1002000000000000002f71"
                                   "0f02000000000000002f71"
                                   "1204000000000000002f6261720100000000000000"
                                   "0305000000000000002f676f6e65";
static const char answers[] = "884f0000"
                              "00"
                              "02000000000000007631"
                              "0500000000000000"
                              "feffffffffffffff"
                              "05000000000000006669727374"
                              "00"
                              "0300000000000000"
                              "0100000000000000"
                              "0500000000000000666972737402000000000000006162"
                              "01"
                              "0100000000000000"
                              "010000000000000005000000000000006974656d31"
                              "00"
                              "0000000000000000";

static size_t unhex(const char *hex, uint8_t *out, size_t size) {
    size_t len = strlen(hex) / 2;
    assert_true(len <= size);
    for (size_t i = 0; i < len; i++) {
        unsigned byte = 0;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return len;
}

static void converse(const struct scene *scene, size_t segment) {
    uint8_t bytes[1024], expected[1024];
    size_t len = unhex(conversation, bytes, sizeof bytes), answers_len = unhex(answers, expected, sizeof expected);
    int fd = connect_raw(scene);
    for (size_t at = 0; at < len; at += segment) {
        send_all(scene, fd, bytes + at, len - at < segment ? len - at : segment);
        serve_all(scene);
    }
    expect(scene, fd, expected, answers_len);
    expect_silence(scene, fd);
    (void)close(fd);
    serve_all(scene);
}

static void any_segmentation_gives_the_same_answers(void **ctx) {
    struct scene *scene = *ctx;
    static const size_t segments[] = {1024, 1, 2, 3, 7, 64};
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        converse(scene, segments[i]);
        assert_int_equal(scene->engine->connection_count, 0);
        kv_engine_reset(scene->engine);
        assert_int_equal(scene->engine->machine.budget.used_bytes, 0);
    }
}

static void strangers_are_dropped_at_once(void **ctx) {
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {
        {"GET / HTTP/1.1\r\n", 16},
        {"\x01", 1},             /* a request without a handshake */
        {"\x00\xce\xf7\x86", 4}, /* magic wrong in its third byte */
        {"\x00X", 2},
        {"\x00\xce\xf7\x85\x3c\x00\xce\xf7\x85\x3c", 10}, /* a second handshake */
        {"\x00\xce\xf7\x85\x3c\x13", 6},                  /* unknown commands */
        {"\x00\xce\xf7\x85\x3c\xff", 6},
        {"\x16\x03\x01\x02\x00\x01", 6}, /* TLS */
    };
    struct scene *scene = *ctx;
    int good = open_client(scene);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = connect_raw(scene);
        send_all(scene, fd, cases[i].bytes, cases[i].len);
        expect_end(scene, fd);
        assert_int_equal(scene->ended, i + 1);
    }
    request(scene, good, CODEC_GET, "k", NULL); /* the others are not affected */
    expect_bytes(scene, good, "");
    (void)close(good);
}

static void limits_drop_before_content_comes(void **ctx) {
    static const struct {
        uint8_t command;
        bool has_key;
        uint64_t length;
    } cases[] = {
        {CODEC_GET, false, CODEC_KEY_BYTES_MAX + 1},
        {CODEC_SET, true, CODEC_VALUE_BYTES_MAX + 1},
        {CODEC_APPEND, true, UINT64_MAX},
        {CODEC_WAIT, false, CODEC_KEYS_MAX + 1},
        {CODEC_CHECK, false, CODEC_KEYS_MAX + 1},
        {CODEC_MULTI_GET, false, CODEC_KEYS_MAX + 1},
        {CODEC_MULTI_SET, false, CODEC_KEYS_MAX + 1},
        {CODEC_QUEUE_PUSH, true, CODEC_VALUE_BYTES_MAX + 1},
        {CODEC_COMPARE_SET, true, (uint64_t)1 << 63},
        {CODEC_DELETE_KEY, false, CODEC_KEY_BYTES_MAX + 1},
        {CODEC_BARRIER, false, CODEC_KEY_BYTES_MAX + 1},
    };
    struct scene *scene = *ctx;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t bytes[32] = {cases[i].command};
        size_t at = cases[i].has_key ? put_u64(bytes, 1, 0) : 1;
        int fd = open_client(scene);
        send_all(scene, fd, bytes, put_u64(bytes, at, cases[i].length));
        expect_end(scene, fd);
    }
    assert_int_equal(scene->engine->machine.budget.used_bytes, 0);
}

static void the_largest_key_and_value_pass(void **ctx) {
    struct scene *scene = *ctx;
    size_t len = 1 + 8 + CODEC_KEY_BYTES_MAX + 8 + CODEC_VALUE_BYTES_MAX;
    uint8_t *bytes = malloc(len), *got = malloc(CODEC_VALUE_BYTES_MAX + 8);
    assert_true(bytes && got);
    memset(bytes, 'x', len);
    bytes[0] = CODEC_SET;
    (void)put_u64(bytes, 1, CODEC_KEY_BYTES_MAX);
    (void)put_u64(bytes, 9 + CODEC_KEY_BYTES_MAX, CODEC_VALUE_BYTES_MAX);
    int fd = open_client(scene);
    send_all(scene, fd, bytes, len);
    bytes[0] = CODEC_GET;
    send_all(scene, fd, bytes, 9 + CODEC_KEY_BYTES_MAX);
    receive_all(scene, fd, got, CODEC_VALUE_BYTES_MAX + 8);
    assert_memory_equal(got + 8, bytes + len - CODEC_VALUE_BYTES_MAX, CODEC_VALUE_BYTES_MAX);
    serve_all(scene);
    /* What it took to receive and send them has been given back: only the value itself is left. */
    assert_true(scene->engine->machine.budget.used_bytes < CODEC_VALUE_BYTES_MAX + 3 * CODEC_KEY_BYTES_MAX);
    free(bytes);
    free(got);
    (void)close(fd);
}

static void half_a_request_has_no_effect(void **ctx) {
    struct scene *scene = *ctx;
    uint8_t bytes[TEXT_MAX];
    struct kv_slice value;
    size_t len = make(bytes, CODEC_SET, "/k", "value");
    int fd = open_client(scene);
    send_all(scene, fd, bytes, len - 1);
    serve_all(scene);
    assert_true(scene->engine->machine.budget.used_bytes > 0); /* the half is on the account */
    (void)close(fd);
    serve_all(scene);
    assert_int_equal(scene->ended, 1);
    assert_int_equal(scene->engine->machine.budget.used_bytes, 0);
    assert_false(kv_engine_get(scene->engine, kv_slice_text("/k"), &value));
}

static void a_multi_set_is_applied_when_it_is_complete(void **ctx) {
    struct scene *scene = *ctx;
    uint8_t bytes[TEXT_MAX] = {CODEC_MULTI_SET};
    struct kv_slice value;
    int fd = open_client(scene);
    size_t at = put_u64(bytes, 1, 2);
    at = put(bytes, put_u64(bytes, at, 1), "a", 1);
    at = put(bytes, put_u64(bytes, at, 1), "1", 1);
    at = put(bytes, put_u64(bytes, at, 1), "b", 1);
    at = put(bytes, put_u64(bytes, at, 1), "2", 1);
    for (size_t i = 0; i < at; i++) {
        serve_all(scene);
        assert_false(kv_engine_get(scene->engine, kv_slice_text("a"), &value));
        send_all(scene, fd, bytes + i, 1);
    }
    serve_all(scene);
    assert_true(kv_engine_get(scene->engine, kv_slice_text("a"), &value));
    assert_true(kv_engine_get(scene->engine, kv_slice_text("b"), &value));
    (void)close(fd);
}

static void waiting_clients_come_and_go(void **ctx) {
    struct scene *scene = *ctx;
    int waiter = open_client(scene), other = open_client(scene), setter = open_client(scene);
    request_wait(scene, waiter, "k");
    request_wait(scene, other, "k");
    expect_silence(scene, waiter);
    send_all(scene, waiter, "\x0dPING", 5); /* served while it waits */
    expect(scene, waiter, "PING", 4);
    (void)close(other); /* gone while waiting */
    serve_all(scene);
    request(scene, setter, CODEC_SET, "k", "v");
    expect(scene, waiter, "\0", 1);
    request_wait(scene, waiter, "never");
    send_all(scene, waiter, "\x0c", 1);
    expect(scene, waiter, "\1", 1);
    send_all(scene, waiter, "\x0c", 1);
    expect(scene, waiter, "\1", 1);
    assert_int_equal(kv_engine_set(scene->engine, kv_slice_text("never"), kv_slice_text("v")), 0);
    expect_silence(scene, waiter);
    request_wait(scene, setter, "host");
    serve_all(scene);
    assert_int_equal(kv_engine_set(scene->engine, kv_slice_text("host"), kv_slice_text("v")), 0); /* outside a turn */
    expect(scene, setter, "\0", 1);
    (void)close(waiter);
    (void)close(setter);
}

static void a_watch_goes_over_the_wire(void **ctx) {
    struct scene *scene = *ctx;
    int watcher = open_client(scene), setter = open_client(scene);
    request(scene, watcher, CODEC_WATCH, "k", "");
    expect_silence(scene, watcher);
    request(scene, setter, CODEC_SET, "k", "new");
    expect_bytes(scene, watcher, "new");
    request(scene, watcher, CODEC_WATCH, "k", "old");
    expect_bytes(scene, watcher, "new");
    (void)close(watcher);
    (void)close(setter);
}

static void replies_keep_their_order_in_a_pipeline(void **ctx) {
    enum { COUNT = 20000 };
    struct scene *scene = *ctx;
    int fd = open_client(scene);
    uint8_t request_bytes[TEXT_MAX], *all;
    size_t len = make(request_bytes, CODEC_ADD, "/n", NULL);
    len = put_u64(request_bytes, len, 1);
    all = malloc(len * COUNT);
    uint8_t *got = malloc(8 * COUNT);
    assert_true(all && got);
    for (size_t i = 0; i < COUNT; i++) {
        memcpy(all + i * len, request_bytes, len);
    }
    send_all(scene, fd, all, len * COUNT);
    receive_all(scene, fd, got, 8 * COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        uint8_t expected[8];
        (void)put_u64(expected, 0, i + 1);
        assert_memory_equal(got + 8 * i, expected, 8);
    }
    free(all);
    free(got);
    (void)close(fd);
}

/* Asks for `count` replies of 1 MiB without reading one. */
static int ask_and_do_not_read(struct scene *scene, size_t count) {
    uint8_t bytes[TEXT_MAX];
    uint8_t *value = calloc(1, 1 << 20);
    assert_non_null(value);
    assert_int_equal(kv_engine_set(scene->engine, kv_slice_text("large"), kv_slice_of(value, 1 << 20)), 0);
    free(value);
    int fd = open_client(scene);
    size_t len = make(bytes, CODEC_GET, "large", NULL);
    for (size_t i = 0; i < count; i++) {
        send_all(scene, fd, bytes, len);
    }
    serve_all(scene);
    return fd;
}

static void a_slow_reader_costs_little_and_gets_everything(void **ctx) {
    enum { COUNT = 200 };
    struct scene *scene = *ctx;
    int slow = ask_and_do_not_read(scene, COUNT), other = open_client(scene);
    /* One reply and what was read of its requests, not two hundred replies. */
    assert_true(scene->engine->machine.budget.used_bytes < 6 * (size_t)(1 << 20));
    request(scene, other, CODEC_GET, "k", NULL);
    expect_bytes(scene, other, "");
    uint8_t *got = malloc((1 << 20) + 8);
    assert_non_null(got);
    for (size_t i = 0; i < COUNT; i++) {
        uint8_t head[8];
        receive_all(scene, slow, got, (1 << 20) + 8);
        (void)put_u64(head, 0, 1 << 20);
        assert_memory_equal(got, head, 8);
    }
    free(got);
    expect_silence(scene, slow);
    assert_true(scene->engine->machine.budget.used_bytes < 2 * (size_t)(1 << 20));
    request(scene, slow, CODEC_GET, "k", NULL);
    expect_bytes(scene, slow, "");
    (void)close(slow);
    (void)close(other);
}

static void a_slow_reader_that_goes_is_forgotten(void **ctx) {
    struct scene *scene = *ctx;
    int slow = ask_and_do_not_read(scene, 50);
    struct linger linger = {.l_onoff = 1, .l_linger = 0};
    assert_int_equal(setsockopt(slow, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    (void)close(slow);
    serve_all(scene);
    assert_int_equal(scene->ended, 1);
    assert_int_equal(scene->engine->connection_count, 0);
    assert_true(scene->engine->machine.budget.used_bytes < 2 * (size_t)(1 << 20));
}

static void a_client_that_says_goodbye_still_gets_its_answers(void **ctx) {
    struct scene *scene = *ctx;
    int fd = ask_and_do_not_read(scene, 20);
    uint8_t *got = malloc((1 << 20) + 8);
    uint8_t byte;
    assert_non_null(got);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    for (size_t i = 0; i < 20; i++) {
        receive_all(scene, fd, got, (1 << 20) + 8);
    }
    free(got);
    serve_until(scene, fd, POLLIN);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    (void)close(fd);
}

static void a_full_store_drops_the_writer_only(void **ctx) {
    struct scene *scene = *ctx;
    uint8_t bytes[TEXT_MAX];
    static uint8_t content[1 << 20];
    kv_engine_free(scene->engine);
    start(scene, 0, 4 * 1024 * 1024);
    int good = open_client(scene), greedy = open_client(scene);
    for (int i = 0; i < 8; i++) { /* one incomplete request of 8 MiB: memory follows what has come, up to the limit */
        size_t len = i == 0 ? put_u64(bytes, put_u64(bytes, 1, 0), CODEC_VALUE_BYTES_MAX) : 0;
        bytes[0] = CODEC_SET;
        if (send(greedy, bytes, len, MSG_NOSIGNAL) < 0 || send(greedy, content, sizeof content, MSG_NOSIGNAL) < 0) {
            break; /* dropped already, or the socket is full */
        }
        serve_all(scene);
        assert_true(scene->engine->machine.budget.used_bytes <= 4 * 1024 * 1024);
    }
    expect_end(scene, greedy);
    assert_int_equal(scene->engine->machine.budget.used_bytes, 0);
    request(scene, good, CODEC_SET, "k", "v");
    request(scene, good, CODEC_GET, "k", NULL);
    expect_bytes(scene, good, "v");
    (void)close(good);
}

static void too_many_clients_are_turned_away(void **ctx) {
    struct scene *scene = *ctx;
    kv_engine_free(scene->engine);
    start(scene, 2, 0);
    int first = open_client(scene), second = open_client(scene), third = connect_raw(scene);
    expect_end(scene, third);
    (void)close(first);
    serve_all(scene);
    int fourth = open_client(scene);
    (void)close(second);
    (void)close(fourth);
}

static void descriptors_run_out_without_harm(void **ctx) {
    struct scene *scene = *ctx;
    struct rlimit before, tight;
    int good = open_client(scene);
    int late = connect_raw(scene); /* has its own descriptor, waits in the backlog */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    tight = (struct rlimit){.rlim_cur = (rlim_t)late + 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    expect_end(scene, late); /* closed, not left to make the listener ready for ever */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    serve_all(scene);
    request(scene, good, CODEC_GET, "k", NULL);
    expect_bytes(scene, good, "");
    int next = open_client(scene);
    (void)close(next);
    (void)close(good);
}

static bool is_ready(const struct scene *scene) {
    struct pollfd wait = {.fd = kv_engine_fd(scene->engine), .events = POLLIN};
    return poll(&wait, 1, 0) == 1;
}

/* Not even the spare descriptor is left: the client can be neither taken nor turned away. */
static void a_client_that_cannot_be_had_costs_no_time(void **ctx) {
    struct scene *scene = *ctx;
    struct rlimit before, tight;
    int good = open_client(scene);
    int late = connect_raw(scene);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    (void)close(scene->engine->spare_fd);
    scene->engine->spare_fd = -1;
    int filler = open("/dev/null", O_RDONLY | O_CLOEXEC); /* takes its place, and the lowest number */
    tight = (struct rlimit){.rlim_cur = (rlim_t)late + 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    for (int i = 0; i < 3 && is_ready(scene); i++) {
        kv_engine_turn(scene->engine);
    }
    assert_false(is_ready(scene)); /* nothing to do until something changes */
    (void)close(good);
    serve_all(scene); /* a descriptor is free again: the one that waited gets it */
    assert_int_equal(scene->engine->connection_count, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    int next = open_client(scene);
    assert_int_equal(scene->engine->connection_count, 2);
    assert_true(scene->engine->spare_fd >= 0);
    (void)close(next);
    (void)close(late);
    (void)close(filler);
}

static size_t used_bytes(void) {
#if __GLIBC_PREREQ(2, 33)
    return mallinfo2().uordblks;
#else
    return (size_t)mallinfo().uordblks;
#endif
}

static void idle_clients_cost_little(void **ctx) {
    enum { CLIENTS = 400 };
    struct scene *scene = *ctx;
    int fds[CLIENTS];
    size_t before = used_bytes();
    for (size_t i = 0; i < CLIENTS; i++) {
        fds[i] = open_client(scene);
    }
    size_t each = (used_bytes() - before) / CLIENTS;
    assert_int_equal(scene->engine->connection_count, CLIENTS);
    assert_true(each < 1024); /* a thousand of them: under 1 MiB */
    for (size_t i = 0; i < CLIENTS; i++) {
        (void)close(fds[i]);
    }
    serve_all(scene);
    assert_int_equal(scene->engine->connection_count, 0);
}

static void a_reset_reaches_clients_in_the_backlog(void **ctx) {
    struct scene *scene = *ctx;
    struct kv_slice value;
    int served = open_client(scene), queued = connect_raw(scene);
    send_all(scene, queued, store_handshake, STORE_HANDSHAKE_BYTES);
    request(scene, queued, CODEC_SET, "ghost", "v");
    request(scene, served, CODEC_SET, "ghost", "v");
    kv_engine_reset(scene->engine);
    assert_int_equal(scene->ended, 1);
    expect_end(scene, served);
    expect_end(scene, queued);
    assert_false(kv_engine_get(scene->engine, kv_slice_text("ghost"), &value));
    int fresh = open_client(scene);
    (void)close(fresh);
}

static bool keeps_connection(const void *ctx, uint64_t connection) {
    return connection == *(const uint64_t *)ctx;
}

static bool keeps_key(const void *ctx, struct kv_slice key) {
    (void)ctx;
    return key.len >= 4 && memcmp(key.data, "keep", 4) == 0;
}

/* So many keys that the table has several buckets; the client that stays goes on being served. */
static void a_reset_leaves_what_is_to_be_kept(void **ctx) {
    enum { KEYS = 100 };
    struct scene *scene = *ctx;
    struct kv_slice value;
    char key[16];
    int kept = open_client(scene), dropped = open_client(scene);
    uint64_t id = scene->engine->last_id - 1;
    for (int i = 0; i < KEYS; i++) {
        (void)snprintf(key, sizeof key, "%s%d", i % 2 ? "keep" : "drop", i);
        request(scene, dropped, CODEC_SET, key, "v");
    }
    serve_all(scene);
    kv_engine_reset_but(scene->engine, &(struct kv_keep){.connection = keeps_connection, .key = keeps_key, .ctx = &id});
    assert_int_equal(scene->ended, 1);
    expect_end(scene, dropped);
    for (int i = 0; i < KEYS; i++) {
        (void)snprintf(key, sizeof key, "%s%d", i % 2 ? "keep" : "drop", i);
        assert_int_equal(kv_engine_get(scene->engine, kv_slice_text(key), &value), i % 2);
    }
    request(scene, kept, CODEC_SET, "after", "v");
    serve_all(scene);
    assert_true(kv_engine_get(scene->engine, kv_slice_text("after"), &value));
    (void)close(kept);
}

/* ---- clients that say who they are ---- */

enum { NAMED_BYTES = 9 };

static void say_name(const struct scene *scene, int fd, uint8_t command, uint64_t name) {
    uint8_t bytes[NAMED_BYTES] = {command};
    send_all(scene, fd, bytes, put_u64(bytes, 1, name));
}

static int open_named(const struct scene *scene, uint64_t name) {
    int fd = open_client(scene);
    say_name(scene, fd, CODEC_CLIENT, name);
    serve_all(scene);
    return fd;
}

static int open_again(const struct scene *scene, uint64_t name, int64_t answer) {
    uint8_t bytes[8];
    int fd = open_client(scene);
    say_name(scene, fd, CODEC_RETURN, name);
    expect(scene, fd, bytes, put_u64(bytes, 0, (uint64_t)answer));
    return fd;
}

static void reset_by_peer(const struct scene *scene, int fd) {
    const struct linger linger = {.l_onoff = 1};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    (void)close(fd);
    serve_all(scene);
}

/* Nobody hears of the end of the old connection, and what comes on it has no effect. */
static void the_end_of_a_connection_that_is_replaced_is_none(void **ctx) {
    struct scene *scene = *ctx;
    struct kv_slice value;
    uint8_t bytes[TEXT_MAX];
    int before = open_named(scene, 77);
    uint64_t number = scene->engine->last_id;
    int now = connect_raw(scene);
    send_all(scene, now, store_handshake, STORE_HANDSHAKE_BYTES);
    say_name(scene, now, CODEC_RETURN, 77);
    expect(scene, now, "\0\0\0\0\0\0\0\0", 8);
    (void)send(before, bytes, make(bytes, CODEC_SET, "late", "v"), MSG_NOSIGNAL);
    expect_end(scene, before);
    serve_all(scene);
    assert_false(kv_engine_get(scene->engine, kv_slice_text("late"), &value));
    assert_int_equal(scene->ended, 0);
    assert_int_equal(scene->engine->connection_count, 1);
    (void)close(now);
    serve_all(scene);
    assert_int_equal(scene->ended, 1);
    assert_int_equal(scene->last_ended, number);
    assert_int_equal(scene->last_returned, 0);
}

static void how_a_connection_ended_is_told(void **ctx) {
    struct scene *scene = *ctx;
    int fd = open_client(scene);
    (void)close(fd);
    serve_all(scene);
    assert_int_equal(scene->ended, 1);
    assert_int_equal(scene->last_end, KV_END_TOLD);
    reset_by_peer(scene, open_client(scene));
    assert_int_equal(scene->ended, 2);
    assert_int_equal(scene->last_end, KV_END_TOLD);
    fd = open_client(scene);
    kv_connection_failed(scene->engine->connections, ETIMEDOUT); /* as recv() and send() say it */
    serve_all(scene);
    (void)close(fd);
    assert_int_equal(scene->ended, 3);
    assert_int_equal(scene->last_end, KV_END_SILENT);
    fd = open_client(scene);
    send_all(scene, fd, "\x7f", 1);
    expect_end(scene, fd);
    assert_int_equal(scene->ended, 4);
    assert_int_equal(scene->last_end, KV_END_DROPPED);
}

static void who_comes_back_is_told_and_who_cannot_is_refused(void **ctx) {
    struct scene *scene = *ctx;
    int fd = open_named(scene, 77);
    uint64_t number = scene->engine->last_id;
    kv_connection_failed(scene->engine->connections, EHOSTUNREACH);
    serve_all(scene);
    (void)close(fd);
    assert_int_equal(scene->last_ended, number);
    fd = open_again(scene, 77, 0);
    assert_int_equal(scene->last_returned, number);
    reset_by_peer(scene, fd); /* somebody on the way, perhaps */
    scene->last_returned = 0;
    fd = open_again(scene, 77, 0);
    assert_int_equal(scene->last_returned, number);
    (void)close(fd); /* in good order: its process is no more */
    serve_all(scene);
    (void)close(open_again(scene, 77, CODEC_UNKNOWN));
    serve_all(scene);
    assert_int_equal(scene->engine->machine.budget.used_bytes, 0);
}

static void a_reset_forgets_who_might_come_back_but_those_to_be_kept(void **ctx) {
    struct scene *scene = *ctx;
    int first = open_named(scene, 1);
    uint64_t id = scene->engine->last_id;
    reset_by_peer(scene, first);
    reset_by_peer(scene, open_named(scene, 2));
    kv_engine_reset_but(scene->engine, &(struct kv_keep){.connection = keeps_connection, .key = keeps_key, .ctx = &id});
    (void)close(open_again(scene, 2, CODEC_UNKNOWN));
    reset_by_peer(scene, open_again(scene, 1, 0));
    kv_engine_reset(scene->engine);
    (void)close(open_again(scene, 1, CODEC_UNKNOWN));
}

static void several_addresses_share_one_port(void **ctx) {
    struct scene *scene = *ctx;
    struct sockaddr_in first = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in second = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
    const struct sockaddr *addresses[2] = {(const struct sockaddr *)&first, (const struct sockaddr *)&second};
    struct kv_server_options options = {.addresses = addresses, .address_count = 2};
    kv_engine_free(scene->engine);
    scene->engine = NULL;
    assert_int_equal(kv_engine_create(&options, &scene->engine), 0);
    first.sin_port = second.sin_port = htons(kv_engine_port(scene->engine));
    scene->address = first;
    int a = open_client(scene);
    scene->address = second;
    int b = open_client(scene);
    request(scene, a, CODEC_SET, "k", "v");
    request(scene, a, CODEC_GET, "k", NULL);
    expect_bytes(scene, a, "v");
    request(scene, b, CODEC_GET, "k", NULL);
    expect_bytes(scene, b, "v");
    (void)close(a);
    (void)close(b);
}

/* 192.0.2.1 is of a net that no machine is in (RFC 5737). */
static void an_address_that_is_missing_is_left_out(void **ctx) {
    struct scene *scene = *ctx;
    struct sockaddr_in missing = {.sin_family = AF_INET}, present = {.sin_family = AF_INET}, at;
    assert_int_equal(inet_pton(AF_INET, "192.0.2.1", &missing.sin_addr), 1);
    present.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const struct sockaddr *addresses[2] = {(const struct sockaddr *)&missing, (const struct sockaddr *)&present};
    struct kv_server_options options = {.addresses = addresses, .address_count = 2};
    kv_engine_free(scene->engine);
    scene->engine = NULL;
    assert_int_equal(kv_engine_create(&options, &scene->engine), MUSTER_ESYSTEM);
    assert_int_equal(errno, EADDRNOTAVAIL);

    options.skips_absent = true;
    options.address_count = 1; /* nothing is left */
    assert_int_equal(kv_engine_create(&options, &scene->engine), MUSTER_ESYSTEM);
    assert_int_equal(errno, EADDRNOTAVAIL);
    assert_non_null(strstr(muster_detail(), "192.0.2.1"));

    for (int i = 0; i < 2; i++) { /* either place */
        options.address_count = 2;
        addresses[i] = (const struct sockaddr *)&missing;
        addresses[1 - i] = (const struct sockaddr *)&present;
        assert_int_equal(kv_engine_create(&options, &scene->engine), 0);
        memcpy(&at, kv_engine_address(scene->engine), sizeof at);
        assert_int_equal(at.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
        assert_int_equal(at.sin_port, htons(kv_engine_port(scene->engine)));
        scene->address = at;
        (void)close(open_client(scene));
        if (i == 0) {
            kv_engine_free(scene->engine);
            scene->engine = NULL;
        }
    }

    present.sin_port = htons(kv_engine_port(scene->engine)); /* a port that is taken is no address that is missing */
    struct kv_engine *second = NULL;
    assert_int_equal(kv_engine_create(&options, &second), MUSTER_ESYSTEM);
    assert_int_equal(errno, EADDRINUSE);
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE_TEST(any_segmentation_gives_the_same_answers),
        SCENE_TEST(strangers_are_dropped_at_once),
        SCENE_TEST(limits_drop_before_content_comes),
        SCENE_TEST(the_largest_key_and_value_pass),
        SCENE_TEST(half_a_request_has_no_effect),
        SCENE_TEST(a_multi_set_is_applied_when_it_is_complete),
        SCENE_TEST(waiting_clients_come_and_go),
        SCENE_TEST(a_watch_goes_over_the_wire),
        SCENE_TEST(replies_keep_their_order_in_a_pipeline),
        SCENE_TEST(a_slow_reader_costs_little_and_gets_everything),
        SCENE_TEST(a_slow_reader_that_goes_is_forgotten),
        SCENE_TEST(a_client_that_says_goodbye_still_gets_its_answers),
        SCENE_TEST(a_full_store_drops_the_writer_only),
        SCENE_TEST(too_many_clients_are_turned_away),
        SCENE_TEST(descriptors_run_out_without_harm),
        SCENE_TEST(a_client_that_cannot_be_had_costs_no_time),
        SCENE_TEST(idle_clients_cost_little),
        SCENE_TEST(a_reset_reaches_clients_in_the_backlog),
        SCENE_TEST(a_reset_leaves_what_is_to_be_kept),
        SCENE_TEST(the_end_of_a_connection_that_is_replaced_is_none),
        SCENE_TEST(how_a_connection_ended_is_told),
        SCENE_TEST(who_comes_back_is_told_and_who_cannot_is_refused),
        SCENE_TEST(a_reset_forgets_who_might_come_back_but_those_to_be_kept),
        SCENE_TEST(several_addresses_share_one_port),
        SCENE_TEST(an_address_that_is_missing_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
