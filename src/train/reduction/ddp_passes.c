/* The passes of a step with virtual ranks: one for each that this rank has. What they add up to is in ddp_virtual.c. */
#include <muster/group.h>

#include "train/reduction/ddp_impl.h"

bool ddp_pass_is_last(const struct muster_ddp *ddp) {
    return ddp->pass + 1 == ddp->layout->virtual.own.count;
}

static uint32_t number_of(const struct muster_ddp *ddp) {
    return ddp->layout->virtual.own.first + ddp->pass;
}

static uint32_t push(struct muster_ddp *ddp) {
    return virtual_stack_push(&ddp->waiting, (struct virtual_node){0, number_of(ddp)});
}

static bool shares_buffers(const struct muster_ddp *ddp) {
    return ddp->options.broadcast_buffers && ddp->exchange.staged_bytes > 0;
}

void ddp_pass_begin(struct muster_ddp *ddp) {
    if (shares_buffers(ddp) && ddp->pass == 0) {
        (void)ddp_agree_stage(ddp, ddp->group, ddp->exchange.before); /* on the host: no failure */
    } else if (shares_buffers(ddp)) {
        (void)ddp_agree_unstage(ddp, ddp->group, ddp->exchange.before);
    }
    if (ddp_pass_is_last(ddp)) { /* buckets are given away as soon as they are complete */
        ddp->last_additions = push(ddp);
    }
}

static void keep_buffers(struct muster_ddp *ddp) {
    if (shares_buffers(ddp) && number_of(ddp) == 0) {
        (void)ddp_agree_stage(ddp, ddp->group, ddp->exchange.after);
    }
}

void ddp_pass_end(struct muster_ddp *ddp) {
    uint32_t top = ddp->waiting.count, additions = push(ddp);
    ddp_virtual_wait(ddp, top, additions);
    keep_buffers(ddp);
    ddp->pass++;
}

int ddp_pass_end_last(struct muster_ddp *ddp) {
    keep_buffers(ddp);
    ddp->pass = 0;
    ddp->waiting.count = 0;
    if (!shares_buffers(ddp)) {
        return MUSTER_OK;
    }
    if (muster_group_rank(ddp->group) == 0) {
        (void)ddp_agree_unstage(ddp, ddp->group, ddp->exchange.after);
    }
    int status = muster_group_size(ddp->group) > 1 ? ddp_agree_buffers(ddp, &ddp->exchange, 0) : MUSTER_OK;
    return status == MUSTER_OK ? status : step_failure_set(&ddp->failure, ddp->group, status);
}
