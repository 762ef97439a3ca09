/* Distributed data parallel: every rank has the whole model and its own share of each batch. Gradients are averaged
 * over the ranks while the backward pass is still running.
 *
 * The model is registered as pointers: parameters, and buffers (state that is not learned, such as batch norm's running
 * statistics). Gradients are kept in buckets, pieces of shared memory that are reduced as a whole as soon as all of
 * their gradients are complete. A step of training reads:
 *
 *     muster_ddp_begin(ddp);                                        // before the forward pass
 *     forward(model, batch);
 *     for (layer = last; layer >= 0; layer--) {
 *         backward(layer, muster_ddp_gradient(ddp, layer));         // writes (or adds to) the gradient there
 *         muster_ddp_ready(ddp, layer);                             // it is complete on this rank: may be reduced
 *     }
 *     muster_ddp_finish(ddp);                                       // every gradient is the average over the ranks
 *     optimizer_step(model);
 *
 * Threads: only one thread at a time may call functions of one ddp. The group's progress thread reduces the buckets,
 * except the last one, which muster_ddp_finish() reduces itself. Between begin and finish the group's calls belong to
 * the ddp. Other collectives on the same group are allowed only if they have the same place among the calls of
 * muster_ddp_ready() on every rank. On a group of its own (muster_group_subset()) a program may call any time.
 *
 * Order: buckets are reduced in the same order on every rank, whatever the order in which gradients become ready.
 * Results have the same bits on every rank and in every run. The average is the sum over ranks 0, 1, ... divided by
 * their number. (PyTorch divides first. With a power of two of ranks both are the same, short of overflow and
 * underflow.) So 2 ranks equal, bit for bit, one process that adds the gradients of both half batches and halves them.
 *
 * Memory of a GPU: with a group of the engine "nccl" (docs/engines.md) parameters and gradients may be there, all of
 * them or none; buffers likewise, for themselves. muster_group_set_stream() says on which stream the gradients are
 * computed; let it be the same from begin to finish. muster_ddp_ready() then means that this stream has been given all
 * work that writes the gradient. What ddp itself does to gradients goes onto that stream as well, behind it. Between
 * begin and finish nothing waits for the GPU; finish returns when it has reduced the buckets. docs/ddp.md says what
 * does not go with such memory.
 *
 * Errors, of every call: MUSTER_EINVAL (arguments, calls out of order), MUSTER_ENOMEM, and those of the collectives
 * (muster/collective.h). What fails on one rank alone (its memory, its hook) aborts the group, so that the others need
 * not wait for it. A failure of a bucket surfaces in muster_ddp_ready() or muster_ddp_finish(), with the bucket
 * and its parameters in the sentence. After it the ddp can only be freed, or bound to the survivors
 * (muster_ddp_rebind()). docs/ddp.md has more: memory, uneven inputs, hooks, what to do after a failure. */
#ifndef MUSTER_DDP_H
#define MUSTER_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/collective.h>
#include <muster/group.h>
#include <muster/status.h>
#include <muster/types.h>
#include <muster/work.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_DDP_PARAMETERS_MAX ((size_t)65536) /* of one ddp; the same for buffers */
#define MUSTER_DDP_NAME_MAX ((size_t)256)         /* bytes of a name, terminator included */

#define MUSTER_DDP_BUCKET_BYTES ((size_t)25 << 20)      /* PyTorch's defaults */
#define MUSTER_DDP_FIRST_BUCKET_BYTES ((size_t)1 << 20) /* of the bucket that is reduced first */

struct muster_ddp;

/* One parameter. The name is copied; the memory is borrowed until muster_ddp_free(). */
struct muster_ddp_parameter {
    const char *name; /* for sentences, and to check that all ranks have the same model; one line; no two are alike */
    enum muster_type type; /* FLOAT16, BFLOAT16, FLOAT32 or FLOAT64 */
    size_t count;          /* elements, > 0 */
    void *data;
    /* NULL: the gradient lives in the bucket (muster_ddp_gradient() says where) and is never copied. Else: memory of
     * the caller, `count` elements, which is copied into the bucket when ready and out of it by finish. */
    void *gradient;
};

