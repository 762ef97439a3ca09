/* Saving and loading by the ranks of a group: who does it, and agreement on the outcome. The files are the business of
 * snapshot_save.c and snapshot_load.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/device/cuda_adopt.h"
#include "comm/group/mark.h"
#include "train/state/safetensors.h"
#include "train/state/snapshot_impl.h"
#include "train/state/state_bytes.h"
#include "train/state/tensor_places.h"

#include <muster/collective.h>

/* ---- agreement ---- */

static int least(struct muster_group *group, int64_t *numbers, size_t count) {
    return muster_all_reduce(group, numbers, numbers, count, MUSTER_INT64, MUSTER_OP_MIN, NULL);
}

int snapshot_agree(struct muster_group *group, int code) {
    uint32_t rank = muster_group_rank(group);
    int64_t failed = code ? (int64_t)rank : INT64_MAX, shared_code = code;
    char sentence[MUSTER_DETAIL_MAX] = "";
    (void)str_copy(sentence, sizeof sentence, code ? muster_detail() : "");
    int result = least(group, &failed, 1);
    if (result || failed == INT64_MAX) {
        return result;
    }
    result = muster_broadcast(group, &shared_code, 1, MUSTER_INT64, (uint32_t)failed, NULL);
    result = result ? result : muster_broadcast(group, sentence, sizeof sentence, MUSTER_UINT8, (uint32_t)failed, NULL);
    return result ? result : status_fail((int)shared_code, "rank %" PRId64 ": %s", failed, sentence);
}

int muster_snapshot_save_group(struct muster_group *group, bool saves, const char *folder, int64_t step,
                               const struct muster_snapshot_state *state,
                               const struct muster_snapshot_options *options) {
    struct muster_snapshot_options own = MUSTER_SNAPSHOT_OPTIONS_INIT;
    /* Without a group the call is refused before anything is written. */
    int code = saves && group ? snapshot_options_read(options, &own) : 0;
    if (code == 0 && saves && group) {
        own.stream = own.stream ? own.stream : group_stream(group);
        code = muster_snapshot_save(folder, step, state, &own);
    }
    return snapshot_agree(group, code);
}

/* ---- the state from another rank ---- */

static int broadcast_text(struct muster_group *group, const struct muster_value *value, uint32_t owner, char *text) {
    if (muster_group_rank(group) == owner) {
        (void)str_copy(text, MUSTER_VALUE_TEXT_MAX, value->data);
    }
    int code = muster_broadcast(group, text, MUSTER_VALUE_TEXT_MAX, MUSTER_UINT8, owner, NULL);
    if (code == 0 && !str_copy(value->data, value->room, text)) {
        code = status_fail(MUSTER_EINVAL, "the text of %s is longer than there is room for", value->name);
    }
    return code;
}

static int broadcast_values(struct muster_group *group, const struct muster_value *values, size_t count,
                            uint32_t owner) {
    char *text = calloc(1, MUSTER_VALUE_TEXT_MAX);
    int code = text ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a text");
    code = snapshot_agree(group, code);
    for (size_t i = 0; i < count && code == 0; i++) {
        switch (values[i].kind) {
        case MUSTER_VALUE_INTEGER:
        case MUSTER_VALUE_OPTIONAL_INTEGER:
            code = muster_broadcast(group, values[i].data, 1, MUSTER_INT64, owner, NULL);
            break;
        case MUSTER_VALUE_REAL:
            code = muster_broadcast(group, values[i].data, 1, MUSTER_FLOAT64, owner, NULL);
            break;
        case MUSTER_VALUE_TEXT:
            code = snapshot_agree(group, broadcast_text(group, &values[i], owner, text));
            break;
        }
    }
    free(text);
    return code;
}

int snapshot_check_broadcast(const struct muster_group *group, const struct muster_snapshot_state *state) {
    return tensors_check_group(group, state->tensors, state->tensor_count);
}

/* It has been checked: no product overflows. */
int snapshot_broadcast_state(struct muster_group *group, const struct muster_snapshot_state *state, uint32_t owner) {
    int code = 0;
    for (size_t i = 0; i < state->tensor_count && code == 0; i++) {
        const struct muster_tensor *tensor = &state->tensors[i];
        size_t count = 1;
        for (uint32_t j = 0; j < tensor->dim_count; j++) {
            count *= (size_t)tensor->shape[j];
        }
        code = muster_broadcast(group, tensor->data, count, tensor->type, owner, NULL);
        code = code ? status_prefix(code, "copy tensor %s of rank %u", tensor->name, owner) : 0;
    }
    return code ? code : broadcast_values(group, state->values, state->value_count, owner);
}

/* ---- loading ---- */

