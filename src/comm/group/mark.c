/* Marks on the next calls of a group, their stream, and who holds a group; see mark.h. */
#include "comm/group/mark.h"

#include <stdlib.h>

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

/* ---- holding ---- */

void group_hold(struct muster_group *group) {
    atomic_fetch_add_explicit(&group->holder_count, 1, memory_order_relaxed);
}

void group_let_go(struct muster_group *group) {
    if (group && atomic_fetch_sub_explicit(&group->holder_count, 1, memory_order_acq_rel) == 1 && group->is_freed) {
        free(group);
    }
}

int group_check_freed(const struct muster_group *group) {
    return group->is_freed ? group_refuse(group) : 0;
}
