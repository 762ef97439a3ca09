/* The state that a program describes, whatever version's structs it uses, and the options of a save. */
#include <stdlib.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/state/snapshot_impl.h"

int snapshot_tensors_read(const struct muster_tensor *given, size_t tensor_bytes, size_t count,
                          struct sized_array *out) {
    if (count > MUSTER_TENSORS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu tensors; at most %zu fit into a snapshot", count, MUSTER_TENSORS_MAX);
    }
    return sized_read_array(out, sizeof *given, given, tensor_bytes, count, sizeof *given, "muster_tensor");
}

int snapshot_state_read(const struct muster_snapshot_state *given, struct snapshot_state *out) {
    *out = (struct snapshot_state){.state = MUSTER_SNAPSHOT_STATE_INIT};
    struct muster_snapshot_state *state = &out->state;
    struct sized_array tensors = {NULL, NULL};
    if (!given) {
        return status_fail_null("a snapshot", "state");
    }
    int code = sized_read_options(state, sizeof *state, given, "muster_snapshot_state", "MUSTER_SNAPSHOT_STATE_INIT");
    code = code ? code : snapshot_tensors_read(state->tensors, state->tensor_bytes, state->tensor_count, &tensors);
    if (code == 0 && state->value_count > 0 && !state->values) {
        free(tensors.owned);
        return status_fail_null("a snapshot", "state->values");
    }
    state->tensors = tensors.items;
    state->tensor_bytes = sizeof *state->tensors;
    out->owned = tensors.owned;
    return code;
}

void snapshot_state_done(struct snapshot_state *state) {
    free(state->owned);
    state->owned = NULL;
}

static int check_values(const struct muster_value *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!values[i].name || !values[i].data) {
            return status_fail(MUSTER_EINVAL, "value %zu has no name or no data", i);
        }
    }
    return 0;
}

int snapshot_state_check(const struct muster_snapshot_state *state) {
    struct safetensors table;
    int code = safetensors_layout(state->tensors, state->tensor_count, &table);
    if (code == 0) {
        safetensors_done(&table); /* it was made to check the list */
        code = check_values(state->values, state->value_count);
    }
    return code;
}

int snapshot_options_read(const struct muster_snapshot_options *given, struct muster_snapshot_options *out) {
    *out = (struct muster_snapshot_options)MUSTER_SNAPSHOT_OPTIONS_INIT;
    return sized_read_options(out, sizeof *out, given, "muster_snapshot_options", "MUSTER_SNAPSHOT_OPTIONS_INIT");
}
