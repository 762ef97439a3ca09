/* The parts of a training job and how they are put together: group, text, model, optimizer, schedule, snapshots. */
#ifndef EXAMPLES_GPT_TRAINER_H
#define EXAMPLES_GPT_TRAINER_H

#include <muster/group.h>
#include <muster/optimizer.h>
#include <muster/schedule.h>
#include <muster/snapshot.h>

#include "curve.h"
#include "gpt.h"
#include "options.h"
#include "sharding.h"
#include "text.h"

/* The sequences of each batch that this rank, or one of its virtual ranks, computes in one pass. Shares differ by one
 * sequence at most. A rank that gets none, because ranks are more than sequences, computes one that does not count. */
struct share {
    int first, count;
    double part;  /* of the batch: what counts of it */
    float weight; /* of its loss, so that the average over ranks is the mean over the batch */
};

struct trainer {
    struct options options; /* set before trainer_create() */
    struct muster_group *group;
    uint32_t rank, world;
    struct share *shares;                   /* one, or one for each virtual rank of this rank */
    double *losses;                         /* of each, times its part of the batch */
    uint32_t share_count, share_count_most; /* of this rank; of any */
    struct text text;
    struct alphabet alphabet; /* the text's, or the snapshot's */
    struct gpt_parameters *parameters;
    struct sharding sharding;
    struct gpt *model;
    struct muster_optimizer *optimizer;
    struct muster_schedule schedule;
    int32_t *tokens, *targets;
    int64_t step; /* steps done */
    struct curve curve;
    struct muster_snapshot_found found; /* what it went on from */
    bool from_memory;                   /* or from there */
};

/* Joins the group, reads the text, makes the model, and goes on from the newest snapshot if there is one. */
void trainer_create(struct trainer *trainer);
void trainer_free(struct trainer *trainer);

/* One step. Returns the mean loss over the batch before it; *norm: of the gradients before clipping. All ranks get the
 * same numbers. */
double trainer_step(struct trainer *trainer, double *norm);

/* Mean loss over some sequences of the text that nobody trains on, always the same ones, shared out over the ranks. */
double trainer_evaluate(struct trainer *trainer);

/* ---- state.c ---- */

/* Saves what training goes on from, if a folder was given. is_last: it is on the disk when this returns; others may be
 * saved while training goes on (sharding_save()). */
void trainer_save(struct trainer *trainer, bool is_last);

/* Loads it into a trainer whose model is made. False: there is no snapshot. */
bool trainer_load(struct trainer *trainer);

/* Keeps what training goes on from in memory that outlives the process, and goes on from there. False: there is nothing
 * of an earlier life of this job. */
bool trainer_keep(struct trainer *trainer);

/* A step is done: a rank that is started again goes on after it. */
void trainer_commit(struct trainer *trainer);

/* Shape and alphabet of the model in the newest snapshot; fails if there is none. */
void trainer_load_shape(struct trainer *trainer);

#endif
