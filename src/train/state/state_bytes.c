/* See state_bytes.h. */
#include "train/state/state_bytes.h"

#include <stdbool.h>
#include <string.h>

#include <muster/types.h>

#include "base/fnv.h"
#include "base/status.h"
#include "comm/device/device_stage.h"
#include "train/state/checksum.h"
#include "train/state/safetensors.h"

enum { UNIT_BYTES = 8 };

static size_t round_up(size_t bytes) {
    return (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
}

static size_t tensor_bytes(const struct muster_tensor *tensor) {
    uint64_t bytes = 0;
    (void)safetensors_bytes(tensor->type, tensor->shape, tensor->dim_count, &bytes); /* checked: it can be counted */
    return (size_t)bytes;
}

static size_t value_bytes(const struct muster_value *value) {
    return value->kind == MUSTER_VALUE_TEXT ? value->room : UNIT_BYTES;
}

uint64_t state_hash(const struct muster_snapshot_state *state) {
    uint64_t hash = fnv_bytes(FNV_BEGIN, &state->tensor_count, sizeof state->tensor_count);
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct muster_tensor *tensor = &state->tensors[i];
        hash = fnv_bytes(hash, tensor->name, strlen(tensor->name) + 1);
        hash = fnv_bytes(hash, &tensor->type, sizeof tensor->type);
        hash = fnv_bytes(hash, &tensor->dim_count, sizeof tensor->dim_count);
        hash = fnv_bytes(hash, tensor->shape, tensor->dim_count * sizeof tensor->shape[0]);
    }
    for (size_t i = 0; i < state->value_count; i++) {
        hash = fnv_bytes(hash, state->values[i].name, strlen(state->values[i].name) + 1);
        hash = fnv_bytes(hash, &state->values[i].kind, sizeof state->values[i].kind);
    }
    return hash;
}

size_t state_bytes(const struct muster_snapshot_state *state) {
    size_t bytes = UNIT_BYTES;
    for (size_t i = 0; i < state->tensor_count; i++) {
        bytes += round_up(tensor_bytes(&state->tensors[i]));
    }
    for (size_t i = 0; i < state->value_count; i++) {
        bytes += round_up(value_bytes(&state->values[i]));
    }
    return bytes;
}

/* One tensor's or value's. */
static int copy_one(struct device_stage *stage, void *data, unsigned char *bytes, size_t count, bool writes) {
    return writes ? device_stage_copy_out(stage, bytes, data, count) : device_stage_put(stage, data, bytes, count);
}

/* Both directions: the same order, the same gaps. */
static int copy_all(const struct muster_snapshot_state *state, struct device_stage *stage, unsigned char *bytes,
                    bool writes) {
    int code = 0;
    for (size_t i = 0; i < state->tensor_count + state->value_count && code == 0; i++) {
        bool is_tensor = i < state->tensor_count;
        const struct muster_value *value = is_tensor ? NULL : &state->values[i - state->tensor_count];
        size_t count = is_tensor ? tensor_bytes(&state->tensors[i]) : value_bytes(value);
        code = copy_one(stage, is_tensor ? state->tensors[i].data : value->data, bytes, count, writes);
        if (code && is_tensor) {
            (void)status_prefix(code, "tensor %s", state->tensors[i].name);
        }
        if (writes) {
            memset(bytes + count, 0, round_up(count) - count);
        }
        bytes += round_up(count);
    }
    return code ? code : device_stage_settle(stage);
}

static int copy(const struct muster_snapshot_state *state, void *stream, unsigned char *bytes, bool writes) {
    struct device_stage stage;
    device_stage_init(&stage, stream, state_bytes(state));
    int code = copy_all(state, &stage, bytes, writes);
    device_stage_done(&stage);
    return code;
}

int state_bytes_write(const struct muster_snapshot_state *state, void *stream, void *out) {
    unsigned char *bytes = out;
    int code = copy(state, stream, bytes + UNIT_BYTES, true);
    uint64_t checksum = code ? 0 : checksum_of(bytes + UNIT_BYTES, state_bytes(state) - UNIT_BYTES);
    memcpy(bytes, &checksum, sizeof checksum);
    return code;
}

int state_bytes_read(const struct muster_snapshot_state *state, void *stream, const void *bytes) {
    uint64_t expected;
    const unsigned char *all = bytes;
    memcpy(&expected, all, sizeof expected);
    if (checksum_of(all + UNIT_BYTES, state_bytes(state) - UNIT_BYTES) != expected) {
        return status_fail(MUSTER_ECORRUPT, "what belongs to the state has another checksum than when it was written");
    }
    return copy(state, stream, (unsigned char *)(uintptr_t)all + UNIT_BYTES, false);
}
