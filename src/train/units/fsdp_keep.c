/* A state that outlives its processes: the host's memory of parameters and of what the optimizer remembers moves into
 * one of two copies (train/commit/copies.h), and each step is written into the other. What is committed in memory of
 * another world comes to its owners in this one first (train/moves/). */
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/group/mark.h"
#include "train/moves/move.h"
#include "train/optimizers/optimizer_beside.h"
#include "train/state/state_bytes.h"
#include "train/units/fsdp_background.h"
#include "train/units/fsdp_copies.h"
#include "train/units/fsdp_snapshot.h"

/* ---- what a copy holds ---- */

static size_t values_bytes(const struct muster_fsdp *fsdp) {
    return fsdp->layout->stored_count * sizeof(float); /* whole cache lines: see unit_layout.h */
}

/* The host's parameters, then what is remembered of them. What else there is lies behind, as bytes. */
static struct commit_kind kind_of(const struct fsdp_table *table) {
    return (struct commit_kind){.copy_bytes = values_bytes(table->fsdp) + (table->region ? table->region->bytes : 0),
                                .extra_bytes = state_bytes(&table->common),
                                .fingerprint = fsdp_table_fingerprint(table)};
}

static struct commit_place place_of(const struct muster_fsdp *fsdp) {
    const struct unit_layout *layout = fsdp->layout;
    return (struct commit_place){layout->first_part, layout->stride, layout->part_count};
}

/* Both copies have what the optimizer does not write. */
static void copy_frozen(const struct muster_fsdp *fsdp, char *to) {
    for (uint32_t unit = 0; unit < fsdp->unit_count; unit++) {
        size_t at = fsdp_own_at(fsdp, unit, UNIT_FROZEN), count = fsdp_own_part(fsdp, unit, UNIT_FROZEN)->count;
        memcpy((float *)(void *)to + at, (float *)fsdp->values.memory + at, count * sizeof(float));
    }
}

/* This rank's parts of the parameters and of what is remembered. */
static void copy_own(const struct muster_fsdp *fsdp, const struct state_region *states, size_t slot_count, char *to) {
    copy_frozen(fsdp, to);
    float *remembered = (float *)(void *)(to + values_bytes(fsdp));
    for (uint32_t unit = 0; unit < fsdp->unit_count; unit++) {
        size_t at = fsdp_own_at(fsdp, unit, UNIT_LEARNS), count = fsdp_own_part(fsdp, unit, UNIT_LEARNS)->count;
        memcpy((float *)(void *)to + at, (float *)fsdp->values.memory + at, count * sizeof(float));
        for (size_t slot = 0; slot < slot_count; slot++) {
            at =
                slot * fsdp->layout->stored_learns_count + unit_layout_learns_at(fsdp->layout, unit, fsdp->mesh.column);
            memcpy(remembered + at, (float *)states->memory + at, count * sizeof(float));
        }
    }
}

/* ---- the two copies ---- */

static bool is_first_of_row(const struct muster_fsdp *fsdp) {
    return fsdp->mesh.column == 0;
}

static struct fsdp_state *state_of(const struct muster_fsdp *fsdp, const struct state_region *region) {
    struct fsdp_state *state = fsdp->states;
    while (state && &state->region != region) {
        state = state->next;
    }
    return state;
}

/* A part of a copy: freeing it frees nothing. */
static struct state_region view(void *memory, size_t bytes) {
    return (struct state_region){.segment = {.fd = -1}, .memory = memory, .bytes = bytes};
}

/* From the memory that they had into the current copy. */
static int move_in(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const struct fsdp_table *table) {
    struct copies *copies = fsdp->kept->copies;
    char *current = copies_current(copies);
    struct fsdp_state *state = state_of(fsdp, table->region);
    struct state_region old_values = fsdp->values, old_states = state ? state->region : view(NULL, 0);
    if (copies_step(copies) < 0) {
        copy_own(fsdp, &old_states, table->slot_count, current);
    }
    fsdp->values = view(current, values_bytes(fsdp));
    int status = MUSTER_OK;
    if (state) {
        state->region = view(current + values_bytes(fsdp), old_states.bytes);
        status = fsdp_optimizer_place(fsdp, optimizer, &state->region);
    }
    state_region_free(&old_values);
    state_region_free(&old_states);
    copy_frozen(fsdp, current + copies_delta(copies));
    return status;
}

