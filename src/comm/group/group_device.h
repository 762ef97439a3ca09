/* A group's GPU, for train: on which stream its work on gradients goes. What work there is: comm/device/device_work.h.
 */
#ifndef COMM_GROUP_DEVICE_H
#define COMM_GROUP_DEVICE_H

#include <muster/group.h>

#include "comm/device/device_kernels.h"
#include "comm/device/device_work.h"

/* The group's GPU and the stream that muster_group_set_stream() has set, as they are at this moment: by the thread that
 * calls collectives on the group. *out borrows from the group. Waiting has the group's time-out, and two seconds once
 * it has failed. MUSTER_EUNSUPPORTED: the engine has no GPU, with a sentence; MUSTER_EINVAL: as of any call. */
int group_device(struct muster_group *group, struct device_stream *out);

/* The group's kernels, which its users share: the first one has them compiled. By the thread that makes calls, as is
 * group_release_kernels(), which each user calls when none of its kernels is under way. A user that cannot tell does
 * not call it: the kernels then stay with the GPU. MUSTER_EUNSUPPORTED, MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int group_share_kernels(struct muster_group *group, const struct device_kernels **out);
void group_release_kernels(struct muster_group *group);

#endif
