/* The steps of a ddp: begin, ready, finish. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/group/mark.h"
#include "train/reduction/ddp_impl.h"

int ddp_step_prepare(struct muster_ddp *ddp, bool is_synchronised) {
    int status = MUSTER_OK;
    bool is_virtual = ddp->options.virtual_ranks > 0;
    if ((is_virtual ? ddp->pass == 0 : is_synchronised) && ddp->is_rebuild_due) {
        status = ddp_agree_order(ddp, ddp->order_source);
    }
    if (is_virtual) {
        ddp_pass_begin(ddp); /* buffers have been shared at the end of the last step */
    } else if (status == MUSTER_OK && ddp->is_broadcast_due && ddp->options.broadcast_buffers) {
        status = ddp_agree_buffers(ddp, &ddp->exchange, ddp->source);
    }
    ddp->is_broadcast_due = is_synchronised;
    ddp_reduce_reset(ddp);
    return status;
}

int ddp_step_status(const struct muster_ddp *ddp) {
    int status = step_failure_status(&ddp->failure);
    return status != MUSTER_OK ? status : group_check_freed(ddp->group);
}

static int begin(struct muster_ddp *ddp, enum ddp_phase phase) {
    int status = ddp_step_status(ddp);
    if (status != MUSTER_OK) {
        return status;
    }
    if (ddp->phase != DDP_IDLE) {
        return status_fail(MUSTER_EINVAL, "the step before has not been finished");
    }
    if (ddp->options.virtual_ranks > 0 && phase == DDP_NO_SYNC) {
        return status_fail(MUSTER_EINVAL, "with virtual_ranks the ddp adds up by itself: call muster_ddp_begin()");
    }
    if (ddp->options.virtual_ranks > 0 && !ddp_pass_is_last(ddp)) {
        phase = DDP_NO_SYNC;
    }
    enum presence_step own = phase == DDP_STEP ? PRESENCE_WITH_SYNC : PRESENCE_WITHOUT_SYNC;
    if (ddp->options.uneven_inputs) {
        enum presence_step step;
        status = ddp_agree_presence(ddp, own, &step);
    }
    if (status == MUSTER_OK) {
        status = ddp_step_prepare(ddp, phase == DDP_STEP);
    }
    if (status != MUSTER_OK) {
        return step_failure_set_unagreed(&ddp->failure, ddp->group, status);
    }
    ddp->phase = phase;
    return MUSTER_OK;
}

int muster_ddp_begin(struct muster_ddp *ddp) {
    if (!ddp) {
        return status_fail_null("muster_ddp_begin", "ddp");
    }
    int64_t entered_ns = step_clock_enter(&ddp->clock);
    int status = begin(ddp, DDP_STEP);
    step_clock_leave(&ddp->clock, entered_ns, "ddp", "ddp begin");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_begin");
}

int muster_ddp_begin_no_sync(struct muster_ddp *ddp) {
    if (!ddp) {
        return status_fail_null("muster_ddp_begin_no_sync", "ddp");
    }
    int64_t entered_ns = step_clock_enter(&ddp->clock);
    int status = begin(ddp, DDP_NO_SYNC);
    step_clock_leave(&ddp->clock, entered_ns, "ddp", "ddp begin");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_begin_no_sync");
}

static int copy(struct muster_ddp *ddp, void *to, const void *from, size_t bytes) {
    return ddp_memory_copy(ddp->group, ddp->is_on_device, to, from, bytes);
}

static int copy_in(struct muster_ddp *ddp, uint32_t index) {
    const struct ddp_parameter *parameter = &ddp->parameters[index];
    return parameter->own_gradient ? copy(ddp, ddp_layout_gradient(ddp->layout, index), parameter->own_gradient,
                                          parameter->count * muster_type_bytes(parameter->type))
                                   : MUSTER_OK;
}

static int copy_out(struct muster_ddp *ddp, uint32_t index) {
    const struct ddp_parameter *parameter = &ddp->parameters[index];
    return parameter->own_gradient ? copy(ddp, parameter->own_gradient, ddp_layout_gradient(ddp->layout, index),
                                          parameter->count * muster_type_bytes(parameter->type))
                                   : MUSTER_OK;
}

/* This rank's GPU did not take it. */
static int copy_failed(struct muster_ddp *ddp, uint32_t index, int status) {
    (void)status_prefix(status, "copying the gradient of %s", ddp->parameters[index].name);
    return step_failure_set(&ddp->failure, ddp->group, status);
}

