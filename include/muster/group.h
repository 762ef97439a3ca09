/* Process groups: the ranks of a job that compute together, and what happens when one of them fails.
 *
 * All ranks of a group make it at the same time (a collective call), use it in the calls of muster/collective.h, and
 * free it. Ranks of one host talk through shared memory, hosts talk over TCP.
 *
 * Threads: one thread at a time may call collectives on a group, in the same order on every rank. A second one gets
 * MUSTER_EINVAL. Give each thread a group of its own: no lock could put the calls of several threads into the same
 * order on all ranks. Any thread may call muster_group_abort(), muster_group_status() and muster_work_done() at any
 * time. A process that has a group runs one more thread, which sleeps until a peer dies or a socket has news for a
 * sleeping caller. The first call of a group that returns a work handle starts another thread for that group.
 *
 * Failure: a group fails when a peer dies, does not answer until the deadline, makes another call under the same
 * sequence number, or aborts. Calls under way, or the next one, then fail with a code that says which of these it was.
 * muster_detail() names rank, host, operation and since when. Every further call gives MUSTER_EGROUP with the same
 * sentence. Only muster_group_shrink(), which makes a group of the survivors, and muster_group_free() still work. A
 * process that ends without having freed its groups counts as dead. A child of fork() has no groups: its calls on its
 * parent's groups give MUSTER_EINVAL, and freeing them does nothing.
 *
 * Environment: docs/process-groups.md lists the variables that a group looks at when it is made.
 *
 * Example:
 *
 *     struct muster_group *group = NULL;
 *     float gradient[4] = {0};
 *     if (muster_group_create_env(NULL, &group) != MUSTER_OK ||
 *         muster_all_reduce(group, gradient, gradient, 4, MUSTER_FLOAT32, MUSTER_OP_AVERAGE, NULL) != MUSTER_OK) {
 *         fprintf(stderr, "%s\n", muster_detail());
 *     }
 *     muster_group_free(group); */
#ifndef MUSTER_GROUP_H
#define MUSTER_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include <muster/status.h>
#include <muster/store.h>
#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_GROUP_SIZE_MAX 65536u             /* ranks of a group */
#define MUSTER_GROUP_NAME_MAX 64                 /* bytes of a name, terminator included */
#define MUSTER_GROUPS_MAX 4096u                  /* groups made from one root group */
#define MUSTER_GROUP_TIMEOUT_MS INT64_C(1800000) /* PyTorch's default for gloo */

struct muster_group;

/* Start from MUSTER_GROUP_OPTIONS_INIT. Strings are copied. */
struct muster_group_options {
    size_t size;        /* of this struct, set by the initializer: lets it grow later */
    int64_t timeout_ms; /* deadline of each call on the group, and of making it; > 0 */
    const char *name;   /* for messages and traces; NULL: "world" */
    /* NULL, or asked by a thread that sleeps in a call: after a signal, and else four times a second. If it answers
     * with something else than 0, that group is aborted as by muster_group_abort(), with "interrupted" as the reason.
     * So a program can answer Ctrl-C. The root group's counts, for all groups made from it. It is called in any thread
     * that waits for a call, and may block for a moment. */
    int (*interrupted)(void *context);
    void *interrupted_context;
    /* What carries out the calls: "muster" (shared memory and TCP, always there), "mpi" (an MPI library, opened when
     * asked for), "nccl" (NCCL for buffers in memory of GPUs, "muster" for all others), or "auto", Muster's choice.
     * NULL: the environment's MUSTER_ENGINE, else "auto"; of a group made from another one: its parent's engine. The
     * same on all ranks. docs/engines.md says what each engine needs, and which calls it lacks. */
    const char *engine;
};
#define MUSTER_GROUP_OPTIONS_INIT                                                                                      \
    { sizeof(struct muster_group_options), MUSTER_GROUP_TIMEOUT_MS, NULL, NULL, NULL, NULL }

/* Makes the group of all ranks. The environment says who they are and where they meet:
 * - MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, set by muster run, by torchrun or by hand
 *   (muster_store_open_env()). If only some of them are set, the error names them.
 * - Under mpirun or srun without such a launcher: ranks from Open MPI, PMI or Slurm. The place to meet is MASTER_ADDR
 *   (and MASTER_PORT, 29500 by default), else it comes through PMI-1 or PMIx, which is opened when needed.
 * - None of these (the program alone, in a debugger): this process is a world of one rank, and needs no network.
 * options: NULL for the defaults. If the launcher serves the store, all ranks may call it again, and each call makes a
 * group of its own. Through PMI-1 or PMIx it works once a process, and then gives MUSTER_ECLOSED. Blocks until all
 * ranks are there. Costs a few store operations a rank, however many ranks there are. Errors of all four:
 * MUSTER_EINVAL, MUSTER_ENOMEM, MUSTER_ETIMEOUT (names ranks that did not come), MUSTER_EPEER (a rank died meanwhile),
 * and those of the store. */
int muster_group_create_env(const struct muster_group_options *options, struct muster_group **out);

/* The same over a store that is open already; it is borrowed until the group, and every group made from it, is freed.
 * Keys are put under "muster/`name`/": groups that share a store need different names or prefixes. */
int muster_group_create_store(struct muster_store *store, uint32_t rank, uint32_t world_size,
                              const struct muster_group_options *options, struct muster_group **out);

/* The same, meeting in the file `path` (muster_store_open_file(); it must be new or left by nobody). */
int muster_group_create_file(const char *path, uint32_t rank, uint32_t world_size,
                             const struct muster_group_options *options, struct muster_group **out);

