/* The public calls: checks of arguments, and who runs them (this thread, or the progress thread). See
 * muster/collective.h. */
#include <muster/collective.h>

#include "base/status.h"
#include "comm/group/group_device.h"
#include "comm/group/work_impl.h"
#include "comm/reduce/reduce.h"

/* ---- who runs it ---- */

static int run_alone(struct muster_group *group, const struct comm_call *call, struct muster_work **work) {
    if (work) {
        return work_submit(group, call, work);
    }
    if (__builtin_expect(group->coalesced != NULL, 0)) {
        return batch_note_call(group, call);
    }
    if (__builtin_expect(atomic_load_explicit(&group->queued_count, memory_order_acquire) > 0, 0)) {
        return work_run(group, call, group->timeout_ns);
    }
    return group_run(group, call, group->timeout_ns, 0);
}

/* Alone and in place nothing is read or written. */
static bool touches_buffers(const struct muster_group *group, const struct comm_call *call) {
    return group->size > 1 || call->send != call->receive;
}

static int check_places(const struct muster_group *group, const struct comm_call *call) {
    int code = engine_check(group->engine, call);
    if (group_device_may_refuse() && touches_buffers(group, call)) {
        code = code ? code : group_device_refuse(group, comm_call_name(call), call->send);
        code = code ? code : group_device_refuse(group, comm_call_name(call), call->receive);
    }
    return code;
}

static int run(struct muster_group *group, struct comm_call *call, struct muster_work **work) {
    uintptr_t here = (uintptr_t)&here;
    if (__builtin_expect(!group_enter(group, here), 0)) {
        return group_refuse_thread(group, comm_call_name(call));
    }
    call->fingerprint = comm_call_fingerprint(call, group->size);
    call->stream = group->stream;
    int code = check_places(group, call);
    return group_leave(group, here, code ? code : run_alone(group, call, work));
}

/* ---- checks ---- */

/* The size of its elements, which everything below is told. */
static int size_call(struct comm_call *call) {
    call->type_bytes = muster_type_bytes(call->type);
    return call->type_bytes != 0
               ? 0
               : status_fail(MUSTER_EINVAL, "%s: %d is no element type", comm_call_name(call), (int)call->type);
}

/* `blocks` blocks of call->count elements. */
static int check_size(struct comm_call *call, size_t blocks) {
    int code = size_call(call);
    if (__builtin_expect(code == 0 && call->count > MUSTER_COLLECTIVE_BYTES_MAX / call->type_bytes / blocks, 0)) {
        return status_fail(MUSTER_EINVAL, "%s: %zu elements of %s, %zu times, are more than %zu bytes",
                           comm_call_name(call), call->count, muster_type_name(call->type), blocks,
                           MUSTER_COLLECTIVE_BYTES_MAX);
    }
    return code;
}

static int check_root(const struct muster_group *group, const struct comm_call *call) {
    return call->root < group->size ? 0
                                    : status_fail(MUSTER_EINVAL, "%s: root %u of a group of %u ranks",
                                                  comm_call_name(call), call->root, group->size);
}

static int check_reduction(const struct comm_call *call) {
    if (reduce_is_defined(call->type, call->reduction)) {
        return 0;
    }
    const char *name = comm_call_name(call);
    return (unsigned)call->reduction < MUSTER_REDUCTION_COUNT
               ? status_fail(MUSTER_EINVAL, "%s: '%s' is for integers, not for %s", name,
                             muster_reduction_name(call->reduction), muster_type_name(call->type))
               : status_fail(MUSTER_EINVAL, "%s: %d is no reduction", name, (int)call->reduction);
}

/* NULL is fine where nothing is read or written. */
static int check_buffer(const struct comm_call *call, const void *buffer, bool is_used, const char *name) {
    return buffer || !is_used ? 0 : status_fail(MUSTER_EINVAL, "%s: %s is NULL", comm_call_name(call), name);
}

static int check_buffers(const struct comm_call *call, bool sends, bool receives) {
    bool is_empty = call->count == 0;
    int code = check_buffer(call, call->send, sends && !is_empty, "send");
    return code ? code : check_buffer(call, call->receive, receives && !is_empty, "receive");
}

/* Where this rank's block begins among those of all. */
static size_t own_place(const struct muster_group *group, const size_t *counts) {
    return comm_counts_sum(counts, group->rank);
}

