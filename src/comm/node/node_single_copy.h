/* Collectives in which members read each other's private memory, one copy each. */
#ifndef COMM_NODE_SINGLE_COPY_H
#define COMM_NODE_SINGLE_COPY_H

#include "comm/node/node_plan.h"

/* Once: what members need in order to try whether they may. */
int node_single_copy_init(struct node *node);
/* NODE_NOT_DONE: members may not read each other's memory. */
int node_single_copy_run(const struct plan *plan, enum node_outcome *out);

#endif
