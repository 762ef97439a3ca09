/* What a client is owed comes out in order and whole, however it went in and in whatever portions it is sent; and what
 * it refers to lives as long as it is owed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "store/server/kv_output.h"
#include "store/wire/codec.h"

enum { ROUNDS = 3000, LONG_BYTES = 3 * KV_REFERENCED_BYTES_MIN, OWED_MAX = 1 << 20 };

struct scene {
    struct kv_budget budget;
    struct kv_table table;
    struct kv_output output;
    struct kv_change change;
};

static int set_up(void **out) {
    static const uint64_t seed[2] = {1, 2};
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    scene->budget.max_bytes = 64 << 20;
    kv_table_init(&scene->table, seed, &scene->budget);
    kv_output_init(&scene->output, &scene->table, OWED_MAX);
    *out = scene;
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    kv_output_done(&scene->output);
    kv_table_done(&scene->table);
    assert_int_equal(scene->budget.used_bytes, 0);
    free(scene);
    return 0;
}

static struct kv_entry *store(struct scene *scene, const char *key, const uint8_t *value, size_t len) {
    assert_int_equal(kv_table_set(&scene->table, kv_slice_text(key), kv_slice_of(value, len), &scene->change), 0);
    kv_table_sweep(&scene->table);
    return kv_table_find(&scene->table, kv_slice_text(key));
}

/* Sends `len` bytes: they are the next ones of `expected`. */
static void send_and_compare(struct kv_output *output, const uint8_t *expected, size_t len, size_t pieces_max) {
    while (len > 0) {
        struct kv_slice pieces[8];
        size_t count = kv_output_peek(output, pieces, pieces_max), sent = 0;
        assert_true(count > 0 && count <= pieces_max);
        for (size_t i = 0; i < count && sent < len; i++) {
            size_t step = pieces[i].len < len - sent ? pieces[i].len : len - sent;
            assert_true(pieces[i].len > 0);
            assert_memory_equal(pieces[i].data, expected + sent, step);
            sent += step;
        }
        kv_output_consume(output, sent);
        expected += sent;
        len -= sent;
    }
}

static void everything_comes_out_in_order(void **ctx) {
    struct scene *scene = *ctx;
    struct buf model;
    uint32_t random = 1;
    uint8_t value[LONG_BYTES];
    buf_init(&model, SIZE_MAX);
    for (size_t round = 0; round < ROUNDS; round++) {
        random = random * 1664525 + 1013904223;
        size_t len = (random >> 8) % LONG_BYTES;
        memset(value, (int)round, len);
        if (random >> 30 == 0) {
            assert_int_equal(codec_put_bytes(&scene->output.bytes, kv_slice_of(value, len % 32)), 0);
            assert_int_equal(codec_put_bytes(&model, kv_slice_of(value, len % 32)), 0);
        } else if (random >> 30 < 3) { /* the key of one that is owed still, mostly */
            assert_int_equal(kv_output_put_value(&scene->output, store(scene, "k", value, len)), 0);
            assert_int_equal(codec_put_bytes(&model, kv_slice_of(value, len)), 0);
        }
        assert_int_equal(kv_output_len(&scene->output), model.len);
        size_t some = model.len > 20 * LONG_BYTES ? model.len : model.len ? (random >> 4) % (model.len + 1) / 4 : 0;
        send_and_compare(&scene->output, buf_bytes(&model), some, 1 + round % 8);
        buf_consume(&model, some);
    }
    send_and_compare(&scene->output, buf_bytes(&model), model.len, 8);
    assert_int_equal(kv_output_len(&scene->output), 0);
    buf_done(&model);
}

static void a_long_value_is_kept_once(void **ctx) {
    enum { CLIENTS = 50 };
    struct scene *scene = *ctx;
    struct kv_output others[CLIENTS];
    uint8_t *value = calloc(1, OWED_MAX / 2);
    assert_non_null(value);
    struct kv_entry *entry = store(scene, "k", value, OWED_MAX / 2);
    size_t before = scene->budget.used_bytes;
    for (size_t i = 0; i < CLIENTS; i++) {
        kv_output_init(&others[i], &scene->table, OWED_MAX);
        assert_int_equal(kv_output_put_value(&others[i], entry), 0);
        assert_true(kv_output_memory(&others[i]) <= 1024);
    }
    (void)store(scene, "k", value, 1); /* a new value: the old one stays until the last has it */
    assert_true(scene->budget.used_bytes >= before);
    for (size_t i = 0; i < CLIENTS; i++) {
        assert_true(scene->budget.used_bytes >= before);
        kv_output_done(&others[i]);
    }
    assert_true(scene->budget.used_bytes < before);
    free(value);
}

static void more_than_the_limit_cannot_be_owed(void **ctx) {
    struct scene *scene = *ctx;
    uint8_t *value = calloc(1, OWED_MAX);
    assert_non_null(value);
    struct kv_entry *entry = store(scene, "k", value, OWED_MAX - 7); /* with its length in front, one byte too many */
    assert_int_equal(kv_output_put_value(&scene->output, entry), MUSTER_ELIMIT);
    kv_output_done(&scene->output);
    entry = store(scene, "k", value, OWED_MAX - 8);
    assert_int_equal(kv_output_put_value(&scene->output, entry), 0);
    assert_int_equal(kv_output_put_value(&scene->output, entry), MUSTER_ELIMIT);
    free(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(everything_comes_out_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_long_value_is_kept_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(more_than_the_limit_cannot_be_owed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
