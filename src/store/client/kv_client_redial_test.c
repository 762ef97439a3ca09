/* The asynchronous client when the network fails: between it and the server stands a proxy that stops, resets or
 * loses what passes. All on one libuv loop over loopback. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "store/client/kv_client.h"
#include "store/client/kv_client_impl.h"
#include "store/server/kv_server.h"

enum { GIVE_UP_MS = 120 * 1000, RELAYS_MAX = 8, WRITES_MAX = 16 };

/* One connection through the proxy: the client is near, the server far. */
struct relay {
    struct scene *scene;
    uv_tcp_t near, far;
    uv_connect_t connect;
    bool is_near_open, is_far_open;
};

struct scene {
    uv_loop_t loop;
    uv_timer_t watchdog;
    bool expired;
    bool is_plain; /* the server passes for PyTorch's */
    struct kv_server *server;
    struct sockaddr_in server_address, address; /* of the server, of the proxy */
    uv_tcp_t listener;
    struct relay relays[RELAYS_MAX];
    size_t relay_count;
    bool holds_new;     /* who comes to the proxy gets no further */
    size_t resets_next; /* so many of the next ones are reset at once */
    uint64_t writers[WRITES_MAX];
    size_t write_count;
    unsigned ended;
    uint64_t ended_number;
    struct kv_client *client;
};

struct answer {
    unsigned calls;
    int status;
    int64_t number;
    char value[64];
};

struct state {
    unsigned calls;
    int status;
    char detail[256];
};

#define RUN_UNTIL(scene, condition)                                                                                    \
    while (!(condition)) {                                                                                             \
        assert_false((scene)->expired);                                                                                \
        (void)uv_run(&(scene)->loop, UV_RUN_ONCE);                                                                     \
    }

static void on_answer(void *ctx, const struct kv_reply *reply) {
    struct answer *answer = ctx;
    answer->calls++;
    answer->status = reply->status;
    answer->number = reply->number;
    if (reply->value_count > 0) {
        (void)snprintf(answer->value, sizeof answer->value, "%.*s", (int)reply->values[0].len,
                       (const char *)reply->values[0].data);
    }
}

static void on_state(void *ctx, int status) {
    struct state *state = ctx;
    state->calls++;
    state->status = status;
    (void)snprintf(state->detail, sizeof state->detail, "%s", status ? muster_detail() : "");
}

/* ---- the server ---- */

static void on_change(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                      struct kv_slice new_value) {
    struct scene *scene = ctx;
    (void)key;
    (void)old_value;
    (void)new_value;
    assert_true(scene->write_count < WRITES_MAX);
    scene->writers[scene->write_count++] = connection;
}

static void on_disconnect(void *ctx, uint64_t connection, enum kv_end end) {
    struct scene *scene = ctx;
    (void)end;
    scene->ended++;
    scene->ended_number = connection;
}

static void start_server(struct scene *scene) {
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&scene->server_address};
    struct kv_server_options options = {.addresses = addresses,
                                        .address_count = 1,
                                        .plain = scene->is_plain,
                                        .on_change = on_change,
                                        .on_disconnect = on_disconnect,
                                        .ctx = scene};
    assert_int_equal(kv_server_create(&scene->loop, &options, &scene->server), 0);
    scene->server_address.sin_port = htons(kv_server_port(scene->server));
}

static bool server_has(const struct scene *scene, const char *key, const char *value) {
    struct kv_slice found;
    return kv_server_get(scene->server, kv_slice_text(key), &found) && kv_slice_equal(found, kv_slice_text(value));
}

/* ---- the proxy ---- */

static void room(uv_handle_t *handle, size_t size, uv_buf_t *out) {
    (void)handle;
    *out = uv_buf_init(malloc(size), (unsigned)size);
    assert_non_null(out->base);
}

static void on_written(uv_write_t *write, int status) {
    (void)status;
    free(write->data);
    free(write);
}

static void end(uv_tcp_t *tcp, bool *is_open, bool is_reset) {
    if (*is_open && is_reset) {
        (void)uv_tcp_close_reset(tcp, NULL);
    } else if (*is_open) {
        uv_close((uv_handle_t *)tcp, NULL);
    }
    *is_open = false;
}

