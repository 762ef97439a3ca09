/* Saving an fsdp; the files are the business of train/state/.
 *
 * Where a host has everything, its rank that saves writes it from where it is. Else all ranks walk over the sharded
 * tensors in the order of the file, a piece at a time: those that save get it and write it. Before each piece all
 * agree that nobody has failed. So a failure of one is heard of by all, with nobody waiting in vain, and the group goes
 * on. Only a collective that fails is the end of the fsdp, as everywhere. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/group/mark.h"
#include "train/units/fsdp_snapshot.h"

/* Pieces on their way to those who save. */
struct gather {
    const struct fsdp_table *table;
    bool saves;
    uint32_t saver_count, saver; /* saver: where there is one, its part */
    float *send, *received;      /* received: what each part has of the piece, part by part */
    size_t *counts, *cursors;    /* per part */
    struct fsdp_walk gathered;   /* up to where */
    struct fsdp_walk read;       /* up to where the writer has read */
    size_t left;                 /* elements of the piece that it has not read */
    bool is_over;                /* the ranks have agreed on a failure, or cannot agree any more */
    char detail[MUSTER_DETAIL_MAX];
};

static void gather_done(struct gather *g) {
    free(g->send);
    free(g->received);
    free(g->counts);
    free(g->cursors);
}

static int gather_init(struct gather *g, const struct fsdp_table *table, bool saves) {
    size_t parts = table->fsdp->layout->part_count;
    *g = (struct gather){.table = table, .saves = saves};
    if (fsdp_table_is_whole(table)) {
        return MUSTER_OK;
    }
    g->send = malloc(table->piece_count * sizeof *g->send);
    g->counts = calloc(parts, sizeof *g->counts);
    g->cursors = calloc(parts, sizeof *g->cursors);
    return g->send && g->counts && g->cursors
               ? MUSTER_OK
               : status_fail(MUSTER_ENOMEM, "no memory for %zu elements on their way", table->piece_count);
}

/* Who saves? With several, all get everything. */
static int find_savers(struct gather *g) {
    const struct mesh *mesh = &g->table->fsdp->mesh;
    int64_t sums[2] = {g->saves, g->saves ? (int64_t)mesh->part : 0};
    int status = muster_all_reduce(mesh->group, sums, sums, 2, MUSTER_INT64, MUSTER_OP_SUM, NULL);
    if (status != MUSTER_OK) {
        return status;
    }
    if (sums[0] == 0) {
        return status_fail(MUSTER_EINVAL, "no rank saves");
    }
    g->saver_count = (uint32_t)sums[0];
    g->saver = sums[0] == 1 ? (uint32_t)sums[1] : 0;
    if (!fsdp_table_is_whole(g->table) && (g->saves || g->saver_count > 1)) {
        g->received = malloc(g->table->piece_count * sizeof *g->received);
        status = g->received ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a piece of a snapshot");
    }
    return snapshot_agree(mesh->group, status);
}

/* ---- a piece ---- */

/* Counts what each part has of the next piece, and copies what this rank has. */
static size_t collect(struct gather *g) {
    const struct fsdp_table *table = g->table;
    const struct mesh *mesh = &table->fsdp->mesh;
    uint32_t parts = table->fsdp->layout->part_count;
    struct fsdp_extent extent, own;
    size_t total = 0, sent = 0;
    memset(g->counts, 0, parts * sizeof *g->counts);
    while (fsdp_walk_next(table, &g->gathered, table->piece_count - total, &extent)) {
        for (uint32_t part = 0; part < parts; part++) {
            g->counts[part] += fsdp_table_overlap(table, &extent, part, &own) ? own.count : 0;
        }
        if (fsdp_table_overlap(table, &extent, mesh->part, &own)) {
            memcpy(g->send + sent, fsdp_table_at(table, &own, mesh->column), own.count * sizeof *g->send);
            sent += own.count;
        }
        total += extent.count;
    }
    return total;
}

static void place_cursors(struct gather *g) {
    size_t at = 0;
    for (uint32_t part = 0; part < g->table->fsdp->layout->part_count; part++) {
        g->cursors[part] = at;
        at += g->counts[part];
    }
}

static int is_over(struct gather *g, int code) {
    g->is_over = true;
    (void)str_copy(g->detail, sizeof g->detail, muster_detail());
    return code;
}

