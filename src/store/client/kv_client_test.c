/* The asynchronous client against the server, both on one libuv loop over loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "store/client/kv_client.h"
#include "store/server/kv_server.h"
#include "store/wire/codec.h"

enum { GIVE_UP_MS = 120 * 1000 }; /* of a machine that is busy with other tests */

struct change {
    uint64_t connection;
    char key[32];
    char value[32];
};

struct scene {
    uv_loop_t loop;
    uv_timer_t watchdog;
    bool expired;
    struct kv_server *server;
    struct sockaddr_in address;
    struct change changes[64];
    size_t change_count;
    uint64_t ended[16];
    size_t ended_count;
    enum kv_end last_end;
    struct kv_client *clients[8];
    size_t client_count;
    char path[64]; /* of a file to be removed; empty: none */
};

/* What a callback left behind. */
struct answer {
    bool came;
    int status;
    int64_t number;
    size_t value_count;
    char values[4][64];
    char detail[256];
};

struct state {
    unsigned calls;
    int status;
    char detail[256];
};

static void keep_text(char *out, size_t size, struct kv_slice slice) {
    assert_true(slice.len < size);
    if (slice.len > 0) {
        memcpy(out, slice.data, slice.len);
    }
    out[slice.len] = '\0';
}

static void on_answer(void *ctx, const struct kv_reply *reply) {
    struct answer *answer = ctx;
    assert_false(answer->came);
    answer->came = true;
    answer->status = reply->status;
    answer->number = reply->number;
    answer->value_count = reply->value_count;
    for (size_t i = 0; i < reply->value_count && i < 4; i++) {
        keep_text(answer->values[i], sizeof answer->values[i], reply->values[i]);
    }
    if (reply->status) {
        (void)snprintf(answer->detail, sizeof answer->detail, "%s", muster_detail());
    }
}

static void on_state(void *ctx, int status) {
    struct state *state = ctx;
    state->calls++;
    state->status = status;
    if (status) {
        (void)snprintf(state->detail, sizeof state->detail, "%s", muster_detail());
    }
}

static void on_change(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                      struct kv_slice new_value) {
    struct scene *scene = ctx;
    (void)old_value;
    if (scene->change_count == 64 || key.len >= sizeof scene->changes[0].key) {
        return;
    }
    struct change *change = &scene->changes[scene->change_count++];
    change->connection = connection;
    keep_text(change->key, sizeof change->key, key);
    new_value.len = new_value.len < sizeof change->value ? new_value.len : sizeof change->value - 1;
    keep_text(change->value, sizeof change->value, new_value);
}

static void on_disconnect(void *ctx, uint64_t connection, enum kv_end end) {
    struct scene *scene = ctx;
    assert_true(scene->ended_count < 16);
    scene->ended[scene->ended_count++] = connection;
    scene->last_end = end;
}

static void on_watchdog(uv_timer_t *timer) {
    struct scene *scene = timer->data;
    scene->expired = true;
}

static void start_server(struct scene *scene) {
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&scene->address};
    struct kv_server_options options = {.addresses = addresses,
                                        .address_count = 1,
                                        .on_change = on_change,
                                        .on_disconnect = on_disconnect,
                                        .ctx = scene};
    assert_int_equal(kv_server_create(&scene->loop, &options, &scene->server), 0);
    scene->address.sin_port = htons(kv_server_port(scene->server));
}

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    assert_int_equal(uv_loop_init(&scene->loop), 0);
    assert_int_equal(uv_timer_init(&scene->loop, &scene->watchdog), 0);
    scene->watchdog.data = scene;
    assert_int_equal(uv_timer_start(&scene->watchdog, on_watchdog, GIVE_UP_MS, 0), 0);
    scene->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    start_server(scene);
    *out = scene;
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    for (size_t i = 0; i < scene->client_count; i++) {
        kv_client_close(scene->clients[i]);
    }
    if (scene->path[0] != '\0') {
        assert_int_equal(unlink(scene->path), 0);
    }
    kv_server_close(scene->server);
    uv_close((uv_handle_t *)&scene->watchdog, NULL);
    assert_int_equal(uv_run(&scene->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&scene->loop), 0);
    free(scene);
    return 0;
}

