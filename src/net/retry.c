/* Whom to ask next, and after which pause; see retry.h. */
#include "net/retry.h"

#include <assert.h>

uint64_t retry_pause_ms(const struct retry_pace *pace, unsigned failure_count, size_t endpoint_count) {
    assert(failure_count > 0 && endpoint_count > 0 && pace->first_ms <= pace->max_ms);
    if (failure_count % endpoint_count != 0) {
        return 0;
    }
    uint64_t pause_ms = pace->first_ms;
    for (size_t circles = failure_count / endpoint_count; circles > 1 && pause_ms < pace->max_ms; circles--) {
        pause_ms = pause_ms > pace->max_ms / 2 ? pace->max_ms : pause_ms * 2;
    }
    return pause_ms;
}

bool retry_turn_move_on(struct retry_turn *turn, size_t from) {
    assert(turn->current < turn->count);
    if (turn->current != from || turn->count == 1) {
        return false;
    }
    turn->current = (from + 1) % turn->count;
    return true;
}

uint64_t retry_share_ms(const struct retry_turn *turn, uint64_t patience_ms, uint64_t most_ms) {
    uint64_t share_ms = patience_ms / turn->count + (patience_ms < UINT64_MAX);
    return share_ms < most_ms ? share_ms : most_ms;
}
