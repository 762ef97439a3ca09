/* What agents and the coordinator of the native backend tell each other, as bytes (docs/formats/coordinator.md).
 *
 * A connection opens with COORDINATOR_HELLO, from the agent; its first byte tells it apart from a store's client on the
 * same port. Then frames both ways: length of what follows (4 bytes), kind (1 byte), fields. Pure: no I/O; decoding
 * allocates nothing, its strings point into the frame. */
#ifndef RENDEZVOUS_COORDINATOR_WIRE_H
#define RENDEZVOUS_COORDINATOR_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/wire/slice.h"

#define COORDINATOR_HELLO                                                                                              \
    "MUSTER\r\n" /* 8 bytes; the number of the protocol (base/formats/protocol.h) follows in the JOIN */
#define COORDINATOR_HELLO_BYTES ((size_t)8)

/* Limits, for either side. The longest frame fits with the longest of everything in it. */
#define COORDINATOR_FRAME_BYTES_MAX ((size_t)8192)           /* its length included */
#define COORDINATOR_TEXT_BYTES_MAX ((size_t)1024)            /* of a sentence */
#define COORDINATOR_NAME_BYTES_MAX ((size_t)255)             /* of a run id, address, role or topology label */
#define COORDINATOR_LOCAL_WORLD_SIZE_MAX ((uint32_t)1 << 12) /* workers of one node */
#define COORDINATOR_REPORT_BYTES_MAX ((size_t)4096)          /* of a REPORT's piece */
#define COORDINATOR_CAUSE_BYTES_MAX ((size_t)4096)           /* of the record of a failure */
#define COORDINATOR_REPORT_BATCH 16u                         /* pieces that a STATUS is answered with */
#define COORDINATOR_GRACE_MS_MAX ((uint64_t)24 * 3600 * 1000)
#define COORDINATOR_LEASE_MS_MAX ((uint64_t)366 * 24 * 3600 * 1000)
#define COORDINATOR_NONCE_BYTES 32
#define COORDINATOR_TAG_BYTES 32
#define COORDINATOR_NO_RANK UINT32_MAX
#define COORDINATOR_PASTS_MAX ((size_t)6) /* worlds that a node has heard of, and that the next one has to follow */

/* X(name, number, who sends it) */
#define COORDINATOR_KIND_TABLE(X)                                                                                      \
    X(JOIN, 1, AGENT)             /* take part in the next round; ends the part in the one before */                   \
    X(FAILED, 2, AGENT)           /* a worker here has failed; a JOIN or a CLOSE follows when all have ended */        \
    X(LEAVE, 3, AGENT)            /* this node goes, the others carry on */                                            \
    X(DONE, 4, AGENT)             /* all workers here have succeeded: wait for the other nodes */                      \
    X(CLOSE, 5, AGENT)            /* the job is over, for everybody */                                                 \
    X(ALIVE, 6, AGENT)            /* nothing new: this agent is at work, and so is its machine */                      \
    X(GREET, 7, AGENT)            /* this agent has a secret, and asks for a challenge */                              \
    X(PROOF, 8, AGENT)            /* the answer to CHALLENGE */                                                        \
    X(STATUS, 9, AGENT)           /* in place of a JOIN: how does the job do? */                                       \
    X(PREEMPT, 10, AGENT)         /* this node will be taken away: the job is to stop, after a snapshot */             \
    X(PROBE, 11, AGENT)           /* in place of a JOIN: is the job served here? */                                    \
    X(ACCEPT, 12, AGENT)          /* the answer to PROPOSE: this node is here, and knows of that world now */          \
    X(ENGINE, 13, AGENT)          /* what carries out the process groups of rank 0's worker, which is here */          \
    X(RESUME, 14, AGENT)          /* in place of a JOIN: this connection carries on that one's session */              \
    X(WORLD, 16, COORDINATOR)     /* the round is complete: start the workers */                                       \
    X(CHANGE, 17, COORDINATOR)    /* the world is no longer the right one: stop the workers, then JOIN */              \
    X(ALL_DONE, 18, COORDINATOR)  /* every node of the round is done, or gone */                                       \
    X(CLOSED, 19, COORDINATOR)    /* the job is over; a spare node was not needed */                                   \
    X(REFUSED, 20, COORDINATOR)   /* this agent cannot take part; the connection ends */                               \
    X(SPARE, 21, COORDINATOR)     /* all places are taken; a WORLD or CLOSED comes */                                  \
    X(HEARD, 22, COORDINATOR)     /* the answer to ALIVE, and what the open round waits for */                         \
    X(CHALLENGE, 23, COORDINATOR) /* the answer to GREET: prove that you know the secret, as this does */              \
    X(REPORT, 24, COORDINATOR)    /* a piece of the answer to STATUS */                                                \
    X(STOP, 25, COORDINATOR)      /* the whole job stops after a snapshot, and ends */                                 \
    X(SERVES, 26, COORDINATOR)    /* the answer to PROBE */                                                            \
    X(LET_IN, 27, COORDINATOR)    /* to a spare: it has a place in the round that is open */                           \
    X(PROPOSE, 28, COORDINATOR)   /* of several endpoints: a world that will be told when all of it accept */          \
    X(HOST_DONE, 29, COORDINATOR) /* with one endpoint: its node is done, its end is no loss while workers run */      \
    X(RESUMED, 30, COORDINATOR)   /* the answer to RESUME; what either side has not heard follows */

