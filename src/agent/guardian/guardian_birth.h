/* How a guardian process begins: the first as a fork of the agent while that is small, later ones as the same program
 * started anew, since an agent that has lived has threads, secrets and much memory of which a guardian is to have
 * nothing. docs/adr/0019-guardian-replaced.md has the reasons. */
#ifndef AGENT_GUARDIAN_BIRTH_H
#define AGENT_GUARDIAN_BIRTH_H

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

/* What workers inherit through their guardian, and the agent changes for itself after it has made the first one. */
struct guardian_birth {
    struct rlimit files;
    bool is_ignored[NSIG]; /* signals */
};

void guardian_birth_note(struct guardian_birth *out);

/* Both: the guardian's process id, or -1 with errno. It has its end of a socket pair, and nothing else of the caller's
 * but the standard streams. guardian_birth_exec() returns when the program has been replaced: below a millisecond. */
pid_t guardian_birth_fork(int agent_fd, int guardian_fd);
pid_t guardian_birth_exec(const struct guardian_birth *birth, int guardian_fd);

#endif
