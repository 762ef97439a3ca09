/* An agent's part in a job that a coordinator runs, whichever way it reaches that (native.c): what it waits for, for
 * how long, what it makes of what the coordinator says, and what it tells the agent. The way has the rest: to send, to
 * join, and what is to be done when the coordinator is lost. */
#ifndef RENDEZVOUS_PARTICIPANT_H
#define RENDEZVOUS_PARTICIPANT_H

#include "rendezvous/member/membership.h"
#include "rendezvous/wire/coordinator_wire.h"

enum { PARTICIPANT_WHERE_MAX = MUSTER_DETAIL_MAX / 2 };

enum participant_phase {
    PARTICIPANT_IDLE,
    PARTICIPANT_JOINING, /* a WORLD is awaited */
    PARTICIPANT_MEMBER,  /* of a world */
    PARTICIPANT_BARRIER, /* done here; the other nodes are awaited */
    PARTICIPANT_DONE,    /* they are awaited no longer */
    PARTICIPANT_ENDING,  /* CLOSE or LEAVE has been sent */
    PARTICIPANT_OVER,
};

struct participant;

/* The way to the coordinator. */
struct participant_way {
    /* MUSTER_OK, or why it cannot be sent: there may be no coordinator now. */
    int (*send)(struct participant *participant, const struct coordinator_message *message);
    /* Asks for a HEARD. How many come until one answers this question: earlier ones may be on their way. 0: none. */
    unsigned (*ask)(struct participant *participant);
    /* For people: which coordinator, or what is in the way. Returns `out`. */
    const char *(*describe)(const struct participant *participant, char out[PARTICIPANT_WHERE_MAX]);
    /* Called from time to time while a world is awaited: true when no coordinator has been reached yet, which it has
     * logged. */
    bool (*report_unreached)(const struct participant *participant);
    /* A world was told. NULL: nothing is to be done. */
    void (*entered)(struct participant *participant, const struct coordinator_world *world);
    /* This node is done, and serves what those need who are not: it stays until the coordinator says that nobody is
     * left, or that they go on without it. */
    bool (*is_needed)(const struct participant *participant);
    /* The others go on without this node, which is done: participant_end_barrier() follows from it. */
    void (*let_go)(struct participant *participant);
    void (*refused)(struct participant *participant, const struct coordinator_message *message);
    /* The job has ended, and this node had a part in it: the coordinator may go. NULL: nothing is to be done. */
    void (*closed)(struct participant *participant);
    /* The end of the job has been heard: what is left of the way ends, and participant_end() follows. */
    void (*end)(struct participant *participant);
};

/* The first member of a backend's state: rdzv->state points to it. */
struct participant {
    struct rdzv *rdzv;
    const struct participant_way *way;
    enum participant_phase phase;
    bool is_spare;      /* has no place */
    bool was_spare;     /* since it joined: a job that ends before it has a world never needed it */
    bool is_report_due; /* when the coordinator has said for what */
    char waits_for[COORDINATOR_TEXT_BYTES_MAX + 1]; /* as it said last; empty: not yet */
    unsigned heard_until_known; /* so many, until the coordinator is known to know that this node is done; 0: it is, or
                                 * there is nothing to know */
    bool has_failed;            /* a worker in this round, and the coordinator knows */
    bool is_host_done;          /* the node that serves the coordinator, and is not missed */
    bool is_closed;             /* the job, as the coordinator has said */
    bool waited_in_vain;        /* for the other nodes, which may be at work */
    bool was_at_work; /* when the job failed, which another node had told: did a worker of this one die before? */
    struct membership membership;
};

void participant_init(struct participant *participant, struct rdzv *rdzv, const struct participant_way *way);

/* All that was waited for is over, and the agent is told so. */
void participant_end(struct participant *participant);
void participant_fail(struct participant *participant, int status);
/* For what the phase waits for; PARTICIPANT_ENDING: for the end. */
void participant_wait_at_most(struct participant *participant, uint64_t ms);
/* A spare waits for a place as long as the job lasts; with a place, or without the coordinator that knew it as a spare,
 * no longer than any other node. */
void participant_spare_no_more(struct participant *participant);

/* A message of its kind alone; false when it cannot be sent. */
bool participant_say(struct participant *participant, enum coordinator_kind kind, const char *why);
/* Any of the coordinator's messages but PROPOSE, which is the way's. */
void participant_heard(struct participant *participant, const struct coordinator_message *message);
/* The coordinator needs nothing more of this node, and hears no CLOSE from it. */
void participant_end_barrier(struct participant *participant);

/* In a world, done with one, or to be in the next. */
bool participant_takes_part(const struct participant *participant);

/* The agent's calls, as far as they do not depend on the way (rdzv_backend_table). */
void participant_join(struct participant *participant); /* the JOIN is the way's */
void participant_worker_failed(struct rdzv *rdzv, const struct rdzv_cause *cause);
bool participant_preempt(struct rdzv *rdzv, uint64_t grace_ms, const char *why);
void participant_barrier(struct rdzv *rdzv);
/* CLOSE, or LEAVE; false when it need not be said, or cannot be. */
bool participant_say_farewell(struct participant *participant, bool close_job);

#endif
