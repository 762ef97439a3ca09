/* The guardian process itself; guardian.h has what it promises. */
#ifndef AGENT_GUARDIAN_PROCESS_H
#define AGENT_GUARDIAN_PROCESS_H

#include <sys/types.h>

/* The socket's number in the guardian: the first after the standard streams. */
#define GUARDIAN_CHANNEL_FD 3

/* Runs in the new process, with all signals blocked, until the agent closes its end of `socket_fd` or ends; then
 * kills every descendant and exits. `agent` is the agent's process id. */
void guardian_process_run(int socket_fd, pid_t agent) __attribute__((noreturn));

#endif
