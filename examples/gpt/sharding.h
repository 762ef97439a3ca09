/* How the ranks of a group hold the model: where parameters and gradients are, and how gradients become those of all
 * ranks. This is all that differs between training in one process, with ddp and with fsdp; model and trainer do not
 * know. A step reads:
 *
 *     sharding_begin();
 *     gpt_forward(), gpt_loss(), gpt_backward();        with sharding_memory()
 *     sharding_finish();                                gradients are the average over the ranks
 *                                                       (of virtual ranks: three calls for each of this rank)
 *     sharding_squared_norm(); sharding_step();
 *
 * Calls on which ranks must agree are made by all of them. Failures end the program (fail.h). */
#ifndef EXAMPLES_GPT_SHARDING_H
#define EXAMPLES_GPT_SHARDING_H

#include <muster/ddp.h>
#include <muster/fsdp.h>
#include <muster/group.h>
#include <muster/optimizer.h>
#include <muster/snapshot.h>
#include <muster/state.h>

#include "gpt.h"
#include "resident.h"

enum sharding_kind {
    SHARDING_AUTO,   /* what fits the number of ranks */
    SHARDING_NONE,   /* one process */
    SHARDING_DDP,    /* every rank has all parameters */
    SHARDING_FSDP,   /* every rank has a part of them, and the ranks of a host share one memory */
    SHARDING_HYBRID, /* the same over the ranks of a host: every host has all of them */
};

struct sharding_choice {
    enum sharding_kind kind;
    bool bfloat16;        /* with fsdp: parameters are rounded before they are computed with, and gradients travel so */
    int virtual_ranks;    /* steps have the same bits on any number of ranks; 0: none */
    int64_t copies_every; /* steps between two copies of a kept state on other hosts; 0: none are made */
    bool parts;           /* every rank saves a part of the state (a checkpoint), not one rank all of it (a snapshot) */
};

/* The groups of the optimizer's ranges: matrices of linear layers decay, everything else does not. */
enum sharding_group { SHARDING_DECAYS, SHARDING_KEEPS, SHARDING_GROUPS };

struct sharding {
    struct sharding_choice choice; /* its kind is not SHARDING_AUTO */
    struct muster_group *group;
    const struct gpt_parameters *list;
    /* With fsdp. */
    struct muster_fsdp *fsdp; /* else NULL */
    float *wide[2];           /* with bfloat16: units that are held, as the model computes with them */
    int wide_unit[2];
    bool is_kept; /* the state outlives its processes */
    /* Without fsdp. */
    struct resident resident;
    struct muster_state *state; /* NULL: it is not kept, or by the fsdp */
    struct muster_ddp *ddp;     /* or NULL */
    const float **gradients;    /* of each tensor, in the order of the list */
};

/* Are the parameters spread over the ranks? They then have other virtual ranks than with ddp. */
static inline bool sharding_is_fsdp(const struct sharding_choice *choice) {
    return choice->kind == SHARDING_FSDP || choice->kind == SHARDING_HYBRID;
}

/* Borrows group and list until sharding_done(). first: of the parameters. */
void sharding_init(struct sharding *sharding, const struct sharding_choice *choice, struct muster_group *group,
                   const struct gpt_parameters *list, const struct first_values *first);
void sharding_done(struct sharding *sharding);

/* An optimizer for what this rank has. groups: of an enum sharding_group. To be freed before sharding_done(). */
void sharding_make_optimizer(struct sharding *sharding, const struct muster_optimizer_group *groups,
                             struct muster_optimizer **out);

/* Moves all that is trained into memory that outlives the processes. Returns the step of an earlier life of the job,
 * whose state is there now, and in what `extra` describes; or -1. Before sharding_start(). */
int64_t sharding_keep(struct sharding *sharding, struct muster_optimizer *optimizer,
                      const struct muster_snapshot_state *extra);
/* Bytes that this takes beyond those of training without: of a host with fsdp, of this rank without; 0: it is not kept.
 */
size_t sharding_kept_bytes(const struct sharding *sharding);
/* Are parts of the kept state copied to other hosts? */
bool sharding_makes_copies(const struct sharding *sharding);
/* Before some ranks leave: what was committed last is on other hosts, too, when this returns. */
void sharding_hand_over(struct sharding *sharding);
/* What has been computed is the state of `step` now. Does nothing if it is not kept. */
void sharding_commit(struct sharding *sharding, int64_t step, const struct muster_snapshot_state *extra);

/* Once parameters have their values, those of rank 0 are everybody's. Afterwards steps may begin. */
void sharding_start(struct sharding *sharding);

/* Borrows `sharding` as long as the model lives. */
struct gpt_memory sharding_memory(struct sharding *sharding);

/* Around the passes of a step. */
void sharding_begin(struct sharding *sharding);
void sharding_finish(struct sharding *sharding);

/* Around forward passes alone. */
void sharding_begin_evaluation(struct sharding *sharding);
void sharding_finish_evaluation(struct sharding *sharding);

/* Of the gradients of the whole model, the same bits on every rank. */
double sharding_squared_norm(struct sharding *sharding);

/* The optimizer's step, with gradients multiplied by gradient_scale. */
void sharding_step(struct sharding *sharding, struct muster_optimizer *optimizer, double gradient_scale);

/* The parameters, what the optimizer remembers, and what `extra` describes, as a snapshot or a checkpoint that any
 * number of ranks can load, with any sharding. A kept state of which every rank saves a part is saved while training
 * goes on; what falls due before that is done is skipped, but the last is waited for. */
void sharding_save(struct sharding *sharding, struct muster_optimizer *optimizer, const char *folder, int64_t step,
                   const struct muster_snapshot_state *extra, bool is_last);
/* Of saves while training goes on. False: there were none. */
bool sharding_saves(const struct sharding *sharding, struct muster_background_statistics *out);
/* Before sharding_start(). False: there is neither a checkpoint, which is looked for with `parts`, nor a snapshot. */
bool sharding_load(struct sharding *sharding, struct muster_optimizer *optimizer, const char *folder,
                   const struct muster_snapshot_state *extra, struct muster_snapshot_found *found);

/* How long this rank has waited for others so far, in seconds: communication that computing did not hide. */
double sharding_waited(const struct sharding *sharding);

#endif
