/* What clients can make the server hold, in bytes: keys, values, queues, waits and unfinished messages all draw
 * on one account. */
#ifndef STORE_BUDGET_H
#define STORE_BUDGET_H

#include <assert.h>
#include <stddef.h>

#include "base/status.h"

struct kv_budget {
    size_t used_bytes;
    size_t max_bytes;
};

static inline int kv_budget_take(struct kv_budget *budget, size_t bytes) {
    if (bytes > budget->max_bytes - budget->used_bytes) {
        return status_fail(MUSTER_ELIMIT, "the store is full: %zu of %zu bytes used, %zu more needed",
                           budget->used_bytes, budget->max_bytes, bytes);
    }
    budget->used_bytes += bytes;
    return 0;
}

static inline void kv_budget_give(struct kv_budget *budget, size_t bytes) {
    assert(bytes <= budget->used_bytes);
    budget->used_bytes -= bytes;
}

#endif
