/* The table of backends and the table of keys of --rdzv-conf must agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/log.h"
#include "base/str.h"
#include "cli/run/run_rdzv.h"

static const struct row {
    enum rdzv_backend backend;
    const char *keys;
} rows[] = {
#define ROW(identifier, name, operations, form, coordinated, keys, help) {RDZV_BACKEND_##identifier, keys},
    RDZV_BACKENDS(ROW)
#undef ROW
};

static char logged[512];

static void keep_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    (void)str_copy(logged, sizeof logged, text);
}

/* Calls `check` with each key of the row as "key=1". */
static void for_each_key(const struct row *row, void (*check)(enum rdzv_backend backend, const char *pair)) {
    char pair[80];
    for (const char *at = row->keys; *at; at += strspn(at, " ")) {
        size_t len = strcspn(at, " ");
        (void)str_format(pair, sizeof pair, "%.*s=1", (int)len, at);
        check(row->backend, pair);
        at += len;
    }
}

static void check_known(enum rdzv_backend backend, const char *pair) {
    struct rdzv_conf conf;
    logged[0] = '\0';
    (void)run_rdzv_conf_parse(pair, backend, &conf); /* "1" is no value for some: that is said otherwise */
    if (logged[0] != '\0') {
        print_error("%s for %s: %s\n", pair, rdzv_backend_name(backend), logged);
    }
    assert_string_equal(logged, "");
}

static void every_key_of_a_backend_is_known(void **state) {
    (void)state;
    log_set_sink(keep_log);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for_each_key(&rows[i], check_known);
    }
    log_set_sink(NULL);
}

static void a_key_of_others_is_named_with_its_backends(void **state) {
    (void)state;
    struct rdzv_conf conf;
    log_set_sink(keep_log);
    assert_int_equal(run_rdzv_conf_parse("restart_window=5", RDZV_BACKEND_C10D, &conf), MUSTER_OK);
    assert_non_null(strstr(logged, "it is for muster, etcd-v3"));
    assert_int_equal(run_rdzv_conf_parse("heartbeat_timeout=5", RDZV_BACKEND_MUSTER, &conf), MUSTER_OK);
    assert_non_null(strstr(logged, "it is for c10d, etcd-v2"));
    log_set_sink(NULL);
}

static void names_are_found_and_read_back(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum rdzv_backend found = RDZV_BACKEND_COUNT;
        assert_true(rdzv_backend_find(rdzv_backend_name(rows[i].backend), &found));
        assert_int_equal(found, rows[i].backend);
    }
    enum rdzv_backend none;
    assert_false(rdzv_backend_find("c10", &none));
    assert_false(rdzv_backend_reads(RDZV_BACKEND_ETCD, "ca_cer"));
    assert_true(rdzv_backend_reads(RDZV_BACKEND_ETCD_V2, "ca_cert"));
    assert_false(rdzv_backend_reads(RDZV_BACKEND_ETCD_V2, "key"));
}

static void a_backoff_has_a_fraction(void **state) {
    (void)state;
    struct rdzv_conf conf;
    static const char *const bad[] = {"-1", "nan", "inf", "much", "0x1", "1e300"};
    assert_int_equal(run_rdzv_conf_parse("", RDZV_BACKEND_C10D, &conf), 0);
    assert_int_equal(conf.cas_backoff_max_ms, 0);
    assert_int_equal(run_rdzv_conf_parse("cas_backoff_max_seconds=0.25", RDZV_BACKEND_C10D, &conf), 0);
    assert_int_equal(conf.cas_backoff_max_ms, 250);
    assert_int_equal(run_rdzv_conf_parse("cas_backoff_max_seconds=2", RDZV_BACKEND_ETCD_V2, &conf), 0);
    assert_int_equal(conf.cas_backoff_max_ms, 2000);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "cas_backoff_max_seconds=%s", bad[i]);
        assert_int_equal(run_rdzv_conf_parse(text, RDZV_BACKEND_C10D, &conf), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), "cas_backoff_max_seconds"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_a_backend_is_known),
        cmocka_unit_test(a_key_of_others_is_named_with_its_backends),
        cmocka_unit_test(names_are_found_and_read_back),
        cmocka_unit_test(a_backoff_has_a_fraction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
