/* muster/state.h: the parameters and what the optimizer remembers, in two copies (copies.h). */
#include <stdlib.h>
#include <string.h>

#include <muster/state.h>

#include "base/fnv.h"
#include "base/sized.h"
#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/device/device.h"
#include "comm/group/mark.h"
#include "train/commit/state_impl.h"
#include "train/optimizers/optimizer_beside.h"
#include "train/reduction/step_failure.h"
#include "train/state/state_bytes.h"

enum { LINE_FLOATS = 16 }; /* blocks and what is remembered of a range begin on cache lines */

static size_t line_bytes(size_t count) {
    return (count + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS * sizeof(float);
}

/* ---- what is described ---- */

/* What the program adds, and before it the optimizer's numbers of steps: what is copied at a commit. */
struct common {
    struct snapshot_state extra;
    struct muster_tensor *tensors; /* all of the optimizer's, then the program's */
    size_t remembered;             /* of the optimizer's, without the last one, of the steps */
    struct muster_snapshot_state state;
};

static int read_extra(const struct muster_snapshot_state *given, struct snapshot_state *out) {
    static const struct muster_snapshot_state none = MUSTER_SNAPSHOT_STATE_INIT;
    int status = snapshot_state_read(given ? given : &none, out);
    return status ? status : snapshot_state_check(&out->state);
}

static int common_init(struct common *common, struct muster_optimizer *optimizer,
                       const struct muster_snapshot_state *given) {
    *common = (struct common){.tensors = NULL};
    int status = read_extra(given, &common->extra);
    if (status != MUSTER_OK) {
        return status;
    }
    const struct muster_snapshot_state *extra = &common->extra.state;
    size_t own = muster_optimizer_tensor_count(optimizer);
    common->tensors = calloc(own + extra->tensor_count + 1, sizeof *common->tensors);
    if (!common->tensors) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", own + extra->tensor_count);
    }
    if (own > 0) {
        status = muster_optimizer_tensors(optimizer, common->tensors);
        common->remembered = own - 1;
    }
    if (extra->tensor_count > 0) {
        memcpy(&common->tensors[own], extra->tensors, extra->tensor_count * sizeof *extra->tensors);
    }
    size_t copied = own - common->remembered + extra->tensor_count;
    common->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(&common->tensors[common->remembered], copied,
                                                                        extra->values, extra->value_count);
    return status;
}

static void common_done(struct common *common) {
    free(common->tensors);
    snapshot_state_done(&common->extra);
}

/* ---- creating ---- */

/* What is given, as this version's structs. */
struct given {
    struct sized_array blocks;
    size_t block_count;
    struct muster_state_options options;
};

static const struct muster_state_block *block_of(const struct given *given, size_t index) {
    return (const struct muster_state_block *)given->blocks.items + index;
}

/* They move into memory that the host's agent holds, where the optimizer steps. */
static int check_blocks(const struct given *given) {
    for (size_t i = 0; i < given->block_count; i++) {
        if (device_place_of(block_of(given, i)->data) == DEVICE_PLACE_DEVICE) {
            return status_fail(MUSTER_EUNSUPPORTED,
                               "block %zu is in memory of the GPU: the blocks of a kept state must be in memory of the "
                               "host",
                               i);
        }
    }
    return MUSTER_OK;
}

