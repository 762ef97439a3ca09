/* Whom to ask next, and after which pause, when a server does not answer. Pure: the clocks are the callers'. For every
 * client that backs off. (The pause before workers are started again is agent/policy/backoff.h: the first restart has
 * none, and an attempt that has lived begins anew.) */
#ifndef NET_RETRY_H
#define NET_RETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pauses: the first, then doubled each time, up to the longest. */
struct retry_pace {
    uint64_t first_ms, max_ms;
};

/* The pause after so many failures in a row (1 or more) at `endpoint_count` endpoints: none while there are some that
 * have not been asked in this circle. */
uint64_t retry_pause_ms(const struct retry_pace *pace, unsigned failure_count, size_t endpoint_count);

/* Which of several endpoints is asked. */
struct retry_turn {
    size_t count, current;
};

/* `from` could not answer. True: another one is asked from now on; false: it was not asked any more, or is alone. */
bool retry_turn_move_on(struct retry_turn *turn, size_t from);

/* How long one endpoint may take: `most_ms`, or less, so that however little patience there is each is asked once.
 * UINT64_MAX: patience without end. */
uint64_t retry_share_ms(const struct retry_turn *turn, uint64_t patience_ms, uint64_t most_ms);

#endif