/* Counts per rank: the sum is what a buffer holds. *out_sum: of all. */
static int check_counts(const struct muster_group *group, struct comm_call *call, const size_t *counts,
                        size_t *out_sum) {
    size_t sum = 0;
    int code = size_call(call);
    if (code) {
        return code;
    }
    if (!counts) {
        return status_fail(MUSTER_EINVAL, "%s_v: counts is NULL", comm_operation_name(call->operation));
    }
    for (uint32_t rank = 0; rank < group->size; rank++) {
        if (counts[rank] > MUSTER_COLLECTIVE_BYTES_MAX / call->type_bytes - sum) {
            return status_fail(MUSTER_EINVAL, "%s: the counts add up to more than %zu bytes", comm_call_name(call),
                               MUSTER_COLLECTIVE_BYTES_MAX);
        }
        sum += counts[rank];
    }
    *out_sum = sum;
    return 0;
}

static bool is_apart(const struct comm_call *call, size_t send_count, size_t receive_count) {
    uintptr_t send = (uintptr_t)call->send, receive = (uintptr_t)call->receive;
    size_t bytes = call->type_bytes;
    return send_count == 0 || receive_count == 0 || send + send_count * bytes <= receive ||
           receive + receive_count * bytes <= send;
}

/* Blocks of different lengths would be written over others that are still to be sent. */
static int check_apart(const struct comm_call *call, size_t send_count, size_t receive_count) {
    return is_apart(call, send_count, receive_count)
               ? 0
               : status_fail(MUSTER_EINVAL, "%s: send and receive overlap; with counts per rank they may not",
                             comm_call_name(call));
}

/* Apart, or in place: the shorter of both lies `at` elements into the longer one. */
static int check_overlap(const struct comm_call *call, size_t send_count, size_t receive_count, size_t at) {
    bool sends_more = send_count > receive_count;
    uintptr_t longer = (uintptr_t)(sends_more ? call->send : call->receive);
    uintptr_t shorter = (uintptr_t)(sends_more ? call->receive : call->send);
    if (shorter == longer + at * call->type_bytes || is_apart(call, send_count, receive_count)) {
        return 0;
    }
    const char *name = comm_call_name(call);
    return send_count == receive_count
               ? status_fail(MUSTER_EINVAL, "%s: send and receive overlap; they must lie apart or be equal", name)
               : status_fail(
                     MUSTER_EINVAL,
                     "%s: send and receive overlap; they must lie apart, or %s be %s + %zu elements, where this "
                     "rank's own lie",
                     name, sends_more ? "receive" : "send", sends_more ? "send" : "receive", at);
}

/* ---- equal counts ---- */

int muster_barrier(struct muster_group *group, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_BARRIER};
    int code = group_check(group);
    return code ? code : run(group, &call, work);
}

int muster_monitored_barrier(struct muster_group *group, int64_t timeout_ms) {
    struct comm_call call = {.operation = COMM_MONITORED_BARRIER};
    int code = group_check(group);
    if (code == 0 && timeout_ms <= 0) {
        code = status_fail(MUSTER_EINVAL, "monitored_barrier: the time-out is %lld ms; it must be positive",
                           (long long)timeout_ms);
    }
    if (code == 0 && group->coalesced) {
        code = status_fail(MUSTER_EINVAL, "monitored_barrier: not between coalesce_begin and coalesce_end");
    }
    if (code) {
        return code;
    }
    int64_t timeout_ns = group_timeout_ns(timeout_ms);
    uintptr_t here = (uintptr_t)&here;
    if (!group_enter(group, here)) {
        return group_refuse_thread(group, "monitored_barrier");
    }
    comm_call_prepare(&call, group->size);
    code = atomic_load_explicit(&group->queued_count, memory_order_acquire) > 0
               ? work_run(group, &call, timeout_ns)
               : group_run(group, &call, timeout_ns, 0);
    return group_leave(group, here, code);
}

int muster_all_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      enum muster_reduction reduction, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = type,
                             .reduction = reduction,
                             .count = count,
                             .send = send,
                             .receive = receive};
    int code = group_check(group);
    call.mark = code ? 0 : group->unit_mark ? COMM_MARK_OF_UNIT + group->unit_mark - 1 : group->accumulated;
    code = code ? code : check_size(&call, 1);
    code = code ? code : check_reduction(&call);
    code = code ? code : check_buffers(&call, true, true);
    code = code ? code : check_overlap(&call, count, count, 0);
    return code ? code : run(group, &call, work);
}

