/* Names and descriptors: replaced, dropped, bounded, counted. */
#include "agent/held/held_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

enum { OWNER = 100 };

static void a_name_has_its_newest_descriptor(void **state) {
    (void)state;
    struct held_table t;
    struct held_old old = {.fd = 7};
    held_table_init(&t, HELD_NAMES_MAX);
    assert_int_equal(held_table_get(&t, "a"), -1);
    assert_int_equal(held_table_put(&t, "a", 10, 100, OWNER, &old), 0);
    assert_int_equal(old.fd, -1);
    assert_int_equal(held_table_put(&t, "b", 11, 50, OWNER, &old), 0);
    assert_int_equal(held_table_put(&t, "a", 12, 1, OWNER, &old), 0);
    assert_int_equal(old.fd, 10);
    assert_false(old.is_given_up);
    assert_int_equal(held_table_get(&t, "a"), 12);
    assert_int_equal(held_table_get(&t, "b"), 11);
    assert_int_equal(held_table_get(&t, "ab"), -1);
    assert_int_equal(t.count, 2);
    assert_int_equal(held_table_bytes(&t), 51);
    held_table_done(&t);
}

static void what_is_dropped_is_the_callers(void **state) {
    (void)state;
    struct held_table t;
    struct held_old old;
    held_table_init(&t, HELD_NAMES_MAX);
    assert_int_equal(held_table_drop(&t, "a"), -1);
    assert_int_equal(held_table_put(&t, "a", 10, 1, OWNER, &old), 0);
    assert_int_equal(held_table_put(&t, "b", 11, 2, OWNER, &old), 0);
    assert_int_equal(held_table_put(&t, "c", 12, 4, OWNER, &old), 0);
    assert_int_equal(held_table_drop(&t, "a"), 10);
    assert_int_equal(held_table_drop(&t, "a"), -1);
    assert_int_equal(held_table_get(&t, "b"), 11);
    assert_int_equal(held_table_get(&t, "c"), 12);
    assert_int_equal(held_table_bytes(&t), 6);
    int left = held_table_drop_any(&t) + held_table_drop_any(&t);
    assert_int_equal(left, 11 + 12);
    assert_int_equal(held_table_drop_any(&t), -1);
    assert_int_equal(held_table_bytes(&t), 0);
    held_table_done(&t);
}

static void there_is_an_end_of_names(void **state) {
    (void)state;
    const size_t wanted[] = {0, 3, HELD_NAMES_MAX, (size_t)HELD_NAMES_MAX + 1};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct held_table t;
        size_t max = wanted[i] < HELD_NAMES_MAX ? wanted[i] : HELD_NAMES_MAX;
        char name[HELD_NAME_BYTES];
        struct held_old old;
        held_table_init(&t, wanted[i]);
        for (size_t number = 0; number < max; number++) {
            (void)snprintf(name, sizeof name, "%zu", number);
            assert_int_equal(held_table_put(&t, name, (int)number, 1, OWNER + (pid_t)number, &old), 0);
        }
        assert_int_equal(held_table_put(&t, "one more", 1, 1, OWNER - 1, &old), MUSTER_ELIMIT);
        assert_int_equal(old.fd, -1);
        assert_int_equal(t.count, max);
        if (max > 0) { /* an old name still gets a new descriptor, and one that is dropped makes room */
            assert_int_equal(held_table_put(&t, "0", 5000, 1, OWNER, &old), 0);
            assert_int_equal(held_table_drop(&t, "0"), 5000);
            assert_int_equal(held_table_put(&t, "one more", 1, 1, OWNER, &old), 0);
        }
        held_table_done(&t);
    }
}

