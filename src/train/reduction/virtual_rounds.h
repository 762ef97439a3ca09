/* Rounds in which ranks compute virtual ranks, all at a time, and give them to who adds them up: for fsdp. Pure.
 *
 * In each round every rank computes one virtual rank: those of round n are n P, n P + 1 ... for the ranks in their
 * order; in the last one the highest ranks may have none. Who adds up gets all values of a round. It adds them to what
 * waits from the rounds before, in the order of the tree (virtual_tree.h). As the virtual ranks come from left to right
 * without a gap, at most log2 of their number wait.
 *
 * Ranks are on hosts, as rows and columns (train/layout/mesh.h). Values may come straight from the ranks that give
 * them, the members. Or the ranks of a host first give theirs to one of them, who adds up what it can, if they are
 * neighbours in the tree, and then passes on a few sums. */
#ifndef TRAIN_VIRTUAL_ROUNDS_H
#define TRAIN_VIRTUAL_ROUNDS_H

#include <stdbool.h>
#include <stdint.h>

#include "train/reduction/virtual_tree.h"

enum virtual_way {
    VIRTUAL_STRAIGHT, /* all values, in the order of the members */
    VIRTUAL_BY_HOST,  /* all sums of the first host, then those of the second ... */
    VIRTUAL_BY_SUM,   /* the first sum of every host, then the second ones of those that have one ... */
};

/* A value that arrives, in the order of the tree. */
struct virtual_arrival {
    uint32_t place;     /* how many values are before it in memory */
    uint32_t additions; /* how often the upper two are added when it has come */
};

struct virtual_arrivals {
    struct virtual_arrival *list;
    uint32_t count;
};

struct virtual_rounds {
    uint32_t virtual_ranks, ranks, rounds;
    uint32_t hosts, each, host; /* rows; ranks of each; this rank's */
    enum virtual_way way;
    bool are_neighbours; /* the ranks of every host: 0 to each - 1, each to 2 each - 1 ... */
    uint32_t *row_ranks; /* of all rows, one after the other */
    uint32_t *members;   /* the ranks that give values to this one: all, or those of its host */
    uint32_t member_count;

    uint32_t round;
    struct virtual_stack waiting, after; /* before this round, and after it */
    uint32_t present;                    /* ranks that have a virtual rank in this round: the lowest ones */
    struct virtual_arrivals arrivals;    /* what is to be added to what waits; in the last round until one is left */
    struct virtual_arrivals own_host;    /* what this rank's host adds up before, from its members */
    uint32_t *host_counts;               /* sums that each host passes on then */
    uint32_t *places;                    /* of ranks, while it is planned */
};

/* host_of: of each rank; hosts of `each` ranks. The way is VIRTUAL_STRAIGHT, until it is chosen: the next call. */
int virtual_rounds_init(struct virtual_rounds *rounds, uint32_t virtual_ranks, const uint32_t *host_of, uint32_t hosts,
                        uint32_t each, uint32_t host);
void virtual_rounds_choose(struct virtual_rounds *rounds, enum virtual_way way);
void virtual_rounds_done(struct virtual_rounds *rounds);

/* Fills in what is said of this round. */
void virtual_rounds_begin(struct virtual_rounds *rounds);
/* True: that was the last one, and the next is the first of another step. */
bool virtual_rounds_end(struct virtual_rounds *rounds);

static inline bool virtual_rounds_is_last(const struct virtual_rounds *rounds) {
    return rounds->round + 1 == rounds->rounds;
}
/* Has the rank no virtual rank in the last round? */
static inline bool virtual_rounds_ends_early(const struct virtual_rounds *rounds, uint32_t rank) {
    return rank >= rounds->virtual_ranks - (rounds->rounds - 1) * rounds->ranks;
}

/* Hosts before `host` that have more than `number` sums in this round. */
uint32_t virtual_rounds_givers(const struct virtual_rounds *rounds, uint32_t number, uint32_t host);
/* The place of a host's sum, with VIRTUAL_BY_HOST or VIRTUAL_BY_SUM. */
uint32_t virtual_rounds_place(const struct virtual_rounds *rounds, uint32_t host, uint32_t number);

/* The most values that are passed on in any round, if the ranks of every host are neighbours. */
uint32_t virtual_rounds_most(uint32_t virtual_ranks, uint32_t hosts, uint32_t each);

#endif
