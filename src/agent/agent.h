/* The agent: rendezvous, workers, restarts, logs and the failure report of one node, on one event loop. */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include <stddef.h>

#include "agent/launch/launch.h"

/* Where the failure report and event lines go: the program writes them to stderr. `text` is borrowed. */
typedef void agent_print_fn(const char *text, size_t bytes);

/* Runs the job described by `config` (borrowed) to its end. Blocks, running the loop. Returns the exit code of
 * the launcher: 0 all workers succeeded (or a spare that was not needed), 1 failure or a handled signal; dies of a
 * signal that came before any worker was started, as torchrun does. Call once per process, from the main thread,
 * before any other thread is started. */
int agent_run(const struct launch_config *config, agent_print_fn *print);

/* In its place, for a job that cannot be started: writes the outcome (--outcome, if it is in `config`, whose other
 * members may be missing) with `why`. */
void agent_refuse(const struct launch_config *config, const char *why);

#endif