static void on_bytes(uv_stream_t *from, ssize_t len, const uv_buf_t *bytes) {
    struct relay *relay = from->data;
    bool is_near = from == (uv_stream_t *)&relay->near;
    bool can_go_on = is_near ? relay->is_far_open : relay->is_near_open;
    if (len < 0) { /* the other side ends in the same way */
        free(bytes->base);
        end(&relay->near, &relay->is_near_open, len == UV_ECONNRESET && !is_near);
        end(&relay->far, &relay->is_far_open, len == UV_ECONNRESET && is_near);
        return;
    }
    if (len == 0 || !can_go_on) {
        free(bytes->base);
        return;
    }
    uv_write_t *write = malloc(sizeof *write);
    assert_non_null(write);
    write->data = bytes->base;
    uv_buf_t piece = uv_buf_init(bytes->base, (unsigned)len);
    uv_stream_t *to = (uv_stream_t *)(is_near ? &relay->far : &relay->near);
    assert_int_equal(uv_write(write, to, &piece, 1, on_written), 0);
}

static void on_far_connected(uv_connect_t *connect, int status) {
    struct relay *relay = connect->data;
    if (status == 0) {
        assert_int_equal(uv_read_start((uv_stream_t *)&relay->near, room, on_bytes), 0);
        assert_int_equal(uv_read_start((uv_stream_t *)&relay->far, room, on_bytes), 0);
    } else if (status != UV_ECANCELED) {
        end(&relay->near, &relay->is_near_open, true);
        end(&relay->far, &relay->is_far_open, false);
    }
}

static void on_proxy(uv_stream_t *listener, int status) {
    struct scene *scene = listener->data;
    assert_int_equal(status, 0);
    assert_true(scene->relay_count < RELAYS_MAX);
    struct relay *relay = &scene->relays[scene->relay_count++];
    *relay = (struct relay){.scene = scene, .is_near_open = true};
    assert_int_equal(uv_tcp_init(&scene->loop, &relay->near), 0);
    assert_int_equal(uv_accept(listener, (uv_stream_t *)&relay->near), 0);
    relay->near.data = relay->connect.data = relay;
    if (scene->resets_next > 0) {
        scene->resets_next--;
        end(&relay->near, &relay->is_near_open, true);
    } else if (!scene->holds_new) {
        assert_int_equal(uv_tcp_init(&scene->loop, &relay->far), 0);
        relay->far.data = relay;
        relay->is_far_open = true;
        assert_int_equal(uv_tcp_connect(&relay->connect, &relay->far, (const struct sockaddr *)&scene->server_address,
                                        on_far_connected),
                         0);
    }
}

static void open_proxy(struct scene *scene) {
    struct sockaddr_storage address;
    int len = sizeof address;
    assert_int_equal(uv_tcp_init(&scene->loop, &scene->listener), 0);
    scene->listener.data = scene;
    assert_int_equal(uv_tcp_bind(&scene->listener, (const struct sockaddr *)&scene->address, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&scene->listener, RELAYS_MAX, on_proxy), 0);
    assert_int_equal(uv_tcp_getsockname(&scene->listener, (struct sockaddr *)&address, &len), 0);
    memcpy(&scene->address, &address, sizeof scene->address);
}

/* What the server says does not arrive; what the client says does, or not. */
static void cut_back(struct scene *scene, size_t index) {
    assert_int_equal(uv_read_stop((uv_stream_t *)&scene->relays[index].far), 0);
}

static void cut(struct scene *scene, size_t index) {
    cut_back(scene, index);
    assert_int_equal(uv_read_stop((uv_stream_t *)&scene->relays[index].near), 0);
}

static void mend(struct scene *scene, size_t index) {
    assert_int_equal(uv_read_start((uv_stream_t *)&scene->relays[index].near, room, on_bytes), 0);
    assert_int_equal(uv_read_start((uv_stream_t *)&scene->relays[index].far, room, on_bytes), 0);
}

/* ---- scenes ---- */

static void on_watchdog(uv_timer_t *timer) {
    struct scene *scene = timer->data;
    scene->expired = true;
}

static struct scene *new_scene(bool is_plain) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    assert_int_equal(uv_loop_init(&scene->loop), 0);
    assert_int_equal(uv_timer_init(&scene->loop, &scene->watchdog), 0);
    scene->watchdog.data = scene;
    assert_int_equal(uv_timer_start(&scene->watchdog, on_watchdog, GIVE_UP_MS, 0), 0);
    scene->server_address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    scene->address = scene->server_address;
    scene->is_plain = is_plain;
    start_server(scene);
    open_proxy(scene);
    return scene;
}

static int set_up(void **out) {
    *out = new_scene(false);
    return 0;
}

