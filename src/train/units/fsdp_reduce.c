/* A unit's gradients on their way to their owners: complete, scattered over the ranks that share the unit, with hybrid
 * sharding summed up between hosts, and added to the owner's part. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <muster/collective.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group/mark.h"
#include "comm/observe/trace.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/narrow.h"
#include "train/units/fsdp_virtual.h"

void fsdp_reduce_reset(struct muster_fsdp *fsdp) {
    fsdp->queue_begin = fsdp->queue_end = 0;
    fsdp->complete_count = 0;
    fsdp->next_in_order = fsdp->unit_count;
    for (uint32_t i = 0; i < fsdp->unit_count; i++) {
        struct fsdp_unit *unit = &fsdp->units[i];
        unit->forward_count = unit->backward_count = 0;
        unit->stage = FSDP_AWAITED;
    }
}

static int unit_failed(struct muster_fsdp *fsdp, uint32_t unit, int status) {
    (void)status_prefix(status, "gradients of unit %u (%s)", unit, fsdp->units[unit].name);
    return fsdp_fail(fsdp, status);
}

/* ---- where a unit's gradients are ---- */

static bool sums_columns(const struct muster_fsdp *fsdp) {
    return fsdp->virtual ? fsdp_virtual_exchanges(fsdp)
                         : fsdp->options.sharding == MUSTER_FSDP_HYBRID && fsdp->mesh.column_group;
}

static uint32_t divisor(const struct muster_fsdp *fsdp) {
    return fsdp->options.divide_by_active ? fsdp->active_count : muster_group_size(fsdp->mesh.group);
}

/* Does the reduction divide as well? */
static bool averages(const struct muster_fsdp *fsdp) {
    return fsdp->options.hook || (fsdp->mesh.shard && divisor(fsdp) == muster_group_size(fsdp->mesh.shard));
}

/* Straight into this rank's part of the averages, or first into the part's place in the buffer? */
static bool is_direct(const struct muster_fsdp *fsdp) {
    return fsdp->mesh.shard && fsdp->options.reduce_type == MUSTER_FLOAT32 && !fsdp->adds_to_shard &&
           !fsdp->options.hook;
}

static void *sent(const struct muster_fsdp *fsdp, uint32_t unit) {
    const struct fsdp_buffer *buffer = fsdp->units[unit].buffer;
    return buffer->converted ? buffer->converted : buffer->gradients;
}

/* Of this rank's part, once it is reduced. */
static void *received(const struct muster_fsdp *fsdp, uint32_t unit) {
    if (is_direct(fsdp)) {
        return fsdp->shard + fsdp->shard_at[unit];
    }
    size_t at = fsdp_own_part(fsdp, unit, UNIT_LEARNS)->begin;
    return (char *)sent(fsdp, unit) + at * muster_type_bytes(fsdp->options.reduce_type);
}

static void convert(const struct muster_fsdp *fsdp, uint32_t unit) {
    const struct fsdp_buffer *buffer = fsdp->units[unit].buffer;
    size_t count = fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS];
    if (buffer->converted && fsdp->options.reduce_type == MUSTER_FLOAT32) {
        widen_floats(MUSTER_FLOAT32, buffer->converted, fsdp->options.gradient_type, buffer->gradients, count);
    } else if (buffer->converted) {
        narrow_floats(fsdp->options.reduce_type, buffer->converted, MUSTER_FLOAT32, buffer->gradients, count);
    }
}

/* ---- the way ---- */