/* A process that puts names and forgets them takes its share, and nobody else's. */
static void names_are_put_and_forgotten(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    struct held_table t;
    char name[HELD_NAME_BYTES];
    struct held_old old;
    int given_up = 0;
    held_table_init(&t, HELD_NAMES_MAX);
    assert_int_equal(held_table_put(&t, "others", 9, 1, OWNER - 1, &old), 0);
    assert_int_equal(held_table_put(&t, "kept", 10, 1, OWNER, &old), 0);
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof name, "%d", i);
        assert_int_equal(held_table_put(&t, name, 11 + i, 1, OWNER, &old), 0);
        assert_int_equal(held_table_get(&t, "kept"), 10); /* what is used stays */
        given_up += old.is_given_up;
        assert_int_equal(old.fd, old.is_given_up ? 11 + given_up - 1 : -1);
    }
    assert_int_equal(t.count, 1 + held_table_share(&t));
    assert_int_equal(given_up, COUNT + 1 - (int)held_table_share(&t));
    assert_int_equal(held_table_get(&t, "others"), 9);
    assert_int_equal(held_table_get(&t, name), 11 + COUNT - 1);
    assert_int_equal(held_table_put(&t, "more", 8, 1, OWNER - 1, &old), 0);
    assert_int_equal(old.fd, -1);
    held_table_done(&t);
}

static bool is_above(pid_t owner) {
    return owner > OWNER;
}

/* Of processes that have ended, the one that has left most makes room. */
static void ended_processes_make_room(void **state) {
    (void)state;
    struct held_table t;
    char name[HELD_NAME_BYTES];
    struct held_old old;
    int fd = 10;
    held_table_init(&t, 64);
    static const struct {
        pid_t owner;
        int count;
    } owners[] = {{OWNER, 12}, {OWNER + 1, 3}, {OWNER + 2, 7}, {OWNER + 3, 7}};
    for (size_t i = 0; i < sizeof owners / sizeof *owners; i++) {
        for (int n = 0; n < owners[i].count; n++) {
            (void)snprintf(name, sizeof name, "%d %d", (int)owners[i].owner, n);
            assert_int_equal(held_table_put(&t, name, fd++, 1, owners[i].owner, &old), 0);
        }
    }
    (void)held_table_get(&t, "102 0");
    int first = 10 + 12 + 3 + 1; /* the second of the first one with seven */
    assert_int_equal(held_table_drop_left(&t, is_above), first);
    assert_int_equal(held_table_get(&t, "103 0"), 10 + 12 + 3 + 7);
    for (int left = 16; left > 0; left--) {
        assert_true(held_table_drop_left(&t, is_above) >= 0);
    }
    assert_int_equal(held_table_drop_left(&t, is_above), -1);
    assert_int_equal(t.count, 12);
    held_table_done(&t);
}

static void the_longest_name_is_whole(void **state) {
    (void)state;
    struct held_table t;
    char name[HELD_NAME_BYTES];
    struct held_old old;
    memset(name, 'x', sizeof name);
    name[HELD_NAME_BYTES - 1] = '\0';
    held_table_init(&t, 1);
    assert_int_equal(held_table_put(&t, name, 3, 1, OWNER, &old), 0);
    assert_int_equal(held_table_get(&t, name), 3);
    name[HELD_NAME_BYTES - 2] = '\0';
    assert_int_equal(held_table_get(&t, name), -1);
    held_table_done(&t);
}

static void absurd_sizes_do_not_wrap(void **state) {
    (void)state;
    struct held_table t;
    struct held_old old;
    held_table_init(&t, HELD_NAMES_MAX);
    assert_int_equal(held_table_put(&t, "a", 1, UINT64_MAX - 1, OWNER, &old), 0);
    assert_int_equal(held_table_put(&t, "b", 2, 5, OWNER, &old), 0);
    assert_int_equal(held_table_put(&t, "c", 3, UINT64_MAX, OWNER, &old), 0);
    assert_true(held_table_bytes(&t) == UINT64_MAX);
    held_table_done(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_has_its_newest_descriptor), cmocka_unit_test(what_is_dropped_is_the_callers),
        cmocka_unit_test(there_is_an_end_of_names),         cmocka_unit_test(the_longest_name_is_whole),
        cmocka_unit_test(absurd_sizes_do_not_wrap),         cmocka_unit_test(names_are_put_and_forgotten),
        cmocka_unit_test(ended_processes_make_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
