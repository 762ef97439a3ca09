/* Saving and loading by the ranks of a group: who does it, and agreement on the outcome. The files are the business of
 * snapshot_save.c and snapshot_load.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/snapshot_impl.h"

#include <muster/collective.h>

/* ---- agreement ---- */

static int least(struct muster_group *group, int64_t *numbers, size_t count) {
    return muster_all_reduce(group, numbers, numbers, count, MUSTER_INT64, MUSTER_MIN, NULL);
}

/* Every rank tells its result. When one is a failure, all get the code and the sentence of the lowest rank that failed.
 */
static int agree(struct muster_group *group, int code) {
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
    return agree(group, saves ? muster_snapshot_save(folder, step, state, options) : 0);
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
    code = agree(group, code);
    for (size_t i = 0; i < count && code == 0; i++) {
        switch (values[i].kind) {
        case MUSTER_VALUE_INTEGER:
            code = muster_broadcast(group, values[i].data, 1, MUSTER_INT64, owner, NULL);
            break;
        case MUSTER_VALUE_REAL:
            code = muster_broadcast(group, values[i].data, 1, MUSTER_FLOAT64, owner, NULL);
            break;
        case MUSTER_VALUE_TEXT:
            code = agree(group, broadcast_text(group, &values[i], owner, text));
            break;
        }
    }
    free(text);
    return code;
}

static int broadcast_state(struct muster_group *group, const struct muster_snapshot_state *state, uint32_t owner) {
    int code = 0;
    for (size_t i = 0; i < state->tensor_count && code == 0; i++) {
        const struct muster_tensor *tensor = &state->tensors[i];
        size_t count = 1;
        for (uint32_t j = 0; j < tensor->dim_count; j++) {
            count *= (size_t)tensor->shape[j]; /* it was loaded: no overflow */
        }
        code = muster_broadcast(group, tensor->data, count, tensor->type, owner, NULL);
        code = code ? status_prefix(code, "give tensor %s to ranks without the snapshot", tensor->name) : 0;
    }
    return code ? code : broadcast_values(group, state->values, state->value_count, owner);
}

/* ---- loading ---- */

static bool is_lack(int code) {
    return code == MUSTER_ENOENT || code == MUSTER_ECORRUPT;
}

/* Which snapshot: the newest that a rank has, as the lowest rank that has it sees it. *out_mine: it is the one that was
 * found whole here. */
static int choose(struct muster_group *group, const char *folder, struct muster_snapshot_found *found,
                  uint32_t *out_owner, bool *out_mine) {
    *found = (struct muster_snapshot_found){.step = -1};
    int lack = muster_snapshot_find(folder, INT64_MAX, found);
    int code = agree(group, is_lack(lack) ? 0 : lack);
    if (code) {
        return code;
    }
    int64_t newest[2] = {-found->step, lack};
    code = least(group, newest, 2);
    if (code) {
        return code;
    }
    if (newest[0] == 1) { /* no rank has one; the lowest code is the one that says most */
        return agree(group, lack == newest[1] ? lack : 0);
    }
    int64_t owner = found->step == -newest[0] ? (int64_t)muster_group_rank(group) : INT64_MAX;
    code = least(group, &owner, 1);
    if (code) {
        return code;
    }
    int64_t chosen[2] = {found->step, (int64_t)found->id};
    code = muster_broadcast(group, chosen, 2, MUSTER_INT64, (uint32_t)owner, NULL);
    *out_mine = found->step == chosen[0] && found->id == (uint64_t)chosen[1];
    found->step = chosen[0];
    found->id = (uint64_t)chosen[1];
    *out_owner = (uint32_t)owner;
    return code;
}

int muster_snapshot_load_group(struct muster_group *group, const char *folder,
                               const struct muster_snapshot_state *state, struct muster_snapshot_found *out) {
    struct muster_snapshot_found found;
    uint32_t owner = 0;
    bool mine = false;
    int code = choose(group, folder, &found, &owner, &mine);
    if (code) {
        return code;
    }
    int lack = snapshot_load(&snapshot_io_system, folder, found.step, found.id, mine, state);
    /* The owner has read all of it a moment ago: that it cannot now is no lack. */
    code = agree(group, is_lack(lack) && muster_group_rank(group) != owner ? 0 : lack);
    int64_t all = lack;
    code = code ? code : least(group, &all, 1);
    if (code == 0 && all != 0) {
        code = broadcast_state(group, state, owner);
    }
    if (code == 0 && out) {
        *out = found;
    }
    return code;
}
