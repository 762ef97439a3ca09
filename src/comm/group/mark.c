/* Marks on the next calls of a group, and their stream; see mark.h. */
#include "comm/group/mark.h"

#include "comm/group/group_impl.h"

void group_mark_accumulated(struct muster_group *group, uint32_t steps) {
    group->accumulated = steps < COMM_MARK_OF_UNIT ? steps : COMM_MARK_OF_UNIT - 1;
}

void group_mark_unit(struct muster_group *group, uint32_t unit) {
    group->unit_mark = unit == GROUP_NO_UNIT ? 0 : 1 + (unit < GROUP_UNIT_MAX ? unit : GROUP_UNIT_MAX);
}

void *group_stream(const struct muster_group *group) {
    return group->stream;
}
