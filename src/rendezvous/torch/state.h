/* The shared rendezvous state: what PyTorch's _RendezvousState holds, as plain data.
 *
 * Every known node is one member, and the members are kept sorted by (name, pid, local id), which is also
 * the order of ranks. Nothing here does I/O or reads a clock; times are microseconds since 1970 UTC. */
#ifndef RENDEZVOUS_STATE_H
#define RENDEZVOUS_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/round/node_name.h"

/* The lists a member can be in. A member with none of these bits does not exist. */
enum rdzv_list {
    RDZV_PARTICIPANT = 1,
    RDZV_WAITING = 2,
    RDZV_SPARE = 4, /* PyTorch's redundancy_list */
    RDZV_HEARTBEAT = 8,
    RDZV_LISTED = RDZV_PARTICIPANT | RDZV_WAITING | RDZV_SPARE,
};

/* A heartbeat of this time, on a node in no list, is a grave: muster agents write it for a node that is known to
 * have gone for good, so that nobody waits for it. To PyTorch it is an expired heartbeat, which it drops. */
#define RDZV_GRAVE_US INT64_C(0)

/* What an agent of ours says in its heartbeats, which are whole milliseconds and so many microseconds: for how long
 * after it this node counts on its place. To PyTorch's agents these are times as any others; one in 500 of theirs looks
 * alike.
 */
enum rdzv_lease {
    RDZV_LEASE_NONE = 0,    /* not one of ours */
    RDZV_LEASE_SILENCE = 1, /* the others can go on without it */
    RDZV_LEASE_HOLD = 2,    /* they can't */
};

struct rdzv_member {
    struct rdzv_node node;
    uint8_t lists;        /* bits of enum rdzv_list */
    int64_t rank;         /* participants only; 0 until the round is complete */
    int64_t heartbeat_us; /* with RDZV_HEARTBEAT */
};

struct rdzv_state {
    int64_t round;
    bool complete;
    bool closed;
    bool has_deadline;
    int64_t deadline_us;
    struct rdzv_member *members; /* owned, sorted, unique */
    size_t member_count;
    size_t member_capacity;
};

/* As the member's last heartbeat says. */
static inline enum rdzv_lease rdzv_member_lease(const struct rdzv_member *member) {
    int64_t mark = member->heartbeat_us % 1000;
    return mark == RDZV_LEASE_SILENCE || mark == RDZV_LEASE_HOLD ? (enum rdzv_lease)mark : RDZV_LEASE_NONE;
}

/* An empty round 0 without members; nothing is allocated. */
void rdzv_state_init(struct rdzv_state *state);
void rdzv_state_done(struct rdzv_state *state);

/* Room for at least `count` members in all. MUSTER_ENOMEM; MUSTER_ELIMIT above RDZV_NODES_MAX. */
int rdzv_state_reserve(struct rdzv_state *state, size_t count);

/* Deep copy over an initialised `to`, which is unchanged on failure (MUSTER_ENOMEM). */
int rdzv_state_copy(struct rdzv_state *to, const struct rdzv_state *from);

/* Same contents, order and capacity aside. */
bool rdzv_state_equal(const struct rdzv_state *a, const struct rdzv_state *b);

int rdzv_node_compare(const struct rdzv_node *a, const struct rdzv_node *b);
/* "addr_pid_localid", PyTorch's text form. Returns `out`. */
#define RDZV_NODE_TEXT_MAX (RDZV_ADDR_MAX + 44)
const char *rdzv_node_format(const struct rdzv_node *node, char out[RDZV_NODE_TEXT_MAX]);

/* NULL when absent. The pointer dies with the next insertion or removal. */
struct rdzv_member *rdzv_state_find(const struct rdzv_state *state, const struct rdzv_node *node);
bool rdzv_state_is(const struct rdzv_state *state, const struct rdzv_node *node, unsigned lists);

/* Finds or adds a member with no list set (set one before returning to anybody). Needs reserved room for a new
 * one: asserts otherwise. */
struct rdzv_member *rdzv_state_insert(struct rdzv_state *state, const struct rdzv_node *node);
/* Removes the given list bits of a node; a member without any bit left disappears. True if one was set. */
bool rdzv_state_remove(struct rdzv_state *state, const struct rdzv_node *node, unsigned lists);

/* Members that have any of the list bits. */
size_t rdzv_state_count(const struct rdzv_state *state, unsigned lists);

/* What follows the removal of a participant: an emptied complete round opens the next one; an open round that fell
 * below `min_nodes` loses its last call. */
void rdzv_state_epilogue(struct rdzv_state *state, size_t min_nodes);

/* Takes a node that has gone for good out of every list and leaves a grave. False if it was in no list. */
bool rdzv_state_remove_dead(struct rdzv_state *state, const struct rdzv_node *node, size_t min_nodes);

/* Completes the round: ranks in the order of members, no deadline, graves dropped. */
void rdzv_state_complete(struct rdzv_state *state);

/* The one node whose heartbeat was added or renewed between two states, which is how a store host learns which
 * connection belongs to which node. NULL if none or more than one was. Points into `after`. */
const struct rdzv_node *rdzv_state_writer(const struct rdzv_state *before, const struct rdzv_state *after);

#endif
