/* Virtual ranks: a training whose bits do not depend on the number of ranks (a deterministic world).
 *
 * A job has V virtual ranks, a number that is fixed for its life. The real ranks own them: rank r of P has those from
 * r*V/P to (r+1)*V/P, and P may be any number from 1 to V. Each virtual rank has its own share of every batch, of a
 * fixed size, and its own random numbers. A real rank computes its virtual ranks one after another. What they compute
 * is added up in a binary tree over the virtual ranks: neighbours 0 and 1, 2 and 3 ... first, then the sums of
 * neighbours, and so on. Where V is no power of two, a sum without a neighbour goes up as it is. The tree is always the
 * same, wherever the virtual ranks are. So a job that grows and shrinks ends with the bits of one process.
 *
 *     uint32_t first, count;
 *     muster_virtual_ranks(group, V, &first, &count);
 *     for (v = first; v < first + count; v++) {          // a step, with muster_ddp_options.virtual_ranks = V
 *         muster_ddp_begin(ddp);
 *         losses[v - first] = forward(model, batch_of(v));
 *         backward(model);                               // gradients are written, not added to
 *         muster_ddp_finish(ddp);                        // after the last one: averages over all virtual ranks
 *     }
 *     muster_virtual_sum(group, V, losses, &loss, 1, MUSTER_FLOAT64);
 *     optimizer_step(model);
 *
 * A sharded training (muster/fsdp.h) does the same with muster_fsdp_options.virtual_ranks. Its ranks have other virtual
 * ranks: muster_virtual_turns().
 *
 * What else must be the same is the program's: the samples of a virtual rank (muster/sampler.h: virtual rank v is rank
 * v of V), random numbers that are functions of seed, step and sample, the number of threads, and a processor of one
 * kind. docs/deterministic-world.md has a whole program. */
#ifndef MUSTER_VIRTUAL_RANKS_H
#define MUSTER_VIRTUAL_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_VIRTUAL_RANKS_MAX ((size_t)4096)

/* The virtual ranks of this rank: *count of them, from *first on; at least one. Does not block. MUSTER_EINVAL: there
 * are no virtual ranks, too many, or fewer than ranks. */
int muster_virtual_ranks(const struct muster_group *group, size_t virtual_ranks, uint32_t *first, uint32_t *count);

/* The same for an fsdp (muster/fsdp.h), whose ranks have every P-th: rank r of P has the virtual ranks r, r + P, r + 2P
 * ... So those that are computed at the same time are neighbours in the tree, and each owner of gradients has their
 * sums at once. This rank's are *first, *first + *stride, *first + 2 * *stride, ...; *count of them, at least one. */
int muster_virtual_turns(const struct muster_group *group, size_t virtual_ranks, uint32_t *first, uint32_t *stride,
                         uint32_t *count);

/* sum[i] = values of virtual rank 0 [i] + ... + values of virtual rank V-1 [i], added up by the tree, on every rank.
 * For what is small: losses, counts, statistics. (Gradients are ddp's.) values: those of this rank's virtual ranks,
 * `count` elements each, one after the other; sum: `count` elements, which do not overlap them. Integers wrap around.
 * float16 and bfloat16 are rounded at each addition. Collective, blocks. Errors as of the collectives
 * (muster/collective.h), MUSTER_ENOMEM too, which aborts the group. Cost: an all_gather of V * count elements, and
 * memory for them while it runs. */
int muster_virtual_sum(struct muster_group *group, size_t virtual_ranks, const void *values, void *sum, size_t count,
                       enum muster_type type);
/* The same sum, to the bit, of the values of muster_virtual_turns(). */
int muster_virtual_turns_sum(struct muster_group *group, size_t virtual_ranks, const void *values, void *sum,
                             size_t count, enum muster_type type);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
