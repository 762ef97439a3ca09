/* The state that a program describes, whatever version's structs it uses. */
#include <stdlib.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/checkpoint/checkpoint_group_impl.h"

static int read_chunks(const struct muster_checkpoint_state *state, struct checkpoint_description *out) {
    struct sized_array given = {NULL, NULL};
    int code = sized_read_array(&given, sizeof(struct muster_checkpoint_chunk), state->chunks, state->chunk_bytes,
                                state->chunk_count, sizeof(struct muster_checkpoint_chunk), "muster_checkpoint_chunk");
    if (code) {
        return code;
    }
    const struct muster_checkpoint_chunk *chunks = given.items;
    out->chunks = calloc(state->chunk_count + 1, sizeof *out->chunks);
    for (size_t i = 0; i < state->chunk_count && out->chunks; i++) {
        out->chunks[i] = (struct state_chunk){chunks[i].tensor, chunks[i].first, chunks[i].count, chunks[i].data};
    }
    free(given.owned);
    return out->chunks ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu chunks", state->chunk_count);
}

int checkpoint_description_read(const struct muster_checkpoint_state *given, struct checkpoint_description *out) {
    struct muster_checkpoint_state state = MUSTER_CHECKPOINT_STATE_INIT;
    struct sized_array tensors = {NULL, NULL};
    *out = (struct checkpoint_description){.chunks = NULL};
    if (!given) {
        return status_fail_null("a checkpoint", "state");
    }
    int code =
        sized_read_options(&state, sizeof state, given, "muster_checkpoint_state", "MUSTER_CHECKPOINT_STATE_INIT");
    if (code == 0 && state.tensor_count > MUSTER_TENSORS_MAX) {
        code =
            status_fail(MUSTER_ELIMIT, "%zu tensors; at most %zu are possible", state.tensor_count, MUSTER_TENSORS_MAX);
    }
    if (code == 0 && state.value_count > 0 && !state.values) {
        code = status_fail_null("a checkpoint", "state->values");
    }
    code = code ? code
                : sized_read_array(&tensors, sizeof *state.tensors, state.tensors, state.tensor_bytes,
                                   state.tensor_count, sizeof *state.tensors, "muster_tensor");
    if (code) {
        return code;
    }
    out->tensors = tensors.owned;
    code = read_chunks(&state, out);
    out->state = (struct state_description){.tensors = tensors.items,
                                            .tensor_count = state.tensor_count,
                                            .chunks = out->chunks,
                                            .chunk_count = state.chunk_count,
                                            .values = state.values,
                                            .value_count = state.value_count};
    return code;
}

void checkpoint_description_done(struct checkpoint_description *description) {
    free(description->chunks);
    free(description->tensors);
}
