/* What a scheduler says, as options that were not given: nodes, backend, endpoint, run id, rank, workers. */
#ifndef CLI_RUN_SCHEDULER_H
#define CLI_RUN_SCHEDULER_H

#include "cli/run/run_machine.h"
#include "cli/run/scheduler.h"

/* The texts to which options_apply lets option values point; keep it as long as those. */
struct run_scheduler {
    struct scheduler found;
    char nnodes[16], workers[16], rank[16], port[16];
    char endpoint[SCHEDULER_HOSTS_MAX * (HOSTLIST_HOST_MAX + 16)];
    char plan[2048]; /* the options that were set: " --nnodes=8 ..." */
};

/* Looks for the scheduler that --scheduler names, sets in `options` what the user has not given (on the command line or
 * by a PET_ or MUSTER_ variable), and says so in one line of the log (info). MUSTER_EINVAL: what the user has given, or
 * not given, cannot be meant in the place where this runs: one node where the scheduler has started several agents,
 * several agents on one node, a script that srun should have started... The sentence says what to do. Without a
 * scheduler nothing is changed. */
int run_scheduler_apply(struct options *options, const struct run_machine *machine, struct run_scheduler *room);

#endif