static int set_up_plain(void **out) {
    *out = new_scene(true);
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    kv_client_close(scene->client);
    kv_server_close(scene->server);
    for (size_t i = 0; i < scene->relay_count; i++) {
        end(&scene->relays[i].near, &scene->relays[i].is_near_open, false);
        end(&scene->relays[i].far, &scene->relays[i].is_far_open, false);
    }
    if (!uv_is_closing((uv_handle_t *)&scene->listener)) {
        uv_close((uv_handle_t *)&scene->listener, NULL);
    }
    uv_close((uv_handle_t *)&scene->watchdog, NULL);
    assert_int_equal(uv_run(&scene->loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&scene->loop), 0);
    free(scene);
    return 0;
}

/* One that has been answered something. */
static struct kv_client *connect_client(struct scene *scene, struct state *state, uint64_t timeout_ms) {
    struct answer first = {0};
    assert_int_equal(kv_client_create(&scene->loop, (const struct sockaddr *)&scene->address, timeout_ms, on_state,
                                      state, &scene->client),
                     0);
    assert_int_equal(kv_client_set(scene->client, "first", kv_slice_text("1"), on_answer, &first), 0);
    RUN_UNTIL(scene, first.calls > 0);
    assert_int_equal(state->status | first.status, 0);
    return scene->client;
}

/* ---- tests ---- */

/* All was served, and no answer came: each is made once, and answered once. */
static void what_was_not_answered_is_sent_again(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer one = {0}, two = {0}, own = {0}, get = {0}, set = {0}, gone = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut_back(scene, 0);
    assert_int_equal(kv_client_set(client, "silent", kv_slice_text("r"), NULL, NULL), 0);
    assert_int_equal(kv_client_set(client, "silent", kv_slice_text("s"), on_answer, &set), 0);
    assert_int_equal(kv_client_compare_set(client, "c", kv_slice_text(""), kv_slice_text("own"), on_answer, &own), 0);
    assert_int_equal(kv_client_get(client, "c", false, 0, on_answer, &get), 0);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &one), 0);
    assert_int_equal(kv_client_add(client, "n", 10, on_answer, &two), 0);
    assert_int_equal(kv_client_delete(client, "first", on_answer, &gone), 0);
    RUN_UNTIL(scene, server_has(scene, "/n", "1"));
    assert_int_equal(one.calls, 0);
    kv_client_redial(client);
    kv_client_redial(client); /* it is under way */
    RUN_UNTIL(scene, gone.calls > 0);
    assert_int_equal(one.number, 1);
    assert_int_equal(two.number, 11);
    assert_string_equal(own.value, "own");
    assert_string_equal(get.value, "own");
    assert_true(server_has(scene, "/silent", "s"));
    assert_int_equal(set.calls + one.calls + two.calls + own.calls + get.calls + gone.calls, 6);
    assert_int_equal(set.status | one.status | two.status | own.status | get.status | gone.status, 0);
    assert_int_equal(state.calls, 1);
    assert_int_equal(scene->relay_count, 2);
    assert_int_equal(scene->write_count, 7); /* none was written twice */
    assert_int_equal(scene->ended, 0);       /* for its host the client has never gone */
    for (size_t i = 1; i < scene->write_count; i++) {
        assert_int_equal(scene->writers[i], scene->writers[0]);
    }
    uint64_t number = scene->writers[0];
    kv_client_close(client);
    scene->client = NULL;
    RUN_UNTIL(scene, scene->ended > 0);
    assert_int_equal(scene->ended_number, number);
}

/* Nothing of it had arrived. */
static void what_was_lost_on_the_way_is_sent_again(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer add = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut(scene, 0);
    assert_int_equal(kv_client_set(client, "silent", kv_slice_text("s"), NULL, NULL), 0);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    scene->resets_next = 1; /* the first dial fails */
    kv_client_redial(client);
    RUN_UNTIL(scene, add.calls > 0);
    assert_int_equal(add.number, 1);
    assert_true(server_has(scene, "/silent", "s"));
    assert_int_equal(scene->relay_count, 3);
    kv_client_redial(client); /* with nothing to be sent, too */
    RUN_UNTIL(scene, scene->relay_count == 4 && !client->dial);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    RUN_UNTIL(scene, add.calls > 1);
    assert_int_equal(add.number, 2);
    assert_int_equal(scene->ended, 0);
    assert_int_equal(state.calls, 1);
}

static void an_old_connection_that_answers_is_kept(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer add = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut(scene, 0);
    scene->holds_new = true;
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, scene->relay_count == 2);
    mend(scene, 0);
    RUN_UNTIL(scene, add.calls > 0);
    assert_int_equal(add.number, 1);
    assert_null(client->dial);
    assert_int_equal(scene->ended, 0);
    assert_int_equal(state.calls, 1);
}

