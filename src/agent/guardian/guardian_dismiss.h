/* The guardian's part after all workers have ended well: what they started and left running ends, too.
 *
 * Most such processes are about to end by themselves (a helper of Python's, a loader of data), so all get a moment of
 * quiet first. Then each descendant gets SIGTERM, and the agent is told who they are. When none is left, the agent
 * hears that; how long that may take is the agent's decision, which ends it with an order to kill.
 *
 * If asked to, processes that made a session of their own are left alone, then and when the guardian ends. */
#ifndef AGENT_GUARDIAN_DISMISS_H
#define AGENT_GUARDIAN_DISMISS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/guardian/guardian.h"

struct guardian_dismissal {
    bool is_due;   /* ordered, and not over */
    bool has_told; /* they have their SIGTERM */
    bool leaves_detached;
    pid_t server;    /* forks workers, and is left alone until they have ended well; 0: there is none */
    pid_t companion; /* serves workers, and is left alone until all others are gone; 0: there is none */
    int64_t quiet_until_ns;
    size_t session_count;
    pid_t sessions[GUARDIAN_WORKERS_MAX]; /* of workers since the last group was gone: the numbers of their leaders */
};

/* A worker has been started. */
void guardian_dismissal_note(struct guardian_dismissal *d, pid_t worker);

void guardian_dismissal_begin(struct guardian_dismissal *d, bool leaves_detached, int64_t now_ns);

/* Milliseconds until the quiet is over; -1: nothing is waited for. */
int guardian_dismissal_wait_ms(const struct guardian_dismissal *d, int64_t now_ns);

/* True for a process that is to be left alone. */
bool guardian_dismissal_spares(const struct guardian_dismissal *d, pid_t pid);

/* Is any child of the caller left that is not to be left alone? counts_detached: or that has a session of its own. */
bool guardian_dismissal_has_children(const struct guardian_dismissal *d, bool counts_detached);

/* All descendants that are still there, those to be left alone included. With `signals`, SIGTERM for the others. */
void guardian_dismissal_survey(const struct guardian_dismissal *d, bool signals, struct guardian_lingering *out);

#endif
