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

/* What cannot be right: it says nothing, and is told only to those who need what it should have said. The first one is
 * kept. */
void scheduler_doubt(struct scheduler *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Is it a number from `least` on? Else *number stays as it was. */
bool scheduler_number(const struct scheduler_source *source, const char *name, uint32_t least, struct scheduler *out,
                      uint32_t *number);

/* The first of `names` (NULL behind the last) that is one; says in out->count_variable which. */
bool scheduler_agents(const struct scheduler_source *source, const char *const *names, struct scheduler *out);

/* Sets out->rank. */
void scheduler_rank(const struct scheduler_source *source, const char *name, struct scheduler *out);

/* The first hosts of a list of Slurm's. False: it is none. */
bool scheduler_first_hosts(const char *list, struct scheduler *out);

/* MASTER_ADDR and MASTER_PORT, as job scripts often set them: they win over what was worked out. */
void scheduler_master(const struct scheduler_source *source, struct scheduler *out);

/* A port that agents of one job agree on: below those that Linux gives out itself. */
uint16_t scheduler_port(uint64_t number);

/* Each leaves SCHEDULER_NONE where its scheduler is not there. */
void scheduler_read_slurm(const struct scheduler_source *source, struct scheduler *out);
void scheduler_read_open_mpi(const struct scheduler_source *source, struct scheduler *out);
void scheduler_read_hydra(const struct scheduler_source *source, struct scheduler *out);
void scheduler_read_pmi(const struct scheduler_source *source, struct scheduler *out);
void scheduler_read_kubernetes(const struct scheduler_source *source, struct scheduler *out);

#endif