static int read_given(struct given *given, const struct muster_state_block *blocks, size_t block_bytes,
                      size_t block_count, const struct muster_state_options *options) {
    given->options = (struct muster_state_options)MUSTER_STATE_OPTIONS_INIT;
    given->block_count = block_count;
    int status = sized_read_options(&given->options, sizeof given->options, options, "muster_state_options",
                                    "MUSTER_STATE_OPTIONS_INIT");
    const char *name = given->options.name;
    if (status == MUSTER_OK && (!name || name[0] == '\0' || strlen(name) >= MUSTER_STATE_NAME_MAX)) {
        status = status_fail(MUSTER_EINVAL, "a name of 1 to %zu bytes is needed", MUSTER_STATE_NAME_MAX - 1);
    }
    if (status == MUSTER_OK && (block_count == 0 || block_count > MUSTER_STATE_BLOCKS_MAX)) {
        status = status_fail(MUSTER_EINVAL, "%zu blocks; 1 to %zu are possible", block_count, MUSTER_STATE_BLOCKS_MAX);
    }
    status = status ? status
                    : sized_read_array(&given->blocks, sizeof *blocks, blocks, block_bytes, block_count, sizeof *blocks,
                                       "muster_state_block");
    return status ? status : check_blocks(given);
}

/* Which block has the range? And how many bytes behind its beginning. */
static int find_block(const struct given *given, const float *data, size_t count, size_t *out_block,
                      size_t *out_offset) {
    for (size_t i = 0; i < given->block_count; i++) {
        const struct muster_state_block *block = block_of(given, i);
        uintptr_t at = (uintptr_t)data, begin = (uintptr_t)block->data;
        if (at >= begin && at - begin <= block->count * sizeof(float) &&
            count <= block->count - (at - begin) / sizeof(float)) {
            *out_block = i;
            *out_offset = at - begin;
            return MUSTER_OK;
        }
    }
    return status_fail(MUSTER_EINVAL, "a range of the optimizer, of %zu elements, lies in no block", count);
}

/* Where blocks and what is remembered will be in a copy. The fingerprint tells other layouts apart. */
static int lay_out(struct muster_state *state, const struct given *given, const struct common *common,
                   uint64_t *fingerprint) {
    uint64_t hash = fnv_bytes(FNV_BEGIN, "ddp", sizeof "ddp");
    state->block_at = calloc(given->block_count, sizeof *state->block_at);
    if (!state->block_at) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu blocks", given->block_count);
    }
    for (size_t i = 0; i < given->block_count; i++) {
        state->block_at[i] = state->bytes;
        state->bytes += line_bytes(block_of(given, i)->count);
        hash = fnv_bytes(hash, &state->block_at[i], sizeof state->block_at[i]);
    }
    state->block_count = given->block_count;
    for (size_t i = 0; i < common->remembered; i++) {
        state->bytes += line_bytes(common->tensors[i].shape[0]);
    }
    for (size_t i = 0; i < optimizer_range_count(state->optimizer); i++) {
        size_t count, block = 0, offset = 0;
        const float *data = optimizer_range_at(state->optimizer, i, &count);
        int status = count > 0 ? find_block(given, data, count, &block, &offset) : MUSTER_OK;
        if (status != MUSTER_OK) {
            return status;
        }
        hash = fnv_bytes(hash, &block, sizeof block);
        hash = fnv_bytes(hash, &offset, sizeof offset);
    }
    const struct muster_snapshot_state remembered = MUSTER_SNAPSHOT_STATE(common->tensors, common->remembered, NULL, 0);
    const uint64_t described[2] = {state_hash(&common->state), state_hash(&remembered)};
    *fingerprint = fnv_bytes(hash, described, sizeof described);
    return MUSTER_OK;
}

static char *current_of(const struct muster_state *state) {
    return copies_current(state->copies);
}

