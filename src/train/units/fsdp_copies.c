/* Copies of the committed state on peer hosts (train/peers/peer_copies.h): what a rank's share is, when it is copied,
 * and how a state comes back from one. fsdp_copied.c has what steps and questions ask of it.
 *
 * A share is this rank's chunks one after the other, as a checkpoint describes them, and behind them what every rank
 * has whole (train/state/state_bytes.h). */
#include "train/units/fsdp_copies_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "train/state/state_bytes.h"

enum { LINE_BYTES = 64 };

/* ---- a share ---- */

static size_t chunk_bytes(const struct fsdp_parts *parts) {
    size_t bytes = 0;
    for (size_t i = 0; i < parts->state.chunk_count; i++) {
        bytes += (size_t)parts->chunks[i].count * sizeof(float); /* what is sharded is float32 */
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

/* Into the fsdp's memory, which is not committed, and what the table describes. */
static int spread(const struct fsdp_copies *copies, const struct fsdp_table *table, const char *share) {
    struct fsdp_parts parts;
    int status = fsdp_parts_init(&parts, table, true);
    const char *at = share;
    for (size_t i = 0; status == MUSTER_OK && i < parts.state.chunk_count; i++) {
        size_t bytes = (size_t)parts.chunks[i].count * sizeof(float);
        memcpy((void *)(uintptr_t)parts.chunks[i].data, at, bytes);
        at += bytes;
    }
    fsdp_parts_done(&parts);
    return status ? status : state_bytes_read(&table->common, share + copies->chunk_bytes);
}

/* ---- a life ---- */

static uint64_t fingerprint_of(const struct fsdp_table *table) {
    const struct unit_layout *layout = table->fsdp->layout;
    uint64_t hash = state_hash(&table->all);
    hash = fnv_bytes(hash, &layout->part_count, sizeof layout->part_count);
    for (uint32_t i = 0; i < layout->item_count; i++) {
        hash = fnv_bytes(hash, &layout->items[i].offset, sizeof layout->items[i].offset);
    }
    return hash;
}

static int measure(struct fsdp_copies *copies, const struct fsdp_table *table) {
    struct fsdp_parts parts;
    int status = fsdp_parts_init(&parts, table, true);
    copies->chunk_bytes = status ? 0 : chunk_bytes(&parts);
    copies->common_bytes = state_bytes(&table->common);
    fsdp_parts_done(&parts);
    copies->common = malloc(copies->common_bytes + 1);
    return status || copies->common ? status
                                    : status_fail(MUSTER_ENOMEM, "no memory for %zu bytes", copies->common_bytes);
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

static int fetch(struct fsdp_copies *copies, const struct fsdp_table *table) {
    struct muster_group *group = table->fsdp->mesh.group;
    size_t bytes = copies->chunk_bytes + copies->common_bytes;
    char *share = aligned_alloc(LINE_BYTES, (bytes + LINE_BYTES) / LINE_BYTES * LINE_BYTES);
    int status = snapshot_agree(group, share ? MUSTER_OK
                                             : status_fail(MUSTER_ENOMEM, "no memory for a share of %zu bytes", bytes));
    if (status == MUSTER_OK && share) {
        status = peer_copies_fetch(copies->peers, share);
        status = status ? status : snapshot_agree(group, spread(copies, table, share));
    }
    free(share);
    return status;
}

static void tell(struct fsdp_copies *copies, const struct muster_fsdp *fsdp, int64_t step) {
    (void)str_format(copies->note, sizeof copies->note,
                     "the committed state of a host is gone: this is step %" PRId64 ", of the copies on peer hosts",
                     step);
    if (muster_group_rank(fsdp->mesh.group) == 0) {
        log_warning("%s", copies->note);
    }
}

int fsdp_copies_open(const struct fsdp_table *table, const char *name, uint64_t every, int64_t *moved_step) {
    struct muster_fsdp *fsdp = table->fsdp;
    int64_t committed = *moved_step >= 0 ? *moved_step : copies_step(fsdp->kept->copies);
    if (every == 0 || !are_of_use(fsdp)) {
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
    bool is_given_up = copies_note(fsdp->kept->copies)[0] != '\0';
    const struct peer_copies_options options = {.name = name,
                                                .group = fsdp->mesh.group,
                                                .fingerprint = fingerprint_of(table),
                                                .part = fsdp->mesh.part,
                                                .share_bytes = copies->chunk_bytes + copies->common_bytes,
                                                .most = committed >= 0 ? committed
                                                        : is_given_up  ? COMMIT_NOTHING
                                                                       : INT64_MAX,
                                                .collect = collect,
                                                .context = copies};
    status = peer_copies_open(&options, &copies->peers);
    if (status == MUSTER_OK && committed < 0 && peer_copies_found(copies->peers) >= 0) {
        status = fetch(copies, table);
        *moved_step = peer_copies_found(copies->peers);
        tell(copies, fsdp, *moved_step);
    }
    return status;
}

int fsdp_copies_settle(struct muster_fsdp *fsdp) {
    return fsdp->kept->peers ? peer_copies_settle(fsdp->kept->peers->peers) : MUSTER_OK;
}

/* ---- a copy ---- */

static int prepare(void *context) {
    struct fsdp_copies *copies = context;
    const struct fsdp_table *table = copies->table;
    struct muster_fsdp *fsdp = table->fsdp;
    fsdp_parts_done(&copies->parts);
    int status = fsdp_parts_init(&copies->parts, table, true);
    state_bytes_write(&table->common, copies->common);
    copies->read = copies_current(fsdp->kept->copies);
    return snapshot_agree(fsdp->mesh.group, status);
}

int fsdp_copies_commit(const struct fsdp_table *table, int64_t step) {
    struct muster_fsdp *fsdp = table->fsdp;
    struct fsdp_copies *copies = fsdp->kept->peers;
    bool starts = false;
    if (!copies || (copies->last >= 0 && (uint64_t)(step - copies->last) < copies->every)) {
        return MUSTER_OK;
    }
    copies->table = table;
    int status = peer_copies_start(copies->peers, step, prepare, &starts);
    copies->table = NULL;
    copies->last = starts ? step : copies->last;
    return status;
}
