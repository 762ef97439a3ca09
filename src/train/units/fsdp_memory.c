/* What an fsdp has in memory, and what one will need. docs/fsdp.md has the formulas. */
#include <stdlib.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/peers/peer_labels.h"
#include "train/units/fsdp_background.h"
#include "train/units/fsdp_copies.h"
#include "train/units/fsdp_virtual.h"

static void add_up(struct muster_fsdp_memory *memory) {
    memory->host_bytes = memory->parameter_bytes + memory->copy_bytes + memory->state_bytes + memory->gathered_bytes +
                         memory->kept_bytes;
    memory->rank_bytes = memory->shard_bytes + memory->gradient_bytes + memory->overhead_bytes +
                         memory->background_bytes + memory->peer_bytes + memory->waiting_bytes;
}

int muster_fsdp_memory_sized(const struct muster_fsdp *fsdp, struct muster_fsdp_memory *out, size_t out_bytes) {
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_memory", fsdp ? "out" : "fsdp");
    }
    struct muster_fsdp_memory now = {
        .parameter_bytes = fsdp->values.bytes,
        .copy_bytes = fsdp->copy.bytes,
        .shard_bytes = fsdp->shard_count * sizeof(float),
        .gradient_bytes = fsdp->gradient_bytes,
        .gradient_peak_bytes = fsdp->gradient_peak_bytes,
        .overhead_bytes = fsdp->block_bytes + fsdp->layout->bytes + fsdp->presence.bytes +
                          muster_group_size(fsdp->mesh.group) * sizeof *fsdp->counts +
                          fsdp->mesh.columns * sizeof *fsdp->met,
    };
    for (const struct fsdp_state *state = fsdp->states; state; state = state->next) {
        now.state_bytes += state->region.bytes;
    }
    for (uint32_t i = 0; i < fsdp->slot_count; i++) {
        now.gathered_bytes += fsdp->slots[i]->region.bytes;
    }
    now.kept_bytes = fsdp->kept ? copies_bytes(fsdp->kept->copies) - now.parameter_bytes - now.state_bytes : 0;
    now.background_bytes = background_bytes(fsdp->background);
    now.peer_bytes = fsdp_copies_bytes(fsdp);
    now.waiting_bytes = fsdp->virtual ? fsdp->virtual->memory_bytes : 0;
    now.overhead_bytes += fsdp->virtual ? fsdp->virtual->block_bytes : 0;
    add_up(&now);
    sized_write(out, out_bytes, &now, sizeof now);
    return MUSTER_OK;
}

/* ---- beforehand ---- */

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* The hosts and ranks of a plan: as mesh.h numbers them. */
struct planned {
    uint32_t hosts, each, states;
    bool gathers;
};

/* Elements that a host stores of a unit's segment. */
static size_t stored_on(const struct unit_layout *layout, const struct planned *planned, uint32_t row, uint32_t unit,
                        enum unit_segment segment) {
    size_t count = 0;
    for (uint32_t column = 0; column < planned->each; column++) {
        uint32_t part = planned->gathers ? column * planned->hosts + row : column;
        count += unit_layout_part(layout, unit, segment, part)->count;
    }
    return count;
}

static void plan_host(const struct unit_layout *layout, const struct planned *planned, uint32_t row,
                      const struct muster_fsdp_options *options, struct muster_fsdp_memory *most) {
    size_t learns = 0, all = 0;
    for (uint32_t unit = 0; unit < layout->unit_count; unit++) {
        size_t count = stored_on(layout, planned, row, unit, UNIT_LEARNS);
        learns += unit_layout_round(count);
        all += unit_layout_round_stored(count + stored_on(layout, planned, row, unit, UNIT_FROZEN));
    }
    struct muster_fsdp_memory host = {.parameter_bytes = all * sizeof(float)};
    host.copy_bytes = options->compute_type == MUSTER_FLOAT32 ? 0 : all * muster_type_bytes(options->compute_type);
    host.state_bytes = learns * planned->states * sizeof(float);
    add_up(&host);
    if (host.host_bytes > most->host_bytes) {
        *most = host;
    }
}

