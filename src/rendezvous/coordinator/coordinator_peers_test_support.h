/* Nodes for the coordinator's tests: they say what a test has them say, keep what they hear, and share a virtual clock.
 * What a node is told has to be heard (peers_hear...) in its order; peers_hear_nothing() finds what was not. */
#ifndef RENDEZVOUS_COORDINATOR_PEERS_TEST_SUPPORT_H
#define RENDEZVOUS_COORDINATOR_PEERS_TEST_SUPPORT_H

#include "rendezvous/coordinator/coordinator.h"

enum { PEERS = 8, PEER_HEARD_MAX = 16, PEERS_LAST_CALL_MS = 30000, PEERS_SILENCE_MS = 15000, PEERS_STOP_MS = 5000 };
enum { PEERS_AUTHOR = 1000 }; /* of several endpoints: this coordinator */

/* A message as a node got it; its strings are copied. */
struct heard {
    enum coordinator_kind kind;
    struct coordinator_world world;
    enum coordinator_change change;
    int status;
    uint64_t grace_ms;
    bool has_failed;
    char cause[64];
    char text[COORDINATOR_TEXT_BYTES_MAX + 1];
    char master[64];
};

struct peer {
    struct coordinator_node node;
    char addr[32];
    struct coordinator_member *member;
    struct heard heard[PEER_HEARD_MAX];
    size_t heard_count, looked_at;
    uint64_t round, author;
    struct coordinator_proposal proposal; /* the last one */
    bool is_asked;                        /* to accept it, and has not answered */
    bool is_mute;                         /* accepts nothing until peers_accept() */
};

struct peers {
    struct coordinator *coordinator;
    struct coordinator_places places;
    struct coordinator_record record; /* with a lease: the last one that is to be written */
    size_t record_count;
    int64_t now_ms;
    struct coordinator_limits limits; /* of the next coordinator, like the two below */
    bool limits_spares;
    uint32_t max_spares;
    struct peer list[PEERS];
};

/* A fresh coordinator; "host0" to "host7", who have not joined, two workers each. */
void peers_begin(struct peers *f, uint32_t min_nodes, uint32_t max_nodes, bool last_call_given);

/* The one at the given place of three endpoints. */
void peers_begin_place(struct peers *f, uint32_t min_nodes, uint32_t max_nodes, uint32_t place);

/* One that is found by a lease, and does not lead yet. */
void peers_begin_leased(struct peers *f, uint32_t min_nodes, uint32_t max_nodes);

int peers_setup(void **state);
int peers_teardown(void **state);

/* What node i does. A JOIN says the round of the last WORLD that it was sent. */
void peers_join(struct peers *f, size_t i);
/* Nodes 0 to count - 1. */
void peers_join_many(struct peers *f, size_t count);
void peers_leave(struct peers *f, size_t i, const char *why);
void peers_lose(struct peers *f, size_t i);
void peers_report_failure(struct peers *f, size_t i);
void peers_done(struct peers *f, size_t i);
void peers_preempt(struct peers *f, size_t i, uint64_t grace_ms);
void peers_pass_ms(struct peers *f, int64_t ms);
/* Those who are not mute accept by themselves what they are asked to. */
void peers_accept(struct peers *f, size_t i);

/* The next thing that node i was told is of this kind. */
const struct heard *peers_hear(struct peers *f, size_t i, enum coordinator_kind kind);
/* All that any node was told has been heard. */
void peers_hear_nothing(struct peers *f);
void peers_hear_world(struct peers *f, size_t i, uint64_t round, uint32_t rank, uint32_t size);
void peers_hear_change(struct peers *f, size_t i, enum coordinator_change change, const char *text);
/* With these words in it, and the node is out. */
void peers_hear_refusal(struct peers *f, size_t i, int status, const char *words);

struct coordinator_view peers_look(const struct peers *f);
/* Begins, and has the first `count` nodes form round 1, heard by all. */
void peers_form(struct peers *f, uint32_t min_nodes, uint32_t max_nodes, uint32_t count);

#endif
