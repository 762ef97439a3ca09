/* Which step each of the two copies of a state holds, as those who write them say. Pure.
 *
 * The table lies in front of the copies, in memory that the ranks of a host share and that outlives them. Each of these
 * ranks is a writer: it writes its parts of the copy that is not committed, and then says in one store which step they
 * are of. A copy is whole if all writers say the same step of it.
 *
 *     writer 0   copy 0: step 7   copy 1: step 8        copy 0 is whole. Copy 1 is not: writer 1 was killed
 *     writer 1   copy 0: step 7   copy 1: nothing       while it wrote. Both go back to step 7
 *
 * A writer overwrites a copy only when all writers, of all hosts, have committed the other one: it has met them in
 * between. So there always is a step that all of them have. */
#ifndef TRAIN_COMMIT_TABLE_H
#define TRAIN_COMMIT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    COMMIT_COPIES = 2,
    COMMIT_WRITERS_LEAST = 256, /* there always is room for so many: a host may get more ranks */
};
#define COMMIT_NOTHING INT64_C(-1) /* no step: being written, or never was */

/* What the memory is for. Equal on all ranks of a host, and when it is found again. */
struct commit_kind {
    uint64_t copy_bytes, extra_bytes; /* of one copy: the state, and what belongs to it besides */
    uint64_t fingerprint;             /* of what lies where */
};

/* Of the processes that use it now: the step that they have gone on from, and how often in a row the program has failed
 * with that as the newest step. */
struct commit_life {
    int64_t from; /* COMMIT_NOTHING: they had nothing */
    uint32_t failures;
    uint64_t heard; /* hash of what the launcher has said of the failure before them */
};

struct commit_table;

/* Bytes of a table for so many writers; a multiple of 64. */
size_t commit_table_bytes(uint32_t writer_count);

/* Into zeroed memory, aligned to 64 bytes: no copy holds anything. */
void commit_table_init(struct commit_table *table, const struct commit_kind *kind, uint32_t writer_count);

/* Is this a table for such a state, with room for the writers? Nothing in it is trusted. bytes: of all the memory from
 * it on. */
bool commit_table_fits(const struct commit_table *table, size_t bytes, const struct commit_kind *kind,
                       uint32_t writer_count);

/* For how many writers there is room: the copies lie behind so many. */
uint32_t commit_table_room(const struct commit_table *table);

/* The step of each copy, or COMMIT_NOTHING. */
void commit_table_steps(const struct commit_table *table, int64_t out[COMMIT_COPIES]);

struct commit_life commit_table_life(const struct commit_table *table);

/* From now on there are so many writers, copy `copy` holds the step that this life goes on from, the other nothing. One
 * store makes it true: whoever dies before leaves the table as it was. By one rank, while no other uses the table. */
void commit_table_renew(struct commit_table *table, uint32_t writer_count, uint32_t copy,
                        const struct commit_life *life);

/* A writer begins to write its parts of a copy (COMMIT_NOTHING), or has written those of a step. What was stored before
 * is seen by whoever sees the label; what is stored after COMMIT_NOTHING is not seen before it. */
void commit_table_label(struct commit_table *table, uint32_t writer, uint32_t copy, int64_t step);

/* ---- which step to go on from ---- */

/* What a rank has found: the steps of the two copies that it would go on from. */
struct commit_offer {
    int64_t steps[COMMIT_COPIES]; /* COMMIT_NOTHING, twice: it has found none */
    struct commit_life life;      /* that has ended */
};

bool commit_offer_has(const struct commit_offer *offer, int64_t step);

/* Each has a part of the state that nobody else has: the newest step that all have, or COMMIT_NOTHING. */
int64_t commit_choose_common(const struct commit_offer *offers, size_t count);

/* All have the same state: the newest step. But where all have the one before it, or it itself, so that nobody needs a
 * copy of another's, that. COMMIT_NOTHING: none has any. */
int64_t commit_choose_replica(const struct commit_offer *offers, size_t count);

/* How often in a row the program has now failed with `step` as the newest one. has_failed: the life that has ended did
 * so by the program's own making. An end from outside says nothing of the step, and changes nothing. If that life had
 * come from another step, failures are counted anew. */
uint32_t commit_count_failures(const struct commit_offer *offers, size_t count, int64_t step, bool has_failed);

#endif
