/* For tests of checkpoints: a state, cut among ranks as irregularly as can be, all of which comes from one number, so
 * that a mixture of two saves is seen. */
#ifndef TRAIN_CHECKPOINT_TEST_SUPPORT_H
#define TRAIN_CHECKPOINT_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/state/state_description.h"

#include <muster/checkpoint.h>

enum { TEST_TENSORS_MAX = 8, TEST_CHUNKS_MAX = 64, TEST_TEXT_BYTES = 32 };

/* What a rank has. Each chunk lies in an allocation of its own, so that a sanitizer sees what leaves it. */
struct test_state {
    struct muster_tensor tensors[TEST_TENSORS_MAX];
    struct muster_checkpoint_chunk chunks[TEST_CHUNKS_MAX];
    struct state_chunk own_chunks[TEST_CHUNKS_MAX]; /* the same */
    size_t chunk_count;
    int64_t tag;
    double half;
    char text[TEST_TEXT_BYTES];
    struct muster_value values[3];
    struct state_description description;
    struct muster_checkpoint_state state;
};

/* How the tensors are cut. */
struct test_cut {
    uint64_t seed;       /* which ranges there are, and whose they are: the same on all ranks */
    uint32_t rank, size; /* of the rank whose state it is */
    bool whole;          /* every rank has everything */
};

/* tensors: which ones there are, without data; those with an odd index are whole, the others cut. All memory is zeroed.
 */
void test_state_init(struct test_state *t, const struct muster_tensor *tensors, size_t tensor_count,
                     const struct test_cut *cut);
void test_state_done(struct test_state *t);

/* Everything from one number > 0. */
void test_state_fill(struct test_state *t, int64_t tag);
/* The number that everything comes from, or 0. */
int64_t test_state_tag(const struct test_state *t);

/* Tensors of all sizes, some without elements, some with fewer than there are ranks: a few hundred bytes in all. */
enum { TEST_SMALL_COUNT = 7 };
extern const struct muster_tensor test_small[TEST_SMALL_COUNT];

/* A number below `limit` (> 0) from a state that moves on. */
uint32_t test_random(uint64_t *state, uint32_t limit);

#endif