/* The optimizer works in the current copy. */
static int move_optimizer(struct muster_state *state, const struct given *given, const struct common *common,
                          bool copies) {
    size_t ranges = optimizer_range_count(state->optimizer);
    float **places = calloc(ranges + common->remembered, sizeof *places);
    if (!places) {
        return status_fail(MUSTER_ENOMEM, "no memory for the places of %zu ranges", ranges);
    }
    for (size_t i = 0; i < ranges; i++) {
        size_t count, block = 0, offset = 0;
        const float *data = optimizer_range_at(state->optimizer, i, &count);
        if (count > 0) { /* it has been found before */
            (void)find_block(given, data, count, &block, &offset);
            places[i] = (float *)(void *)(current_of(state) + state->block_at[block] + offset);
        }
    }
    char *at = current_of(state) + state->block_at[state->block_count - 1] +
               line_bytes(block_of(given, state->block_count - 1)->count);
    for (size_t i = 0; i < common->remembered; i++) {
        const struct muster_tensor *tensor = &common->tensors[i];
        places[ranges + i] = (float *)(void *)at;
        if (copies && tensor->shape[0] > 0) {
            memcpy(at, tensor->data, tensor->shape[0] * sizeof(float));
        }
        at += line_bytes(tensor->shape[0]);
    }
    struct muster_optimizer_memory memory = MUSTER_OPTIMIZER_MEMORY_INIT;
    memory.parameters = places;
    memory.state = places + ranges;
    int status = muster_optimizer_move(state->optimizer, &memory);
    free(places);
    return status;
}

/* Into both copies: the optimizer writes its ranges alone. */
static void fill_blocks(struct muster_state *state, const struct given *given) {
    char *current = current_of(state), *other = current + copies_delta(state->copies);
    for (size_t i = 0; i < state->block_count; i++) {
        const struct muster_state_block *block = block_of(given, i);
        if (copies_step(state->copies) < 0) {
            memcpy(current + state->block_at[i], block->data, block->count * sizeof(float));
        }
        memcpy(other + state->block_at[i], current + state->block_at[i], block->count * sizeof(float));
    }
}

static int open_copies(struct muster_state *state, struct muster_group *group, const struct given *given,
                       const struct common *common) {
    struct copies_options options = {.name = given->options.name,
                                     .group = group,
                                     .replicas = group,
                                     .place = {0, 1, 1},
                                     .attempts = given->options.attempts};
    int status = lay_out(state, given, common, &options.kind.fingerprint);
    state->description = state_hash(&common->state);
    options.kind.copy_bytes = state->bytes;
    options.kind.extra_bytes = state_bytes(&common->state);
    status = snapshot_agree(group, status);
    status = status ? status : snapshot_agree_on_description(group, &common->state);
    return status ? status : copies_open(&options, &state->copies);
}

static int create(struct muster_state *state, struct muster_group *group, const struct given *given,
                  const struct muster_snapshot_state *extra) {
    struct common common;
    int status = common_init(&common, state->optimizer, extra);
    status = snapshot_agree(group, status);
    status = status ? status : open_copies(state, group, given, &common);
    if (status == MUSTER_OK) {
        bool is_found = copies_step(state->copies) >= 0;
        fill_blocks(state, given);
        status = move_optimizer(state, given, &common, !is_found);
        status = status || !is_found
                     ? status
                     : state_bytes_read(&common.state, group_stream(group), copies_extra(state->copies));
        status = snapshot_agree(group, status);
    }
    common_done(&common);
    return status;
}

/* NOLINTNEXTLINE(readability-function-size): muster_state_create()'s, and the size that it fills in */
int muster_state_create_sized(struct muster_group *group, struct muster_optimizer *optimizer,
                              const struct muster_state_block *blocks, size_t block_bytes, size_t block_count,
                              const struct muster_snapshot_state *extra, const struct muster_state_options *options,
                              struct muster_state **out, int64_t *out_step) {
    struct given given = {.block_count = 0};
    if (!group || !optimizer || !out || !out_step) {
        return status_fail_null("muster_state_create", !group       ? "group"
                                                       : !optimizer ? "optimizer"
                                                       : out        ? "out_step"
                                                                    : "out");
    }
    cuda_library_adopt();
    struct muster_state *state = calloc(1, sizeof *state);
    int status = state ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for a state");
    status = status ? status : read_given(&given, blocks, block_bytes, block_count, options);
    if (status == MUSTER_OK) {
        state->optimizer = optimizer;
        status = create(state, group, &given, extra);
    } else if (status == MUSTER_ENOMEM) {
        step_failure_tell(group, status); /* wrong arguments are wrong on every rank, but a lack is of this one alone */
    }
    free(given.blocks.owned);
    if (status != MUSTER_OK) {
        status = status_prefix(status, "muster_state_create");
        muster_state_free(state);
        return status;
    }
    *out = state;
    *out_step = copies_step(state->copies);
    return MUSTER_OK;
}

