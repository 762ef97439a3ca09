/* Starting one process: the steps between fork and exec, and a sentence for each that can fail. */
#ifndef AGENT_SPAWN_H
#define AGENT_SPAWN_H

#include <sched.h>
#include <stddef.h>
#include <sys/types.h>

struct spawn_request { /* all borrowed during the call */
    char *const *argv;
    char *const *envp;        /* its PATH is searched when argv[0] has no slash */
    int stdout_fd, stderr_fd; /* above 2, or -1 = inherit */
    const cpu_set_t *cpus;    /* NULL = inherit */
    size_t cpus_bytes;
    int given_fd; /* above 2: the process has it as GUARDIAN_GIVEN_FD; 0 = none */
};

enum spawn_step {
    SPAWN_STEP_FORK,
    SPAWN_STEP_PARENT,
    SPAWN_STEP_SESSION,
    SPAWN_STEP_CPUS,
    SPAWN_STEP_STREAMS,
    SPAWN_STEP_EXEC
};

struct spawn_failure {
    enum spawn_step step;
    int error_number;
};

/* Starts the process in a session of its own, with signals at their defaults and unblocked, all descriptors but 0, 1
 * and 2, and the one that it is given, closed, and a SIGKILL due when the calling thread dies. Returns when the new
 * program runs, so that a signal to its group (whose number is the pid) reaches it. Returns the pid, or -1 with `out`
 * filled; then no process is left. The caller must be single-threaded and have all signals blocked with no handler
 * installed. */
pid_t spawn_process(const struct spawn_request *request, struct spawn_failure *out);

/* Writes the reason as a sentence that a user can act on. */
void spawn_explain(const struct spawn_request *request, const struct spawn_failure *failure, char *out, size_t size);

#endif
