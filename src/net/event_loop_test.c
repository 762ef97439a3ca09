/* Turns of a loop that end when they should. */
#include "net/event_loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_S = 60 };

static void on_time(uv_timer_t *timer) {
    *(bool *)timer->data = true;
    event_loop_wake(timer);
}

static void on_wake(uv_async_t *async) {
    (void)async;
}

/* Whoever looks after each turn hears of a timer that is due before the turn begins, though nothing else comes. */
static void a_timer_that_is_due_ends_the_turn(void **state) {
    (void)state;
    uv_loop_t loop;
    uv_timer_t timer;
    uv_async_t async;
    bool is_time = false;
    (void)alarm(PATIENCE_S);
    assert_int_equal(event_loop_init(&loop), 0);
    assert_int_equal(uv_async_init(&loop, &async, on_wake), 0); /* something to wait for */
    assert_int_equal(uv_timer_init(&loop, &timer), 0);
    timer.data = &is_time;
    for (int i = 0; i < 3; i++) {
        is_time = false;
        assert_int_equal(uv_timer_start(&timer, on_time, 0, 0), 0);
        while (!is_time) {
            (void)uv_run(&loop, UV_RUN_ONCE);
        }
    }
    uv_close((uv_handle_t *)&timer, NULL);
    uv_close((uv_handle_t *)&async, NULL);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0); /* the next turns are as ever */
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timer_that_is_due_ends_the_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
