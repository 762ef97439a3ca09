/* Which deaths of workers are of the program's own making. */
#include "agent/report/own_failure.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

#include <cmocka.h>

static int exited(int code) {
    return code << 8;
}

static void expect(struct report_entry entry, const char *text) {
    char got[OWN_FAILURE_SIZE] = "?";
    own_failure_describe(&entry, 3, got);
    assert_string_equal(got, text);
}

static void exits_and_crashes_are_its_own(void **state) {
    (void)state;
    expect((struct report_entry){.wait_status = exited(1)}, "exit 1 in start 3");
    expect((struct report_entry){.wait_status = exited(255)}, "exit 255 in start 3");
    expect((struct report_entry){.wait_status = exited(128 + SIGSEGV)}, "exit 139 in start 3");
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static const char *const texts[] = {"signal 11 in start 3", "signal 7 in start 3", "signal 8 in start 3",
                                        "signal 4 in start 3", "signal 6 in start 3"};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) {
        expect((struct report_entry){.wait_status = crashes[i]}, texts[i]);
    }
}

static void what_comes_from_outside_is_not(void **state) {
    (void)state;
    static const int signals[] = {SIGKILL, SIGTERM, SIGINT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        expect((struct report_entry){.wait_status = signals[i]}, "");
        expect((struct report_entry){.wait_status = exited(128 + signals[i])}, ""); /* of a shell's command */
    }
    expect((struct report_entry){.wait_status = SIGHUP}, "");
    expect((struct report_entry){.wait_status = exited(0)}, "");
    expect((struct report_entry){.wait_status = exited(1), .stopped_by_us = true}, "");
    expect((struct report_entry){.wait_status = exited(1), .is_victim = true}, "");
    expect((struct report_entry){.wait_status = exited(1), .oom_killed = true}, "");
    expect((struct report_entry){.wait_status = exited(1), .stuck = true}, "");
    expect((struct report_entry){.wait_status = exited(1), .timer_expired = true}, "");
    expect((struct report_entry){.wait_status = exited(1), .guardian_lost = true}, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exits_and_crashes_are_its_own),
        cmocka_unit_test(what_comes_from_outside_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
