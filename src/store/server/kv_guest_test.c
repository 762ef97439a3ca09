/* Another protocol on the store's port, beside its clients: whose connection is whose, messages in any pieces, ends of
 * all kinds, limits, and who does not read. The guest here echoes; a few messages ask for something else. */
#include "store/server/kv_guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "net/endpoint.h"
#include "store/server/kv_engine_test_support.h"

/* A message: 'G', its length in two bytes, its bytes. */
enum { HEAD_BYTES = 3, INPUT_MAX = 8192, GUESTS_MAX = 8, PIECE_BYTES = 60000 };

struct guest_scene {
    struct scene scene;
    struct kv_connection *seen[GUESTS_MAX]; /* in the order in which they came */
    size_t seen_count;
    unsigned served; /* calls */
    unsigned guests_ended;
    bool tells_others; /* when one has ended */
    char warning[512]; /* the last one */
};

static struct guest_scene *logged; /* the log knows no context */

static void keep_warning(enum log_level level, const char *file, int line, const char *text) {
    (void)file;
    (void)line;
    if (level == LOG_LEVEL_WARNING) {
        (void)snprintf(logged->warning, sizeof logged->warning, "%s", text);
    }
}

static void on_disconnect(void *ctx, uint64_t connection, enum kv_end end) {
    struct guest_scene *g = ctx;
    (void)end;
    assert_true(connection > 0);
    g->scene.ended++;
}

static bool says(const uint8_t *body, size_t len, const char *text) {
    return len == strlen(text) && memcmp(body, text, len) == 0;
}

static void tell_all(const struct guest_scene *g, const char *text) {
    for (size_t i = 0; i < g->seen_count; i++) {
        kv_guest_send(g->seen[i], text, strlen(text));
    }
}

/* One message; false: drop. */
static bool act(struct guest_scene *g, struct kv_connection *connection, const uint8_t *message, size_t len) {
    static const uint8_t piece[PIECE_BYTES];
    const uint8_t *body = message + HEAD_BYTES;
    size_t body_len = len - HEAD_BYTES;
    if (says(body, body_len, "drop")) {
        kv_guest_send(connection, "bad", 3);
        (void)status_fail(MUSTER_EPROTOCOL, "the guest does not like it");
        return false;
    }
    if (says(body, body_len, "end")) {
        kv_guest_send(connection, "bye", 3);
        kv_guest_end(connection);
        kv_guest_send(connection, "never", 5);
    } else if (says(body, body_len, "all")) {
        tell_all(g, "all");
    } else if (says(body, body_len, "piece")) {
        kv_guest_send(connection, piece, sizeof piece);
    } else if (says(body, body_len, "end others")) {
        for (size_t i = 0; i < g->seen_count; i++) {
            if (g->seen[i] != connection) {
                kv_guest_end(g->seen[i]);
            }
        }
    } else {
        kv_guest_send(connection, message, len);
    }
    return true;
}

static void note(struct guest_scene *g, struct kv_connection *connection) {
    if (!kv_guest_data(connection)) {
        assert_true(g->seen_count < GUESTS_MAX);
        kv_guest_set(connection, g);
        g->seen[g->seen_count++] = connection;
    }
    assert_ptr_equal(kv_guest_data(connection), g);
}

static size_t serve(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct guest_scene *g = ctx;
    assert_true(len > 0 && bytes[0] == 'G');
    note(g, connection);
    g->served++;
    size_t size = len < HEAD_BYTES ? HEAD_BYTES : HEAD_BYTES + bytes[1] + 256 * (size_t)bytes[2];
    if (len < size) {
        return 0;
    }
    return act(g, connection, bytes, size) ? size : SIZE_MAX;
}

static void on_ended(void *ctx, struct kv_connection *connection) {
    struct guest_scene *g = ctx;
    g->guests_ended++;
    for (size_t i = 0; i < g->seen_count; i++) {
        if (g->seen[i] == connection) {
            g->seen[i] = g->seen[--g->seen_count];
        }
    }
    if (g->tells_others) {
        tell_all(g, "gone");
    }
}

