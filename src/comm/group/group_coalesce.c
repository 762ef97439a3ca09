/* Calls between begin and end: they are noted (batch.c), and run at the end, by this thread or by the progress thread.
 * See muster/collective.h. */
#include <muster/collective.h>

#include "base/status.h"
#include "comm/group/work_impl.h"

int muster_coalesce_begin(struct muster_group *group) {
    int code = group_check(group);
    if (code) {
        return code;
    }
    if (group->coalesced) {
        return status_fail(MUSTER_EINVAL, "coalesce_begin: group '%s' is between begin and end already", group->name);
    }
    group->coalesced = batch_create();
    return group->coalesced ? 0 : status_fail(MUSTER_ENOMEM, "no memory to note calls");
}

int muster_coalesce_end(struct muster_group *group, struct muster_work **work) {
    int code = group_check(group);
    if (code) {
        return code;
    }
    struct batch *batch = group->coalesced;
    if (!batch) {
        return status_fail(MUSTER_EINVAL, "coalesce_end without coalesce_begin on group '%s'", group->name);
    }
    uintptr_t here = (uintptr_t)&here;
    if (!group_enter(group, here)) {
        return group_refuse_thread(group, "coalesce_end");
    }
    group->coalesced = NULL;
    if (!work && atomic_load_explicit(&group->queued_count, memory_order_acquire) == 0) {
        code = batch_run(group, batch, group->timeout_ns);
        batch_free(batch);
        return group_leave(group, here, code);
    }
    struct muster_work *own = NULL;
    code = work_submit_batch(group, batch, work ? work : &own);
    code = code || work ? code : muster_work_wait(&own);
    return group_leave(group, here, code);
}