/* Adds to this rank's part what has been reduced elsewhere, or copies it there; divides if the reduction has not. */
static void keep(struct muster_fsdp *fsdp, uint32_t unit) {
    enum { PIECE = 2048 };
    size_t count = fsdp_own_part(fsdp, unit, UNIT_LEARNS)->count, width = muster_type_bytes(fsdp->options.reduce_type);
    float *to = fsdp->shard + fsdp->shard_at[unit];
    uint32_t by = averages(fsdp) ? 1 : divisor(fsdp);
    if (is_direct(fsdp)) {
        if (by > 1) {
            reduce_finish(MUSTER_FLOAT32, MUSTER_OP_AVERAGE, to, count, by);
        }
        return;
    }
    for (size_t at = 0; at < count; at += PIECE) {
        float piece[PIECE];
        size_t length = count - at < PIECE ? count - at : PIECE;
        const void *from = (const char *)received(fsdp, unit) + at * width;
        if (fsdp->options.reduce_type == MUSTER_FLOAT32) {
            memcpy(piece, from, length * sizeof *piece);
        } else {
            widen_floats(MUSTER_FLOAT32, piece, fsdp->options.reduce_type, from, length);
        }
        if (by > 1) {
            reduce_finish(MUSTER_FLOAT32, MUSTER_OP_AVERAGE, piece, length, by);
        }
        if (fsdp->adds_to_shard) {
            reduce_pair(MUSTER_FLOAT32, MUSTER_OP_SUM, to + at, to + at, piece, length);
        } else {
            memcpy(to + at, piece, length * sizeof *piece);
        }
    }
}

/* work: NULL lets it block. */
static int scatter(struct muster_fsdp *fsdp, uint32_t unit, struct muster_work **work) {
    if (fsdp->options.hook) {
        return fsdp_hook_start(fsdp, unit);
    }
    if (fsdp->virtual) {
        return fsdp_virtual_scatter(fsdp, unit, sent(fsdp, unit), work);
    }
    if (!fsdp->mesh.shard) {
        return MUSTER_OK; /* the rank alone shares it */
    }
    for (uint32_t part = 0; part < fsdp->layout->part_count; part++) {
        fsdp->counts[part] = unit_layout_part(fsdp->layout, unit, UNIT_LEARNS, part)->count;
    }
    group_mark_unit(fsdp->mesh.shard, unit);
    int status =
        muster_reduce_scatter_v(fsdp->mesh.shard, sent(fsdp, unit), received(fsdp, unit), fsdp->counts,
                                fsdp->options.reduce_type, averages(fsdp) ? MUSTER_OP_AVERAGE : MUSTER_OP_SUM, work);
    group_mark_unit(fsdp->mesh.shard, GROUP_NO_UNIT);
    return status;
}

static int sum(struct muster_fsdp *fsdp, uint32_t unit, struct muster_work **work) {
    if (fsdp->virtual) {
        return fsdp_virtual_exchange(fsdp, unit, sent(fsdp, unit), work);
    }
    struct muster_group *column = fsdp->mesh.column_group;
    void *data = received(fsdp, unit);
    group_mark_unit(column, unit);
    int status = muster_all_reduce(column, data, data, fsdp_own_part(fsdp, unit, UNIT_LEARNS)->count,
                                   fsdp->options.reduce_type, MUSTER_OP_SUM, work);
    group_mark_unit(column, GROUP_NO_UNIT);
    return status;
}

static int unit_reduced(struct muster_fsdp *fsdp, uint32_t unit) {
    int status = fsdp->options.hook ? fsdp_hook_finish(fsdp, unit) : MUSTER_OK;
    if (status != MUSTER_OK) {
        return status;
    }
    if (fsdp->virtual) {
        fsdp_virtual_keep(fsdp, unit, sent(fsdp, unit));
    } else {
        keep(fsdp, unit);
    }
    struct fsdp_unit *it = &fsdp->units[unit];
    size_t bytes = fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS] * muster_type_bytes(fsdp->options.reduce_type);
    if (trace_enabled()) {
        char name[64];
        (void)snprintf(name, sizeof name, "reduce %.48s", it->name);
        trace_async(name, "fsdp", it->started_ns, clock_monotonic_ns(), "bytes", (int64_t)bytes);
    }
    it->stage = FSDP_REDUCED;
    fsdp_buffer_give(fsdp, unit);
    return MUSTER_OK;
}

