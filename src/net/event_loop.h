/* The libuv loop of a process that promises one thread. */
#ifndef MUSTER_NET_EVENT_LOOP_H
#define MUSTER_NET_EVENT_LOOP_H

#include <uv.h>

/* uv_loop_init() without the polling kernel thread that libuv 1.45 to 1.48 give every loop (io_uring's submission
 * queue): it appears as a second thread of the process and keeps a processor busy for a while after each start. Call
 * while the process has one thread: for a moment it sets an environment variable. Returns 0, or MUSTER_ESYSTEM with a
 * sentence. */
int event_loop_init(uv_loop_t *loop);

/* For a timer's callback, where somebody looks after each uv_run(UV_RUN_ONCE) whether the time is over. A turn runs the
 * timers that are due already, and then waits for the next event, whatever they have done: without this it may wait for
 * ever. */
void event_loop_wake(uv_timer_t *timer);

#endif
