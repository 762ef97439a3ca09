/* The steps of an fsdp: begin, acquire, release, finish. */
#include <stdlib.h>

#include <muster/collective.h>

#include "base/clock.h"
#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/observe/trace.h"
#include "train/units/fsdp_virtual.h"

static const char *kind_name(enum muster_fsdp_step_kind kind) {
    static const char *const names[] = {[MUSTER_FSDP_STEP] = "STEP",
                                        [MUSTER_FSDP_ACCUMULATE] = "ACCUMULATE",
                                        [MUSTER_FSDP_NO_SYNC] = "NO_SYNC",
                                        [MUSTER_FSDP_EVALUATE] = "EVALUATE"};
    return names[kind];
}

/* ---- begin ---- */

enum { KIND, MINUS_KIND, ACCUMULATED, MINUS_ACCUMULATED, ADDS, MINUS_ADDS, AGREED };

/* Who differs from rank 0? All know that somebody does. */
static int tell_difference(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    struct muster_group *group = fsdp->mesh.group;
    uint32_t size = muster_group_size(group), own[3] = {kind, fsdp->accumulated, fsdp->adds_to_shard};
    uint32_t(*all)[3] = calloc(size, sizeof *all);
    int status = all ? muster_all_gather(group, own, all, 3, MUSTER_UINT32, NULL)
                     : status_fail(MUSTER_ENOMEM, "no memory to compare the steps of %u ranks", size);
    for (uint32_t rank = 1; status == MUSTER_OK && rank < size; rank++) {
        const uint32_t *here = all[0], *there = all[rank];
        if (here[0] != there[0]) {
            status = status_fail(MUSTER_EMISMATCH, "rank %u begins a step %s, rank 0 a step %s", rank,
                                 kind_name(there[0]), kind_name(here[0]));
        } else if (here[1] != there[1]) {
            status =
                status_fail(MUSTER_EMISMATCH, "rank %u has made %u steps NO_SYNC since the last that sent, rank 0 %u",
                            rank, there[1], here[1]);
        } else if (here[2] != there[2]) {
            status = status_fail(MUSTER_EMISMATCH, "rank %u and rank 0: one has made steps ACCUMULATE, the other none",
                                 rank);
        }
    }
    free(all);
    return status;
}

/* All ranks begin the same step, and none before the others have written what they write between steps. */
static int meet(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    int32_t said[AGREED] = {[KIND] = (int32_t)kind,
                            [MINUS_KIND] = -(int32_t)kind,
                            [ACCUMULATED] = (int32_t)fsdp->accumulated,
                            [MINUS_ACCUMULATED] = -(int32_t)fsdp->accumulated,
                            [ADDS] = fsdp->adds_to_shard,
                            [MINUS_ADDS] = -(int32_t)fsdp->adds_to_shard};
    int32_t most[AGREED];
    int status = muster_all_reduce(fsdp->mesh.group, said, most, AGREED, MUSTER_INT32, MUSTER_OP_MAX, NULL);
    for (int i = KIND; status == MUSTER_OK && i < AGREED; i += 2) {
        if (most[i] != -most[i + 1]) {
            status = tell_difference(fsdp, kind);
        }
    }
    return status;
}

int fsdp_step_open(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    int status = meet(fsdp, kind);
    if (status != MUSTER_OK) {
        return fsdp_fail_unagreed(fsdp, status);
    }
    if (fsdp_gathers(fsdp)) {
        fsdp_gather_begin(fsdp, kind);
    }
    fsdp_reduce_reset(fsdp);
    fsdp->kind = kind;
    fsdp->phase = FSDP_BEGUN;
    if (fsdp->virtual && kind == MUSTER_FSDP_STEP) {
        fsdp_virtual_begin_round(fsdp);
    }
    return MUSTER_OK;
}

/* With uneven inputs the ranks first tell each other who has data. */
static int agree_on_presence(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    struct presence_result result;
    if (!fsdp->options.uneven_inputs || kind == MUSTER_FSDP_EVALUATE) {
        return MUSTER_OK;
    }
    int status =
        presence_agree(&fsdp->presence, kind == MUSTER_FSDP_STEP ? PRESENCE_WITH_SYNC : PRESENCE_WITHOUT_SYNC, &result);
    fsdp->active_count = status == MUSTER_OK ? result.active_count : fsdp->active_count;
    return status == MUSTER_OK ? MUSTER_OK : fsdp_fail_unagreed(fsdp, status);
}

