/* Names of signals, beside the C library's own where it has them. */
#include "agent/report/signal_name.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void every_signal_but_real_time_ones_has_a_name(void **state) {
    (void)state;
    for (int number = 1; number < __SIGRTMIN; number++) {
        const char *name = signal_name(number);
        assert_non_null(name);
        assert_int_equal(signal_from_name(name, strlen(name)), number);
        assert_string_equal(signal_words(number), strsignal(number)); /* the locale is "C" */
    }
}

static void as_the_c_library_names_them(void **state) {
    const char *(*abbreviation)(int) = NULL;
    (void)state;
    *(void **)&abbreviation = dlsym(RTLD_DEFAULT, "sigabbrev_np");
    if (!abbreviation) {
        print_message("SKIP: this C library has no sigabbrev_np()\n");
        skip();
        return;
    }
    for (int number = 1; number < __SIGRTMIN; number++) {
        char name[32];
        (void)snprintf(name, sizeof name, "SIG%s", abbreviation(number));
        assert_int_equal(signal_from_name(name, strlen(name)), number); /* it says SIGPOLL for SIGIO */
        assert_true(number == SIGIO || strcmp(signal_name(number), name) == 0);
    }
}

static void what_is_no_signal(void **state) {
    (void)state;
    static const int numbers[] = {-3, 0, 32, 200};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        assert_null(signal_name(numbers[i]));
        assert_null(signal_words(numbers[i]));
    }
    assert_null(signal_name(SIGRTMIN + 1));
    assert_null(signal_words(SIGRTMIN));
    assert_null(signal_name(SIGRTMAX + 1));
    assert_string_equal(signal_name(SIGRTMIN), "SIGRTMIN");
    assert_string_equal(signal_name(SIGRTMAX), "SIGRTMAX");
    static const char *const names[] = {"", "SIG", "TERM", "SIGTER", "SIGTERMS", "sigterm", "SIGRTMIN"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(signal_from_name(names[i], strlen(names[i])), 0);
    }
    assert_int_equal(signal_from_name("SIGTERM,SIGINT", 7), SIGTERM);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_signal_but_real_time_ones_has_a_name),
                                       cmocka_unit_test(as_the_c_library_names_them),
                                       cmocka_unit_test(what_is_no_signal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
