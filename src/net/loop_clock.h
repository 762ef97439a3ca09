/* The clock of those who judge others by time on one libuv loop: base/absence.h, fed with the loop's turns. Whoever
 * owns the loop's work has one, and hands it to all who judge there, so that there is one clock and one rule. */
#ifndef MUSTER_NET_LOOP_CLOCK_H
#define MUSTER_NET_LOOP_CLOCK_H

#include <stdint.h>
#include <uv.h>

#include "base/absence.h"

struct loop_clock {
    uv_prepare_t before; /* the loop waits */
    uv_check_t after;
    struct absence absence;
};

/* Does not keep the loop running. */
void loop_clock_start(struct loop_clock *clock, uv_loop_t *loop);
/* `closed` comes twice, once a handle, whose `data` is for the caller to set (loop_clock_set_data()). */
void loop_clock_set_data(struct loop_clock *clock, void *data);
void loop_clock_close(struct loop_clock *clock, uv_close_cb closed);

/* Now, without the time that this process was away. NULL: uv_now(), absences are not noted. */
int64_t loop_clock_now_ms(struct loop_clock *clock, const uv_loop_t *loop);

/* One is silent until `deadline_ms` of that clock, and gives a sign of life every `interval_ms`. 0: it may be judged.
 * Else after how long to ask again, which may be before the deadline (absence_ask_ms()). */
int64_t loop_clock_left_ms(struct loop_clock *clock, const uv_loop_t *loop, int64_t deadline_ms, int64_t interval_ms);

#endif
