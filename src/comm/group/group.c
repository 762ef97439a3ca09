/* What a group says about itself; its memory, abort and end. See muster/group.h. */
#include <muster/failure.h>
#include <muster/group.h>

#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "comm/group/group_device.h"
#include "comm/group/work_impl.h"

#define DEVICE_PATIENCE_NS (2 * CLOCK_NS_PER_S) /* with the GPU of a group that has failed */

/* ---- questions ----
 *
 * They work in a child of fork(), too, and leave the detail alone: they may stand in the sentence about a failure. */

static bool has_rank(const struct muster_group *group, uint32_t rank) {
    return group && rank < group->size;
}

uint32_t muster_group_rank(const struct muster_group *group) {
    return group ? group->rank : MUSTER_NO_RANK;
}

uint32_t muster_group_size(const struct muster_group *group) {
    return group ? group->size : 0;
}

const char *muster_group_name(const struct muster_group *group) {
    return group ? group->name : "";
}

uint32_t muster_group_root_rank(const struct muster_group *group, uint32_t rank) {
    return has_rank(group, rank) ? group->root_ranks[rank] : MUSTER_NO_RANK;
}

uint32_t muster_group_host_count(const struct muster_group *group) {
    return group ? group->host_count : 0;
}

uint32_t muster_group_host_of(const struct muster_group *group, uint32_t rank) {
    return has_rank(group, rank) ? group->hosts[rank] : MUSTER_NO_RANK;
}

uint32_t muster_group_local_rank(const struct muster_group *group) {
    return group ? group->local : MUSTER_NO_RANK;
}

uint32_t muster_group_local_size(const struct muster_group *group) {
    return group ? group->local_count : 0;
}

const char *muster_group_engine(const struct muster_group *group) {
    return group && !group->is_freed ? group->engine->table->name : "";
}

const char *muster_group_engine_reason(const struct muster_group *group) {
    return group ? group->engine_reason : "";
}

/* ---- state ---- */

int muster_group_status(struct muster_group *group) {
    int code = group_check(group);
    if (code) {
        return code;
    }
    if (group_is_uneasy(group)) {
        struct status_kept kept;
        status_keep(&kept);
        (void)group_examine(group, GROUP_NEED_STATUS);
        status_put_back(&kept);
    }
    if (!failure_is_set(&group->failure)) {
        return 0;
    }
    group_alarm(group); /* whoever noted the failure does so a moment later, when others have been told */
    return failure_tell(&group->failure);
}

int muster_group_failure_sized(struct muster_group *group, struct muster_failure *out, size_t out_bytes) {
    if (!out) {
        return status_fail_null("muster_group_failure", "out");
    }
    int code = muster_group_status(group);
    const struct muster_failure failure = code ? status_failure() : status_no_failure();
    sized_write(out, out_bytes, &failure, sizeof failure);
    return code;
}

int muster_group_set_timeout(struct muster_group *group, int64_t timeout_ms) {
    int code = group_check(group);
    if (code == 0 && timeout_ms <= 0) {
        code = status_fail(MUSTER_EINVAL, "muster_group_set_timeout: timeout_ms is %lld; it must be positive",
                           (long long)timeout_ms);
    }
    if (code == 0) {
        group->timeout_ns = group_timeout_ns(timeout_ms);
    }
    return code;
}

void muster_group_abort(struct muster_group *group, const char *reason) {
    if (group_check(group) == 0) {
        group_abort(group, reason);
    }
}

/* ---- memory ---- */

int muster_alloc(struct muster_group *group, size_t bytes, void **out) {
    int code = group_check(group);
    code = code || out ? code : status_fail_null("muster_alloc", "out");
    return code ? code : group->engine->table->allocate(group->engine, bytes, out);
}

void muster_free(struct muster_group *group, void *memory) {
    if (memory && group && context_is_alive(group->context)) {
        group->engine->table->release(group->engine, memory);
    }
}

int muster_device_alloc(struct muster_group *group, size_t bytes, void **out) {
    int code = group_check(group);
    code = code || out ? code : status_fail_null("muster_device_alloc", "out");
    if (code == 0 && !group->engine->table->allocate_foreign) {
        code = status_fail(MUSTER_EUNSUPPORTED,
                           "group '%s' has the engine '%s', which has no memory of GPUs: ask for the engine 'nccl'",
                           group->name, group->engine->table->name);
    }
    return code ? code : group->engine->table->allocate_foreign(group->engine, bytes, out);
}

void muster_device_free(struct muster_group *group, void *memory) {
    if (memory && group && context_is_alive(group->context) && group->engine->table->release_foreign) {
        group->engine->table->release_foreign(group->engine, memory);
    }
}

int muster_group_set_stream(struct muster_group *group, void *stream) {
    int code = group_check(group);
    if (code == 0 && !group->engine->table->set_stream) {
        code = status_fail(MUSTER_EUNSUPPORTED, "group '%s' has the engine '%s', which knows no streams", group->name,
                           group->engine->table->name);
    }
    if (code == 0) {
        group->stream = stream;
        group->engine->table->set_stream(group->engine, stream);
    }
    return code;
}

int group_device(struct muster_group *group, struct device_stream *out) {
    int code = group_check(group);
    if (code == 0 && !group->engine->table->device) {
        code = status_fail(MUSTER_EUNSUPPORTED,
                           "group '%s' has the engine '%s', which has no memory of GPUs: ask for the engine 'nccl'",
                           group->name, group->engine->table->name);
    }
    if (code == 0) {
        *out = (struct device_stream){
            .device = group->engine->table->device(group->engine),
            .stream = group->stream,
            .patience_ns = failure_is_set(&group->failure) ? DEVICE_PATIENCE_NS : group->timeout_ns,
        };
    }
    return code;
}

int group_device_refuse(const struct muster_group *group, const char *name, const void *buffer) {
    int number = group->engine->table->is_foreign ? -1 : device_number_of(buffer);
    return number < 0 ? 0
                      : status_fail(MUSTER_EUNSUPPORTED,
                                    "%s: a buffer is in memory of GPU %d, and the engine '%s' of group '%s' takes "
                                    "memory of the host: ask for the engine 'nccl'",
                                    name, number, group->engine->table->name, group->name);
}

bool group_device_is_idle(struct muster_group *group, const char *user) {
    struct device_stream stream;
    struct status_kept kept;
    status_keep(&kept);
    int code = group_device(group, &stream);
    code = code ? code : device_work_await(&stream);
    if (code) {
        log_warning("%s of group '%s' leaves memory of the GPU in use: %s", user, group->name, muster_detail());
    }
    status_put_back(&kept); /* a failure before this one is the one to be told */
    return code == 0;
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
    const struct engine_messages *messages = group->engine->table->messages;
    work_queue_free(group);
    if (messages && messages->let_go_all) {
        messages->let_go_all(group->engine);
    }
    batch_free(group->coalesced);
    if (group->fused) {
        group->engine->table->release(group->engine, group->fused);
    }
    group_look_back(group);
    leave(group);
    p2p_end_group(context->p2p, group->id, group->root_ranks, group->size);
    if (group_dispose(group)) {
        context_free(context);
    }
}
