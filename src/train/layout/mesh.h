/* The ranks of an fsdp as rows and columns. A row is the ranks of one host, that share memory. A column is one rank of
 * each host. Parts of a unit are numbered column by column, so that the parts of a column are neighbours: one
 * all_gather of a column puts them where they belong.
 *
 *              column 0   column 1
 *     host 0   part 0     part 2        full sharding of 2 hosts with 2 ranks each
 *     host 1   part 1     part 3
 *
 * Hosts with different numbers of ranks, and ranks that may not share memory, are rows of one rank: then there is one
 * column of all ranks. */
#ifndef TRAIN_MESH_H
#define TRAIN_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include <muster/group.h>

struct mesh {
    struct muster_group *group;        /* the program's */
    uint32_t rows, columns;            /* rows * columns = ranks */
    uint32_t row, column;              /* this rank's place */
    uint32_t part_count;               /* of a unit: all ranks, or with hybrid sharding those of a row */
    uint32_t part;                     /* this rank's */
    struct muster_group *shard;        /* in which gradients are scattered: its ranks in the order of their parts */
    struct muster_group *row_group;    /* NULL: it is alone */
    struct muster_group *column_group; /* NULL likewise */
    bool owns_shard, owns_row, owns_column; /* groups made here */
};

/* Collective over the group, which is borrowed until mesh_free(). MUSTER_EINVAL: hybrid sharding over hosts with
 * different numbers of ranks. */
int mesh_create(struct muster_group *group, bool is_hybrid, struct mesh *out);
/* Aborts the groups that were made here, with that reason. Aborting the program's group is not enough: ranks may be
 * waiting for this one in any of them, and a group does not hear of another's end. */
void mesh_abort(const struct mesh *mesh, const char *reason);
void mesh_free(struct mesh *mesh);

#endif