enum coordinator_kind {
#define COORDINATOR_KIND_ENUM(name, number, sender) COORDINATOR_##name = (number),
    COORDINATOR_KIND_TABLE(COORDINATOR_KIND_ENUM)
#undef COORDINATOR_KIND_ENUM
};

/* What a run id, role or label may be (no control characters, 255 bytes at most), and an address; empty ones too. */
bool coordinator_wire_is_name(struct kv_slice text);
bool coordinator_wire_is_address(struct kv_slice text);

const char *coordinator_kind_name(unsigned kind); /* "JOIN"; "?" for an unknown one. Static. */

/* What became of the coordinator that an agent knew before this one. */
enum coordinator_fate {
    COORDINATOR_UNKNOWN, /* there was none, or it has ended the connection in good order */
    COORDINATOR_SILENT,  /* nothing was heard any more: it may be alive, behind a network that is not */
    COORDINATOR_GONE,    /* its machine says that nobody serves there any more; it may have gone on without us before */
    COORDINATOR_DEAD,    /* the same, and so soon that it cannot have gone on without us */
};

/* A world that was proposed, and perhaps told. Its round and its author name it: a coordinator that takes the place of
 * one that has died there may number a world of its own as that one did. */
struct coordinator_past {
    uint64_t round;             /* > 0 */
    uint64_t author;            /* the agent that served, by the first half of its identity; 0: of one endpoint */
    uint32_t size, group_rank;  /* COORDINATOR_NO_RANK: whoever says it has no part in it */
    uint32_t host_rank;         /* of the node that serves its coordinator; COORDINATOR_NO_RANK: not one of it */
    enum coordinator_fate fate; /* of its coordinator */
    uint64_t base_round;        /* the world that it follows; 0: none */
    uint64_t base_author;
    uint32_t base_count; /* how many nodes of that one are in it */
    bool is_confirmed;   /* it was told: no world before it counts any more */
};

/* The order in which they are told: by round, then by author. -1, 0 (the same world), 1. */
int coordinator_wire_compare_pasts(const struct coordinator_past *a, const struct coordinator_past *b);

/* What the job was charged with since it began. */
struct coordinator_charges {
    uint32_t failures;    /* rounds that ended because a worker failed */
    uint32_t changes;     /* because nodes came, or were lost */
    uint32_t preemptions; /* because nodes left in good order */
};

/* What an agent says of its node. */
struct coordinator_node {
    struct kv_slice run_id; /* not empty */
    struct kv_slice addr;   /* by which others reach it: numeric, or a name that was given; in a JOIN it may be empty or
                             * unspecified (0.0.0.0, ::): whatever its connection comes from */
    struct kv_slice role;   /* of its workers */
    struct kv_slice topology; /* "switch7/rack3": nodes with equal beginnings get neighbouring ranks; may be empty */
    int64_t pid;              /* > 0 */
    uint64_t identity[2];     /* random, for the life of the agent */
    uint64_t session;         /* of the agent with this coordinator: counts its JOINs that begin one */
    uint32_t min_nodes, max_nodes; /* of the job, 0 < min <= max: all agents must say the same */
    uint32_t local_world_size;     /* > 0 */
    uint16_t store_port;           /* > 0: where it hosts the workers' store, should it become rank 0 */
    bool uses_agent_store;         /* that store is the agent's own, not worker 0's */
    uint64_t last_round;           /* 0: it was in none, and what else is said of it is 0. Rounds count from 1 here */
    uint64_t last_author;          /* of that world, see coordinator_past */
    uint32_t last_world_size;      /* nodes of that round, > 0 */
    uint32_t last_group_rank;      /* this node's in it */
    uint32_t last_host_rank;       /* of the node that served it; COORDINATOR_NO_RANK: not one of its members */
    enum coordinator_fate fate;    /* of that round's coordinator */
    uint64_t known_round;          /* the highest one that it has heard of, be it of others */
    uint64_t endpoints;            /* a digest of the list of endpoints that it was given; 0: one endpoint */
    bool is_done;                  /* its workers have succeeded: it wants to hear how the others end, no more */
    struct coordinator_charges charges; /* as the last WORLD told them */
    bool is_host;                       /* this node serves the coordinator */
    struct kv_slice host_name; /* ranks follow it, compared as bytes: the machine's full name, or what --local-addr
                                * says; may be empty */
    uint32_t wished_rank;      /* by the scheduler or --node-rank: comes before the name; COORDINATOR_NO_RANK: none */
    uint64_t stop_ms;  /* the job stops, as this node was told in that round or tells now: what is left of the time that
                        * it has; 0: not that it knew */
    size_t past_count; /* worlds that it has heard of, but for its last one; by round, each once */
    struct coordinator_past pasts[COORDINATOR_PASTS_MAX];
};

