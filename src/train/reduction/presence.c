/* Who has data in a step; see presence.h. */
#include "train/reduction/presence.h"

#include <muster/collective.h>
#include <muster/memory.h>

#include "base/status.h"

int presence_create(struct muster_group *group, struct presence *out) {
    void *memory = NULL;
    size_t bytes = muster_group_size(group);
    int status = muster_alloc(group, bytes, &memory);
    if (status == MUSTER_OK) {
        *out = (struct presence){.group = group, .steps = memory, .bytes = bytes};
    }
    return status;
}

void presence_free(struct presence *presence) {
    if (presence->group) {
        muster_free(presence->group, presence->steps);
    }
}

static const char *with_or_without(enum presence_step step) {
    return step == PRESENCE_WITH_SYNC ? "with" : "without";
}

/* What the bytes of all ranks say together. */
static int conclude(const uint8_t *steps, uint32_t size, struct presence_result *out) {
    struct presence_result result = {.step = PRESENCE_OUT_OF_DATA};
    for (uint32_t rank = 0; rank < size; rank++) {
        enum presence_step step = (enum presence_step)steps[rank];
        if (step == PRESENCE_OUT_OF_DATA) {
            continue;
        }
        if (result.active_count++ == 0) {
            result.source = rank;
            result.step = step;
        } else if (step != result.step) {
            return status_fail(MUSTER_EMISMATCH, "rank %u begins a step %s synchronisation, rank %u one %s",
                               result.source, with_or_without(result.step), rank, with_or_without(step));
        }
    }
    *out = result;
    return MUSTER_OK;
}

int presence_agree(const struct presence *presence, enum presence_step own, struct presence_result *out) {
    struct muster_group *group = presence->group;
    uint32_t rank = muster_group_rank(group);
    presence->steps[rank] = (uint8_t)own;
    int status = muster_all_gather(group, presence->steps + rank, presence->steps, 1, MUSTER_UINT8, NULL);
    return status == MUSTER_OK ? conclude(presence->steps, muster_group_size(group), out)
                               : status_prefix(status, "agreeing on who has data");
}
