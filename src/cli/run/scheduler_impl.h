/* What scheduler.c and the readers of one scheduler each share. */
#ifndef CLI_SCHEDULER_IMPL_H
#define CLI_SCHEDULER_IMPL_H

#include "cli/run/scheduler.h"

struct scheduler_source {
    options_lookup *lookup;
    void *ctx;
};

/* NULL: not set, or empty. */
const char *scheduler_variable(const struct scheduler_source *source, const char *name);

/* A number from `least` on, or 0 in *out and false in *found where the variable is not set. MUSTER_EINVAL. */
int scheduler_number(const struct scheduler_source *source, const char *name, uint32_t least, uint32_t *out,
                     bool *found);

/* The first of `names` (NULL behind the last) that is set; says in out->count_variable which. */
int scheduler_agents(const struct scheduler_source *source, const char *const *names, struct scheduler *out);

/* The first hosts of a list of Slurm's. MUSTER_EINVAL, MUSTER_ELIMIT. */
int scheduler_first_hosts(const char *list, struct scheduler *out);

/* MASTER_ADDR and MASTER_PORT, as job scripts often set them: they win over what was worked out. */
int scheduler_master(const struct scheduler_source *source, struct scheduler *out);

/* A port that agents of one job agree on: below those that Linux gives out itself. */
uint16_t scheduler_port(uint64_t number);

/* Each returns MUSTER_OK with SCHEDULER_NONE where its scheduler is not there. */
int scheduler_read_slurm(const struct scheduler_source *source, struct scheduler *out);
int scheduler_read_open_mpi(const struct scheduler_source *source, struct scheduler *out);
int scheduler_read_hydra(const struct scheduler_source *source, struct scheduler *out);
int scheduler_read_pmi(const struct scheduler_source *source, struct scheduler *out);
int scheduler_read_kubernetes(const struct scheduler_source *source, struct scheduler *out);

#endif