static void waits_and_watches_go_on(void **ctx) {
    enum { WAIT_MS = 600 };
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer watch = {0}, wait = {0}, come = {0};
    const char *keys[] = {"never"}, *late[] = {"late"};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut(scene, 0);
    assert_int_equal(kv_client_watch(client, "w", kv_slice_text(""), on_answer, &watch), 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, scene->relay_count == 2 && !client->dial);
    assert_int_equal(kv_server_set(scene->server, kv_slice_text("/w"), kv_slice_text("x")), 0);
    RUN_UNTIL(scene, watch.calls > 0);
    assert_string_equal(watch.value, "x");
    uint64_t began_ms = uv_now(&scene->loop);
    assert_int_equal(kv_client_wait(client, keys, 1, WAIT_MS, on_answer, &wait), 0);
    cut(scene, 1);
    scene->resets_next = 1; /* 0.5 s until the next dial */
    kv_client_redial(client);
    RUN_UNTIL(scene, wait.calls > 0);
    assert_int_equal(wait.status, MUSTER_ETIMEOUT);
    assert_in_range(uv_now(&scene->loop) - began_ms, WAIT_MS, GIVE_UP_MS);
    assert_int_equal(kv_client_wait(client, late, 1, 0, on_answer, &come), 0);
    assert_int_equal(kv_server_set(scene->server, kv_slice_text("/late"), kv_slice_text("")), 0);
    RUN_UNTIL(scene, come.calls > 0);
    assert_int_equal(come.status, 0);
    assert_int_equal(state.calls, 1);
}

static void a_reset_is_survived_by_who_resumes(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer add = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    kv_client_set_resumes(client, true);
    cut_back(scene, 0);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    RUN_UNTIL(scene, server_has(scene, "/n", "1"));
    end(&scene->relays[0].near, &scene->relays[0].is_near_open, true); /* the server hears nothing of it */
    RUN_UNTIL(scene, add.calls > 0);
    assert_int_equal(add.number, 1);
    assert_int_equal(scene->ended, 0);
    assert_int_equal(state.calls, 1);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    RUN_UNTIL(scene, add.calls > 1);
    assert_int_equal(add.number, 2);
}

static void a_reset_ends_who_does_not(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    (void)connect_client(scene, &state, GIVE_UP_MS);
    end(&scene->relays[0].near, &scene->relays[0].is_near_open, true);
    RUN_UNTIL(scene, state.calls > 1);
    assert_int_equal(state.status, MUSTER_ECONNECT);
}

/* The host's process has gone. */
static void an_end_in_good_order_ends_the_client(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer set = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    kv_client_set_resumes(client, true);
    cut_back(scene, 0);
    assert_int_equal(kv_client_set(client, "k", kv_slice_text("v"), on_answer, &set), 0);
    RUN_UNTIL(scene, server_has(scene, "/k", "v")); /* nothing is left that would make it a reset */
    end(&scene->relays[0].near, &scene->relays[0].is_near_open, false);
    RUN_UNTIL(scene, state.calls > 1);
    assert_int_equal(state.status, MUSTER_ECONNECT);
    assert_int_equal(set.status, MUSTER_ECONNECT);
    assert_int_equal(scene->relay_count, 1);
}

static void a_dial_that_is_refused_ends_the_client(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer get = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut(scene, 0);
    uv_close((uv_handle_t *)&scene->listener, NULL);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    assert_int_equal(kv_client_get(client, "first", false, 0, on_answer, &get), 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, state.calls > 1);
    assert_int_equal(state.status, MUSTER_ECONNECT);
    assert_non_null(strstr(state.detail, "refused"));
    assert_int_equal(get.status, MUSTER_ECONNECT);
}

/* What a client remembers of it is not there. */
static void a_store_that_has_started_anew_is_another_one(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer get = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut(scene, 0);
    kv_server_close(scene->server);
    scene->server_address.sin_port = 0;
    start_server(scene);
    assert_int_equal(kv_client_get(client, "first", false, 0, on_answer, &get), 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, state.calls > 1);
    assert_int_equal(state.status, MUSTER_ECONNECT);
    assert_non_null(strstr(state.detail, "started anew"));
    assert_int_equal(get.status, MUSTER_ECONNECT);
}

static void an_address_that_has_moved_is_dialled(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer add = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut(scene, 0);
    uv_close((uv_handle_t *)&scene->listener, NULL);
    kv_client_set_address(client, (const struct sockaddr *)&scene->server_address);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, add.calls > 0);
    assert_int_equal(add.number, 1);
    assert_int_equal(state.calls, 1);
}

