/* A failure that is remembered, and told to the other ranks; see step_failure.h. */
#include "train/reduction/step_failure.h"

#include <stdbool.h>

#include "base/status.h"
#include "base/str.h"

void step_failure_tell(struct muster_group *group, int code) {
    char detail[MUSTER_DETAIL_MAX];
    (void)str_copy(detail, sizeof detail, muster_detail());
    if (muster_group_status(group) == MUSTER_OK) {
        muster_group_abort(group, detail);
    }
    (void)status_fail(code, "%s", detail);
}

/* false: it has failed before. */
static bool remember(struct step_failure *failure, int code) {
    if (failure->code != MUSTER_OK) {
        return false;
    }
    failure->code = code;
    (void)str_copy(failure->detail, sizeof failure->detail, muster_detail());
    return true;
}

int step_failure_set(struct step_failure *failure, struct muster_group *group, int code) {
    if (remember(failure, code)) {
        step_failure_tell(group, code);
    }
    return step_failure_status(failure);
}

int step_failure_set_unagreed(struct step_failure *failure, struct muster_group *group, int code) {
    return code == MUSTER_EMISMATCH && remember(failure, code) ? code : step_failure_set(failure, group, code);
}

int step_failure_status(const struct step_failure *failure) {
    return failure->code == MUSTER_OK ? MUSTER_OK : status_fail(failure->code, "%s", failure->detail);
}
