/* Tensors in memory of a GPU: what the ranks of a group can tell each other of them. Saving and loading need none of
 * this: they go through comm/device/device_stage.h, wherever a tensor is. */
#ifndef TRAIN_TENSOR_PLACES_H
#define TRAIN_TENSOR_PLACES_H

#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/snapshot.h>

/* Which of them are on a GPU, as a number; 0: none. It differs, as good as surely, where that differs. Tensors without
 * elements do not count. */
uint64_t tensors_places(const struct muster_tensor *tensors, size_t count);

/* Can the group send them from one rank to another where they are? MUSTER_EUNSUPPORTED names the first that it cannot.
 */
int tensors_check_group(const struct muster_group *group, const struct muster_tensor *tensors, size_t count);

/* For the options of a group made from this one, whose ranks send each other memory of the host alone: the engine
 * inside of "nccl", without a communicator, which would take memory of the GPU; else NULL. */
const char *tensors_host_engine(const struct muster_group *group);

#endif
