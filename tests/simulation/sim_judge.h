/* The judge of a simulated job: sees what agents are told and what becomes of them, keeps an account of its own, and
 * says what must not be. It knows the promises (docs/rendezvous.md), and none of the code.
 *
 * Worlds are told apart by their round and by the process that served the rendezvous: another one begins anew. */
#ifndef SIMULATION_SIM_JUDGE_H
#define SIMULATION_SIM_JUDGE_H

#include "sim_agent.h"

enum { SIM_JUDGE_ROLE_COUNT = 2 };

struct sim_judge_seat {
    uint32_t agent, life;
    bool is_taken;
    uint32_t base_global, base_role;
};

/* A world as it was first told. */
struct sim_judge_round {
    uint64_t round;
    int server; /* the process that served it */
    struct rdzv_world world;
    char master_addr[64];
    uint32_t told_count;
    bool is_torn; /* c10d: a member has left it before another one saw it (docs/simulation.md) */
    int64_t first_told_us, last_told_us;
    bool has_failed;              /* a worker of it */
    bool has_other_cause;         /* to end: a node has come, gone, or was disturbed */
    struct sim_judge_seat *seats; /* by group rank */
};

struct sim_judge_agent {
    uint32_t life;
    uint64_t last_round;
    uint32_t told_restarts; /* of the job, with its last world */
    int server;             /* that its last world came from; 0: none yet */
    bool was_signalled;     /* in this life */
    bool lost_workers;      /* its last attempt has ended badly by itself */
    unsigned failures;      /* of its own workers, in this life */
    int64_t disturbed_until_us;
    int64_t died_us; /* last; 0: has not */
    bool was_reset;  /* a connection of its host */
    bool is_unheard; /* something has forgotten its connections: what its kernel says at its end reaches nobody */
};

/* What a backend keeps to so far (sim_world.c): of the rest the judge says nothing. */
struct sim_judge_promises {
    bool one_of_a_rank; /* no two workers of one rank run at the same time */
    bool cuts;          /* a cut that is over before `hold` costs nothing, in a job that needs all its nodes */
    bool resets;        /* so does a connection that breaks, or is forgotten */
    bool ends;          /* a node that nobody reaches has ended its workers when `hold` is over */
};

struct sim_judge {
    struct sim_judge_promises promises;
    bool has_short_cuts, has_short_resets; /* nothing goes wrong but such ones: no restart, and all ends well */
    bool is_c10d, is_static;
    bool takes_places;   /* hosts come with the line of another one: over static they take its place */
    bool has_pauses;     /* nothing goes wrong but that hosts get no time for a while: no restart, and all ends well */
    bool was_paused;     /* then: one has been */
    size_t server_count; /* the first hosts can serve the rendezvous */
    uint32_t min_nodes, max_nodes, max_restarts;
    bool has_window;         /* charges are forgotten */
    bool limits_changes;     /* of membership */
    uint64_t first_round;    /* of a job */
    int64_t patience_us;     /* a node may be silent for so long and keeps its place */
    int64_t stop_us;         /* in which an agent that has heard of a change has ended its workers */
    int64_t silence_us;      /* after which a silent node is promised to be out */
    int64_t notice_us;       /* after which a broken connection, and a failure, is promised to have been told */
    const uint32_t *workers; /* of each node */
    const int *roles;
    struct sim_judge_agent *agents;
    struct sim_agent *players;
    size_t agent_count;
    struct sim_judge_round *rounds;
    size_t round_count, round_capacity;
    bool any_ended_job; /* somebody has had reason to close it */
    bool any_signalled, any_preempted, any_done;
    int stopped_server;   /* the process that has told the members of its world to stop for good; 0: none */
    int done_server;      /* the last process that served, was done and has ended; 0: none */
    bool server_suffered; /* the host of the rendezvous, or the way to it, has had trouble */
    bool had_trouble, any_death;
    struct rdzv_cause reported; /* by the first agent that knew one */
    uint64_t reported_round;    /* in which that agent's workers ran last */
    bool has_reported;
};

void sim_judge_begin(struct sim_judge *judge, struct sim_agent *players, size_t count);
void sim_judge_done(struct sim_judge *judge);

void sim_judge_start(struct sim_judge *judge, const struct sim_agent *agent);
void sim_judge_world(struct sim_judge *judge, const struct sim_agent *agent, const struct rdzv_world *world);
void sim_judge_step(struct sim_judge *judge, const struct sim_agent *agent, enum agent_state before,
                    const struct agent_event *event);
void sim_judge_report(struct sim_judge *judge, const struct sim_agent *agent);
void sim_judge_exit(struct sim_judge *judge, const struct sim_agent *agent, int code);
/* Before it is cleared. `silently`: its host has gone with it. */
void sim_judge_death(struct sim_judge *judge, const struct sim_agent *agent, bool silently);
/* Its workers have been started (sim_judge_cuts.c). */
void sim_judge_workers(struct sim_judge *judge, const struct sim_agent *agent);
/* Nothing has come or gone at its host for as long as a node keeps its place. */
void sim_judge_cut_off(struct sim_judge *judge, const struct sim_agent *agent);
/* Its exit code is no success. */
void sim_judge_bad_end(struct sim_judge *judge);
/* The host, or its network, does not work as it should until then. */
void sim_judge_disturbed(struct sim_judge *judge, const struct sim_host *host, int64_t until_us);
void sim_judge_reset(struct sim_judge *judge, const struct sim_host *host); /* a connection of its */
/* Nobody runs any more, or it has taken too long. */
void sim_judge_end(struct sim_judge *judge);

#endif
