/* The store's contents: each operation's table of cases, memory that comes back, and the hash underneath. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "store/server/kv_table.h"
#include "store/wire/codec.h"

static const uint64_t seed[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};

struct scene {
    struct kv_budget budget;
    struct kv_table table;
    struct kv_change change;
};

static int set_up(void **out) {
    struct scene *scene = calloc(1, sizeof *scene);
    assert_non_null(scene);
    scene->budget.max_bytes = 64 * 1024 * 1024;
    kv_table_init(&scene->table, seed, &scene->budget);
    *out = scene;
    return 0;
}

static int tear_down(void **ctx) {
    struct scene *scene = *ctx;
    kv_table_done(&scene->table);
    assert_int_equal(scene->budget.used_bytes, 0);
    free(scene);
    return 0;
}

static void set(struct scene *scene, const char *key, const char *value) {
    assert_int_equal(kv_table_set(&scene->table, kv_slice_text(key), kv_slice_text(value), &scene->change), 0);
}

static void assert_value(const struct scene *scene, const char *key, const char *value) {
    struct kv_slice got;
    bool found = kv_table_get(&scene->table, kv_slice_text(key), &got);
    assert_int_equal(found, value != NULL);
    assert_true(!found || value == NULL || kv_slice_equal(got, kv_slice_text(value)));
}

static void assert_change(const struct kv_change *change, const char *key, const char *old_value,
                          const char *new_value) {
    assert_true(kv_slice_equal(change->key, kv_slice_text(key)));
    assert_int_equal(change->old_value.data != NULL, old_value != NULL);
    assert_int_equal(change->new_value.data != NULL, new_value != NULL);
    assert_true(!old_value || kv_slice_equal(change->old_value, kv_slice_text(old_value)));
    assert_true(!new_value || kv_slice_equal(change->new_value, kv_slice_text(new_value)));
}

static void set_get_delete(void **ctx) {
    struct scene *scene = *ctx;
    assert_value(scene, "k", NULL);
    set(scene, "k", "one");
    assert_change(&scene->change, "k", NULL, "one");
    set(scene, "k", "");
    assert_change(&scene->change, "k", "one", ""); /* the old value lives until the sweep */
    kv_table_sweep(&scene->table);
    assert_value(scene, "k", "");
    set(scene, "", "the empty key is one");
    assert_value(scene, "", "the empty key is one");
    assert_int_equal(kv_table_count(&scene->table), 2);
    assert_true(kv_table_delete(&scene->table, kv_slice_text("k"), &scene->change));
    assert_change(&scene->change, "k", "", NULL);
    assert_false(kv_table_delete(&scene->table, kv_slice_text("k"), &scene->change));
    assert_value(scene, "k", NULL);
    assert_int_equal(kv_table_count(&scene->table), 1);
}

static void add_reads_numbers_as_strtoll_does(void **ctx) {
    static const struct {
        const char *text;
        int64_t delta;
        int64_t sum;
        bool fails;
    } cases[] = {
        {"12abc", 1, 13, false},
        {" 7", 1, 8, false},
        {"\t\n\v\f\r +5", -10, -5, false},
        {"-0", 0, 0, false},
        {"-2", 1, -1, false},
        {"007", 1, 8, false},
        {"9223372036854775807", 1, INT64_MIN, false},
        {"-9223372036854775808", -1, INT64_MAX, false},
        {"9223372036854775808", 0, 0, true},
        {"-9223372036854775809", 0, 0, true},
        {"99999999999999999999999999", 0, 0, true},
        {"", 1, 0, true},
        {"abc", 1, 0, true},
        {"-", 1, 0, true},
        {"+-1", 1, 0, true},
        {" ", 1, 0, true},
        {"0x10", 1, 1, false},
    };
    struct scene *scene = *ctx;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t sum = 4711;
        set(scene, "n", cases[i].text);
        int code = kv_table_add(&scene->table, kv_slice_text("n"), cases[i].delta, &sum, &scene->change);
        if (cases[i].fails) {
            assert_int_equal(code, MUSTER_EINVAL);
            assert_int_equal(sum, 4711);
            assert_value(scene, "n", cases[i].text);
        } else {
            char text[32];
            (void)snprintf(text, sizeof text, "%lld", (long long)cases[i].sum);
            assert_int_equal(code, 0);
            assert_int_equal(sum, cases[i].sum);
            assert_value(scene, "n", text);
        }
        kv_table_sweep(&scene->table);
    }
    int64_t sum = 0;
    assert_int_equal(kv_table_add(&scene->table, kv_slice_text("new"), -3, &sum, &scene->change), 0);
    assert_int_equal(sum, -3);
    assert_change(&scene->change, "new", NULL, "-3");
}