static int begin(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    int status = step_failure_status(&fsdp->failure);
    if (status != MUSTER_OK) {
        return status;
    }
    if (kind < MUSTER_FSDP_STEP || kind > MUSTER_FSDP_EVALUATE) {
        return status_fail(MUSTER_EINVAL, "there is no kind of step %d", (int)kind);
    }
    if (fsdp->phase == FSDP_BEGUN) {
        return status_fail(MUSTER_EINVAL, "the step before has not been finished");
    }
    if (kind == MUSTER_FSDP_ACCUMULATE && fsdp->options.uneven_inputs) {
        return status_fail(MUSTER_EINVAL, "a step ACCUMULATE with uneven_inputs: use NO_SYNC");
    }
    status = fsdp_virtual_check_begin(fsdp, kind);
    status = status ? status : fsdp_keep_check_begin(fsdp);
    status = status ? status : agree_on_presence(fsdp, kind);
    return status ? status : fsdp_step_open(fsdp, kind);
}

int muster_fsdp_begin(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    if (!fsdp) {
        return status_fail_null("muster_fsdp_begin", "fsdp");
    }
    int64_t entered_ns = step_clock_enter(&fsdp->clock);
    int status = begin(fsdp, kind);
    step_clock_leave(&fsdp->clock, entered_ns, "fsdp", "fsdp begin");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_begin");
}

/* ---- acquire ---- */

static int check_unit(const struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    int status = step_failure_status(&fsdp->failure);
    if (status != MUSTER_OK) {
        return status;
    }
    if (unit >= fsdp->unit_count) {
        return status_fail(MUSTER_EINVAL, "unit %zu of %u: it has not been registered", unit, fsdp->unit_count);
    }
    if (pass != MUSTER_FSDP_FORWARD && pass != MUSTER_FSDP_BACKWARD) {
        return status_fail(MUSTER_EINVAL, "unit %zu (%s): there is no pass %d", unit, fsdp->units[unit].name,
                           (int)pass);
    }
    if (fsdp->phase != FSDP_BEGUN) {
        return status_fail(MUSTER_EINVAL, "no step has been begun (unit %zu, %s)", unit, fsdp->units[unit].name);
    }
    if (pass == MUSTER_FSDP_BACKWARD && fsdp->kind == MUSTER_FSDP_EVALUATE) {
        return status_fail(MUSTER_EINVAL, "a backward pass in a step EVALUATE (unit %zu, %s)", unit,
                           fsdp->units[unit].name);
    }
    return MUSTER_OK;
}

/* What was released for good may be written by its owner when the step is finished: nobody may look at it again. */
static int check_use(const struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass) {
    const struct fsdp_unit *it = &fsdp->units[unit];
    if (it->stage != FSDP_AWAITED) {
        return status_fail(MUSTER_EINVAL,
                           "unit %u (%s) is acquired after it was released in the backward pass as often as it was "
                           "acquired in the forward pass: its gradients are complete",
                           unit, it->name);
    }
    if (pass == MUSTER_FSDP_BACKWARD && it->backward_count + it->backward_held >= it->forward_count) {
        return status_fail(MUSTER_EINVAL,
                           "unit %u (%s) is acquired in the backward pass more often than in the forward pass (%u)",
                           unit, it->name, it->forward_count);
    }
    if (pass == MUSTER_FSDP_BACKWARD && it->backward_held > 0 && fsdp_learns(fsdp, unit)) {
        return status_fail(MUSTER_EINVAL,
                           "unit %u (%s) is acquired in the backward pass while it is held there: release it first",
                           unit, it->name);
    }
    return fsdp_order_check_use(fsdp, unit, pass);
}

static int find_parameters(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, const void **out) {
    if (fsdp_gathers(fsdp)) {
        return fsdp_gather_acquire(fsdp, unit, pass, out);
    }
    const struct state_region *region = fsdp->copy.memory ? &fsdp->copy : &fsdp->values;
    *out = (const char *)region->memory +
           fsdp_shape(fsdp, unit)->stored_begin * muster_type_bytes(fsdp->options.compute_type);
    return MUSTER_OK;
}

static int find_gradients(struct muster_fsdp *fsdp, uint32_t unit, struct muster_fsdp_view *view) {
    struct fsdp_unit *it = &fsdp->units[unit];
    int status = MUSTER_OK;
    if (fsdp->options.find_unused && !fsdp->backward_has_begun && fsdp->kind != MUSTER_FSDP_NO_SYNC) {
        status = fsdp_reduce_unused(fsdp);
    }
    fsdp->backward_has_begun = true;
    if (status == MUSTER_OK && fsdp_learns(fsdp, unit)) {
        status = it->buffer ? MUSTER_OK : fsdp_reduce_take_buffer(fsdp, unit);
        view->gradients = status == MUSTER_OK && it->buffer ? it->buffer->gradients : NULL;
        view->add = it->has_gradients;
    }
    return status;
}

