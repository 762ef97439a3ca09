/* Uneven inputs: ranks that have run out of data keep the others company, so that these can go on. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/reduction/ddp_impl.h"

static int shadow_reduce(struct muster_ddp *ddp) {
    struct ddp_aside aside = {0};
    int status = MUSTER_OK;
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        ddp->parameters[i].is_used = false;
    }
    if (ddp->options.find_unused) {
        status = ddp_step_settle(ddp, &aside); /* it keeps what may turn out to be used by nobody */
    } else {
        status = ddp_memory_clear(ddp->group, ddp->is_on_device, ddp->layout->memory, ddp->layout->memory_bytes);
    }
    status = status == MUSTER_OK ? ddp_step_end(ddp, &aside) : status;
    ddp_memory_let_go(ddp, aside.memory);
    return status;
}

static int shadow(struct muster_ddp *ddp, bool *stepped) {
    int status = ddp_step_status(ddp);
    if (status != MUSTER_OK) {
        return status;
    }
    if (!ddp->options.uneven_inputs || ddp->phase != DDP_IDLE) {
        return status_fail(MUSTER_EINVAL, !ddp->options.uneven_inputs ? "the ddp was made without uneven_inputs"
                                                                      : "the step before has not been finished");
    }
    enum presence_step step;
    do {
        status = ddp_agree_presence(ddp, PRESENCE_OUT_OF_DATA, &step);
        if (status == MUSTER_OK && step != PRESENCE_OUT_OF_DATA) {
            status = ddp_step_prepare(ddp, step == PRESENCE_WITH_SYNC);
        }
    } while (status == MUSTER_OK && step == PRESENCE_WITHOUT_SYNC);
    if (status == MUSTER_OK) {
        status = step == PRESENCE_WITH_SYNC ? shadow_reduce(ddp) : ddp_agree_buffers(ddp, &ddp->exchange, ddp->source);
    }
    if (status != MUSTER_OK) {
        return step_failure_set_unagreed(&ddp->failure, ddp->group, status);
    }
    *stepped = step == PRESENCE_WITH_SYNC;
    return MUSTER_OK;
}

int muster_ddp_shadow(struct muster_ddp *ddp, bool *stepped) {
    if (!ddp || !stepped) {
        return status_fail_null("muster_ddp_shadow", ddp ? "stepped" : "ddp");
    }
    int64_t entered_ns = step_clock_enter(&ddp->clock);
    int status = shadow(ddp, stepped);
    step_clock_leave(&ddp->clock, entered_ns, "ddp", "ddp shadow");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_shadow");
}