#define RUN_UNTIL(scene, condition)                                                                                    \
    while (!(condition)) {                                                                                             \
        assert_false((scene)->expired);                                                                                \
        (void)uv_run(&(scene)->loop, UV_RUN_ONCE);                                                                     \
    }

static struct kv_client *new_client(struct scene *scene, struct state *state, uint64_t timeout_ms) {
    struct kv_client *client = NULL;
    assert_int_equal(
        kv_client_create(&scene->loop, (const struct sockaddr *)&scene->address, timeout_ms, on_state, state, &client),
        0);
    scene->clients[scene->client_count++] = client;
    return client;
}

static struct kv_client *connected_client(struct scene *scene, struct state *state) {
    struct kv_client *client = new_client(scene, state, GIVE_UP_MS);
    RUN_UNTIL(scene, state->calls > 0);
    assert_int_equal(state->status, 0);
    return client;
}

static void forget_client(struct scene *scene, struct kv_client *client) {
    for (size_t i = 0; i < scene->client_count; i++) {
        if (scene->clients[i] == client) {
            scene->clients[i] = scene->clients[--scene->client_count];
        }
    }
}

static void requests_before_the_connection_stands_are_queued(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer set = {0}, get = {0}, add = {0};
    struct kv_client *client = new_client(scene, &state, GIVE_UP_MS);
    assert_int_equal(kv_client_set(client, "k", kv_slice_text("v"), on_answer, &set), 0);
    assert_int_equal(kv_client_get(client, "k", true, 0, on_answer, &get), 0);
    assert_int_equal(kv_client_add(client, "n", 5, on_answer, &add), 0);
    RUN_UNTIL(scene, add.came);
    assert_true(set.came && get.came);
    assert_int_equal(set.status | get.status | add.status, 0);
    assert_string_equal(get.values[0], "v");
    assert_int_equal(add.number, 5);
    assert_int_equal(state.calls, 1);
    assert_true(kv_client_server_is_muster(client));
    assert_int_equal(scene->change_count, 2);
    assert_string_equal(scene->changes[0].key, "/k");
    assert_true(scene->changes[0].connection > 0);
}

static void every_operation_answers(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct kv_client *client = connected_client(scene, &state);
    struct answer cas = {0}, lost = {0}, many = {0}, check = {0}, absent = {0}, gone = {0}, wait = {0}, init = {0};
    const char *keys[] = {"a", "b"};
    const char *other[] = {"a", "nowhere"};
    struct kv_slice values[] = {kv_slice_text("1"), kv_slice_text("")};
    assert_int_equal(kv_client_compare_set(client, "c", kv_slice_text(""), kv_slice_text("new"), on_answer, &cas), 0);
    assert_int_equal(kv_client_compare_set(client, "c", kv_slice_text("x"), kv_slice_text("y"), on_answer, &lost), 0);
    assert_int_equal(kv_client_multi_set(client, keys, values, 2, NULL, NULL), 0);
    assert_int_equal(kv_client_multi_get(client, keys, 2, 0, on_answer, &many), 0);
    assert_int_equal(kv_client_check(client, keys, 2, on_answer, &check), 0);
    assert_int_equal(kv_client_check(client, other, 2, on_answer, &absent), 0);
    assert_int_equal(kv_client_delete(client, "a", on_answer, &gone), 0);
    assert_int_equal(kv_client_wait(client, keys + 1, 1, 0, on_answer, &wait), 0);
    assert_int_equal(kv_client_add_init(client, NULL, NULL), 0);
    assert_int_equal(kv_client_get_init(client, on_answer, &init), 0);
    RUN_UNTIL(scene, init.came);
    assert_string_equal(cas.values[0], "new");
    assert_string_equal(lost.values[0], "new");
    assert_int_equal(many.value_count, 2);
    assert_string_equal(many.values[0], "1");
    assert_string_equal(many.values[1], "");
    assert_int_equal(check.number, 1);
    assert_int_equal(absent.number, 0);
    assert_int_equal(gone.number, 1);
    assert_true(wait.came && wait.status == 0);
    assert_string_equal(init.values[0], "1");
    struct kv_slice raw;
    assert_true(kv_server_get(scene->server, kv_slice_text("init/"), &raw));
}

