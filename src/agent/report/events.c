/* The JSON lines of events, field for field in torchelastic's order and spacing; see events.h. */
#include "agent/report/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/json_text.h"
#include "base/status.h"

/* The inner metadata: an object, to be written as a string. */
static int append_inner(const struct event *event, struct buf *out) {
    int code = buf_printf(out, "{\"group_world_size\": ");
    code = code == 0 ? json_text_number(out, event->group_world_size > 0, event->group_world_size) : code;
    code = code == 0 ? buf_printf(out, ", \"entry_point\": ") : code;
    code = code == 0 ? json_text_string(out, event->entry_point) : code;
    if (code == 0 && event->source == EVENT_SOURCE_WORKER) {
        code =
            buf_printf(out, ", \"local_rank\": [%u], \"role_rank\": [%u], \"role_world_size\": [%u], \"exit_code\": [",
                       event->worker.local_rank, event->worker.role_rank, event->worker.role_world_size);
        code = code == 0 ? json_text_number(out, event->worker.failed, event->worker.exit_code) : code;
        code = code == 0 ? buf_printf(out, "], \"worker_pid\": [") : code;
        code = code == 0 ? json_text_number(out, event->worker.failed, event->worker.pid) : code;
        code = code == 0 ? buf_append(out, "]", 1) : code;
    }
    return code == 0 ? buf_append(out, "}", 1) : code;
}

static int append_named(struct buf *out, const char *name, const char *text) {
    int code = buf_printf(out, ", \"%s\": ", name);
    return code == 0 ? json_text_string(out, text) : code;
}

/* A float as Python's repr() writes it: as few digits as give the same value back. */
static int append_double(struct buf *out, double value) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    return buf_printf(out, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
}

static int append_head(const struct event *event, struct buf *out) {
    bool worker = event->source == EVENT_SOURCE_WORKER;
    int code = buf_printf(out,
                          "{\"name\": \"torchelastic.worker.status.%s\", \"source\": \"%s\", \"timestamp\": 0, "
                          "\"metadata\": {\"run_id\": ",
                          event->state, worker ? "WORKER" : "AGENT");
    code = code == 0 ? json_text_string(out, event->run_id) : code;
    code = code == 0 ? buf_printf(out, ", \"global_rank\": ") : code;
    code = code == 0 ? json_text_number(out, worker, event->worker.global_rank) : code;
    code = code == 0 ? buf_printf(out, ", \"group_rank\": ") : code;
    code = code == 0 ? json_text_number(out, event->has_group_rank, event->group_rank) : code;
    if (code == 0 && worker) {
        return buf_printf(out, ", \"worker_id\": \"%lld\"", (long long)event->worker.pid);
    }
    return code == 0 ? buf_printf(out, ", \"worker_id\": null") : code;
}

static int append_tail(const struct event *event, const char *inner, struct buf *out) {
    int code = append_named(out, "role", event->role);
    code = code == 0 ? append_named(out, "hostname", event->host) : code;
    code = code == 0 ? append_named(out, "state", event->state) : code;
    code =
        code == 0 ? buf_printf(out, ", \"total_run_time\": %llu", (unsigned long long)event->total_run_time_s) : code;
    code = code == 0 ? append_named(out, "rdzv_backend", event->backend) : code;
    code = code == 0 ? append_named(out, "raw_error", event->raw_error) : code;
    code = code == 0 ? append_named(out, "metadata", inner) : code;
    code = code == 0 ? buf_printf(out, ", \"agent_restarts\": %u, \"duration_ms\": ", event->restart_count) : code;
    code = code == 0 ? event->has_duration ? append_double(out, event->duration_ms) : buf_append(out, "null", 4) : code;
    return code == 0 ? buf_printf(out, "}}\n") : code;
}

int event_format(const struct event *event, struct buf *out) {
    enum { INNER_MAX = 64 * 1024 };
    struct buf inner;
    buf_init(&inner, INNER_MAX);
    int code = append_inner(event, &inner);
    code = code == 0 ? buf_append(&inner, "", 1) : code; /* terminator */
    code = code == 0 ? append_head(event, out) : code;
    code = code == 0 ? append_tail(event, (const char *)buf_bytes(&inner), out) : code;
    buf_done(&inner);
    return code;
}
