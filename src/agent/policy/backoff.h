/* How long an agent pauses before it starts its workers again. Pure: times come in as milliseconds of the caller's
 * clock.
 *
 * The first restart comes at once: most failures are single. Attempts that then fail young, one after the other, meet a
 * fault that lasts (a file server, a device that is still held, a name that does not resolve), and restarts without a
 * pause would be used up within milliseconds. So the second waits 0.5 s, and each further one twice as long, up to a
 * maximum. An attempt that has lived makes the count begin anew. */
#ifndef AGENT_BACKOFF_H
#define AGENT_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

#define AGENT_BACKOFF_FIRST_MS 500
#define AGENT_BACKOFF_YOUNG_MS 10000 /* an attempt that lived so long has lived */
#define AGENT_BACKOFF_MAX_DEFAULT_MS 30000

struct agent_backoff {
    int64_t max_ms;        /* the longest pause; 0: never any */
    uint32_t young_count;  /* attempts that failed young since the last one that lived */
    int64_t last_lived_ms; /* of the last attempt, for messages */
};

/* An attempt has ended after `lived_ms`. Returns the pause before the next one; 0 when it did not end by a failure. */
int64_t agent_backoff_ended(struct agent_backoff *b, int64_t lived_ms, bool failed);

#endif
