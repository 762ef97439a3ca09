/* On the host of the store: which connection belongs to which node, learned from who writes whose heartbeat. Works for
 * any agent, PyTorch's too. When a node's last known connection ends, the node has ended. */
#ifndef RENDEZVOUS_LIVENESS_H
#define RENDEZVOUS_LIVENESS_H

#include "rendezvous/torch/state.h"

struct liveness_entry {
    uint64_t connection;
    struct rdzv_node node;
};

struct liveness {
    struct liveness_entry *list; /* owned, unordered */
    size_t count;
    size_t capacity;
};

void liveness_init(struct liveness *liveness);
void liveness_done(struct liveness *liveness);

bool liveness_knows(const struct liveness *liveness, uint64_t connection);

/* A connection has turned `before` into `after`. MUSTER_ENOMEM. */
int liveness_wrote(struct liveness *liveness, uint64_t connection, const struct rdzv_state *before,
                   const struct rdzv_state *after);

/* A connection has ended. True, with the node in *out, if that node has no other. */
bool liveness_ended(struct liveness *liveness, uint64_t connection, struct rdzv_node *out);

/* Nodes other than `self` that have a connection. */
size_t liveness_count_others(const struct liveness *liveness, const struct rdzv_node *self);

#endif
