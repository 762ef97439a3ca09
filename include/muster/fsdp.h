/* Fully sharded data parallel: parameters, gradients and the optimizer's state are spread over the ranks. Each rank
 * keeps a part of everything, and has the whole of a few layers at a time. It trains as muster/ddp.h does: every rank
 * computes on its own share of each batch, and gradients are averaged.
 *
 * The model is a list of units: parts that are computed one after the other, such as the blocks of a transformer. The
 * parameters of a unit lie in one range of memory. A program acquires a unit before it computes with it, and releases
 * it afterwards:
 *
 *     muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP);
 *     for (unit = 0; unit < units; unit++) {
 *         muster_fsdp_acquire(fsdp, unit, MUSTER_FSDP_FORWARD, &view);    // view.parameters are there
 *         forward(unit, view.parameters);
 *         muster_fsdp_release(fsdp, unit, MUSTER_FSDP_FORWARD);
 *     }
 *     for (unit = units; unit-- > 0;) {
 *         muster_fsdp_acquire(fsdp, unit, MUSTER_FSDP_BACKWARD, &view);   // view.gradients, too
 *         backward(unit, view.parameters, view.gradients);
 *         muster_fsdp_release(fsdp, unit, MUSTER_FSDP_BACKWARD);          // complete: may be reduced
 *     }
 *     muster_fsdp_finish(fsdp);                                           // this rank's part of every average is there
 *     muster_fsdp_step(fsdp, optimizer, 1);                               // on that part
 *
 * Between the ranks of one host acquiring copies nothing: their parts of a unit lie side by side in one shared mapping,
 * and the acquired unit is that mapping. Between hosts the parts are gathered once a host, behind the computing of the
 * unit before.
 *
 * Nobody reads a part while its owner's optimizer writes it. muster_fsdp_begin() waits until every rank of the host has
 * called it, and so has written what it writes. A rank may write its part of a unit between muster_fsdp_finish() of a
 * step STEP and the next begin: the gradients of this part come from all ranks, and each gave them after its last look
 * at the unit. After other steps, somebody may still be reading, and between
 * hosts units may stay gathered as they are.
 *
 * Pointers: what acquire gives is valid until the release. It may be elsewhere the next time.
 *
 * Threads: only one thread at a time may call functions of one fsdp. Between begin and finish the group's calls belong
 * to it. On a group of its own (muster_group_subset()) a program may call at any time.
 *
 * Order: every rank acquires and releases the same units in the same order. Where units are gathered or reduced in
 * another order, ranks get MUSTER_EMISMATCH. On one host and with hybrid sharding nothing is exchanged in the forward
 * pass: its order is not compared there, and may differ. Results have the same bits in every run. On one host the
 * average is that of muster_ddp_finish(), to the bit.
 *
 * Errors, of every call: MUSTER_EINVAL (arguments, calls out of order; the sentence names the unit), MUSTER_ENOMEM, and
 * those of the collectives (muster/collective.h). A call that is refused because of its arguments, or because it is out
 * of order, has done nothing: the step goes on. What else fails on one rank alone aborts the group, so that the others
 * need not wait for it: they get MUSTER_EABORTED with its sentence. After a failure an fsdp can only be freed.
 *
 * docs/fsdp.md has more: memory, when to shard, what PyTorch's names are called here. */
#ifndef MUSTER_FSDP_H
#define MUSTER_FSDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/checkpoint.h>
#include <muster/ddp.h>
#include <muster/group.h>
#include <muster/optimizer.h>
#include <muster/snapshot.h>
#include <muster/status.h>
#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_FSDP_UNITS_MAX ((size_t)4096)
#define MUSTER_FSDP_PARAMETERS_MAX ((size_t)65536) /* of all units together */
#define MUSTER_FSDP_NAME_MAX ((size_t)256)         /* bytes of a name, terminator included */

/* Within a unit each parameter begins on a multiple of this many elements. What is between them does not matter. */
#define MUSTER_FSDP_ALIGNMENT ((size_t)16)

struct muster_fsdp;