void muster_state_free(struct muster_state *state) {
    if (state) {
        background_end(state->background, false);
        copies_close(state->copies);
        free(state->block_at);
        free(state);
    }
}

float *muster_state_block_data(const struct muster_state *state, size_t block) {
    bool is_there = state && block < state->block_count;
    return is_there ? (float *)(void *)(current_of(state) + state->block_at[block]) : NULL;
}

size_t muster_state_bytes(const struct muster_state *state) {
    return state ? copies_bytes(state->copies) : 0;
}

const char *muster_state_note(const struct muster_state *state) {
    return state ? copies_note(state->copies) : "";
}

bool muster_state_outlives(void) {
    struct holder *holder = NULL;
    struct status_kept kept;
    status_keep(&kept);
    bool outlives = holder_open(&holder) == MUSTER_OK && holder_is_agent(holder);
    holder_close(holder);
    status_put_back(&kept); /* an agent that does not answer is an answer */
    return outlives;
}

/* ---- steps ---- */

/* The copy that is not committed may be written, once no thread reads it. */
static void begin_copy(struct muster_state *state) {
    background_before_write(state->background, current_of(state));
    copies_begin(state->copies);
}

int muster_state_step(struct muster_state *state, const float *const *gradients,
                      const struct muster_optimizer_step_options *options) {
    if (!state || !gradients) {
        return status_fail_null("muster_state_step", state ? "gradients" : "state");
    }
    if (copies_is_begun(state->copies)) {
        return status_fail(MUSTER_EINVAL, "muster_state_step: the step before has not been committed");
    }
    int status;
    if (copies_step(state->copies) < 0) {
        status = muster_optimizer_step_into(state->optimizer, gradients, options);
    } else {
        begin_copy(state);
        status = optimizer_step_beside(state->optimizer, gradients, options, copies_delta(state->copies));
    }
    return status == MUSTER_OK ? status : status_prefix(status, "muster_state_step");
}

/* A failure to copy from a GPU leaves the step before as the committed one. */
static int commit(struct muster_state *state, int64_t step, const struct common *common) {
    struct copies *copies = state->copies;
    if (copies_step(copies) >= 0 && !copies_is_begun(copies)) { /* the values stay as they are */
        begin_copy(state);
        memcpy(current_of(state) + copies_delta(copies), current_of(state), state->bytes);
    }
    int status = state_bytes_write(&common->state, NULL, copies_extra(copies));
    if (status == MUSTER_OK) {
        optimizer_move_beside(state->optimizer, copies_commit(copies, step));
    }
    return status;
}

int muster_state_commit(struct muster_state *state, int64_t step, const struct muster_snapshot_state *extra) {
    struct common common;
    if (!state) {
        return status_fail_null("muster_state_commit", "state");
    }
    int status = common_init(&common, state->optimizer, extra);
    if (status == MUSTER_OK && (step < 0 || step <= copies_step(state->copies))) {
        status = status_fail(MUSTER_EINVAL, "step %lld after step %lld: it must be greater", (long long)step,
                             (long long)copies_step(state->copies));
    } else if (status == MUSTER_OK && state_hash(&common.state) != state->description) {
        status = status_fail(MUSTER_EINVAL, "`extra` describes another state than for muster_state_create()");
    } else if (status == MUSTER_OK) {
        status = commit(state, step, &common);
    }
    common_done(&common);
    return status == MUSTER_OK ? status : status_prefix(status, "muster_state_commit");
}
