/* How the ranks of a group hold the model: where parameters and gradients are, and how gradients become those of all
 * ranks. This is all that differs between training in one process and in several; model, optimizer and schedule do not
 * know. A step reads:
 *
 *     sharding_begin();
 *     gpt_forward(), gpt_loss(), gpt_backward();        with sharding_memory()
 *     sharding_finish();                                sharding->gradients are the average over the ranks
 *     sharding_squared_norm(); muster_optimizer_step_into(optimizer, sharding->gradients, ...);
 *
 * All ranks make the same calls and the same passes, in the same order. Failures end the program (fail.h). */
#ifndef EXAMPLES_GPT_SHARDING_H
#define EXAMPLES_GPT_SHARDING_H

#include <muster/ddp.h>
#include <muster/group.h>
#include <muster/optimizer.h>

#include "gpt.h"
#include "resident.h"

enum sharding_kind {
    SHARDING_AUTO, /* what fits the number of ranks */
    SHARDING_NONE, /* one process */
    SHARDING_DDP,  /* every rank has all parameters */
};

/* The groups of the optimizer's ranges: matrices of linear layers decay, everything else does not. */
enum sharding_group { SHARDING_DECAYS, SHARDING_KEEPS, SHARDING_GROUPS };

struct sharding {
    enum sharding_kind kind; /* not SHARDING_AUTO */
    struct muster_group *group;
    struct resident resident;
    struct muster_ddp *ddp; /* NULL without */
    /* What the optimizer of this rank steps over: a range for each tensor, in the order of the list. */
    size_t range_count;
    struct muster_optimizer_range *ranges; /* of an enum sharding_group */
    const float **gradients;               /* of each range */
};

/* Borrows group and list until sharding_done(). */
void sharding_init(struct sharding *sharding, enum sharding_kind kind, struct muster_group *group,
                   const struct gpt_parameters *list);
void sharding_done(struct sharding *sharding);

/* First values of all parameters. */
void sharding_fill(struct sharding *sharding, uint64_t seed);

/* Once parameters have their values, those of rank 0 become everybody's. Afterwards steps may begin. */
void sharding_start(struct sharding *sharding);

/* Borrows `sharding` as long as the model lives. */
struct gpt_memory sharding_memory(struct sharding *sharding);

/* Around the passes of a step. Forward passes alone need neither. */
void sharding_begin(struct sharding *sharding);
void sharding_finish(struct sharding *sharding);

/* Of the gradients of the whole model, the same bits on every rank. */
double sharding_squared_norm(const struct sharding *sharding);

/* How long this rank has waited for others so far, in seconds: communication that computing did not hide. */
double sharding_waited(const struct sharding *sharding);

#endif
