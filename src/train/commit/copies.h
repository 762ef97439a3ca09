/* Two copies of a state of training, in memory that outlives the processes that write it.
 *
 * One copy is committed. The next step is written into the other, from the committed one, and is committed by one store
 * (commit_table.h). The memory is one mapping for all ranks that write it together, the row: one host's ranks of a
 * sharded state, or a rank by itself. The node's agent holds its descriptor (train/memory/holder.h). When the processes
 * are started again they find it, and agree on the newest step that all of them have committed.
 *
 * What protects a committed copy from a process that writes wildly before it dies: the memory is mapped twice, and the
 * addresses that a program gets of a committed copy are those of a read-only mapping. The writable one is used while a
 * step is written, and its addresses are nobody else's. (Protecting and unprotecting one mapping at each commit takes
 * 45 us a MiB.) What belongs to the state besides (copies_extra()) has a checksum, too (train/state/state_bytes.h). A
 * write to any address at all, or another process of the user, can still destroy it.
 *
 * One thread at a time. */
#ifndef TRAIN_COMMIT_COPIES_H
#define TRAIN_COMMIT_COPIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

#include "train/commit/commit_table.h"
#include "train/memory/holder.h"

struct copies_options {
    const char *name;              /* under which the memory is held; equal in later lives of the job */
    struct muster_group *group;    /* all ranks that have the state */
    struct muster_group *row;      /* those that write this memory; NULL: this rank alone */
    struct muster_group *replicas; /* the first ranks of rows that all have the same state; NULL: each row has a part
                                    * that nobody else has. Used by the first rank of each row */
    struct commit_kind kind;       /* equal on all ranks of a row */
    struct commit_place place;     /* of the row's parts; likewise */
    /* Bytes of a copy of the parts at another place; 0: that cannot be. NULL: all have everything, and nothing moves.
     */
    size_t (*copy_bytes)(const void *context, const struct commit_place *place);
    const void *context;
    uint32_t attempts; /* so often in a row the program may fail at one step, then it is not used again; 0: any number.
                        * Rank 0's counts */
};

struct copies;

/* Finds the memory of an earlier life, or makes it anew. Collective over the group, which is borrowed for the call. If
 * a committed step is found, it is that of all ranks from now on; who lacks it gets a copy of another row's, if there
 * are replicas. Where all its parts are in memory, but not where this world wants them, they can be moved
 * (copies_sources()), and until they are, the old memory stays. But a step at which the program has failed `attempts`
 * times in a row (MUSTER_FAILED_BY on any node) may be why: it is dropped. Without a step memory is made, zeroed: twice
 * the state is reserved. Blocks. Where there is no room for it, or the agent does not answer, all ranks get the code
 * and the sentence of the rank that found it, and the group goes on. Other failures of one rank abort the group.
 * MUSTER_ENOMEM, MUSTER_ESYSTEM, MUSTER_ECONNECT, MUSTER_ETIMEOUT. */
int copies_open(const struct copies_options *options, struct copies **out);

/* What is committed in the memory of another world: its parts are cut otherwise, or lie elsewhere. */
struct copies_source {
    struct commit_place place;
    uint32_t rank;            /* that has it */
    const char *copy, *extra; /* on that rank; NULL on others */
};

/* Where the parts of *out_step are, if they have to move: copies_step() is COMMIT_NOTHING, and the memory is new. The
 * caller moves them, commits that step, and calls copies_settle(). 0: nothing moves. */
size_t copies_sources(const struct copies *copies, const struct copies_source **out, int64_t *out_step);

/* All ranks have committed what has moved: the memory of the other world goes. Collective over the group. */
int copies_settle(struct copies *copies, struct muster_group *group);

/* Unmaps it; it stays held. NULL is accepted. */
void copies_close(struct copies *copies);

/* The step that is committed; COMMIT_NOTHING: none yet. */
int64_t copies_step(const struct copies *copies);

/* Was a step found that is not used, because the program fails with it? */
bool copies_is_given_up(const struct copies *copies);
/* A sentence: why the step that was found is not used; or "". */
const char *copies_note(const struct copies *copies);

/* The copy that counts: the committed one, read-only, or before the first commit the one that will be. Aligned to a
 * page. */
void *copies_current(const struct copies *copies);

/* Does the address lie in the copies, but not in the current one as copies_current() has it? NULL does not. */
bool copies_is_stale(const struct copies *copies, const void *address);

/* From an address in the current copy to the same place in the other, where it may be written: to be added. */
ptrdiff_t copies_delta(const struct copies *copies);

/* The other copy may be written now, until the commit. Only after all ranks have committed the current one: after a
 * collective call of all of them that follows it. Not before the first commit: then the current copy itself is written.
 */
void copies_begin(struct copies *copies);
bool copies_is_begun(const struct copies *copies);

/* Room for what belongs to the state besides, extra_bytes, aligned to 64. That of the copy that is being written, for
 * the first rank of the row to write; or of the current one, to be read. */
void *copies_extra(const struct copies *copies);

/* This rank has written all that it writes of the copy: it holds `step` now, and is the current one. A greater step
 * than before. Returns what is to be added to an address in the copy that was the current one. */
ptrdiff_t copies_commit(struct copies *copies, int64_t step);

/* Bytes of the mapping. */
size_t copies_bytes(const struct copies *copies);

#endif
