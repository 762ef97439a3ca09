/* Events that are used again; see event_pool.h. */
#include "comm/device/event_pool.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"

void event_pool_init(struct event_pool *pool) {
    *pool = (struct event_pool){.idle = NULL};
    (void)pthread_mutex_init(&pool->mutex, NULL);
}

void event_pool_done(struct event_pool *pool, const struct device *device) {
    for (struct pooled_event *event = pool->idle, *next; event; event = next) {
        next = event->next;
        (void)device->cuda->event_destroy(event->event);
        free(event);
    }
    pool->idle = NULL;
    (void)pthread_mutex_destroy(&pool->mutex);
}

static struct pooled_event *take_idle(struct event_pool *pool) {
    pthread_mutex_lock(&pool->mutex);
    struct pooled_event *event = pool->idle;
    if (event) {
        pool->idle = event->next;
    }
    pthread_mutex_unlock(&pool->mutex);
    return event;
}

void event_pool_return(struct event_pool *pool, struct pooled_event *event) {
    if (!event) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    event->next = pool->idle;
    pool->idle = event;
    pthread_mutex_unlock(&pool->mutex);
}

/* With the context entered. */
static int take(struct event_pool *pool, const struct device *device, struct pooled_event **out) {
    struct pooled_event *event = take_idle(pool);
    if (!event) {
        event = calloc(1, sizeof *event);
        if (!event) {
            return status_fail(MUSTER_ENOMEM, "no memory for an event");
        }
        unsigned result = device->cuda->event_create(&event->event, CUDA_EVENT_DISABLE_TIMING);
        if (result != CUDA_OK) {
            free(event);
            return cuda_fail(device->cuda, result, "make an event");
        }
    }
    *out = event;
    return 0;
}

int event_pool_record(struct event_pool *pool, const struct device *device, struct CUstream_st *stream,
                      struct pooled_event **out) {
    struct CUctx_st *previous = NULL;
    struct pooled_event *event = NULL;
    int code = device_enter(device, &previous);
    if (code) {
        return code;
    }
    code = take(pool, device, &event);
    if (code == 0) {
        assert(event);
        unsigned result = device->cuda->event_record(event->event, stream);
        code = result == CUDA_OK ? 0 : cuda_fail(device->cuda, result, "note where the caller's stream is");
    }
    device_leave(device, previous);
    if (code) {
        event_pool_return(pool, event);
        return code;
    }
    *out = event;
    return 0;
}
