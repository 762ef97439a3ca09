/* Loading an fsdp; the files are the business of train/state/.
 *
 * One rank a host looks for snapshots and reads what the host stores. Where a rank does not see the snapshot, one that
 * has it reads all of it, a piece at a time, and every rank takes its part. */
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/sized.h"
#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/group/mark.h"
#include "train/units/fsdp_snapshot.h"

/* A load under way. */
struct load {
    const struct fsdp_table *table;
    struct muster_group *group;
    struct snapshot_choice choice;
    struct snapshot_reader *reader; /* NULL: this rank does not see it */
    bool is_reader;                 /* of its host */
};

static int open_it(struct load *load, const char *folder) {
    const struct muster_snapshot_found *found = &load->choice.found;
    /* The others of a host take the word of the one that has looked. */
    bool checked = load->choice.is_mine || !load->is_reader;
    int status = snapshot_reader_open(folder, found->step, found->id, checked, &load->reader);
    return status ? status : snapshot_reader_match(load->reader, &load->table->all);
}

/* ---- every host sees it ---- */

/* What this host stores of an extent. */
static int read_extent(const struct load *load, const struct fsdp_extent *extent) {
    const struct unit_layout *layout = load->table->fsdp->layout;
    int status = MUSTER_OK;
    for (uint32_t column = 0; status == MUSTER_OK && column < load->table->fsdp->mesh.columns; column++) {
        struct fsdp_extent part;
        if (fsdp_table_overlap(load->table, extent, layout->first_part + column * layout->stride, &part)) {
            status =
                snapshot_reader_range(load->reader, load->table->tensors[part.tensor].name, part.begin * sizeof(float),
                                      fsdp_table_at(load->table, &part, column), part.count * sizeof(float));
        }
    }
    return status;
}

static int read_ranges(const struct load *load) {
    struct fsdp_walk walk = {0};
    struct fsdp_extent extent;
    int status = MUSTER_OK;
    while (status == MUSTER_OK && fsdp_walk_next(load->table, &walk, SIZE_MAX, &extent)) {
        status = read_extent(load, &extent);
    }
    return status;
}

static int read_here(const struct load *load) {
    void *stream = group_stream(load->group);
    int status = snapshot_reader_load(load->reader, &load->table->common, stream);
    if (status == MUSTER_OK && load->is_reader) {
        status = fsdp_table_is_whole(load->table) ? snapshot_reader_load(load->reader, &load->table->sharded, stream)
                                                  : read_ranges(load);
    }
    return snapshot_agree(load->group, status);
}

/* ---- some rank does not see it ---- */

/* Reads the next piece and moves on. */
static int read_piece(const struct load *load, struct fsdp_walk walk, float *piece) {
    const struct fsdp_table *table = load->table;
    struct fsdp_extent extent;
    size_t done = 0;
    int status = MUSTER_OK;
    while (status == MUSTER_OK && fsdp_walk_next(table, &walk, table->piece_count - done, &extent)) {
        status = snapshot_reader_range(load->reader, table->tensors[extent.tensor].name, extent.begin * sizeof *piece,
                                       piece + done, extent.count * sizeof *piece);
        done += extent.count;
    }
    return status;
}

static size_t count_piece(const struct load *load, struct fsdp_walk walk) {
    struct fsdp_extent extent;
    size_t count = 0;
    while (fsdp_walk_next(load->table, &walk, load->table->piece_count - count, &extent)) {
        count += extent.count;
    }
    return count;
}

/* This rank's part of a piece. */
static void take_part(const struct load *load, struct fsdp_walk *walk, const float *piece) {
    const struct mesh *mesh = &load->table->fsdp->mesh;
    struct fsdp_extent extent, own;
    size_t done = 0;
    while (fsdp_walk_next(load->table, walk, load->table->piece_count - done, &extent)) {
        if (fsdp_table_overlap(load->table, &extent, mesh->part, &own)) {
            memcpy(fsdp_table_at(load->table, &own, mesh->column), piece + done + (own.begin - extent.begin),
                   own.count * sizeof *piece);
        }
        done += extent.count;
    }
}

static int pass_pieces(const struct load *load, float *piece) {
    bool has_it = muster_group_rank(load->group) == load->choice.owner;
    struct fsdp_walk walk = {0};
    int status = MUSTER_OK;
    while (status == MUSTER_OK && !fsdp_walk_is_done(load->table, &walk)) {
        status = snapshot_agree(load->group, has_it ? read_piece(load, walk, piece) : MUSTER_OK);
        status = status ? status
                        : muster_broadcast(load->group, piece, count_piece(load, walk), MUSTER_FLOAT32,
                                           load->choice.owner, NULL);
        if (status == MUSTER_OK) {
            take_part(load, &walk, piece);
        }
    }
    return status;
}

static int get_from_owner(const struct load *load) {
    bool has_it = muster_group_rank(load->group) == load->choice.owner;
    float *piece = malloc(load->table->piece_count * sizeof *piece);
    int status = piece ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a piece of a snapshot");
    status = status ? status : snapshot_check_broadcast(load->group, &load->table->common);
    if (status == MUSTER_OK && has_it) {
        status = snapshot_reader_load(load->reader, &load->table->common, group_stream(load->group));
    }
    status = snapshot_agree(load->group, status);
    status = status || !piece ? status : pass_pieces(load, piece);
    status = status ? status : snapshot_broadcast_state(load->group, &load->table->common, load->choice.owner);
    free(piece);
    return status;
}

/* ---- all of it ---- */

static int load_newest(struct load *load, const char *folder) {
    bool any_lack = false;
    int status = snapshot_choose(load->group, load->is_reader, folder, MUSTER_OK, &load->choice);
    if (status != MUSTER_OK) {
        return status;
    }
    int lack = open_it(load, folder);
    bool excused = snapshot_is_lack(lack) && muster_group_rank(load->group) != load->choice.owner;
    status = snapshot_agree(load->group, excused ? MUSTER_OK : lack);
    status = status ? status : snapshot_any_lack(load->group, lack, &any_lack);
    if (status == MUSTER_OK) {
        load->table->fsdp->values_changed = true; /* in part, even if it fails */
        status = any_lack ? get_from_owner(load) : read_here(load);
    }
    return status ? status_prefix(status, "load step %lld", (long long)load->choice.found.step) : MUSTER_OK;
}

int muster_fsdp_load_newest_sized(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const char *folder,
                                  const struct muster_snapshot_state *extra, struct muster_snapshot_found *out,
                                  size_t out_bytes) {
    struct fsdp_table table;
    struct load load = {.table = &table};
    if (!fsdp) {
        return status_fail_null("muster_fsdp_load_newest", "fsdp");
    }
    load.group = fsdp->mesh.group;
    load.is_reader = fsdp->mesh.column == 0;
    cuda_library_adopt();
    int status = fsdp_table_init(&table, fsdp, optimizer, extra);
    status = status ? status : fsdp_keep_check_load(fsdp);
    status = snapshot_agree(load.group, status);
    status = status ? status : snapshot_agree_on_description(load.group, &table.all);
    status = status ? status : load_newest(&load, folder);
    snapshot_reader_close(load.reader);
    fsdp_table_done(&table);
    if (status != MUSTER_OK) {
        return status_prefix(status, "muster_fsdp_load_newest");
    }
    fsdp_values_round(fsdp);
    fsdp->phase = FSDP_IDLE; /* averages of a step before belong to other parameters */
    if (out) {
        sized_write(out, out_bytes, &load.choice.found, sizeof load.choice.found);
    }
    return MUSTER_OK;
}