static size_t row_bytes(const void *context, const struct commit_place *place) {
    const struct fsdp_table *table = context;
    struct unit_layout *layout = NULL;
    size_t count = 0;
    if (fsdp_table_lay_out(table, place, &layout) == MUSTER_OK) {
        count = layout->stored_count + table->slot_count * layout->stored_learns_count;
    }
    unit_layout_free(layout);
    return count * sizeof(float);
}

static int open_copies(struct muster_fsdp *fsdp, const struct fsdp_table *table,
                       const struct muster_fsdp_keep_options *keep) {
    bool replicates = fsdp->options.sharding == MUSTER_FSDP_HYBRID && fsdp->mesh.rows > 1;
    const struct copies_options options = {.name = keep->name,
                                           .group = fsdp->mesh.group,
                                           .row = fsdp->mesh.row_group,
                                           .replicas = replicates ? fsdp->mesh.column_group : NULL,
                                           .kind = kind_of(table),
                                           .place = place_of(fsdp),
                                           .copy_bytes = row_bytes,
                                           .context = table,
                                           .attempts = keep->attempts};
    return copies_open(&options, &fsdp->kept->copies);
}

/* What was not sharded, and the bfloat16 copy. */
static int resume(struct muster_fsdp *fsdp, const struct fsdp_table *table) {
    int status = state_bytes_read(&table->common, group_stream(fsdp->mesh.group), copies_extra(fsdp->kept->copies));
    status = snapshot_agree(fsdp->mesh.group, status);
    fsdp_values_round(fsdp);
    fsdp->values_changed = true;
    return status;
}

/* ---- committing ---- */

/* Without a step of the optimizer the values stay: the other copy gets them. */
static void write_unchanged(struct muster_fsdp *fsdp, const struct fsdp_table *table) {
    struct copies *copies = fsdp->kept->copies;
    fsdp_background_before_write(fsdp);
    fsdp_copies_before_write(fsdp);
    copies_begin(copies);
    copy_own(fsdp, table->region ? table->region : &fsdp->values, table->slot_count,
             (char *)copies_current(copies) + copies_delta(copies));
}

/* The copy that was written is the one that counts. */
static void flip(struct muster_fsdp *fsdp, const struct fsdp_table *table, ptrdiff_t distance) {
    struct fsdp_state *state = state_of(fsdp, table->region);
    fsdp->values.memory = (char *)fsdp->values.memory + distance;
    if (state) {
        state->region.memory = (char *)state->region.memory + distance;
    }
    optimizer_move_beside(fsdp->kept->optimizer, distance);
}

/* A failure to copy from a GPU leaves the step before as the committed one. */
static int commit(struct muster_fsdp *fsdp, const struct fsdp_table *table, int64_t step) {
    struct copies *copies = fsdp->kept->copies;
    if (copies_step(copies) >= 0 && !copies_is_begun(copies)) {
        write_unchanged(fsdp, table);
    }
    int status = is_first_of_row(fsdp)
                     ? state_bytes_write(&table->common, group_stream(fsdp->mesh.group), copies_extra(copies))
                     : MUSTER_OK;
    if (status != MUSTER_OK) {
        return status;
    }
    flip(fsdp, table, copies_commit(copies, step));
    fsdp->kept->steps_at_commit = fsdp->numbers.step_count;
    fsdp->phase = FSDP_IDLE; /* the optimizer must not step again before all ranks have come here */
    return MUSTER_OK;
}

/* ---- from another world ---- */

static const float *in_row(const void *context, const struct move_source *source, const struct move_range *range,
                           uint32_t part) {
    const struct fsdp_extent extent = {range->tensor, range->offset, range->count};
    return fsdp_stored_at(context, source->memory, &extent, part);
}

