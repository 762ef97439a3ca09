/* Which generation of the copies on peer hosts to go on from. Pure. Takes time by the number of offers, for each
 * generation that is among them.
 *
 * Each rank has memory with two slots. A slot holds the shares of two ranks at one step: the rank's own, and that of
 * the rank that it serves, which is on another host. Its label names that step and the life of the job in which it was
 * copied. Shares with the same label are of one state; a step alone does not say so, because a job that goes back makes
 * steps again.
 *
 *     rank 0   slot 0: step 10, parts 0 and 2   slot 1: step 20, parts 0 and 2     host 0
 *     rank 1   slot 0: step 10, parts 1 and 0   slot 1: nothing                    host 1: it was receiving
 *     rank 2   slot 0: step 10, parts 2 and 1   slot 1: step 20, parts 2 and 1     host 2
 *
 * Step 20 is complete here without rank 1; with another host lost it would not be, and step 10 is. So nobody writes
 * over a slot before a newer one is whole on all ranks. */
#ifndef TRAIN_PEER_LABELS_H
#define TRAIN_PEER_LABELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PEER_SLOTS = 2, PEER_SHARES = 2 };
#define PEER_NOTHING INT64_C(-1)

struct peer_label {
    uint64_t life; /* a number that no other life has; later lives have greater ones */
    int64_t step;  /* PEER_NOTHING: the slot is being written, or never was */
};

/* What memory has: the parts in each slot that is labelled, and of how many. It is of the rank that has left it, in a
 * world of that many; the first share of a slot is that rank's own. */
struct peer_offer {
    uint32_t part_count;
    uint64_t given_up; /* what was copied in lives up to this one is not used again */
    struct peer_label labels[PEER_SLOTS];
    uint32_t parts[PEER_SLOTS][PEER_SHARES];
};

bool peer_label_equals(const struct peer_label *a, const struct peer_label *b);

/* The slot with that label, or PEER_SLOTS. */
uint32_t peer_slot_of(const struct peer_offer *offer, const struct peer_label *label);

/* Where a part is. offer: `count` of them if it is nowhere. */
struct peer_owner {
    uint32_t offer, share;
};
/* Who has each part of that generation, of so many: the first one that has. */
void peer_owners(const struct peer_offer *offers, uint32_t count, const struct peer_label *label, uint32_t part_count,
                 struct peer_owner *out);

/* The generation to keep, and to go on from where a host is lost, not newer than `most`: the newest that all ranks have
 * that copied it, so that a host may still be lost. Where none is such, the newest of which every part is there. Its
 * step is PEER_NOTHING if there is none. *out_part_count: of how many parts. */
struct peer_label peer_choose(const struct peer_offer *offers, uint32_t count, int64_t most, uint32_t *out_part_count);

/* Where ranks are. */
struct peer_hosts {
    uint32_t rank_count;
    uint32_t (*of)(const void *context, uint32_t rank);
    const void *context;
};

/* Who keeps the share of `rank`, and whose share it keeps: ranks on other hosts, where each keeps one. False: a host
 * has more than half of all ranks. */
bool peer_server_of(const struct peer_hosts *hosts, uint32_t rank, uint32_t *out_server, uint32_t *out_served);

#endif
