/* The model's tensors as libmuster's snapshots want them. */
#ifndef EXAMPLES_GPT_STATE_H
#define EXAMPLES_GPT_STATE_H

#include <muster/snapshot.h>

#include "gpt.h"

/* One for each parameter, in `out`. units: where the values of each unit are. Returns how many. */
size_t state_describe(const struct gpt_parameters *list, float *const *units, struct muster_tensor *out);

#endif