static int ready(struct muster_ddp *ddp, size_t index) {
    int status = ddp_step_status(ddp);
    if (status != MUSTER_OK) {
        return status;
    }
    if (ddp->phase == DDP_IDLE || index >= ddp->parameter_count) {
        return status_fail(
            MUSTER_EINVAL,
            ddp->phase == DDP_IDLE ? "no step has been begun (parameter %zu)" : "there is no parameter %zu", index);
    }
    struct ddp_parameter *parameter = &ddp->parameters[index];
    if (parameter->is_ready) {
        return status_fail(MUSTER_EINVAL,
                           "the gradient of \"%s\" is ready for the second time in this step (a parameter that is "
                           "used several times is ready after the last)",
                           parameter->name);
    }
    parameter->is_ready = true;
    parameter->is_used = true;
    bool is_due = ddp->phase == DDP_STEP || ddp->options.virtual_ranks > 0;
    status = is_due ? copy_in(ddp, (uint32_t)index) : MUSTER_OK;
    if (status != MUSTER_OK || ddp->phase == DDP_NO_SYNC) {
        return status == MUSTER_OK ? status : copy_failed(ddp, (uint32_t)index, status);
    }
    if (!ddp->is_rebuilt) {
        assert(ddp->ready_count < ddp->parameter_count);
        ddp->ready_order[ddp->ready_count++] = (uint32_t)index;
    }
    struct ddp_bucket *bucket = &ddp->layout->buckets[ddp->layout->items[index].bucket];
    assert(bucket->missing > 0); /* else it would be reduced without some of its gradients */
    bucket->missing--;
    return ddp_reduce_advance(ddp);
}

int muster_ddp_ready(struct muster_ddp *ddp, size_t index) {
    if (!ddp) {
        return status_fail_null("muster_ddp_ready", "ddp");
    }
    int64_t entered_ns = step_clock_enter(&ddp->clock);
    int status = ready(ddp, index);
    step_clock_leave(&ddp->clock, entered_ns, NULL, NULL);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_ready");
}

/* The names of parameters without a gradient, as many as fit. */
static int tell_missing(struct muster_ddp *ddp, uint32_t missing_count) {
    char names[600];
    size_t used = 0;
    uint32_t told = 0;
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        size_t length = strlen(parameter->name);
        if (parameter->is_ready || used + length + sizeof ", and 65536 more" > sizeof names) {
            continue;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", told > 0 ? ", " : "", parameter->name);
        told++;
    }
    if (told < missing_count) {
        (void)snprintf(names + used, sizeof names - used, ", and %u more", missing_count - told);
    }
    return status_fail(MUSTER_EINVAL,
                       "rank %u has no gradient in this step for %s: call muster_ddp_ready() for every parameter, or "
                       "set find_unused",
                       muster_group_rank(ddp->group), names);
}

static bool is_set_aside(const struct ddp_parameter *parameter) {
    return !parameter->is_used && !parameter->own_gradient;
}

int ddp_step_settle(struct muster_ddp *ddp, struct ddp_aside *aside) {
    uint32_t missing_count = 0;
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        missing_count += !parameter->is_ready;
        aside->bytes += is_set_aside(parameter) ? parameter->count * muster_type_bytes(parameter->type) : 0;
    }
    if (missing_count == 0) {
        return MUSTER_OK;
    }
    if (!ddp->options.find_unused) {
        return tell_missing(ddp, missing_count);
    }
    void *memory = NULL;
    int status = aside->bytes > 0 ? ddp_memory_keep(ddp, aside->bytes, &memory) : MUSTER_OK;
    aside->memory = memory;
    uint8_t *kept = memory;
    for (uint32_t i = 0; status == MUSTER_OK && i < ddp->parameter_count; i++) {
        const struct ddp_parameter *parameter = &ddp->parameters[i];
        size_t bytes = parameter->count * muster_type_bytes(parameter->type);
        void *place = ddp_layout_gradient(ddp->layout, i);
        if (kept && is_set_aside(parameter)) {
            status = copy(ddp, kept, place, bytes);
            kept += bytes;
        }
        if (status == MUSTER_OK && !parameter->is_used) {
            status = ddp_memory_clear(ddp->group, ddp->is_on_device, place, bytes);
        } else if (status == MUSTER_OK && !parameter->is_ready) {
            status = copy_in(ddp, i);
        }
    }
    return status;
}

