/* Signals do not reach the threads that the library starts, and its caller's mask stays. */
#include "base/system/thread.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const int signals[] = {SIGTERM, SIGINT, SIGCHLD, SIGUSR1};
enum { SIGNALS = sizeof signals / sizeof *signals };

static size_t blocked_here(void) {
    sigset_t mask;
    size_t count = 0;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (size_t i = 0; i < SIGNALS; i++) {
        count += sigismember(&mask, signals[i]) == 1;
    }
    return count;
}

static void *count_blocked(void *argument) {
    *(size_t *)argument = blocked_here();
    return argument;
}

static void signals_are_blocked_in_it_alone(void **state) {
    (void)state;
    size_t before = blocked_here(), inside = 0;
    pthread_t thread;
    void *result = NULL;
    assert_true(before < SIGNALS);
    assert_int_equal(thread_start(&thread, NULL, count_blocked, &inside), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &inside);
    assert_int_equal(inside, SIGNALS);
    assert_int_equal(blocked_here(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_are_blocked_in_it_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
