/* Messages of the file timer and the rules by which timers are set, released and expire. */
#include "agent/watchdog/watchdog_table.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

static int parse(const char *line, struct watchdog_message *out) {
    return watchdog_message_parse(line, strlen(line), out);
}

static void a_message_of_torchelastic(void **state) {
    struct watchdog_message m;
    (void)state;
    assert_int_equal(parse("{\"version\": 1, \"pid\": 12351, \"scope_id\": \"scope\", "
                           "\"expiration_time\": 1795255157.8926528, \"signal\": 9}",
                           &m),
                     MUSTER_OK);
    assert_int_equal(m.pid, 12351);
    assert_string_equal(m.scope, "scope");
    assert_true(m.expires_s > 1795255157.89 && m.expires_s < 1795255157.90);
    assert_int_equal(m.signal_number, 9);
    assert_int_equal(
        parse("{\"version\": 1, \"pid\": 5, \"scope_id\": \"\", \"expiration_time\": -1, \"signal\": -3}", &m),
        MUSTER_OK);
    assert_true(m.expires_s < 0);
    assert_int_equal(m.signal_number, 0); /* "do not kill" has many spellings */
}

static void messages_that_are_none(void **state) {
    static const char *const lines[] = {
        "",
        "nonsense",
        "[]",
        "{}",
        "{\"pid\": 1",
        "{\"pid\": \"1\", \"scope_id\": \"s\", \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": 0, \"scope_id\": \"s\", \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": -1, \"scope_id\": \"s\", \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": 99999999999, \"scope_id\": \"s\", \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": 3, \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": \"s\", \"expiration_time\": \"1\", \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": \"s\", \"expiration_time\": 1e999, \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": \"s\", \"expiration_time\": NaN, \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": \"s\", \"expiration_time\": 1, \"signal\": 9.5}",
        "{\"pid\": 1, \"scope_id\": \"s\", \"expiration_time\": 1, \"signal\": 1000}",
        "{\"pid\": 1, \"scope_id\": \"s\", \"expiration_time\": 1, \"signal\": 9} trailing",
        "{\"pid\": 1, \"scope_id\": \"s\\u0000\", \"expiration_time\": 1, \"signal\": 9}",
    };
    struct watchdog_message m;
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (parse(lines[i], &m) != MUSTER_EPROTOCOL) {
            fail_msg("accepted: %s", lines[i]);
        }
    }
}

static void scope_has_a_limit(void **state) {
    char line[2 * WATCHDOG_SCOPE_BYTES_MAX];
    struct watchdog_message m;
    (void)state;
    for (int extra = 0; extra < 2; extra++) {
        char scope[WATCHDOG_SCOPE_BYTES_MAX + 1];
        memset(scope, 's', sizeof scope);
        scope[WATCHDOG_SCOPE_BYTES_MAX - 1 + extra] = '\0';
        (void)snprintf(line, sizeof line, "{\"pid\": 1, \"scope_id\": \"%s\", \"expiration_time\": 1, \"signal\": 9}",
                       scope);
        assert_int_equal(parse(line, &m), extra ? MUSTER_EPROTOCOL : MUSTER_OK);
    }
}

static void set(struct watchdog_table *t, pid_t pid, const char *scope, double expires_s, int signal_number) {
    struct watchdog_message m = {.pid = pid, .expires_s = expires_s, .signal_number = signal_number};
    (void)snprintf(m.scope, sizeof m.scope, "%s", scope);
    assert_int_equal(watchdog_table_apply(t, &m), MUSTER_OK);
}

static void expires(struct watchdog_table *t, double now_s, pid_t pid, const char *scope, int signal_number) {
    struct watchdog_timer timer;
    assert_true(watchdog_table_expire(t, now_s, &timer));
    assert_int_equal(timer.pid, pid);
    assert_string_equal(timer.scope, scope);
    assert_int_equal(timer.signal_number, signal_number);
    free(timer.scope);
}

