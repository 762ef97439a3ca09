/* muster_send() and muster_receive(): what is wrong with a call, and who carries it: this thread, a handle, or the
 * batch between begin and end. See muster/collective.h. */
#include <muster/collective.h>

#include <stdlib.h>

#include "base/status.h"
#include "comm/group/group_device.h"
#include "comm/group/mark.h"
#include "comm/group/work_impl.h"

static int check(const struct muster_group *group, const struct message_call *call) {
    int code = group_check(group);
    if (code) {
        return code;
    }
    const char *name = comm_operation_name(call->operation);
    size_t bytes = muster_type_bytes(call->type);
    bool takes_any = call->operation == COMM_RECEIVE && call->peer == MUSTER_ANY_RANK;
    if (!takes_any && call->peer >= group->size) {
        return status_fail(MUSTER_EINVAL, "%s: there is no rank %u: group '%s' has ranks 0 to %u", name, call->peer,
                           group->name, group->size - 1);
    }
    if (call->peer == group->rank) {
        return status_fail(MUSTER_EINVAL,
                           "%s: rank %u is this rank, and a rank has no messages with itself: copy the data instead",
                           name, call->peer);
    }
    if (group->size == 1) {
        return status_fail(MUSTER_EINVAL, "%s: group '%s' has one rank, and nobody to receive from", name, group->name);
    }
    if (call->tag > MUSTER_TAG_MAX) {
        return status_fail(MUSTER_EINVAL, "%s: tag %u, at most %u is possible", name, call->tag, MUSTER_TAG_MAX);
    }
    if (bytes == 0) {
        return status_fail(MUSTER_EINVAL, "%s: %d is no element type", name, (int)call->type);
    }
    if (call->count > MUSTER_COLLECTIVE_BYTES_MAX / bytes) {
        return status_fail(MUSTER_EINVAL, "%s: %zu elements of %s are more than %zu bytes", name, call->count,
                           muster_type_name(call->type), MUSTER_COLLECTIVE_BYTES_MAX);
    }
    if (call->count > 0 && !call->buffer) {
        return status_fail(MUSTER_EINVAL, "%s: buffer is NULL", name);
    }
    return group_device_may_refuse() ? group_device_refuse(group, name, call->buffer) : 0;
}

static int run(struct muster_group *group, const struct message_call *call, struct muster_work **out) {
    int code = check(group, call);
    if (code) {
        return code;
    }
    if (!out && group->coalesced) {
        return batch_note_message(group, call);
    }
    if (!out) {
        return message_run(group, call);
    }
    struct muster_work *work = calloc(1, sizeof *work);
    if (!work) {
        return status_fail(MUSTER_ENOMEM, "no memory for a work handle");
    }
    work->kind = WORK_MESSAGE;
    work->group = group;
    code = message_post(group, call, &work->message);
    if (code) {
        free(work);
        return code;
    }
    group_hold(group); /* the program may free it first */
    *out = work;
    return 0;
}

int muster_send(struct muster_group *group, const void *buffer, size_t count, enum muster_type type, uint32_t to,
                uint32_t tag, struct muster_work **work) {
    struct message_call call = {COMM_SEND, type, to, tag, count, (void *)(uintptr_t)buffer, NULL};
    return run(group, &call, work);
}

int muster_receive(struct muster_group *group, void *buffer, size_t count, enum muster_type type, uint32_t from,
                   uint32_t tag, struct muster_message *message, struct muster_work **work) {
    struct message_call call = {COMM_RECEIVE, type, from, tag, count, buffer, message};
    return run(group, &call, work);
}