static int set_up(void **out) {
    struct guest_scene *g = calloc(1, sizeof *g);
    assert_non_null(g);
    struct kv_guest guest = {.first_byte = 'G', .input_max = INPUT_MAX, .serve = serve, .ended = on_ended, .ctx = g};
    scene_open(&g->scene, &(struct kv_server_options){.on_disconnect = on_disconnect, .ctx = g, .guest = &guest});
    memset(&guest, 0, sizeof guest); /* it has been copied */
    logged = g;
    log_set_sink(keep_warning);
    *out = g;
    return 0;
}

static int tear_down(void **ctx) {
    struct guest_scene *g = *ctx;
    kv_engine_free(g->scene.engine);
    log_set_sink(NULL);
    free(g);
    return 0;
}

static size_t make(uint8_t *out, const void *body, size_t len) {
    const uint8_t head[HEAD_BYTES] = {'G', (uint8_t)len, (uint8_t)(len >> 8)};
    memcpy(out, head, sizeof head);
    memcpy(out + HEAD_BYTES, body, len);
    return HEAD_BYTES + len;
}

static void say(const struct guest_scene *g, int fd, const char *text) {
    uint8_t bytes[256];
    send_all(&g->scene, fd, bytes, make(bytes, text, strlen(text)));
}

static void expect_echo(const struct guest_scene *g, int fd, const char *text) {
    uint8_t bytes[256];
    expect(&g->scene, fd, bytes, make(bytes, text, strlen(text)));
}

/* A guest's connection that has been served. */
static int open_guest(const struct guest_scene *g) {
    int fd = connect_raw(&g->scene);
    say(g, fd, "hello");
    expect_echo(g, fd, "hello");
    return fd;
}

static void ping(const struct guest_scene *g, int client) {
    send_all(&g->scene, client, "\x0dPING", 5);
    expect(&g->scene, client, "PING", 4);
}

static size_t used_bytes(const struct guest_scene *g) {
    return g->scene.engine->machine.budget.used_bytes;
}

static void guests_and_clients_side_by_side(void **ctx) {
    struct guest_scene *g = *ctx;
    int client = open_client(&g->scene), guest = open_guest(g), other = open_guest(g);
    ping(g, client);
    say(g, guest, "one");
    say(g, other, "two");
    expect_echo(g, other, "two");
    expect_echo(g, guest, "one");
    ping(g, client);
    assert_int_equal(g->seen_count, 2);
    assert_int_equal(g->scene.engine->connection_count, 3);
    (void)close(guest);
    (void)close(client);
    serve_all(&g->scene);
    assert_int_equal(g->guests_ended, 1);
    assert_int_equal(g->scene.ended, 1); /* the store's own is told of the client alone */
    say(g, other, "three");
    expect_echo(g, other, "three");
    (void)close(other);
}

static void a_guest_knows_its_peer(void **ctx) {
    struct guest_scene *g = *ctx;
    struct sockaddr_storage peer;
    struct sockaddr_in own;
    socklen_t len = sizeof own;
    int guest = open_guest(g);
    assert_int_equal(getsockname(guest, (struct sockaddr *)&own, &len), 0);
    kv_guest_peer(g->seen[0], &peer);
    assert_int_equal(peer.ss_family, AF_INET);
    assert_memory_equal(&((struct sockaddr_in *)&peer)->sin_addr, &own.sin_addr, sizeof own.sin_addr);
    assert_int_equal(net_address_port((struct sockaddr *)&peer), ntohs(own.sin_port));
    (void)close(guest);
}

