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
 * between. So there always is a step that all of them have.
 *
 * commit_choose.h says which step to go on from. */
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

/* Which parts of the state lie there: part first, first + stride, ... of part_count (train/layout/). All of them:
 * stride 1, and then their number does not matter. */
struct commit_place {
    uint32_t first, stride, part_count;
};

/* Of the processes that use it now: the step that they have gone on from, and how often in a row the program has failed
 * with that as the newest step. A job that goes back makes steps again, and a host may come back with memory of before.
 * So a state is named by its step and by the life that has made it. */
struct commit_life {
    int64_t from;       /* COMMIT_NOTHING: they had nothing */
    uint64_t from_life; /* that has made it */
    uint64_t number;    /* a number that no other life has; later lives have greater ones */
    uint64_t given_up;  /* what lives up to this one have made is not used again */
    uint64_t heard;     /* hash of what the launcher has said of the failure before them */
    uint32_t failures;
};

/* What memory is found to hold. */
struct commit_offer {
    int64_t steps[COMMIT_COPIES]; /* COMMIT_NOTHING, twice: nothing is whole */
    struct commit_life life;      /* that has ended */
    struct commit_place place;
};

struct commit_table;

/* Bytes of a table for so many writers; a multiple of 64. */
size_t commit_table_bytes(uint32_t writer_count);

/* Into zeroed memory, aligned to 64 bytes: no copy holds anything. */
void commit_table_init(struct commit_table *table, const struct commit_kind *kind, const struct commit_place *place,
                       uint32_t writer_count);

/* Is this a table of such a state, wherever its parts are, with room for its own writers? Nothing in it is trusted:
 * what a program has written into it by mistake makes it none. bytes: of all the memory from it on. */
bool commit_table_is_of(const struct commit_table *table, size_t bytes, uint64_t fingerprint);
struct commit_kind commit_table_kind(const struct commit_table *table);
/* The same for such a state at this place, and so many writers. */
bool commit_table_fits(const struct commit_table *table, size_t bytes, const struct commit_kind *kind,
                       const struct commit_place *place, uint32_t writer_count);
/* Have both the same parts at the same places? */
bool commit_place_equals(const struct commit_place *a, const struct commit_place *b);

/* For how many writers there is room: the copies lie behind so many. */
uint32_t commit_table_room(const struct commit_table *table);

/* The step of each copy, or COMMIT_NOTHING; also where a label is not as commit_table_label() has written it. */
void commit_table_steps(const struct commit_table *table, int64_t out[COMMIT_COPIES]);

/* All of it. */
struct commit_offer commit_table_offer(const struct commit_table *table);

/* From now on there are so many writers, copy `copy` holds the step that this life goes on from, the other nothing.
 * COMMIT_COPIES: none holds it yet. One store makes it true: whoever dies before leaves the table as it was. By one
 * rank, while no other uses the table. */
void commit_table_renew(struct commit_table *table, uint32_t writer_count, uint32_t copy,
                        const struct commit_life *life);

/* A writer begins to write its parts of a copy (COMMIT_NOTHING), or has written those of a step. What was stored before
 * is seen by whoever sees the label; what is stored after COMMIT_NOTHING is not seen before it. */
void commit_table_label(struct commit_table *table, uint32_t writer, uint32_t copy, int64_t step);

#endif
