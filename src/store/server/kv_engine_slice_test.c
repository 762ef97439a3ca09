/* What one client asks for does not hold up the others: turns are cut into slices, and long answers cost no copies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/server/kv_engine_test_support.h"
#include "store/wire/codec.h"

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    scene_open(scene, &(struct kv_server_options){0});
    *out = scene;
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    kv_engine_free(scene->engine);
    free(scene);
    return 0;
}

static size_t used_bytes(const struct scene *scene) {
    return scene->engine->machine.budget.used_bytes;
}

static void watch(const struct scene *scene, int fd) {
    struct buf bytes;
    buf_init(&bytes, 1024);
    assert_int_equal(codec_put_u8(&bytes, CODEC_WATCH), 0);
    assert_int_equal(codec_put_bytes(&bytes, kv_slice_text("key")), 0);
    assert_int_equal(codec_put_bytes(&bytes, kv_slice_text("")), 0);
    send_all(scene, fd, buf_bytes(&bytes), bytes.len);
    serve_all(scene);
    buf_done(&bytes);
}

static bool has_something(int fd) {
    uint8_t byte;
    return recv(fd, &byte, 1, MSG_PEEK) == 1;
}

static uint8_t *pattern(size_t len) {
    uint8_t *bytes = malloc(len + 8);
    assert_non_null(bytes);
    for (size_t i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(len >> (8 * i));
    }
    for (size_t i = 8; i < len + 8; i++) {
        bytes[i] = (uint8_t)(i * 2654435761U >> 16);
    }
    return bytes;
}

/* A hundred watchers of a key and one long write: memory bandwidth alone would need several slices for that. */
static void a_write_that_many_watch_does_not_fill_one_turn(void **ctx) {
    enum { WATCHERS = 100, BYTES = 1 << 20 };
    struct scene *scene = *ctx;
    int fds[WATCHERS];
    uint8_t *value = pattern(BYTES), *got = malloc(BYTES + 8);
    assert_non_null(got);
    for (size_t i = 0; i < WATCHERS; i++) {
        fds[i] = open_client(scene);
        watch(scene, fds[i]);
    }
    assert_int_equal(kv_engine_set(scene->engine, kv_slice_text("key"), kv_slice_of(value + 8, BYTES)), 0);
    kv_engine_turn(scene->engine);
    size_t reached = 0;
    for (size_t i = 0; i < WATCHERS; i++) {
        reached += has_something(fds[i]);
    }
    assert_true(reached < WATCHERS);
    for (size_t i = 0; i < WATCHERS; i++) {
        receive_all(scene, fds[i], got, BYTES + 8);
        assert_memory_equal(got, value, BYTES + 8);
        (void)close(fds[i]);
    }
    free(value);
    free(got);
}

static void readers_that_do_not_read_share_one_copy(void **ctx) {
    enum { WATCHERS = 10, BYTES = 8 << 20 };
    struct scene *scene = *ctx;
    int fds[WATCHERS];
    uint8_t *value = pattern(BYTES), *got = malloc(BYTES + 8);
    assert_non_null(got);
    for (size_t i = 0; i < WATCHERS; i++) {
        fds[i] = open_client(scene);
        watch(scene, fds[i]);
    }
    assert_int_equal(kv_engine_set(scene->engine, kv_slice_text("key"), kv_slice_of(value + 8, BYTES)), 0);
    serve_all(scene);
    assert_true(used_bytes(scene) < 2 * BYTES);
    assert_int_equal(kv_engine_set(scene->engine, kv_slice_text("key"), kv_slice_text("short")), 0);
    for (size_t i = 0; i < WATCHERS; i++) { /* they get what they were owed, whatever is there now */
        receive_all(scene, fds[i], got, BYTES + 8);
        assert_memory_equal(got, value, BYTES + 8);
        (void)close(fds[i]);
    }
    serve_all(scene);
    assert_true(used_bytes(scene) < 1024);
    free(value);
    free(got);
}

static void many_values_at_once_are_not_copied(void **ctx) {
    enum { KEYS = 20000, BYTES = 2000 };
    struct scene *scene = *ctx;
    struct buf bytes;
    uint8_t *value = pattern(BYTES), got[BYTES + 8];
    char key[16];
    int fd = open_client(scene);
    buf_init(&bytes, CODEC_MESSAGE_BYTES_MAX);
    assert_int_equal(codec_put_u8(&bytes, CODEC_MULTI_GET), 0);
    assert_int_equal(codec_put_i64(&bytes, KEYS), 0);
    for (unsigned i = 0; i < KEYS; i++) {
        (void)snprintf(key, sizeof key, "k%u", i);
        memcpy(value + 8, &i, sizeof i);
        assert_int_equal(kv_engine_set(scene->engine, kv_slice_text(key), kv_slice_of(value + 8, BYTES)), 0);
        assert_int_equal(codec_put_bytes(&bytes, kv_slice_text(key)), 0);
    }
    size_t before = used_bytes(scene);
    send_all(scene, fd, buf_bytes(&bytes), bytes.len);
    serve_all(scene);
    assert_true(used_bytes(scene) - before < KEYS * BYTES / 8);
    (void)kv_engine_set(scene->engine, kv_slice_text("k19999"), kv_slice_text("later"));
    for (unsigned i = 0; i < KEYS; i++) { /* as they were when they were asked for */
        memcpy(value + 8, &i, sizeof i);
        receive_all(scene, fd, got, BYTES + 8);
        assert_memory_equal(got, value, BYTES + 8);
    }
    buf_done(&bytes);
    free(value);
    (void)close(fd);
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE_TEST(a_write_that_many_watch_does_not_fill_one_turn),
        SCENE_TEST(readers_that_do_not_read_share_one_copy),
        SCENE_TEST(many_values_at_once_are_not_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