/* One parameter. The values that learn are float32. */
struct muster_fsdp_parameter {
    const char *name; /* copied; one line; unique in the model */
    size_t count;     /* elements, > 0 */
    size_t block;     /* so many neighbouring elements stay on one rank: a row, or what is quantised together; a divisor
                       * of count. 0 or 1: it may be cut anywhere */
    bool frozen;      /* does not learn: no gradient, nothing for the optimizer */
    uint32_t dim_count;                     /* 0: one dimension, of `count` */
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX]; /* as snapshots have it; its product is `count` */
};

/* A unit. Everything is copied. Its memory holds the parameters that learn, in the order of the list, and then the
 * frozen ones. */
struct muster_fsdp_unit {
    const char *name; /* for sentences and traces; unique in the model */
    const struct muster_fsdp_parameter *parameters;
    size_t parameter_count; /* > 0 */
};

enum muster_fsdp_sharding {
    MUSTER_FSDP_FULL,   /* over all ranks of the group */
    MUSTER_FSDP_HYBRID, /* over the ranks of a host; every host has everything. Gradients are summed within hosts, and
                         * the sums of a part between hosts. Every host must have the same number of ranks */
};

/* Start from MUSTER_FSDP_OPTIONS_INIT. All but fill_context must be the same on every rank. */
struct muster_fsdp_options {
    size_t size; /* of this struct, set by the initializer: lets it grow later */
    enum muster_fsdp_sharding sharding;
    /* Between hosts: give the unit's memory back after the forward pass, and gather it again for the backward pass.
     * That costs the gather once more. With false, units stay gathered from the forward to the backward pass. On one
     * host there is nothing to give back. */
    bool reshard_after_forward;
    uint32_t prefetch; /* units gathered ahead, between hosts: 0 to 8 */
    /* What acquire hands out: MUSTER_FLOAT32, or MUSTER_BFLOAT16, a copy that muster_fsdp_step() rounds. */
    enum muster_type compute_type;
    enum muster_type gradient_type; /* of view.gradients: MUSTER_FLOAT32 or MUSTER_BFLOAT16 */
    enum muster_type reduce_type;   /* in which gradients travel and are averaged: the same choice */
    /* Some units may not be used in some steps: they take part with zeros. */
    bool find_unused;
    bool
        check_finite; /* look for infinities and NaNs in what this rank gives: MUSTER_EINVAL names unit and parameter */
    /* Ranks may have different numbers of batches: see muster_fsdp_shadow(). Costs one small collective a step. */
    bool uneven_inputs;
    bool divide_by_active; /* with uneven_inputs: average over the ranks that still have data, not over all */
    /* First values. Called on rank 0 alone, once for each parameter: writes its elements, all of them. `parameter`
     * counts through all units, from 0 (as in struct muster_fsdp_range): it does not begin again in each unit.
     * Negative: a failure, with the detail that muster_detail() has or none. NULL, on every rank: zeros. */
    int (*fill)(void *context, size_t unit, size_t parameter, float *values);
    void *fill_context;
    /* In place of the average: does it for the gradients of a whole unit, as for a bucket of muster/ddp.h, and this
     * rank keeps its part. Each rank then receives whole units, which sharding otherwise saves. Needs full sharding,
     * and gradient_type equal to reduce_type. Copied; its context is borrowed until muster_fsdp_free(). NULL: averages
     */
    const struct muster_ddp_hook *hook;
    /* Gradients are averaged over so many virtual ranks (muster/virtual_ranks.h), and have the same bits on any number
     * of ranks up to that, with any sharding on any hosts, and those of a ddp with as many. A step then has several
     * passes, from muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP) to muster_fsdp_finish(): one for each virtual rank of
     * muster_virtual_turns(), in that order. The last one leaves the averages. Where ranks have different numbers of
     * virtual ranks, the passes of a step acquire and release in the same order. muster_fsdp_squared_norm() then adds
     * exactly. Goes with neither hook, uneven_inputs nor steps ACCUMULATE and NO_SYNC. 0: none */
    size_t virtual_ranks;
};
#define MUSTER_FSDP_OPTIONS_INIT                                                                                       \
    {                                                                                                                  \
        sizeof(struct muster_fsdp_options), MUSTER_FSDP_FULL, true, 1, MUSTER_FLOAT32, MUSTER_FLOAT32, MUSTER_FLOAT32, \
            false, false, false, false, NULL, NULL, NULL, 0                                                            \
    }