static void compare_set_follows_its_table(void **ctx) {
    static const struct {
        const char *now, *expected, *desired, *after, *reply;
    } cases[] = {
        {NULL, "", "new", "new", "new"},   {NULL, "x", "new", NULL, "x"},      {"old", "old", "new", "new", "new"},
        {"old", "x", "new", "old", "old"}, {"old", "", "new", "old", "old"},   {"", "", "new", "new", "new"},
        {"", "x", "new", "", ""},          {"old", "ol", "new", "old", "old"}, {"a", "a", "", "", ""},
    };
    struct scene *scene = *ctx;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_slice reply = {0};
        bool stored = false;
        (void)kv_table_delete(&scene->table, kv_slice_text("k"), &scene->change);
        if (cases[i].now) {
            set(scene, "k", cases[i].now);
        }
        assert_int_equal(kv_table_compare_set(&scene->table, kv_slice_text("k"), kv_slice_text(cases[i].expected),
                                              kv_slice_text(cases[i].desired), &stored, &reply, &scene->change),
                         0);
        assert_true(kv_slice_equal(reply, kv_slice_text(cases[i].reply)));
        assert_value(scene, "k", cases[i].after);
        assert_int_equal(stored, cases[i].after && strcmp(cases[i].after, cases[i].desired) == 0);
        if (stored) {
            assert_change(&scene->change, "k", cases[i].now, cases[i].desired);
        }
        kv_table_sweep(&scene->table);
    }
}

static void append_grows_a_value(void **ctx) {
    struct scene *scene = *ctx;
    char expected[1025] = "";
    struct kv_slice key = kv_slice_text("a");
    for (size_t i = 0; i < 1024; i++) {
        char old_value[1025];
        memcpy(old_value, expected, sizeof old_value);
        expected[i] = (char)('a' + i % 26);
        assert_int_equal(kv_table_append(&scene->table, key, kv_slice_of(&expected[i], 1), &scene->change), 0);
        assert_change(&scene->change, "a", i ? old_value : NULL, expected);
        kv_table_sweep(&scene->table);
    }
    assert_value(scene, "a", expected);
    assert_true(scene->budget.used_bytes < 2 * 1024);
}

static void append_stops_at_the_limit(void **ctx) {
    struct scene *scene = *ctx;
    uint8_t *large = calloc(1, CODEC_VALUE_BYTES_MAX);
    struct kv_slice key = kv_slice_text("a");
    assert_non_null(large);
    assert_int_equal(kv_table_set(&scene->table, key, kv_slice_of(large, CODEC_VALUE_BYTES_MAX - 1), &scene->change),
                     0);
    assert_int_equal(kv_table_append(&scene->table, key, kv_slice_of(large, 2), &scene->change), MUSTER_ELIMIT);
    assert_int_equal(kv_table_append(&scene->table, key, kv_slice_of(large, 1), &scene->change), 0);
    assert_int_equal(kv_table_append(&scene->table, key, kv_slice_of(large, 1), &scene->change), MUSTER_ELIMIT);
    assert_int_equal(kv_table_append(&scene->table, key, kv_slice_of(large, 0), &scene->change), 0);
    free(large);
}

