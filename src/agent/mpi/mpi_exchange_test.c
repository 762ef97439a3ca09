/* Three nodes that meet in one store, all on one loop. */
#include "agent/mpi/mpi_exchange.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "store/server/kv_server.h"

enum { NODES = 3, GIVE_UP_MS = 60 * 1000 };

struct heard {
    unsigned count;
    int status;
    char text[128]; /* the values, with blanks between them */
};

struct scene {
    uv_loop_t loop;
    uv_timer_t watchdog;
    bool expired;
    struct kv_server *server;
    struct mpi_exchange *nodes[NODES];
    unsigned asked;
};

static void on_watchdog(uv_timer_t *timer) {
    ((struct scene *)timer->data)->expired = true;
}

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *addresses[1] = {(const struct sockaddr *)&address};
    const struct kv_server_options options = {.addresses = addresses, .address_count = 1};
    assert_non_null(scene);
    assert_int_equal(uv_loop_init(&scene->loop), 0);
    assert_int_equal(uv_timer_init(&scene->loop, &scene->watchdog), 0);
    scene->watchdog.data = scene;
    assert_int_equal(uv_timer_start(&scene->watchdog, on_watchdog, GIVE_UP_MS, 0), 0);
    assert_int_equal(kv_server_create(&scene->loop, &options, &scene->server), 0);
    for (uint32_t node = 0; node < NODES; node++) {
        const struct mpi_exchange_options of_node = {.master_addr = "127.0.0.1",
                                                     .master_port = kv_server_port(scene->server),
                                                     .round = 4,
                                                     .node = node,
                                                     .node_count = NODES};
        assert_int_equal(mpi_exchange_create(&scene->loop, &of_node, &scene->nodes[node]), 0);
    }
    *out = scene;
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    for (size_t i = 0; i < NODES; i++) {
        mpi_exchange_close(scene->nodes[i]);
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

static void on_heard(void *ctx, int status, const struct kv_slice *values, size_t count) {
    struct heard *heard = ctx;
    heard->count++;
    heard->status = status;
    for (size_t i = 0; i < count; i++) {
        size_t used = strlen(heard->text);
        (void)snprintf(heard->text + used, sizeof heard->text - used, "%s%.*s", i > 0 ? " " : "", (int)values[i].len,
                       (const char *)values[i].data);
    }
}

static void start(struct scene *scene, uint32_t node, const char *name, const char *value, struct heard *heard) {
    assert_int_equal(mpi_exchange_start(scene->nodes[node], name, NULL, NODES, kv_slice_text(value), on_heard, heard),
                     0);
}

static void all_hear_all(void **ctx) {
    struct scene *scene = *ctx;
    static const char *const values[NODES] = {"a", "", "c"};
    struct heard heard[NODES] = {0};
    for (uint32_t node = 0; node < NODES; node++) {
        start(scene, node, "x", values[node], &heard[node]);
    }
    RUN_UNTIL(scene, heard[0].count && heard[1].count && heard[2].count);
    for (size_t i = 0; i < NODES; i++) {
        assert_int_equal(heard[i].status, 0);
        assert_string_equal(heard[i].text, "a  c");
    }
}

/* Several may be under way, and those that are over do not hold up others. */
static void nobody_hears_before_the_last_has_come(void **ctx) {
    struct scene *scene = *ctx;
    struct heard early[NODES] = {0}, late[NODES] = {0};
    for (uint32_t node = 0; node < NODES; node++) {
        if (node != 1) {
            start(scene, node, "slow", "s", &late[node]);
        }
        start(scene, node, "fast", "f", &early[node]);
    }
    RUN_UNTIL(scene, early[0].count && early[1].count && early[2].count);
    assert_int_equal(late[0].count + late[2].count, 0);
    start(scene, 1, "slow", "t", &late[1]);
    RUN_UNTIL(scene, late[0].count && late[1].count && late[2].count);
    assert_string_equal(late[2].text, "s t s");
}

static void some_nodes_can_meet(void **ctx) {
    struct scene *scene = *ctx;
    static const uint32_t some[] = {0, 2};
    struct heard heard[2] = {0};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(mpi_exchange_start(scene->nodes[some[i]], "some", some, 2, kv_slice_text(i ? "z" : "y"),
                                            on_heard, &heard[i]),
                         0);
    }
    RUN_UNTIL(scene, heard[0].count && heard[1].count);
    assert_string_equal(heard[0].text, "y z");
    assert_string_equal(heard[1].text, "y z");
}

