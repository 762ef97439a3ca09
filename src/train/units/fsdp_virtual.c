/* See fsdp_virtual.h. */
#include "train/units/fsdp_virtual.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/virtual_ranks.h>

#include "base/status.h"
#include "comm/group/mark.h"
#include "comm/reduce/reduce.h"
#include "train/reduction/narrow.h"

/* Bytes of an operand at a time: what several additions work on stays in the caches. */
enum { PIECE_BYTES = 8192, LINE = 64 };

static size_t width_of(const struct muster_fsdp *fsdp) {
    return muster_type_bytes(fsdp->options.reduce_type);
}

static bool is_hybrid(const struct muster_fsdp *fsdp) {
    return fsdp->options.sharding == MUSTER_FSDP_HYBRID;
}

/* What a member gets of a unit, in elements: its part, or with full sharding by host those of its column. */
static size_t share_of(const struct muster_fsdp *fsdp, uint32_t unit, uint32_t member) {
    uint32_t each = fsdp->virtual->job.way == VIRTUAL_BY_SUM ? fsdp->mesh.rows : 1;
    size_t count = 0;
    for (uint32_t part = member * each; part < (member + 1) * each; part++) {
        count += unit_layout_part(fsdp->layout, unit, UNIT_LEARNS, part)->count;
    }
    return count;
}

static size_t own_share(const struct muster_fsdp *fsdp, uint32_t unit) {
    return share_of(fsdp, unit, fsdp->virtual->job.way == VIRTUAL_BY_SUM ? fsdp->mesh.column : fsdp->mesh.part);
}

static size_t own_part(const struct muster_fsdp *fsdp, uint32_t unit) {
    return fsdp_own_part(fsdp, unit, UNIT_LEARNS)->count;
}

/* ---- memory ---- */

/* The first sum of float32 waits where the average will be. */
static bool has_room_in_shard(enum muster_type type) {
    return type == MUSTER_FLOAT32;
}