static int acquire(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass, struct muster_fsdp_view *view) {
    int status = check_unit(fsdp, unit, pass);
    status = status ? status : check_use(fsdp, (uint32_t)unit, pass);
    if (status != MUSTER_OK) {
        return status;
    }
    status = fsdp_reduce_advance(fsdp);
    status = status ? status : find_parameters(fsdp, (uint32_t)unit, pass, &view->parameters);
    if (status == MUSTER_OK && pass == MUSTER_FSDP_BACKWARD) {
        status = find_gradients(fsdp, (uint32_t)unit, view);
    }
    if (status != MUSTER_OK) {
        return fsdp_fail(fsdp, status);
    }
    struct fsdp_unit *it = &fsdp->units[unit];
    it->held++;
    if (pass == MUSTER_FSDP_FORWARD) {
        it->forward_count++;
    } else {
        it->backward_held++;
    }
    return MUSTER_OK;
}

static int note_use(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, bool is_release) {
    int status = fsdp_virtual_record(fsdp, unit, pass, is_release);
    return status == MUSTER_OK ? status : fsdp_fail(fsdp, status);
}

/* What was copied to have it: nothing, where the host has it anyway. A gather has a span of its own. */
static void mark_acquired(const struct muster_fsdp *fsdp, uint32_t unit, int64_t entered_ns) {
    char name[64];
    size_t bytes = unit_layout_count(fsdp_shape(fsdp, unit)) * muster_type_bytes(fsdp->options.compute_type);
    (void)str_format(name, sizeof name, "acquire %.48s", fsdp->units[unit].name);
    trace_span(name, "fsdp", entered_ns, clock_monotonic_ns(), "copied_bytes", fsdp_gathers(fsdp) ? (int64_t)bytes : 0);
}

int muster_fsdp_acquire_sized(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass,
                              struct muster_fsdp_view *out, size_t out_bytes) {
    struct muster_fsdp_view view = {NULL, NULL, false};
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_acquire", fsdp ? "out" : "fsdp");
    }
    int64_t entered_ns = step_clock_enter(&fsdp->clock);
    int status = acquire(fsdp, unit, pass, &view);
    status = status ? status : note_use(fsdp, (uint32_t)unit, pass, false);
    step_clock_leave(&fsdp->clock, entered_ns, NULL, NULL);
    if (status != MUSTER_OK) {
        return status_prefix(status, "muster_fsdp_acquire");
    }
    if (trace_enabled()) {
        mark_acquired(fsdp, (uint32_t)unit, entered_ns);
    }
    sized_write(out, out_bytes, &view, sizeof view);
    return MUSTER_OK;
}

/* ---- release ---- */

static void release_backward(struct muster_fsdp *fsdp, uint32_t unit) {
    struct fsdp_unit *it = &fsdp->units[unit];
    it->backward_held--;
    it->backward_count++;
    it->has_gradients = it->buffer != NULL;
}

/* Nobody looks at it any more: once all ranks have given its gradients, the owners of its parts may write them. */
static bool is_complete(const struct muster_fsdp *fsdp, const struct fsdp_unit *unit) {
    bool sends = fsdp->kind != MUSTER_FSDP_NO_SYNC && unit->has_gradients;
    return sends && unit->held == 0 && unit->backward_count == unit->forward_count && unit->stage == FSDP_AWAITED;
}

static int release(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    int status = check_unit(fsdp, unit, pass);
    if (status != MUSTER_OK) {
        return status;
    }
    struct fsdp_unit *it = &fsdp->units[unit];
    uint32_t held = pass == MUSTER_FSDP_BACKWARD ? it->backward_held : it->held - it->backward_held;
    if (held == 0) {
        return status_fail(MUSTER_EINVAL, "unit %zu (%s) is released, but has not been acquired in the %s pass", unit,
                           it->name, pass == MUSTER_FSDP_BACKWARD ? "backward" : "forward");
    }
    it->held--;
    if (fsdp_gathers(fsdp)) {
        fsdp_gather_release(fsdp, (uint32_t)unit);
    }
    status = fsdp_reduce_advance(fsdp);
    if (status == MUSTER_OK && pass == MUSTER_FSDP_BACKWARD) {
        release_backward(fsdp, (uint32_t)unit);
    }
    if (status == MUSTER_OK && is_complete(fsdp, it)) {
        status = fsdp_reduce_complete(fsdp, (uint32_t)unit);
    }
    return status == MUSTER_OK ? MUSTER_OK : fsdp_fail(fsdp, status);
}

int muster_fsdp_release(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    if (!fsdp) {
        return status_fail_null("muster_fsdp_release", "fsdp");
    }
    int64_t entered_ns = step_clock_enter(&fsdp->clock);
    int status = release(fsdp, unit, pass);
    status = status ? status : note_use(fsdp, (uint32_t)unit, pass, true);
    step_clock_leave(&fsdp->clock, entered_ns, "fsdp", NULL);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_release");
}