/* stored: room for each; with memory where this rank has it. */
static int read_sources(const struct fsdp_table *table, const struct copies_source *found, size_t count,
                        struct move_source *sources, struct fsdp_stored *stored) {
    int status = MUSTER_OK;
    for (size_t i = 0; status == MUSTER_OK && i < count; i++) {
        sources[i] = (struct move_source){.rank = found[i].rank, .place = found[i].place};
        struct unit_layout *layout = NULL;
        if (found[i].copy) {
            status = fsdp_table_lay_out(table, &found[i].place, &layout);
            sources[i].memory = &stored[i];
        }
        if (layout) {
            float *values = (float *)(uintptr_t)found[i].copy;
            stored[i] = (struct fsdp_stored){layout, values, values + layout->stored_count};
        }
    }
    return status;
}

/* What is committed in memory of another world comes into the fsdp's memory. */
static int move_over(const struct fsdp_table *table) {
    const struct copies_source *found;
    int64_t step;
    size_t count = copies_sources(table->fsdp->kept->copies, &found, &step);
    if (count == 0) {
        return MUSTER_OK;
    }
    struct move_source *sources = calloc(count, sizeof *sources);
    struct fsdp_stored *stored = calloc(count, sizeof *stored);
    int status = sources && stored ? read_sources(table, found, count, sources, stored)
                                   : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu sources", count);
    status = snapshot_agree(table->fsdp->mesh.group, status);
    if (status == MUSTER_OK) {
        status = fsdp_move_in(table, &(const struct fsdp_move){sources, count, in_row, found[0].extra});
    }
    for (size_t i = 0; stored && i < count; i++) {
        unit_layout_free((struct unit_layout *)(uintptr_t)stored[i].layout);
    }
    free(sources);
    free(stored);
    return status;
}

/* ---- keeping ---- */

/* What was found, committed or copied on peer hosts, is where it belongs. moved_step: it has come there just now. */
static int settle(struct muster_fsdp *fsdp, const struct fsdp_table *table, int64_t moved_step) {
    struct copies *copies = fsdp->kept->copies;
    int status = MUSTER_OK;
    if (moved_step >= 0) {
        status = commit(fsdp, table, moved_step);
        fsdp_values_round(fsdp);
        fsdp->values_changed = true;
    } else if (copies_step(copies) >= 0) {
        status = resume(fsdp, table);
    }
    status = status ? status : copies_settle(copies, fsdp->mesh.group);
    return status ? status : fsdp_copies_settle(fsdp);
}

static int keep(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                const struct muster_fsdp_keep_options *options, const struct fsdp_table *table) {
    const struct copies_source *found;
    int64_t moved_step = COMMIT_NOTHING;
    fsdp->kept = calloc(1, sizeof *fsdp->kept);
    if (!fsdp->kept) {
        return fsdp_fail(fsdp, status_fail(MUSTER_ENOMEM, "no memory for a kept state"));
    }
    int status = open_copies(fsdp, table, options);
    if (status == MUSTER_OK) {
        (void)copies_sources(fsdp->kept->copies, &found, &moved_step);
        status = fsdp_copies_open(table, options->name, options->copies_every, &moved_step);
    }
    status = status ? status : move_over(table); /* when there is room for everything */
    status = status ? status : fsdp_copies_fetch(table);
    bool is_lack = status != MUSTER_OK && status != MUSTER_ECORRUPT; /* then nothing has been written */
    if (is_lack && muster_group_status(fsdp->mesh.group) == MUSTER_OK) {
        fsdp_keep_end(fsdp); /* all ranks know, and go on without */
        return status;
    }
    status = status ? status : move_in(fsdp, optimizer, table);
    if (status == MUSTER_OK) {
        fsdp->kept->optimizer = optimizer;
        fsdp->kept->description = state_hash(&table->all);
        status = settle(fsdp, table, moved_step);
    }
    return status ? fsdp_fail(fsdp, status) : MUSTER_OK;
}