static void all_keys_are_listed(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct kv_client *client = connected_client(scene, &state);
    struct answer none = {0}, two = {0};
    assert_int_equal(kv_client_list_keys(client, on_answer, &none), 0);
    assert_int_equal(kv_client_set(client, "only", kv_slice_text("1"), NULL, NULL), 0);
    assert_int_equal(kv_client_add_init(client, NULL, NULL), 0);
    assert_int_equal(kv_client_list_keys(client, on_answer, &two), 0);
    RUN_UNTIL(scene, two.came);
    assert_int_equal(none.status | two.status, 0);
    assert_int_equal(none.value_count, 0);
    assert_int_equal(two.number, 2);
    assert_int_equal(two.value_count, 2);
    size_t user = two.values[0][0] == '/' ? 0 : 1; /* in no order */
    assert_string_equal(two.values[user], "/only");
    assert_string_equal(two.values[1 - user], "init/");
}

static void a_wait_ends_when_another_client_sets(void **ctx) {
    struct scene *scene = *ctx;
    struct state first_state = {0}, second_state = {0};
    struct kv_client *first = connected_client(scene, &first_state), *second = connected_client(scene, &second_state);
    struct answer wait = {0}, behind = {0}, other = {0};
    const char *keys[] = {"late"};
    assert_int_equal(kv_client_wait(first, keys, 1, 0, on_answer, &wait), 0);
    assert_int_equal(kv_client_check(first, keys, 1, on_answer, &behind), 0);
    assert_int_equal(kv_client_check(second, keys, 1, on_answer, &other), 0);
    RUN_UNTIL(scene, other.came);
    assert_false(wait.came || behind.came);
    assert_int_equal(kv_client_set(second, "late", kv_slice_text("x"), NULL, NULL), 0);
    RUN_UNTIL(scene, behind.came);
    assert_true(wait.came && wait.status == 0);
    assert_int_equal(behind.number, 1);
}

static void a_wait_times_out_and_the_connection_lives_on(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct kv_client *client = connected_client(scene, &state);
    struct answer wait = {0}, get = {0}, add = {0};
    const char *keys[] = {"never", "nowhere"};
    assert_int_equal(kv_client_wait(client, keys, 2, 20, on_answer, &wait), 0);
    assert_int_equal(kv_client_get(client, "never", true, 20, on_answer, &get), 0);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    RUN_UNTIL(scene, add.came);
    assert_int_equal(wait.status, MUSTER_ETIMEOUT);
    assert_non_null(strstr(wait.detail, "wait timeout after 20ms"));
    assert_non_null(strstr(wait.detail, "keys: /never, /nowhere"));
    assert_int_equal(get.status, MUSTER_ETIMEOUT);
    assert_int_equal(add.status, 0);
    assert_int_equal(state.calls, 1);
}

