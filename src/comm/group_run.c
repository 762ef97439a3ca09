/* Running one collective in the calling thread. This is the path that short calls are measured by: no lock, no memory,
 * no system call, and two readings of the processor's counter. */
#include "comm/group_impl.h"

#include "base/status.h"
#include "comm/debug.h"
#include "comm/recorder.h"
#include "comm/trace.h"

/* Looks closer before a call: the group has failed, or does now because somebody is gone. */
static int refuse_or_go_on(struct muster_group *group) {
    return group_examine(group, GROUP_NEED_BEGIN) ? failure_refuse(&group->failure) : 0;
}

int group_run(struct muster_group *group, const struct comm_call *call, int64_t timeout_ns, int64_t queued_ns) {
    if (__builtin_expect(group_is_uneasy(group), 0)) {
        int code = refuse_or_go_on(group);
        if (code) {
            return code;
        }
    }
    struct group_line *line = group->line;
    uint64_t sequence = ++group->sequence;
    int64_t begin_ns = ticks_monotonic_ns(&group->clock);
    atomic_store_explicit(&line->fingerprints[sequence % GROUP_HISTORY], comm_call_fingerprint(call, group->size),
                          memory_order_relaxed);
    atomic_store_explicit(&line->begun_ns, begin_ns, memory_order_relaxed);
    atomic_store_explicit(&line->begun, sequence, memory_order_release);
    int64_t traced_ns = __builtin_expect(trace_enabled(), 0) ? group_trace_begin(group, sequence) : 0;
    struct recorder *recorder = group->context->recorder;
    struct recorder_place place = {group->id, group->size, sequence,
                                   comm_has_root(call->operation) ? call->root : CALL_RECORD_NO_PEER};
    uint64_t number = recorder_begin(recorder, call, &place, begin_ns);
    int code = group->hierarchy ? hierarchy_run(group->hierarchy, call, (uint32_t)sequence, begin_ns + timeout_ns)
                                : node_run(group->node, call, begin_ns + timeout_ns);
    int64_t end_ns = ticks_monotonic_ns(&group->clock);
    recorder_end(recorder, number, end_ns, code);
    if (__builtin_expect(code != 0, 0)) {
        code = group_call_failed(group, code, timeout_ns);
    } else {
        atomic_store_explicit(&line->finished, sequence, memory_order_release);
    }
    if (__builtin_expect(group->context->logs_calls, 0)) {
        debug_call(group, call, sequence, end_ns - begin_ns, code);
    }
    if (__builtin_expect(traced_ns != 0, 0)) {
        group_trace_end(group, call, sequence, traced_ns, queued_ns, code);
    }
    return code;
}
