/* Events of a GPU, which are used again and again: to make one takes the driver longer than to record it. */
#ifndef COMM_EVENT_POOL_H
#define COMM_EVENT_POOL_H

#include <pthread.h>
#include <stddef.h>

#include "comm/device/device.h"

struct pooled_event {
    struct CUevent_st *event;
    struct pooled_event *next;
};

struct event_pool {
    pthread_mutex_t mutex;
    struct pooled_event *idle;
};

void event_pool_init(struct event_pool *pool);
/* All events are back, or nobody uses them any more: those that are not back stay. With the device's context entered.
 */
void event_pool_done(struct event_pool *pool, const struct device *device);

/* An event that comes when the stream has done what it has been given so far. Enters the device's context. Any thread.
 * MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int event_pool_record(struct event_pool *pool, const struct device *device, struct CUstream_st *stream,
                      struct pooled_event **out);
/* NULL is accepted. Streams that have been told to wait for it do so; it may be recorded anew. Any thread. */
void event_pool_return(struct event_pool *pool, struct pooled_event *event);

#endif
