/* Training in one process: model, optimizer, schedule, snapshots. */
#ifndef EXAMPLES_GPT_TRAINER_H
#define EXAMPLES_GPT_TRAINER_H

#include <muster/optimizer.h>
#include <muster/schedule.h>

#include "gpt.h"
#include "options.h"
#include "resident.h"
#include "text.h"

struct trainer {
    struct options options; /* set before trainer_create() */
    struct text text;
    struct alphabet alphabet; /* the text's, or the snapshot's */
    struct gpt_parameters *parameters;
    struct resident resident;
    struct gpt *model;
    struct muster_optimizer *optimizer; /* a range for each tensor, in the order of the list */
    const float **gradients;            /* of each range */
    struct muster_schedule schedule;
    int32_t *tokens, *targets;
    int64_t step; /* steps done */
};

/* Reads the text, makes the model, and goes on from the newest snapshot if there is one. */
void trainer_create(struct trainer *trainer);
void trainer_free(struct trainer *trainer);

/* One step. Returns the loss before it; *norm: of the gradients before clipping. */
double trainer_step(struct trainer *trainer, double *norm);

/* Mean loss over some sequences of the text that nobody trains on, always the same ones. */
double trainer_evaluate(struct trainer *trainer);

/* ---- state.c ---- */

/* Saves what training goes on from, if a folder was given. */
void trainer_save(struct trainer *trainer);

/* Loads it into a trainer whose model is made. False: there is no snapshot. */
bool trainer_load(struct trainer *trainer);

/* Shape and alphabet of the model in the newest snapshot; fails if there is none. */
void trainer_load_shape(struct trainer *trainer);

#endif
