/* The record of a failure, as programs ask for it, and what groups write into it. See muster/failure.h. */
#include <muster/failure.h>

#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group/group_impl.h"

int muster_last_failure_sized(struct muster_failure *out, size_t out_bytes) {
    const struct muster_failure failure = status_failure();
    if (!out) {
        return status_fail_null("muster_last_failure", "out");
    }
    sized_write(out, out_bytes, &failure, sizeof failure);
    return 0;
}

void group_blame(const struct muster_group *group, uint32_t rank, struct muster_failure *failure) {
    const struct context *context = group->context;
    uint32_t root = group->root_ranks[rank], local = context_local_of(context, root);
    const struct context_peer *peer = &context->peers[root];
    bool is_gone = atomic_load_explicit(&peer->state, memory_order_acquire) != CONTEXT_PEER_HERE;
    failure->rank = rank;
    failure->root_rank = root;
    failure->pid = local != UINT32_MAX ? context->bootstrap.locals[local].pid : is_gone ? peer->pid : 0;
    failure->signal = is_gone ? peer->signal : 0;
    (void)str_format(failure->host, sizeof failure->host, "%s", context_host_name(context, root));
}

void group_blame_root(const struct muster_group *group, uint32_t root_rank, struct muster_failure *failure) {
    for (uint32_t rank = 0; rank < group->size; rank++) {
        if (group->root_ranks[rank] == root_rank) {
            group_blame(group, rank, failure);
        }
    }
}

void group_record_place(const struct muster_group *group, int code, struct muster_failure *failure) {
    uint64_t begun = call_line_begun(&group->line->calls);
    bool in_call = begun != call_line_finished(&group->line->calls);
    failure->cause = code;
    (void)str_format(failure->group, sizeof failure->group, "%s", group->name);
    failure->call = in_call ? begun : 0;
    failure->operation[0] = '\0';
    if (in_call) {
        (void)str_format(failure->operation, sizeof failure->operation, "%s",
                         comm_fingerprint_name(call_line_fingerprint(&group->line->calls, begun)));
    }
    if (failure->missing_count == 1 && failure->rank == MUSTER_NO_RANK) {
        group_blame(group, failure->missing[0].first, failure);
    }
}
