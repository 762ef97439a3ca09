/* --event-log-handler console: when an event is told, and with what in it. */
#include <string.h>

#include "agent/agent_impl.h"
#include "agent/report/error_file.h"
#include "agent/report/events.h"
#include "agent/report/report.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

/* Longest line: the largest error file, escaped twice. */
#define EVENT_BYTES_MAX ((size_t)ERROR_FILE_BYTES_MAX * 16)

static bool wanted(const struct agent *a) {
    return a->config->events == LAUNCH_EVENTS_CONSOLE;
}

static void tell(const struct agent *a, struct event *event) {
    char host[REPORT_HOST_SIZE];
    report_host(host);
    event->run_id = a->config->run_id;
    event->role = a->config->role;
    event->host = host;
    event->backend = a->config->backend_name;
    event->entry_point = a->config->entry_point;
    event->restart_count = agent_machine_restart_count(&a->machine);
    event->has_group_rank = a->machine.world_count > 0 || a->world.group_world_size > 0;
    event->group_rank = a->world.group_rank;
    event->group_world_size = a->world.group_world_size;
    struct buf line;
    buf_init(&line, EVENT_BYTES_MAX);
    if (event_format(event, &line) == MUSTER_OK) {
        a->print((const char *)buf_bytes(&line), line.len);
    } else {
        log_warning("cannot write an event: %s", muster_detail());
    }
    buf_done(&line);
    event->host = NULL; /* ends with this function */
}

void agent_events_world(const struct agent *a) {
    if (!wanted(a)) {
        return;
    }
    double duration_ms = (double)(clock_monotonic_ns() - a->join_started_ns) / (double)CLOCK_NS_PER_MS;
    struct event event = {
        .source = EVENT_SOURCE_AGENT, .state = "RENDEZVOUS", .has_duration = true, .duration_ms = duration_ms};
    tell(a, &event);
    /* Ranks come with the world: no step of their own. */
    event = (struct event){.source = EVENT_SOURCE_AGENT, .state = "ASSIGN_WORKER_RANKS", .has_duration = true};
    tell(a, &event);
}

static struct event worker_event(const struct agent *a, uint32_t local_rank, const char *state) {
    struct event event = {.source = EVENT_SOURCE_WORKER, .state = state};
    event.worker.global_rank = a->world.base_global_rank + local_rank;
    event.worker.local_rank = local_rank;
    event.worker.role_rank = a->world.base_role_rank + local_rank;
    event.worker.role_world_size = a->world.role_world_size;
    event.worker.pid = a->workers[local_rank].pid;
    return event;
}

void agent_events_worker_started(const struct agent *a, uint32_t local_rank) {
    if (wanted(a)) {
        struct event event = worker_event(a, local_rank, "START");
        tell(a, &event);
    }
}

static uint64_t run_time_s(const struct agent *a) {
    return (uint64_t)((clock_realtime_us() - a->started_wall_us) / CLOCK_US_PER_S);
}

/* What torchelastic puts in the place of an error file that was not written. */
static const char no_error_file[] = "{\"message\": \"<NONE>\", \"errorTraits\": {\"category\": "
                                    "\"system_terminated_error\", \"retryability\": \"False\"}}";

/* As there, workers that the launcher stopped have FAILED too; TERMINATED are those that ended well in a failed group.
 */
static void worker_ended(const struct agent *a, uint32_t local_rank, bool job_failed) {
    const struct agent_worker *worker = &a->workers[local_rank];
    bool failed = worker->wait_status != 0;
    struct event event = worker_event(a, local_rank, failed ? "FAILED" : job_failed ? "TERMINATED" : "SUCCEEDED");
    struct error_record record = {0};
    event.total_run_time_s = run_time_s(a);
    event.worker.failed = failed;
    event.worker.exit_code = report_exit_code(worker->wait_status);
    if (failed) {
        bool has_file = error_file_read(logs_error_file(a->logs, local_rank), &record) == MUSTER_OK;
        event.raw_error = has_file ? record.json : no_error_file;
    }
    tell(a, &event);
    error_record_done(&record);
}

void agent_events_end(const struct agent *a) {
    if (!wanted(a)) {
        return;
    }
    enum agent_outcome outcome = a->machine.outcome;
    bool regular = outcome == AGENT_OUTCOME_SUCCESS || outcome == AGENT_OUTCOME_FAILED;
    for (uint32_t i = 0; regular && i < a->config->nproc; i++) {
        worker_ended(a, i, outcome == AGENT_OUTCOME_FAILED);
    }
    struct event event = {.source = EVENT_SOURCE_AGENT,
                          .state = regular || outcome == AGENT_OUTCOME_SPARE ? "SUCCEEDED" : "FAILED",
                          .total_run_time_s = run_time_s(a),
                          .raw_error = regular ? NULL : agent_outcome_name(outcome)};
    tell(a, &event);
}
