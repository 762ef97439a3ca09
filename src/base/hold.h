/* How long a silent host is waited for, where nothing goes on without it: one time for the whole job. Nobody can tell
 * a network that is silent for a while, or a machine that is being moved, from a machine that is gone. */
#ifndef BASE_HOLD_H
#define BASE_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#define HOLD_DEFAULT_MS INT64_C(180000)
#define HOLD_MAX_MS INT64_C(86400000)

/* Seconds, as in "180" or "2.5": above 0, at most a day. Pure. */
bool hold_parse(const char *text, int64_t *out_ms);

/* What MUSTER_HOLD_TIMEOUT says; the default where it says nothing, or nothing sensible, of which a line warns. */
int64_t hold_from_env_ms(void);

#endif