static void time_goes_on_without_a_connection(void **ctx) {
    enum { TIMEOUT_MS = 300 };
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer get = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    kv_client_set_resumes(client, true);
    kv_client_set_timeout(client, TIMEOUT_MS);
    scene->holds_new = true;
    end(&scene->relays[0].near, &scene->relays[0].is_near_open, true);
    RUN_UNTIL(scene, scene->relay_count == 2);
    uint64_t began_ms = uv_now(&scene->loop);
    assert_int_equal(kv_client_get(client, "first", false, 0, on_answer, &get), 0);
    RUN_UNTIL(scene, state.calls > 1);
    assert_int_equal(state.status, MUSTER_ETIMEOUT);
    assert_int_equal(get.status, MUSTER_ECONNECT);
    assert_in_range(uv_now(&scene->loop) - began_ms, TIMEOUT_MS, GIVE_UP_MS);
}

/* A server of PyTorch's would add twice. */
static void who_would_add_twice_is_not_asked_again(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer add = {0}, get = {0}, later = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    kv_client_set_resumes(client, true);
    assert_false(kv_client_server_is_muster(client));
    cut_back(scene, 0);
    assert_int_equal(kv_client_get(client, "first", false, 0, on_answer, &get), 0);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &add), 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, get.calls > 0);
    assert_string_equal(get.value, "1");
    assert_int_equal(add.calls, 1);
    assert_int_equal(add.status, MUSTER_ECONNECT);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &later), 0);
    RUN_UNTIL(scene, later.calls > 0);
    assert_int_equal(later.number, 2); /* it had been made */
    assert_int_equal(state.calls, 1);
    end(&scene->relays[1].near, &scene->relays[1].is_near_open, true);
    RUN_UNTIL(scene, state.calls > 1); /* such a server's resets end the client as ever */
    assert_int_equal(state.status, MUSTER_ECONNECT);
}

static void close_when_refused(void *ctx, const struct kv_reply *reply) {
    struct scene *scene = ctx;
    assert_int_equal(reply->status, MUSTER_ECONNECT);
    kv_client_close(scene->client);
    scene->client = NULL;
}

static void closing_while_it_changes_over_is_fine(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer never = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    cut(scene, 0);
    assert_int_equal(kv_client_add(client, "n", 1, close_when_refused, scene), 0);
    assert_int_equal(kv_client_add(client, "n", 1, on_answer, &never), 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, !scene->client);
    assert_int_equal(never.calls, 0);
}

static void closing_while_dialling_is_fine(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    scene->holds_new = true;
    cut(scene, 0);
    kv_client_redial(client);
    RUN_UNTIL(scene, scene->relay_count == 2);
    kv_client_close(client);
    scene->client = NULL;
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    assert_int_equal(state.calls, 1);
}

/* They are kept until a later answer tells that they were served; for a limit's sake one asks for it. */
static void few_requests_without_an_answer_are_kept(void **ctx) {
    struct scene *scene = *ctx;
    struct state state = {0};
    struct answer last = {0};
    struct kv_client *client = connect_client(scene, &state, GIVE_UP_MS);
    for (size_t i = 0; i < 10 * KV_CLIENT_SILENT_MAX; i++) {
        assert_int_equal(kv_client_set(client, "first", kv_slice_text("1"), NULL, NULL), 0);
        assert_true(client->silent_count <= KV_CLIENT_SILENT_MAX);
        (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    }
    assert_true(client->request_count < 10 * KV_CLIENT_SILENT_MAX);
    assert_int_equal(kv_client_get(client, "first", false, 0, on_answer, &last), 0);
    RUN_UNTIL(scene, last.calls > 0);
    assert_int_equal(client->silent_count, 0);
    assert_int_equal(client->request_count, 0);
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define PLAIN_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_plain, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE_TEST(what_was_not_answered_is_sent_again),
        SCENE_TEST(what_was_lost_on_the_way_is_sent_again),
        SCENE_TEST(an_old_connection_that_answers_is_kept),
        SCENE_TEST(waits_and_watches_go_on),
        SCENE_TEST(a_reset_is_survived_by_who_resumes),
        SCENE_TEST(a_reset_ends_who_does_not),
        SCENE_TEST(an_end_in_good_order_ends_the_client),
        SCENE_TEST(a_dial_that_is_refused_ends_the_client),
        SCENE_TEST(a_store_that_has_started_anew_is_another_one),
        SCENE_TEST(an_address_that_has_moved_is_dialled),
        SCENE_TEST(time_goes_on_without_a_connection),
        PLAIN_TEST(who_would_add_twice_is_not_asked_again),
        PLAIN_TEST(closing_while_it_changes_over_is_fine),
        SCENE_TEST(closing_while_dialling_is_fine),
        SCENE_TEST(few_requests_without_an_answer_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
