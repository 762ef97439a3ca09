/* Where events come in, from all files of the agent: apart, so that they need not know the one that carries actions
 * out. */
#include <assert.h>

#include "agent/agent_impl.h"
#include "base/clock.h"

void agent_feed(struct agent *a, enum agent_event_kind kind, int number) {
    struct agent_event event = {.kind = kind, .number = number, .now_ms = clock_monotonic_ns() / CLOCK_NS_PER_MS};
    bool taken = agent_dispatch_feed(&a->dispatch, event);
    /* Only people can send more than the sum of the sources. */
    assert(taken || kind == AGENT_EVENT_SIGNAL || kind == AGENT_EVENT_PREEMPT);
}