/* Makes an fsdp of a model. Collective. First checks that all ranks registered the same units with the same options. If
 * not: MUSTER_EMISMATCH names the first difference and the rank, and the group has not failed. Then spreads the values
 * that rank 0 fills. The group is borrowed until muster_fsdp_free(). Units are numbered as in the list, which should be
 * in the order of the forward pass; the parameters of all units are numbered through. options: NULL for the defaults.
 * At no time has a rank more than its parts and one unit. Blocks. */
int muster_fsdp_create_sized(struct muster_group *group, const struct muster_fsdp_unit *units, size_t unit_bytes,
                             size_t unit_count, size_t parameter_bytes, const struct muster_fsdp_options *options,
                             struct muster_fsdp **out);
static inline int muster_fsdp_create(struct muster_group *group, const struct muster_fsdp_unit *units,
                                     size_t unit_count, const struct muster_fsdp_options *options,
                                     struct muster_fsdp **out) {
    return muster_fsdp_create_sized(group, units, sizeof *units, unit_count, sizeof(struct muster_fsdp_parameter),
                                    options, out);
}

/* Frees it, after waiting for what is under way. Optimizers made with muster_fsdp_optimizer() must have been freed, and
 * the group must still be there. NULL is accepted. Not collective. */
void muster_fsdp_free(struct muster_fsdp *fsdp);

/* ---- A step ---- */

enum muster_fsdp_step_kind {
    MUSTER_FSDP_STEP,       /* gradients are averaged; those of steps before that accumulated are in them */
    MUSTER_FSDP_ACCUMULATE, /* gradients are averaged and added to this rank's part: no more memory */
    MUSTER_FSDP_NO_SYNC, /* gradients stay here, and nothing is sent until the next step of another kind. Memory for the
                          * whole gradients is kept from then on */
    MUSTER_FSDP_EVALUATE, /* forward only */
};

enum muster_fsdp_pass { MUSTER_FSDP_FORWARD, MUSTER_FSDP_BACKWARD };

/* Begins a step of a kind, the same on every rank. Blocks until every rank has begun it. MUSTER_EMISMATCH: ranks began
 * other kinds, or have accumulated other numbers of steps. */
int muster_fsdp_begin(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind);

/* A unit, acquired. Aligned to 64 bytes. */
struct muster_fsdp_view {
    const void *parameters; /* of compute_type */
    void *gradients; /* of gradient_type, laid out like the parameters that learn; NULL in a forward pass, and for
                      * a unit that is frozen. To be written by the release */
    bool add;        /* there are gradients already (of an earlier use, or of NO_SYNC steps): add to them. Else they
                      * are to be overwritten, and hold anything */
};

/* The parameters of a unit, and in the backward pass the place of its gradients. Several units may be held at a time,
 * and one several times, but for one that learns in the backward pass: its gradients have one writer at a time. Between
 * hosts it waits for the unit to be gathered, and begins to gather the next ones. Otherwise it may wait for a buffer
 * whose gradients are being reduced. */
int muster_fsdp_acquire_sized(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass,
                              struct muster_fsdp_view *out, size_t out_bytes);
static inline int muster_fsdp_acquire(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass,
                                      struct muster_fsdp_view *out) {
    return muster_fsdp_acquire_sized(fsdp, unit, pass, out, sizeof *out);
}

/* Ends a use. In the backward pass the gradients of a unit are complete when it has been released there as often as in
 * the forward pass of this step, and is not held any more: then they are reduced, behind what follows. Does not wait
 * for other ranks. */
int muster_fsdp_release(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass);

/* Ends the step, or with virtual_ranks a pass of it: waits until the gradients of all units are reduced. (The finish of
 * this rank's last pass also waits for a pass of others that have one more.) Everything must have been released.
 * MUSTER_EINVAL: a unit's gradients are not complete and find_unused is off; the sentence names it, and the group is
 * aborted. */
int muster_fsdp_finish(struct muster_fsdp *fsdp);

/* Uneven inputs: as muster_ddp_shadow(). Takes part in the next step of the ranks that still have data, with zeros for
 * gradients. *stepped: this rank is to make the optimizer's step now; false: all have run out. Between hosts the others
 * use every unit in the order of the list, one at a time, and then backwards (else acquire or finish: MUSTER_EINVAL).
 * Blocks. */
