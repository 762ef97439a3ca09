/* Who holds a group: see mark.h. */
#include "comm/group/mark.h"

#include <stdlib.h>

#include "comm/group/group_impl.h"

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