/* The oldest goes one stage further. It is done with its stage, or is waited for. */
static int advance_oldest(struct muster_fsdp *fsdp) {
    uint32_t unit = fsdp->queue[fsdp->queue_begin];
    struct fsdp_unit *it = &fsdp->units[unit];
    int status = muster_work_wait(&it->work);
    if (status == MUSTER_OK && it->stage == FSDP_SCATTERING && sums_columns(fsdp)) {
        it->stage = FSDP_SUMMING;
        status = sum(fsdp, unit, &it->work);
    } else if (status == MUSTER_OK) {
        fsdp->queue_begin++;
        status = unit_reduced(fsdp, unit);
    }
    return status == MUSTER_OK ? MUSTER_OK : unit_failed(fsdp, unit, status);
}

int fsdp_reduce_take_buffer(struct muster_fsdp *fsdp, uint32_t unit) {
    /* That of the unit before, and one more that has only just begun. */
    enum { UNDER_WAY_MAX = 2 };
    int status = MUSTER_OK;
    while (status == MUSTER_OK && !fsdp_buffer_is_free(fsdp) && fsdp->queue_end - fsdp->queue_begin >= UNDER_WAY_MAX) {
        status = advance_oldest(fsdp);
    }
    return status ? status : fsdp_buffer_take(fsdp, unit);
}

/* A unit that nobody here used contributes zeros. */
static int fill_unused(struct muster_fsdp *fsdp, uint32_t unit) {
    struct fsdp_unit *it = &fsdp->units[unit];
    int status = it->buffer ? MUSTER_OK : fsdp_reduce_take_buffer(fsdp, unit);
    if (status == MUSTER_OK && it->buffer && !it->has_gradients && !fsdp_virtual_is_absent(fsdp)) {
        memset(it->buffer->gradients, 0,
               fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS] * muster_type_bytes(fsdp->options.gradient_type));
    }
    return status;
}

static int prepare(struct muster_fsdp *fsdp, uint32_t unit) {
    int status = fill_unused(fsdp, unit);
    if (status == MUSTER_OK) {
        if (!fsdp_virtual_is_absent(fsdp)) {
            convert(fsdp, unit);
        }
        fsdp->units[unit].started_ns = clock_monotonic_ns();
        fsdp->numbers.reduced_bytes +=
            fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS] * muster_type_bytes(fsdp->options.reduce_type);
    }
    return status;
}

static int start(struct muster_fsdp *fsdp, uint32_t unit) {
    struct fsdp_unit *it = &fsdp->units[unit];
    int status = prepare(fsdp, unit);
    status = status ? status : scatter(fsdp, unit, &it->work);
    if (status != MUSTER_OK) {
        return unit_failed(fsdp, unit, status);
    }
    it->stage = FSDP_SCATTERING;
    fsdp->queue[fsdp->queue_end++] = unit;
    return MUSTER_OK;
}

/* In this thread, which has nothing else to do: a hand-over to the progress thread would cost more than it brings. */
static int reduce_here(struct muster_fsdp *fsdp, uint32_t unit) {
    int status = prepare(fsdp, unit);
    status = status ? status : scatter(fsdp, unit, NULL);
    status = status ? status : muster_work_wait(&fsdp->units[unit].work); /* a hook's */
    status = status || !sums_columns(fsdp) ? status : sum(fsdp, unit, NULL);
    status = status ? status : unit_reduced(fsdp, unit);
    return status == MUSTER_OK ? MUSTER_OK : unit_failed(fsdp, unit, status);
}

/* Units start in the order in which they are complete, or, if some may not be used, in that of the list, backwards. The
 * last one is left to finish(). */
