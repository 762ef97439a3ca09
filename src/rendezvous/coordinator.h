/* The coordinator of a job's rounds: who takes part, which ranks they get, when everybody has to stop. One a job, in
 * the agent that serves the rendezvous port. Pure: (state, event, now) -> messages, handed to a function as they are
 * made. No I/O, no clock; memory is taken in coordinator_create() and coordinator_join() alone.
 *
 * Rules (docs/rendezvous.md, "The native backend"):
 *   - A node has one member, which lives as long as its connection. Joining is one message; the answer is the WORLD of
 *     the round, when that closes.
 *   - The first round closes when max_nodes have joined, or last_call_timeout_ms after min_nodes have. So does one that
 *     nobody from the world before it has come back to.
 *   - A later round closes when every member that still has a part in the world before it has joined, left, or been
 *     lost, and min_nodes are there: no timer, unless last_call_given.
 *   - A JOIN answers a world if it names that world's round. An older one was on its way when the WORLD was sent: it
 *     counts for nothing.
 *   - A member of the world that fails, leaves, is lost or joins unasked, or a newcomer when there is a free place, is
 *     told to all other members of the world at once: CHANGE. Once a round; what else happens until it closes is part
 *     of the same change.
 *   - Nodes beyond max_nodes are spares: told so, and let in, in the order in which they came, when a place is free.
 *   - A node that is done keeps its place until all are done, or gone: ALL_DONE, and the job is over. If the world has
 *     to be formed again before, it has no part in the next one: for a node that has said DONE, CHANGE means that it
 *     can go. Once somebody is done, newcomers are spares: nobody breaks up a world that is about to end well.
 *   - A closed job tells everybody, and refuses whoever comes.
 *   - Ranks: by topology label, then address, compared naturally (host2 before host10), then pid, then identity: the
 *     same members always get the same ranks. Group rank 0 hosts the workers' store.
 *
 * Work: a message to each member a round, and sorting them; nothing grows with the square of their number. */
#ifndef RENDEZVOUS_COORDINATOR_H
#define RENDEZVOUS_COORDINATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/coordinator_wire.h"

#define COORDINATOR_NODES_MAX ((size_t)1 << 20) /* members at a time; more are refused */

struct coordinator;
struct coordinator_member;

struct coordinator_settings {
    const char *run_id; /* copied */
    uint32_t min_nodes, max_nodes;
    int64_t last_call_timeout_ms;
    bool last_call_given;  /* honoured in every round, not only in the first */
    uint64_t hash_seed[2]; /* random: strangers choose the keys of its hash tables */
};

/* `message` is borrowed. Must not call back into the coordinator. */
typedef void coordinator_send_fn(void *ctx, void *session, const struct coordinator_message *message);

/* MUSTER_ENOMEM. */
int coordinator_create(const struct coordinator_settings *settings, coordinator_send_fn *send, void *ctx,
                       struct coordinator **out);
void coordinator_free(struct coordinator *coordinator); /* NULL accepted; sends nothing */

/* The first JOIN of a connection (`member` NULL) or a later one of the same, whose numbers may differ, but not the
 * strings, the pid and the identity. `session` is the caller's name for the connection, handed to `send`. Returns the
 * member; or NULL when it is refused (other run id or node counts, a closed job, too many nodes or workers, no memory,
 * an identity that is there already): REFUSED has been sent, with what to do, and the member, if there was one, is gone
 * as with coordinator_gone(). REFUSED with MUSTER_ECONNECT is for now: the node's old connection still stands. */
struct coordinator_member *coordinator_join(struct coordinator *coordinator, struct coordinator_member *member,
                                            void *session, const struct coordinator_node *node, int64_t now_ms);

/* A worker of the node has failed: the others are told at once. The node stays, until it joins, closes, or is lost. */
void coordinator_failed(struct coordinator *coordinator, struct coordinator_member *member, struct kv_slice why,
                        int64_t now_ms);
/* Its workers have all succeeded. ALL_DONE, CHANGE or CLOSED follows: then it can go, and need not CLOSE. */
void coordinator_done(struct coordinator *coordinator, struct coordinator_member *member, int64_t now_ms);
/* Told to everybody, the sender too: it knows then that it has been heard. From a node that was let go: ignored. */
void coordinator_close(struct coordinator *coordinator, struct coordinator_member *member, struct kv_slice why);

/* The member goes, in good order with a sentence (LEAVE) or because its connection ended (`why` empty); freed. */
void coordinator_gone(struct coordinator *coordinator, struct coordinator_member *member, struct kv_slice why,
                      int64_t now_ms);

/* `coordinator_wake_ms()` has come: when the coordinator wants to be called, on the clock of `now_ms`; INT64_MAX: not.
 */
void coordinator_tick(struct coordinator *coordinator, int64_t now_ms);
int64_t coordinator_wake_ms(const struct coordinator *coordinator);

enum coordinator_phase {
    COORDINATOR_FORMING, /* a round is open: members join */
    COORDINATOR_RUNNING, /* the world stands */
    COORDINATOR_OVER,    /* closed */
};

/* For people, and for tests. */
struct coordinator_view {
    enum coordinator_phase phase;
    uint64_t round;      /* the last one that closed; 0: none */
    size_t active_count; /* members of that world who have neither answered its end nor are done */
    size_t joined_count; /* who have joined the round that is open */
    size_t spare_count;
    size_t done_count;   /* who are done and wait for the others */
    size_t member_count; /* all, also those who were told to go and have not gone */
};
void coordinator_look(const struct coordinator *coordinator, struct coordinator_view *out);

#endif
