/* Units gathered from other hosts, into memory that the ranks of a host share. Each rank gathers the parts of its
 * column, so that every byte comes to a host once.
 *
 * Who may touch a slot? Its unit may be read when the row has met after every rank of it has its column's parts. It may
 * be overwritten when the row has met after every rank of it released the unit. All ranks acquire and release the same
 * units in the same order, and choose slots by nothing else: so a rank that has released a unit before it meets the
 * row knows the same of all others. One meeting an acquired unit does for both. */
#include <stdio.h>
#include <stdlib.h>

#include <muster/collective.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group/mark.h"
#include "comm/observe/trace.h"
#include "train/units/fsdp_impl.h"

#define NO_UNIT UINT32_MAX

static int gather_failed(struct muster_fsdp *fsdp, uint32_t unit, int status) {
    (void)status_prefix(status, "gathering unit %u (%s)", unit, fsdp->units[unit].name);
    return fsdp_fail(fsdp, status);
}

/* A barrier that says of which unit: ranks of a row that mean others would write over what the others read. */
static int meet_row(struct muster_fsdp *fsdp, uint32_t unit) {
    struct muster_group *row = fsdp->mesh.row_group;
    fsdp->row_barriers++;
    if (!row) {
        return MUSTER_OK;
    }
    group_mark_unit(row, unit);
    int status = muster_all_gather(row, fsdp->met + fsdp->mesh.column, fsdp->met, 1, MUSTER_UINT8, NULL);
    group_mark_unit(row, GROUP_NO_UNIT);
    return status;
}

/* ---- slots ---- */

static int slot_create(struct muster_fsdp *fsdp, struct fsdp_slot **out) {
    if (fsdp->slot_count == fsdp->slot_room) {
        uint32_t room = fsdp->slot_room > 0 ? 2 * fsdp->slot_room : 4;
        struct fsdp_slot **slots = realloc(fsdp->slots, room * sizeof(struct fsdp_slot *));
        if (!slots) {
            return status_fail(MUSTER_ENOMEM, "no memory for %u gathered units", room);
        }
        fsdp->slots = slots;
        fsdp->slot_room = room;
    }
    struct fsdp_slot *slot = calloc(1, sizeof *slot);
    if (!slot) {
        return status_fail(MUSTER_ENOMEM, "no memory for a gathered unit");
    }
    slot->unit = NO_UNIT;
    size_t bytes = fsdp->layout->largest_count * muster_type_bytes(fsdp->options.compute_type);
    int status = state_region_create(fsdp->mesh.row_group, "a gathered unit", bytes, &slot->region);
    if (status != MUSTER_OK) {
        free(slot);
        return status;
    }
    fsdp->slots[fsdp->slot_count++] = slot;
    *out = slot;
    return MUSTER_OK;
}

static bool is_free(const struct muster_fsdp *fsdp, const struct fsdp_slot *slot) {
    return slot->unit == NO_UNIT || (slot->is_ready && fsdp->units[slot->unit].held == 0);
}

/* The one whose unit was used longest ago, of those that may be overwritten now, or after the row has met again. */
static struct fsdp_slot *find_slot(struct muster_fsdp *fsdp, bool after_meeting) {
    struct fsdp_slot *found = NULL;
    for (uint32_t i = 0; i < fsdp->slot_count; i++) {
        struct fsdp_slot *slot = fsdp->slots[i];
        bool was_met = slot->unit == NO_UNIT || slot->released < fsdp->row_barriers;
        if (is_free(fsdp, slot) && (after_meeting || was_met) && (!found || slot->used < found->used)) {
            found = slot;
        }
    }
    return found;
}

static void empty(struct muster_fsdp *fsdp, struct fsdp_slot *slot) {
    if (slot->unit != NO_UNIT) {
        fsdp->units[slot->unit].slot = NULL;
    }
    slot->unit = NO_UNIT;
    slot->is_ready = false;
}

/* Ranks of a row must not choose by what only one of them knows, such as whether a gather is done. */
static int choose_slot(struct muster_fsdp *fsdp, uint32_t unit, struct fsdp_slot **out) {
    uint32_t wanted = fsdp->options.reshard_after_forward ? fsdp->options.prefetch + 2 : fsdp->unit_count;
    struct fsdp_slot *slot = NULL;
    int status = MUSTER_OK;
    if (fsdp->slot_count >= wanted || fsdp->slot_count == fsdp->unit_count) {
        slot = find_slot(fsdp, false);
        if (!slot && (slot = find_slot(fsdp, true))) {
            status = meet_row(fsdp, unit);
        }
    }
    if (!slot) {
        status = slot_create(fsdp, &slot);
    }
    if (status == MUSTER_OK) {
        empty(fsdp, slot);
        *out = slot;
    }
    return status;
}