static void prepared_writes_happen_together_or_not(void **ctx) {
    struct scene *scene = *ctx;
    struct kv_entry *first = NULL, *second = NULL;
    set(scene, "k", "old");
    assert_int_equal(kv_table_prepare(&scene->table, kv_slice_text("k"), kv_slice_text("new"), &first), 0);
    assert_int_equal(kv_table_prepare(&scene->table, kv_slice_text("l"), kv_slice_text("other"), &second), 0);
    assert_value(scene, "k", "old");
    kv_table_drop(&scene->table, second);
    kv_table_commit(&scene->table, first, &scene->change);
    assert_change(&scene->change, "k", "old", "new");
    assert_value(scene, "k", "new");
    assert_value(scene, "l", NULL);
}

static void queues_live_beside_the_keys(void **ctx) {
    struct scene *scene = *ctx;
    struct kv_slice queue = kv_slice_text("q");
    struct kv_entry *item = NULL;
    assert_int_equal(kv_table_queue_pop(&scene->table, queue, &item), 0);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(kv_table_queue_push(&scene->table, queue, kv_slice_text("one")), 0);
        assert_int_equal(kv_table_queue_push(&scene->table, queue, kv_slice_text("")), 0);
        assert_int_equal(kv_table_queue_length(&scene->table, queue), 2);
        assert_true(kv_table_present(&scene->table, queue));
        assert_value(scene, "q", NULL);
        assert_int_equal(kv_table_count(&scene->table), 0);
        assert_false(kv_table_delete(&scene->table, queue, &scene->change));
        assert_int_equal(kv_table_queue_pop(&scene->table, queue, &item), 2);
        assert_true(kv_slice_equal(kv_entry_value(item), kv_slice_text("one")));
        assert_int_equal(kv_table_queue_pop(&scene->table, queue, &item), 1);
        assert_true(kv_slice_equal(kv_entry_value(item), kv_slice_text("")));
        assert_int_equal(kv_table_queue_pop(&scene->table, queue, &item), 0);
        assert_false(kv_table_present(&scene->table, queue));
        kv_table_sweep(&scene->table);
        assert_int_equal(scene->budget.used_bytes, 0);
    }
}

static void a_full_store_refuses_and_changes_nothing(void **ctx) {
    struct scene *scene = *ctx;
    struct kv_entry *entry = NULL;
    struct kv_slice reply;
    int64_t sum = 0;
    bool stored = true;
    set(scene, "n", "1");
    scene->budget.max_bytes = scene->budget.used_bytes;
    assert_int_equal(kv_table_set(&scene->table, kv_slice_text("k"), kv_slice_text("v"), &scene->change),
                     MUSTER_ELIMIT);
    assert_int_equal(kv_table_set(&scene->table, kv_slice_text("n"), kv_slice_text("2"), &scene->change),
                     MUSTER_ELIMIT);
    assert_int_equal(kv_table_append(&scene->table, kv_slice_text("n"), kv_slice_text("2"), &scene->change),
                     MUSTER_ELIMIT);
    assert_int_equal(kv_table_add(&scene->table, kv_slice_text("n"), 1, &sum, &scene->change), MUSTER_ELIMIT);
    assert_int_equal(kv_table_compare_set(&scene->table, kv_slice_text("n"), kv_slice_text("1"), kv_slice_text("2"),
                                          &stored, &reply, &scene->change),
                     MUSTER_ELIMIT);
    assert_int_equal(kv_table_prepare(&scene->table, kv_slice_text("k"), kv_slice_text("v"), &entry), MUSTER_ELIMIT);
    assert_int_equal(kv_table_queue_push(&scene->table, kv_slice_text("q"), kv_slice_text("v")), MUSTER_ELIMIT);
    assert_non_null(strstr(muster_detail(), "full"));
    assert_value(scene, "n", "1");
    assert_int_equal(kv_table_count(&scene->table), 1);
    assert_true(kv_table_delete(&scene->table, kv_slice_text("n"), &scene->change));
    kv_table_sweep(&scene->table);
    set(scene, "n", "1"); /* room again */
}