/* Errors of arguments are the same on every rank. */
static int check_keep(const struct muster_fsdp *fsdp, const struct muster_fsdp_keep_options *options) {
    int status = step_failure_status(&fsdp->failure);
    if (status == MUSTER_OK && fsdp->kept) {
        status = status_fail(MUSTER_EINVAL, "its state is kept already");
    } else if (status == MUSTER_OK &&
               (!options->name || options->name[0] == '\0' || strlen(options->name) >= MUSTER_FSDP_KEEP_NAME_MAX)) {
        status = status_fail(MUSTER_EINVAL, "a name of 1 to %zu bytes is needed", MUSTER_FSDP_KEEP_NAME_MAX - 1);
    }
    return status;
}

int muster_fsdp_keep(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                     const struct muster_snapshot_state *extra, const struct muster_fsdp_keep_options *options,
                     int64_t *out_step) {
    struct muster_fsdp_keep_options own = MUSTER_FSDP_KEEP_OPTIONS_INIT;
    struct fsdp_table table;
    if (!fsdp || !optimizer || !out_step) {
        return status_fail_null("muster_fsdp_keep", !fsdp ? "fsdp" : optimizer ? "out_step" : "optimizer");
    }
    int status =
        sized_read_options(&own, sizeof own, options, "muster_fsdp_keep_options", "MUSTER_FSDP_KEEP_OPTIONS_INIT");
    status = status ? status : check_keep(fsdp, &own);
    if (status == MUSTER_OK) {
        cuda_library_adopt();
        status = fsdp_table_init(&table, fsdp, optimizer, extra);
        status = snapshot_agree(fsdp->mesh.group, status);
        status = status ? status : snapshot_agree_on_description(fsdp->mesh.group, &table.all);
        status = status ? status : keep(fsdp, optimizer, &own, &table);
        fsdp_table_done(&table);
    }
    if (status != MUSTER_OK) {
        return status_prefix(status, "muster_fsdp_keep");
    }
    *out_step = copies_step(fsdp->kept->copies);
    return MUSTER_OK;
}

const char *muster_fsdp_keep_note(const struct muster_fsdp *fsdp) {
    if (!fsdp || !fsdp->kept) {
        return "";
    }
    const char *note = copies_note(fsdp->kept->copies);
    return note[0] != '\0' ? note : fsdp_copies_note(fsdp);
}

/* ---- commits ---- */

static int check_commit(const struct muster_fsdp *fsdp, const struct fsdp_table *table, int64_t step) {
    const struct fsdp_kept *kept = fsdp->kept;
    int64_t committed = copies_step(kept->copies);
    if (step < 0 || step <= committed) {
        return status_fail(MUSTER_EINVAL, "step %lld after step %lld: it must be greater", (long long)step,
                           (long long)committed);
    }
    if (state_hash(&table->all) != kept->description) {
        return status_fail(MUSTER_EINVAL, "`extra` describes another state than for muster_fsdp_keep()");
    }
    /* Who has met the others since the last commit knows that all have committed it. */
    if (committed >= 0 && fsdp->numbers.step_count == kept->steps_at_commit) {
        return status_fail(MUSTER_EINVAL, "no step has been made since step %lld was committed", (long long)committed);
    }
    return MUSTER_OK;
}

int muster_fsdp_commit(struct muster_fsdp *fsdp, int64_t step, const struct muster_snapshot_state *extra) {
    struct fsdp_table table;
    if (!fsdp) {
        return status_fail_null("muster_fsdp_commit", "fsdp");
    }
    int status = step_failure_status(&fsdp->failure);
    if (status == MUSTER_OK && !fsdp->kept) {
        status = status_fail(MUSTER_EINVAL, "its state is not kept: muster_fsdp_keep() first");
    }
    if (status == MUSTER_OK) {
        status = fsdp_table_init(&table, fsdp, fsdp->kept->optimizer, extra);
        status = status ? status : check_commit(fsdp, &table, step);
        if (status == MUSTER_OK) {
            status = commit(fsdp, &table, step);
            status = status ? status : fsdp_copies_commit(&table, step);
            status = status ? fsdp_fail(fsdp, status) : MUSTER_OK;
        }
        fsdp_table_done(&table);
    }
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_commit");
}
