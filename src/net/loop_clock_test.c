/* The judge's clock on a real loop: time in which the loop did not turn is not counted, and then it listens. */
#include "net/loop_clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"

enum { AWAY_MS = 600, INTERVAL_MS = 100000 };

struct scene {
    uv_loop_t loop;
    uv_timer_t timer;
    struct loop_clock clock;
    int64_t before_ms, left_ms;
    int closed;
};

static void on_closed(uv_handle_t *handle) {
    ((struct scene *)handle->data)->closed++;
}

static int setup(void **state) {
    static struct scene scene;
    scene = (struct scene){.closed = 0};
    assert_int_equal(uv_loop_init(&scene.loop), 0);
    (void)uv_timer_init(&scene.loop, &scene.timer);
    scene.timer.data = &scene;
    loop_clock_start(&scene.clock, &scene.loop);
    loop_clock_set_data(&scene.clock, &scene);
    *state = &scene;
    return 0;
}

static int teardown(void **state) {
    struct scene *scene = *state;
    loop_clock_close(&scene->clock, on_closed);
    uv_close((uv_handle_t *)&scene->timer, on_closed);
    (void)uv_run(&scene->loop, UV_RUN_DEFAULT);
    assert_int_equal(scene->closed, 3);
    assert_int_equal(uv_loop_close(&scene->loop), 0);
    return 0;
}

static void be_away(void) {
    const struct timespec away = {.tv_nsec = AWAY_MS * CLOCK_NS_PER_MS};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &away, NULL);
}

static void note(struct scene *scene) {
    int64_t now_ms = loop_clock_now_ms(&scene->clock, &scene->loop);
    scene->left_ms = loop_clock_left_ms(&scene->clock, &scene->loop, now_ms, INTERVAL_MS);
}

static void on_timer(uv_timer_t *timer) {
    note(timer->data);
}

/* A timer that is due is the first to run after an absence, before anything tells the clock of a turn. */
static void timer_that_runs_first_sees_the_absence(void **state) {
    struct scene *scene = *state;
    uv_update_time(&scene->loop);
    (void)uv_timer_start(&scene->timer, on_timer, AWAY_MS / 2, 0);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT); /* it is known when the next turn is due */
    int64_t before_ms = loop_clock_now_ms(&scene->clock, &scene->loop),
            real_ms = clock_monotonic_ns() / CLOCK_NS_PER_MS;
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    be_away();
    (void)uv_run(&scene->loop, UV_RUN_ONCE);
    int64_t counted_ms = loop_clock_now_ms(&scene->clock, &scene->loop) - before_ms;
    int64_t passed_ms = clock_monotonic_ns() / CLOCK_NS_PER_MS - real_ms;
    assert_true(passed_ms - counted_ms >= AWAY_MS - ABSENCE_TOLERANCE_MS);
    assert_true(scene->left_ms > 0); /* a deadline of now is not judged now */
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    (void)poll, (void)status, (void)events;
}

/* libuv has the descriptor still to hand to the kernel when it is asked how long it will wait. */
static void wait_after_a_new_descriptor_is_no_absence(void **state) {
    struct scene *scene = *state;
    int ends[2];
    uv_poll_t poll;
    assert_int_equal(pipe(ends), 0);
    (void)uv_poll_init(&scene->loop, &poll, ends[0]);
    poll.data = scene;
    (void)uv_check_stop(&scene->clock.after); /* else it looks again, and what was expected is lost */
    uv_update_time(&scene->loop);
    int64_t before_ms = clock_monotonic_ns() / CLOCK_NS_PER_MS;
    (void)uv_timer_start(&scene->timer, on_timer, INTERVAL_MS, 0);
    (void)uv_poll_start(&poll, UV_READABLE, on_readable);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    int64_t due_ms = scene->clock.absence.due_ms;
    uv_close((uv_handle_t *)&poll, on_closed);
    (void)uv_run(&scene->loop, UV_RUN_NOWAIT);
    assert_int_equal(scene->closed, 1);
    scene->closed = 0; /* teardown() counts its own */
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(close(ends[1]), 0);
    assert_true(due_ms - before_ms >= INTERVAL_MS);
}

static void without_a_clock_there_are_no_absences(void **state) {
    struct scene *scene = *state;
    int64_t now_ms = loop_clock_now_ms(NULL, &scene->loop);
    assert_int_equal(now_ms, (int64_t)uv_now(&scene->loop));
    assert_int_equal(loop_clock_left_ms(NULL, &scene->loop, now_ms, INTERVAL_MS), 0);
    assert_int_equal(loop_clock_left_ms(NULL, &scene->loop, now_ms + 7, INTERVAL_MS), 7);
}

static void clock_does_not_keep_the_loop_running(void **state) {
    struct scene *scene = *state;
    assert_int_equal(uv_run(&scene->loop, UV_RUN_DEFAULT), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(timer_that_runs_first_sees_the_absence, setup, teardown),
        cmocka_unit_test_setup_teardown(wait_after_a_new_descriptor_is_no_absence, setup, teardown),
        cmocka_unit_test_setup_teardown(without_a_clock_there_are_no_absences, setup, teardown),
        cmocka_unit_test_setup_teardown(clock_does_not_keep_the_loop_running, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