static size_t greater(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Returns the bytes of what the part's rank would save of a kept state. */
static size_t plan_rank(const struct unit_layout *layout, const struct planned *planned, uint32_t part,
                        struct muster_fsdp_memory *most) {
    size_t count = 0, kept = 0;
    for (uint32_t unit = 0; unit < layout->unit_count; unit++) {
        size_t learns = unit_layout_part(layout, unit, UNIT_LEARNS, part)->count;
        count += unit_layout_round(learns);
        kept += learns * (1 + planned->states) + unit_layout_part(layout, unit, UNIT_FROZEN, part)->count;
    }
    most->shard_bytes = greater(most->shard_bytes, count * sizeof(float));
    return kept * sizeof(float);
}

/* What a program may ask for besides: not in the sums. */
static void plan_requests(const struct planned *planned, size_t share_bytes, struct muster_fsdp_memory *most) {
    most->kept_bytes = most->parameter_bytes + most->state_bytes;
    most->background_bytes = share_bytes;
    most->peer_bytes = planned->gathers ? PEER_SLOTS * PEER_SHARES * share_bytes : 0;
}

/* What virtual ranks need besides, if the ranks of each host are neighbours. */
static void plan_virtual(const struct muster_fsdp *model, const struct unit_layout *layout,
                         const struct planned *planned, struct muster_fsdp_memory *most) {
    const struct muster_fsdp_options *o = &model->options;
    bool is_by_host = o->sharding == MUSTER_FSDP_HYBRID && planned->hosts > 1;
    bool is_by_sum = planned->gathers && planned->each > 1;
    const struct fsdp_virtual_job job = {(uint32_t)o->virtual_ranks, planned->hosts, planned->each, o->reduce_type,
                                         is_by_host  ? VIRTUAL_BY_HOST
                                         : is_by_sum ? VIRTUAL_BY_SUM
                                                     : VIRTUAL_STRAIGHT};
    size_t buffer = 0;
    if (o->virtual_ranks == 0) {
        return;
    }
    for (uint32_t part = 0; part < layout->part_count; part++) {
        buffer = greater(buffer, fsdp_virtual_buffer_bytes(&job, layout, part));
    }
    most->waiting_bytes = fsdp_virtual_waiting_bytes(&job, most->shard_bytes / sizeof(float));
    most->gradient_bytes += smaller(2, model->unit_learning_count) * buffer;
}

static int plan(const struct muster_fsdp *model, const struct unit_item *items, const struct planned *planned,
                struct muster_fsdp_memory *out) {
    const struct muster_fsdp_options *o = &model->options;
    uint32_t parts = o->sharding == MUSTER_FSDP_FULL ? planned->hosts * planned->each : planned->each;
    struct unit_layout *layout = NULL;
    int status = unit_layout_create(items, model->parameter_count, model->unit_count, parts, 0, 1, &layout);
    if (status != MUSTER_OK) {
        return status;
    }
    for (uint32_t row = 0; row < (planned->gathers ? planned->hosts : 1); row++) {
        plan_host(layout, planned, row, o, out);
    }
    size_t share_bytes = 0;
    for (uint32_t part = 0; part < parts; part++) {
        share_bytes = greater(share_bytes, plan_rank(layout, planned, part, out));
    }
    size_t width = muster_type_bytes(o->gradient_type);
    width += o->gradient_type != o->reduce_type ? muster_type_bytes(o->reduce_type) : 0;
    width += o->hook ? o->hook->scratch_bytes : 0;
    out->gradient_bytes = smaller(2, model->unit_learning_count) * layout->largest_learns_count * width;
    plan_virtual(model, layout, planned, out);
    out->gradient_peak_bytes = out->gradient_bytes;
    size_t slots = o->reshard_after_forward ? smaller(o->prefetch + 2, model->unit_count) : model->unit_count;
    out->gathered_bytes = planned->gathers ? slots * layout->largest_count * muster_type_bytes(o->compute_type) : 0;
    unit_layout_free(layout);
    add_up(out);
    plan_requests(planned, share_bytes, out);
    return MUSTER_OK;
}

/* NOLINTNEXTLINE(readability-function-size): muster_fsdp_plan()'s, and the sizes that it fills in */
int muster_fsdp_plan_sized(const struct muster_fsdp_unit *units, size_t unit_bytes, size_t unit_count,
                           size_t parameter_bytes, const struct muster_fsdp_options *options, uint32_t host_count,
                           uint32_t ranks_per_host, uint32_t states_per_parameter, struct muster_fsdp_memory *out,
                           size_t out_bytes) {
    struct muster_fsdp *model = NULL;
    struct unit_item *items = NULL;
    struct muster_fsdp_memory most = {0};
    if (!out) {
        return status_fail_null("muster_fsdp_plan", "out");
    }
    if (host_count == 0 || ranks_per_host == 0 || host_count > MUSTER_GROUP_SIZE_MAX / ranks_per_host) {
        return status_fail(MUSTER_EINVAL, "muster_fsdp_plan: %u hosts of %u ranks", host_count, ranks_per_host);
    }
    int status = fsdp_model_create(units, unit_bytes, unit_count, parameter_bytes, options, &model, &items);
    if (status == MUSTER_OK && model->options.virtual_ranks > 0 &&
        model->options.virtual_ranks < (size_t)host_count * ranks_per_host) {
        status = status_fail(MUSTER_EINVAL, "%u ranks, but only %zu virtual ranks", host_count * ranks_per_host,
                             model->options.virtual_ranks);
    }
    if (status == MUSTER_OK) {
        bool gathers = model->options.sharding == MUSTER_FSDP_FULL && host_count > 1;
        const struct planned planned = {host_count, ranks_per_host, states_per_parameter, gathers};
        status = plan(model, items, &planned, &most);
    }
    free(items);
    free(model);
    if (status != MUSTER_OK) {
        return status_prefix(status, "muster_fsdp_plan");
    }
    sized_write(out, out_bytes, &most, sizeof most);
    return MUSTER_OK;
}