static void a_watch_answers_with_the_changed_value(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0}, writer_state = {0};
    struct kv_client *client = connected_client(scene, &state), *writer = connected_client(scene, &writer_state);
    struct answer first = {0}, second = {0}, third = {0}, same = {0};
    assert_int_equal(kv_client_watch(client, "w", kv_slice_text(""), on_answer, &first), 0);
    assert_int_equal(kv_client_set(writer, "w", kv_slice_text(""), on_answer, &same), 0); /* empty is as absent */
    RUN_UNTIL(scene, same.came);
    assert_false(first.came);
    assert_int_equal(kv_server_set(scene->server, kv_slice_text("/w"), kv_slice_text("one")), 0);
    RUN_UNTIL(scene, first.came);
    assert_string_equal(first.values[0], "one");
    assert_int_equal(kv_client_watch(client, "w", kv_slice_text("zero"), on_answer, &second), 0);
    RUN_UNTIL(scene, second.came); /* differs already */
    assert_string_equal(second.values[0], "one");
    assert_int_equal(kv_client_watch(client, "w", kv_slice_text("one"), on_answer, &third), 0);
    assert_int_equal(kv_client_delete(writer, "w", NULL, NULL), 0);
    RUN_UNTIL(scene, third.came);
    assert_int_equal(third.value_count, 1);
    assert_string_equal(third.values[0], "");
}

/* ---- a file instead of a server ---- */

/* UV_RUN_ONCE would go on from a timer, which is all that happens with a file, to waiting for a descriptor. */
#define RUN_TIMERS_UNTIL(scene, condition)                                                                             \
    while (!(condition)) {                                                                                             \
        assert_false((scene)->expired);                                                                                \
        (void)uv_run(&(scene)->loop, UV_RUN_NOWAIT);                                                                   \
    }

/* An empty file, which is removed after the test. */
static const char *file_path(struct scene *scene) {
    (void)snprintf(scene->path, sizeof scene->path, "/tmp/kv_client_test.XXXXXX");
    int fd = mkstemp(scene->path);
    assert_true(fd >= 0);
    (void)close(fd);
    return scene->path;
}

static struct kv_client *file_client(struct scene *scene, struct state *state, const char *path) {
    struct kv_client *client = NULL;
    assert_int_equal(kv_client_create_file(&scene->loop, path, GIVE_UP_MS, on_state, state, &client), 0);
    scene->clients[scene->client_count++] = client;
    RUN_TIMERS_UNTIL(scene, state->calls > 0);
    assert_int_equal(state->status, 0);
    return client;
}

static void a_file_answers_as_a_server_does(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    const char *path = file_path(scene);
    struct kv_client *client = file_client(scene, &state, path);
    struct answer cas = {0}, lost = {0}, many = {0}, check = {0}, absent = {0}, empty = {0}, set = {0}, add = {0},
                  gone = {0}, list = {0};
    const char *keys[] = {"a", "b"};
    const char *other[] = {"a", "nowhere"};
    struct kv_slice values[] = {kv_slice_text("1"), kv_slice_text("")};
    assert_false(kv_client_server_is_muster(client));
    assert_int_equal(kv_client_compare_set(client, "c", kv_slice_text(""), kv_slice_text("new"), on_answer, &cas), 0);
    assert_int_equal(kv_client_compare_set(client, "c", kv_slice_text("x"), kv_slice_text("y"), on_answer, &lost), 0);
    assert_int_equal(kv_client_multi_set(client, keys, values, 2, NULL, NULL), 0);
    assert_int_equal(kv_client_multi_get(client, keys, 2, 0, on_answer, &many), 0);
    assert_int_equal(kv_client_check(client, keys, 2, on_answer, &check), 0);
    assert_int_equal(kv_client_check(client, other, 2, on_answer, &absent), 0);
    assert_int_equal(kv_client_get(client, "nowhere", false, 0, on_answer, &empty), 0);
    assert_int_equal(kv_client_set(client, "n", kv_slice_text("40"), on_answer, &set), 0);
    assert_int_equal(kv_client_add(client, "n", 2, on_answer, &add), 0);
    assert_int_equal(kv_client_list_keys(client, on_answer, &list), 0);
    assert_int_equal(kv_client_delete(client, "a", on_answer, &gone), 0);
    RUN_TIMERS_UNTIL(scene, gone.came);
    assert_string_equal(cas.values[0], "new");
    assert_string_equal(lost.values[0], "new");
    assert_int_equal(many.value_count, 2);
    assert_string_equal(many.values[0], "1");
    assert_string_equal(many.values[1], "");
    assert_int_equal(check.number, 1);
    assert_int_equal(absent.number, 0);
    assert_int_equal(empty.value_count, 1);
    assert_string_equal(empty.values[0], "");
    assert_true(set.came && set.status == 0);
    assert_int_equal(add.number, 42);
    assert_int_equal(list.status, MUSTER_EUNSUPPORTED); /* and the rest goes on */
    assert_int_equal(gone.number, 1);
    assert_int_equal(state.calls, 1);
}

