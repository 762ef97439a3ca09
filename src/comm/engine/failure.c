/* First wins; see failure.h. */
#include "comm/engine/failure.h"

#include <assert.h>

#include "base/status.h"
#include "base/str.h"

void failure_init(struct failure *failure) {
    atomic_init(&failure->code, 0);
    atomic_init(&failure->was_told, false);
    (void)pthread_mutex_init(&failure->mutex, NULL);
    failure->sentence[0] = '\0';
}

void failure_done(struct failure *failure) {
    pthread_mutex_destroy(&failure->mutex);
}

bool failure_set(struct failure *failure, int code, const char *sentence, const struct muster_failure *record,
                 void (*before)(void *context, int code), void *context) {
    assert(code < 0);
    pthread_mutex_lock(&failure->mutex);
    bool is_first = !failure_is_set(failure);
    if (is_first) {
        (void)str_format(failure->sentence, sizeof failure->sentence, "%s", sentence);
        failure->record = *record;
        if (before) {
            before(context, code);
        }
        atomic_store_explicit(&failure->code, code, memory_order_release);
    }
    pthread_mutex_unlock(&failure->mutex);
    return is_first;
}

int failure_get(struct failure *failure) {
    int code = atomic_load_explicit(&failure->code, memory_order_acquire);
    /* They do not change once the code is there. */
    return code ? status_restore(code, failure->sentence, &failure->record) : 0;
}

int failure_tell(struct failure *failure) {
    atomic_store_explicit(&failure->was_told, true, memory_order_relaxed);
    return failure_get(failure);
}

int failure_refuse(struct failure *failure) {
    int code = failure_get(failure);
    return code && atomic_exchange_explicit(&failure->was_told, true, memory_order_relaxed) ? MUSTER_EGROUP : code;
}
