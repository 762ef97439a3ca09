/* Uneven inputs: ranks that have run out of data keep the others company, so that these can go on. */
#include <string.h>

#include "base/status.h"
#include "train/ddp_impl.h"

int ddp_uneven_exchange(struct muster_ddp *ddp, enum ddp_presence presence, enum ddp_presence *out_step) {
    uint8_t *all = ddp->exchange.presence;
    uint32_t rank = muster_group_rank(ddp->group), size = muster_group_size(ddp->group);
    all[rank] = (uint8_t)presence;
    int status = muster_all_gather(ddp->group, all + rank, all, 1, MUSTER_UINT8, NULL);
    if (status != MUSTER_OK) {
        return status_prefix(status, "agreeing on who has data");
    }
    uint32_t active_count = 0, source = 0;
    for (uint32_t other = 0; other < size; other++) {
        if (all[other] == DDP_OUT_OF_DATA) {
            continue;
        }
        source = active_count == 0 ? other : source;
        active_count++;
        if (all[other] != all[source]) {
            return status_fail(MUSTER_EMISMATCH, "rank %u begins a step with%s synchronisation, rank %u one with%s",
                               source, all[source] == DDP_WITH_SYNC ? "" : "out", other,
                               all[other] == DDP_WITH_SYNC ? "" : "out");
        }
    }
    *out_step = active_count > 0 ? (enum ddp_presence)all[source] : DDP_OUT_OF_DATA;
    if (active_count > 0) { /* else they stay those of the last step: whose buffers are the newest */
        ddp->active_count = active_count;
        ddp->source = source;
    }
    return MUSTER_OK;
}

static int shadow_reduce(struct muster_ddp *ddp) {
    memset(ddp->layout->memory, 0, ddp->layout->memory_bytes);
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        ddp->parameters[i].is_used = false;
    }
    const struct ddp_aside nothing = {0};
    return ddp_step_end(ddp, &nothing);
}

static int shadow(struct muster_ddp *ddp, bool *stepped) {
    int status = ddp_status(ddp);
    if (status != MUSTER_OK) {
        return status;
    }
    if (!ddp->options.uneven_inputs || ddp->phase != DDP_IDLE) {
        return status_fail(MUSTER_EINVAL, !ddp->options.uneven_inputs ? "the ddp was made without uneven_inputs"
                                                                      : "the step before has not been finished");
    }
    enum ddp_presence step;
    do {
        status = ddp_uneven_exchange(ddp, DDP_OUT_OF_DATA, &step);
        if (status == MUSTER_OK && step != DDP_OUT_OF_DATA) {
            status = ddp_step_prepare(ddp, step == DDP_WITH_SYNC);
        }
    } while (status == MUSTER_OK && step == DDP_WITHOUT_SYNC);
    if (status == MUSTER_OK) {
        status = step == DDP_WITH_SYNC ? shadow_reduce(ddp) : ddp_agree_buffers(ddp, &ddp->exchange, ddp->source);
    }
    if (status != MUSTER_OK) {
        return ddp_fail(ddp, status);
    }
    *stepped = step == DDP_WITH_SYNC;
    return MUSTER_OK;
}

int muster_ddp_shadow(struct muster_ddp *ddp, bool *stepped) {
    int64_t entered_ns = ddp_enter(ddp);
    int status = shadow(ddp, stepped);
    ddp_leave(ddp, entered_ns, "ddp shadow");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_shadow");
}