int muster_fsdp_shadow(struct muster_fsdp *fsdp, bool *stepped);

/* ---- What this rank has ---- */

/* A parameter that learns, and this rank's part of it: elements [offset, offset + count) of the parameter. */
struct muster_fsdp_range {
    size_t unit, parameter; /* numbers; parameters are numbered through all units */
    size_t offset, count;   /* 0 elements: another rank has it all */
    float *data;            /* NULL if there are none */
    const float *gradient;  /* likewise; after finish, until the next begin */
};

/* How many parameters learn, and the range of number `index` among them. Any time; does not block. */
size_t muster_fsdp_range_count(const struct muster_fsdp *fsdp);
int muster_fsdp_range_sized(const struct muster_fsdp *fsdp, size_t index, struct muster_fsdp_range *out,
                            size_t out_bytes);
static inline int muster_fsdp_range(const struct muster_fsdp *fsdp, size_t index, struct muster_fsdp_range *out) {
    return muster_fsdp_range_sized(fsdp, index, out, sizeof *out);
}

/* Where a parameter begins in its unit: elements from the unit's beginning. It depends on the list alone. SIZE_MAX:
 * there is no such parameter. */
size_t muster_fsdp_offset(const struct muster_fsdp *fsdp, size_t parameter);

/* An optimizer for this rank's ranges, one for each parameter that learns. group_of: for each parameter that learns,
 * the number of its group of options; NULL: all in group 0. What it remembers lies beside the parameters, in memory
 * that the host shares. Free it with muster_optimizer_free(), before the fsdp. Collective. MUSTER_ELIMIT: more than
 * MUSTER_OPTIMIZER_PARAMETERS_MAX parameters learn. MUSTER_EMISMATCH: ranks of a host want other optimizers. */
int muster_fsdp_optimizer_sized(struct muster_fsdp *fsdp, const size_t *group_of,
                                const struct muster_optimizer_group *groups, size_t group_bytes, size_t group_count,
                                struct muster_optimizer **out);
static inline int muster_fsdp_optimizer(struct muster_fsdp *fsdp, const size_t *group_of,
                                        const struct muster_optimizer_group *groups, size_t group_count,
                                        struct muster_optimizer **out) {
    return muster_fsdp_optimizer_sized(fsdp, group_of, groups, sizeof *groups, group_count, out);
}

/* A step of such an optimizer with the gradients that finish left, each multiplied by gradient_scale first
 * (muster_clip_scale()). Writes the bfloat16 copy as well, if there is one. Between finish and the next begin.
 * MUSTER_EINVAL: the optimizer was not made for this fsdp, which goes on. */
int muster_fsdp_step(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, double gradient_scale);

/* The sum of the squares of all gradients of the model, the same on every rank; its root is the norm. With
 * virtual_ranks it is muster_exact_squared_norm(), the same on any number of ranks. Between finish and the next begin.
 * Blocks: one all_reduce of 8 bytes, or of 176. */
int muster_fsdp_squared_norm(struct muster_fsdp *fsdp, double *out_sum);

/* ---- State that outlives its processes ----
 *
 * Parameters and what the optimizer remembers can lie in memory that the node's agent (muster run) holds open: when
 * workers are killed and started again, they go on at the last committed step, and read no file. There are two copies
 * of that state a host. A step is written into the one that is not committed, and committed by one store. So a death at
 * any instant leaves a whole state. All ranks go on from the newest step that every one of them had committed.
 *
 *     muster_fsdp_keep(fsdp, optimizer, &extra, NULL, &step);
 *     if (step < 0) {
 *         step = 0;               // or load a snapshot
 *         muster_fsdp_commit(fsdp, step, &extra);
 *     }
 *     while (step < steps) {
 *         // ... begin, acquire, release, finish ...
 *         muster_fsdp_step(fsdp, optimizer, 1);
 *         muster_fsdp_commit(fsdp, ++step, &extra);
 *     }
 *
 * It is found again by any number of ranks. On the same hosts, and on one host with any number, nothing is copied. When
 * hosts join, or have other numbers of ranks, parts go to their new owners, from memory to memory: the old memory stays
 * until they have come. With hybrid sharding a host that has none gets another's. With copies on peer hosts
 * (copies_every) any number of ranks goes on from the newest copy when the memory of a host is gone. Otherwise, when an
 * agent or its host is gone, `step` is -1: load a snapshot. Without an agent the memory ends with the processes that
 * have it; a group that has shrunk finds its own.
 *
 * Programs see the committed copy read-only: one that writes to parameters (muster_fsdp_range()) after the first commit
 * gets SIGSEGV, and its crash record says so (muster/record.h). So does a process that writes wildly before it dies.
 * What is promised: no write through an address that a program was given harms the committed state. A write to any
 * address at all, or other processes of the user, could.
 */