/* State that is not learned. Any type. Borrowed likewise. */
struct muster_ddp_buffer {
    const char *name;
    enum muster_type type;
    size_t count;
    void *data;
};

/* A bucket as a communication hook sees it. */
struct muster_ddp_bucket {
    size_t size; /* of this struct, as the library has it: members behind it are not there */
    uint32_t index, bucket_count;
    enum muster_type type; /* of all its gradients */
    void *gradients;       /* each begins on a multiple of 64 bytes; the gaps hold zeros. In memory of the GPU, like
                            * the scratch, where the ddp's parameters are; the group's stream is still to write them */
    size_t count;          /* elements from first to last, gaps included */
    void *scratch;         /* count * scratch_bytes of memory of its own, shared with the host's other ranks; or NULL */
    uint32_t divisor;      /* the sum is to be divided by it: the group's size, or the active ranks' (uneven inputs) */
};

/* What is done to a bucket instead of averaging it. On every rank the same one. Start from MUSTER_DDP_HOOK_INIT. */
struct muster_ddp_hook {
    size_t size;          /* of this struct, set by the initializer: lets it grow later */
    const char *name;     /* for messages and for the check that all ranks have the same one */
    size_t scratch_bytes; /* wanted per element of a bucket, or 0 */
    /* Starts the communication of a bucket that is complete on this rank, and gives a handle (or leaves NULL: done).
     * Called in bucket order by muster_ddp_ready() or muster_ddp_finish(). Only calls on `group` that every rank makes
     * alike. A negative result (with a detail) is a failure of the step. */
    int (*start)(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                 struct muster_work **work);
    /* Called by muster_ddp_finish(), in bucket order, when the handle is done: afterwards bucket->gradients must be the
     * average, the same bits on every rank. May be NULL. */
    int (*finish)(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket);
    void *context; /* the hook's own; borrowed until muster_ddp_free() */
};
#define MUSTER_DDP_HOOK_INIT                                                                                           \
    { sizeof(struct muster_ddp_hook), NULL, 0, NULL, NULL, NULL }

/* Compression: float32 and float64 gradients travel as bfloat16 or float16 and come back as what they were. They are
 * rounded to nearest even; beyond the range of float16 they become infinite. Halves the bytes; costs 2 (4) bytes of
 * scratch an element. Other types are averaged as they are. In memory of a GPU kernels convert, which NVRTC compiles
 * when the ddp is made (docs/engines.md), and sums are rounded as NCCL does; a hook of the program's own cannot call
 * these there. Give what these return to the options as it is: a program of a later version that copied the struct
 * would read too much. */
const struct muster_ddp_hook *muster_ddp_hook_bfloat16(void);
const struct muster_ddp_hook *muster_ddp_hook_float16(void);

/* Start from MUSTER_DDP_OPTIONS_INIT. All but hook->context must be the same on every rank. */
struct muster_ddp_options {
    size_t size;         /* of this struct, set by the initializer: lets it grow later */
    size_t bucket_bytes; /* a bucket is closed when it has this many bytes of gradients; > 0 */
    size_t first_bucket_bytes;
    bool rebuild;           /* after the first synchronised step, sort buckets by the order of readiness on rank 0 (with
                             * uneven_inputs the lowest rank that had data in it) */
    bool broadcast_buffers; /* begin copies the buffers of rank 0 to all others */
    /* Not every parameter gets a gradient in every step: those for which muster_ddp_ready() was not called by the time
     * of finish take part with zeros. A parameter that no rank used keeps its gradient, untouched
     * (muster_ddp_was_used()). Buckets are then not rebuilt. Costs one collective more a step. */
    bool find_unused;
    /* Ranks may have different numbers of batches: see muster_ddp_shadow(). Costs one small collective a step. */
    bool uneven_inputs;
    bool divide_by_active; /* with uneven_inputs: average over the ranks that still have data, not over all */
    const struct muster_ddp_hook *hook; /* NULL: averages. Copied */
    /* At the beginning, and with a new group, all get the parameters of rank 0. false: all have the same already, from
     * a state that was kept (muster/state.h) or a snapshot that all have loaded; nothing is sent, and none are written.
     */
    bool copy_parameters;
    /* 0: none. Else a step is one pass (begin, ready for each parameter, finish) for each virtual rank of this rank, in
     * their order, and the finish of the last one averages over all virtual ranks (muster/virtual_ranks.h), with the
     * same bits for any number of ranks. A pass writes its gradients, or adds to zeros. Buffers are those of virtual
     * rank 0: each pass begins with them as they were before the step, and after the step all ranks have what virtual
     * rank 0 left (with broadcast_buffers; else they are left alone). Goes with neither a hook nor find_unused,
     * uneven_inputs and muster_ddp_begin_no_sync(). More memory: docs/deterministic-world.md. */
    size_t virtual_ranks;
};
#define MUSTER_DDP_OPTIONS_INIT                                                                                        \
    {                                                                                                                  \
        sizeof(struct muster_ddp_options), MUSTER_DDP_BUCKET_BYTES, MUSTER_DDP_FIRST_BUCKET_BYTES, true, true, false,  \
            false, false, NULL, true, 0                                                                                \
    }

