/* The coordinator of a job's rounds: who takes part, which ranks they get, when everybody has to stop. One a job, in
 * the agent that serves the rendezvous port. Pure: (state, event, now) -> messages, handed to a function as they are
 * made. No I/O, no clock; memory is taken in coordinator_create() and coordinator_join() alone.
 *
 * Rules (docs/rendezvous.md, "The native backend"):
 *   - A node has one member, which lives as long as its connection. Joining is one message; the answer is the WORLD of
 *     the round, when that closes.
 *   - The first round closes when max_nodes have joined, or last_call_timeout_ms after min_nodes have. The same holds
 *     for a round to which nobody from the previous world has come back.
 *   - A later round closes when min_nodes are there, and every member that still has a part in the previous world has
 *     joined, left, or been lost. It has no timer, unless last_call_given.
 *   - A JOIN answers a world if it names that world's round. An older one was on its way when the WORLD was sent, and
 *     counts for nothing.
 *   - CHANGE tells all other members of the world at once that a member has failed, left, been lost or joined unasked,
 *     or that a newcomer gets a free place. It is sent once a round. What else happens until the round closes is part
 *     of the same change.
 *   - Nodes beyond max_nodes are spares, and are told so. When a place is free they are let in, in the order in which
 *     they came. They are told that, too, since the round may have to wait for others. More than max_spares, beyond
 *     places that are free, are refused.
 *   - A node that is done keeps its place until all are done, or gone. Then ALL_DONE is sent, and the job is over. If
 *     the world has to be formed again before, the node has no part in the next one: after DONE, CHANGE means that it
 *     can go. Once somebody is done, newcomers are spares: nobody breaks up a world that is about to end well.
 *   - A world that ends before the job is over is charged once, to the first thing that ended it: a failure, a node
 *     that left in good order (pre-emption), or another change of membership. One charge more than is allowed closes
 *     the job. If a newcomer may not break up the world any more, it becomes a spare.
 *   - A node that will be taken away (PREEMPT) stops the whole job: STOP to everybody, once. No round forms afterwards,
 *     and nothing is charged. The job is over when all of the world are done, or gone.
 *   - The failure that a node has told first counts in its round. A job that has failed tells its record to everybody,
 *     and again when more is known of it: the worker's last words.
 *   - A failure that is final for its node ends the job. So does a round that needs the nodes that are done.
 *   - A closed job tells everybody, and refuses newcomers.
 *   - Ranks: by topology label, compared naturally (host2 before host10), then by the rank that the scheduler or
 *     --node-rank says, then by host name as bytes (torchrun's order), then by address, pid and identity. The same
 *     members always get the same ranks. Group rank 0 hosts the workers' store.
 *
 * Work: one message to each member a round, and sorting them. Nothing grows with the square of their number. */
#ifndef RENDEZVOUS_COORDINATOR_H
#define RENDEZVOUS_COORDINATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/coordinator/coordinator_budget.h"
#include "rendezvous/wire/coordinator_wire.h"

#define COORDINATOR_ENGINE_BYTES_MAX ((size_t)255) /* of what coordinator_note_engine() keeps */
#define COORDINATOR_NODES_MAX ((size_t)1 << 20)    /* members at a time; more are refused */

struct coordinator;
struct coordinator_member;

/* Of several endpoints: what keeps two coordinators from running two worlds (coordinator_quorum.c). */
struct coordinator_places {
    uint32_t place, count; /* of this coordinator's endpoint in the list; count 0 or 1: no other can ever serve */
    uint64_t endpoints;    /* digest of the list, as in a JOIN */
    uint64_t author;       /* this coordinator, unlike any other that is, or was, at its place */
    uint32_t spare_nodes;  /* beyond max_nodes: how many more may have been started */
    int64_t silence_ms;    /* after which a node without its coordinator stops its workers */
    int64_t stop_ms;       /* how long those may take to end */
    bool is_leased;        /* one coordinator at a time leads: see coordinator_lead(); count is 1 */
};

/* The last world that may have been told, as it stands where all leaders of a job see it. */
struct coordinator_record {
    uint64_t round, author; /* round > 0 */
    uint32_t size;          /* its nodes, > 0 */
    uint32_t host_rank;     /* of the leader's node; COORDINATOR_NO_RANK: not one of them */
    struct coordinator_charges charges;
};

/* `record` is to be written, if nobody else leads by then; coordinator_fenced() follows when it stands. A later record
 * takes the place of one that does not stand yet. Must not call back into the coordinator. */
typedef void coordinator_fence_fn(void *ctx, const struct coordinator_record *record);

