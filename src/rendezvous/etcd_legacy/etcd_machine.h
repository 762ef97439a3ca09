/* One node's part in PyTorch's legacy etcd rendezvous: (what is known, event, now) -> the next call and a verdict.
 *
 * Pure: no I/O, no clock. The rules are PyTorch's (docs/rendezvous.md), with what they lack: members are told when one
 * of them is missing, and where all members are Muster's a round ends as soon as one of them leaves it, not when its
 * key expires. What a departure means at the end of the job, job_end.c decides. At most one call is out at a time; its
 * outcome comes back as DONE or REFUSED. */
#ifndef RENDEZVOUS_ETCD_MACHINE_H
#define RENDEZVOUS_ETCD_MACHINE_H

#include "rendezvous/etcd_legacy/etcd_members.h"
#include "rendezvous/etcd_legacy/etcd_world.h"

enum { ETCD_MACHINE_PATH_MAX = 1024 };

struct etcd_machine_settings {
    uint32_t min_nodes;
    uint32_t max_nodes;
    int64_t join_timeout_ms;
    int64_t last_call_timeout_ms;
    int64_t close_timeout_ms;
    const char *versions; /* R/rdzv/v_ : what paths of keep-alives begin with; borrowed */
};

enum etcd_phase {
    ETCD_PHASE_IDLE,
    ETCD_PHASE_JOINING,
    ETCD_PHASE_MEMBER,
    ETCD_PHASE_CLOSING,
    ETCD_PHASE_LEAVING,
    ETCD_PHASE_OVER,
};

enum etcd_event {
    ETCD_EVENT_JOIN,  /* leave the round of which this node is a member, if any, and join the next */
    ETCD_EVENT_CLOSE, /* mark the job closed */
    ETCD_EVENT_LEAVE,
    ETCD_EVENT_SEEN,    /* the world has been adopted unasked, or something else below has changed */
    ETCD_EVENT_DELETED, /* a member of this round has taken its keep-alive back */
    ETCD_EVENT_EXPIRED, /* a member's keep-alive has expired */
    ETCD_EVENT_MEMBERS, /* READ_MEMBERS is answered: `members` is set */
    ETCD_EVENT_COUNTER, /* READ_COUNTER is answered: `counter` and its index are set */
    ETCD_EVENT_DONE,    /* the call was carried out; a changed world has been adopted */
    ETCD_EVENT_REFUSED, /* somebody else was faster, or what it was about is not there */
    ETCD_EVENT_TIMER,
};

enum etcd_call {
    ETCD_CALL_NONE,
    ETCD_CALL_READ_WORLD,
    ETCD_CALL_CREATE_WORLD, /* `value`, if there is none */
    ETCD_CALL_WRITE_WORLD,  /* `value`, if it is as adopted */
    ETCD_CALL_DELETE_WORLD, /* if it is as adopted */
    ETCD_CALL_READ_COUNTER,
    ETCD_CALL_WRITE_COUNTER, /* machine.counter, if it is as read */
    ETCD_CALL_MAKE_VERSION,  /* the folder of machine.counter */
    ETCD_CALL_READ_MEMBERS,  /* of the world's version */
    ETCD_CALL_TOUCH,         /* this node's keep-alive: machine.version and machine.rank */
};

enum etcd_verdict {
    ETCD_VERDICT_NONE,
    ETCD_VERDICT_JOINED,
    ETCD_VERDICT_CLOSED,
    ETCD_VERDICT_SPARE_RELEASED, /* closed, all members have succeeded, and this node was their spare */
    ETCD_VERDICT_TAKEN,          /* another node has the one place that there is */
    ETCD_VERDICT_TIMEOUT,
    ETCD_VERDICT_NODE_ARRIVED,
    ETCD_VERDICT_NODE_LEFT,
    ETCD_VERDICT_NODE_STAYS_OUT, /* somebody waits, and is not let in: a member is done */
    ETCD_VERDICT_DONE_NODE_LEFT, /* nobody minds */
    ETCD_VERDICT_FAILED,         /* a member is lost, and the job is closed */
    ETCD_VERDICT_TOO_FEW,        /* there is no next round without those that are done: it has not been joined */
    ETCD_VERDICT_DONE,           /* closed or left */
    ETCD_VERDICT_GIVEN_UP,       /* not within close_timeout */
};

struct etcd_actions {
    enum etcd_call call;
    char *value;    /* malloc'd, the caller's */
    uint32_t ttl_s; /* 0: none */
    enum etcd_verdict verdict;
    int64_t wake_ms; /* of the next TIMER; INT64_MAX: none */
};

struct etcd_machine {
    struct etcd_machine_settings settings;
    enum etcd_phase phase;
    enum etcd_call busy; /* the call that is out */

    bool known; /* the world has been adopted once */
    char *text; /* of the world; NULL: there is none */
    struct etcd_world world;
    struct etcd_members members;
    uint64_t counter;

    int setup_stage; /* of a version that this node makes; 0: it does not */
    bool entered;    /* this node takes part in `version` */
    char version[ETCD_WORLD_VERSION_MAX];
    uint32_t rank;
    bool touched;
    char announced[ETCD_WORLD_VERSION_MAX]; /* the version in which this node was counted as waiting */
    char taken[ETCD_WORLD_VERSION_MAX];     /* a job of one node: another one has its place in this version */
    int64_t taken_from_ms;                  /* and is known to be alive if it is still there then */
    bool members_known;                     /* `members` is of now */
    bool ends_round;                        /* has left `version`, and ends it */
    bool asks_who_is_left;                  /* before that: are there enough for the next round? */
    bool is_done;                           /* has said in `version` that it is: nobody minds when it goes */
    bool all_muster;                        /* of the round that this node is a member of */
    enum etcd_verdict told;                 /* of this round: a departure is reported even after an arrival */
    int64_t deadline_ms;                    /* of joining, closing or leaving */
    int64_t last_call_ms;
    int64_t refresh_ms;
    int64_t judges_from_ms; /* etcd was away: before then nobody is missed whose keep-alive is not there */
    int64_t check_ms;       /* somebody's keep-alive has expired: is it still missing then? INT64_MAX: no */
};

void etcd_machine_init(struct etcd_machine *machine, const struct etcd_machine_settings *settings);
void etcd_machine_done(struct etcd_machine *machine);

/* It waits for a place in a round that has none for it. */
bool etcd_machine_is_spare(const struct etcd_machine *machine);

/* Takes what R/rdzv/active_version holds, NULL for nothing (copied). MUSTER_ECORRUPT, MUSTER_ENOMEM. */
int etcd_machine_adopt(struct etcd_machine *machine, const char *text);

/* This node's keep-alive. */
void etcd_machine_path(const struct etcd_machine *machine, char out[ETCD_MACHINE_PATH_MAX]);

/* The round without those that are done: has it enough nodes? As of the last READ_MEMBERS. */
bool etcd_machine_can_reform(const struct etcd_machine *machine);

/* etcd was away: keep-alives of nodes that are well may have expired. They put them there again. */
void etcd_machine_excuse(struct etcd_machine *machine, int64_t now_ms);

/* Decides. MUSTER_ENOMEM. */
int etcd_machine_step(struct etcd_machine *machine, enum etcd_event event, int64_t now_ms, struct etcd_actions *out);

#endif
