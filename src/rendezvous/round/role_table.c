/* Role tables; see role_table.h. */
#include "rendezvous/round/role_table.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"

enum { RANKS_TEXT_MAX = 64 };

struct role_sum {
    const char *role;
    uint64_t workers; /* of the nodes so far, then of all */
};

/* Jobs have a handful of roles: a linear search is enough. */
static struct role_sum *find_role(struct role_sum *sums, size_t *count, const char *role) {
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(sums[i].role, role) == 0) {
            return &sums[i];
        }
    }
    sums[*count] = (struct role_sum){.role = role};
    return &sums[(*count)++];
}

int role_table_assign(const struct role_info *infos, size_t count, struct assigned_ranks *ranks) {
    struct role_sum *sums = calloc(count ? count : 1, sizeof *sums);
    if (!sums) {
        return status_fail(MUSTER_ENOMEM, "no memory for the roles of %zu nodes", count);
    }
    size_t role_count = 0;
    uint64_t global = 0;
    for (size_t i = 0; i < count && global <= INT32_MAX; i++) {
        struct role_sum *sum = find_role(sums, &role_count, infos[i].role);
        ranks[i].base_global_rank = (uint32_t)global;
        ranks[i].base_role_rank = (uint32_t)sum->workers;
        global += infos[i].local_world_size;
        sum->workers += infos[i].local_world_size;
    }
    for (size_t i = 0; i < count && global <= INT32_MAX; i++) {
        ranks[i].global_world_size = (uint32_t)global;
        ranks[i].role_world_size = (uint32_t)find_role(sums, &role_count, infos[i].role)->workers;
    }
    free(sums);
    return global <= INT32_MAX ? MUSTER_OK : status_fail(MUSTER_ELIMIT, "a world of more than 2^31 workers");
}

char *role_info_write(const struct role_info *info, uint32_t rank) {
    json_t *object = json_pack("{s:s, s:i, s:i}", "role", info->role, "rank", (int)rank, "local_world_size",
                               (int)info->local_world_size);
    char *text = object ? json_dumps(object, JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    return text;
}

int role_info_read(const char *text, size_t len, struct role_info *out) {
    json_t *object = json_loadb(text, len, 0, NULL);
    const char *role = NULL;
    json_int_t size = 0;
    int rc = MUSTER_OK;
    if (json_unpack(object, "{s:s, s:I}", "role", &role, "local_world_size", &size) != 0 || size < 1 ||
        size > INT32_MAX || !str_copy(out->role, sizeof out->role, role)) {
        rc = status_fail(MUSTER_ECORRUPT, "a node's role_info is not understood: %.*s", len < 200 ? (int)len : 200,
                         text);
    }
    out->local_world_size = (uint32_t)size;
    json_decref(object);
    return rc;
}

char *assigned_ranks_write(const struct assigned_ranks *ranks) {
    return str_format_new("[%u, %u, %u, %u]", ranks->base_global_rank, ranks->global_world_size, ranks->base_role_rank,
                          ranks->role_world_size);
}

int assigned_ranks_read(const char *text, size_t len, struct assigned_ranks *out) {
    json_t *array = json_loadb(text, len, 0, NULL);
    json_int_t v[4] = {0};
    int rc = json_unpack(array, "[I,I,I,I!]", &v[0], &v[1], &v[2], &v[3]);
    for (size_t i = 0; rc == 0 && i < 4; i++) {
        rc = v[i] < 0 || v[i] > INT32_MAX;
    }
    json_decref(array);
    if (rc != 0 || v[0] >= v[1] || v[2] >= v[3]) {
        return status_fail(MUSTER_ECORRUPT, "assigned_ranks is not understood: %.*s",
                           len < RANKS_TEXT_MAX ? (int)len : RANKS_TEXT_MAX, text);
    }
    *out = (struct assigned_ranks){(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2], (uint32_t)v[3]};
    return MUSTER_OK;
}
