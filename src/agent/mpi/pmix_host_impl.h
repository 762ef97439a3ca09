/* What the files of the PMIx host share, and nobody else.
 *
 * pmix_host.c    the library's beginning and end, and its callbacks
 * pmix_list.c    attributes that the library is given
 * pmix_job.c     what the library is told of the job
 * pmix_relay.c   exchanges with the other nodes
 * pmix_queue.c   from the library's thread to the loop */
#ifndef AGENT_PMIX_HOST_IMPL_H
#define AGENT_PMIX_HOST_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "agent/mpi/pmix_host.h"
#include "agent/mpi/pmix_library.h"

enum pmix_event_kind {
    PMIX_EVENT_FENCE,
    PMIX_EVENT_ASK,
    PMIX_EVENT_FOUND,
    PMIX_EVENT_ABORT,
    PMIX_EVENT_BEGUN,
    PMIX_EVENT_LEFT,
};

/* Something that the library wants, on its way from its thread to the loop. */
struct pmix_event {
    struct pmix_event *next;
    enum pmix_event_kind kind;
    int status; /* FOUND; of ABORT the code */
    uint32_t rank;
    uint32_t *ranks; /* FENCE: owned; NULL: all */
    size_t rank_count;
    char *data; /* owned; FENCE, FOUND, ABORT */
    size_t size;
    pmix_data_fn *done; /* FENCE, ASK */
    pmix_done_fn *aborted;
    void *ctx;
    struct mpi_question *question; /* FOUND */
};

/* How often ranks of one kind have met: the nodes count alike. */
struct pmix_meeting {
    uint64_t ranks; /* a fingerprint of them; 0: all */
    uint64_t count;
};

struct pmix_host {
    struct pmix_host_options options;
    struct pmix_library library;
    char space[PMIX_NAMESPACE_BYTES];
    char folder[1024];
    uv_async_t async;
    pthread_mutex_t lock; /* of the queue */
    struct pmix_event *first, **last;
    struct pmix_meeting *meetings;
    size_t meeting_count;
};

/* pmix_list.c: attributes, by their names in the PMIx standard. Values are copied. */
struct pmix_list {
    const struct pmix_library *library;
    void *list;
    int status; /* of the first one that could not be added; the rest is left out */
};
struct pmix_list pmix_list_new(const struct pmix_library *library);
void pmix_list_add(struct pmix_list *list, const char *key, const void *value, enum pmix_type type);
void pmix_list_text(struct pmix_list *list, const char *key, const char *text);
void pmix_list_rank(struct pmix_list *list, const char *key, uint32_t rank);
/* Ends the list. The array is the library's memory, and stays. The list's status, or that of the making. */
int pmix_list_array(struct pmix_list *list, struct pmix_array *out);

/* pmix_job.c */
int pmix_job_register(struct pmix_host *host);

/* pmix_relay.c: these take the event. */
void pmix_relay_fence(struct pmix_host *host, struct pmix_event *event);
void pmix_relay_ask(struct pmix_host *host, struct pmix_event *event);
void pmix_relay_found(struct pmix_event *event);
/* Other nodes may ask from now on. */
int pmix_relay_listen(struct pmix_host *host);

/* pmix_queue.c: from whatever thread. */
void pmix_queue_init(struct pmix_host *host);
/* With a copy of `data`, and a zero behind it. NULL: no memory. */
struct pmix_event *pmix_event_new(enum pmix_event_kind kind, const char *data, size_t size);
void pmix_event_free(struct pmix_event *event);                        /* NULL is fine */
void pmix_queue_put(struct pmix_host *host, struct pmix_event *event); /* takes it */
/* All that are there, the first one. */
struct pmix_event *pmix_queue_take(struct pmix_host *host);

#endif
