/* Ranks that have run out of data keep the others company, so that these can go on. */
#include "base/status.h"
#include "train/units/fsdp_impl.h"

/* Between hosts every rank gathers its part of what the others compute with. */
static int pass_units(struct muster_fsdp *fsdp, enum muster_fsdp_pass pass) {
    int status = MUSTER_OK;
    for (uint32_t i = 0; status == MUSTER_OK && fsdp_gathers(fsdp) && i < fsdp->unit_count; i++) {
        uint32_t unit = pass == MUSTER_FSDP_FORWARD ? i : fsdp->unit_count - 1 - i;
        const void *parameters;
        status = fsdp_gather_acquire(fsdp, unit, pass, &parameters);
        if (status == MUSTER_OK) {
            fsdp_gather_release(fsdp, unit);
        }
        if (status == MUSTER_OK && pass == MUSTER_FSDP_BACKWARD && fsdp->kind == MUSTER_FSDP_STEP &&
            fsdp_learns(fsdp, unit)) {
            status = fsdp_reduce_complete(fsdp, unit);
        }
    }
    return status;
}

static int give_zeros(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    for (uint32_t i = fsdp->unit_count; status == MUSTER_OK && i-- > 0;) {
        fsdp->units[i].has_gradients = false; /* what it had accumulated is lost */
        if (!fsdp_gathers(fsdp) && fsdp_learns(fsdp, i)) {
            status = fsdp_reduce_complete(fsdp, i);
        }
    }
    return status;
}

static int shadow_step(struct muster_fsdp *fsdp, enum presence_step step) {
    bool sends = step == PRESENCE_WITH_SYNC;
    int status = fsdp_step_open(fsdp, sends ? MUSTER_FSDP_STEP : MUSTER_FSDP_NO_SYNC);
    status = status ? status : pass_units(fsdp, MUSTER_FSDP_FORWARD);
    status = status || !sends ? status : give_zeros(fsdp);
    status = status ? status : pass_units(fsdp, MUSTER_FSDP_BACKWARD);
    return status ? fsdp_fail(fsdp, status) : fsdp_step_close(fsdp);
}

static int shadow(struct muster_fsdp *fsdp, bool *stepped) {
    int status = step_failure_status(&fsdp->failure);
    if (status != MUSTER_OK) {
        return status;
    }
    if (!fsdp->options.uneven_inputs || fsdp->phase == FSDP_BEGUN) {
        return status_fail(MUSTER_EINVAL, fsdp->phase == FSDP_BEGUN ? "the step before has not been finished"
                                                                    : "the fsdp was made without uneven_inputs");
    }
    struct presence_result result = {.step = PRESENCE_WITHOUT_SYNC};
    while (status == MUSTER_OK && result.step == PRESENCE_WITHOUT_SYNC) {
        status = presence_agree(&fsdp->presence, PRESENCE_OUT_OF_DATA, &result);
        if (status != MUSTER_OK) {
            return fsdp_fail_unagreed(fsdp, status);
        }
        if (result.step != PRESENCE_OUT_OF_DATA) {
            fsdp->active_count = result.active_count;
            status = shadow_step(fsdp, result.step);
        }
    }
    *stepped = status == MUSTER_OK && result.step == PRESENCE_WITH_SYNC;
    return status;
}

int muster_fsdp_shadow(struct muster_fsdp *fsdp, bool *stepped) {
    if (!fsdp || !stepped) {
        return status_fail_null("muster_fsdp_shadow", fsdp ? "stepped" : "fsdp");
    }
    int64_t entered_ns = step_clock_enter(&fsdp->clock);
    int status = shadow(fsdp, stepped);
    step_clock_leave(&fsdp->clock, entered_ns, "fsdp", "fsdp shadow");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_shadow");
}