struct coordinator_settings {
    const char *run_id; /* copied */
    uint32_t min_nodes, max_nodes;
    int64_t last_call_timeout_ms;
    bool last_call_given; /* honoured in every round, not only in the first */
    struct coordinator_places places;
    struct coordinator_limits limits;
    int64_t silence_ms;      /* a member of which nothing is heard for so long has lost its place; 0: never */
    int64_t hold_ms;         /* the same of one that the others need: see coordinator_lease_ms() */
    bool survivors_continue; /* workers outlive nodes: no failure ends the job for the others */
    bool limits_spares;      /* else as many as come */
    uint32_t max_spares;
    uint64_t hash_seed[2];       /* random: strangers choose the keys of its hash tables */
    coordinator_fence_fn *fence; /* with places.is_leased */
    void *fence_ctx;
};

/* `message` is borrowed. Must not call back into the coordinator. */
typedef void coordinator_send_fn(void *ctx, void *session, const struct coordinator_message *message);

/* MUSTER_ENOMEM. */
int coordinator_create(const struct coordinator_settings *settings, coordinator_send_fn *send, void *ctx,
                       struct coordinator **out);
/* Before anybody joins. */
void coordinator_set_place(struct coordinator *coordinator, uint32_t place);
void coordinator_free(struct coordinator *coordinator); /* NULL accepted; sends nothing */

/* The first JOIN of a connection (`member` NULL) or a later one of the same, whose numbers may differ, but not the
 * strings, the pid and the identity. `session` is the caller's name for the connection, handed to `send`. Returns the
 * member, or NULL when it is refused: other run id or node counts, a closed job, too many nodes or workers, no memory,
 * an identity that is there already. REFUSED has then been sent, with what to do, and the member, if there was one, is
 * gone as with coordinator_gone(). REFUSED with MUSTER_ECONNECT is temporary: the node's old connection still stands.
 */
struct coordinator_member *coordinator_join(struct coordinator *coordinator, struct coordinator_member *member,
                                            void *session, const struct coordinator_node *node, int64_t now_ms);

/* What a node says of its worker that failed first. */
struct coordinator_failure {
    struct kv_slice why;   /* a sentence */
    struct kv_slice cause; /* the record for the reports of all nodes; empty: none */
    bool is_final;         /* the job has failed */
    bool is_victim;        /* it has failed because another rank is gone */
    bool has_age;
    int64_t age_ms;   /* how long ago the worker died */
    int64_t early_ms; /* rdzv_cause_early_ms() */
};
/* A worker of the node has failed: the others are told at once. The node stays, until it joins, closes, or is lost. A
 * second call completes the record. After a CLOSED for a failure every node that was at work answers with a call, empty
 * if none of its workers has failed: until then, or for 300 ms, an older death may become the cause, and the complete
 * record is held back. */
void coordinator_failed(struct coordinator *coordinator, struct coordinator_member *member,
                        const struct coordinator_failure *failure, int64_t now_ms);
/* Its workers have all succeeded. ALL_DONE, CHANGE or CLOSED follows: then it can go, and need not CLOSE. */
void coordinator_done(struct coordinator *coordinator, struct coordinator_member *member, int64_t now_ms);
/* The node will be taken away: STOP goes to all who take part, the sender too, and spares are let go. Ignored from a
 * spare, and when the job stops already. */
void coordinator_preempt(struct coordinator *coordinator, struct coordinator_member *member, uint64_t grace_ms,
                         struct kv_slice why, int64_t now_ms);
/* Told to everybody, the sender too: it knows then that it has been heard. Empty `why`: which node it was is told.
 * From a node that was let go: ignored. `has_failed`: the job has not ended well. */
void coordinator_close(struct coordinator *coordinator, struct coordinator_member *member, struct kv_slice why,
                       bool has_failed);

/* The member goes in good order, with a sentence (LEAVE): its node is taken away with notice. Freed. */
void coordinator_leave(struct coordinator *coordinator, struct coordinator_member *member, struct kv_slice why,
                       int64_t now_ms);
/* It is lost: its connection has ended (`why` empty), or was given up. Freed. */
void coordinator_gone(struct coordinator *coordinator, struct coordinator_member *member, struct kv_slice why,
                      int64_t now_ms);

/* To be said before coordinator_gone(): the node will not come back and join elsewhere, as it has left in good order
 * or its process has ended. Of what is merely lost that is not known. */
void coordinator_never_returns(struct coordinator_member *member);
/* Likewise: nothing is known of the node, and its workers may be at work until then. */
void coordinator_works_until(struct coordinator_member *member, int64_t until_ms);

/* Of several endpoints: the member has accepted what was proposed as that round. */
void coordinator_accepted(struct coordinator *coordinator, struct coordinator_member *member, uint64_t round,
                          int64_t now_ms);
/* What carries out the process groups of rank 0's worker in the world that stands, as its node says: for the report, no
 * more. Ignored from other nodes, and when no world stands. */
