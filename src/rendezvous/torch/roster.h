/* Who has been seen in the rendezvous, and who is thought to be alive: the memory that the shared state lacks.
 *
 * PyTorch judges a heartbeat by comparing clocks of two machines. Here a heartbeat that has been seen to change
 * proves its node alive however wrong its clock, and one that has stopped changing proves it dead. */
#ifndef RENDEZVOUS_ROSTER_H
#define RENDEZVOUS_ROSTER_H

#include "rendezvous/torch/state.h"

struct rdzv_now {
    int64_t monotonic_ms;   /* the judge's clock (base/absence.h): for all deadlines */
    int64_t judges_from_ms; /* by it: nobody's silence is judged before, since this process or the store was away */
    int64_t real_ms;        /* the loop's clock: for what this node owes the others, however long it was away */
    int64_t wall_us;        /* what is written into the state */
};

/* A node that has left one list appears in the next one within a few writes; absent for longer it has gone. */
#define RDZV_ABSENT_GRACE_MS INT64_C(2000)
/* A node that was removed is known again when it comes back within this. */
#define RDZV_GONE_MEMORY_MS INT64_C(60000)

struct rdzv_sighting {
    struct rdzv_node node;
    int64_t heartbeat_us;
    int64_t changed_ms; /* monotonic: when the heartbeat was first seen or last seen to change */
    int64_t absent_ms;  /* monotonic: since when it is in no list; RDZV_NOT_ABSENT while it is in one */
    bool renewed;       /* the heartbeat has been seen to change */
    bool gone;          /* a grave was seen, or it was found expired */
    bool met;           /* scratch of rdzv_roster_observe() */
};
#define RDZV_NOT_ABSENT INT64_MAX

struct rdzv_roster {
    struct rdzv_sighting *list; /* owned, sorted by node */
    size_t count;
    size_t capacity;
};

void rdzv_roster_init(struct rdzv_roster *roster);
void rdzv_roster_done(struct rdzv_roster *roster);
/* Room for `extra` nodes beyond those known. MUSTER_ENOMEM. */
int rdzv_roster_reserve(struct rdzv_roster *roster, size_t extra);

struct rdzv_sighting *rdzv_roster_find(const struct rdzv_roster *roster, const struct rdzv_node *node);

/* Takes note of a fresh state. Needs room for its members. A complete round makes the roster forget those who have long
 * been in no list. */
void rdzv_roster_observe(struct rdzv_roster *roster, const struct rdzv_state *state, struct rdzv_now now);

/* The store was out of reach for `away_ms`: what was not heard meanwhile was not told by a silence. */
void rdzv_roster_excuse(struct rdzv_roster *roster, int64_t away_ms, struct rdzv_now now);

/* Has this member been silent for `limit_ms`, and may that be judged? */
bool rdzv_roster_expired(const struct rdzv_roster *roster, const struct rdzv_member *member, int64_t limit_ms,
                         struct rdzv_now now);

/* The same by what this node has seen itself, whatever clocks say. */
bool rdzv_roster_is_silent(const struct rdzv_roster *roster, const struct rdzv_node *node, int64_t limit_ms,
                           struct rdzv_now now);

/* Is every node that is known to be alive a participant of `state`? */
bool rdzv_roster_all_joined(const struct rdzv_roster *roster, const struct rdzv_state *state, struct rdzv_now now);

#endif
