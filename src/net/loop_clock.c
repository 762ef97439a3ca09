/* The judge's clock of a loop; see loop_clock.h. libuv may run callbacks of sockets or timers before those that are
 * called after waiting: so whoever asks for the time is the first to look, too. */
#include "net/loop_clock.h"

#include <stddef.h>

#include "base/clock.h"

static int64_t real_ms(void) {
    return clock_monotonic_ns() / CLOCK_NS_PER_MS;
}

static void look_at_timer(uv_handle_t *handle, void *ctx) {
    int64_t *first_ms = ctx;
    if (handle->type == UV_TIMER && uv_is_active(handle)) {
        int64_t due_in_ms = (int64_t)uv_timer_get_due_in((const uv_timer_t *)handle);
        *first_ms = due_in_ms < *first_ms ? due_in_ms : *first_ms;
    }
}

/* For how long the loop will wait at most; INT64_MAX: until something happens. libuv says 0 as long as it has
 * descriptors to hand to the kernel, which it does before it waits. So the timers are asked then. (It also says 0 when
 * it does not wait at all; the next turn comes at once, then, and nothing is late.) */
static int64_t wait_ms(uv_loop_t *loop) {
    int timeout_ms = uv_backend_timeout(loop);
    int64_t first_ms = INT64_MAX;
    if (timeout_ms == 0) {
        uv_walk(loop, look_at_timer, &first_ms);
        return first_ms;
    }
    return timeout_ms < 0 ? INT64_MAX : timeout_ms;
}

static void on_before(uv_prepare_t *handle) {
    struct loop_clock *clock = (struct loop_clock *)handle; /* its first member */
    int64_t left_ms = wait_ms(handle->loop), now_ms = real_ms();
    absence_wait(&clock->absence, now_ms, left_ms == INT64_MAX ? INT64_MAX : now_ms + left_ms);
}

static void on_after(uv_check_t *handle) {
    struct loop_clock *clock = (struct loop_clock *)(void *)((char *)handle - offsetof(struct loop_clock, after));
    absence_look(&clock->absence, real_ms());
}

void loop_clock_start(struct loop_clock *clock, uv_loop_t *loop) {
    absence_init(&clock->absence, real_ms());
    (void)uv_prepare_init(loop, &clock->before);
    (void)uv_check_init(loop, &clock->after);
    (void)uv_prepare_start(&clock->before, on_before);
    (void)uv_check_start(&clock->after, on_after);
    uv_unref((uv_handle_t *)&clock->before);
    uv_unref((uv_handle_t *)&clock->after);
}

void loop_clock_set_data(struct loop_clock *clock, void *data) {
    clock->before.data = clock->after.data = data;
}

void loop_clock_close(struct loop_clock *clock, uv_close_cb closed) {
    uv_close((uv_handle_t *)&clock->before, closed);
    uv_close((uv_handle_t *)&clock->after, closed);
}

int64_t loop_clock_now_ms(struct loop_clock *clock, const uv_loop_t *loop) {
    if (!clock) {
        return (int64_t)uv_now(loop);
    }
    int64_t now_ms = real_ms();
    absence_look(&clock->absence, now_ms);
    return absence_clock_ms(&clock->absence, now_ms);
}

int64_t loop_clock_left_ms(struct loop_clock *clock, const uv_loop_t *loop, int64_t deadline_ms, int64_t interval_ms) {
    int64_t now_ms = loop_clock_now_ms(clock, loop), from_ms = INT64_MIN;
    if (clock) {
        from_ms = absence_judges_from_ms(&clock->absence, interval_ms);
    }
    deadline_ms = from_ms > deadline_ms ? from_ms : deadline_ms;
    int64_t left_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 0;
    return clock ? absence_ask_ms(left_ms, interval_ms) : left_ms;
}
