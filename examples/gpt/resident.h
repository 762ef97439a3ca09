/* All parameters in the memory of this process: the simplest struct gpt_memory. Gradients are there too, or wherever a
 * ddp wants them. */
#ifndef EXAMPLES_GPT_RESIDENT_H
#define EXAMPLES_GPT_RESIDENT_H

#include <muster/snapshot.h>

#include "gpt.h"
#include "weights.h"

struct resident {
    const struct gpt_parameters *list; /* borrowed */
    float **parameters, **gradients;   /* of each unit; in `memory` they lie one after the other */
    float *memory[2];                  /* of the parameters, and of own gradients or NULL */
    int *uses;                         /* of each unit in this backward pass */
    bool add;                          /* the next backward pass adds to the gradients */
    /* May be NULL: is told which unit's gradients are complete. */
    void (*complete)(void *context, int unit);
    void *context;
};

void resident_init(struct resident *resident, const struct gpt_parameters *list);
void resident_done(struct resident *resident);

/* Memory for the gradients, zeros. A caller that does without sets all of resident->gradients. */
void resident_own_gradients(struct resident *resident);

/* The parameters live elsewhere from now on: resident->parameters has been set. */
void resident_give_up(struct resident *resident);

/* First values of all units. */
void resident_fill(struct resident *resident, const struct first_values *first);

/* One tensor for each parameter, in `out`, as libmuster's snapshots want them. units: where the values of each unit
 * are. Returns how many. */
size_t resident_describe(const struct gpt_parameters *list, float *const *units, struct muster_tensor *out);

/* Borrows `resident` as long as the model lives. */
struct gpt_memory resident_memory(struct resident *resident);

#endif
