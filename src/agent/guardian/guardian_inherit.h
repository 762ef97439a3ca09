/* What a new guardian does with what it has inherited, before it starts workers: they inherit it from there. */
#ifndef AGENT_GUARDIAN_INHERIT_H
#define AGENT_GUARDIAN_INHERIT_H

/* A standard stream that is closed, or whose number serves the agent for something else, becomes /dev/null. */
void guardian_fill_streams(void);

/* Closes every descriptor from `first` on. */
void guardian_shut_descriptors(int first);

/* Blocks all signals, and leaves no handler. What the agent inherited as ignored stays so, for the workers. */
void guardian_shut_signals(void);

#endif
