/* The parts of a training job and how they are put together: group, data, network, ddp, optimizer, snapshots. */
#ifndef EXAMPLES_MNIST_TRAINER_H
#define EXAMPLES_MNIST_TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/ddp.h>
#include <muster/group.h>
#include <muster/optimizer.h>
#include <muster/sampler.h>
#include <muster/state.h>
#include <muster/store.h>

#include "curve.h"
#include "idx.h"
#include "net.h"
#include "options.h"

/* How far training has come: what a snapshot holds beside tensors of the model. */
struct progress {
    int64_t epoch;    /* whole epochs done */
    int64_t consumed; /* images of the epoch after them that have been dealt out, to all workers together */
    int64_t steps;
    double accuracy;       /* of the last test, 0 to 1 */
    int64_t virtual_ranks; /* those of the options; of a state that was loaded: what it had */
    struct curve curve;
};

/* What an epoch came to so far, on one worker, then on all. */
struct sums {
    double loss, images, right; /* loss: that of an image, added up */
};

struct trainer {
    struct options options;
    struct muster_store *store; /* of a process without a launcher; else NULL */
    struct muster_group *group;
    uint32_t rank, world;
    /* Each step has parts, the micro-batches of all workers or the virtual ranks: these of them are this worker's. */
    uint32_t first_part, parts, part_count;
    struct image_set train, test;
    struct net *net;
    size_t parameter_count;                             /* of this network: those with a count above 0 */
    struct net_tensor *parameters[NET_PARAMETER_COUNT]; /* by their number in ddp and optimizer */
    size_t number[NET_PARAMETER_COUNT];                 /* the other way round */
    struct muster_ddp *ddp;
    struct muster_optimizer *optimizer;
    struct muster_state *state;                 /* outlives the workers; NULL: it ends with them */
    struct muster_sampler *samplers[PARTS_MAX]; /* one for each part of this worker's */
    uint64_t *indices;                          /* of a part's images */
    struct progress progress;
    struct sums sums;              /* of this worker */
    double seconds, communication; /* this worker's, for training and of it for communication, in the epoch so far */
    bool is_unsaved;               /* from memory: the workers before may have been killed before its snapshot */
    bool stops;                    /* before its end: the launcher has asked for it */
    bool broken;                   /* with --shrink: the group has failed, trainer_shrink() is due */
};

/* Was the call that tried to `what` well? A failure ends the program, but with --shrink that of the group only sets
 * t->broken: whoever sees it leaves what it does as it is. */
bool works(struct trainer *t, int status, const char *what);

/* The ranks that are left go on from what the lowest of them has, with the same images a step. */
void trainer_shrink(struct trainer *t);

/* Joins the group; makes data, network and optimizer as t->options say. The rest of *t is zero. */
void trainer_create(struct trainer *t);

/* Goes on from what earlier workers of this job had, or from the newest snapshot, if there is one. Then makes ddp. */
void trainer_resume(struct trainer *t);

/* A step is done: workers that are started again go on after it. */
void trainer_commit(struct trainer *t);

/* Saves a snapshot where --snapshot says so. All workers call it. */
void trainer_save(struct trainer *t);

void trainer_free(struct trainer *t);

#endif
