/* Collectives straight between buffers that all members can map. */
#ifndef COMM_NODE_DIRECT_H
#define COMM_NODE_DIRECT_H

#include "comm/node/node_plan.h"

/* Is it worth while to ask? Equal on all members. */
bool node_direct_is_worth(const struct plan *plan);
/* Fills in the offer: true if this member's buffers allow it. */
bool node_direct_offer(const struct plan *plan, struct node_offer *out);
/* After a step in which all have made one. */
int node_direct_run(const struct plan *plan);
/* The last step of a call in which members have used each other's buffers: waits until all have done with them. */
int node_part(struct node *node);

#endif
