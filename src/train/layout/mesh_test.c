/* Rows and columns of real ranks on every layout of hosts: who has which place and part, and that the groups for them
 * work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/status.h"
#include "comm/group/ranks_test_support.h"
#include "train/layout/mesh.h"

enum { SIZE_MAX_HERE = 6 };

struct place {
    uint32_t size, rows, columns;
    struct ranks_options ranks;
    const char *environment; /* NULL, or set in each rank */
    bool is_hybrid;
};

static const uint32_t crossed[6] = {0, 1, 0, 1, 0, 1}, nested[4] = {0, 1, 1, 0}, uneven[4] = {0, 0, 0, 1};

static const struct place places[] = {
    {.size = 1, .rows = 1, .columns = 1},
    {.size = 3, .rows = 1, .columns = 3},
    {.size = 4, .rows = 2, .columns = 2, .ranks = {.ranks_per_host = 2}},
    {.size = 4, .rows = 2, .columns = 2, .ranks = {.host_of = crossed}},
    {.size = 4, .rows = 2, .columns = 2, .ranks = {.host_of = nested}},
    {.size = 6, .rows = 2, .columns = 3, .ranks = {.host_of = crossed}},
    {.size = 4, .rows = 4, .columns = 1, .ranks = {.host_of = uneven}},
    {.size = 3, .rows = 3, .columns = 1, .ranks = {.ranks_per_host = 1}},
    {.size = 2, .rows = 2, .columns = 1, .environment = "MUSTER_SHM=0"},
};

/* Who a group consists of: as a set of ranks of the whole, and the place that each has in it. */
static uint32_t members(struct rank *rank, struct muster_group *group) {
    uint32_t set = 0;
    for (uint32_t i = 0; i < muster_group_size(group); i++) {
        uint32_t root = muster_group_root_rank(group, i);
        rank_check(rank, !(set >> root & 1));
        set |= 1U << root;
    }
    return set;
}

/* The group of `count` ranks in which this one is number `own`; NULL for one rank alone. It works. */
static void check_group(struct rank *rank, struct muster_group *group, uint32_t count, uint32_t own) {
    rank_check(rank, (group != NULL) == (count > 1));
    if (group) {
        rank_check(rank, muster_group_size(group) == count && muster_group_rank(group) == own);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
    }
}

/* Where every rank is: no place twice, and a row is ranks of one host. */
static void check_places(struct rank *rank, struct muster_group *group, const struct mesh *mesh) {
    uint32_t own[3] = {mesh->row, mesh->column, mesh->part}, all[SIZE_MAX_HERE][3], taken = 0, parts = 0;
    rank_check_code(rank, muster_all_gather(group, own, all, 3, MUSTER_UINT32, NULL), 0);
    for (uint32_t i = 0; i < rank->size; i++) {
        uint32_t row = all[i][0], column = all[i][1], part = all[i][2];
        rank_check(rank, row < mesh->rows && column < mesh->columns && part < mesh->part_count);
        taken |= 1U << (row * mesh->columns + column);
        parts |= 1U << part;
        bool is_neighbour = row == mesh->row && i != rank->rank;
        rank_check(rank, !is_neighbour || muster_group_host_of(group, i) == muster_group_host_of(group, rank->rank));
        /* Parts of a column are neighbours; with hybrid sharding they are one. */
        rank_check(rank, part == (mesh->part_count == mesh->columns ? column : column * mesh->rows + row));
    }
    rank_check(rank, taken == (1U << rank->size) - 1 && parts == (1U << mesh->part_count) - 1);
}

static void check_groups(struct rank *rank, const struct place *place, const struct mesh *mesh) {
    if (place->rows == 1) {
        rank_check(rank, mesh->shard == mesh->group && mesh->row_group == mesh->group && !mesh->column_group);
        return;
    }
    check_group(rank, mesh->column_group, place->rows, mesh->row);
    check_group(rank, mesh->row_group, place->columns, mesh->column);
    if (place->is_hybrid) {
        rank_check(rank, mesh->shard == mesh->row_group);
    } else {
        check_group(rank, mesh->shard, rank->size, mesh->part);
    }
    if (mesh->row_group) {
        rank_check(rank, members(rank, mesh->column_group) != members(rank, mesh->row_group));
    }
}

