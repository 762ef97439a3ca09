/* Collectives through the rings: any call on any buffers. */
#ifndef COMM_NODE_STAGED_H
#define COMM_NODE_STAGED_H

#include "comm/node/node_plan.h"

/* To its end, or until it turns out that it can be done directly (NODE_AGREED_DIRECT). */
int node_staged_run(struct plan *plan, enum node_outcome *out);

#endif