/* ---- gathers ---- */

static int gather_segment(struct muster_fsdp *fsdp, uint32_t unit, enum unit_segment segment, struct fsdp_slot *slot) {
    const struct mesh *mesh = &fsdp->mesh;
    const struct state_region *stored = fsdp->copy.memory ? &fsdp->copy : &fsdp->values;
    size_t width = muster_type_bytes(fsdp->options.compute_type), total = 0;
    const struct unit_part *first = unit_layout_part(fsdp->layout, unit, segment, mesh->column * mesh->rows);
    for (uint32_t row = 0; row < mesh->rows; row++) {
        fsdp->counts[row] = first[row].count;
        total += first[row].count;
    }
    if (total == 0) {
        return MUSTER_OK;
    }
    size_t segment_begin = segment == UNIT_LEARNS ? 0 : fsdp_shape(fsdp, unit)->counts[UNIT_LEARNS];
    const char *from = (const char *)stored->memory + fsdp_own_at(fsdp, unit, segment) * width;
    char *to = (char *)slot->region.memory + (segment_begin + first->begin) * width;
    group_mark_unit(mesh->column_group, unit);
    int status = muster_all_gather_v(mesh->column_group, from, to, fsdp->counts, fsdp->options.compute_type,
                                     &slot->works[segment]);
    group_mark_unit(mesh->column_group, GROUP_NO_UNIT);
    fsdp->numbers.gathered_bytes += (total - first[mesh->row].count) * width;
    return status;
}

static int start(struct muster_fsdp *fsdp, uint32_t unit) {
    struct fsdp_slot *slot = NULL;
    int status = choose_slot(fsdp, unit, &slot);
    if (status == MUSTER_OK) {
        slot->unit = unit;
        slot->used = fsdp->acquire_count;
        slot->started_ns = clock_monotonic_ns();
        fsdp->units[unit].slot = slot;
        status = gather_segment(fsdp, unit, UNIT_LEARNS, slot);
    }
    status = status ? status : gather_segment(fsdp, unit, UNIT_FROZEN, slot);
    return status == MUSTER_OK ? MUSTER_OK : gather_failed(fsdp, unit, status);
}

static void mark(const struct muster_fsdp *fsdp, const struct fsdp_slot *slot) {
    char name[64];
    size_t bytes = unit_layout_count(fsdp_shape(fsdp, slot->unit)) * muster_type_bytes(fsdp->options.compute_type);
    (void)snprintf(name, sizeof name, "gather %.48s", fsdp->units[slot->unit].name);
    trace_async(name, "fsdp", slot->started_ns, clock_monotonic_ns(), "bytes", (int64_t)bytes);
}

static int wait_for_gather(struct fsdp_slot *slot) {
    int status = muster_work_wait(&slot->works[UNIT_LEARNS]);
    int frozen = muster_work_wait(&slot->works[UNIT_FROZEN]);
    return status ? status : frozen;
}

static int await(struct muster_fsdp *fsdp, uint32_t unit) {
    struct fsdp_slot *slot = fsdp->units[unit].slot;
    int status = wait_for_gather(slot);
    if (status == MUSTER_OK && trace_enabled()) {
        mark(fsdp, slot);
    }
    status = status ? status : meet_row(fsdp, unit);
    slot->is_ready = status == MUSTER_OK;
    return status == MUSTER_OK ? MUSTER_OK : gather_failed(fsdp, unit, status);
}

/* ---- ahead ---- */

static struct fsdp_order *order_of(struct muster_fsdp *fsdp) {
    return &fsdp->orders[fsdp->kind == MUSTER_FSDP_EVALUATE];
}