void coordinator_note_engine(struct coordinator *coordinator, const struct coordinator_member *member,
                             struct kv_slice engine);
/* For how long the member keeps its place after a sign of life that is answered. hold_ms if without it the nodes that
 * are here are too few for another world: then nothing is gained by ending the one that is. Else silence_ms, as with
 * several endpoints, where others may go on without it. It changes as nodes come and go. */
int64_t coordinator_lease_ms(const struct coordinator *coordinator, const struct coordinator_member *member);
/* Its workers run, as far as is known here. */
bool coordinator_is_at_work(const struct coordinator_member *member);
/* By its identity; NULL: there is none. */
struct coordinator_member *coordinator_find(const struct coordinator *coordinator, const uint64_t identity[2]);
/* What `send` is handed for it; another connection has taken its session over. */
void *coordinator_session(const struct coordinator_member *member);
void coordinator_set_session(struct coordinator_member *member, void *session);
/* Where its process listens while it lives: the port, and the address, a numeric one or a name. 0: nowhere. */
uint16_t coordinator_member_port(const struct coordinator_member *member, char host[COORDINATOR_NAME_BYTES_MAX + 1]);
/* "host (pid 7)", for people. Returns `out`. */
const char *coordinator_member_name(const struct coordinator_member *member, char *out, size_t size);
/* Is the node that serves this coordinator one of its members, or has it been and ended? Else it may be elsewhere. */
bool coordinator_has_host(const struct coordinator *coordinator);

/* Of several endpoints: is it known that no other one serves? Asked after this one had its first member, and answered
 * before it has lost one: see coordinator_view. */
void coordinator_note_others(struct coordinator *coordinator, bool none_serves, int64_t now_ms);
/* This agent has been told a round, by whomever: rounds that are told here later have higher numbers, and who asks
 * hears of it. */
void coordinator_note_round(struct coordinator *coordinator, uint64_t round);

/* With places.is_leased: this coordinator leads, and `record` (NULL: none) is the last world of all leaders. Until then
 * it tells no world. Once; when it leads no more, it is freed. */
void coordinator_lead(struct coordinator *coordinator, const struct coordinator_record *record, int64_t now_ms);
/* The record of that round stands: the world may be told. */
void coordinator_fenced(struct coordinator *coordinator, uint64_t round, int64_t now_ms);
/* Something waits for coordinator_fenced(). */
bool coordinator_awaits_fence(const struct coordinator *coordinator);

/* The answer to PROBE. */
void coordinator_describe(const struct coordinator *coordinator, struct coordinator_service *out);

/* `coordinator_wake_ms()` has come: when the coordinator wants to be called, on the clock of `now_ms`; INT64_MAX: not.
 */
void coordinator_tick(struct coordinator *coordinator, int64_t now_ms);
int64_t coordinator_wake_ms(const struct coordinator *coordinator);

/* "1 of 2 nodes have joined: ...": whom and what the open round waits for; empty when none is open. Valid until the
 * next call; `out` is its room. */
struct kv_slice coordinator_waits_for(const struct coordinator *coordinator, int64_t now_ms,
                                      char out[COORDINATOR_TEXT_BYTES_MAX]);

/* Who is in the world that stands, for a node that waits for a place in it; empty while a round is open. */
struct kv_slice coordinator_spare_of(const struct coordinator *coordinator, char out[COORDINATOR_TEXT_BYTES_MAX]);
/* Does this node wait for a place? */
bool coordinator_is_spare(const struct coordinator_member *member);

enum coordinator_phase {
    COORDINATOR_FORMING, /* a round is open: members join */
    COORDINATOR_RUNNING, /* the world stands */
    COORDINATOR_OVER,    /* closed */
};

/* For people, and for tests. */
struct coordinator_view {
    enum coordinator_phase phase;
    bool is_stopping;    /* STOP was told */
    uint64_t round;      /* the last one that closed; 0: none */
    size_t active_count; /* members of that world who have neither answered its end nor are done */
    size_t joined_count; /* who have joined the round that is open */
    size_t spare_count;
    size_t done_count; /* who are done and wait for the others */
    struct coordinator_charges charges;
    uint64_t lost_count;                         /* who have gone, and may be elsewhere, ever */
    size_t member_count;                         /* all, also those who were told to go and have not gone */
    size_t world_node_count, world_worker_count; /* of the last round that closed */
};
void coordinator_look(const struct coordinator *coordinator, struct coordinator_view *out);
/* What has changed since the last round closed, or why the job is over. Valid until the next call; `out` is its room.
 */
struct kv_slice coordinator_why(const struct coordinator *coordinator, char out[COORDINATOR_TEXT_BYTES_MAX]);

#endif
