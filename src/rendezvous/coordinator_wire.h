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
#include "store/slice.h"

#define COORDINATOR_HELLO "MUSTER\r\n" /* 8 bytes; the version follows in the JOIN */
#define COORDINATOR_HELLO_BYTES ((size_t)8)
#define COORDINATOR_VERSION 1

/* Limits, for either side. The longest frame fits with the longest of everything in it. */
#define COORDINATOR_FRAME_BYTES_MAX ((size_t)8192)           /* its length included */
#define COORDINATOR_TEXT_BYTES_MAX ((size_t)1024)            /* of a sentence */
#define COORDINATOR_NAME_BYTES_MAX ((size_t)255)             /* of a run id, address, role or topology label */
#define COORDINATOR_LOCAL_WORLD_SIZE_MAX ((uint32_t)1 << 12) /* workers of one node */

/* X(name, number, who sends it) */
#define COORDINATOR_KIND_TABLE(X)                                                                                      \
    X(JOIN, 1, AGENT)            /* take part in the next round; ends the part in the one before */                    \
    X(FAILED, 2, AGENT)          /* a worker here has failed; a JOIN or a CLOSE follows when all have ended */         \
    X(LEAVE, 3, AGENT)           /* this node goes, the others carry on */                                             \
    X(DONE, 4, AGENT)            /* all workers here have succeeded: wait for the other nodes */                       \
    X(CLOSE, 5, AGENT)           /* the job is over, for everybody */                                                  \
    X(ALIVE, 6, AGENT)           /* nothing new: this agent is at work, and so is its machine */                       \
    X(WORLD, 16, COORDINATOR)    /* the round is complete: start the workers */                                        \
    X(CHANGE, 17, COORDINATOR)   /* the world is no longer the right one: stop the workers, then JOIN */               \
    X(ALL_DONE, 18, COORDINATOR) /* every node of the round is done, or gone */                                        \
    X(CLOSED, 19, COORDINATOR)   /* the job is over; a spare node was not needed */                                    \
    X(REFUSED, 20, COORDINATOR)  /* this agent cannot take part; the connection ends */                                \
    X(SPARE, 21, COORDINATOR)    /* all places are taken; a WORLD or CLOSED comes */                                   \
    X(HEARD, 22, COORDINATOR)    /* the answer to ALIVE */

enum coordinator_kind {
#define COORDINATOR_KIND_ENUM(name, number, sender) COORDINATOR_##name = (number),
    COORDINATOR_KIND_TABLE(COORDINATOR_KIND_ENUM)
#undef COORDINATOR_KIND_ENUM
};

const char *coordinator_kind_name(unsigned kind); /* "JOIN"; "?" for an unknown one. Static. */

/* What an agent says of its node. */
struct coordinator_node {
    struct kv_slice run_id; /* not empty */
    struct kv_slice addr;   /* by which others reach it: numeric, or a name that was given; in a JOIN it may be empty or
                             * unspecified (0.0.0.0, ::): whatever its connection comes from */
    struct kv_slice role;   /* of its workers */
    struct kv_slice topology; /* "switch7/rack3": nodes with equal beginnings get neighbouring ranks; may be empty */
    int64_t pid;              /* > 0 */
    uint64_t identity[2];     /* random, for the life of the agent */
    uint32_t min_nodes, max_nodes; /* of the job, 0 < min <= max: all agents must say the same */
    uint32_t local_world_size;     /* > 0 */
    uint16_t store_port;           /* > 0: where it hosts the workers' store, should it become rank 0 */
    bool uses_agent_store;         /* that store is the agent's own, not worker 0's */
    uint64_t last_round;           /* 0: it was in none. Rounds count from 1 here */
    uint32_t last_world_size;      /* nodes of that round; 0 exactly when last_round is */
};

/* What a round decided for one node. */
struct coordinator_world {
    uint64_t round; /* from 1 on */
    uint32_t group_rank, group_world_size;
    uint32_t base_global_rank, global_world_size;
    uint32_t base_role_rank, role_world_size;
    struct kv_slice master_addr;
    uint16_t master_port;
    bool uses_agent_store;
};

enum coordinator_change {
    COORDINATOR_NODE_ARRIVED = 1,
    COORDINATOR_NODE_LEFT = 2,   /* in good order, or its connection ended */
    COORDINATOR_NODE_FAILED = 3, /* a worker there */
};

/* One message. Which fields count depends on its kind: JOIN node; FAILED, LEAVE, CLOSE text; WORLD world and text (what
 * has changed since the round before); CHANGE change and text; CLOSED text; REFUSED status and text. */
struct coordinator_message {
    enum coordinator_kind kind;
    struct coordinator_node node;
    struct coordinator_world world;
    enum coordinator_change change;
    int32_t status; /* a negative code of muster/status.h */
    struct kv_slice text;
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
