/* An agent's part in the worlds of a coordinator, whichever way it finds that: what it was told last, which its next
 * JOIN says again. */
#ifndef RENDEZVOUS_MEMBERSHIP_H
#define RENDEZVOUS_MEMBERSHIP_H

#include "rendezvous/backend.h"
#include "rendezvous/wire/coordinator_wire.h"

/* A world that this node has heard of, and that a later one may have to follow. */
struct membership_past {
    struct coordinator_past past;
    bool is_elsewhere;     /* the name of its place has moved since, see membership_move() */
    bool is_lost;          /* its coordinator, for this node */
    unsigned asked_count;  /* rounds of asking until then: what they have answered is older than the loss */
    uint64_t in_office_ms; /* until then that coordinator cannot have gone on without this node; 0: it can */
};

struct membership {
    uint64_t last_round; /* 0: no world was told yet */
    uint64_t last_author;
    uint64_t heard_author; /* of the last PROPOSE or WORLD of the coordinator that it has now; 0: none yet */
    uint32_t last_world_size, last_group_rank, last_host_rank;
    struct coordinator_charges charges; /* as the last WORLD told them */
    bool has_changed;                   /* that world has ended, as the coordinator has said */
    uint64_t stop_by_ms; /* the job stops, and has to have ended by then, on the loop's clock; 0: not that we know */
    bool is_stop_heard;  /* from a coordinator */
    size_t past_count;   /* by round; the last world is the first of them, or has been followed since */
    struct membership_past pasts[COORDINATOR_PASTS_MAX];
};

/* What a JOIN says of this node and its last world. `addr` and the options' strings are borrowed. The rest (`is_host`,
 * and what only connections need) is left zero. */
struct coordinator_node membership_introduce(const struct membership *membership, const struct rdzv_options *options,
                                             const char *addr, const uint64_t identity[2], uint16_t store_port);

/* For people, while this node waits for a world. `where` is who decides ("coordinator a:29400"), `waits_for` what that
 * one has said last of who is missing ("": nothing yet). Logs it: */
void membership_report(struct rdzv *rdzv, const char *where, const char *waits_for);
/* ... or is the failure, since join_timeout has passed: MUSTER_ETIMEOUT. */
int membership_late(const struct rdzv *rdzv, const char *where, const char *waits_for);

/* A WORLD has come: tells the agent, and stops the timers of joining. */
void membership_enter(struct membership *membership, struct rdzv *rdzv, const struct coordinator_message *message);

/* A world has been proposed, which is heard of from now on. */
void membership_propose(struct membership *membership, const struct coordinator_proposal *proposal);
/* The coordinator at `place` of `count` is lost to this node, with the worlds that were its own: of another process
 * there this node knows nothing. See membership_past. */
void membership_lose(struct membership *membership, size_t place, size_t count, unsigned asked_count,
                     uint64_t in_office_ms);
/* The name of this place has been given to another address: what answers there says nothing of who served before. */
void membership_move(struct membership *membership, size_t place, size_t count);
/* The last round of asking, the `asked_count`th, has shown that nobody serves there any more. True: that is news. */
bool membership_declare_dead(struct membership *membership, size_t place, size_t count, unsigned asked_count,
                             uint64_t now_ms);

/* A CHANGE has come to a member. */
void membership_change(struct membership *membership, struct rdzv *rdzv, const struct coordinator_message *message);

/* The job stops, because of this node or, in a STOP, as the coordinator has said: the agent is told of the first. */
void membership_note_stop(struct membership *membership, const struct rdzv *rdzv, uint64_t grace_ms);
void membership_stop(struct membership *membership, struct rdzv *rdzv, const struct coordinator_message *message);
/* For the JOIN at another coordinator, which does not know of it: what is left of its time; 0: the job does not stop,
 * or this node was in no world of it. */
uint64_t membership_stop_left_ms(const struct membership *membership, const struct rdzv *rdzv);

#endif
