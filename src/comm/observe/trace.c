/* What is recorded: the marks of the program (muster/trace.h), spans, collectives, counters. The file that takes the
 * events: trace_file.c; joining the files of a job: cli/trace_merge.c. */
#include "comm/observe/trace.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/observe/trace_impl.h"

static _Thread_local pid_t own_thread; /* 0 until its name has been recorded */

static int64_t this_thread(void) {
    if (own_thread == 0) {
        struct trace_line line;
        char name[16] = "";
        own_thread = (pid_t)syscall(SYS_gettid);
        (void)pthread_getname_np(pthread_self(), name, sizeof name);
        trace_line_name(&line, "thread_name", trace_process(), own_thread,
                        own_thread == trace_process() ? "main" : name);
        trace_append(&line, clock_monotonic_ns());
    }
    return own_thread;
}

static void append_part(const char *name, int64_t lane, int64_t begin_ns, int64_t end_ns) {
    struct trace_line line;
    trace_line_begin(&line, name, 'X', trace_process(), lane);
    trace_line_put(&line, ",\"cat\":\"collective\"");
    trace_line_time(&line, "ts", begin_ns);
    trace_line_time(&line, "dur", end_ns - begin_ns);
    trace_append(&line, end_ns);
}

void trace_collective(const struct trace_collective *mark) {
    if (!trace_enabled()) {
        return;
    }
    struct trace_line line;
    int64_t lane = trace_lane_of_group(mark->group);
    trace_line_begin(&line, mark->name, 'X', trace_process(), lane);
    trace_line_put(&line, ",\"cat\":\"collective\"");
    trace_line_time(&line, "ts", mark->begin_ns);
    trace_line_time(&line, "dur", mark->end_ns - mark->begin_ns);
    trace_line_put(&line,
                   ",\"args\":{\"sequence\":%" PRIu64 ",\"synchronizing\":%s,\"count\":%" PRIu64 ",\"bytes\":%" PRIu64,
                   mark->sequence, mark->is_synchronizing ? "true" : "false", mark->count, mark->bytes);
    trace_line_text(&line, "group", mark->group);
    trace_line_text(&line, "type", mark->type != NULL ? mark->type : "");
    if (mark->algorithm != NULL) {
        trace_line_text(&line, "algorithm", mark->algorithm);
    }
    if (mark->peer != NULL) {
        trace_line_text(&line, "peer", mark->peer);
    }
    if (mark->queued_ns > 0) {
        trace_line_time(&line, "queued_us", mark->begin_ns - mark->queued_ns);
    }
    if (mark->status != MUSTER_OK) {
        trace_line_text(&line, "failed", muster_strerror(mark->status));
    }
    trace_line_put(&line, "}");
    trace_append(&line, mark->end_ns);
    if (mark->transfer_ns > 0) {
        append_part("wait", lane, mark->begin_ns, mark->transfer_ns);
        append_part("transfer", lane, mark->transfer_ns, mark->end_ns);
    }
}

static void put_argument(struct trace_line *line, const char *key, int64_t value) {
    if (key != NULL) {
        trace_line_put(line, ",\"args\":{\"%.*s\":%" PRId64 "}", MUSTER_TRACE_NAME_MAX - 1, key, value);
    }
}

void trace_span(const char *name, const char *category, int64_t begin_ns, int64_t end_ns, const char *key,
                int64_t value) {
    if (!trace_enabled()) {
        return;
    }
    struct trace_line line;
    trace_line_begin(&line, name, 'X', trace_process(), this_thread());
    trace_line_text(&line, "cat", category);
    trace_line_time(&line, "ts", begin_ns);
    trace_line_time(&line, "dur", end_ns - begin_ns);
    put_argument(&line, key, value);
    trace_append(&line, end_ns);
}

/* Spans that may overlap have a number, which their two events share. */
static uint64_t next_id(void) {
    static _Atomic uint64_t last_id;
    return atomic_fetch_add(&last_id, 1) + 1;
}

static void begin_async(struct trace_line *line, const char *name, char phase, const char *category, uint64_t id,
                        int64_t at_ns) {
    trace_line_begin(line, name, phase, trace_process(), this_thread());
    trace_line_text(line, "cat", category);
    trace_line_put(line, ",\"id\":\"%d.%" PRIu64 "\"", (int)trace_process(), id);
    trace_line_time(line, "ts", at_ns);
}

void trace_async(const char *name, const char *category, int64_t begin_ns, int64_t end_ns, const char *key,
                 int64_t value) {
    if (!trace_enabled()) {
        return;
    }
    struct trace_line line;
    uint64_t id = next_id();
    for (int i = 0; i < 2; i++) {
        begin_async(&line, name, i == 0 ? 'b' : 'e', category, id, i == 0 ? begin_ns : end_ns);
        put_argument(&line, key, value);
        trace_append(&line, end_ns);
    }
}

void trace_message(const struct trace_message *mark) {
    if (!trace_enabled()) {
        return;
    }
    struct trace_line line;
    uint64_t id = next_id();
    begin_async(&line, mark->name, 'b', "message", id, mark->begin_ns);
    trace_line_put(&line, ",\"args\":{\"tag\":%" PRIu32 ",\"count\":%" PRIu64 ",\"bytes\":%" PRIu64, mark->tag,
                   mark->count, mark->bytes);
    trace_line_text(&line, "group", mark->group);
    trace_line_text(&line, "type", mark->type);
    trace_line_text(&line, "peer", mark->peer);
    if (mark->status != MUSTER_OK) {
        trace_line_text(&line, "failed", muster_strerror(mark->status));
    }
    trace_line_put(&line, "}");
    trace_append(&line, mark->end_ns);
    begin_async(&line, mark->name, 'e', "message", id, mark->end_ns);
    trace_append(&line, mark->end_ns);
}

void trace_counter(const char *name, int64_t at_ns, double value) {
    if (!trace_enabled()) {
        return;
    }
    struct trace_line line;
    trace_line_begin(&line, name, 'C', trace_process(), this_thread());
    trace_line_time(&line, "ts", at_ns);
    trace_line_put(&line, ",\"args\":{\"value\":%.6g}",
                   value > -1e300 && value < 1e300 ? value : 0.0); /* JSON has no infinity */
    trace_append(&line, at_ns);
}

/* ---- muster/trace.h ---- */

bool muster_trace_enabled(void) {
    return trace_enabled();
}

static void mark_now(const char *name, char phase, const char *more) {
    struct trace_line line;
    int64_t thread = this_thread(), now_ns = clock_monotonic_ns();
    trace_line_begin(&line, name, phase, trace_process(), thread);
    trace_line_put(&line, ",\"cat\":\"program\"%s", more);
    trace_line_time(&line, "ts", now_ns);
    trace_append(&line, now_ns);
}

void muster_trace_begin(const char *name) {
    if (trace_enabled()) {
        mark_now(name, 'B', "");
    }
}

void muster_trace_end(void) {
    if (trace_enabled()) {
        mark_now("", 'E', "");
    }
}

void muster_trace_instant(const char *name) {
    if (trace_enabled()) {
        mark_now(name, 'i', ",\"s\":\"t\"");
    }
}

int muster_trace_flush(void) {
    (void)trace_enabled(); /* which may be the first look */
    return trace_flush() == MUSTER_OK ? MUSTER_OK : trace_fail();
}
