/* What is asked of a kept state while a step is made: see fsdp_keep.c, which keeps and commits it. */
#include <stdlib.h>

#include "base/status.h"
#include "train/optimizers/optimizer_beside.h"
#include "train/units/fsdp_background.h"
#include "train/units/fsdp_copies.h"

int fsdp_keep_check_begin(const struct muster_fsdp *fsdp) {
    return fsdp->kept && copies_is_begun(fsdp->kept->copies)
               ? status_fail(MUSTER_EINVAL, "the optimizer's step has not been committed: muster_fsdp_commit() first")
               : MUSTER_OK;
}

bool fsdp_keep_has_committed(const struct muster_fsdp *fsdp) {
    return fsdp->kept && copies_step(fsdp->kept->copies) >= 0;
}

int fsdp_keep_check_load(const struct muster_fsdp *fsdp) {
    return fsdp_keep_has_committed(fsdp)
               ? status_fail(MUSTER_EINVAL, "the state is kept, and a step of it has been committed: load before that")
               : MUSTER_OK;
}

int fsdp_keep_step(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const float *const *gradients,
                   const struct muster_optimizer_step_options *options) {
    struct copies *copies = fsdp->kept->copies;
    if (optimizer != fsdp->kept->optimizer) {
        return status_fail(MUSTER_EINVAL, "the state that is kept is another optimizer's");
    }
    if (copies_is_begun(copies)) {
        return fsdp_keep_check_begin(fsdp);
    }
    fsdp_background_before_write(fsdp);
    fsdp_copies_before_write(fsdp);
    copies_begin(copies);
    return optimizer_step_beside(optimizer, gradients, options, copies_delta(copies));
}

void fsdp_keep_end(struct muster_fsdp *fsdp) {
    if (fsdp->kept) {
        fsdp_copies_end(fsdp);
        copies_close(fsdp->kept->copies);
        free(fsdp->kept);
        fsdp->kept = NULL;
    }
}
