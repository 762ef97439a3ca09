/* A state of training that outlives its process: for programs whose ranks have all of it, with muster/ddp.h or alone.
 * (With muster/fsdp.h: muster_fsdp_keep().)
 *
 * Parameters and what the optimizer remembers lie in memory that the node's agent (muster run) holds open: when workers
 * are killed and started again, they go on at the last committed step, and read no file. A rank has two copies of that
 * state. A step is written into the one that is not committed, and committed by one store. So a death at any instant
 * leaves a whole state. All ranks go on from a step that they have all committed; one that has none, because it is new
 * or its host is, gets a copy of another's.
 *
 *     float *values = first_values;                   // of `count` parameters
 *     struct muster_state_block block = {values, count};
 *     muster_state_create(group, optimizer, &block, 1, &extra, NULL, &state, &step);
 *     values = muster_state_block_data(state, 0);
 *     if (step < 0) {
 *         step = 0;                                   // or load a snapshot into `values` and the optimizer
 *         muster_state_commit(state, step, &extra);
 *     }
 *     while (step < steps) {
 *         // ... forward, backward, averages of the gradients ...
 *         muster_state_step(state, gradients, NULL);
 *         muster_state_commit(state, ++step, &extra);
 *         values = muster_state_block_data(state, 0); // the parameters are elsewhere after every commit
 *     }
 *
 * What is not a parameter (statistics of batch normalisation, sampler, schedule, random states, the step) is described
 * as for a snapshot, and copied at each commit.
 *
 * Programs see the committed copy read-only: one that writes to parameters after the first commit gets SIGSEGV, and its
 * crash record says so (muster/record.h). So does a process that writes wildly before it dies. What is promised: no
 * write through an address that a program was given harms the committed state. A write to any address at all, or other
 * processes of the user, could.
 *
 * Without an agent of ours the memory ends with the last process of the host that has it. It is nobody else's to read,
 * counts against the limits of the job's cgroup, and is gone when the job ends.
 *
 * Threads: one at a time for one state. */
#ifndef MUSTER_STATE_H
#define MUSTER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/checkpoint.h>
#include <muster/group.h>
#include <muster/optimizer.h>
#include <muster/snapshot.h>
#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_STATE_NAME_MAX ((size_t)64)     /* bytes, terminator included */
#define MUSTER_STATE_BLOCKS_MAX ((size_t)4096) /* blocks of one state */

struct muster_state;

/* Memory in which parameters lie. Each range of the optimizer lies in one block; what else is in a block stays as it
 * is. `data` is the program's, and free to go after the create. */
struct muster_state_block {
    const float *data;
    size_t count; /* floats */
};

/* Start from MUSTER_STATE_OPTIONS_INIT. name: of the state among those that the job's agents hold. attempts: what is
 * committed may itself be what makes the program fail (NaNs, a batch). When it has failed so often in a row at one
 * step, the state is dropped, *out_step is -1, and muster_state_note() says why. 0: never. Rank 0's counts. A failure
 * is an exit code other than 0, SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT; a death from outside is none (SIGKILL, a
 * lack of memory, changes of members). The agent tells (MUSTER_FAILED_BY); without one of ours nothing is counted. */
struct muster_state_options {
    size_t size;
    const char *name;
    uint32_t attempts;
};
#define MUSTER_STATE_OPTIONS_INIT                                                                                      \
    { sizeof(struct muster_state_options), "training", 3 }

/* Moves the blocks and what the optimizer remembers into kept memory. *out_step: the committed step of an earlier life,
 * whose state is there now, in blocks, optimizer and `extra`; or -1: nothing was found, and the state is what was
 * given. extra: the program's own tensors and values, equal on all ranks; NULL: none. It is read or written during
 * calls alone; its tensors may be on a GPU (docs/snapshots.md), the same ones on all ranks. The optimizer is borrowed
 * until muster_state_free(), the group during the call. Collective: all ranks have the same state. Blocks. Reserves
 * twice the bytes of blocks and of what is remembered. Where a host has no room for it (MUSTER_ENOMEM), or its agent
 * does not answer (MUSTER_ECONNECT, MUSTER_ETIMEOUT), all ranks get that code, and may go on without. MUSTER_EINVAL
 * (also: a range that is in no block); MUSTER_EUNSUPPORTED: a block is on a GPU; MUSTER_ELIMIT; MUSTER_EMISMATCH: ranks
 * describe different states; MUSTER_ECORRUPT: `extra` was damaged in memory. Other failures abort the group. */
int muster_state_create_sized(struct muster_group *group, struct muster_optimizer *optimizer,
                              const struct muster_state_block *blocks, size_t block_bytes, size_t block_count,
                              const struct muster_snapshot_state *extra, const struct muster_state_options *options,
                              struct muster_state **out, int64_t *out_step);
static inline int muster_state_create(struct muster_group *group, struct muster_optimizer *optimizer,
                                      const struct muster_state_block *blocks, size_t block_count,
                                      const struct muster_snapshot_state *extra,
                                      const struct muster_state_options *options, struct muster_state **out,
                                      int64_t *out_step) {
    return muster_state_create_sized(group, optimizer, blocks, sizeof *blocks, block_count, extra, options, out,
                                     out_step);
}

