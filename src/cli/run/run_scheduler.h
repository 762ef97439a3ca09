/* What a scheduler says, as options that were not given: nodes, backend, endpoint, run id, rank, workers. */
#ifndef CLI_RUN_SCHEDULER_H
#define CLI_RUN_SCHEDULER_H

#include "cli/run/run_machine.h"
#include "cli/run/scheduler.h"

/* The texts to which options_apply lets option values point; keep it as long as those. */
struct run_scheduler {
    struct scheduler found;
    enum starter starter;
    char nnodes[16], workers[16], rank[16], port[16];
    char endpoint[SCHEDULER_HOSTS_MAX * (HOSTLIST_HOST_MAX + 16)];
    char plan[2048];         /* the options that were set: " --nnodes=8 ..." */
    char waits_because[512]; /* whose word it is that there are other agents, if that is not sure; "" */
};

/* Looks for the scheduler that --scheduler names, sets in `options` what the user has not given (on the command line or
 * by a PET_ or MUSTER_ variable), and says so in one line of the log (info). Without a scheduler nothing is changed,
 * nor for a torchrun that does not ask for it, nor where somebody else has started this process. MUSTER_EINVAL: what is
 * missing cannot be known, or what is given cannot be meant in the place where this runs: several agents on one node, a
 * script that srun should have started... The sentence says what to do. A job that needs nothing of the scheduler is
 * never refused. */
int run_scheduler_apply(struct options *options, const struct run_machine *machine, struct run_scheduler *room);

#endif