static void messages_in_any_pieces(void **ctx) {
    struct guest_scene *g = *ctx;
    static uint8_t bytes[4 * INPUT_MAX], body[INPUT_MAX];
    static const size_t segments[] = {1, 2, 3, 7, 1000, sizeof bytes};
    size_t len = 0;
    for (size_t i = 0; i < sizeof body; i++) {
        body[i] = (uint8_t)(i * 7);
    }
    len += make(bytes + len, "short", 5);
    len += make(bytes + len, "", 0);
    len += make(bytes + len, body, INPUT_MAX - HEAD_BYTES); /* the longest */
    len += make(bytes + len, "last", 4);
    uint8_t *got = malloc(len);
    assert_non_null(got);
    for (size_t i = 0; i < sizeof segments / sizeof *segments; i++) {
        int fd = connect_raw(&g->scene);
        for (size_t at = 0; at < len; at += segments[i]) {
            send_all(&g->scene, fd, bytes + at, len - at < segments[i] ? len - at : segments[i]);
            serve_all(&g->scene);
        }
        receive_all(&g->scene, fd, got, len);
        assert_memory_equal(got, bytes, len);
        expect_silence(&g->scene, fd);
        assert_int_equal(used_bytes(g), 0); /* nothing stays in memory */
        (void)close(fd);
        serve_all(&g->scene);
    }
    free(got);
    assert_int_equal(g->guests_ended, sizeof segments / sizeof *segments);
}

static void only_the_first_byte_decides(void **ctx) {
    struct guest_scene *g = *ctx;
    int stranger = connect_raw(&g->scene), client = open_client(&g->scene), guest = open_guest(g);
    send_all(&g->scene, stranger, "H", 1);
    expect_end(&g->scene, stranger);
    stranger = connect_raw(&g->scene);
    send_all(&g->scene, stranger, store_handshake, 3); /* half of the store's handshake, then the guest's byte */
    serve_all(&g->scene);
    send_all(&g->scene, stranger, "GG", 2);
    expect_end(&g->scene, stranger);
    send_all(&g->scene, client, "G", 1); /* no command of the store's */
    expect_end(&g->scene, client);
    assert_int_equal(g->seen_count, 1);
    assert_int_equal(g->scene.ended, 3);
    assert_int_equal(g->guests_ended, 0);
    (void)close(guest);
}

static void without_a_guest_its_byte_is_a_strangers(void **ctx) {
    struct guest_scene *g = *ctx;
    kv_engine_free(g->scene.engine);
    scene_open(&g->scene, &(struct kv_server_options){.on_disconnect = on_disconnect, .ctx = g});
    int fd = connect_raw(&g->scene);
    say(g, fd, "hello");
    expect_end(&g->scene, fd);
    assert_int_equal(g->scene.ended, 1);
    assert_int_equal(g->served, 0);
}

static void the_guest_drops(void **ctx) {
    struct guest_scene *g = *ctx;
    int guest = open_guest(g), other = open_guest(g);
    say(g, guest, "drop");
    expect(&g->scene, guest, "bad", 3);
    expect_end(&g->scene, guest);
    assert_int_equal(g->guests_ended, 1);
    assert_non_null(strstr(g->warning, "the guest does not like it"));
    assert_non_null(strstr(g->warning, "127.0.0.1"));
    say(g, other, "still here");
    expect_echo(g, other, "still here");
    (void)close(other);
}

static void the_guest_ends(void **ctx) {
    struct guest_scene *g = *ctx;
    int guest = open_guest(g), other = open_guest(g);
    say(g, guest, "end");
    expect(&g->scene, guest, "bye", 3);
    expect_end(&g->scene, guest);
    assert_int_equal(g->guests_ended, 1);
    guest = open_guest(g);
    say(g, guest, "end others");
    expect_end(&g->scene, other);
    assert_int_equal(g->guests_ended, 2);
    kv_guest_end(g->seen[0]); /* outside a turn: a later one finds it */
    kv_guest_end(g->seen[0]);
    kv_guest_send(g->seen[0], "never", 5);
    assert_int_equal(g->guests_ended, 2);
    expect_end(&g->scene, guest);
    assert_int_equal(g->guests_ended, 3);
    assert_int_equal(g->scene.engine->connection_count, 0);
}