/* Which parameters did any rank use? The call comes after those of all buckets, on every rank. */
static int agree_on_use(struct muster_ddp *ddp) {
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        ddp->used[i] = ddp->parameters[i].is_used;
    }
    int status =
        muster_all_reduce(ddp->group, ddp->used, ddp->used, ddp->parameter_count, MUSTER_UINT8, MUSTER_OP_MAX, NULL);
    if (status != MUSTER_OK) {
        (void)status_prefix(status, "agreeing on which parameters were used");
        return step_failure_set(&ddp->failure, ddp->group, status);
    }
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        ddp->parameters[i].was_used = ddp->used[i] != 0;
    }
    return MUSTER_OK;
}

/* Gives gradients to who owns them, and those that nobody had back what they were. */
static int deliver(struct muster_ddp *ddp, const struct ddp_aside *aside) {
    const uint8_t *kept = aside->memory;
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        struct ddp_parameter *parameter = &ddp->parameters[i];
        size_t bytes = parameter->count * muster_type_bytes(parameter->type);
        int status = MUSTER_OK;
        if (kept && is_set_aside(parameter)) {
            status = parameter->was_used ? MUSTER_OK : copy(ddp, ddp_layout_gradient(ddp->layout, i), kept, bytes);
            kept += bytes;
        }
        if (status == MUSTER_OK && parameter->was_used) {
            status = copy_out(ddp, i);
        }
        if (status != MUSTER_OK) {
            return copy_failed(ddp, i, status);
        }
        parameter->is_used = false;
    }
    return MUSTER_OK;
}

int ddp_step_end(struct muster_ddp *ddp, const struct ddp_aside *aside) {
    int status = ddp_reduce_finish(ddp);
    if (status == MUSTER_OK && ddp->options.find_unused) {
        status = agree_on_use(ddp);
    }
    status = status == MUSTER_OK ? deliver(ddp, aside) : status;
    if (status != MUSTER_OK) {
        return status;
    }
    ddp->numbers.step_count++;
    ddp->accumulated = 0;
    ddp->is_rebuild_due = !ddp->is_rebuilt;
    ddp->order_source =
        ddp->source; /* the next step may have another: one that was a shadow in this one has no order */
    return MUSTER_OK;
}

/* The end of a virtual rank's pass that is not the last one of the step. */
static int finish_pass(struct muster_ddp *ddp) {
    int status = step_failure_status(&ddp->failure);
    uint32_t missing_count = 0;
    for (uint32_t i = 0; i < ddp->parameter_count; i++) {
        missing_count += !ddp->parameters[i].is_ready;
    }
    if (status == MUSTER_OK && missing_count > 0) {
        return step_failure_set(&ddp->failure, ddp->group, tell_missing(ddp, missing_count));
    }
    if (status == MUSTER_OK) {
        ddp_pass_end(ddp);
    }
    return status;
}

static int finish(struct muster_ddp *ddp) {
    int there = group_check_freed(ddp->group);
    if (there != MUSTER_OK) {
        return there;
    }
    if (ddp->phase == DDP_IDLE) {
        int status = step_failure_status(&ddp->failure);
        return status != MUSTER_OK ? status : status_fail(MUSTER_EINVAL, "no step has been begun");
    }
    enum ddp_phase phase = ddp->phase;
    ddp->phase = DDP_IDLE;
    if (phase == DDP_NO_SYNC && ddp->options.virtual_ranks > 0) {
        return finish_pass(ddp);
    }
    if (phase == DDP_NO_SYNC) {
        ddp->numbers.no_sync_count++;
        ddp->accumulated++;
        return step_failure_status(&ddp->failure);
    }
    struct ddp_aside aside = {0};
    int status = ddp->failure.code == MUSTER_OK ? ddp_step_settle(ddp, &aside) : MUSTER_OK;
    if (status != MUSTER_OK) { /* it comes back from the end of the step, which waits for what is under way */
        (void)step_failure_set(&ddp->failure, ddp->group, status);
    }
    status = ddp_step_end(ddp, &aside);
    ddp_memory_let_go(ddp, aside.memory);
    if (status == MUSTER_OK && ddp->options.virtual_ranks > 0) {
        status = ddp_pass_end_last(ddp);
    }
    return status;
}

int muster_ddp_finish(struct muster_ddp *ddp) {
    if (!ddp) {
        return status_fail_null("muster_ddp_finish", "ddp");
    }
    int64_t entered_ns = step_clock_enter(&ddp->clock);
    int status = finish(ddp);
    step_clock_leave(&ddp->clock, entered_ns, "ddp", "ddp finish");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_ddp_finish");
}
