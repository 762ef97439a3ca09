/* Checkpoints of a state while training goes on (train/background/background.h). The program describes what it wants to
 * find in the file. What of it lies in the committed copy is read there by the thread; the rest is copied in the call.
 */
#include <muster/checkpoint.h>
#include <muster/state.h>

#include "base/sized.h"
#include "base/status.h"
#include "comm/group/mark.h"
#include "train/commit/state_impl.h"
#include "train/state/state_description.h"

/* What a request is made of. */
struct source {
    const struct muster_state *state;
    struct frozen_place place;
    const struct muster_snapshot_state *saved;
};

/* An address from before the last commit has values of another step, or will have them soon. */
static int check_addresses(const struct muster_state *state, const struct muster_snapshot_state *saved) {
    for (size_t i = 0; i < saved->tensor_count; i++) {
        if (copies_is_stale(state->copies, saved->tensors[i].data)) {
            return status_fail(MUSTER_EINVAL,
                               "tensor %s lies where it was before the last commit: describe it with the addresses of "
                               "now (muster_state_block_data(), muster_optimizer_tensors())",
                               saved->tensors[i].name);
        }
    }
    return MUSTER_OK;
}

static int check(const struct muster_state *state, const struct muster_snapshot_state *saved) {
    const struct state_description all = {.tensors = saved->tensors,
                                          .tensor_count = saved->tensor_count,
                                          .values = saved->values,
                                          .value_count = saved->value_count};
    int status = state_description_check(&all);
    return status ? status : check_addresses(state, saved);
}

static int freeze(void *context, struct frozen_state *out) {
    const struct source *source = context;
    struct snapshot_state saved = {.owned = NULL};
    int status = snapshot_state_read(source->saved, &saved);
    status = status ? status : check(source->state, &saved.state);
    if (status == MUSTER_OK) {
        const struct muster_checkpoint_state whole = MUSTER_CHECKPOINT_STATE(
            saved.state.tensors, saved.state.tensor_count, NULL, 0, saved.state.values, saved.state.value_count);
        status = frozen_state_init(out, &whole, &source->place);
    }
    snapshot_state_done(&saved);
    return status;
}

static int start(struct muster_state *state, struct muster_group *group, struct background_request *request,
                 const struct muster_snapshot_state *saved, bool *out_started) {
    const void *current = copies_current(state->copies);
    const struct frozen_place place = {.memory = current,
                                       .bytes = state->bytes,
                                       .rank = muster_group_rank(group),
                                       .size = muster_group_size(group),
                                       .stream = group_stream(group)};
    struct source source = {state, place, saved};
    request->step = copies_step(state->copies);
    request->copy = current;
    request->freeze = freeze;
    request->context = &source;
    return background_start(&state->background, group, state->disk ? state->disk : &snapshot_io_system, request,
                            out_started);
}

static int check_start(const struct muster_state *state) {
    if (copies_step(state->copies) < 0) {
        return status_fail(MUSTER_EINVAL, "no step has been committed: muster_state_commit() first");
    }
    return copies_is_begun(state->copies)
               ? status_fail(MUSTER_EINVAL, "the optimizer's step has not been committed: muster_state_commit() first")
               : MUSTER_OK;
}

/* NOLINTNEXTLINE(readability-function-size): muster_fsdp_start_checkpoint()'s, and the group */
int muster_state_start_checkpoint(struct muster_state *state, struct muster_group *group, const char *folder,
                                  const struct muster_snapshot_state *saved,
                                  const struct muster_background_options *options, bool *out_started) {
    struct background_request request;
    bool is_started = false;
    if (!state || !group || !saved) {
        return status_fail_null("muster_state_start_checkpoint", !state ? "state" : group ? "saved" : "group");
    }
    int status = check_start(state);
    status = status ? status : background_request_read(&request, folder, options);
    status = status ? status : start(state, group, &request, saved, &is_started);
    if (out_started) {
        *out_started = is_started && status == MUSTER_OK;
    }
    return status ? status_prefix(status, "muster_state_start_checkpoint") : MUSTER_OK;
}

int muster_state_wait_checkpoint(struct muster_state *state) {
    if (!state) {
        return status_fail_null("muster_state_wait_checkpoint", "state");
    }
    int status = background_wait(state->background);
    return status ? status_prefix(status, "muster_state_wait_checkpoint") : MUSTER_OK;
}

int muster_state_background_statistics_sized(const struct muster_state *state, struct muster_background_statistics *out,
                                             size_t out_bytes) {
    struct muster_background_statistics now;
    if (!state || !out) {
        return status_fail_null("muster_state_background_statistics", state ? "out" : "state");
    }
    background_numbers(state->background, &now);
    sized_write(out, out_bytes, &now, sizeof now);
    return MUSTER_OK;
}

size_t muster_state_background_bytes(const struct muster_state *state) {
    return state ? background_bytes(state->background) : 0;
}
