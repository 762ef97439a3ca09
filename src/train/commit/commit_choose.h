/* Which committed step to go on from, and from whose memory. Pure.
 *
 * Ranks tell each other what memory they have found (struct commit_offer). A state is named by a label: its step, and
 * the life that has made it. Memory of one label and one number of parts is of one state. */
#ifndef TRAIN_COMMIT_CHOOSE_H
#define TRAIN_COMMIT_CHOOSE_H

#include "train/commit/commit_table.h"

struct commit_label {
    int64_t step; /* COMMIT_NOTHING: there is none */
    uint64_t life;
};

struct commit_label commit_offer_label(const struct commit_offer *offer, uint32_t copy);
/* The copy with that label, or COMMIT_COPIES. */
uint32_t commit_offer_copy(const struct commit_offer *offer, const struct commit_label *label);
/* Of all labels that are offered. */
struct commit_label commit_newest(const struct commit_offer *offers, size_t count);
bool commit_label_is_newer(const struct commit_label *a, const struct commit_label *b);

/* What has been given up, on any host, is offered no more. */
void commit_offers_forget(struct commit_offer *offers, size_t count);
/* A number for the life that begins. chance: any number, equal on all ranks. */
uint64_t commit_next_life(const struct commit_offer *offers, size_t count, uint32_t chance);

/* ---- every row has found its own memory, where it is ---- */

/* Each has a part of the state that nobody else has: the newest label that all have. */
struct commit_label commit_choose_common(const struct commit_offer *offers, size_t count);

/* All have the same state: the newest label. But where all have the one before it, or it itself, so that nobody needs a
 * copy of another's, that. */
struct commit_label commit_choose_replica(const struct commit_offer *offers, size_t count);

/* ---- parts lie anywhere ---- */

/* Who has that part of that label: the first offer of so many parts, or `count`. */
size_t commit_owner_of(const struct commit_offer *offers, size_t count, const struct commit_label *label,
                       uint32_t part_count, uint32_t part);

/* The newest label of which every part is there, all of one number of parts, which is *out_part_count. */
struct commit_label commit_choose_parts(const struct commit_offer *offers, size_t count, uint32_t *out_part_count);

/* ---- both ---- */

/* What to go on from: rows that have what they need where they are, or parts that have to move. */
struct commit_way {
    struct commit_label label;
    bool moves;
    uint32_t part_count; /* if it moves: of the world that it lies in */
};

/* offers: all that was found; rows: of each row its own, where it is. replicates: all rows have the same state. Nothing
 * moves that is not newer than what is in its place. */
struct commit_way commit_choose(const struct commit_offer *offers, size_t count, const struct commit_offer *rows,
                                size_t row_count, bool replicates);

/* ---- failures ---- */

/* How often in a row the program has now failed with `step` as the newest one. has_failed: the life that has ended did
 * so by the program's own making. An end from outside says nothing of the step, and changes nothing. If that life had
 * come from another step, failures are counted anew. */
uint32_t commit_count_failures(const struct commit_offer *offers, size_t count, int64_t step, bool has_failed);

#endif
