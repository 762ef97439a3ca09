/* How long a silent host is waited for, as the environment says it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/hold.h"
#include "base/log.h"

static int warnings;

static void count_warnings(enum log_level level, const char *file, int line, const char *text) {
    (void)file, (void)line;
    warnings += level == LOG_LEVEL_WARNING && strstr(text, "MUSTER_HOLD_TIMEOUT=") != NULL;
}

static void seconds_may_have_fractions(void **state) {
    (void)state;
    int64_t hold_ms = 0;
    assert_true(hold_parse("180", &hold_ms) && hold_ms == 180000);
    assert_true(hold_parse("2.5", &hold_ms) && hold_ms == 2500);
    assert_true(hold_parse("86400", &hold_ms) && hold_ms == HOLD_MAX_MS);
    const char *bad[] = {"", "0", "-1", "soon", "30s", "86401", "0.0001", "nan", "inf"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hold_ms = 7;
        assert_false(hold_parse(bad[i], &hold_ms));
        assert_int_equal(hold_ms, 7);
    }
}

static void what_is_broken_is_passed_over_with_a_word(void **state) {
    (void)state;
    const struct {
        const char *text; /* NULL: not set */
        int64_t hold_ms;
        int warnings;
    } cases[] = {{NULL, HOLD_DEFAULT_MS, 0}, {"", HOLD_DEFAULT_MS, 0}, {"0.7", 700, 0}, {"never", HOLD_DEFAULT_MS, 1}};
    log_set_sink(count_warnings);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        warnings = 0;
        assert_int_equal(
            cases[i].text ? setenv("MUSTER_HOLD_TIMEOUT", cases[i].text, 1) : unsetenv("MUSTER_HOLD_TIMEOUT"), 0);
        assert_int_equal(hold_from_env_ms(), cases[i].hold_ms);
        assert_int_equal(warnings, cases[i].warnings);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seconds_may_have_fractions),
        cmocka_unit_test(what_is_broken_is_passed_over_with_a_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