/* The memory stays with the agent. The optimizer may only be freed, before or after. NULL is accepted. */
void muster_state_free(struct muster_state *state);

/* Where a block is now: valid until the next commit. Aligned to 64 bytes. NULL: there is no such block. */
float *muster_state_block_data(const struct muster_state *state, size_t block);

/* A step of the optimizer, as muster_optimizer_step_into(), whose result counts with the commit. options: NULL for the
 * defaults; `out` is not used. Before the first commit it is made in place. Between two commits all ranks must have met
 * in a collective call: averaging gradients is one. MUSTER_EINVAL: the step before has not been committed. */
int muster_state_step(struct muster_state *state, const float *const *gradients,
                      const struct muster_optimizer_step_options *options);

/* Commits the state of `step`, which is greater than any before. Without a muster_state_step() since the last commit
 * the state is copied. extra: described as in the create; its bytes are copied, those on a GPU when it has done what
 * the default stream was given before. Does not wait for other ranks. MUSTER_EINVAL; MUSTER_ESYSTEM, MUSTER_ENOMEM: a
 * GPU could not copy; the step before is still the committed one, and the call may be made again. */
int muster_state_commit(struct muster_state *state, int64_t step, const struct muster_snapshot_state *extra);

/* Why the create has not used a state that was in memory, as a sentence without a full stop; "" as a rule, and for
 * NULL. Equal on all ranks. Lives as long as `state`. */
const char *muster_state_note(const struct muster_state *state);

/* Was this process started by an agent that holds memory? Else a state ends with its process. Blocks for moments. */
bool muster_state_outlives(void);

/* Bytes that this rank has reserved: of both copies. */
size_t muster_state_bytes(const struct muster_state *state);

/* ---- Checkpoints in the background ----
 *
 * The state that is committed is saved by a thread while training goes on, every rank a share of it:
 *
 *     muster_state_commit(state, ++step, &extra);
 *     if (step % 100 == 0) {
 *         // ... describe all that a checkpoint is to hold, in `saved`: parameters where they are now, what the
 *         // optimizer remembers (muster_optimizer_tensors()), what the program adds ...
 *         muster_state_start_checkpoint(state, group, "checkpoints", &saved, NULL, NULL);
 *     }
 *     // ...
 *     muster_state_wait_checkpoint(state);        // at the end, and before an exit for a pre-emption
 *
 * The threads of all ranks have a low priority, and a group of their own. muster_checkpoint_load_newest() loads what
 * they write, on any number of ranks, with the same description. A checkpoint is complete when all ranks have written,
 * or it is none: who is killed in the middle of a save loses that save alone. */

/* Starts to save what was committed last, after muster_state_commit() and before the next muster_state_step().
 * Collective: every rank calls, with the same group each time, whose ranks have the state. saved: tensors that lie in
 * blocks of the state, or that its optimizer remembers, are read by the thread, each rank its share; all others, and
 * values, are copied in the call (what is on a GPU, behind the group's stream). While a save is under way on any rank,
 * all skip this one, which is counted. *out_started: not skipped; may be NULL. Does not wait for a disk, but for the
 * other ranks, by two short all_reduces; the first call makes a group and starts a thread. MUSTER_EINVAL (also: an
 * address from before the commit); MUSTER_ENOMEM: no memory on a rank: all get it, and training goes on. A save that
 * fails later is told by muster_state_wait_checkpoint(), in the statistics, and by a log line of rank 0; it does not
 * end the training, and the next one is a new try. Reserves (MUSTER_BACKGROUND_OVERLAP_COPY) a rank's share of the
 * tensors in the state. */
int muster_state_start_checkpoint(struct muster_state *state, struct muster_group *group, const char *folder,
                                  const struct muster_snapshot_state *saved,
                                  const struct muster_background_options *options, bool *out_started);

/* Waits until no save is under way on this rank. The result is that of the last save that was started, the same on all
 * ranks unless one of them is gone; MUSTER_OK without any. MUSTER_ECANCELED: it was given up. Other codes: those of
 * muster_checkpoint_save(). Not collective; blocks. muster_state_free() waits, too. */
int muster_state_wait_checkpoint(struct muster_state *state);

/* Of all saves in the background so far. Does not block; once a save was started, any thread may ask until the state is
 * freed. MUSTER_EINVAL. */
int muster_state_background_statistics_sized(const struct muster_state *state, struct muster_background_statistics *out,
                                             size_t out_bytes);
static inline int muster_state_background_statistics(const struct muster_state *state,
                                                     struct muster_background_statistics *out) {
    return muster_state_background_statistics_sized(state, out, sizeof *out);
}

/* Bytes that copies are saved from: 0 before the first save, and without MUSTER_BACKGROUND_OVERLAP_COPY. */
size_t muster_state_background_bytes(const struct muster_state *state);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
