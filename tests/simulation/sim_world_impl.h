/* What sim_world.c (the job) and sim_world_trouble.c (what goes wrong) share. */
#ifndef SIMULATION_SIM_WORLD_IMPL_H
#define SIMULATION_SIM_WORLD_IMPL_H

#include <time.h>

#include "sim_agent.h"
#include "sim_judge.h"
#include "sim_world.h"

enum { SIM_WORLD_MOMENT_MS = 200 }; /* what a pause of a host takes longer than drawn, at most */

/* What goes wrong, once. */
enum trouble {
    TROUBLE_KILL,    /* the agent's process */
    TROUBLE_VANISH,  /* its host loses power */
    TROUBLE_STALL,   /* its process gets no time for a while */
    TROUBLE_ISOLATE, /* nothing comes or goes */
    TROUBLE_DEAFEN,  /* nothing arrives */
    TROUBLE_MUTE,    /* nothing leaves */
    TROUBLE_CUT,     /* between two hosts */
    TROUBLE_SPLIT,   /* two halves */
    TROUBLE_RESET,   /* a connection */
    TROUBLE_CLOCK,   /* the wall clock jumps */
    TROUBLE_SIGNAL,  /* SIGTERM */
    TROUBLE_PREEMPT, /* the node will be taken away */
    TROUBLE_KIND_COUNT,
    TROUBLE_FORGET = TROUBLE_KIND_COUNT, /* its connections, by something on the way; from here on: with cuts alone */
    TROUBLE_REFUSE,                      /* the same, and who sends on one is told */
    TROUBLE_FAIL,                        /* a worker */
    TROUBLE_SUCCEED,                     /* all workers of the node */
};

/* Hosts that nothing comes from, and those that it does not reach; bits by index. */
struct sim_cut {
    int64_t at_us, lasts_us;
    uint64_t from, to;
    bool is_mutual; /* nor the other way */
};

enum { SIM_CUTS_MAX = 4 };

/* Of a job with cuts. */
struct sim_cuts {
    bool are_short;    /* nothing goes wrong but cuts that are over before `hold`, and perhaps connections that break */
    int64_t hold_ms;   /* how long a silent node keeps its place that the others need */
    size_t late_count; /* the last hosts come late, each with the line of another one */
    int64_t slow_ms;   /* the longest that workers take to end which do end when they are told to */
    struct sim_cut list[SIM_CUTS_MAX];
    size_t count;
};

struct sim_world {
    struct sim_world_options options;
    struct sim_world_result *result;
    struct sim_random random; /* for the options and the troubles */
    struct sim_random *work;  /* one a node: what becomes of its workers */
    size_t node_count;        /* those that come late as well */
    struct sim_cuts cuts;
    uint32_t *node_ranks; /* of static */
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
/* Before anything else is drawn, with the rest of the options, and when the hosts are there. */
void sim_world_draw_late(struct sim_world *world);
void sim_world_draw_cut_job(struct sim_world *world);
void sim_world_draw_cuts(struct sim_world *world);
struct sim_work sim_world_cut_work(struct sim_world *world, uint32_t index);

/* `host`: of a connection that is reset, lasts_us chooses. */
void sim_world_post_trouble(struct sim_world *world, int64_t at_us, enum trouble kind, uint64_t host, int64_t lasts_us);

#endif