static int start_those_complete(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    while (status == MUSTER_OK && fsdp->next_in_order > 0) {
        uint32_t unit = fsdp->next_in_order - 1;
        if (fsdp_learns(fsdp, unit)) {
            if (fsdp->units[unit].stage != FSDP_COMPLETE || fsdp->complete_count == fsdp->unit_learning_count) {
                break;
            }
            status = start(fsdp, unit);
        }
        fsdp->next_in_order--;
    }
    return status;
}

/* ---- infinities and NaNs ---- */

static bool is_finite(const struct muster_fsdp *fsdp, const void *gradients, size_t at) {
    if (fsdp->options.gradient_type == MUSTER_FLOAT32) {
        return isfinite(((const float *)gradients)[at]);
    }
    return (((const uint16_t *)gradients)[at] & 0x7f80U) != 0x7f80U;
}

static int check_item(struct muster_fsdp *fsdp, uint32_t unit, uint32_t item) {
    const struct unit_item *checked = &fsdp->layout->items[item];
    for (size_t i = 0; !checked->frozen && i < checked->count; i++) {
        if (!is_finite(fsdp, fsdp->units[unit].buffer->gradients, checked->offset + i)) {
            return status_fail(MUSTER_EINVAL, "rank %u: element %zu of the gradient of %s is infinite or no number",
                               muster_group_rank(fsdp->mesh.group), i, fsdp->parameter_names[item]);
        }
    }
    return MUSTER_OK;
}

static int check_finite(struct muster_fsdp *fsdp, uint32_t unit) {
    const struct fsdp_unit *it = &fsdp->units[unit];
    int status = MUSTER_OK;
    for (uint32_t item = it->first; status == MUSTER_OK && item < it->first + it->item_count; item++) {
        status = check_item(fsdp, unit, item);
    }
    return status;
}

/* ---- what steps call ---- */

int fsdp_reduce_complete(struct muster_fsdp *fsdp, uint32_t unit) {
    bool is_checked = fsdp->options.check_finite && fsdp->units[unit].has_gradients && !fsdp_virtual_is_absent(fsdp);
    int status = is_checked ? check_finite(fsdp, unit) : MUSTER_OK;
    if (status != MUSTER_OK) {
        return unit_failed(fsdp, unit, status);
    }
    assert(fsdp->units[unit].stage == FSDP_AWAITED);
    fsdp->units[unit].stage = FSDP_COMPLETE;
    fsdp->complete_count++;
    if (fsdp->options.find_unused) {
        return start_those_complete(fsdp);
    }
    return fsdp->complete_count < fsdp->unit_learning_count ? start(fsdp, unit) : MUSTER_OK;
}

int fsdp_reduce_unused(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    for (uint32_t i = fsdp->unit_count; status == MUSTER_OK && i-- > 0;) {
        const struct fsdp_unit *unit = &fsdp->units[i];
        if (fsdp_learns(fsdp, i) && unit->stage == FSDP_AWAITED && unit->forward_count == 0) {
            status = fsdp_reduce_complete(fsdp, i);
        }
    }
    return status;
}

int fsdp_reduce_advance(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    while (status == MUSTER_OK && fsdp->queue_begin < fsdp->queue_end &&
           muster_work_done(fsdp->units[fsdp->queue[fsdp->queue_begin]].work)) {
        status = advance_oldest(fsdp);
    }
    return status;
}

int fsdp_reduce_finish(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    while (status == MUSTER_OK && fsdp->queue_begin < fsdp->queue_end) {
        status = advance_oldest(fsdp);
    }
    for (uint32_t i = fsdp->unit_count; status == MUSTER_OK && i-- > 0;) {
        status = fsdp->units[i].stage == FSDP_COMPLETE ? reduce_here(fsdp, i) : MUSTER_OK;
    }
    return status;
}

void fsdp_reduce_drain(struct muster_fsdp *fsdp) {
    for (uint32_t i = 0; i < fsdp->unit_count; i++) {
        (void)muster_work_wait(&fsdp->units[i].work);
    }
}
