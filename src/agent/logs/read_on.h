/* The process that reads, when the launcher has ended, what those print that were left alone after a success: without a
 * reader their next write would kill them. It does what the launcher did with their output, and ends with the last of
 * them. */
#ifndef AGENT_READ_ON_H
#define AGENT_READ_ON_H

#include "agent/logs/relay.h"

/* Forks it, if anybody has a pipe of the relay. The caller then closes the relay. Blocks as relay_close() does. */
void read_on_begin(struct relay *relay);

#endif