/* The newest that a rank has, as the lowest rank that has it sees it. lack: why this one has none, or 0. */
static int choose(struct muster_group *group, int lack, struct snapshot_choice *choice) {
    struct muster_snapshot_found *found = &choice->found;
    int64_t newest[2] = {-found->step, lack};
    int code = least(group, newest, 2);
    if (code) {
        return code;
    }
    if (newest[0] == 1) { /* no rank has one; the lowest code is the one that says most */
        return snapshot_agree(group, lack == newest[1] ? lack : 0);
    }
    int64_t owner = found->step == -newest[0] ? (int64_t)muster_group_rank(group) : INT64_MAX;
    code = least(group, &owner, 1);
    if (code) {
        return code;
    }
    int64_t chosen[2] = {found->step, (int64_t)found->id};
    code = muster_broadcast(group, chosen, 2, MUSTER_INT64, (uint32_t)owner, NULL);
    choice->is_mine = found->step == chosen[0] && found->id == (uint64_t)chosen[1];
    found->step = chosen[0];
    found->id = (uint64_t)chosen[1];
    choice->owner = (uint32_t)owner;
    return code;
}

int snapshot_choose(struct muster_group *group, bool looks, const char *folder, int readiness,
                    struct snapshot_choice *out) {
    *out = (struct snapshot_choice){.found = {.step = -1}};
    int lack = readiness || !looks ? readiness : muster_snapshot_find(folder, INT64_MAX, &out->found);
    int code = snapshot_agree(group, snapshot_is_lack(lack) ? 0 : lack);
    return code ? code : choose(group, lack, out);
}

int snapshot_any_lack(struct muster_group *group, int lack, bool *out) {
    int64_t all = lack;
    int code = least(group, &all, 1);
    *out = all != 0;
    return code;
}

/* Where all see the snapshot, it does not matter whose tensors are on a GPU. */
static int get_from_owner(struct muster_group *group, const struct muster_snapshot_state *state, uint32_t owner) {
    int code = snapshot_agree(group, snapshot_check_broadcast(group, state));
    code = code ? code : snapshot_agree_on_description(group, state);
    return code ? code : snapshot_broadcast_state(group, state, owner);
}

static int load_group(struct muster_group *group, const char *folder, int readiness,
                      const struct muster_snapshot_state *state, struct muster_snapshot_found *found) {
    struct snapshot_choice choice;
    bool any = false;
    int code = snapshot_choose(group, true, folder, readiness, &choice);
    if (code) {
        return code;
    }
    *found = choice.found;
    const struct snapshot_wanted wanted = {found->step, found->id, choice.is_mine, group_stream(group)};
    int lack = snapshot_load(&snapshot_io_system, folder, &wanted, state);
    /* The owner has read all of it a moment ago: that it cannot now is no lack. */
    code = snapshot_agree(group, snapshot_is_lack(lack) && muster_group_rank(group) != choice.owner ? 0 : lack);
    code = code ? code : snapshot_any_lack(group, lack, &any);
    return code || !any ? code : get_from_owner(group, state, choice.owner);
}

int muster_snapshot_load_group_sized(struct muster_group *group, const char *folder,
                                     const struct muster_snapshot_state *state, struct muster_snapshot_found *out,
                                     size_t out_bytes) {
    struct snapshot_state own;
    struct muster_snapshot_found found;
    int code = snapshot_state_read(state, &own);
    cuda_library_adopt();
    code = load_group(group, folder, code, &own.state, &found);
    snapshot_state_done(&own);
    if (code == 0 && out) {
        sized_write(out, out_bytes, &found, sizeof found);
    }
    return code;
}

/* ---- without a disk ---- */

/* The smallest hash and the smallest complement of one are each other's complement if all hashes are equal. */
int snapshot_agree_on_description(struct muster_group *group, const struct muster_snapshot_state *state) {
    uint64_t hash = state_hash(state) ^ tensors_places(state->tensors, state->tensor_count);
    int64_t numbers[2] = {(int64_t)hash, (int64_t)~hash};
    int code = least(group, numbers, 2);
    return code || numbers[0] == ~numbers[1]
               ? code
               : status_fail(MUSTER_EMISMATCH, "the ranks describe different states: names, types, shapes, kinds, "
                                               "their order, and which tensors are on a GPU, must be the same");
}

int muster_snapshot_broadcast(struct muster_group *group, const struct muster_snapshot_state *state, uint32_t root) {
    struct snapshot_state own;
    if (group && root >= muster_group_size(group)) {
        return status_fail(MUSTER_EINVAL, "broadcast a state: root %u of a group of %u ranks", root,
                           muster_group_size(group));
    }
    int code = snapshot_state_read(state, &own);
    cuda_library_adopt();
    code = code ? code : snapshot_state_check(&own.state);
    code = code || !group ? code : snapshot_check_broadcast(group, &own.state);
    code = snapshot_agree(group, code);
    code = code ? code : snapshot_agree_on_description(group, &own.state);
    code = code ? code : snapshot_broadcast_state(group, &own.state, root);
    snapshot_state_done(&own);
    return code ? status_prefix(code, "broadcast a state") : 0;
}