/* Makes a ddp of a model. Collective. MUSTER_EINVAL also for parameters and gradients that are partly in memory of a
 * GPU and partly not, and for options that do not go with it; MUSTER_EUNSUPPORTED if the group's engine has no such
 * memory, or NVRTC is missing. First checks that all ranks registered the same parameters and buffers (number, names,
 * types, counts) with the same options. If not: MUSTER_EMISMATCH names the first difference and the rank, and the group
 * has not failed. The same holds where one rank alone is refused, for its memory or its virtual ranks. Then copies the
 * data of rank 0's parameters (copy_parameters) and buffers to all others. Gradients begin as zeros. The lists are
 * copied; the memory they point to and the group are borrowed until muster_ddp_free(). buffers: may be NULL with a
 * buffer_count of 0. options: NULL for the defaults. Parameters are numbered as in the list, which should be in the
 * order of the forward pass. */
int muster_ddp_create_sized(struct muster_group *group, const struct muster_ddp_parameter *parameters,
                            size_t parameter_bytes, size_t parameter_count, const struct muster_ddp_buffer *buffers,
                            size_t buffer_bytes, size_t buffer_count, const struct muster_ddp_options *options,
                            struct muster_ddp **out);
static inline int muster_ddp_create(struct muster_group *group, const struct muster_ddp_parameter *parameters,
                                    size_t parameter_count, const struct muster_ddp_buffer *buffers,
                                    size_t buffer_count, const struct muster_ddp_options *options,
                                    struct muster_ddp **out) {
    return muster_ddp_create_sized(group, parameters, sizeof *parameters, parameter_count, buffers, sizeof *buffers,
                                   buffer_count, options, out);
}

/* Frees it, after waiting for what is under way (on a GPU, also for what the group's stream has been given; if that
 * does not end within the group's time-out, memory stays in use, with a warning). Gradients in buckets are gone. The
 * group must still be there. NULL is accepted. Not collective. */
void muster_ddp_free(struct muster_ddp *ddp);

/* Where the gradient of parameter `index` is: in the bucket, or the caller's own memory. Valid until the next call of
 * muster_ddp_begin(), begin_no_sync, shadow or rebind. (It moves at most once, in the second synchronised step, and
 * never with `rebuild` off; its content moves along.) Aligned to 64 bytes when it is in a bucket. Does not block. NULL:
 * there is no parameter of that index. */
void *muster_ddp_gradient(struct muster_ddp *ddp, size_t index);

/* Fills all gradients with zeros, for programs whose backward pass adds. Not between ready and finish. */
int muster_ddp_zero_gradients(struct muster_ddp *ddp);

/* Begins a step whose gradients will be averaged; call it before the forward pass. Copies rank 0's buffers to all
 * (unless the step before was a no_sync one, as in PyTorch). Gradients keep their content: after a synchronised step
 * that is the average. Blocks for rank 0 if buffers are broadcast, for all ranks with uneven_inputs. */