static void the_guest_drops_between_turns(void **ctx) {
    struct guest_scene *g = *ctx;
    int guest = open_guest(g);
    (void)status_fail(MUSTER_ETIMEOUT, "it has had its time");
    kv_guest_drop(g->seen[0]);
    kv_guest_drop(g->seen[0]);
    kv_guest_send(g->seen[0], "never", 5);
    assert_int_equal(g->guests_ended, 0);
    expect_end(&g->scene, guest);
    assert_int_equal(g->guests_ended, 1);
    assert_non_null(strstr(g->warning, "it has had its time"));
}

/* It has been told more than its socket takes: all of it arrives before the end. */
static void an_end_waits_for_what_is_owed(void **ctx) {
    enum { PIECES = 15 };
    struct guest_scene *g = *ctx;
    static const uint8_t piece[PIECE_BYTES];
    static uint8_t got[PIECE_BYTES];
    int guest = open_guest(g), size = 4096;
    assert_int_equal(setsockopt(g->seen[0]->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
    for (size_t i = 0; i < PIECES; i++) {
        kv_guest_send(g->seen[0], piece, sizeof piece);
    }
    kv_guest_end(g->seen[0]);
    say(g, guest, "never read"); /* and not an echo either */
    serve_all(&g->scene);
    assert_int_equal(g->guests_ended, 0);
    for (size_t i = 0; i < PIECES; i++) {
        receive_all(&g->scene, guest, got, PIECE_BYTES);
    }
    expect_end(&g->scene, guest);
    assert_int_equal(g->guests_ended, 1);
    assert_int_equal(used_bytes(g), 0);
}

static void others_are_told_from_anywhere(void **ctx) {
    struct guest_scene *g = *ctx;
    int first = open_guest(g), second = open_guest(g), third = open_guest(g);
    say(g, first, "all"); /* while one is served */
    expect(&g->scene, first, "all", 3);
    expect(&g->scene, second, "all", 3);
    expect(&g->scene, third, "all", 3);
    tell_all(g, "tick"); /* outside a turn */
    expect(&g->scene, second, "tick", 4);
    g->tells_others = true; /* while one ends */
    (void)close(first);
    serve_all(&g->scene);
    expect(&g->scene, second, "gone", 4);
    expect(&g->scene, third, "tickgone", 8);
    (void)close(second);
    (void)close(third);
    serve_all(&g->scene);
    assert_int_equal(g->guests_ended, 3);
}

static void half_a_message_at_the_end(void **ctx) {
    struct guest_scene *g = *ctx;
    uint8_t bytes[256];
    size_t len = make(bytes, "never whole", 11);
    int guest = open_guest(g);
    send_all(&g->scene, guest, bytes, len - 1);
    serve_all(&g->scene);
    assert_true(used_bytes(g) > 0); /* the half is on the account */
    assert_int_equal(g->guests_ended, 0);
    (void)close(guest);
    serve_all(&g->scene);
    assert_int_equal(g->guests_ended, 1);
    assert_int_equal(used_bytes(g), 0);
    assert_string_equal(g->warning, "");
}

static void a_message_that_is_too_long(void **ctx) {
    struct guest_scene *g = *ctx;
    static uint8_t bytes[INPUT_MAX] = {'G', 0xff, 0xff};
    int guest = open_guest(g);
    send_all(&g->scene, guest, bytes, INPUT_MAX - 1);
    expect_silence(&g->scene, guest);
    send_all(&g->scene, guest, bytes, 1);
    expect_end(&g->scene, guest);
    assert_int_equal(g->guests_ended, 1);
    assert_non_null(strstr(g->warning, "8192 bytes"));
    assert_int_equal(used_bytes(g), 0);
}

/* Asks for far more than it reads: it is not served while it owes, and gets everything. */
static void a_slow_reader_is_paused(void **ctx) {
    enum { PIECES = 200 };
    struct guest_scene *g = *ctx;
    static uint8_t got[PIECE_BYTES];
    int guest = open_guest(g), client = open_client(&g->scene);
    for (size_t i = 0; i < PIECES; i++) {
        say(g, guest, "piece");
    }
    serve_all(&g->scene);
    assert_true(g->served < PIECES);
    assert_true(used_bytes(g) > 0 && used_bytes(g) < 3 * (size_t)(1 << 20));
    ping(g, client);
    for (size_t i = 0; i < PIECES; i++) {
        receive_all(&g->scene, guest, got, PIECE_BYTES);
    }
    expect_silence(&g->scene, guest);
    assert_int_equal(used_bytes(g), 0);
    say(g, guest, "again");
    expect_echo(g, guest, "again");
    (void)close(guest);
    (void)close(client);
}

/* It is told without having asked: beyond a limit it is dropped, and only it. */
static void who_never_reads_is_dropped(void **ctx) {
    struct guest_scene *g = *ctx;
    static const uint8_t piece[PIECE_BYTES];
    int deaf = open_guest(g), other = open_guest(g);
    for (size_t i = 0; i < 1000 && g->guests_ended == 0; i++) {
        kv_guest_send(g->seen[0], piece, sizeof piece);
        serve_all(&g->scene);
        assert_true(used_bytes(g) <= 2 * KV_GUEST_OUTPUT_BYTES_MAX);
    }
    assert_int_equal(g->guests_ended, 1);
    assert_non_null(strstr(g->warning, "does not read"));
    assert_int_equal(used_bytes(g), 0);
    say(g, other, "fine");
    expect_echo(g, other, "fine");
    (void)close(deaf);
    (void)close(other);
}

static void a_full_store_drops_the_guest(void **ctx) {
    struct guest_scene *g = *ctx;
    static const uint8_t piece[PIECE_BYTES];
    int guest = open_guest(g), client = open_client(&g->scene);
    g->scene.engine->machine.budget.max_bytes = 1000;
    for (size_t i = 0; i < 1000 && g->guests_ended == 0; i++) {
        kv_guest_send(g->seen[0], piece, sizeof piece);
        serve_all(&g->scene);
    }
    assert_int_equal(g->guests_ended, 1);
    assert_int_equal(used_bytes(g), 0);
    ping(g, client);
    (void)close(guest);
    (void)close(client);
}

static void a_reset_ends_guests(void **ctx) {
    struct guest_scene *g = *ctx;
    int first = open_guest(g), second = open_guest(g), client = open_client(&g->scene);
    g->tells_others = true; /* nobody is left to hear it */
    kv_engine_reset(g->scene.engine);
    assert_int_equal(g->guests_ended, 2);
    assert_int_equal(g->scene.ended, 1);
    expect_end(&g->scene, first);
    expect_end(&g->scene, second);
    expect_end(&g->scene, client);
    assert_int_equal(used_bytes(g), 0);
    int fresh = open_guest(g);
    (void)close(fresh);
}

/* ---- those who have not shown what they are for ---- */

static int connect_from(const struct guest_scene *g, uint32_t last) {
    const struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + last)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&own, sizeof own), 0);
    int rc = connect(fd, (const struct sockaddr *)&g->scene.address, sizeof g->scene.address);
    assert_true(rc == 0 || errno == EINPROGRESS);
    serve_all(&g->scene);
    return fd;
}

