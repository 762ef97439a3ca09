/* What the model computes, for comparison with another implementation. */
#ifndef EXAMPLES_GPT_CHECK_H
#define EXAMPLES_GPT_CHECK_H

#include "options.h"

/* Reads the parameters (unless options->weights has them), `tokens` and `targets` (int32, batch x context) from the
 * safetensors file options->check, and writes `logits`, `loss` and the gradient of every parameter, under its name, as
 * the snapshot of step 0 into the folder options->check_out. Nothing is dropped. */
void check_write(const struct options *options);

#endif
