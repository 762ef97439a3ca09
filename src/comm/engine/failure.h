/* The one failure of a group: the first that anybody finds out, kept with its sentence for everybody who asks later. */
#ifndef COMM_FAILURE_H
#define COMM_FAILURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <muster/failure.h>
#include <muster/status.h>

struct failure {
    _Atomic int code;      /* 0: none; published after sentence and record */
    _Atomic bool was_told; /* to the program */
    pthread_mutex_t mutex;
    char sentence[MUSTER_DETAIL_MAX];
    struct muster_failure record;
};

void failure_init(struct failure *failure);
void failure_done(struct failure *failure);

/* true: this is the first. `before` (NULL: nothing) is then called with sentence and record in place, before any thread
 * can see the failure: what must have happened when the program hears of it. It may not use the failure's functions.
 * Any thread. */
bool failure_set(struct failure *failure, int code, const char *sentence, const struct muster_failure *record,
                 void (*before)(void *context, int code), void *context);

/* The code, with the sentence as this thread's detail, and the record; 0 when there is none. Any thread. */
int failure_get(struct failure *failure);
/* The same for the program: the result of a call that was under way when the group failed. */
int failure_tell(struct failure *failure);
/* The result of a call that comes later: the code too, if the program has not heard of it yet, else MUSTER_EGROUP. */
int failure_refuse(struct failure *failure);

static inline bool failure_is_set(const struct failure *failure) {
    return atomic_load_explicit(&failure->code, memory_order_acquire) != 0;
}

#endif