static int find_place(struct rank *rank, void *argument) {
    const struct place *place = argument;
    struct mesh mesh;
    if (place->environment) {
        rank_check(rank, putenv((char *)(uintptr_t)place->environment) == 0);
    }
    struct muster_group *group = rank_group(rank, NULL);
    for (int time = 0; time < 2; time++) { /* one after the other from the same group */
        rank_check_code(rank, mesh_create(group, place->is_hybrid, &mesh), 0);
        rank_check(rank, mesh.group == group && mesh.rows == place->rows && mesh.columns == place->columns);
        rank_check(rank, mesh.part_count == (place->is_hybrid ? place->columns : rank->size));
        check_places(rank, group, &mesh);
        check_groups(rank, place, &mesh);
        mesh_free(&mesh);
        rank_check(rank, mesh.group == NULL);
        mesh_free(&mesh); /* one that is zeroed */
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0); /* the program's own is still there */
    muster_group_free(group);
    return 0;
}

static void every_rank_has_its_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct place place = places[i];
        ranks_run_with(place.size, find_place, &place, &place.ranks);
        place.is_hybrid = true;
        if (place.ranks.host_of != uneven) {
            ranks_run_with(place.size, find_place, &place, &place.ranks);
        }
    }
}

static int refuse(struct rank *rank, void *argument) {
    (void)argument;
    struct mesh mesh;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, mesh_create(group, true, &mesh), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "same number of ranks on each of the 2 hosts") != NULL);
    rank_check_code(rank, muster_barrier(group, NULL), 0); /* nobody waits for anybody */
    muster_group_free(group);
    return 0;
}

static void hybrid_sharding_needs_hosts_alike(void **state) {
    (void)state;
    const struct ranks_options options = {.host_of = uneven};
    ranks_run_with(4, refuse, NULL, &options);
    static const uint32_t five[5] = {0, 0, 0, 1, 1}; /* no multiple */
    const struct ranks_options other = {.host_of = five};
    ranks_run_with(5, refuse, NULL, &other);
}

/* ---- a rank that cannot make one ---- */

static uint32_t splits_until_failure;

int __real_muster_group_split(struct muster_group *parent, int32_t color, int32_t key,
                              const struct muster_group_options *options, struct muster_group **out);
int __wrap_muster_group_split(struct muster_group *parent, int32_t color, int32_t key,
                              const struct muster_group_options *options, struct muster_group **out);

/* Fails late: the others have their group. */
int __wrap_muster_group_split(struct muster_group *parent, int32_t color, int32_t key,
                              const struct muster_group_options *options, struct muster_group **out) {
    int status = __real_muster_group_split(parent, color, key, options, out);
    if (status != MUSTER_OK || splits_until_failure == 0 || --splits_until_failure > 0) {
        return status;
    }
    muster_group_free(*out);
    *out = NULL;
    return status_fail(MUSTER_ENOMEM, "no memory for the last group");
}

static int fail_late(struct rank *rank, void *argument) {
    (void)argument;
    struct mesh mesh;
    struct muster_group *group = rank_group(rank, NULL);
    splits_until_failure = rank->rank == 3 ? 3 : 0;
    int status = mesh_create(group, false, &mesh);
    if (rank->rank == 3) {
        rank_check_code(rank, status, MUSTER_ENOMEM);
        rank_check(rank, strcmp(muster_detail(), "no memory for the last group") == 0);
    } else {
        rank_check_code(rank, status, 0);
        struct muster_group *shared = rank->rank == 2 ? mesh.row_group : rank->rank == 1 ? mesh.column_group : NULL;
        if (shared) { /* with rank 3: on its host, and on another */
            rank_check_code(rank, muster_barrier(shared, NULL), MUSTER_EABORTED);
            rank_check(rank, strstr(muster_detail(), "no memory for the last group") != NULL);
        }
        mesh_free(&mesh);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0); /* the program's own is its own affair */
    muster_group_free(group);
    return 0;
}

static void a_rank_that_fails_late_tells_those_who_wait(void **state) {
    (void)state;
    const struct ranks_options options = {.ranks_per_host = 2};
    ranks_run_with(4, fail_late, NULL, &options);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_its_place),
        cmocka_unit_test(hybrid_sharding_needs_hosts_alike),
        cmocka_unit_test(a_rank_that_fails_late_tells_those_who_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
