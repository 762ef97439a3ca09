/* Text from the model, one token after the other. */
#ifndef EXAMPLES_GPT_SAMPLE_H
#define EXAMPLES_GPT_SAMPLE_H

#include <stdio.h>

#include "gpt.h"
#include "text.h"

struct sample_options {
    const char *prompt; /* what the text begins with; alphabet_first() stands before it if it is empty */
    int count;          /* tokens to add */
    double temperature; /* 1: as the model says; less: more of what is likely; 0: the likeliest alone */
    uint64_t seed;
};

/* Writes the prompt and what follows it; out NULL: only computes it, as all ranks must whose parameters are spread over
 * them. Fails if the prompt has a character that the alphabet lacks. */
void sample_write(struct gpt *model, const struct gpt_shape *shape, const struct alphabet *alphabet,
                  const struct sample_options *options, FILE *out);

#endif
