/* Which scheduler or launcher has started this agent, as its environment says: Slurm, Kubernetes, an MPI launcher.
 *
 * Pure: variables in, facts out. What follows from the facts, and when they contradict the options, is
 * run_scheduler.c's business. The rules are told to users in docs/schedulers.md. */
#ifndef CLI_SCHEDULER_H
#define CLI_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hostlist.h"
#include "cli/command/options.h"

#define SCHEDULER_AGENTS_MAX 65536 /* of one job; also the largest number of nodes */
#define SCHEDULER_HOSTS_MAX 3      /* where the nodes can meet: the loss of two is survived */
#define SCHEDULER_TEXT_MAX 256     /* bytes of a run id and of the words for people, terminator included */

enum scheduler_kind { SCHEDULER_NONE, SCHEDULER_SLURM, SCHEDULER_KUBERNETES, SCHEDULER_MPI };

/* 0 and "" where the environment does not say. */
struct scheduler {
    enum scheduler_kind kind;
    bool is_launched; /* this process is one of those that the scheduler has started; else: a shell or a batch script */
    bool is_on_node;  /* it runs on a node of the job */
    bool knows_rank;
    bool is_contradictory;    /* the rank is beyond the number of agents; both are left out */
    bool is_master_elsewhere; /* MASTER_ADDR is a node of the job, but not of this step, and so is not taken */
    uint32_t agents;          /* such processes */
    uint32_t rank;            /* of this one, below `agents` where that is known */
    uint32_t local_agents;    /* such processes on this node; 0: several nodes have several, or unknown */
    uint32_t nodes;
    uint32_t workers;  /* devices of this node for the job */
    uint32_t restarts; /* how often the scheduler has started the job anew */
    uint16_t port;     /* for the rendezvous */
    uint32_t host_count;
    char hosts[SCHEDULER_HOSTS_MAX][HOSTLIST_HOST_MAX]; /* of the first agents, the first one first */
    char run_id[SCHEDULER_TEXT_MAX];
    char where[SCHEDULER_TEXT_MAX]; /* "Slurm job 12, step 0" */
    char count_variable[32];        /* which says `agents`: "SLURM_STEP_NUM_TASKS" */
    char doubt[SCHEDULER_TEXT_MAX]; /* a variable that cannot be right, and so says nothing above; "": none */
};

/* `choice`: auto, slurm, kubernetes, mpi or none. With auto, what was started by a worker of another launcher is in no
 * scheduler's hands (SCHEDULER_NONE): the variables are that launcher's. A variable that cannot be right, or two that
 * contradict each other, say nothing. MUSTER_EINVAL: the scheduler that was chosen is not there. */
int scheduler_detect(const char *choice, options_lookup *lookup, void *ctx, struct scheduler *out);

#endif
