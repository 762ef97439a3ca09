/* What the reader and the writer of pickled states share; private to them. */
#ifndef RENDEZVOUS_PICKLE_IMPL_H
#define RENDEZVOUS_PICKLE_IMPL_H

#include "base/formats/unpickle.h"
#include "rendezvous/torch/state.h"

enum { PICKLE_PROTOCOL_WRITTEN = 4, PICKLE_BATCH = 1000 };

#define PICKLE_MODULE "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

/* What a class of a state is for. */
enum pickle_role {
    PICKLE_STATE,
    PICKLE_NODE,
    PICKLE_DATETIME,
    PICKLE_TIMEZONE,
    PICKLE_TIMEDELTA,
};

/* Fills an empty `out` from a tree. MUSTER_ECORRUPT, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int pickle_tree_state(const struct unpickled *tree, struct rdzv_state *out);

#endif