#define MUSTER_FSDP_KEEP_NAME_MAX ((size_t)64) /* bytes, terminator included */

/* Start from MUSTER_FSDP_KEEP_OPTIONS_INIT. name: of the state among those that the job's agents hold. attempts:
 * when the program has failed so often in a row at one step, the state is dropped, *out_step is -1, and
 * muster_fsdp_keep_note() says why; 0: never. As of struct muster_state_options (muster/state.h). copies_every: with
 * full sharding over several hosts, each rank's share of the committed state is copied to a rank of another host, every
 * so many steps, and the first that is committed; 0: not. Equal on all ranks. See muster_fsdp_copy_statistics(). */
struct muster_fsdp_keep_options {
    size_t size;
    const char *name;
    uint32_t attempts;
    uint64_t copies_every;
};
#define MUSTER_FSDP_KEEP_OPTIONS_INIT                                                                                  \
    { sizeof(struct muster_fsdp_keep_options), "training", 3, 0 }

/* Keeps the state of this fsdp and optimizer, the only one of the fsdp, from now on. *out_step: the committed step of
 * an earlier life, whose state is there now, in the parameters, the optimizer and `extra`; or -1: nothing was found,
 * and the state is as it was. extra: the program's own tensors and values, as for a snapshot; NULL: none. It is read or
 * written during calls alone; tensors on a GPU are the same ones on all ranks. Reserves memory for two copies
 * (muster_fsdp_memory(), kept_bytes is the second); while it runs there is a third, and where parts move there are the
 * two that they come from. Collective; blocks. Where a host has no room for it (MUSTER_ENOMEM), or its agent does not
 * answer (MUSTER_ECONNECT, MUSTER_ETIMEOUT), all ranks get that code, and training may go on without. MUSTER_EINVAL: it
 * is kept already. Other failures abort the group. MUSTER_ECORRUPT: `extra` was damaged in memory. */
int muster_fsdp_keep(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                     const struct muster_snapshot_state *extra, const struct muster_fsdp_keep_options *options,
                     int64_t *out_step);

/* Why a state that was in memory is not used, or an older one is, from copies on peer hosts; as a sentence without a
 * full stop; "" as a rule. Equal on all ranks. Lives as long as `fsdp`. */
const char *muster_fsdp_keep_note(const struct muster_fsdp *fsdp);

/* Commits the state of `step`, which is greater than any before: after muster_fsdp_step(), by every rank, before the
 * next begin. Without a muster_fsdp_step() since the last commit the state is copied; a step must have been begun and
 * finished even so. extra: described as for muster_fsdp_keep(); its bytes are copied. Does not wait for other ranks,
 * but where a copy to peer hosts falls due: then by one short all_reduce.
 * Further steps of the optimizer need a new step first. MUSTER_EINVAL. Other failures (a GPU that cannot copy a tensor)
 * abort the group. */
int muster_fsdp_commit(struct muster_fsdp *fsdp, int64_t step, const struct muster_snapshot_state *extra);

/* Copies on peer hosts (copies_every of the keep's options). A thread of each rank, of low priority and with a group of
 * its own, copies the rank's share of the committed state, sends it to a rank of another host, and keeps the share that
 * it receives, in memory that the agent holds. Two generations have room, because one stays until the next is whole on
 * all ranks: four shares (peer_bytes of muster_fsdp_memory()). Any one host may be lost, and more where none of them
 * serves another. What falls due while a copy is under way on any rank waits for the next commit, and is counted.
 * Nothing is copied on one host, with hybrid sharding, and where a host has more than half of all ranks. */