/* ---- finish ---- */

/* Units that learn and whose gradients nobody will give any more. */
static int settle(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    for (uint32_t i = fsdp->unit_count; status == MUSTER_OK && i-- > 0;) {
        const struct fsdp_unit *unit = &fsdp->units[i];
        if (!fsdp_learns(fsdp, i) || unit->stage != FSDP_AWAITED) {
            continue;
        }
        if (!fsdp->options.find_unused) {
            return status_fail(MUSTER_EINVAL,
                               "rank %u has not the gradients of unit %u (%s): it was acquired %u times in the forward "
                               "pass and released %u times in the backward pass (set find_unused if it is not used in "
                               "every step)",
                               muster_group_rank(fsdp->mesh.group), i, unit->name, unit->forward_count,
                               unit->backward_count);
        }
        status = fsdp_reduce_complete(fsdp, i);
    }
    return status;
}

static int check_released(const struct muster_fsdp *fsdp) {
    for (uint32_t i = 0; i < fsdp->unit_count; i++) {
        if (fsdp->units[i].held > 0) {
            return status_fail(MUSTER_EINVAL, "unit %u (%s) has not been released", i, fsdp->units[i].name);
        }
    }
    return MUSTER_OK;
}

int fsdp_step_close(struct muster_fsdp *fsdp) {
    enum muster_fsdp_step_kind kind = fsdp->kind;
    int status = check_released(fsdp);
    bool sends = kind == MUSTER_FSDP_STEP || kind == MUSTER_FSDP_ACCUMULATE;
    if (status == MUSTER_OK && sends) {
        status = settle(fsdp);
        status = status ? status : fsdp_reduce_finish(fsdp);
    }
    status = status || !fsdp_gathers(fsdp) ? status : fsdp_gather_end(fsdp);
    fsdp->phase = FSDP_IDLE;
    if (status != MUSTER_OK) {
        return fsdp_fail(fsdp, status);
    }
    fsdp->backward_has_begun = false;
    if (fsdp->virtual && sends && !fsdp_virtual_end_round(fsdp)) {
        return MUSTER_OK; /* other virtual ranks follow */
    }
    fsdp->numbers.step_count++;
    if (kind == MUSTER_FSDP_NO_SYNC) {
        fsdp->accumulated++;
    } else if (sends) {
        fsdp->accumulated = 0;
        fsdp->adds_to_shard = kind == MUSTER_FSDP_ACCUMULATE;
        fsdp->phase = kind == MUSTER_FSDP_STEP ? FSDP_READY : FSDP_IDLE;
        fsdp->values_changed = kind == MUSTER_FSDP_STEP; /* the program may write them now */
    }
    return MUSTER_OK;
}

/* What this rank did in the round before, without computing: the others do it now. So all gather and reduce the same
 * units in the same order. */
static int replay(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    for (size_t i = 0; status == MUSTER_OK && i < fsdp->virtual->use_count; i++) {
        const struct fsdp_use *use = &fsdp->virtual->uses[i];
        struct muster_fsdp_view view = {NULL, NULL, false};
        status = use->is_release ? release(fsdp, use->unit, use->pass) : acquire(fsdp, use->unit, use->pass, &view);
    }
    return status;
}

/* After this rank's last virtual rank. */
static int accompany(struct muster_fsdp *fsdp) {
    int status = fsdp_step_open(fsdp, MUSTER_FSDP_STEP);
    status = status ? status : replay(fsdp);
    status = status ? status : fsdp_step_close(fsdp);
    return status ? status_prefix(status, "the round of the others' last virtual ranks") : MUSTER_OK;
}

static int finish(struct muster_fsdp *fsdp) {
    int status = step_failure_status(&fsdp->failure);
    if (status == MUSTER_OK && fsdp->phase != FSDP_BEGUN) {
        status = status_fail(MUSTER_EINVAL, "no step has been begun");
    } else if (status == MUSTER_OK) {
        status = fsdp_order_check_end(fsdp);
        status = status ? fsdp_fail(fsdp, status) : fsdp_step_close(fsdp);
        status = status || !fsdp_virtual_is_left_out(fsdp) ? status : accompany(fsdp);
    }
    return status;
}

int muster_fsdp_finish(struct muster_fsdp *fsdp) {
    if (!fsdp) {
        return status_fail_null("muster_fsdp_finish", "fsdp");
    }
    int64_t entered_ns = step_clock_enter(&fsdp->clock);
    int status = finish(fsdp);
    step_clock_leave(&fsdp->clock, entered_ns, "fsdp", "fsdp finish");
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_finish");
}
