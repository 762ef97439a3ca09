/* What a group says about itself; its memory, abort and end. See muster/group.h. */
#include <muster/group.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/work_impl.h"

uint32_t muster_group_rank(const struct muster_group *group) {
    return group->rank;
}

uint32_t muster_group_size(const struct muster_group *group) {
    return group->size;
}

const char *muster_group_name(const struct muster_group *group) {
    return group->name;
}

uint32_t muster_group_root_rank(const struct muster_group *group, uint32_t rank) {
    assert(rank < group->size);
    return group->root_ranks[rank];
}

uint32_t muster_group_host_count(const struct muster_group *group) {
    return group->host_count;
}

uint32_t muster_group_host_of(const struct muster_group *group, uint32_t rank) {
    assert(rank < group->size);
    return group->hosts[rank];
}

uint32_t muster_group_local_rank(const struct muster_group *group) {
    return group->local;
}

uint32_t muster_group_local_size(const struct muster_group *group) {
    return group->local_count;
}

/* ---- state ---- */

int group_refuse(const struct muster_group *group) {
    return group ? status_fail(MUSTER_EINVAL, "group '%s' belongs to the process that this one was forked from",
                               group->name)
                 : status_fail(MUSTER_EINVAL, "the group is NULL");
}

int muster_group_status(struct muster_group *group) {
    int code = group_check(group);
    if (code) {
        return code;
    }
    if (group_is_uneasy(group)) {
        (void)group_examine(group, GROUP_NEED_STATUS);
    }
    if (!failure_is_set(&group->failure)) {
        return 0;
    }
    group_alarm(group); /* whoever noted the failure does so a moment later, when others have been told */
    return failure_tell(&group->failure);
}

void muster_group_abort(struct muster_group *group, const char *reason) {
    if (group_check(group)) {
        return;
    }
    char sentence[GROUP_ABORT_REASON_MAX + MUSTER_GROUP_NAME_MAX + 64];
    (void)snprintf(sentence, sizeof sentence, "rank %u aborted group '%s': %.*s", group->rank, group->name,
                   GROUP_ABORT_REASON_MAX, reason ? reason : "no reason given");
    (void)group_fail(group, MUSTER_EABORTED, sentence);
}

/* ---- memory ---- */

int muster_alloc(struct muster_group *group, size_t bytes, void **out) {
    int code = group_check(group);
    return code ? code : memory_allocate(group->context->memory, bytes, out);
}

void muster_free(struct muster_group *group, void *memory) {
    if (memory && group && context_is_alive(group->context)) {
        memory_release(group->context->memory, memory);
    }
}

/* ---- the end ---- */

static void leave(struct muster_group *group) {
    atomic_store_explicit(&group->line->has_left, 1, memory_order_release);
    atomic_fetch_add_explicit(&group->shared->news, 1, memory_order_release);
    for (uint32_t i = 0; i < group->local_count; i++) {
        uint32_t local = context_local_of(group->context, group->root_ranks[group->locals[i]]);
        comm_bell_ring(&group->context->lines[local].bell);
    }
}

void muster_group_free(struct muster_group *group) {
    if (!group || !context_is_alive(group->context)) {
        return; /* in a forked child nothing of it is ours: it ends with the child */
    }
    struct context *context = group->context;
    work_queue_free(group);
    coalesced_free(group->coalesced);
    if (group->fused) {
        memory_release(context->memory, group->fused);
    }
    leave(group);
    p2p_end_group(context->p2p, group->id, group->root_ranks, group->size);
    if (group_dispose(group)) {
        context_free(context);
    }
}
