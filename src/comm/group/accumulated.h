/* Marks all_reduces whose data has been accumulated over several steps, so that ranks that disagree about how many are
 * told, at no cost: the mark travels in the fingerprint that ranks compare anyway. For train's ddp. */
#ifndef COMM_GROUP_ACCUMULATED_H
#define COMM_GROUP_ACCUMULATED_H

#include <stdint.h>

#include <muster/group.h>

/* From now on all_reduces on `group` carry `steps` (cut at COMM_ACCUMULATED_MAX); 0: none. By the thread that calls
 * collectives on it. */
void group_mark_accumulated(struct muster_group *group, uint32_t steps);

#endif
