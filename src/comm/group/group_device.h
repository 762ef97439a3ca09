/* A group's GPU, for train: on which stream its work on gradients goes. What work there is: comm/device/device_work.h.
 */
#ifndef COMM_GROUP_DEVICE_H
#define COMM_GROUP_DEVICE_H

#include <stdbool.h>

#include <muster/group.h>

#include "comm/device/cuda_library.h"
#include "comm/device/device_work.h"

/* The group's GPU and the stream that muster_group_set_stream() has set, as they are at this moment: by the thread that
 * calls collectives on the group. *out borrows from the group. Waiting has the group's time-out, and two seconds once
 * it has failed. MUSTER_EUNSUPPORTED: the engine has no GPU, with a sentence; MUSTER_EINVAL: as of any call. */
int group_device(struct muster_group *group, struct device_stream *out);

/* Refuses a buffer in memory of a GPU in a group whose engine takes that of the host alone; MUSTER_EUNSUPPORTED. Costs
 * a question to the driver, where the process has one in use. (Managed memory is the host's, too.) name: of the call.
 */
int group_device_refuse(const struct muster_group *group, const char *name, const void *buffer);

/* May there be such a buffer at all? One load, for the path that short calls are measured by. */
static inline bool group_device_may_refuse(void) {
    return __builtin_expect(cuda_library_if_open() != NULL, 0);
}

/* Waits until the stream has done what it has been given so far, so that memory may be freed. false, with a warning
 * that names the user ("a ddp"): the GPU does not come to it, and memory is to be left to it. Leaves the detail alone.
 */
bool group_device_is_idle(struct muster_group *group, const char *user);

#endif
