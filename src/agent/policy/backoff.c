/* The pause before a restart; see backoff.h. */
#include "agent/policy/backoff.h"

#include <assert.h>

int64_t agent_backoff_ended(struct agent_backoff *b, int64_t lived_ms, bool failed) {
    assert(lived_ms >= 0 && b->max_ms >= 0);
    b->last_lived_ms = lived_ms;
    if (lived_ms >= AGENT_BACKOFF_YOUNG_MS) {
        b->young_count = 0;
    }
    if (!failed) {
        return 0;
    }
    int64_t pause_ms = b->young_count > 0 ? AGENT_BACKOFF_FIRST_MS : 0;
    for (uint32_t i = 1; i < b->young_count && pause_ms < b->max_ms; i++) {
        pause_ms *= 2;
    }
    b->young_count++;
    return pause_ms < b->max_ms ? pause_ms : b->max_ms;
}
