/* All_reduce and reduce through the rings, each member reducing a part. */
#ifndef COMM_NODE_TWO_STAGE_H
#define COMM_NODE_TWO_STAGE_H

#include "comm/node/node_plan.h"

/* From element `at` on. */
int node_two_stage_run(const struct plan *plan, size_t at);

#endif
