/* The libuv loop of a process that promises one thread. */
#ifndef MUSTER_NET_EVENT_LOOP_H
#define MUSTER_NET_EVENT_LOOP_H

#include <uv.h>

/* uv_loop_init() without the polling kernel thread that libuv 1.45 to 1.48 give every loop (io_uring's submission
 * queue): it appears as a second thread of the process and keeps a processor busy for a while after each start. Call
 * while the process has one thread: for a moment it sets an environment variable. Returns 0, or MUSTER_ESYSTEM with a
 * sentence. */
int event_loop_init(uv_loop_t *loop);

#endif