static void a_wait_on_a_file_ends_by_another_client_or_by_time(void **ctx) {
    struct scene *scene = *ctx;
    struct state first_state = {0}, second_state = {0};
    const char *path = file_path(scene);
    struct kv_client *first = file_client(scene, &first_state, path), *second = file_client(scene, &second_state, path);
    struct answer never = {0}, late = {0}, behind = {0}, watch = {0};
    const char *keys[] = {"never"};
    assert_int_equal(kv_client_wait(first, keys, 1, 30, on_answer, &never), 0);
    assert_int_equal(kv_client_get(first, "late", true, GIVE_UP_MS, on_answer, &late), 0);
    assert_int_equal(kv_client_check(first, keys, 1, on_answer, &behind), 0);
    RUN_TIMERS_UNTIL(scene, never.came);
    assert_int_equal(never.status, MUSTER_ETIMEOUT);
    assert_false(late.came || behind.came);
    assert_int_equal(kv_client_set(second, "late", kv_slice_text("now"), NULL, NULL), 0);
    RUN_TIMERS_UNTIL(scene, behind.came);
    assert_string_equal(late.values[0], "now");
    assert_int_equal(kv_client_watch(first, "late", kv_slice_text(""), on_answer, &watch), MUSTER_EUNSUPPORTED);
}

static void a_file_that_cannot_be_is_told(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer set = {0};
    struct kv_client *client = NULL;
    assert_int_equal(kv_client_create_file(&scene->loop, "/nowhere/at/all", GIVE_UP_MS, on_state, &state, &client), 0);
    scene->clients[scene->client_count++] = client;
    assert_int_equal(kv_client_set(client, "k", kv_slice_text("v"), on_answer, &set), 0);
    RUN_TIMERS_UNTIL(scene, state.calls > 0);
    assert_int_equal(state.status, MUSTER_ESYSTEM);
    assert_non_null(strstr(state.detail, "/nowhere/at/all"));
    assert_int_equal(set.status, MUSTER_ECONNECT);
}

static void a_reset_drops_clients_and_keys_but_not_the_port(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0}, fresh_state = {0};
    struct kv_client *client = connected_client(scene, &state);
    struct answer set = {0}, wait = {0}, check = {0};
    const char *keys[] = {"k"}, *never[] = {"never"};
    assert_int_equal(kv_client_set(client, "k", kv_slice_text("v"), on_answer, &set), 0);
    RUN_UNTIL(scene, set.came);
    assert_int_equal(kv_client_wait(client, never, 1, 0, on_answer, &wait), 0);
    /* Bytes under way when the reset comes: this SET was sent, but the server has not had its turn. */
    assert_int_equal(kv_client_set(client, "ghost", kv_slice_text("v"), NULL, NULL), 0);
    kv_server_reset(scene->server);
    assert_int_equal(scene->ended_count, 1);
    RUN_UNTIL(scene, state.calls == 2);
    assert_int_equal(state.status, MUSTER_ECONNECT);
    assert_non_null(strstr(state.detail, "lost"));
    assert_int_equal(wait.status, MUSTER_ECONNECT);
    assert_int_equal(kv_client_check(client, keys, 1, on_answer, &check), MUSTER_ECLOSED);
    client = connected_client(scene, &fresh_state);
    assert_int_equal(kv_client_check(client, keys, 1, on_answer, &check), 0);
    RUN_UNTIL(scene, check.came);
    assert_int_equal(check.number, 0);
    struct kv_slice ghost;
    assert_false(kv_server_get(scene->server, kv_slice_text("/ghost"), &ghost));
}

