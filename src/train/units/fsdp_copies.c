/* Copies of the committed state on peer hosts (train/peers/peer_copies.h): what a rank's share is, when it is copied,
 * and how a state comes back from one. fsdp_copied.c has what steps and questions ask of it.
 *
 * A share is this rank's chunks one after the other, as a checkpoint describes them, and behind them what every rank
 * has whole (train/state/state_bytes.h). */
#include "train/units/fsdp_copies_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "train/state/state_bytes.h"

enum { LINE_BYTES = 64 };

/* ---- a share ---- */

static size_t chunk_bytes_of(const struct fsdp_table *table, const struct unit_layout *layout, uint32_t part) {
    size_t bytes = 0, first = 0;
    for (size_t i = 0; i < table->sharded.tensor_count; i++) {
        bytes += unit_layout_overlap(layout, fsdp_table_item(table, i), part, &first) * sizeof(float);
    }
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static void collect(void *context, void *to) {
    const struct fsdp_copies *copies = context;
    char *at = to;
    for (size_t i = 0; i < copies->parts.state.chunk_count; i++) {
        size_t bytes = (size_t)copies->parts.chunks[i].count * sizeof(float);
        memcpy(at, copies->parts.chunks[i].data, bytes);
        at += bytes;
    }
    memcpy((char *)to + copies->chunk_bytes, copies->common, copies->common_bytes);
}

/* Of a part, of so many, in any world. */
static size_t share_bytes(const void *context, uint32_t part_count, uint32_t part) {
    const struct fsdp_table *table = context;
    const struct commit_place place = {part, part_count, part_count};
    struct unit_layout *layout = NULL;
    size_t bytes = 0;
    if (fsdp_table_lay_out(table, &place, &layout) == MUSTER_OK) {
        bytes = chunk_bytes_of(table, layout, part) + state_bytes(&table->common);
    }
    unit_layout_free(layout);
    return bytes;
}

static int measure(struct fsdp_copies *copies, const struct fsdp_table *table) {
    const struct muster_fsdp *fsdp = table->fsdp;
    copies->chunk_bytes = chunk_bytes_of(table, fsdp->layout, fsdp->mesh.part);
    copies->common_bytes = state_bytes(&table->common);
    copies->common = malloc(copies->common_bytes + 1);
    return copies->common ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for %zu bytes", copies->common_bytes);
}

/* Others have it, or nobody can: then there is nothing to do. */
static bool are_of_use(const struct muster_fsdp *fsdp) {
    if (!fsdp_gathers(fsdp)) {
        return false;
    }
    bool are_possible = peer_copies_are_possible(fsdp->mesh.group);
    if (!are_possible && muster_group_rank(fsdp->mesh.group) == 0) {
        log_warning("the state is not copied to peer hosts: one host has more than half of all ranks");
    }
    return are_possible;
}

/* ---- from copies ---- */

/* memory of a source: the share of its part. */
struct share {
    const struct unit_layout *layout; /* as its world was cut */
    const char *bytes;
    size_t *begins; /* elements of the part that lie in front of those of each tensor */
};

static const float *in_share(const void *context, const struct move_source *source, const struct move_range *range,
                             uint32_t part) {
    const struct share *share = source->memory;
    size_t first = 0;
    (void)unit_layout_overlap(share->layout, fsdp_table_item(context, range->tensor), part, &first);
    return (const float *)(const void *)share->bytes + share->begins[range->tensor] + range->offset - first;
}

static int read_share(const struct fsdp_table *table, uint32_t part, struct share *share) {
    size_t tensors = table->sharded.tensor_count, at = 0, first = 0;
    share->begins = calloc(tensors + 1, sizeof *share->begins);
    if (!share->begins) {
        return status_fail(MUSTER_ENOMEM, "no memory for the places of %zu tensors", tensors);
    }
    for (size_t i = 0; i < tensors; i++) {
        share->begins[i] = at;
        at += unit_layout_overlap(share->layout, fsdp_table_item(table, i), part, &first);
    }
    return MUSTER_OK;
}

static int read_sources(const struct fsdp_table *table, const struct peer_source *found, size_t count,
                        const struct unit_layout *layout, struct move_source *sources, struct share *shares) {
    int status = MUSTER_OK;
    for (size_t i = 0; status == MUSTER_OK && i < count; i++) {
        shares[i] = (struct share){layout, found[i].share, NULL};
        sources[i] = (struct move_source){.rank = found[i].rank,
                                          .place = {found[i].part, found[i].part_count, found[i].part_count},
                                          .memory = found[i].share ? &shares[i] : NULL};
        status = found[i].share ? read_share(table, found[i].part, &shares[i]) : MUSTER_OK;
    }
    return status;
}

/* What was copied, of whatever world, comes into the fsdp's memory. */
static int fetch(const struct fsdp_copies *copies, const struct fsdp_table *table) {
    const struct peer_source *found;
    size_t count = peer_finds_sources(copies->finds, &found);
    const struct commit_place place = {0, found[0].part_count, found[0].part_count};
    struct move_source *sources = calloc(count, sizeof *sources);
    struct share *shares = calloc(count, sizeof *shares);
    struct unit_layout *layout = NULL;
    int status = sources && shares ? fsdp_table_lay_out(table, &place, &layout)
                                   : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu parts", count);
    status = status ? status : read_sources(table, found, count, layout, sources, shares);
    status = snapshot_agree(table->fsdp->mesh.group, status);
    if (status == MUSTER_OK && sources && shares && layout) {
        const char *first = shares[0].bytes;
        const void *common = first ? first + chunk_bytes_of(table, layout, 0) : NULL;
        status = fsdp_move_in(table, &(const struct fsdp_move){sources, count, in_share, common});
    }
    for (size_t i = 0; shares && i < count; i++) {
        free(shares[i].begins);
    }
    unit_layout_free(layout);
    free(sources);
    free(shares);
    return status;
}

/* ---- a life ---- */

static void tell(struct fsdp_copies *copies, const struct muster_fsdp *fsdp, int64_t step) {
    (void)str_format(copies->note, sizeof copies->note,
                     "the committed state of a host is gone: this is step %" PRId64 ", of the copies on peer hosts",
                     step);
    if (muster_group_rank(fsdp->mesh.group) == 0) {
        log_warning("%s", copies->note);
    }
}

static int find(struct fsdp_copies *copies, const struct fsdp_table *table, const char *name, int64_t committed) {
    bool is_given_up = copies_is_given_up(table->fsdp->kept->copies);
    const struct peer_find_options options = {.name = name,
                                              .group = table->fsdp->mesh.group,
                                              .fingerprint = fsdp_table_fingerprint(table),
                                              .is_wanted = committed < 0 && !is_given_up,
                                              .is_given_up = is_given_up,
                                              .share_bytes = share_bytes,
                                              .context = table};
    return peer_find(&options, &copies->finds);
}

static int open_peers(struct fsdp_copies *copies, const struct fsdp_table *table, const char *name, int64_t most) {
    const struct muster_fsdp *fsdp = table->fsdp;
    const struct peer_copies_options options = {.name = name,
                                                .group = fsdp->mesh.group,
                                                .fingerprint = fsdp_table_fingerprint(table),
                                                .part = fsdp->mesh.part,
                                                .share_bytes = copies->chunk_bytes + copies->common_bytes,
                                                .most = most,
                                                .collect = collect,
                                                .context = copies};
    return peer_copies_open(&options, copies->finds, &copies->peers);
}

int fsdp_copies_open(const struct fsdp_table *table, const char *name, uint64_t every, int64_t *moved_step) {
    struct muster_fsdp *fsdp = table->fsdp;
    int64_t committed = *moved_step >= 0 ? *moved_step : copies_step(fsdp->kept->copies);
    if (every == 0) {
        return MUSTER_OK;
    }
    struct fsdp_copies *copies = fsdp->kept->peers = calloc(1, sizeof *copies);
    int status = copies ? measure(copies, table) : status_fail(MUSTER_ENOMEM, "no memory for copies on peer hosts");
    status = snapshot_agree(fsdp->mesh.group, status);
    if (status != MUSTER_OK || !copies) {
        return status;
    }
    copies->every = every;
    copies->last = COMMIT_NOTHING;
    status = find(copies, table, name, committed);
    if (status == MUSTER_OK && peer_finds_step(copies->finds) >= 0) {
        *moved_step = committed = peer_finds_step(copies->finds);
    }
    return status || !are_of_use(fsdp) ? status : open_peers(copies, table, name, committed);
}

int fsdp_copies_fetch(const struct fsdp_table *table) {
    struct fsdp_copies *copies = table->fsdp->kept->peers;
    if (!copies || peer_finds_step(copies->finds) < 0) {
        return MUSTER_OK;
    }
    tell(copies, table->fsdp, peer_finds_step(copies->finds));
    return fetch(copies, table);
}

int fsdp_copies_settle(struct muster_fsdp *fsdp) {
    struct fsdp_copies *copies = fsdp->kept->peers;
    if (!copies) {
        return MUSTER_OK;
    }
    int status = muster_barrier(fsdp->mesh.group, NULL); /* what is found stays until all have it */
    status = status || !copies->peers ? status : peer_copies_settle(copies->peers);
    if (status == MUSTER_OK) {
        status = peer_finds_drop(copies->finds, copies->peers ? peer_copies_name(copies->peers) : NULL);
        peer_finds_free(copies->finds);
        copies->finds = NULL;
    }
    return status;
}

/* ---- a copy ---- */

static int prepare(void *context) {
    struct fsdp_copies *copies = context;
    const struct fsdp_table *table = copies->table;
    struct muster_fsdp *fsdp = table->fsdp;
    fsdp_parts_done(&copies->parts);
    int status = fsdp_parts_init(&copies->parts, table, true);
    memcpy(copies->common, copies_extra(fsdp->kept->copies), copies->common_bytes); /* as it was committed */
    copies->read = copies_current(fsdp->kept->copies);
    return snapshot_agree(fsdp->mesh.group, status);
}

int fsdp_copies_commit(const struct fsdp_table *table, int64_t step) {
    struct muster_fsdp *fsdp = table->fsdp;
    struct fsdp_copies *copies = fsdp->kept->peers;
    bool starts = false;
    if (!copies || !copies->peers || (copies->last >= 0 && (uint64_t)(step - copies->last) < copies->every)) {
        return MUSTER_OK;
    }
    copies->table = table;
    int status = peer_copies_start(copies->peers, step, prepare, &starts);
    copies->table = NULL;
    copies->last = starts ? step : copies->last;
    return status;
}

/* ---- before ranks leave ---- */

/* The newest copy that this rank has whole; what is under way is waited for. */
static int64_t await_copy(const struct fsdp_copies *copies) {
    struct peer_numbers numbers;
    peer_copies_await(copies->peers);
    peer_copies_numbers(copies->peers, &numbers);
    return numbers.step;
}

/* *out: has every rank a copy of the step? */
static int all_have(struct muster_fsdp *fsdp, int64_t step, bool *out) {
    int64_t has = await_copy(fsdp->kept->peers) == step;
    int status = muster_all_reduce(fsdp->mesh.group, &has, &has, 1, MUSTER_INT64, MUSTER_OP_MIN, NULL);
    *out = has != 0;
    return status;
}

static int copy_now(struct muster_fsdp *fsdp, int64_t step) {
    struct fsdp_copies *copies = fsdp->kept->peers;
    struct fsdp_table table;
    bool starts = false;
    int status = fsdp_table_init(&table, fsdp, fsdp->kept->optimizer, NULL);
    status = snapshot_agree(fsdp->mesh.group, status);
    if (status == MUSTER_OK) {
        copies->table = &table;
        status = peer_copies_start(copies->peers, step, prepare, &starts);
        copies->table = NULL;
        copies->last = starts ? step : copies->last;
    }
    fsdp_table_done(&table);
    return status;
}

static int hand_over(struct muster_fsdp *fsdp) {
    int64_t step = copies_step(fsdp->kept->copies);
    bool is_there = false;
    int status = all_have(fsdp, step, &is_there);
    if (status == MUSTER_OK && !is_there) {
        status = copy_now(fsdp, step);
        status = status ? status : all_have(fsdp, step, &is_there);
    }
    if (status != MUSTER_OK) {
        return fsdp_fail(fsdp, status);
    }
    return is_there
               ? MUSTER_OK
               : status_fail(MUSTER_ECONNECT, "step %" PRId64 " has not been copied to peer hosts on all ranks", step);
}

int muster_fsdp_hand_over(struct muster_fsdp *fsdp) {
    if (!fsdp) {
        return status_fail_null("muster_fsdp_hand_over", "fsdp");
    }
    int status = step_failure_status(&fsdp->failure);
    if (status == MUSTER_OK && (!fsdp->kept || !fsdp->kept->peers || !fsdp->kept->peers->peers)) {
        status = status_fail(MUSTER_EUNSUPPORTED, "the state is not copied to peer hosts");
    } else if (status == MUSTER_OK && (fsdp->phase == FSDP_BEGUN || copies_is_begun(fsdp->kept->copies) ||
                                       copies_step(fsdp->kept->copies) < 0)) {
        status = status_fail(MUSTER_EINVAL, "what is there has not been committed: muster_fsdp_commit() first");
    }
    status = status ? status : hand_over(fsdp);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_hand_over");
}