/* The same, meeting at a TCP address, where rank 0 hosts the store. */
int muster_group_create_tcp(const char *host, uint16_t port, uint32_t rank, uint32_t world_size,
                            const struct muster_group_options *options, struct muster_group **out);

/* A group of some ranks of `parent`. Collective over the *parent*: every rank of it calls with the same list (strictly
 * rising ranks of the parent). Ranks that are not listed get *out = NULL and MUSTER_OK. The new group has the parent's
 * timeout unless options say otherwise; it may be used beside the parent, from another thread too. If a rank cannot
 * make its part, every rank of the parent gets the error, with that rank named, and can try again. */
int muster_group_subset(struct muster_group *parent, const uint32_t *ranks, uint32_t rank_count,
                        const struct muster_group_options *options, struct muster_group **out);

/* Splits `parent` into groups of equal color; in each, ranks are ordered by key, then by the parent's rank. Collective
 * over the parent. color < 0: this rank joins none and gets *out = NULL. */
int muster_group_split(struct muster_group *parent, int32_t color, int32_t key,
                       const struct muster_group_options *options, struct muster_group **out);

/* After a failure: a group of the ranks of `failed` that are still alive and call this too, ordered as before, without
 * restarting a process. Agreed through the store, which must have survived (under a launcher it lives in the agent;
 * where rank 0 hosts it, rank 0 must be a survivor). A launcher must let survivors go on: muster run does so with
 * --survivors=continue; by default it ends or restarts all workers when one dies, as torchrun always does. A rank that
 * is alive but does not call within timeout_ms is left out, and gets MUSTER_EGROUP should it call later. `failed` need
 * not have failed here yet: the call makes it so. It stays yours to free. Errors: MUSTER_ETIMEOUT, MUSTER_EGROUP (left
 * out), and those of the store. */
int muster_group_shrink(struct muster_group *failed, int64_t timeout_ms, struct muster_group **out);

/* Ends every call on the group, here and on all other ranks, with MUSTER_EABORTED and `reason` (copied; cut at 200
 * bytes). Does not block. Any thread; not from signal handlers. */
void muster_group_abort(struct muster_group *group, const char *reason);

/* The deadline of calls that begin from now on, as in muster_group_options: by the thread that makes the calls, and the
 * same on all ranks, or they disagree about who was late. timeout_ms: > 0. MUSTER_EINVAL. */
int muster_group_set_timeout(struct muster_group *group, int64_t timeout_ms);

/* Of a group with the engine "nccl": calls on memory of the GPU, from now on, begin when the GPU has done what `stream`
 * (a cudaStream_t or CUstream) has been given before them. NULL, and without this call: the default stream. The stream
 * is borrowed until another one is set, or the group is freed. A call that has returned has been carried out: whoever
 * gives the stream more work afterwards finds its results. Saving and loading tensors on a GPU by the group's ranks
 * (muster/snapshot.h, muster/checkpoint.h) begin behind the stream, too. By the thread that makes the calls.
 * MUSTER_EINVAL, MUSTER_EUNSUPPORTED (another engine). */
int muster_group_set_stream(struct muster_group *group, void *stream);

/* Frees the group: leaves it in good order. Handles of collectives must have been waited for, or given away; other
 * ranks may still be finishing the last call. Sends and receives that are not done are let go of as muster_work_free()
 * does; their handles can then only be freed, or waited for, which gives MUSTER_EINVAL. Memory from muster_alloc() must
 * have been freed before the root group. Free what was made with it (ddp, fsdp, syncbn) first: what is left gives
 * MUSTER_EINVAL in the calls of a step from then on, and can only be freed. NULL is accepted. As after free(), the
 * pointer may not be used again, nor freed a second time: nothing can tell it from one that is good.
 * Does not wait for other ranks, but for this. Of sends that nobody waited for, the beginnings get a second to be on
 * their way. The root group, unless it has failed, waits up to 5 minutes for a rank of another host that is alive and
 * has not taken what was sent to it. It waits a second for a rank to ask for a send that nobody waited for; then that
 * rank's receive gives MUSTER_EPEER: this one has left. */
void muster_group_free(struct muster_group *group);

/* Questions about a group. Any thread; they do not block. A group of NULL or a rank that there is none of gives
 * MUSTER_NO_RANK (of sizes and counts 0, of texts ""). */
#define MUSTER_NO_RANK UINT32_MAX
uint32_t muster_group_rank(const struct muster_group *group);
uint32_t muster_group_size(const struct muster_group *group);
const char *muster_group_name(const struct muster_group *group);
/* The rank in the root group (the launcher's RANK) of a rank of this group. */
uint32_t muster_group_root_rank(const struct muster_group *group, uint32_t rank);
/* How many hosts the ranks run on, the index of a rank's host (0 is rank 0's), and this rank's place on its host. */
uint32_t muster_group_host_count(const struct muster_group *group);
uint32_t muster_group_host_of(const struct muster_group *group, uint32_t rank);
uint32_t muster_group_local_rank(const struct muster_group *group);
uint32_t muster_group_local_size(const struct muster_group *group);

/* The engine that carries out the group's calls: "muster", "mpi", "nccl"; "solo" of a group of one rank. And why it is
 * this one, as part of a sentence: "one host, whose memory all ranks share". Valid as long as the group. */
const char *muster_group_engine(const struct muster_group *group);
const char *muster_group_engine_reason(const struct muster_group *group);

/* MUSTER_OK while the group works, else the code it failed with, whose sentence muster_detail() then has. Any thread.
 */
int muster_group_status(struct muster_group *group);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
