/* Which samples a rank trains on: a distributed sampler.
 *
 * An epoch has one order of all samples, given by seed and epoch alone: neither the number of workers nor the machine
 * changes it. Its places 0, 1, 2 ... are dealt out in turn: of P ranks, rank r gets places r, r + P, r + 2P ... The end
 * is made even, so that all ranks get equally many: by going on at the beginning of the order (padding), or by leaving
 * samples out (drop_last). With `uneven` the end stays as it is: for evaluation, or beside a ddp with uneven_inputs.
 * Lengths and places are those of PyTorch's DistributedSampler; its order for a seed comes
 * from another generator.
 *
 * After a restart in the middle of an epoch, muster_sampler_resume() goes on at the place that was reached, with the
 * same or another number of ranks. No sample comes twice, except the padding at the end of an epoch, and none is left
 * out.
 *
 *     muster_sampler_create(&options, &sampler);
 *     for (epoch = first; epoch < epochs; epoch++) {
 *         muster_sampler_set_epoch(sampler, epoch);
 *         while ((count = muster_sampler_take(sampler, indices, batch_size)) > 0) {
 *             train_on(indices, count);
 *         }
 *     }
 *
 * With virtual ranks (muster/virtual_ranks.h) each virtual rank has a sampler: virtual rank v of V is rank v of V, with
 * `uneven`. A step's samples then depend on the place that was reached alone, and a world that changes at any step uses
 * each sample once an epoch. After a step of n samples a virtual rank that place is n * V further, or at the end.
 *
 * The order: places are shuffled by Fisher and Yates' method (from the last down, Durstenfeld 1964). The random numbers
 * are those of xoshiro256** (Blackman and Vigna 2018), made even by Lemire's method (2019). The generator's state is
 * four numbers of splitmix64 from a mixture of seed and epoch. docs/snapshots.md has it in ten lines of Python.
 *
 * No call blocks, or reads a clock or the environment. One thread at a time for one sampler. */
#ifndef MUSTER_SAMPLER_H
#define MUSTER_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_SAMPLER_SAMPLES_MAX UINT32_MAX

struct muster_sampler;

/* Start from MUSTER_SAMPLER_OPTIONS_INIT. All but rank are to be the same on every rank. */
struct muster_sampler_options {
    size_t size;           /* of this struct, set by the initializer: lets it grow later */
    uint64_t sample_count; /* of the data set; at most MUSTER_SAMPLER_SAMPLES_MAX */
    uint32_t rank, world_size;
    uint64_t seed;
    bool shuffle;   /* else the order is 0, 1, 2 ... */
    bool drop_last; /* leave out what does not go round; else pad */
    bool uneven;    /* neither: every sample comes once, some ranks get one more. Not with drop_last */
};
#define MUSTER_SAMPLER_OPTIONS_INIT                                                                                    \
    { sizeof(struct muster_sampler_options), 0, 0, 1, 0, true, false, false }

/* Begins at the beginning of epoch 0. With shuffle it holds 4 bytes for each sample of the data set.
 * Errors: MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int muster_sampler_create(const struct muster_sampler_options *options, struct muster_sampler **out);
/* NULL is accepted. */
void muster_sampler_free(struct muster_sampler *sampler);

/* Begins at the beginning of an epoch (any number). With shuffle it takes a few ns for each sample of the data set. */
int muster_sampler_set_epoch(struct muster_sampler *sampler, int64_t epoch);

/* Begins in the middle: the first `consumed` places of the epoch have been dealt out. Every rank calls it alike. */
int muster_sampler_resume(struct muster_sampler *sampler, int64_t epoch, uint64_t consumed);

/* The epoch, and how many of its places have been dealt out to all ranks together, when each has taken as many as this
 * one. The two numbers are what a snapshot keeps. */
int64_t muster_sampler_epoch(const struct muster_sampler *sampler);
uint64_t muster_sampler_consumed(const struct muster_sampler *sampler);

/* How many samples are still to come for this rank in this epoch; the same on every rank, with `uneven` one more on
 * some. */
uint64_t muster_sampler_left(const struct muster_sampler *sampler);

/* Writes the next samples of this rank to `out`, at most `count`; returns how many. 0: the epoch is over. */
size_t muster_sampler_take(struct muster_sampler *sampler, uint64_t *out, size_t count);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
