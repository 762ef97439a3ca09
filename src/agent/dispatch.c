/* One event after the other; see dispatch.h. */
#include "agent/dispatch.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"

int agent_dispatch_init(struct agent_dispatch *d, struct agent_machine *machine, size_t capacity,
                        const struct agent_dispatch_callbacks *callbacks, void *ctx) {
    *d = (struct agent_dispatch){.machine = machine, .callbacks = callbacks, .ctx = ctx, .capacity = capacity};
    d->events = calloc(capacity, sizeof *d->events);
    return d->events ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for %zu events of an agent", capacity);
}

void agent_dispatch_done(struct agent_dispatch *d) {
    free(d->events);
    d->events = NULL;
}

static void perform_all(struct agent_dispatch *d, const struct agent_actions *actions) {
    for (size_t i = 0; i < actions->count; i++) {
        d->callbacks->perform(d->ctx, &actions->list[i]);
    }
}

/* Until nothing is pending. */
static void take_events(struct agent_dispatch *d) {
    while (d->count > 0 && !d->is_stopped) {
        const struct agent_event event = d->events[d->first];
        enum agent_state before = d->machine->state;
        struct agent_actions actions;
        d->first = (d->first + 1) % d->capacity;
        d->count--;
        agent_machine_step(d->machine, &event, &actions);
        d->callbacks->on_step(d->ctx, before, &event);
        perform_all(d, &actions);
    }
}

void agent_dispatch_start(struct agent_dispatch *d) {
    struct agent_actions first;
    assert(!d->is_busy);
    d->is_busy = true;
    agent_machine_start(d->machine, &first);
    perform_all(d, &first);
    take_events(d);
    d->is_busy = false;
}

bool agent_dispatch_feed(struct agent_dispatch *d, struct agent_event event) {
    if (d->is_stopped) {
        return true;
    }
    assert(d->count <= d->capacity && d->first < d->capacity);
    if (d->count == d->capacity) {
        return false;
    }
    d->events[(d->first + d->count++) % d->capacity] = event;
    if (!d->is_busy) {
        d->is_busy = true;
        take_events(d);
        d->is_busy = false;
    }
    return true;
}

void agent_dispatch_stop(struct agent_dispatch *d) {
    d->is_stopped = true;
}
