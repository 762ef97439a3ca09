/* The model's tensors as libmuster's snapshots want them. */
#ifndef EXAMPLES_GPT_STATE_H
#define EXAMPLES_GPT_STATE_H

#include <muster/snapshot.h>

#include "resident.h"

/* One for each parameter, in `out`, whose memory is `values`, laid out like the parameters. Returns how many. */
size_t state_describe(const struct resident *resident, float *values, struct muster_tensor *out);

#endif
