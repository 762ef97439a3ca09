/* A small model in a kept state (muster/state.h), trained by a rule, for tests that compare it with one that was never
 * disturbed. */
#ifndef TRAIN_STATE_TEST_SUPPORT_H
#define TRAIN_STATE_TEST_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#include <muster/state.h>

#include "comm/group/ranks_test_support.h"

enum { RANGES = 3, FIRST = 40, SECOND = 21, OTHER = 5, STATISTICS = 4 };

/* Two blocks: the first has two ranges and numbers that nothing learns, the second one range. */
struct model {
    float first[FIRST], second[SECOND];
    float *blocks[2];
    float statistics[STATISTICS];
    int64_t step;
    struct muster_tensor tensor;
    struct muster_value value;
    struct muster_snapshot_state extra;
    struct muster_optimizer *optimizer;
};

void model_init(struct rank *rank, struct model *model);

/* A step of the optimizer, without a commit; state: NULL for a model that is not kept. */
int model_step(struct model *model, struct muster_state *state);

/* Has the model the bits of one that has made so many steps? */
void model_compare(struct rank *rank, const struct model *model, int64_t steps);

/* Where the blocks are after a commit. */
void model_follow(struct model *model, const struct muster_state *state);

/* Keeps the model. expected: the step that is to be found, or -1: then step 0 is committed. */
struct muster_state *model_begin(struct rank *rank, struct muster_group *group, struct model *model, int64_t expected);

/* Steps and commits up to step `last`. */
void model_run(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
               int64_t last);

void model_end(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state);

/* The memory of this rank is gone. */
void model_forget(struct rank *rank);

#endif
