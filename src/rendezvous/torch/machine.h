/* The dynamic rendezvous of one node as a pure state machine: (state, event, now) -> actions.
 *
 * The rules are PyTorch's (docs/rendezvous.md), so that its agents can take part. Three things are added: a whole move
 * is one write; rounds after the first close when everybody known to be alive has joined; members are told at once when
 * one of them is missing. A member that is silent keeps its place for as long as its last heartbeat says that it counts
 * on it (enum rdzv_lease), and a member whose heartbeats are not stored gives it up before. PyTorch's agents do not see
 * that a member is missing, only that somebody waits; a node that leaves them `lingers` in the wait list until they
 * have left the round. No I/O, no clock; the two calls that allocate say so. */
#ifndef RENDEZVOUS_MACHINE_H
#define RENDEZVOUS_MACHINE_H

#include "rendezvous/torch/roster.h"
#include "rendezvous/torch/state.h"

struct rdzv_settings {
    uint32_t min_nodes;
    uint32_t max_nodes;
    int64_t join_timeout_ms;
    int64_t last_call_timeout_ms;
    bool last_call_given; /* honoured in every round, not only in the first */
    int64_t close_timeout_ms;
    int64_t keep_alive_interval_ms;
    int64_t expiry_ms;     /* keep_alive_interval x keep_alive_max_attempt */
    int64_t hold_ms;       /* for how long a node that the others need keeps its place; 0: as expiry_ms */
    int64_t stop_ms;       /* how long workers that are asked to end may take */
    bool knows_departures; /* the store takes out whoever is gone: who is listed is there */
    bool serves_others;    /* this node hosts the store: it is not refused a place, since the others need it */
};

enum rdzv_phase {
    RDZV_PHASE_IDLE,
    RDZV_PHASE_JOINING,
    RDZV_PHASE_MEMBER,  /* of a complete round */
    RDZV_PHASE_CLOSING, /* marking the rendezvous closed */
    RDZV_PHASE_LEAVING, /* taking this node out for good */
    RDZV_PHASE_OVER,
};

enum rdzv_event {
    RDZV_EVENT_JOIN, /* leave the round of which this node is a member, if any, and join the next */
    RDZV_EVENT_CLOSE,
    RDZV_EVENT_LEAVE,
    RDZV_EVENT_SYNCED, /* rdzv_machine_adopt() has brought the stored state */
    RDZV_EVENT_TIMER,  /* `wake_ms` has come */
};

enum rdzv_verdict {
    RDZV_VERDICT_NONE,
    RDZV_VERDICT_JOINED,         /* this node's round is complete */
    RDZV_VERDICT_CLOSED,         /* the rendezvous is closed: there will be no round */
    RDZV_VERDICT_TIMEOUT,        /* no round within join_timeout */
    RDZV_VERDICT_TAKEN,          /* another node has the one place that there is */
    RDZV_VERDICT_SPARE_RELEASED, /* closed while this node was a spare */
    RDZV_VERDICT_NODE_LEFT,      /* a member of this node's round is gone (maybe this node itself) */
    RDZV_VERDICT_NODE_ARRIVED,   /* somebody waits and there is a place */
    RDZV_VERDICT_CUT_OFF,        /* this node's place may go to another one soon: its workers have to end */
    RDZV_VERDICT_DONE,           /* closed or left */
    RDZV_VERDICT_GIVEN_UP,       /* could not close or leave within close_timeout */
};

struct rdzv_actions {
    bool write; /* store machine.state if the stored one is still the one adopted last; adopt the outcome */
    bool read;  /* adopt the stored state */
    enum rdzv_verdict verdict;
    int64_t wake_ms; /* monotonic time of the next TIMER event; INT64_MAX: none */
};

struct rdzv_machine {
    struct rdzv_settings settings;
    struct rdzv_node self;
    struct rdzv_state state; /* as adopted, and what we have done to it since */
    struct rdzv_roster roster;
    enum rdzv_phase phase;
    bool synced;                            /* a state has been adopted */
    bool writing;                           /* a write is out: nothing is decided before its outcome */
    bool was_spare;                         /* the store has listed it as one since it began to join */
    int64_t awaited_round;                  /* complete, and this node was not in it while it joined; -1: none */
    size_t awaited_count;                   /* its participants, as many as there were at a time */
    int64_t barred_round;                   /* complete, and nobody is let in any more: rdzv_machine_bar(); -1: none */
    bool has_silent;                        /* a member of the world is silent, and keeps its place */
    struct rdzv_node silent;                /* then: which one, the first of them */
    int64_t silent_since_ms, kept_until_ms; /* then, by the judge's clock */
    int64_t beat_us, beat_ms; /* this node's last heartbeat that was sent, and when, by the loop's clock */
    int64_t answered_ms;      /* when the last one was sent that is known to be stored; 0: none */
    enum rdzv_lease answered; /* what that one says */
    bool was_cut_off;         /* in this world */
    /* What has been reported of this round: a departure is even after an arrival, since who still agrees on ranks, or
     * waits in the exit barrier, only minds the former. */
    enum rdzv_verdict told;
    bool lingers;        /* leaving: be seen waiting first; set it before the LEAVE event */
    int64_t deadline_ms; /* of joining, closing or leaving */
    int64_t linger_until_ms;
    int64_t last_call_us;        /* the deadline of the last call that was seen last, by its writer's clock */
    int64_t last_call_seen_ms;   /* when it was first seen, by this node's */
    int64_t min_round;           /* a complete round older than this is one to leave */
    int64_t last_complete_round; /* seen by this node; -1: none */
    size_t stored_count;         /* participants of a round that is stored as complete, silent ones included */
    int64_t joined_round;
    size_t joined_count; /* its participants */
};

/* Copies both. Nothing is allocated. */
void rdzv_machine_init(struct rdzv_machine *machine, const struct rdzv_settings *settings,
                       const struct rdzv_node *self);
void rdzv_machine_done(struct rdzv_machine *machine);

/* Takes the stored state (an initialised empty one when there is none); follow with a SYNCED event. Allocates all that
 * rdzv_step() may need: MUSTER_ENOMEM or MUSTER_ELIMIT leave `machine` and `*state` as they were. */
int rdzv_machine_adopt(struct rdzv_machine *machine, struct rdzv_state *state);

/* The members that are missing now were done, and are not missed: the round goes on, and whoever goes next is reported
 * again. */
void rdzv_machine_excuse(struct rdzv_machine *machine);

/* This node waits for a place in a round that will let nobody in, as a node of it is done: it has all the time of the
 * job, as a spare has. */
void rdzv_machine_bar(struct rdzv_machine *machine, struct rdzv_now now);

/* It waits for a place in a world that has none for it, and has all the time of the job. */
bool rdzv_machine_is_spare(const struct rdzv_machine *machine);
/* The node that has the only place of the job, and for which this one is refused; NULL: none. */
const struct rdzv_node *rdzv_machine_holder(const struct rdzv_machine *machine);

/* Its heartbeats are not stored any more: by when, on the loop's clock, its workers have to end. INT64_MAX: they need
 * not, since an agent of torchrun's takes part, whose rules hold then. */
int64_t rdzv_machine_lease_end_ms(const struct rdzv_machine *machine);
/* Then: are they given time to end? Else the place may be taken as soon as the lease is over. */
bool rdzv_machine_is_held(const struct rdzv_machine *machine);

/* Decides. Allocates nothing, cannot fail. */
void rdzv_step(struct rdzv_machine *machine, enum rdzv_event event, struct rdzv_now now, struct rdzv_actions *out);

#endif
