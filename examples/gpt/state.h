/* The model's tensors as libmuster's snapshots want them. */
#ifndef EXAMPLES_GPT_STATE_H
#define EXAMPLES_GPT_STATE_H

#include <muster/snapshot.h>

#include "resident.h"

/* One for each parameter, in `out`, whose memory is `values`, laid out like the parameters. prefix: before each name,
 * which is then kept in `names`, one of MUSTER_NAME_MAX bytes for each; NULL: the parameters' own names. Returns how
 * many. */
size_t state_describe(const struct resident *resident, float *values, const char *prefix,
                      char (*names)[MUSTER_NAME_MAX], struct muster_tensor *out);

#endif
