/* Ranks from what every node starts: the arithmetic and the JSON of role_info and assigned_ranks. Pure. */
#ifndef RENDEZVOUS_ROLE_TABLE_H
#define RENDEZVOUS_ROLE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define ROLE_NAME_MAX 256 /* bytes of a role's name, terminator included */

struct role_info {
    char role[ROLE_NAME_MAX];
    uint32_t local_world_size;
};

struct assigned_ranks {
    uint32_t base_global_rank;
    uint32_t global_world_size;
    uint32_t base_role_rank;
    uint32_t role_world_size;
};

/* infos[i] is node i's; fills ranks[i]. MUSTER_ELIMIT when the ranks do not fit 31 bits, MUSTER_ENOMEM. */
int role_table_assign(const struct role_info *infos, size_t count, struct assigned_ranks *ranks);

/* {"role": "tr", "rank": 0, "local_world_size": 2}: malloc'd text, NULL without memory. */
char *role_info_write(const struct role_info *info, uint32_t rank);
/* Extra keys are ignored. MUSTER_ECORRUPT. */
int role_info_read(const char *text, size_t len, struct role_info *out);

/* [base_global_rank, global_world_size, base_role_rank, role_world_size] */
char *assigned_ranks_write(const struct assigned_ranks *ranks);
int assigned_ranks_read(const char *text, size_t len, struct assigned_ranks *out);

#endif