static void on_asked(void *ctx, struct mpi_question *question, struct kv_slice text) {
    struct scene *scene = ctx;
    char answer[64];
    assert_ptr_equal(mpi_question_owner(question), scene);
    scene->asked++;
    (void)snprintf(answer, sizeof answer, "re: %.*s", (int)text.len, (const char *)text.data);
    mpi_question_answer(question, kv_slice_text(answer));
}

static void questions_have_answers(void **ctx) {
    struct scene *scene = *ctx;
    struct heard heard[4] = {0};
    assert_int_equal(mpi_exchange_serve(scene->nodes[1], on_asked, scene), 0);
    assert_int_equal(mpi_exchange_ask(scene->nodes[0], 1, kv_slice_text("7"), on_heard, &heard[0]), 0);
    assert_int_equal(mpi_exchange_ask(scene->nodes[0], 1, kv_slice_text("8 9"), on_heard, &heard[1]), 0);
    assert_int_equal(mpi_exchange_ask(scene->nodes[2], 1, kv_slice_text(""), on_heard, &heard[2]), 0);
    assert_int_equal(mpi_exchange_ask(scene->nodes[1], 1, kv_slice_text("own"), on_heard, &heard[3]), 0);
    RUN_UNTIL(scene, heard[0].count && heard[1].count && heard[2].count && heard[3].count);
    assert_int_equal(scene->asked, 4);
    assert_string_equal(heard[0].text, "re: 7");
    assert_string_equal(heard[1].text, "re: 8 9");
    assert_string_equal(heard[2].text, "re: ");
    assert_string_equal(heard[3].text, "re: own");
}

static void what_is_forgotten_is_gone(void **ctx) {
    struct scene *scene = *ctx;
    struct heard heard[NODES] = {0}, again = {0}, after[NODES] = {0};
    for (uint32_t node = 0; node < NODES; node++) {
        start(scene, node, "gone", "g", &heard[node]);
    }
    RUN_UNTIL(scene, heard[0].count && heard[1].count && heard[2].count);
    mpi_exchange_forget(scene->nodes[2], "gone");
    for (uint32_t node = 0; node < NODES; node++) { /* behind it, on the same connections */
        start(scene, node, "after", "a", &after[node]);
    }
    RUN_UNTIL(scene, after[0].count && after[1].count && after[2].count);
    start(scene, 0, "gone", "g", &again);
    start(scene, 2, "gone", "new", &heard[2]);
    RUN_UNTIL(scene, again.count);
    assert_string_equal(again.text, "g g new");
    RUN_UNTIL(scene, heard[2].count == 2);
}

static void a_store_that_goes_is_told(void **ctx) {
    struct scene *scene = *ctx;
    struct heard ready[NODES] = {0}, heard = {0};
    for (uint32_t node = 0; node < NODES; node++) {
        start(scene, node, "ready", "r", &ready[node]);
    }
    RUN_UNTIL(scene, ready[0].count && ready[1].count && ready[2].count);
    start(scene, 0, "never", "n", &heard);
    kv_server_close(scene->server);
    scene->server = NULL;
    RUN_UNTIL(scene, heard.count);
    assert_int_not_equal(heard.status, 0);
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE_TEST(all_hear_all),
        SCENE_TEST(nobody_hears_before_the_last_has_come),
        SCENE_TEST(some_nodes_can_meet),
        SCENE_TEST(questions_have_answers),
        SCENE_TEST(what_is_forgotten_is_gone),
        SCENE_TEST(a_store_that_goes_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
