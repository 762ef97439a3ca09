/* Which attempt the nodes of a static job are at, as node rank 0 sees it in its store.
 *
 * All nodes begin an attempt together: when one is ready for the next, the others are told to stop theirs, and when all
 * are ready they go. So no worker meets keys of a dead one: between "all are ready" and "go" the host empties the
 * store. PyTorch's agents know nothing of this. Where one takes part, and once a node is done, each node restarts
 * alone.
 *
 * Pure: it is told what has come, and says what all nodes are to know (static_round_word()). */
#ifndef RENDEZVOUS_STATIC_ROUND_H
#define RENDEZVOUS_STATIC_ROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum static_node_state {
    STATIC_ABSENT,
    STATIC_RUNS,  /* it is here, and not ready for the next attempt */
    STATIC_READY, /* for the attempt that is being formed */
    STATIC_DONE,
    STATIC_GONE, /* it was here, was not done, and its connection has ended */
    STATIC_STATE_COUNT,
};

enum static_phase {
    STATIC_FORMING, /* attempt `round` */
    STATIC_RUNNING, /* attempt `round` */
    STATIC_ALONE,   /* each node for itself, from now on */
};

struct static_round {
    enum static_phase phase;
    uint64_t round;
    enum static_node_state *nodes; /* borrowed */
    uint32_t count;
    uint32_t in_state[STATIC_STATE_COUNT]; /* nodes */
    uint32_t broken_by;                    /* the node that needed it first */
    bool is_one_done;
};

/* nodes: `count` of them, all zero. are_alone: each restarts for itself from the start. */
void static_round_init(struct static_round *r, enum static_node_state *nodes, uint32_t count, bool are_alone);

/* An agent has come; a rank that was here before has been replaced. Ranks outside of the job are ignored everywhere. */
void static_round_came(struct static_round *r, uint32_t rank);
/* An agent takes part that does not wait for the others. */
void static_round_is_mixed(struct static_round *r);
/* The node's attempt has ended, or is about to: it needs the one after `round`. */
void static_round_broke(struct static_round *r, uint32_t rank, uint64_t round);
/* None of the node's workers runs, and it has heard of every attempt before `round`. */
void static_round_ready(struct static_round *r, uint32_t rank, uint64_t round);
void static_round_done(struct static_round *r, uint32_t rank);
/* The connection of its latest agent has ended. */
void static_round_lost(struct static_round *r, uint32_t rank);

/* Are all ready? Then the host empties the store, and calls static_round_go(). */
bool static_round_is_complete(const struct static_round *r);
void static_round_go(struct static_round *r);

/* At the end: is nobody left who may still come to the exit barrier? */
bool static_round_is_over(const struct static_round *r);
/* Is no other node here that is not done? */
bool static_round_is_alone(const struct static_round *r, uint32_t rank);
/* Has each rank been seen? Not always where PyTorch's agents take part. */
bool static_round_knows_all(const struct static_round *r);

enum { STATIC_WORD_SIZE = 80, STATIC_MISSING_SIZE = 160 };
/* What all nodes are to know: "form 3 1" (attempt 3, which node rank 1 needs), "run 3 1", "alone". Returns `out`. */
const char *static_round_word(const struct static_round *r, char out[STATIC_WORD_SIZE]);

struct static_word {
    enum static_phase phase;
    uint64_t round;
    uint32_t broken_by;
};
/* The other way round; false: it is none of these. What static_round_read_asked() reads may follow. */
bool static_round_read_word(const char *text, size_t len, struct static_word *out);

/* How often the host has asked agents whether they are there: " ask 2" behind any word; 0 without that. */
uint64_t static_round_read_asked(const char *text, size_t len);

/* Who is waited for: "node rank 1", "node ranks 1, 4, 5 and 7 more". Returns their number; `out` may be "". */
uint32_t static_round_missing(const struct static_round *r, char out[STATIC_MISSING_SIZE]);

#endif
