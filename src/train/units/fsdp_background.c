/* See fsdp_background.h; fsdp_background_start.c says what is saved. */
#include "train/units/fsdp_background.h"

#include "base/sized.h"
#include "base/status.h"

int muster_fsdp_wait_checkpoint(struct muster_fsdp *fsdp) {
    if (!fsdp) {
        return status_fail_null("muster_fsdp_wait_checkpoint", "fsdp");
    }
    int status = background_wait(fsdp->background);
    return status ? status_prefix(status, "muster_fsdp_wait_checkpoint") : MUSTER_OK;
}

int muster_fsdp_background_statistics_sized(const struct muster_fsdp *fsdp, struct muster_background_statistics *out,
                                            size_t out_bytes) {
    struct muster_background_statistics now;
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_background_statistics", fsdp ? "out" : "fsdp");
    }
    background_numbers(fsdp->background, &now);
    sized_write(out, out_bytes, &now, sizeof now);
    return MUSTER_OK;
}

void fsdp_background_before_write(struct muster_fsdp *fsdp) {
    background_before_write(fsdp->background, copies_current(fsdp->kept->copies));
}

void fsdp_background_end(struct muster_fsdp *fsdp) {
    background_end(fsdp->background, step_failure_status(&fsdp->failure) != MUSTER_OK);
    fsdp->background = NULL;
}
