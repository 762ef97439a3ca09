/* Running one collective in the calling thread. This is the path that short calls are measured by: no lock, no memory,
 * no system call, and two readings of the processor's counter. */
#include "comm/group/group_impl.h"

#include "base/status.h"
#include "comm/group/debug.h"
#include "comm/observe/recorder.h"
#include "comm/observe/trace.h"

#define SPARED_NS CLOCK_NS_PER_S                 /* for a call that others have finished, after a death */
#define GRACE_NS (10 * CLOCK_NS_PER_MS)          /* for a call under way, after bad news */
#define LOOK_NS CLOCK_NS_PER_MS                  /* between looks at whether the group has failed */
enum { LOOKS_PER_QUESTION = BELL_SLEEP_MAX_MS }; /* whether the program was interrupted */

/* Looks closer before a call: the group has failed, or does now because somebody is gone. */
static int refuse_or_go_on(struct muster_group *group, const struct comm_call *call) {
    char text[128];
    bool was_whole = failure_get(&group->failure) == 0;
    if (group_examine(group, GROUP_NEED_BEGIN) == 0) {
        return 0;
    }
    int code = failure_refuse(&group->failure);
    if (!was_whole) {
        return code;
    }
    (void)comm_fingerprint_format(call->fingerprint, text,
                                  sizeof text); /* it has not begun: no other rank can name it */
    return status_prefix(code, "%s (call %llu)", text, (unsigned long long)group->sequence + 1);
}

static struct recorder_place place_of(const struct muster_group *group, const struct comm_call *call,
                                      uint64_t sequence) {
    return (struct recorder_place){group->id, group->size, sequence,
                                   comm_has_root(call->operation) ? call->root : CALL_RECORD_NO_PEER};
}

/* The launcher tells by it that this rank ends because of another one. */
static void record_refusal(struct muster_group *group, const struct comm_call *call, int code) {
    struct recorder *recorder = group->context->recorder;
    const struct recorder_place place = place_of(group, call, group->sequence + 1);
    int64_t now_ns = ticks_monotonic_ns(&group->clock);
    recorder_end(recorder, recorder_begin(recorder, call, &place, now_ns), now_ns, code);
}

/* A call that the others have finished can end in spite of a death: but only soon. What they have sent may be held up
 * in them, and nobody moves it any more after they have failed. */
static enum group_need need_since(struct muster_group *group, int64_t uneasy_ns) {
    bool is_long = uneasy_ns != 0 && ticks_monotonic_ns(&group->clock) - uneasy_ns > SPARED_NS;
    return is_long ? GROUP_NEED_MESSAGE : GROUP_NEED_CALL;
}

/* Of an engine that does not run calls in this thread: until the call has ended, the group has failed, or its time is
 * up. */
static int await_engine(struct muster_group *group, int64_t deadline_ns) {
    struct engine *engine = group->engine;
    int code = ENGINE_UNDER_WAY;
    int64_t uneasy_ns = 0; /* since when; 0: not */
    for (int looks = 1; code == ENGINE_UNDER_WAY; looks++) {
        code = engine->table->test(engine, LOOK_NS);
        if (code != ENGINE_UNDER_WAY) {
            break;
        }
        if (looks % LOOKS_PER_QUESTION == 0) {
            group_woken(group);
        }
        if (group_is_uneasy(group)) {
            code = engine->table->test(engine, GRACE_NS); /* a call that can end is preferred to an error */
            if (code != ENGINE_UNDER_WAY) {
                break;
            }
            uneasy_ns = uneasy_ns ? uneasy_ns : ticks_monotonic_ns(&group->clock);
        }
        int stopped = group_is_uneasy(group) ? group_examine(group, need_since(group, uneasy_ns)) : 0;
        if (stopped == 0 && ticks_monotonic_ns(&group->clock) >= deadline_ns) {
            stopped = MUSTER_ETIMEOUT;
        }
        if (stopped != 0) {
            engine->table->abort(engine);
            code = stopped;
        }
    }
    return code;
}

int group_run(struct muster_group *group, const struct comm_call *call, int64_t timeout_ns, int64_t queued_ns) {
    if (__builtin_expect(group_is_uneasy(group), 0)) {
        int code = refuse_or_go_on(group, call);
        if (code) {
            record_refusal(group, call, code);
            return code;
        }
    }
    struct call_line *line = &group->line->calls;
    uint64_t sequence = ++group->sequence;
    int64_t begin_ns = ticks_monotonic_ns(&group->clock);
    call_line_begin(line, sequence, call->fingerprint, begin_ns);
    int64_t traced_ns = __builtin_expect(trace_enabled(), 0) ? group_trace_begin(group, sequence) : 0;
    struct recorder *recorder = group->context->recorder;
    struct recorder_place place = place_of(group, call, sequence);
    uint64_t number = recorder_begin(recorder, call, &place, begin_ns);
    int code = group->engine->table->start(group->engine, call, sequence, begin_ns + timeout_ns);
    if (__builtin_expect(code == ENGINE_UNDER_WAY, 0)) {
        code = await_engine(group, begin_ns + timeout_ns);
    }
    int64_t end_ns = ticks_monotonic_ns(&group->clock);
    recorder_end(recorder, number, end_ns, code);
    if (__builtin_expect(code != 0, 0)) {
        code = group_call_failed(group, code, timeout_ns);
        recorder_end(recorder, number, end_ns, code); /* a link that broke is a peer that is gone, as is known now */
    } else {
        call_line_finish(line, sequence);
    }
    if (__builtin_expect(group->context->logs_calls, 0)) {
        debug_call(group, call, sequence, end_ns - begin_ns, code);
    }
    if (__builtin_expect(traced_ns != 0, 0)) {
        group_trace_end(group, call, sequence, traced_ns, queued_ns, code);
    }
    return code;
}
