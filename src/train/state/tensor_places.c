/* See tensor_places.h. */
#include "train/state/tensor_places.h"

#include <stdbool.h>
#include <string.h>

#include "base/fnv.h"
#include "base/status.h"
#include "comm/device/device.h"
#include "train/state/state_description.h"

static bool is_on_device(const struct muster_tensor *tensor) {
    return device_place_of(tensor->data) == DEVICE_PLACE_DEVICE && state_element_count(tensor) > 0;
}

uint64_t tensors_places(const struct muster_tensor *tensors, size_t count) {
    uint64_t hash = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_on_device(&tensors[i])) {
            hash = fnv_bytes(hash ? hash : FNV_BEGIN, &i, sizeof i);
        }
    }
    return hash;
}

static bool takes_device(const struct muster_group *group) {
    return strcmp(muster_group_engine(group), "nccl") == 0;
}

const char *tensors_host_engine(const struct muster_group *group) {
    return takes_device(group) ? "muster" : NULL;
}

int tensors_check_group(const struct muster_group *group, const struct muster_tensor *tensors, size_t count) {
    if (muster_group_size(group) == 1 || takes_device(group)) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_on_device(&tensors[i])) {
            return status_fail(
                MUSTER_EUNSUPPORTED,
                "tensor %s is in memory of the GPU, which the group's engine, '%s', cannot send to other "
                "ranks: make the group with the engine 'nccl'",
                tensors[i].name, muster_group_engine(group));
        }
    }
    return 0;
}