int muster_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                  enum muster_reduction reduction, uint32_t root, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_REDUCE,
                             .type = type,
                             .reduction = reduction,
                             .root = root,
                             .count = count,
                             .send = send,
                             .receive = receive};
    int code = group_check(group);
    code = code ? code : check_size(&call, 1);
    code = code ? code : check_reduction(&call);
    code = code ? code : check_root(group, &call);
    code = code ? code : check_buffers(&call, true, group->rank == root);
    code = code || group->rank != root ? code : check_overlap(&call, count, count, 0);
    return code ? code : run(group, &call, work);
}

int muster_broadcast(struct muster_group *group, void *buffer, size_t count, enum muster_type type, uint32_t root,
                     struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_BROADCAST, .type = type, .root = root, .count = count, .send = buffer, .receive = buffer};
    int code = group_check(group);
    code = code ? code : check_size(&call, 1);
    code = code ? code : check_root(group, &call);
    code = code ? code : check_buffers(&call, true, true);
    return code ? code : run(group, &call, work);
}

int muster_all_gather(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_ALL_GATHER, .type = type, .count = count, .send = send, .receive = receive};
    int code = group_check(group);
    call.mark = code ? 0 : group->unit_mark;
    code = code ? code : check_size(&call, group->size);
    code = code ? code : check_buffers(&call, true, true);
    code = code ? code : check_overlap(&call, count, group->size * count, group->rank * count);
    return code ? code : run(group, &call, work);
}

int muster_gather(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                  uint32_t root, struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_GATHER, .type = type, .root = root, .count = count, .send = send, .receive = receive};
    int code = group_check(group);
    code = code ? code : check_size(&call, group->size);
    code = code ? code : check_root(group, &call);
    code = code ? code : check_buffers(&call, true, group->rank == root);
    code = code || group->rank != root ? code : check_overlap(&call, count, group->size * count, root * count);
    return code ? code : run(group, &call, work);
}

int muster_scatter(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                   uint32_t root, struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_SCATTER, .type = type, .root = root, .count = count, .send = send, .receive = receive};
    int code = group_check(group);
    code = code ? code : check_size(&call, group->size);
    code = code ? code : check_root(group, &call);
    code = code ? code : check_buffers(&call, group->rank == root, true);
    code = code || group->rank != root ? code : check_overlap(&call, group->size * count, count, root * count);
    return code ? code : run(group, &call, work);
}

int muster_reduce_scatter(struct muster_group *group, const void *send, void *receive, size_t count,
                          enum muster_type type, enum muster_reduction reduction, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_REDUCE_SCATTER,
                             .type = type,
                             .reduction = reduction,
                             .count = count,
                             .send = send,
                             .receive = receive};
    int code = group_check(group);
    call.mark = code ? 0 : group->unit_mark;
    code = code ? code : check_size(&call, group->size);
    code = code ? code : check_reduction(&call);
    code = code ? code : check_buffers(&call, true, true);
    code = code ? code : check_overlap(&call, group->size * count, count, group->rank * count);
    return code ? code : run(group, &call, work);
}

int muster_all_to_all(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_ALL_TO_ALL, .type = type, .count = count, .send = send, .receive = receive};
    int code = group_check(group);
    code = code ? code : check_size(&call, group->size);
    code = code ? code : check_buffers(&call, true, true);
    code = code ? code : check_overlap(&call, group->size * count, group->size * count, 0);
    return code ? code : run(group, &call, work);
}

/* The average over the ranks so far is nothing that anybody has asked for. */
static int check_prefix(const struct comm_call *call) {
    return call->reduction != MUSTER_OP_AVERAGE
               ? check_reduction(call)
               : status_fail(MUSTER_EINVAL, "%s: '%s' is not defined for it", comm_call_name(call),
                             muster_reduction_name(call->reduction));
}

static int run_prefix(struct muster_group *group, struct comm_call *call, struct muster_work **work) {
    int code = group_check(group);
    bool receives = call->operation == COMM_SCAN || (code == 0 && group->rank > 0);
    code = code ? code : check_size(call, 1);
    code = code ? code : check_prefix(call);
    code = code ? code : check_buffers(call, true, receives);
    code = code || !receives ? code : check_overlap(call, call->count, call->count, 0);
    return code ? code : run(group, call, work);
}