/* All ranks of a row gather ahead by what they remember: one that could not would choose other slots. */
static int remember(struct fsdp_order *order, uint32_t unit) {
    if (order->position == order->room) {
        size_t room = order->room > 0 ? 2 * order->room : 64;
        uint32_t *units = realloc(order->units, room * sizeof *units);
        if (!units) {
            return status_fail(MUSTER_ENOMEM, "no memory to remember the order of %zu units", room);
        }
        order->units = units;
        order->room = room;
    }
    bool is_expected = order->position < order->count && order->units[order->position] == unit;
    order->units[order->position++] = unit;
    order->count = is_expected ? order->count : order->position;
    order->is_known = order->is_known && is_expected;
    return MUSTER_OK;
}

/* Those that come next in the list, or backwards. */
static int start_neighbours(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass) {
    int status = MUSTER_OK;
    for (uint32_t ahead = 1; status == MUSTER_OK && ahead <= fsdp->options.prefetch; ahead++) {
        bool is_there = pass == MUSTER_FSDP_FORWARD ? ahead < fsdp->unit_count - unit : ahead <= unit;
        uint32_t next = pass == MUSTER_FSDP_FORWARD ? unit + ahead : unit - ahead;
        if (is_there && !fsdp->units[next].slot) {
            status = start(fsdp, next);
        }
    }
    return status;
}

/* Those that came next in the step before. */
static int start_next(struct muster_fsdp *fsdp, const struct fsdp_order *order) {
    int status = MUSTER_OK;
    size_t end = order->position + fsdp->options.prefetch;
    for (size_t i = order->position; status == MUSTER_OK && i < order->count && i < end; i++) {
        if (!fsdp->units[order->units[i]].slot) {
            status = start(fsdp, order->units[i]);
        }
    }
    return status;
}

/* A rank that has run out of data does not know in which order the others acquire: they all take that of the list. */
static int prefetch(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass) {
    struct fsdp_order *order = order_of(fsdp);
    if (fsdp->options.uneven_inputs) {
        return start_neighbours(fsdp, unit, pass);
    }
    int status = remember(order, unit);
    if (status != MUSTER_OK) {
        return gather_failed(fsdp, unit, status);
    }
    return order->is_known ? start_next(fsdp, order) : start_neighbours(fsdp, unit, pass);
}

int fsdp_gather_acquire(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, const void **out) {
    struct fsdp_unit *it = &fsdp->units[unit];
    int status = MUSTER_OK;
    fsdp->acquire_count++;
    it->held++; /* from now on its slot is nobody else's */
    if (!it->slot) {
        status = start(fsdp, unit);
    }
    if (status == MUSTER_OK && !it->slot->is_ready) {
        status = await(fsdp, unit);
    }
    if (status == MUSTER_OK) {
        it->slot->used = fsdp->acquire_count;
        status = prefetch(fsdp, unit, pass);
    }
    it->held--; /* the caller counts it */
    if (status == MUSTER_OK) {
        *out = it->slot->region.memory;
    }
    return status;
}

void fsdp_gather_release(struct muster_fsdp *fsdp, uint32_t unit) {
    fsdp->units[unit].slot->released = fsdp->row_barriers;
}

/* All ranks of the row have come here with no gather under way. */
void fsdp_gather_begin(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    fsdp->row_barriers++;
    for (uint32_t i = 0; i < fsdp->slot_count; i++) {
        if (fsdp->values_changed || !fsdp->slots[i]->is_ready) {
            empty(fsdp, fsdp->slots[i]);
        }
    }
    fsdp->values_changed = false;
    struct fsdp_order *order = &fsdp->orders[kind == MUSTER_FSDP_EVALUATE];
    order->is_known = order->position > 0; /* of an earlier step, which was whole */
    order->count = order->position;
    order->position = 0;
}

/* Units that were gathered ahead and not acquired: what still arrives must not meet what comes next into the slot. */
int fsdp_gather_end(struct muster_fsdp *fsdp) {
    int status = MUSTER_OK;
    for (uint32_t i = 0; status == MUSTER_OK && i < fsdp->slot_count; i++) {
        status = wait_for_gather(fsdp->slots[i]);
        status = status ? gather_failed(fsdp, fsdp->slots[i]->unit, status) : MUSTER_OK;
    }
    return status;
}

void fsdp_gather_free(struct muster_fsdp *fsdp) {
    for (uint32_t i = 0; i < fsdp->slot_count; i++) {
        (void)wait_for_gather(fsdp->slots[i]);
        state_region_free(&fsdp->slots[i]->region);
        free(fsdp->slots[i]);
    }
    free(fsdp->slots);
    free(fsdp->orders[0].units);
    free(fsdp->orders[1].units);
}