struct muster_fsdp_copy_statistics {
    uint64_t started, completed, failed;
    uint64_t skipped;  /* commits at which a copy was due, and one under way */
    int64_t last_step; /* of the newest that this rank has whole; -1: none */
    int64_t age_ns;    /* since it was; -1: an earlier life made it, or there is none */
};
/* Does not block; any thread, once the state is kept and until the fsdp is freed. MUSTER_EINVAL. */
int muster_fsdp_copy_statistics_sized(const struct muster_fsdp *fsdp, struct muster_fsdp_copy_statistics *out,
                                      size_t out_bytes);
static inline int muster_fsdp_copy_statistics(const struct muster_fsdp *fsdp, struct muster_fsdp_copy_statistics *out) {
    return muster_fsdp_copy_statistics_sized(fsdp, out, sizeof *out);
}

/* Before some of the ranks leave in good order, such as on SIGTERM, which the workers of a node that leaves get (the
 * shutdown timeout is how long they have; docs/worker-contract.md): copies what was committed last, unless it has been,
 * and waits until all ranks have it whole. The others then go on at that step. Collective: every rank calls, between
 * muster_fsdp_commit() and the next begin; who is to leave, the ranks agree upon first. Blocks as long as the slowest
 * host takes for its part. MUSTER_EUNSUPPORTED: no copies are made (copies_every; on one host, with hybrid sharding, or
 * where a host has more than half of all ranks); MUSTER_EINVAL; MUSTER_ECONNECT: the copy has not become whole, and
 * training may go on. */
int muster_fsdp_hand_over(struct muster_fsdp *fsdp);

/* ---- Snapshots (muster/snapshot.h) ----
 *
 * A snapshot has the whole state, whoever stores which part of it: every parameter under its name, float32 with the
 * shape that was registered; what the optimizer remembers, as muster_optimizer_tensors() names it for whole parameters;
 * and what the program adds. That is what a program with a ddp saves that has these parameters and
 * muster_optimizer_tensors(): either loads the other's, and any number of ranks, on any hosts, with any sharding.
 *
 * Collective. Between steps: after muster_fsdp_finish() and before muster_fsdp_begin(). Every rank gets the same
 * result, and on failure the sentence of the rank that failed. A save or load that fails does not fail the fsdp or the
 * group, unless a collective failed: training may go on (after a failed load with parameters that are whatever it
 * left). Further errors are those of muster/snapshot.h; MUSTER_EINVAL: a step has been begun, or the optimizer was not
 * made for this fsdp; MUSTER_EMISMATCH: ranks gave different optimizers, or describe different states.
 *
 * optimizer: NULL, or made with muster_fsdp_optimizer(). extra: the program's own tensors and values, such as the
 * number of the step; NULL: none. Their names differ from those of the parameters. */

/* Saves. Ranks that pass `saves` as true write: one rank of the job into a folder that all see, or one of each host
 * into a folder of its own. folder, step, extra and options are theirs; extra is equal on them. On one host, and with
 * hybrid sharding, they write straight from the memory that the host shares, and nothing is allocated for the state.
 * Else pieces of at most 4 MiB are sent to them: a rank needs the memory of two of them, and no more than a unit has.
 * Blocks. */
int muster_fsdp_save(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, bool saves, const char *folder,
                     int64_t step, const struct muster_snapshot_state *extra,
                     const struct muster_snapshot_options *options);

/* Loads the newest whole snapshot that any host sees into the parameters, their bfloat16 copy, the optimizer, and the
 * tensors and values of `extra`, which every rank describes and gets. All of it must be in the snapshot: MUSTER_EINVAL
 * names the tensor that is missing or has another shape. The first rank of each host looks for snapshots and checks
 * them, and reads what its host stores. If a rank does not see the snapshot, the lowest rank that has found it whole
 * reads it and sends it to all, in pieces of at most 4 MiB. MUSTER_ENOENT, MUSTER_ECORRUPT as for
 * muster_snapshot_find(), when no host has one. out: may be NULL. Its step and id are the same on every rank; the rest
 * tells what the first rank of this host passed over, and is empty on the others. Gradients are not part of a snapshot:
 * muster_fsdp_step() needs a new step first. Blocks. */
