/* For rooms beside this one: an optimizer whose memory has a twin at a fixed distance, in which the next step is
 * written. Parameters and what is remembered have one; the numbers of steps stay where they are. */
#ifndef TRAIN_OPTIMIZER_BESIDE_H
#define TRAIN_OPTIMIZER_BESIDE_H

#include <stddef.h>

#include <muster/optimizer.h>

/* muster_optimizer_step_into() the memory `distance` bytes behind where the values are. options: NULL for the defaults;
 * `out` is not used. The optimizer stays where it is. */
int optimizer_step_beside(struct muster_optimizer *optimizer, const float *const *gradients,
                          const struct muster_optimizer_step_options *options, ptrdiff_t distance);

/* From now on the values are there. */
void optimizer_move_beside(struct muster_optimizer *optimizer, ptrdiff_t distance);

/* The ranges that were registered, and where the values of one are. */
size_t optimizer_range_count(const struct muster_optimizer *optimizer);
float *optimizer_range_at(const struct muster_optimizer *optimizer, size_t range, size_t *out_count);

#endif
