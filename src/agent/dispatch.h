/* Feeds an agent's machine, in the real agent and in the simulated one: one event after the other. What is raised while
 * an action is carried out is taken after it, and after the other actions of the same event, so that the machine never
 * re-enters itself. No I/O and no clock; the actions are the owner's to carry out. */
#ifndef AGENT_DISPATCH_H
#define AGENT_DISPATCH_H

#include "agent/policy/machine.h"

struct agent_dispatch_callbacks {
    void (*perform)(void *ctx, const struct agent_action *action);
    /* The machine has made a step; its actions follow. */
    void (*on_step)(void *ctx, enum agent_state before, const struct agent_event *event);
};

struct agent_dispatch {
    struct agent_machine *machine; /* borrowed */
    const struct agent_dispatch_callbacks *callbacks;
    void *ctx;
    struct agent_event *events; /* owned, a ring */
    size_t capacity, first, count;
    bool is_busy, is_stopped;
};

/* Borrows all but the numbers until agent_dispatch_done(). `capacity`: of events that can be pending. MUSTER_ENOMEM. */
int agent_dispatch_init(struct agent_dispatch *dispatch, struct agent_machine *machine, size_t capacity,
                        const struct agent_dispatch_callbacks *callbacks, void *ctx);
/* Also of a zeroed one. */
void agent_dispatch_done(struct agent_dispatch *dispatch);

/* The first actions of a life. */
void agent_dispatch_start(struct agent_dispatch *dispatch);

/* False: too many are pending, and this one is dropped. */
bool agent_dispatch_feed(struct agent_dispatch *dispatch, struct agent_event event);

/* From an action: nothing that is pending, or comes, is taken any more. */
void agent_dispatch_stop(struct agent_dispatch *dispatch);

#endif