/* Collective: the next piece. */
static int gather_piece(struct gather *g) {
    const struct mesh *mesh = &g->table->fsdp->mesh;
    int status = snapshot_agree(mesh->group, MUSTER_OK);
    if (status != MUSTER_OK) {
        return is_over(g, status);
    }
    g->left = collect(g);
    status = g->saver_count == 1
                 ? muster_gather_v(mesh->shard, g->send, g->received, g->counts, MUSTER_FLOAT32, g->saver, NULL)
                 : muster_all_gather_v(mesh->shard, g->send, g->received, g->counts, MUSTER_FLOAT32, NULL);
    place_cursors(g);
    /* Others may have what they wanted of it, and would wait for this rank in the next agreement. */
    return status == MUSTER_OK ? MUSTER_OK : is_over(g, fsdp_fail(g->table->fsdp, status));
}

/* ---- the writer reads it ---- */

/* The part that has the first element of the extent, and how many of them. */
static uint32_t part_of(const struct fsdp_table *table, const struct fsdp_extent *extent, size_t *out_count) {
    struct fsdp_extent own = {0};
    uint32_t part = 0;
    while (!fsdp_table_overlap(table, extent, part, &own) || own.begin != extent->begin) {
        part++;
        assert(part < table->fsdp->layout->part_count);
    }
    *out_count = own.count;
    return part;
}

static int next_bytes(void *context, size_t tensor, uint64_t most, const void **out, uint64_t *out_bytes) {
    struct gather *g = context;
    struct fsdp_walk peek = g->read;
    struct fsdp_extent extent;
    size_t count = 0;
    int status = g->left == 0 ? gather_piece(g) : MUSTER_OK;
    if (status != MUSTER_OK) {
        return status;
    }
    bool is_there = fsdp_walk_next(g->table, &peek, g->left, &extent);
    assert(is_there && extent.tensor == tensor);
    uint32_t part = part_of(g->table, &extent, &count);
    (void)fsdp_walk_next(g->table, &g->read, count, &extent);
    *out = g->received + g->cursors[part];
    *out_bytes = count * sizeof *g->received;
    assert(*out_bytes <= most);
    g->cursors[part] += count;
    g->left -= count;
    return MUSTER_OK;
}

/* ---- all of it ---- */

struct request {
    const char *folder;
    int64_t step;
    const struct muster_snapshot_options *options;
};

static int write_here(struct gather *g, const struct request *request) {
    const struct snapshot_source source = {.context = g, .next = next_bytes};
    return snapshot_save_parts(request->folder, request->step, &g->table->all, request->options,
                               group_stream(g->table->fsdp->mesh.group), &source);
}

/* Ranks that do not save give what they have. */
static int give_all(struct gather *g) {
    int status = MUSTER_OK;
    while (status == MUSTER_OK && !fsdp_table_is_whole(g->table) && !fsdp_walk_is_done(g->table, &g->gathered)) {
        status = gather_piece(g);
    }
    return status;
}

static int save(struct gather *g, const struct request *request) {
    int status = find_savers(g);
    if (status != MUSTER_OK) {
        return status;
    }
    status = g->saves ? write_here(g, request) : give_all(g);
    return g->is_over ? status_fail(status, "%s", g->detail) : snapshot_agree(g->table->fsdp->mesh.group, status);
}

/* NOLINTNEXTLINE(readability-function-size): muster_snapshot_save_group()'s, and the optimizer */
int muster_fsdp_save(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, bool saves, const char *folder,
                     int64_t step, const struct muster_snapshot_state *extra,
                     const struct muster_snapshot_options *options) {
    const struct request request = {folder, step, options};
    struct fsdp_table table;
    struct gather gather = {.table = &table};
    if (!fsdp) {
        return status_fail_null("muster_fsdp_save", "fsdp");
    }
    int status = fsdp_table_init(&table, fsdp, optimizer, extra);
    status = status ? status : gather_init(&gather, &table, saves);
    /* From here on nobody writes its part: all have come. */
    status = snapshot_agree(fsdp->mesh.group, status);
    status = status ? status : snapshot_agree_on_description(fsdp->mesh.group, &table.sharded);
    status = status ? status : save(&gather, &request);
    gather_done(&gather);
    fsdp_table_done(&table);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_fsdp_save");
}
