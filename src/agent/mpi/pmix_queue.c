/* What PMIx's library wants, on its way from its thread to the loop. */
#include <stdlib.h>
#include <string.h>

#include "agent/mpi/pmix_host_impl.h"

void pmix_queue_init(struct pmix_host *host) {
    host->last = &host->first;
    (void)pthread_mutex_init(&host->lock, NULL);
}

struct pmix_event *pmix_event_new(enum pmix_event_kind kind, const char *data, size_t size) {
    struct pmix_event *event = calloc(1, sizeof *event);
    char *copy = event ? malloc(size + 1) : NULL;
    if (!copy) {
        free(event);
        return NULL;
    }
    if (size > 0) {
        memcpy(copy, data, size);
    }
    copy[size] = '\0';
    event->kind = kind;
    event->data = copy;
    event->size = size;
    return event;
}

void pmix_event_free(struct pmix_event *event) {
    if (event) {
        free(event->ranks);
        free(event->data);
        free(event);
    }
}

void pmix_queue_put(struct pmix_host *host, struct pmix_event *event) {
    (void)pthread_mutex_lock(&host->lock);
    *host->last = event;
    host->last = &event->next;
    (void)pthread_mutex_unlock(&host->lock);
    (void)uv_async_send(&host->async);
}

struct pmix_event *pmix_queue_take(struct pmix_host *host) {
    (void)pthread_mutex_lock(&host->lock);
    struct pmix_event *first = host->first;
    host->first = NULL;
    host->last = &host->first;
    (void)pthread_mutex_unlock(&host->lock);
    return first;
}