static void the_host_hears_of_a_client_that_goes(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer set = {0};
    struct kv_client *client = connected_client(scene, &state);
    assert_int_equal(kv_client_set(client, "k", kv_slice_text("v"), on_answer, &set), 0);
    RUN_UNTIL(scene, set.came);
    kv_client_close(client);
    forget_client(scene, client);
    RUN_UNTIL(scene, scene->ended_count == 1);
    assert_int_equal(scene->ended[0], scene->changes[0].connection);
}

/* A port where nobody listens, and which no other program is given while the socket is open. */
static int port_without_server(struct scene *scene) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0); /* for the server that comes later */
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, len), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    kv_server_close(scene->server);
    scene->server = NULL;
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    scene->address = address;
    return fd;
}

static void a_server_that_starts_later_is_found(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    int fd = port_without_server(scene);
    (void)new_client(scene, &state, GIVE_UP_MS);
    for (int turns = 0; turns < 5; turns++) { /* some refused tries */
        (void)uv_run(&scene->loop, UV_RUN_ONCE);
    }
    assert_int_equal(state.calls, 0);
    start_server(scene); /* on the same port */
    RUN_UNTIL(scene, state.calls > 0);
    assert_int_equal(state.status, 0);
    (void)close(fd);
}

static void nobody_there_is_given_up_in_time(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer get = {0};
    int fd = port_without_server(scene);
    struct kv_client *client = new_client(scene, &state, 500);
    assert_int_equal(kv_client_get(client, "k", true, 0, on_answer, &get), 0);
    RUN_UNTIL(scene, state.calls > 0);
    assert_int_equal(state.status, MUSTER_ETIMEOUT);
    assert_non_null(strstr(state.detail, "127.0.0.1:"));
    assert_non_null(strstr(state.detail, "refused"));
    assert_int_equal(get.status, MUSTER_ECONNECT);
    (void)close(fd);
}

/* A listener of another kind: accepts and says `greeting`, or nothing. */
struct stranger {
    uv_poll_t poll;
    int fd;
    int accepted[8];
    size_t accepted_count;
    const char *greeting;
    size_t greeting_len;
};

static void on_stranger(uv_poll_t *poll, int status, int events) {
    struct stranger *stranger = poll->data;
    (void)events;
    assert_int_equal(status, 0);
    int fd = accept(stranger->fd, NULL, NULL);
    assert_true(fd >= 0 && stranger->accepted_count < 8);
    stranger->accepted[stranger->accepted_count++] = fd;
    if (stranger->greeting) {
        assert_int_equal(write(fd, stranger->greeting, stranger->greeting_len), (ssize_t)stranger->greeting_len);
    }
}

static void start_stranger(struct scene *scene, struct stranger *stranger) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    assert_int_equal(net_socket_listen((const struct sockaddr *)&address, false, &stranger->fd), 0);
    assert_int_equal(getsockname(stranger->fd, (struct sockaddr *)&address, &len), 0);
    scene->address = address;
    assert_int_equal(uv_poll_init(&scene->loop, &stranger->poll, stranger->fd), 0);
    stranger->poll.data = stranger;
    assert_int_equal(uv_poll_start(&stranger->poll, UV_READABLE, on_stranger), 0);
}

static void stop_stranger(struct stranger *stranger) {
    uv_close((uv_handle_t *)&stranger->poll, NULL);
    for (size_t i = 0; i < stranger->accepted_count; i++) {
        (void)close(stranger->accepted[i]);
    }
    (void)close(stranger->fd);
}

static void another_program_on_the_port_is_named_at_once(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct stranger stranger = {.greeting = "SSH-2.0-x\r\n", .greeting_len = 11};
    start_stranger(scene, &stranger);
    (void)new_client(scene, &state, GIVE_UP_MS);
    RUN_UNTIL(scene, state.calls > 0);
    assert_int_equal(state.status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(state.detail, "another program"));
    stop_stranger(&stranger);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
}