static void limit_scene(struct guest_scene *g, size_t newcomers_max, size_t strangers_max) {
    struct kv_guest guest = {.first_byte = 'G', .input_max = INPUT_MAX, .serve = serve, .ended = on_ended, .ctx = g};
    kv_engine_free(g->scene.engine);
    scene_open(&g->scene, &(struct kv_server_options){
                              .guest = &guest, .newcomers_max = newcomers_max, .strangers_max = strangers_max});
}

static void a_silent_flood_pushes_out_itself(void **ctx) {
    enum { MAX = 4, MANY = 40 };
    struct guest_scene *g = *ctx;
    int flood[MANY];
    limit_scene(g, MAX, MAX);
    int client = open_client(&g->scene), quiet = connect_from(g, 2), half = connect_from(g, 3);
    send_all(&g->scene, half, store_handshake, 2); /* a part of a handshake is no more than silence */
    for (int i = 0; i < MANY; i++) {
        flood[i] = connect_from(g, 1);
        if (i >= MAX - 2) {
            expect_end(&g->scene, flood[i - (MAX - 2)]);
        }
        ping(g, client);
    }
    assert_non_null(strstr(g->warning, "have said nothing"));
    assert_int_equal(g->scene.engine->connection_count, 1 + MAX);
    send_all(&g->scene, half, store_handshake + 2, STORE_HANDSHAKE_BYTES - 2);
    ping(g, half);
    say(g, quiet, "hello"); /* late, and served all the same */
    expect_echo(g, quiet, "hello");
    int closed[] = {client, quiet, half, flood[MANY - 1], flood[MANY - 2]};
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        (void)close(closed[i]);
    }
}

