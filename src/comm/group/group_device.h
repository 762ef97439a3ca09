/* A group's GPU, for train: on which stream its work on gradients goes. What work there is: comm/device/device_work.h.
 */
#ifndef COMM_GROUP_DEVICE_H
#define COMM_GROUP_DEVICE_H

#include <stdbool.h>

#include <muster/group.h>

#include "comm/device/device_work.h"

/* The group's GPU and the stream that muster_group_set_stream() has set, as they are at this moment: by the thread that
 * calls collectives on the group. *out borrows from the group. Waiting has the group's time-out, and two seconds once
 * it has failed. MUSTER_EUNSUPPORTED: the engine has no GPU, with a sentence; MUSTER_EINVAL: as of any call. */
int group_device(struct muster_group *group, struct device_stream *out);

/* Waits until the stream has done what it has been given so far, so that memory may be freed. false, with a warning
 * that names the user ("a ddp"): the GPU does not come to it, and memory is to be left to it. Leaves the detail alone.
 */
bool group_device_is_idle(struct muster_group *group, const char *user);

#endif
