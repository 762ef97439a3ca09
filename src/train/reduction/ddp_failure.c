/* A ddp that has failed: what it remembers, and who else is told; see ddp_impl.h. */
#include "base/status.h"
#include "base/str.h"
#include "train/reduction/ddp_impl.h"

void ddp_tell_others(struct muster_group *group, int code) {
    char detail[MUSTER_DETAIL_MAX];
    (void)str_copy(detail, sizeof detail, muster_detail());
    /* A mismatch that ddp itself has found is known to all ranks. */
    if (code != MUSTER_EMISMATCH && muster_group_status(group) == MUSTER_OK) {
        muster_group_abort(group, detail);
    }
    (void)status_fail(code, "%s", detail);
}

int ddp_fail(struct muster_ddp *ddp, int code) {
    if (ddp->failed != MUSTER_OK) {
        return ddp_status(ddp);
    }
    ddp->failed = code;
    (void)str_copy(ddp->failed_detail, MUSTER_DETAIL_MAX, muster_detail());
    ddp_tell_others(ddp->group, code);
    return code;
}

int ddp_status(const struct muster_ddp *ddp) {
    return ddp->failed == MUSTER_OK ? MUSTER_OK : status_fail(ddp->failed, "%s", ddp->failed_detail);
}