static void a_flood_of_strangers_pushes_out_itself(void **ctx) {
    enum { MAX = 3, MANY = 40 };
    struct guest_scene *g = *ctx;
    int flood[MANY];
    limit_scene(g, MAX, MAX);
    int slow = connect_from(g, 2), settled = connect_from(g, 1);
    send_all(&g->scene, slow, "G", 1);
    say(g, settled, "hello");
    expect_echo(g, settled, "hello");
    kv_guest_settle(g->seen[1]);
    for (int i = 0; i < MANY; i++) {
        flood[i] = connect_from(g, 1);
        send_all(&g->scene, flood[i], "G", 1);
        if (i >= MAX - 1) {
            expect_end(&g->scene, flood[i - (MAX - 1)]);
        }
    }
    assert_non_null(strstr(g->warning, "have not shown what they want"));
    say(g, settled, "hello");
    expect_echo(g, settled, "hello");
    send_all(&g->scene, slow, "\0\0", 2);
    expect(&g->scene, slow, "G\0\0", 3);
    int closed[] = {slow, settled, flood[MANY - 1], flood[MANY - 2]};
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        (void)close(closed[i]);
    }
}

static void the_end_of_the_engine_tells_nobody(void **ctx) {
    struct guest_scene *g = *ctx;
    uint8_t byte;
    int guest = open_guest(g), half = connect_raw(&g->scene);
    send_all(&g->scene, half, "G", 1);
    serve_all(&g->scene);
    assert_int_equal(g->seen_count, 2);
    kv_engine_free(g->scene.engine);
    g->scene.engine = NULL;
    assert_int_equal(g->guests_ended, 0);
    assert_int_equal(recv(guest, &byte, 1, 0), 0);
    (void)close(guest);
    (void)close(half);
}

#define GUEST_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        GUEST_TEST(guests_and_clients_side_by_side),
        GUEST_TEST(a_guest_knows_its_peer),
        GUEST_TEST(messages_in_any_pieces),
        GUEST_TEST(only_the_first_byte_decides),
        GUEST_TEST(without_a_guest_its_byte_is_a_strangers),
        GUEST_TEST(the_guest_drops),
        GUEST_TEST(the_guest_drops_between_turns),
        GUEST_TEST(the_guest_ends),
        GUEST_TEST(an_end_waits_for_what_is_owed),
        GUEST_TEST(others_are_told_from_anywhere),
        GUEST_TEST(half_a_message_at_the_end),
        GUEST_TEST(a_message_that_is_too_long),
        GUEST_TEST(a_slow_reader_is_paused),
        GUEST_TEST(who_never_reads_is_dropped),
        GUEST_TEST(a_full_store_drops_the_guest),
        GUEST_TEST(a_reset_ends_guests),
        GUEST_TEST(a_silent_flood_pushes_out_itself),
        GUEST_TEST(a_flood_of_strangers_pushes_out_itself),
        GUEST_TEST(the_end_of_the_engine_tells_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