/* A world that all its nodes have to accept before it is told. */
struct coordinator_proposal {
    struct coordinator_past world;
    size_t past_count; /* those that it follows; their ranks are the receiver's own affair, and 0 */
    struct coordinator_past pasts[COORDINATOR_PASTS_MAX];
};

/* What a round decided for one node. */
struct coordinator_world {
    uint64_t round;  /* from 1 on */
    uint64_t author; /* see coordinator_past */
    uint32_t group_rank, group_world_size;
    uint32_t base_global_rank, global_world_size;
    uint32_t base_role_rank, role_world_size;
    uint32_t host_rank; /* group rank of the node that serves the coordinator; COORDINATOR_NO_RANK: not one of them */
    struct coordinator_charges charges;
    uint32_t max_restarts; /* failures that the job may be charged with; 2^32-1: however many */
    uint64_t lease_ms;     /* as in HEARD */
    struct kv_slice master_addr;
    uint16_t master_port;
    bool uses_agent_store;
};

/* What a coordinator says of itself. */
struct coordinator_service {
    bool is_serving; /* it has members, or has told a world, or the job is over */
    bool is_running; /* a world of its stands, or has ended and a majority of it is there for the next one */
    uint64_t round;  /* the highest one that it, its agent or its members know; 0: none */
    uint32_t member_count;
};

enum coordinator_change {
    COORDINATOR_NODE_ARRIVED = 1,
    COORDINATOR_NODE_LEFT = 2,   /* in good order, or its connection ended */
    COORDINATOR_NODE_FAILED = 3, /* a worker there */
};

/* One message. Which fields count depends on its kind (docs/formats/coordinator.md); the others are zero. */
struct coordinator_message {
    enum coordinator_kind kind;
    struct coordinator_node node;         /* JOIN; its run id alone: PROBE; that, identity and session: RESUME */
    struct coordinator_world world;       /* WORLD */
    struct coordinator_service service;   /* SERVES */
    struct coordinator_proposal proposal; /* PROPOSE */
    uint64_t round;                       /* ACCEPT: the proposal's */
    uint64_t stamp_ms;              /* PROPOSE, HEARD: the coordinator's clock, nobody else's; ACCEPT, ALIVE: as it was
                                     * heard last, 0: not yet. So the coordinator knows how late an agent was here */
    uint64_t lease_ms;              /* HEARD: the node keeps its place for so long after an ALIVE that is answered, and
                                     * ends its workers before. ALIVE: as it was told last, 0: not yet */
    uint64_t received_count;        /* HEARD, ALIVE, RESUME, RESUMED: of the session's messages that are counted
                                     * (coordinator_resend.h), so many have come */
    bool has_host;                  /* HEARD: the node that serves the coordinator is one of its members */
    enum coordinator_change change; /* CHANGE */
    int32_t status;                 /* REFUSED: a negative code of muster/status.h */
    uint64_t grace_ms;              /* PREEMPT, STOP: until everything has to have ended */
    bool is_last;                   /* REPORT: no more pieces follow */
    struct kv_slice report;         /* REPORT: a piece of a JSON document, any bytes */
    bool is_final;                  /* FAILED: its node has no restart left, the job has failed */
    bool has_failed;                /* CLOSE, CLOSED: the job has not ended well */
    struct kv_slice cause; /* FAILED, CLOSED: the record of the worker that failed first, any bytes; empty: none */
    struct kv_slice text;  /* FAILED, LEAVE, CLOSE, PREEMPT, STOP, WORLD (what has changed since the round before),
                            * CHANGE, CLOSED, REFUSED: a sentence. HEARD: likewise, or empty. ENGINE: an engine, as
                            * muster status shows it */
    uint8_t nonce[COORDINATOR_NONCE_BYTES]; /* GREET, CHALLENGE: random */
    uint8_t tag[COORDINATOR_TAG_BYTES];     /* CHALLENGE, PROOF */
};

/* Appends the frame. Names must be UTF-8 without control characters, an address made of a host's characters; in a
 * sentence, what is not becomes blanks and question marks. MUSTER_ENOMEM; MUSTER_ELIMIT for strings that are too long;
 * MUSTER_EINVAL for what coordinator_wire_get() would refuse. Nothing is appended then. */
int coordinator_wire_put(struct buf *out, const struct coordinator_message *message);

enum coordinator_parse { COORDINATOR_MORE, COORDINATOR_COMPLETE, COORDINATOR_MALFORMED };

/* Looks at the beginning of `bytes`. COMPLETE: *out is filled (its slices point into `bytes`, fields that the kind does
 * not have are zero), *used is the length of the frame. MALFORMED (too long, unknown kind, fields that do not fit or
 * are out of range, a kind that the other side does not send): the status detail says why, the connection cannot be
 * used any more. That is known as soon as the bytes that show it are there, but for the fields, which are looked at
 * when all have come. */
enum coordinator_parse coordinator_wire_get(const uint8_t *bytes, size_t len, bool from_agent,
                                            struct coordinator_message *out, size_t *used);

#endif
