/* The rounds of a job as they went by: when each formed, how long that took, why it ended. Kept by whoever drives a
 * coordinator, from what coordinator_look() says after each event. Pure; bounded: the last rounds alone. */
#ifndef RENDEZVOUS_COORDINATOR_HISTORY_H
#define RENDEZVOUS_COORDINATOR_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/coordinator/coordinator.h"

#define COORDINATOR_HISTORY_ROUNDS_MAX ((size_t)64)
#define COORDINATOR_HISTORY_WHY_MAX ((size_t)384) /* terminator included */

enum coordinator_cause {
    COORDINATOR_CAUSE_NONE, /* nothing was charged: the job was over, or is */
    COORDINATOR_CAUSE_FAILURE,
    COORDINATOR_CAUSE_CHANGE,
    COORDINATOR_CAUSE_PREEMPTION,
};

struct coordinator_past_round {
    uint64_t round;
    size_t node_count, worker_count;
    int64_t opened_ms; /* when the first node came, or the round before ended */
    int64_t formed_ms;
    int64_t ended_ms; /* -1: it runs */
    bool is_last;     /* the job was over with it */
    enum coordinator_cause cause;
    char why[COORDINATOR_HISTORY_WHY_MAX];
};

struct coordinator_history {                                              /* zeroed: an empty one */
    struct coordinator_past_round rounds[COORDINATOR_HISTORY_ROUNDS_MAX]; /* a ring */
    size_t count;                                                         /* of all rounds that were seen */
    enum coordinator_phase phase;
    bool is_begun;     /* somebody has come */
    int64_t opened_ms; /* of the round that forms now, or will */
    int64_t phase_ms;  /* when the phase began */
    struct coordinator_charges charges;
};

/* After each event. `why`: coordinator_why() of that moment. */
void coordinator_history_note(struct coordinator_history *history, const struct coordinator_view *view,
                              struct kv_slice why, int64_t now_ms);

/* How many are kept, and the i-th of them, oldest first. */
size_t coordinator_history_count(const struct coordinator_history *history);
const struct coordinator_past_round *coordinator_history_at(const struct coordinator_history *history, size_t i);

#endif