static size_t rounded(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

size_t fsdp_virtual_waiting_bytes(const struct fsdp_virtual_job *job, size_t shard_count) {
    uint32_t slots = virtual_rounds_deepest(job->virtual_ranks, job->hosts * job->each);
    slots -= slots > 0 && has_room_in_shard(job->type);
    return slots * shard_count * muster_type_bytes(job->type);
}

static struct fsdp_virtual_largest largest_of(const struct fsdp_virtual_job *job, const struct unit_layout *layout,
                                              uint32_t part) {
    uint32_t each = job->way == VIRTUAL_BY_SUM ? job->hosts : 1, first = part / each * each;
    struct fsdp_virtual_largest largest = {0, 0};
    for (uint32_t unit = 0; unit < layout->unit_count; unit++) {
        size_t own = unit_layout_part(layout, unit, UNIT_LEARNS, part)->count, share = 0;
        for (uint32_t i = first; i < first + each; i++) {
            share += unit_layout_part(layout, unit, UNIT_LEARNS, i)->count;
        }
        largest.part = own > largest.part ? own : largest.part;
        largest.share = share > largest.share ? share : largest.share;
    }
    return largest;
}

/* What comes from the members. */
static size_t received_bytes(const struct fsdp_virtual_job *job, const struct fsdp_virtual_largest *largest) {
    size_t members = job->way == VIRTUAL_STRAIGHT ? (size_t)job->hosts * job->each : job->each;
    return members > 1 ? rounded(members * largest->share * muster_type_bytes(job->type)) : 0;
}

static size_t buffer_bytes(const struct fsdp_virtual_job *job, const struct fsdp_virtual_largest *largest,
                           size_t values) {
    return received_bytes(job, largest) + values * largest->part * muster_type_bytes(job->type);
}

size_t fsdp_virtual_buffer_bytes(const struct fsdp_virtual_job *job, const struct unit_layout *layout, uint32_t part) {
    const struct fsdp_virtual_largest largest = largest_of(job, layout, part);
    uint32_t values = job->way == VIRTUAL_STRAIGHT ? 0 : virtual_rounds_most(job->virtual_ranks, job->hosts, job->each);
    return buffer_bytes(job, &largest, values);
}

size_t fsdp_virtual_scratch_bytes(const struct muster_fsdp *fsdp) {
    const struct fsdp_virtual *v = fsdp->virtual;
    if (!v) {
        return 0;
    }
    return v->job.way == VIRTUAL_STRAIGHT || v->rounds.are_neighbours
               ? fsdp_virtual_buffer_bytes(&v->job, fsdp->layout, fsdp->mesh.part)
               : buffer_bytes(&v->job, &v->largest, v->rounds.ranks); /* hosts do not add up before */
}

static uint8_t *slot_of(const struct muster_fsdp *fsdp, uint32_t unit, uint32_t slot) {
    size_t at = fsdp->shard_at[unit];
    if (has_room_in_shard(fsdp->options.reduce_type)) {
        if (slot == 0) {
            return (uint8_t *)(fsdp->shard + at);
        }
        slot--;
    }
    return fsdp->virtual->memory + (slot * fsdp->shard_count + at) * width_of(fsdp);
}

/* Sums of hosts are exchanged where each has an owner of every part, or where its ranks can add up. */
static enum virtual_way choose(const struct muster_fsdp *fsdp, const struct virtual_rounds *rounds) {
    const struct mesh *mesh = &fsdp->mesh;
    if (is_hybrid(fsdp)) {
        return mesh->column_group ? VIRTUAL_BY_HOST : VIRTUAL_STRAIGHT;
    }
    return mesh->rows > 1 && mesh->columns > 1 && rounds->are_neighbours ? VIRTUAL_BY_SUM : VIRTUAL_STRAIGHT;
}

/* With full sharding between hosts parameters are gathered by rows and columns, in another order than reductions. */
static int make_groups(const struct muster_fsdp *fsdp, struct fsdp_virtual *v) {
    const struct mesh *mesh = &fsdp->mesh;
    if (v->job.way != VIRTUAL_BY_SUM) {
        v->members_group = mesh->shard;
        v->hosts_group = v->job.way == VIRTUAL_BY_HOST ? mesh->column_group : NULL;
        return MUSTER_OK;
    }
    int status = muster_group_split(mesh->group, (int32_t)mesh->row, (int32_t)mesh->column, NULL, &v->members_group);
    return status ? status
                  : muster_group_split(mesh->group, (int32_t)mesh->column, (int32_t)mesh->row, NULL, &v->hosts_group);
}

static int plan(const struct muster_fsdp *fsdp, struct fsdp_virtual *v) {
    const struct mesh *mesh = &fsdp->mesh;
    uint32_t ranks = mesh->rows * mesh->columns;
    uint32_t *host_of = calloc(ranks, sizeof *host_of);
    int status = host_of ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", ranks);
    for (uint32_t rank = 0; status == MUSTER_OK && rank < ranks; rank++) {
        host_of[rank] = mesh->rows == ranks ? rank : muster_group_host_of(mesh->group, rank);
    }
    status = status ? status
                    : virtual_rounds_init(&v->rounds, (uint32_t)fsdp->options.virtual_ranks, host_of, mesh->rows,
                                          mesh->columns, mesh->row);
    free(host_of);
    if (status == MUSTER_OK) {
        v->job = (struct fsdp_virtual_job){v->rounds.virtual_ranks, mesh->rows, mesh->columns,
                                           fsdp->options.reduce_type, choose(fsdp, &v->rounds)};
        virtual_rounds_choose(&v->rounds, v->job.way);
        v->largest = largest_of(&v->job, fsdp->layout, mesh->part);
    }
    return status;
}

static int allocate(const struct muster_fsdp *fsdp, struct fsdp_virtual *v) {
    v->counts[0] = calloc(v->rounds.ranks, sizeof *v->counts[0]);
    v->counts[1] = calloc(v->rounds.ranks, sizeof *v->counts[1]);
    v->memory_bytes = fsdp_virtual_waiting_bytes(&v->job, fsdp->shard_count);
    v->memory = aligned_alloc(LINE, rounded(v->memory_bytes + 1));
    v->block_bytes = sizeof *v + v->rounds.ranks * (2 * sizeof *v->counts[0] + 4 * sizeof *v->rounds.members +
                                                    2 * sizeof *v->rounds.arrivals.list);
    return v->counts[0] && v->counts[1] && v->memory
               ? MUSTER_OK
               : status_fail(MUSTER_ENOMEM, "no memory for sums over %u virtual ranks: %zu bytes",
                             v->rounds.virtual_ranks, v->memory_bytes);
}

int fsdp_virtual_create(struct muster_fsdp *fsdp) {
    if (fsdp->options.virtual_ranks == 0) {
        return MUSTER_OK;
    }
    struct fsdp_virtual *v = fsdp->virtual = calloc(1, sizeof *v);
    int status = v ? plan(fsdp, v) : status_fail(MUSTER_ENOMEM, "no memory for virtual ranks");
    status = status ? status : allocate(fsdp, v);
    return status ? status : make_groups(fsdp, v);
}

void fsdp_virtual_free(struct muster_fsdp *fsdp) {
    struct fsdp_virtual *v = fsdp->virtual;
    if (v) {
        if (v->job.way == VIRTUAL_BY_SUM) {
            muster_group_free(v->members_group);
            muster_group_free(v->hosts_group);
        }
        virtual_rounds_done(&v->rounds);
        free(v->counts[0]);
        free(v->counts[1]);
        free(v->memory);
        free(v->uses);
        free(v);
    }
    fsdp->virtual = NULL;
}

void fsdp_virtual_abort(const struct muster_fsdp *fsdp, const char *reason) {
    const struct fsdp_virtual *v = fsdp->virtual;
    struct muster_group *const groups[] = {v ? v->members_group : NULL, v ? v->hosts_group : NULL};
    for (size_t i = 0; v && v->job.way == VIRTUAL_BY_SUM && i < sizeof groups / sizeof *groups; i++) {
        if (groups[i] && muster_group_status(groups[i]) == MUSTER_OK) {
            muster_group_abort(groups[i], reason);
        }
    }
}

/* ---- the way ---- */

/* A value that has come from a member. */
static uint8_t *received(const struct muster_fsdp *fsdp, uint32_t unit, void *sent, uint32_t place) {
    bool is_alone = fsdp->virtual->rounds.member_count == 1; /* then it has all */
    uint8_t *begin = is_alone ? sent : fsdp->units[unit].buffer->scratch;
    return begin + place * own_share(fsdp, unit) * width_of(fsdp);
}

static uint8_t *arrived(const struct muster_fsdp *fsdp, uint32_t unit, void *sent, uint32_t place) {
    const struct fsdp_virtual *v = fsdp->virtual;
    if (!v->hosts_group) {
        return received(fsdp, unit, sent, place);
    }
    uint8_t *begin = (uint8_t *)fsdp->units[unit].buffer->scratch + received_bytes(&v->job, &v->largest);
    return begin + place * own_part(fsdp, unit) * width_of(fsdp);
}

static int scatter(struct muster_fsdp *fsdp, uint32_t unit, void *sent, struct muster_work **work) {
    struct fsdp_virtual *v = fsdp->virtual;
    for (uint32_t member = 0; member < v->rounds.member_count; member++) {
        v->counts[0][member] = fsdp_virtual_is_absent(fsdp) ? 0 : share_of(fsdp, unit, member);
        v->counts[1][member] = v->rounds.members[member] < v->rounds.present ? own_share(fsdp, unit) : 0;
    }
    return muster_all_to_all_v(v->members_group, sent, v->counts[0], received(fsdp, unit, sent, 0), v->counts[1],
                               fsdp->options.reduce_type, work);
}

int fsdp_virtual_scatter(struct muster_fsdp *fsdp, uint32_t unit, void *sent, struct muster_work **work) {
    struct muster_group *group = fsdp->virtual->members_group;
    if (fsdp->virtual->rounds.member_count == 1) {
        return MUSTER_OK;
    }
    group_mark_unit(group, unit);
    int status = scatter(fsdp, unit, sent, work);
    group_mark_unit(group, GROUP_NO_UNIT);
    return status;
}

/* Adds up the host's values, and moves the sums together. */
static void add_up_row(const struct muster_fsdp *fsdp, uint32_t unit, void *sent) {
    const struct virtual_arrivals *row = &fsdp->virtual->rounds.own_host;
    size_t count = own_share(fsdp, unit);
    uint32_t depth = 0;
    for (uint32_t i = 0; i < row->count; i++) {
        uint8_t *value = received(fsdp, unit, sent, row->list[i].place);
        uint8_t *to = received(fsdp, unit, sent, depth++);
        if (to != value) {
            memcpy(to, value, count * width_of(fsdp));
        }
        for (uint32_t n = 0; n < row->list[i].additions; n++) {
            depth--;
            uint8_t *left = received(fsdp, unit, sent, depth - 1);
            reduce_pair(fsdp->options.reduce_type, MUSTER_OP_SUM, left, left, received(fsdp, unit, sent, depth), count);
        }
    }
}

/* Every host has an owner of this rank's part: each gets the sums of all. */
static int exchange_parts(struct muster_fsdp *fsdp, uint32_t unit, void *sent, struct muster_work **work) {
    struct fsdp_virtual *v = fsdp->virtual;
    for (uint32_t row = 0; row < fsdp->mesh.rows; row++) {
        v->counts[0][row] = v->rounds.host_counts[row] * own_part(fsdp, unit);
    }
    return muster_all_gather_v(v->hosts_group, received(fsdp, unit, sent, 0), arrived(fsdp, unit, sent, 0),
                               v->counts[0], fsdp->options.reduce_type, work);
}

/* The owners of the column's parts are on different hosts: sum number `number` of each host goes there. */
static int exchange_sum(struct muster_fsdp *fsdp, uint32_t unit, void *sent, uint32_t number,
                        struct muster_work **work) {
    struct fsdp_virtual *v = fsdp->virtual;
    const struct mesh *mesh = &fsdp->mesh;
    for (uint32_t row = 0; row < mesh->rows; row++) {
        size_t count = unit_layout_part(fsdp->layout, unit, UNIT_LEARNS, mesh->column * mesh->rows + row)->count;
        v->counts[0][row] = v->rounds.host_counts[mesh->row] > number ? count : 0;
        v->counts[1][row] = v->rounds.host_counts[row] > number ? own_part(fsdp, unit) : 0;
    }
    return muster_all_to_all_v(v->hosts_group, received(fsdp, unit, sent, number), v->counts[0],
                               arrived(fsdp, unit, sent, virtual_rounds_place(&v->rounds, 0, number)), v->counts[1],
                               fsdp->options.reduce_type, work);
}

static int exchange_sums(struct muster_fsdp *fsdp, uint32_t unit, void *sent, struct muster_work **work) {
    const struct fsdp_virtual *v = fsdp->virtual;
    uint32_t most = 0;
    while (virtual_rounds_givers(&v->rounds, most, fsdp->mesh.rows) > 0) {
        most++;
    }
    if (most == 1) {
        return exchange_sum(fsdp, unit, sent, 0, work);
    }
    int status = muster_coalesce_begin(v->hosts_group);
    for (uint32_t number = 0; status == MUSTER_OK && number < most; number++) {
        status = exchange_sum(fsdp, unit, sent, number, NULL);
    }
    return status == MUSTER_OK ? muster_coalesce_end(v->hosts_group, work) : status;
}

int fsdp_virtual_exchange(struct muster_fsdp *fsdp, uint32_t unit, void *sent, struct muster_work **work) {
    struct muster_group *group = fsdp->virtual->hosts_group;
    add_up_row(fsdp, unit, sent);
    group_mark_unit(group, unit);
    int status = fsdp->virtual->job.way == VIRTUAL_BY_SUM ? exchange_sums(fsdp, unit, sent, work)
                                                          : exchange_parts(fsdp, unit, sent, work);
    group_mark_unit(group, GROUP_NO_UNIT);
    return status;
}

/* The average of some elements of a unit, to this rank's part. */
static void give(const struct muster_fsdp *fsdp, uint32_t unit, size_t at, void *sum, size_t count) {
    enum muster_type type = fsdp->options.reduce_type;
    float *to = fsdp->shard + fsdp->shard_at[unit] + at;
    reduce_finish(type, MUSTER_OP_AVERAGE, sum, count, fsdp->virtual->rounds.virtual_ranks);
    if (type != MUSTER_FLOAT32) {
        widen_floats(MUSTER_FLOAT32, to, type, sum, count);
    } else if (sum != to) {
        memcpy(to, sum, count * sizeof *to);
    }
}

static void keep_piece(const struct muster_fsdp *fsdp, uint32_t unit, void *sent, size_t at, size_t count) {
    const struct virtual_rounds *rounds = &fsdp->virtual->rounds;
    size_t width = width_of(fsdp);
    uint8_t *values[VIRTUAL_NODES_MAX] = {NULL};
    uint32_t depth = 0;
    for (; depth < rounds->waiting.count; depth++) {
        values[depth] = slot_of(fsdp, unit, depth) + at * width;
    }
    for (uint32_t i = 0; i < rounds->arrivals.count; i++) {
        values[depth++] = arrived(fsdp, unit, sent, rounds->arrivals.list[i].place) + at * width;
        for (uint32_t n = 0; n < rounds->arrivals.list[i].additions; n++) {
            depth--;
            reduce_pair(fsdp->options.reduce_type, MUSTER_OP_SUM, values[depth - 1], values[depth - 1], values[depth],
                        count);
        }
    }
    assert(depth == rounds->after.count && values[0]);
    if (virtual_rounds_is_last(rounds)) {
        give(fsdp, unit, at, values[0], count);
        return;
    }
    for (uint32_t i = 0; i < depth; i++) {
        uint8_t *slot = slot_of(fsdp, unit, i) + at * width;
        if (values[i] != slot) {
            assert(values[i]);
            memcpy(slot, values[i], count * width);
        }
    }
}

void fsdp_virtual_keep(struct muster_fsdp *fsdp, uint32_t unit, void *sent) {
    size_t all = fsdp_own_part(fsdp, unit, UNIT_LEARNS)->count, piece = PIECE_BYTES / width_of(fsdp);
    for (size_t at = 0; at < all; at += piece) {
        keep_piece(fsdp, unit, sent, at, all - at < piece ? all - at : piece);
    }
}

/* ---- the rounds of a step ---- */

int fsdp_virtual_check_begin(const struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    if (!fsdp->virtual) {
        return MUSTER_OK;
    }
    const struct virtual_rounds *rounds = &fsdp->virtual->rounds;
    if (kind == MUSTER_FSDP_ACCUMULATE || kind == MUSTER_FSDP_NO_SYNC) {
        return status_fail(MUSTER_EINVAL, "with virtual_ranks the fsdp adds up by itself: begin a step STEP");
    }
    return kind == MUSTER_FSDP_STEP || !fsdp_virtual_is_between(fsdp)
               ? MUSTER_OK
               : status_fail(
                     MUSTER_EINVAL, "a step EVALUATE between the virtual ranks of a step: %u of %u are done",
                     rounds->round,
                     virtual_turns_of(rounds->virtual_ranks, muster_group_rank(fsdp->mesh.group), rounds->ranks));
}

void fsdp_virtual_begin_round(struct muster_fsdp *fsdp) {
    virtual_rounds_begin(&fsdp->virtual->rounds);
}

bool fsdp_virtual_end_round(struct muster_fsdp *fsdp) {
    bool is_last = virtual_rounds_end(&fsdp->virtual->rounds);
    fsdp->virtual->use_count = is_last ? 0 : fsdp->virtual->use_count;
    return is_last;
}

/* Is this the last virtual rank of this rank, while others have one more? */
static bool is_followed(const struct muster_fsdp *fsdp) {
    const struct virtual_rounds *rounds = &fsdp->virtual->rounds;
    return rounds->round + 2 == rounds->rounds &&
           virtual_rounds_ends_early(rounds, muster_group_rank(fsdp->mesh.group));
}

int fsdp_virtual_record(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, bool is_release) {
    struct fsdp_virtual *v = fsdp->virtual;
    if (!v || fsdp->kind != MUSTER_FSDP_STEP || !is_followed(fsdp)) {
        return MUSTER_OK;
    }
    if (v->use_count == v->use_room) {
        size_t room = v->use_room > 0 ? 2 * v->use_room : (size_t)4 * fsdp->unit_count;
        struct fsdp_use *uses = realloc(v->uses, room * sizeof *uses);
        if (!uses) {
            return status_fail(MUSTER_ENOMEM, "no memory to note the use of unit %u (%s)", unit,
                               fsdp->units[unit].name);
        }
        v->uses = uses;
        v->use_room = room;
    }
    v->uses[v->use_count++] = (struct fsdp_use){unit, pass, is_release};
    return MUSTER_OK;
}

bool fsdp_virtual_is_left_out(const struct muster_fsdp *fsdp) {
    const struct fsdp_virtual *v = fsdp->virtual;
    return v && v->rounds.round > 0 && virtual_rounds_is_last(&v->rounds) &&
           virtual_rounds_ends_early(&v->rounds, muster_group_rank(fsdp->mesh.group));
}
