/* See mesh.h. */
#include "train/layout/mesh.h"

#include "base/status.h"
#include "comm/group/mark.h"

/* Ranks of every host; 0: they differ. */
static uint32_t ranks_per_host(struct muster_group *group) {
    uint32_t size = muster_group_size(group), hosts = muster_group_host_count(group);
    if (size % hosts != 0) {
        return 0;
    }
    for (uint32_t host = 0; host < hosts; host++) {
        uint32_t count = 0;
        for (uint32_t rank = 0; rank < size; rank++) {
            count += muster_group_host_of(group, rank) == host;
        }
        if (count != size / hosts) {
            return 0;
        }
    }
    return size / hosts;
}

static int split(const struct mesh *mesh, uint32_t color, uint32_t key, struct muster_group **out) {
    return muster_group_split(mesh->group, (int32_t)color, (int32_t)key, NULL, out);
}

/* On one host the program's own group does for all. Else gathers go through a group of their own, so that they do not
 * queue behind reductions. */
static int make_groups(struct mesh *mesh, bool is_hybrid) {
    int status = MUSTER_OK;
    if (mesh->rows == 1) {
        mesh->shard = mesh->row_group = mesh->group;
        return MUSTER_OK;
    }
    status = split(mesh, mesh->column, mesh->row, &mesh->column_group);
    mesh->owns_column = mesh->column_group != NULL;
    if (status == MUSTER_OK && mesh->columns > 1) {
        status = split(mesh, mesh->row, mesh->column, &mesh->row_group);
        mesh->owns_row = mesh->row_group != NULL;
    }
    if (is_hybrid) {
        mesh->shard = mesh->row_group;
    } else if (mesh->columns == 1) {
        mesh->shard = mesh->group;
    } else if (status == MUSTER_OK) {
        status = split(mesh, 0, mesh->part, &mesh->shard);
        mesh->owns_shard = mesh->shard != NULL;
    }
    return status;
}

static void abort_group(struct muster_group *group, const char *reason) {
    if (muster_group_status(group) == MUSTER_OK) {
        muster_group_abort(group, reason);
    }
}

void mesh_abort(const struct mesh *mesh, const char *reason) {
    if (mesh->owns_shard) {
        abort_group(mesh->shard, reason);
    }
    if (mesh->owns_row) {
        abort_group(mesh->row_group, reason);
    }
    if (mesh->owns_column) {
        abort_group(mesh->column_group, reason);
    }
}

int mesh_create(struct muster_group *group, bool is_hybrid, struct mesh *out) {
    uint32_t each = ranks_per_host(group), size = muster_group_size(group), rank = muster_group_rank(group);
    if (is_hybrid && each == 0) {
        return status_fail(MUSTER_EINVAL, "hybrid sharding needs the same number of ranks on each of the %u hosts",
                           muster_group_host_count(group));
    }
    *out = (struct mesh){.group = group, .columns = each > 0 ? each : 1};
    group_hold(group);
    out->rows = size / out->columns;
    out->row = each > 0 ? muster_group_host_of(group, rank) : rank;
    out->column = each > 0 ? muster_group_local_rank(group) : 0;
    out->part_count = is_hybrid ? out->columns : size;
    out->part = is_hybrid ? out->column : out->column * out->rows + out->row;
    int status = make_groups(out, is_hybrid);
    if (status != MUSTER_OK) { /* a rank may have all its groups, and already wait in one for this rank */
        struct status_kept kept;
        status_keep(&kept);
        mesh_abort(out, kept.detail);
        mesh_free(out);
        status_put_back(&kept);
    }
    return status;
}

void mesh_free(struct mesh *mesh) {
    muster_group_free(mesh->owns_shard ? mesh->shard : NULL);
    muster_group_free(mesh->owns_row ? mesh->row_group : NULL);
    muster_group_free(mesh->owns_column ? mesh->column_group : NULL);
    group_let_go(mesh->group);
    *mesh = (struct mesh){0};
}
