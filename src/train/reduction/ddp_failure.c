/* A ddp that has failed: what it remembers, and who else is told; see ddp_impl.h. */
#include "base/status.h"
#include "base/str.h"
#include "train/reduction/ddp_impl.h"

void ddp_tell_others(struct muster_group *group, int code) {
    char detail[MUSTER_DETAIL_MAX];
    (void)str_copy(detail, sizeof detail, muster_detail());
    if (muster_group_status(group) == MUSTER_OK) {
        muster_group_abort(group, detail);
    }
    (void)status_fail(code, "%s", detail);
}

/* false: it has failed before. */
static bool remember(struct muster_ddp *ddp, int code) {
    if (ddp->failed != MUSTER_OK) {
        return false;
    }
    ddp->failed = code;
    (void)str_copy(ddp->failed_detail, MUSTER_DETAIL_MAX, muster_detail());
    return true;
}

int ddp_fail(struct muster_ddp *ddp, int code) {
    if (remember(ddp, code)) {
        ddp_tell_others(ddp->group, code);
    }
    return ddp_status(ddp);
}

int ddp_fail_to_agree(struct muster_ddp *ddp, int code) {
    return code == MUSTER_EMISMATCH && remember(ddp, code) ? code : ddp_fail(ddp, code);
}

int ddp_status(const struct muster_ddp *ddp) {
    return ddp->failed == MUSTER_OK ? MUSTER_OK : status_fail(ddp->failed, "%s", ddp->failed_detail);
}
