/* For the tests of ddp: a model of six parameters and two buffers, and its gradients.
 *
 * Gradients are numbers made from (rank, step, parameter, element), so that every rank can work out what all others
 * had, and expects the average to the bit: ((g0 + g1) + g2) / 3. */
#ifndef TRAIN_DDP_TEST_SUPPORT_H
#define TRAIN_DDP_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/ddp.h>

#include "comm/group/ranks_test_support.h"

enum { PARAMETERS = 6, COUNT_MAX = 1000, STATISTICS = 5 };
extern const size_t model_counts[PARAMETERS];

struct model {
    float data[PARAMETERS][COUNT_MAX];
    float own[PARAMETERS][COUNT_MAX]; /* gradients of odd parameters, if wished */
    float running[STATISTICS];
    int64_t tracked;
    struct muster_ddp *ddp;
};

float gradient_of(uint32_t rank, uint32_t step, size_t parameter, size_t element);
/* The average as documented; the ranks of the mask `present` contribute, the others' part is zero. */
float average_of(uint32_t size, uint32_t present, uint32_t divisor, uint32_t step, size_t parameter, size_t element);

bool same_bits(const void *left, const void *right, size_t bytes);
/* The same bits; with MPI, which adds in an order of its own, the same but for rounding. */
bool same_sums(const float *left, const float *right, size_t count);

/* Buckets of about 1000 bytes: several, so that there is an order. */
struct muster_ddp_options several_buckets(void);

/* Fills the model with this rank's own numbers and makes its ddp; then it has those of rank 0:
 * gradient_of(50, 0, parameter, element), running[i] = i, tracked = 0. */
void model_make(struct rank *rank, struct muster_group *group, const struct muster_ddp_options *options,
                bool with_own_gradients, struct model *model);
/* Frees its ddp, and the group. */
void model_free(struct model *model, struct muster_group *group);

/* A backward pass: writes this rank's gradients, in an order that depends on `turn` (0: the expected one). */
int backward(struct model *model, uint32_t rank, uint32_t step, uint32_t turn);
/* A whole synchronised step; the first failure. */
int step_run(struct model *model, uint32_t rank, uint32_t step, uint32_t turn);
/* Plain gradient descent at rate 1/8. */
void model_descend(struct model *model);

void check_averages(struct rank *rank, struct model *model, uint32_t present, uint32_t divisor, uint32_t step);
/* All ranks of the group have the same parameters, to the bit. */
void check_agreement(struct rank *rank, struct model *model, struct muster_group *group);

#endif
