/* The outcome that the guardian writes when the agent could not: it was killed, or died. The agent says beforehand
 * where to, and what it knows of the job; pids and ends of the workers the guardian knows itself. */
#ifndef AGENT_GUARDIAN_OUTCOME_H
#define AGENT_GUARDIAN_OUTCOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/guardian/guardian.h"
#include "agent/report/outcome.h"

struct guardian_outcome {
    char *path; /* owned; NULL: nothing is to be written */
    char *job;  /* owned: outcome_format_job() */
    pid_t agent;
    bool were_told; /* the workers, by the agent, to end */
    size_t count;
    struct outcome_worker *root;    /* the first of them that failed by itself */
    struct outcome_worker *workers; /* owned, with their error_file */
};

/* An order of the agent's (guardian_wire.h); what was noted of earlier workers is forgotten. One that cannot be
 * understood, or kept, leaves nothing to be written. */
void guardian_outcome_take(struct guardian_outcome *o, const uint8_t *body, size_t length);

/* Another order: where a worker leaves its error record. */
void guardian_outcome_error_file(struct guardian_outcome *o, const uint8_t *body, size_t length);

void guardian_outcome_spawned(struct guardian_outcome *o, uint32_t id, pid_t pid);
/* The agent told all workers to end: how they end now is no cause of anything. */
void guardian_outcome_told(struct guardian_outcome *o);

/* In the order of their deaths. */
void guardian_outcome_ended(struct guardian_outcome *o, const struct guardian_exit *exit, bool by_us);

/* Everything below the guardian has ended. */
void guardian_outcome_write(struct guardian_outcome *o);

#endif