int muster_fsdp_load_newest_sized(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const char *folder,
                                  const struct muster_snapshot_state *extra, struct muster_snapshot_found *out,
                                  size_t out_bytes);
static inline int muster_fsdp_load_newest(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                          const char *folder, const struct muster_snapshot_state *extra,
                                          struct muster_snapshot_found *out) {
    return muster_fsdp_load_newest_sized(fsdp, optimizer, folder, extra, out, sizeof *out);
}

/* The same as a checkpoint (muster/checkpoint.h): every rank writes what it owns, at the same time, into a folder that
 * all see; with hybrid sharding the ranks of the first host do. Any number of ranks loads it, with any sharding, and so
 * does a program without fsdp that describes the same tensors. Each rank reads what it owns and nothing else. Nothing
 * is allocated for the state. extra is described by every rank; its tensors have data and are the same on all ranks,
 * its values are those of rank 0. Further errors are those of muster/checkpoint.h. Blocks. */
int muster_fsdp_save_checkpoint(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, const char *folder,
                                int64_t step, const struct muster_snapshot_state *extra,
                                const struct muster_checkpoint_options *options);

/* Loads the newest checkpoint; after a failure parameters are whatever it left. out: may be NULL. Blocks. */
int muster_fsdp_load_newest_checkpoint_sized(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                             const char *folder, const struct muster_snapshot_state *extra,
                                             const struct muster_checkpoint_load_options *options,
                                             struct muster_checkpoint_found *out, size_t out_bytes);
static inline int muster_fsdp_load_newest_checkpoint(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                                     const char *folder, const struct muster_snapshot_state *extra,
                                                     const struct muster_checkpoint_load_options *options,
                                                     struct muster_checkpoint_found *out) {
    return muster_fsdp_load_newest_checkpoint_sized(fsdp, optimizer, folder, extra, options, out, sizeof *out);
}

/* ---- Checkpoints in the background ----
 *
 * The state that is committed is saved by a thread while training goes on:
 *
 *     muster_fsdp_commit(fsdp, ++step, &extra);
 *     if (step % 100 == 0) {
 *         muster_fsdp_start_checkpoint(fsdp, "checkpoints", &extra, NULL, NULL);
 *     }
 *     // ...
 *     muster_fsdp_wait_checkpoint(fsdp);          // at the end, and before an exit for a pre-emption
 *
 * The threads of all ranks have a low priority, and a group of their own. They write files as muster/checkpoint.h
 * describes: a checkpoint is complete when all ranks have written, or it is none. A rank that is killed in the middle
 * of a save loses that save alone: the checkpoint before it loads, and the state in memory is what it was.
 *
 * A thread reads the committed copy, and the second step of the optimizer that follows is to be written there:
 * muster_background_options (muster/checkpoint.h) says what happens then. */

/* Starts to save what was committed last, after muster_fsdp_commit() and before the next begin. Collective: every rank
 * calls. While a save is under way on any rank, all skip this one, which is counted. *out_started: not skipped; may be
 * NULL. extra: as in that commit; it is copied. Does not wait for a disk, but for the other ranks, by two short
 * all_reduces; the first call makes a group and starts a thread. MUSTER_EINVAL; MUSTER_ENOMEM: no memory on a rank: all
 * get it, and training goes on. A save that fails later is told by muster_fsdp_wait_checkpoint(), in the statistics,
 * and by a log line of rank 0; it does not end the training, and the next one is a new try. */
int muster_fsdp_start_checkpoint(struct muster_fsdp *fsdp, const char *folder,
                                 const struct muster_snapshot_state *extra,
                                 const struct muster_background_options *options, bool *out_started);

/* Waits until no save is under way on this rank. The result is that of the last save that was started, the same on all
 * ranks unless one of them is gone; MUSTER_OK without any. MUSTER_ECANCELED: it was given up. Other codes: those of
 * muster_checkpoint_save(). Not collective; blocks. muster_fsdp_free() waits, too, unless the training has failed. */
int muster_fsdp_wait_checkpoint(struct muster_fsdp *fsdp);

/* Of all saves in the background so far. Does not block; once a save was started, any thread may ask until the fsdp is
 * freed. MUSTER_EINVAL. */