static void nothing_expires(struct watchdog_table *t, double now_s) {
    struct watchdog_timer timer;
    assert_false(watchdog_table_expire(t, now_s, &timer));
}

static int setup(void **state) {
    struct watchdog_table *t = malloc(sizeof *t);
    assert_non_null(t);
    watchdog_table_init(t);
    *state = t;
    return 0;
}

static int teardown(void **state) {
    watchdog_table_done(*state);
    free(*state);
    return 0;
}

static void set_replace_release(void **state) {
    struct watchdog_table *t = *state;
    double next_s = 0;
    assert_false(watchdog_table_next(t, &next_s));
    set(t, 1, "a", 10, SIGKILL);
    set(t, 1, "b", 20, SIGKILL);
    set(t, 2, "a", 5, SIGKILL);
    assert_true(watchdog_table_next(t, &next_s));
    assert_true(next_s == 5);
    set(t, 2, "a", 30, SIGTERM); /* the same scope again: a new time */
    assert_int_equal(t->count, 3);
    set(t, 1, "a", -1, 0);
    set(t, 1, "never", -1, 0);
    assert_true(watchdog_table_next(t, &next_s));
    assert_true(next_s == 20);
    nothing_expires(t, 19.9);
    expires(t, 20, 1, "b", SIGKILL);
    nothing_expires(t, 20);
    expires(t, 31, 2, "a", SIGTERM);
    assert_int_equal(t->count, 0);
}

static void one_signal_for_a_process(void **state) {
    struct watchdog_table *t = *state;
    set(t, 1, "late", 12, SIGTERM);
    set(t, 1, "silent", 10, 0);
    set(t, 1, "early", 11, SIGKILL);
    set(t, 1, "future", 99, SIGKILL);
    set(t, 2, "other", 13, SIGINT);
    expires(t, 15, 1, "early", SIGKILL); /* the first that names a signal; the process's others go with it */
    expires(t, 15, 2, "other", SIGINT);
    nothing_expires(t, 1000);
}

static void without_signal_the_rest_stays(void **state) {
    struct watchdog_table *t = *state;
    set(t, 1, "silent", 10, 0);
    set(t, 1, "future", 99, SIGKILL);
    expires(t, 15, 1, "silent", 0);
    nothing_expires(t, 15);
    expires(t, 99, 1, "future", SIGKILL);
}

static void forget_a_process(void **state) {
    struct watchdog_table *t = *state;
    set(t, 1, "a", 1, SIGKILL);
    set(t, 2, "a", 2, SIGKILL);
    set(t, 1, "b", 3, SIGKILL);
    watchdog_table_forget(t, 1);
    assert_int_equal(t->count, 1);
    expires(t, 9, 2, "a", SIGKILL);
    watchdog_table_clear(t);
    nothing_expires(t, 9);
}

static void table_is_bounded(void **state) {
    struct watchdog_table *t = *state;
    struct watchdog_message m = {.pid = 1, .scope = "x", .expires_s = 1};
    /* As many processes as there is room for: a scope each would make the search of this test quadratic in text. */
    for (int i = 1; i <= WATCHDOG_TIMERS_MAX; i++) {
        m.pid = i;
        assert_int_equal(watchdog_table_apply(t, &m), MUSTER_OK);
    }
    m.pid = WATCHDOG_TIMERS_MAX + 1;
    assert_int_equal(watchdog_table_apply(t, &m), MUSTER_ELIMIT);
    m.pid = 1;
    assert_int_equal(watchdog_table_apply(t, &m), MUSTER_OK);
}

#define TABLE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_of_torchelastic),
        cmocka_unit_test(messages_that_are_none),
        cmocka_unit_test(scope_has_a_limit),
        TABLE_TEST(set_replace_release),
        TABLE_TEST(one_signal_for_a_process),
        TABLE_TEST(without_signal_the_rest_stays),
        TABLE_TEST(forget_a_process),
        TABLE_TEST(table_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
