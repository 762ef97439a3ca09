/* See state_description.h. */
#include "train/state/state_description.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fnv.h"
#include "base/status.h"
#include "train/state/safetensors.h"
#include "train/state/snapshot_parts.h"

uint64_t state_element_count(const struct muster_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        count *= tensor->shape[i];
    }
    return count;
}

bool state_is_whole(const struct muster_tensor *tensor) {
    return tensor->data || state_element_count(tensor) == 0;
}

static int by_name(const void *left, const void *right) {
    return strcmp((*(const struct muster_tensor *const *)left)->name,
                  (*(const struct muster_tensor *const *)right)->name);
}

static int check_unique(const struct muster_tensor *tensors, size_t count) {
    const struct muster_tensor **sorted = calloc(count + 1, sizeof(struct muster_tensor *));
    int code = sorted ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", count);
    for (size_t i = 0; i < count && sorted; i++) {
        sorted[i] = &tensors[i];
    }
    if (count > 1 && sorted) {
        qsort(sorted, count, sizeof(struct muster_tensor *), by_name);
    }
    for (size_t i = 1; i < count && code == 0; i++) {
        if (by_name(&sorted[i - 1], &sorted[i]) == 0) {
            code = status_fail(MUSTER_EINVAL, "two tensors are named %s", sorted[i]->name);
        }
    }
    free(sorted);
    return code;
}

/* As snapshot_state_check(), for which a tensor without data comes from elsewhere. */
static int check_tensors(const struct state_description *state) {
    struct muster_tensor *tensors = calloc(state->tensor_count + 1, sizeof *tensors);
    if (!tensors) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", state->tensor_count);
    }
    for (size_t i = 0; i < state->tensor_count; i++) {
        tensors[i] = state->tensors[i];
        tensors[i].data = tensors[i].data ? tensors[i].data : snapshot_from_source;
    }
    const struct muster_snapshot_state all =
        MUSTER_SNAPSHOT_STATE(tensors, state->tensor_count, state->values, state->value_count);
    int code = snapshot_state_check(&all);
    free(tensors);
    return code ? code : check_unique(state->tensors, state->tensor_count);
}

static int check_chunk(const struct state_description *state, size_t index) {
    const struct state_chunk *chunk = &state->chunks[index];
    if (chunk->tensor >= state->tensor_count) {
        return status_fail(MUSTER_EINVAL, "chunk %zu is of tensor %zu of %zu", index, chunk->tensor,
                           state->tensor_count);
    }
    const struct muster_tensor *tensor = &state->tensors[chunk->tensor];
    uint64_t count = state_element_count(tensor);
    if (chunk->first > count || chunk->count > count - chunk->first) {
        return status_fail(MUSTER_EINVAL,
                           "a chunk of tensor %s has %" PRIu64 " elements from number %" PRIu64 " on; it has %" PRIu64,
                           tensor->name, chunk->count, chunk->first, count);
    }
    if (chunk->count > 0 && (state_is_whole(tensor) || !chunk->data)) {
        return status_fail(MUSTER_EINVAL,
                           chunk->data ? "tensor %s has data, and a chunk: what every rank has whole needs no chunks"
                                       : "a chunk of tensor %s has no data",
                           tensor->name);
    }
    return 0;
}

int state_description_check(const struct state_description *state) {
    if (state->tensor_count > MUSTER_TENSORS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu tensors; at most %zu are possible", state->tensor_count,
                           MUSTER_TENSORS_MAX);
    }
    int code = check_tensors(state);
    for (size_t i = 0; i < state->chunk_count && code == 0; i++) {
        code = check_chunk(state, i);
    }
    return code;
}

uint64_t state_description_hash(const struct state_description *state) {
    uint64_t hash = fnv_bytes(FNV_BEGIN, &state->tensor_count, sizeof state->tensor_count);
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct muster_tensor *tensor = &state->tensors[i];
        hash = fnv_bytes(hash, tensor->name, strlen(tensor->name) + 1);
        hash = fnv_step(fnv_step(hash, tensor->type), state_is_whole(tensor));
        hash = fnv_bytes(hash, &tensor->dim_count, sizeof tensor->dim_count);
        hash = fnv_bytes(hash, tensor->shape, tensor->dim_count * sizeof tensor->shape[0]);
    }
    for (size_t i = 0; i < state->value_count; i++) {
        hash = fnv_bytes(hash, state->values[i].name, strlen(state->values[i].name) + 1);
        hash = fnv_step(hash, state->values[i].kind);
    }
    return hash;
}
