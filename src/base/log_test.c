/* Log lines: level, cut, silence without a sink, errno untouched. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct {
    int calls;
    enum log_level level;
    char file[64];
    char text[LOG_TEXT_MAX];
} seen;

static void keep(enum log_level level, const char *file, int line, const char *text) {
    assert_true(line > 0);
    seen.calls++;
    seen.level = level;
    (void)strncpy(seen.file, file, sizeof seen.file - 1);
    (void)strncpy(seen.text, text, sizeof seen.text - 1);
    errno = EBADF; /* a sink may disturb it */
}

static int reset(void **state) {
    (void)state;
    memset(&seen, 0, sizeof seen);
    log_set_level(LOG_LEVEL_WARNING);
    log_set_sink(keep);
    return 0;
}

static void a_line_reaches_the_sink_with_its_place(void **state) {
    (void)state;
    errno = EINTR;
    log_warning("worker %d is late", 3);
    assert_int_equal(errno, EINTR);
    assert_int_equal(seen.calls, 1);
    assert_int_equal(seen.level, LOG_LEVEL_WARNING);
    assert_string_equal(seen.file, "src/base/log_test.c");
    assert_string_equal(seen.text, "worker 3 is late");
}

static void lower_levels_are_dropped(void **state) {
    (void)state;
    log_info("not shown");
    log_debug("not shown");
    assert_int_equal(seen.calls, 0);
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("shown");
    assert_int_equal(seen.calls, 1);
    log_set_level(LOG_LEVEL_OFF);
    log_error("not shown");
    assert_int_equal(seen.calls, 1);
}

static void nothing_happens_without_a_sink(void **state) {
    (void)state;
    log_set_sink(NULL);
    log_error("to nobody");
    assert_int_equal(seen.calls, 0);
}

static void a_long_text_is_cut(void **state) {
    (void)state;
    char filler[2 * LOG_TEXT_MAX];
    memset(filler, 'x', sizeof filler);
    filler[sizeof filler - 1] = '\0';
    log_error("%s", filler);
    assert_int_equal(strlen(seen.text), LOG_TEXT_MAX - 1);
}

static void drop(enum log_level level, const char *file, int line, const char *text) {
    (void)level, (void)file, (void)line, (void)text;
}

static void *write_some(void *nothing) {
    for (int i = 0; i < 100; i++) {
        log_warning("line %d", i);
    }
    return nothing;
}

/* The thread sanitizer looks on. */
static void sink_and_level_may_change_while_lines_are_written(void **state) {
    (void)state;
    pthread_t writer;
    log_set_sink(drop);
    assert_int_equal(pthread_create(&writer, NULL, write_some, NULL), 0);
    for (int i = 0; i < 100; i++) {
        log_set_level(i % 2 ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR);
        log_set_sink(log_has_sink() ? NULL : drop);
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
}

static bool take_short(void *ctx, const char *text, size_t bytes) {
    (void)text;
    *(size_t *)ctx += bytes;
    return bytes < 5;
}

static void written_lines_can_be_diverted(void **state) {
    (void)state;
    size_t offered = 0;
    assert_false(log_divert("line", 4)); /* nobody takes it */
    log_set_divert(take_short, &offered);
    assert_true(log_divert("line", 4));
    assert_false(log_divert("longer", 6));
    assert_int_equal(offered, 10);
    log_set_divert(NULL, NULL);
    assert_false(log_divert("line", 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_line_reaches_the_sink_with_its_place, reset),
        cmocka_unit_test_setup(lower_levels_are_dropped, reset),
        cmocka_unit_test_setup(nothing_happens_without_a_sink, reset),
        cmocka_unit_test_setup(a_long_text_is_cut, reset),
        cmocka_unit_test_setup(sink_and_level_may_change_while_lines_are_written, reset),
        cmocka_unit_test_setup(written_lines_can_be_diverted, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