int muster_fsdp_background_statistics_sized(const struct muster_fsdp *fsdp, struct muster_background_statistics *out,
                                            size_t out_bytes);
static inline int muster_fsdp_background_statistics(const struct muster_fsdp *fsdp,
                                                    struct muster_background_statistics *out) {
    return muster_fsdp_background_statistics_sized(fsdp, out, sizeof *out);
}

/* ---- What it costs ---- */

/* Bytes. "A host" counts once what its ranks share. docs/fsdp.md has the formulas. */
struct muster_fsdp_memory {
    size_t parameter_bytes;     /* a host: float32 values of its ranks' parts */
    size_t copy_bytes;          /* a host: their bfloat16 copy, or 0 */
    size_t state_bytes;         /* a host: what optimizers remember */
    size_t gathered_bytes;      /* a host: room for units gathered from other hosts, or 0 */
    size_t shard_bytes;         /* a rank: its part of the gradients */
    size_t gradient_bytes;      /* a rank: buffers of whole units' gradients, now */
    size_t gradient_peak_bytes; /* and the most there have been */
    size_t overhead_bytes;      /* a rank: all else */
    size_t host_bytes;          /* a host: all that it shares */
    size_t rank_bytes;          /* a rank: all that is its own */
    size_t kept_bytes;          /* a host: the second copy of parameters and what optimizers remember, or 0 */
    size_t background_bytes;    /* a rank: room for the copy that is saved in the background, or 0 */
    size_t peer_bytes;          /* a rank: room for copies on peer hosts, its own and another's, or 0 */
    size_t waiting_bytes;       /* a rank: sums over virtual ranks that wait, or 0 */
};
int muster_fsdp_memory_sized(const struct muster_fsdp *fsdp, struct muster_fsdp_memory *out, size_t out_bytes);
static inline int muster_fsdp_memory(const struct muster_fsdp *fsdp, struct muster_fsdp_memory *out) {
    return muster_fsdp_memory_sized(fsdp, out, sizeof *out);
}

/* The same beforehand, for `host_count` hosts of `ranks_per_host` ranks and an optimizer that remembers
 * `states_per_parameter` values (2: AdamW): of the host and rank that need most, for units that are used in the
 * order of the list. overhead_bytes is 0. kept_bytes, background_bytes and peer_bytes are what muster_fsdp_keep(), a
 * checkpoint in the background and copies on peer hosts would add, up to the rounding of each parameter; the sums are
 * without them. A rank needs half of gradient_bytes where every reduction ends before the
 * next unit is acquired, as it does on one rank. No group is needed; does not block. */
int muster_fsdp_plan_sized(const struct muster_fsdp_unit *units, size_t unit_bytes, size_t unit_count,
                           size_t parameter_bytes, const struct muster_fsdp_options *options, uint32_t host_count,
                           uint32_t ranks_per_host, uint32_t states_per_parameter, struct muster_fsdp_memory *out,
                           size_t out_bytes);
static inline int muster_fsdp_plan(const struct muster_fsdp_unit *units, size_t unit_count,
                                   const struct muster_fsdp_options *options, uint32_t host_count,
                                   uint32_t ranks_per_host, uint32_t states_per_parameter,
                                   struct muster_fsdp_memory *out) {
    return muster_fsdp_plan_sized(units, sizeof *units, unit_count, sizeof(struct muster_fsdp_parameter), options,
                                  host_count, ranks_per_host, states_per_parameter, out, sizeof *out);
}

/* Numbers since creation; take the difference of two to see an interval. */
struct muster_fsdp_statistics {
    uint64_t step_count;      /* of every kind */
    uint64_t gathered_bytes;  /* received to acquire units: 0 on one host */
    uint64_t reduced_bytes;   /* of gradients given to reductions */
    int64_t elapsed_ns;       /* from the first begin to the end of the last finish */
    int64_t communication_ns; /* of it: this thread was in begin, acquire, release, finish or shadow */
};
int muster_fsdp_statistics_sized(const struct muster_fsdp *fsdp, struct muster_fsdp_statistics *out, size_t out_bytes);
static inline int muster_fsdp_statistics(const struct muster_fsdp *fsdp, struct muster_fsdp_statistics *out) {
    return muster_fsdp_statistics_sized(fsdp, out, sizeof *out);
}

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
