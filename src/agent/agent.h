/* The agent: rendezvous, workers, restarts, logs and the failure report of one node, on one event loop. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "agent/launch.h"

/* Runs the job described by `config` (borrowed) to its end. Blocks, running the loop. Returns the exit code of
 * the launcher: 0 all workers succeeded (or a spare that was not needed), 1 failure or a handled signal. Prints the
 * failure report to stderr through the log sink's stream. Call once per process, from the main thread. */
int agent_run(const struct launch_config *config);

#endif
