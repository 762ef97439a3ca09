/* For the tests of fsdp: a model that is trained by several ranks, and by one process with plain loops.
 *
 * A gradient is made of the parameter itself and of a number from (rank, step, parameter, element). So a rank that
 * reads a parameter too early, too late or in the wrong place has another gradient, and so have the parameters after
 * it. */
#ifndef TRAIN_FSDP_TEST_SUPPORT_H
#define TRAIN_FSDP_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/fsdp.h>

#include "comm/group/ranks_test_support.h"

enum { UNITS = 5, PARAMETERS = 11, STEPS_MAX = 16 };

/* How the job is run, and by what reference it is judged. */
struct job {
    struct muster_fsdp_options options;
    struct ranks_options ranks;
    const char *environment; /* set in each rank: "MUSTER_SHM=0"; or NULL */
    uint32_t steps;
    double norm_max;                      /* 0: no clipping */
    double tolerance;                     /* 0: to the bit */
    uint32_t frozen;                      /* bit mask of parameters */
    size_t block;                         /* of the second parameter */
    enum muster_fsdp_step_kind before[2]; /* what each step of the optimizer consists of, before the STEP */
    uint32_t before_count;
    bool uses_first_twice; /* unit 0 is used with the last one as well */
    uint32_t skipped;      /* unit that odd steps do not use; 0: none */
    uint32_t batches;      /* of rank r: steps - r * batches; with uneven_inputs */
};
#define JOB_INIT                                                                                                       \
    { .options = MUSTER_FSDP_OPTIONS_INIT, .steps = 5 }

extern const size_t parameter_counts[PARAMETERS];
extern const uint32_t parameter_units[PARAMETERS];
extern const char *const parameter_names[PARAMETERS];

/* The list of units for a job. Valid until the next call. */
const struct muster_fsdp_unit *job_units(const struct job *job);
int fill_parameter(void *context, size_t unit, size_t parameter, float *values);

/* Runs the job on `size` ranks and compares all parameters with those of one process. Fails the test if they differ. */
void job_check(uint32_t size, const struct job *job);

#endif
