/* The failure of an object whose ranks take steps together (a ddp), and who else is told of it.
 *
 * Such an object fails once: what came first is what every later call says. All that a rank finds out by itself (no
 * memory here, a hook's failure) it tells the others by aborting the group: they would wait for it in vain. */
#ifndef TRAIN_STEP_FAILURE_H
#define TRAIN_STEP_FAILURE_H

#include <muster/group.h>
#include <muster/status.h>

struct step_failure {
    int code; /* 0: none */
    char detail[MUSTER_DETAIL_MAX];
};

/* Aborts `group` with the thread's detail, if it does not know yet that this rank has failed. Keeps the detail. */
void step_failure_tell(struct muster_group *group, int code);
/* Remembers the failure `code`, whose detail the thread has, if it is the first; tells the group, unless that has
 * failed itself. The first failure and its detail come back. */
int step_failure_set(struct step_failure *failure, struct muster_group *group, int code);
/* The same when ranks could not agree on what to do: a mismatch is then known to all of them, and nobody waits. */
int step_failure_set_unagreed(struct step_failure *failure, struct muster_group *group, int code);
/* 0, or the failure that is remembered, with its detail. */
int step_failure_status(const struct step_failure *failure);

#endif
