/* The model's parameters and gradients, all of them in the memory of this process: the simplest struct gpt_memory. */
#ifndef EXAMPLES_GPT_RESIDENT_H
#define EXAMPLES_GPT_RESIDENT_H

#include "gpt.h"

struct resident {
    const struct gpt_parameters *list; /* borrowed */
    float *parameters, *gradients;     /* all units, one after the other */
    size_t *begins;                    /* of each unit, in floats */
    bool add;                          /* the next backward pass adds to the gradients */
};

void resident_init(struct resident *resident, const struct gpt_parameters *list);
void resident_done(struct resident *resident);

/* First values of all units. */
void resident_fill(struct resident *resident, uint64_t seed);

/* Borrows `resident` as long as the model lives. */
struct gpt_memory resident_memory(struct resident *resident);

/* Where tensor number `number` of unit number `unit` begins, in floats. */
size_t resident_at(const struct resident *resident, int unit, size_t number);

#endif
