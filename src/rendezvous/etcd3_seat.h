/* An agent's place on etcd, as decisions: its lease, the leader's key for which it stands, the letters between it and
 * the leader. Pure: each function takes what has happened, and returns what is to be done (enum etcd3_seat_action);
 * whoever does it (etcd3_board.c) is somebody else. */
#ifndef RENDEZVOUS_ETCD3_SEAT_H
#define RENDEZVOUS_ETCD3_SEAT_H

#include "rendezvous/etcd3_keys.h"
#include "rendezvous/etcd3_mail.h"
#include "rendezvous/etcd3_wire.h"

enum { ETCD3_LINGER_MAX_MS = 2000 };

/* To be done in this order. A request that cannot be made is etcd3_seat_break(). */
enum etcd3_seat_action {
    ETCD3_SEAT_DROP_LEADER = 1 << 0, /* cancel STAND and WRITE; if this agent leads, it does so no more */
    ETCD3_SEAT_DROP_LEASE = 1 << 1,  /* cancel all else; no watch, no beats */
    ETCD3_SEAT_LINGER = 1 << 2,      /* etcd3_seat_lingered() after linger_ms */
    ETCD3_SEAT_GRANT = 1 << 3,       /* ask for a lease */
    ETCD3_SEAT_BEAT = 1 << 4,        /* renew it every beat_ms */
    ETCD3_SEAT_STAND = 1 << 5,       /* etcd3_keys_put_stand() */
    ETCD3_SEAT_LOOK = 1 << 6,        /* etcd3_keys_put_look() */
    ETCD3_SEAT_WATCH = 1 << 7,       /* the leader's key and this agent's below to/, from watch_revision on */
    ETCD3_SEAT_LEAD = 1 << 8,
    ETCD3_SEAT_WRITE = 1 << 9,   /* etcd3_keys_put_letter(): the mail as it is now */
    ETCD3_SEAT_REVOKE = 1 << 10, /* give the lease back */
    ETCD3_SEAT_OPENED = 1 << 11, /* tell the agent: there is a leader */
    ETCD3_SEAT_LOST = 1 << 12,   /* tell it lost_status, with the detail */
    ETCD3_SEAT_ENDED = 1 << 13,  /* tell it that all is over */
    ETCD3_SEAT_WARN = 1 << 14,   /* tell people: etcd's revision is last_revision, and was former_revision */
};

enum etcd3_seat_state {
    ETCD3_SEAT_OFF,      /* no lease */
    ETCD3_SEAT_GRANTING, /* it is asked for */
    ETCD3_SEAT_LEASED,   /* nothing is wanted */
    ETCD3_SEAT_STANDING, /* for the leader's key */
    ETCD3_SEAT_OPEN,     /* there is a leader */
    ETCD3_SEAT_ENDING,   /* the last letter is written, the others are waited for */
    ETCD3_SEAT_REVOKING,
    ETCD3_SEAT_OVER,
};

struct etcd3_seat {
    enum etcd3_seat_state state;
    struct etcd3_keys keys;
    struct etcd3_mail mail;
    uint64_t keep_alive_interval_ms;
    int64_t lease_id;
    uint64_t identity[2];
    int64_t epoch;            /* create_revision of the leader's key */
    int64_t deleted_revision; /* the last time it was seen to go */
    int64_t last_revision;    /* of the store, ever */
    int64_t former_revision;  /* before it went backwards */
    bool leads;               /* this agent holds it */
    bool has_watch;
    bool has_reached; /* etcd, once */
    bool is_dirty;    /* something was sent since the last write began */
    bool is_writing;
    uint64_t beat_ms, linger_ms;
    int64_t watch_revision;
    int lost_status;
};

/* `keys` are copied. */
void etcd3_seat_init(struct etcd3_seat *seat, const struct etcd3_keys *keys, uint64_t keep_alive_interval_ms);
void etcd3_seat_done(struct etcd3_seat *seat);

/* The agent wants a leader: nothing if it has one, or is on its way. */
unsigned etcd3_seat_want(struct etcd3_seat *seat);

/* Answers: `reply` NULL with a negative status and its detail. `identity` is random. */
unsigned etcd3_seat_granted(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply,
                            const uint64_t identity[2]);
unsigned etcd3_seat_stood(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply);
unsigned etcd3_seat_beaten(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply);
/* Of LOOK. What it has read is then for etcd3_seat_hear(). */
unsigned etcd3_seat_looked(struct etcd3_seat *seat, int status, const struct etcd3_reply *reply);
/* `is_leader_quiet`: this agent does not lead, or its leader has nothing left to do. */
unsigned etcd3_seat_written(struct etcd3_seat *seat, int status, bool is_leader_quiet);

/* A key as it was read, or an event. *letter is one to be read by etcd3_seat_next(), or empty. */
unsigned etcd3_seat_hear(struct etcd3_seat *seat, const struct etcd3_pair *pair, struct etcd3_letter *letter);
/* True: a message, which points into the letter. False: none is left, and *actions are to be done. */
bool etcd3_seat_next(struct etcd3_seat *seat, struct etcd3_letter *letter, struct coordinator_message *message,
                     unsigned *actions);

/* The watch has ended: what happened meanwhile is no longer kept. */
unsigned etcd3_seat_miss(struct etcd3_seat *seat);
/* A request cannot be made, or the watch has failed for good; with the detail. */
unsigned etcd3_seat_break(struct etcd3_seat *seat, int status);
/* This agent's leader has ended: MUSTER_ECLOSED, another one leads; with the detail. */
unsigned etcd3_seat_deposed(struct etcd3_seat *seat, int status);
/* It has nothing left to do. */
unsigned etcd3_seat_quiet(struct etcd3_seat *seat);

/* A message for the leader. MUSTER_ECLOSED (there is none), and what etcd3_mail_add() says. */
int etcd3_seat_send(struct etcd3_seat *seat, const struct coordinator_message *message, unsigned *actions);

/* The agent's part is over: ETCD3_SEAT_ENDED follows. */
unsigned etcd3_seat_end(struct etcd3_seat *seat, bool is_leader_quiet);
unsigned etcd3_seat_lingered(struct etcd3_seat *seat);
unsigned etcd3_seat_revoked(struct etcd3_seat *seat);

#endif