int muster_scan(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                enum muster_reduction reduction, struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_SCAN, .type = type, .reduction = reduction, .count = count, .send = send, .receive = receive};
    return run_prefix(group, &call, work);
}

int muster_exscan(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                  enum muster_reduction reduction, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_EXSCAN,
                             .type = type,
                             .reduction = reduction,
                             .count = count,
                             .send = send,
                             .receive = receive};
    return run_prefix(group, &call, work);
}

/* ---- counts per rank ---- */

int muster_all_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                        enum muster_type type, struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_ALL_GATHER, .type = type, .send = send, .receive = receive, .receive_counts = counts};
    size_t sum = 0;
    int code = group_check(group);
    call.mark = code ? 0 : group->unit_mark;
    code = code ? code : check_counts(group, &call, counts, &sum);
    code = code ? code : check_buffer(&call, send, counts[group->rank] > 0, "send");
    code = code ? code : check_buffer(&call, receive, sum > 0, "receive");
    code = code ? code : check_overlap(&call, counts[group->rank], sum, own_place(group, counts));
    return code ? code : run(group, &call, work);
}

int muster_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                    enum muster_type type, uint32_t root, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_GATHER,
                             .type = type,
                             .root = root,
                             .send = send,
                             .receive = receive,
                             .receive_counts = counts};
    size_t sum = 0;
    int code = group_check(group);
    code = code ? code : check_root(group, &call);
    code = code ? code : check_counts(group, &call, counts, &sum);
    code = code ? code : check_buffer(&call, send, counts[group->rank] > 0, "send");
    code = code ? code : check_buffer(&call, receive, sum > 0 && group->rank == root, "receive");
    code =
        code || group->rank != root ? code : check_overlap(&call, counts[group->rank], sum, own_place(group, counts));
    return code ? code : run(group, &call, work);
}

int muster_scatter_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                     enum muster_type type, uint32_t root, struct muster_work **work) {
    struct comm_call call = {
        .operation = COMM_SCATTER, .type = type, .root = root, .send = send, .receive = receive, .send_counts = counts};
    size_t sum = 0;
    int code = group_check(group);
    code = code ? code : check_root(group, &call);
    code = code ? code : check_counts(group, &call, counts, &sum);
    code = code ? code : check_buffer(&call, send, sum > 0 && group->rank == root, "send");
    code = code ? code : check_buffer(&call, receive, counts[group->rank] > 0, "receive");
    code =
        code || group->rank != root ? code : check_overlap(&call, sum, counts[group->rank], own_place(group, counts));
    return code ? code : run(group, &call, work);
}

int muster_reduce_scatter_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                            enum muster_type type, enum muster_reduction reduction, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_REDUCE_SCATTER,
                             .type = type,
                             .reduction = reduction,
                             .send = send,
                             .receive = receive,
                             .receive_counts = counts};
    size_t sum = 0;
    int code = group_check(group);
    call.mark = code ? 0 : group->unit_mark;
    code = code ? code : check_counts(group, &call, counts, &sum);
    code = code ? code : check_reduction(&call);
    code = code ? code : check_buffer(&call, send, sum > 0, "send");
    code = code ? code : check_buffer(&call, receive, counts[group->rank] > 0, "receive");
    code = code ? code : check_overlap(&call, sum, counts[group->rank], own_place(group, counts));
    return code ? code : run(group, &call, work);
}

int muster_all_to_all_v(struct muster_group *group, const void *send, const size_t *send_counts, void *receive,
                        const size_t *receive_counts, enum muster_type type, struct muster_work **work) {
    struct comm_call call = {.operation = COMM_ALL_TO_ALL,
                             .type = type,
                             .send = send,
                             .receive = receive,
                             .send_counts = send_counts,
                             .receive_counts = receive_counts};
    size_t send_sum = 0, receive_sum = 0;
    int code = group_check(group);
    code = code ? code : check_counts(group, &call, send_counts, &send_sum);
    code = code ? code : check_counts(group, &call, receive_counts, &receive_sum);
    if (code == 0 && send_counts[group->rank] != receive_counts[group->rank]) {
        code = status_fail(MUSTER_EINVAL, "all_to_all: a rank must expect from itself what it sends to itself");
    }
    code = code ? code : check_buffer(&call, send, send_sum > 0, "send");
    code = code ? code : check_buffer(&call, receive, receive_sum > 0, "receive");
    code = code ? code : check_apart(&call, send_sum, receive_sum);
    return code ? code : run(group, &call, work);
}
