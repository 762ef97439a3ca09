/* For the tests of fsdp: a model that is trained by several ranks, and by one process with plain loops.
 *
 * A gradient is made of the parameter itself and of a number from (rank or virtual rank, step, parameter, element). So
 * a rank that reads a parameter too early, too late or in the wrong place has another gradient, and so have the
 * parameters after it. */
#ifndef TRAIN_FSDP_TEST_SUPPORT_H
#define TRAIN_FSDP_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/fsdp.h>
#include <muster/snapshot.h>

#include "comm/group/ranks_test_support.h"

enum { UNITS = 5, PARAMETERS = 11, STEPS_MAX = 16 };

struct job;
/* Something to do for a rank of the job. Other than 0: the job ends here, and nothing is compared. */
typedef int job_hook(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                     struct muster_optimizer *optimizer);

/* How the job is run, and by what reference it is judged. */
struct job {
    struct muster_fsdp_options options;
    struct ranks_options ranks;
    const char *environment; /* set in each rank: "MUSTER_SHM=0"; or NULL */
    uint32_t steps;
    double norm_max;                      /* 0: no clipping */
    double tolerance;                     /* 0: to the bit */
    bool momentum;                        /* SGD with momentum, not AdamW */
    uint32_t frozen;                      /* bit mask of parameters */
    size_t block;                         /* of the second parameter */
    enum muster_fsdp_step_kind before[2]; /* what each step of the optimizer consists of, before the STEP */
    uint32_t before_count;
    bool uses_first_twice;           /* unit 0 is used with the last one as well */
    uint32_t skipped;                /* unit that odd steps do not use; 0: none */
    uint32_t batches;                /* of rank r: steps - r * batches; with uneven_inputs */
    uint32_t first_step, first_size; /* steps before first_step were made by a job of first_size ranks */
    job_hook *prepare, *conclude;    /* before the first step, after the last one; or NULL */
    job_hook *after_step;            /* after each step of the optimizer, or NULL */
    job_hook *after_share;           /* after each pass over a batch, or NULL */
    bool fails;                      /* in a step: nothing is compared */
    const void *context;             /* for them */
};
#define JOB_INIT                                                                                                       \
    { .options = MUSTER_FSDP_OPTIONS_INIT, .steps = 5 }

extern const size_t parameter_counts[PARAMETERS];
extern const uint32_t parameter_units[PARAMETERS];
extern const char *const parameter_names[PARAMETERS];

/* The list of units for a job. Valid until the next call. */
const struct muster_fsdp_unit *job_units(const struct job *job);
struct muster_tensor job_parameter(size_t parameter, float *values); /* of its name and shape */
int fill_parameter(void *context, size_t unit, size_t parameter, float *values);

/* The same training by one process that has everything. */
struct reference {
    float *values[PARAMETERS], *averages[PARAMETERS];
    struct muster_optimizer *optimizer;
};
void reference_init(struct rank *rank, const struct job *job, struct reference *out);
/* Steps from `first` on, up to the job's. size: of the job from its first_step on. */
void reference_run(struct rank *rank, const struct job *job, uint32_t size, uint32_t first, struct reference *r);
void reference_free(struct reference *r);

/* Runs the job on `size` ranks and compares all parameters with those of one process. Fails the test if they differ. */
void job_check(uint32_t size, const struct job *job);
/* What a rank does of it; argument: the job. */
int job_body(struct rank *rank, void *argument);
/* The same in a group that is there, of rank->size ranks. */
void job_run(struct rank *rank, const struct job *job, struct muster_group *group);

#endif