static void a_silent_program_on_the_port_is_given_up(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct stranger stranger = {0};
    start_stranger(scene, &stranger);
    (void)new_client(scene, &state, 60);
    RUN_UNTIL(scene, state.calls > 0);
    assert_int_equal(state.status, MUSTER_ETIMEOUT);
    assert_non_null(strstr(state.detail, "handshake"));
    stop_stranger(&stranger);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
}

static void a_timeout_that_changes_counts_for_what_is_under_way(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct stranger stranger = {0};
    start_stranger(scene, &stranger);
    struct kv_client *client = new_client(scene, &state, 600 * 1000);
    RUN_UNTIL(scene, stranger.accepted_count > 0);
    kv_client_set_timeout(client, 60);
    RUN_UNTIL(scene, state.calls > 0);
    assert_int_equal(state.status, MUSTER_ETIMEOUT);
    stop_stranger(&stranger);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
}

/* The store was away, and what it owes is on its way. */
static void a_shorter_timeout_counts_from_now_on(void **ctx) {
    enum { PENDING_MS = 150, TIMEOUT_MS = 100 };
    struct scene *scene = *ctx;
    struct state state = {0};
    struct stranger stranger = {0};
    start_stranger(scene, &stranger);
    struct kv_client *client = new_client(scene, &state, 600 * 1000);
    uint64_t began_ms = uv_now(&scene->loop);
    while (uv_now(&scene->loop) < began_ms + PENDING_MS) {
        (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    }
    kv_client_set_timeout(client, TIMEOUT_MS);
    began_ms = uv_now(&scene->loop);
    RUN_UNTIL(scene, state.calls > 0);
    uint64_t took_ms = uv_now(&scene->loop) - began_ms;
    stop_stranger(&stranger);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    assert_int_equal(state.status, MUSTER_ETIMEOUT);
    assert_true(took_ms >= TIMEOUT_MS);
}

static void a_server_without_watch_refuses_it(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer watch = {0}, late = {0};
    /* The handshake's answer of PyTorch's server: the nonce and "absent", twice. */
    char greeting[6];
    uint32_t nonce = (uint32_t)getpid();
    memcpy(greeting, &nonce, 4);
    greeting[4] = greeting[5] = CODEC_CHECK_ABSENT;
    struct stranger stranger = {.greeting = greeting, .greeting_len = sizeof greeting};
    start_stranger(scene, &stranger);
    struct kv_client *client = new_client(scene, &state, GIVE_UP_MS);
    assert_int_equal(kv_client_watch(client, "k", kv_slice_text(""), on_answer, &watch), 0);
    RUN_UNTIL(scene, watch.came);
    assert_int_equal(watch.status, MUSTER_EUNSUPPORTED);
    assert_false(kv_client_server_is_muster(client));
    assert_int_equal(kv_client_watch(client, "k", kv_slice_text(""), on_answer, &late), MUSTER_EUNSUPPORTED);
    stop_stranger(&stranger);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
}

static struct kv_client *closed_in_callback;

static void close_in_callback(void *ctx, const struct kv_reply *reply) {
    bool *came = ctx;
    *came = true;
    kv_client_close(closed_in_callback);
    assert_int_equal(reply->value_count, 1);
    assert_int_equal(reply->values[0].len, 1); /* still there */
    assert_int_equal(reply->values[0].data[0], 'v');
}

static void closing_inside_a_callback_is_fine(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    bool came = false;
    struct answer never = {0};
    closed_in_callback = connected_client(scene, &state);
    forget_client(scene, closed_in_callback);
    assert_int_equal(kv_client_set(closed_in_callback, "k", kv_slice_text("v"), NULL, NULL), 0);
    assert_int_equal(kv_client_get(closed_in_callback, "k", false, 0, close_in_callback, &came), 0);
    assert_int_equal(kv_client_add(closed_in_callback, "n", 1, on_answer, &never), 0);
    RUN_UNTIL(scene, came && scene->ended_count == 1);
    assert_false(never.came);
    assert_int_equal(state.calls, 1);
}

static void limits_are_refused_before_anything_is_sent(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct kv_client *client = connected_client(scene, &state);
    struct answer add = {0};
    char *key = malloc(CODEC_KEY_BYTES_MAX + 1);
    assert_non_null(key);
    memset(key, 'k', CODEC_KEY_BYTES_MAX);
    key[CODEC_KEY_BYTES_MAX] = '\0';
    assert_int_equal(kv_client_add(client, key, 1, on_answer, &add), MUSTER_ELIMIT);
    key[CODEC_KEY_BYTES_MAX - 1] = '\0'; /* with the slash it just fits */
    assert_int_equal(kv_client_add(client, key, 1, on_answer, &add), 0);
    RUN_UNTIL(scene, add.came);
    assert_int_equal(add.number, 1);
    uint8_t *value = calloc(1, CODEC_VALUE_BYTES_MAX + 1);
    assert_non_null(value);
    assert_int_equal(kv_client_set(client, "v", kv_slice_of(value, CODEC_VALUE_BYTES_MAX + 1), NULL, NULL),
                     MUSTER_ELIMIT);
    struct answer set = {0};
    assert_int_equal(kv_client_set(client, "v", kv_slice_of(value, CODEC_VALUE_BYTES_MAX), on_answer, &set), 0);
    free(value);
    RUN_UNTIL(scene, set.came);
    assert_int_equal(set.status, 0);
    struct kv_slice stored;
    assert_true(kv_server_get(scene->server, kv_slice_text("/v"), &stored));
    assert_int_equal(stored.len, CODEC_VALUE_BYTES_MAX);
    free(key);
}

static void a_taken_port_is_told_by_errno(void **ctx) {
    struct scene *scene = *ctx;
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&scene->address};
    struct kv_server_options options = {.addresses = addresses, .address_count = 1};
    struct kv_server *second = NULL;
    errno = 0;
    assert_int_equal(kv_server_create(&scene->loop, &options, &second), MUSTER_ESYSTEM);
    assert_int_equal(errno, EADDRINUSE);
    assert_null(second);
    assert_non_null(strstr(muster_detail(), "127.0.0.1:"));
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE_TEST(requests_before_the_connection_stands_are_queued),
        SCENE_TEST(every_operation_answers),
        SCENE_TEST(all_keys_are_listed),
        SCENE_TEST(a_wait_ends_when_another_client_sets),
        SCENE_TEST(a_wait_times_out_and_the_connection_lives_on),
        SCENE_TEST(a_watch_answers_with_the_changed_value),
        SCENE_TEST(a_file_answers_as_a_server_does),
        SCENE_TEST(a_wait_on_a_file_ends_by_another_client_or_by_time),
        SCENE_TEST(a_file_that_cannot_be_is_told),
        SCENE_TEST(a_reset_drops_clients_and_keys_but_not_the_port),
        SCENE_TEST(the_host_hears_of_a_client_that_goes),
        SCENE_TEST(a_server_that_starts_later_is_found),
        SCENE_TEST(nobody_there_is_given_up_in_time),
        SCENE_TEST(another_program_on_the_port_is_named_at_once),
        SCENE_TEST(a_silent_program_on_the_port_is_given_up),
        SCENE_TEST(a_timeout_that_changes_counts_for_what_is_under_way),
        SCENE_TEST(a_shorter_timeout_counts_from_now_on),
        SCENE_TEST(a_server_without_watch_refuses_it),
        SCENE_TEST(closing_inside_a_callback_is_fine),
        SCENE_TEST(limits_are_refused_before_anything_is_sent),
        SCENE_TEST(a_taken_port_is_told_by_errno),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