int muster_ddp_begin(struct muster_ddp *ddp);

/* Begins a step that only accumulates: ready and finish send nothing. The next steps add to what the backward pass
 * leaves in the gradients, until a step begun with muster_ddp_begin() averages the sum. Every rank must make the same
 * number of such steps before a synchronised one, with uneven inputs as well; else that step is MUSTER_EMISMATCH. */
int muster_ddp_begin_no_sync(struct muster_ddp *ddp);

/* The gradient of parameter `index` is complete on this rank: it may not be touched until finish. Once a step for each
 * parameter (shared weights: after their last use). Starts the reduction of buckets that are complete. Does not wait
 * for other ranks (a bucket of the caller's own gradients is copied). MUSTER_EINVAL names a parameter that was ready
 * already. */
int muster_ddp_ready(struct muster_ddp *ddp, size_t index);

/* Ends the step, or with virtual_ranks a pass of it: waits until all buckets are reduced. Afterwards gradients are
 * averages, the same bits on every rank. MUSTER_EINVAL: some parameters never became ready and find_unused is off; the
 * sentence names them, and the group is aborted with it, since the others wait for these gradients. */
int muster_ddp_finish(struct muster_ddp *ddp);

/* Did any rank make the gradient of this parameter ready, in the last synchronised step or in the no_sync steps that
 * were added to it? Optimizers leave unused parameters alone. Always true without find_unused. Valid after finish. For
 * an index out of range: false. */
bool muster_ddp_was_used(const struct muster_ddp *ddp, size_t index);

/* Uneven inputs: every rank calls this when its batches are used up, again and again while *stepped is true:
 *
 *     while ((status = muster_ddp_shadow(ddp, &stepped)) == 0 && stepped) {
 *         optimizer_step(model);
 *     }
 *
 * It takes part in the next synchronised step of the ranks that still have data, with zeros for gradients, and leaves
 * the average in this rank's gradients. A rank that makes the optimizer's step with it stays equal to the others, bit
 * for bit. *stepped is false once all ranks have run out, and the next epoch may begin. Buffers are then those of the
 * rank that ran out last (of several, the lowest). While rank 0 has no data, the lowest rank that has takes its place
 * in broadcasts of buffers. A rank that has unsynchronised gradients (no_sync) when it runs out loses them. Needs the
 * option uneven_inputs. Blocks until the others begin and finish. */
int muster_ddp_shadow(struct muster_ddp *ddp, bool *stepped);

/* After muster_group_shrink(): goes on with the new group. Collective over it. Checks consistency as creating does and
 * copies the parameters and buffers of its rank 0 (the lowest survivor) to all. Gradients are zeros, at new addresses;
 * the step that failed is to be done again. The old group must still be there during the call, and may be freed after
 * it. On failure the ddp is as before, and a further shrink and rebind may follow.
 * What else the ranks must agree on (optimizer state, number of the step) is the program's: broadcast it likewise. */
int muster_ddp_rebind(struct muster_ddp *ddp, struct muster_group *group);

/* Numbers since creation; take the difference of two to see an interval. */
struct muster_ddp_statistics {
    uint64_t step_count;      /* synchronised steps finished, shadowed ones included */
    uint64_t no_sync_count;   /* steps that only accumulated */
    uint64_t reduced_bytes;   /* of gradients given to reductions */
    int64_t elapsed_ns;       /* from the first begin to the end of the last finish */
    int64_t communication_ns; /* of it: this thread was in begin, ready, finish or shadow. communication_ns /
                               * elapsed_ns: communication that computing did not hide */
    uint32_t bucket_count;    /* now */
    size_t bucket_bytes;      /* memory of the buckets (gradients live in them), padding included */
    size_t overhead_bytes;    /* all other memory of the ddp: docs/ddp.md has the formula */
};
int muster_ddp_statistics_sized(const struct muster_ddp *ddp, struct muster_ddp_statistics *out, size_t out_bytes);
static inline int muster_ddp_statistics(const struct muster_ddp *ddp, struct muster_ddp_statistics *out) {
    return muster_ddp_statistics_sized(ddp, out, sizeof *out);
}

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
