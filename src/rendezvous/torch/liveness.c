/* Connections and their nodes; see liveness.h. */
#include "rendezvous/torch/liveness.h"

#include <stdlib.h>

#include "base/status.h"

void liveness_init(struct liveness *liveness) {
    *liveness = (struct liveness){.count = 0};
}

void liveness_done(struct liveness *liveness) {
    free(liveness->list);
    liveness_init(liveness);
}

static struct liveness_entry *find(const struct liveness *liveness, uint64_t connection) {
    for (size_t i = 0; i < liveness->count; i++) {
        if (liveness->list[i].connection == connection) {
            return &liveness->list[i];
        }
    }
    return NULL;
}

bool liveness_knows(const struct liveness *liveness, uint64_t connection) {
    return find(liveness, connection) != NULL;
}

int liveness_wrote(struct liveness *liveness, uint64_t connection, const struct rdzv_state *before,
                   const struct rdzv_state *after) {
    const struct rdzv_node *writer = rdzv_state_writer(before, after);
    if (!writer || liveness_knows(liveness, connection)) {
        return MUSTER_OK;
    }
    if (liveness->count == liveness->capacity) {
        size_t capacity = liveness->capacity ? liveness->capacity * 2 : 8;
        struct liveness_entry *grown = realloc(liveness->list, capacity * sizeof *grown);
        if (!grown) {
            return status_fail(MUSTER_ENOMEM, "no memory to remember a node's connection");
        }
        liveness->list = grown;
        liveness->capacity = capacity;
    }
    liveness->list[liveness->count++] = (struct liveness_entry){.connection = connection, .node = *writer};
    return MUSTER_OK;
}

bool liveness_ended(struct liveness *liveness, uint64_t connection, struct rdzv_node *out) {
    struct liveness_entry *entry = find(liveness, connection);
    if (!entry) {
        return false;
    }
    *out = entry->node;
    *entry = liveness->list[--liveness->count];
    for (size_t i = 0; i < liveness->count; i++) {
        if (rdzv_node_compare(&liveness->list[i].node, out) == 0) {
            return false;
        }
    }
    return true;
}

size_t liveness_count_others(const struct liveness *liveness, const struct rdzv_node *self) {
    size_t count = 0;
    for (size_t i = 0; i < liveness->count; i++) {
        count += rdzv_node_compare(&liveness->list[i].node, self) != 0;
    }
    return count;
}
