/* The lease finder, as decisions: where is the coordinator of a job whose agents share an etcd, or is it to be this
 * agent? Pure: each function takes what has happened and returns what is to be done (enum lease_action); whoever does
 * it (lease_client.c) is somebody else.
 *
 * Rules (docs/adr/0014-finding-and-talking.md): who finds no leader's key takes it, and leads as long as the key is its
 * own. A world is told only when one transaction has written it, which compares the leader's key and the world before.
 */
#ifndef RENDEZVOUS_FINDER_LEASE_H
#define RENDEZVOUS_FINDER_LEASE_H

#include "rendezvous/finder/lease_keys.h"

/* To be done in this order. A request that cannot be made is lease_break(). */
enum lease_action {
    LEASE_DROP = 1 << 0,        /* cancel all requests, the watch and the beats */
    LEASE_REVOKE_OLD = 1 << 1,  /* give old_lease_id back; the answer is of no use */
    LEASE_UNWATCH = 1 << 2,     /* close the watch */
    LEASE_LOOK = 1 << 3,        /* lease_keys_put_look() */
    LEASE_EXPIRE = 1 << 4,      /* ..._put_expired() */
    LEASE_GRANT = 1 << 5,       /* ask for the leader's lease */
    LEASE_BEAT = 1 << 6,        /* renew it, and the world's, every beat_ms */
    LEASE_STAND = 1 << 7,       /* serve; lease_keys_put_stand() */
    LEASE_GRANT_WORLD = 1 << 8, /* ask for the lease of the world's key */
    LEASE_FENCE = 1 << 9,       /* lease_keys_put_fence() with `writing` */
    LEASE_WATCH = 1 << 10,      /* the leader's key, from watch_revision on */
    LEASE_CLEAN = 1 << 11,      /* ..._put_clean() */
    LEASE_REVOKE = 1 << 12,     /* give lease_id back, and with is_over world_lease_id */
    LEASE_DEPOSE = 1 << 13,     /* tell the agent: serve no longer */
    LEASE_LEAD = 1 << 14,       /* tell it: this agent leads, after `world` if has_world */
    LEASE_FENCED = 1 << 15,     /* tell it: the record of `told` stands */
    LEASE_FOUND = 1 << 16,      /* tell it: the coordinator is at `found` */
    LEASE_NEWS = 1 << 17,       /* tell it: to seek again is worth while */
    LEASE_FAILED = 1 << 18,     /* tell it failed_status, with the detail */
    LEASE_ENDED = 1 << 19,      /* tell it that all is over */
    LEASE_NOBODY = 1 << 20,     /* tell it: nobody leads, and this agent was not to */
    LEASE_WARN = 1 << 21,       /* tell people: etcd's revision is last_revision, and was former_revision */
};

enum lease_state {
    LEASE_IDLE,     /* nothing is asked for */
    LEASE_LOOKING,  /* LOOK or EXPIRE */
    LEASE_WAITING,  /* `found` is being connected to */
    LEASE_GRANTING, /* GRANT */
    LEASE_STANDING, /* STAND */
    LEASE_LEADING,
    LEASE_CLEANING,
    LEASE_REVOKING,
    LEASE_OVER,
};

enum lease_miss {
    LEASE_LOST,    /* as when its process has ended */
    LEASE_REFUSED, /* its machine says that nobody listens there */
    LEASE_SILENT,  /* it may be alive, and come back */
};

struct lease {
    enum lease_state state;
    uint64_t keep_alive_interval_ms;
    struct lease_leader self; /* the place: where this agent serves, once it does */
    bool may_lead;            /* if nobody does */
    bool serves;              /* a coordinator of this agent has led, and has not been superseded */
    bool is_over;             /* the job */
    int64_t lease_id, world_lease_id, old_lease_id;
    int64_t epoch;            /* create_revision of the leader's key: of the one found, or this agent's; 0: none */
    int64_t dead_epoch;       /* of a leader whose machine says that nobody listens there */
    int64_t tried_revision;   /* of the world whose leader's place was tried, since there was no leader's key */
    struct lease_place found; /* where it is */
    struct lease_place joined, silent; /* where a leader has been heard; where nothing was heard any more */
    bool has_world;
    struct lease_world world; /* as it was read last */
    int64_t world_revision;   /* its mod_revision; 0: it is not there */
    bool wants_fence, is_writing, is_granting_world;
    struct coordinator_record wanted, told; /* told.round 0: nothing yet */
    struct lease_world writing;
    bool has_watch, has_missed; /* a leader that was found, since one was heard */
    int64_t watch_revision;
    int64_t last_revision, former_revision; /* of the store */
    /* last_revision when LOOK and when STAND was asked: its answer has no lower one. Both may be under way. */
    int64_t looked_revision, stood_revision;
    uint64_t beat_ms;
    int failed_status;
    bool has_reached; /* etcd, once */
};

void lease_init(struct lease *lease, const uint64_t identity[2], uint64_t keep_alive_interval_ms);

/* ---- what the agent wants ---- */

/* It has no coordinator: FOUND, FAILED, or LEAD follows, or NOBODY where it is not to lead. */
unsigned lease_seek(struct lease *lease, bool may_lead);
/* A session with the coordinator that was found has opened. */
unsigned lease_joined(struct lease *lease);
/* It has ended, or could not be made. */
unsigned lease_missed(struct lease *lease, enum lease_miss why);
/* This agent's coordinator has a world to tell. */
unsigned lease_fence(struct lease *lease, const struct coordinator_record *record);
/* This agent leads and has not reached etcd for too long: it gives up, so that others can. */
unsigned lease_abdicate(struct lease *lease);
/* The agent's part is over: ENDED follows. `is_over`: the job is, too. */
unsigned lease_end(struct lease *lease, bool is_over);

/* ---- answers: `reply` NULL with a negative status and its detail ---- */

unsigned lease_looked(struct lease *lease, int status, const struct etcd3_reply *reply);
unsigned lease_expired(struct lease *lease, int status, const struct etcd3_reply *reply);
unsigned lease_granted(struct lease *lease, int status, const struct etcd3_reply *reply);
unsigned lease_stood(struct lease *lease, int status, const struct etcd3_reply *reply);
unsigned lease_beaten(struct lease *lease, bool is_worlds, int status, const struct etcd3_reply *reply);
unsigned lease_world_granted(struct lease *lease, int status, const struct etcd3_reply *reply);
unsigned lease_fenced(struct lease *lease, int status, const struct etcd3_reply *reply);
unsigned lease_cleaned(struct lease *lease);
unsigned lease_revoked(struct lease *lease);

/* An event of the watch; the end of the watch, as what it missed is no longer kept. */
unsigned lease_heard(struct lease *lease, const struct etcd3_pair *pair);
unsigned lease_gap(struct lease *lease);
/* A request cannot be made, or the watch has failed for good; with the detail. */
unsigned lease_break(struct lease *lease, int status);

#endif