/* Many keys in and out: found when they should be, listed once, memory proportional and given back. */
static void many_keys_come_and_go(void **ctx) {
    enum { KEYS = 20000, ROUNDS = 3 };
    struct scene *scene = *ctx;
    char key[32];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < KEYS; i++) {
            (void)snprintf(key, sizeof key, "key/%d", i);
            set(scene, key, "value");
        }
        assert_int_equal(kv_table_count(&scene->table), KEYS);
        assert_true(scene->budget.used_bytes < (size_t)KEYS * 64);
        size_t bucket = 0, seen = 0;
        const struct kv_entry *entry = NULL;
        struct kv_slice listed;
        while (kv_table_next(&scene->table, &bucket, &entry, &listed)) {
            seen++;
        }
        assert_int_equal(seen, KEYS);
        for (int i = 0; i < KEYS; i++) {
            struct kv_slice value;
            (void)snprintf(key, sizeof key, "key/%d", i);
            assert_true(kv_table_get(&scene->table, kv_slice_text(key), &value));
            assert_true(kv_table_delete(&scene->table, kv_slice_text(key), &scene->change));
            assert_false(kv_table_get(&scene->table, kv_slice_text(key), &value));
            kv_table_sweep(&scene->table);
        }
        assert_int_equal(scene->budget.used_bytes, 0);
        assert_true(scene->table.entries.bucket_capacity <= 64); /* the buckets went with the keys */
    }
}

static void clearing_forgets_everything(void **ctx) {
    struct scene *scene = *ctx;
    char key[32];
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof key, "%d", i);
        set(scene, key, "v");
        assert_int_equal(kv_table_queue_push(&scene->table, kv_slice_text(key), kv_slice_text("item")), 0);
    }
    kv_table_clear(&scene->table);
    assert_int_equal(scene->budget.used_bytes, 0);
    assert_int_equal(kv_table_count(&scene->table), 0);
    assert_int_equal(kv_table_queue_length(&scene->table, kv_slice_text("7")), 0);
    set(scene, "k", "v");
    assert_value(scene, "k", "v");
}

/* SipHash-1-3 of 00 01 .. (n-1) under the key 00 01 .. 0f, low 32 bits: from a model that gives the vector published
 * with the algorithm (a129ca6149be45e5 for n = 15) when run with 2 and 4 rounds. */
static void the_hash_is_siphash(void **state) {
    uint8_t bytes[16];
    struct hash hash;
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    hash_init(&hash, seed, 0);
    assert_int_equal(hash_of(&hash, kv_slice_of(bytes, 0)), 0x050fc4dc);
    assert_int_equal(hash_of(&hash, kv_slice_of(bytes, 1)), 0x7d57ca93);
    assert_int_equal(hash_of(&hash, kv_slice_of(bytes, 8)), 0x8d299a8e);
    assert_int_equal(hash_of(&hash, kv_slice_of(bytes, 15)), 0x2a519956);
    hash_done(&hash);
}

#define SCENE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        SCENE_TEST(set_get_delete),
        SCENE_TEST(add_reads_numbers_as_strtoll_does),
        SCENE_TEST(compare_set_follows_its_table),
        SCENE_TEST(append_grows_a_value),
        SCENE_TEST(append_stops_at_the_limit),
        SCENE_TEST(prepared_writes_happen_together_or_not),
        SCENE_TEST(queues_live_beside_the_keys),
        SCENE_TEST(a_full_store_refuses_and_changes_nothing),
        SCENE_TEST(many_keys_come_and_go),
        SCENE_TEST(clearing_forgets_everything),
        cmocka_unit_test(the_hash_is_siphash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
