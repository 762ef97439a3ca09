/* What sim_world.c (the job) and sim_world_trouble.c (what goes wrong) share. */
#ifndef SIMULATION_SIM_WORLD_IMPL_H
#define SIMULATION_SIM_WORLD_IMPL_H

#include <time.h>

#include "sim_agent.h"
#include "sim_judge.h"
#include "sim_world.h"

enum { SIM_WORLD_MOMENT_MS = 200 }; /* what a pause of a host takes longer than drawn, at most */

struct sim_world {
    struct sim_world_options options;
    struct sim_world_result *result;
    struct sim_random random; /* for the options and the troubles */
    struct sim_random *work;  /* one a node: what becomes of its workers */
    size_t node_count;
    uint32_t min_nodes, max_nodes, max_restarts;
    int64_t stop_timeout_ms;
    int64_t calm_us; /* nothing goes wrong from then on */
    bool has_topology;
    uint32_t endpoint_count;
    struct rdzv_conf conf;
    uint32_t *workers;
    int *roles;
    struct sim_agent *agents;
    struct sim_judge judge;
    bool is_calm;                  /* nothing is drawn: for measuring */
    struct sim_world_figures base; /* when what is measured began */
};

/* The clock on the wall of who measures (sim_libc.c). */
int __real_clock_gettime(clockid_t clock, struct timespec *out);

/* Events. */
void sim_world_start(void *subject, uint64_t index);

/* The agent's process is killed, or vanishes with its host. */
void sim_world_end_process(struct sim_world *world, uint64_t index, bool silently);

void sim_world_draw_troubles(struct sim_world *world);
void sim_world_draw_preemption(struct sim_world *world);
void sim_world_draw_pauses(struct sim_world *world);

#endif
