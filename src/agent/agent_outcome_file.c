/* --outcome: the end of this launcher and of its workers as JSON (docs/formats/outcome.md). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/report/outcome.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

/* Names are part of the format. */
static const char *result_of(enum agent_outcome outcome) {
    static const char *const names[AGENT_OUTCOME_COUNT] = {
        [AGENT_OUTCOME_NONE] = "not_started",
        [AGENT_OUTCOME_SUCCESS] = "success",
        [AGENT_OUTCOME_RESTART_FAILURE] = "failed",
        [AGENT_OUTCOME_RESTART_CHANGE] = "failed",
        [AGENT_OUTCOME_FAILED] = "failed",
        [AGENT_OUTCOME_NOT_STARTED] = "not_started",
        [AGENT_OUTCOME_RDZV_LOST] = "rendezvous_lost",
        [AGENT_OUTCOME_SIGNALLED] = "signalled",
        [AGENT_OUTCOME_PREEMPTED] = "preempted",
        [AGENT_OUTCOME_SPARE] = "spare",
        [AGENT_OUTCOME_UNSUPERVISED] = "guardian_lost",
    };
    return names[outcome];
}

int agent_outcome_file_prepare(struct agent *a) {
    if (!a->config->outcome_path) {
        return MUSTER_OK;
    }
    int rc = outcome_prepare(a->config->outcome_path);
    a->writes_outcome = rc == MUSTER_OK; /* else what is there is not ours to replace */
    return rc;
}

/* Terminated. */
static int format_job(const struct agent *a, struct buf *out) {
    char host[REPORT_HOST_SIZE];
    report_host(host);
    struct outcome_job job = {.run_id = a->config->run_id,
                              .name = a->config->title,
                              .entry_point = a->config->entry_point,
                              .role = a->config->role,
                              .backend = a->config->backend_name,
                              .host = host,
                              .launcher_pid = getpid(),
                              .started_us = a->started_wall_us,
                              .has_world = a->world.group_world_size > 0,
                              .group_rank = a->world.group_rank,
                              .group_world_size = a->world.group_world_size,
                              .world_size = a->world.global_world_size,
                              .round = a->world.round,
                              .restarts = agent_machine_restart_count(&a->machine),
                              .max_restarts = a->machine.max_restarts};
    int rc = outcome_format_job(&job, out);
    return rc == MUSTER_OK ? buf_append(out, "", 1) : rc;
}

static void keep(const struct agent *a, const char *path, const char *job) {
    bool has_world = a->world.group_world_size > 0;
    if (guardian_keep_outcome(a->guardian, path, job, has_world ? a->config->nproc : 0, a->world.base_global_rank,
                              a->world.base_role_rank) != MUSTER_OK) {
        log_info("the guardian process will not write the outcome: %s", muster_detail());
    }
}

void agent_outcome_file_keep_error_file(const struct agent *a, uint32_t local_rank) {
    const char *path = logs_error_file(a->logs, local_rank);
    if (a->config->outcome_path && path[0] != '\0' &&
        guardian_keep_error_file(a->guardian, local_rank, path) != MUSTER_OK) {
        log_info("an outcome of the guardian process will not name %s: %s", path, muster_detail());
    }
}

void agent_outcome_file_keep(const struct agent *a) {
    struct buf job;
    if (!a->config->outcome_path || !a->guardian) {
        return;
    }
    buf_init(&job, OUTCOME_BYTES_MAX);
    if (format_job(a, &job) == MUSTER_OK) {
        keep(a, a->config->outcome_path, (const char *)buf_bytes(&job));
    }
    buf_done(&job);
}

static void fill_worker(const struct agent *a, uint32_t local_rank, struct outcome_worker *out) {
    const struct agent_worker *worker = &a->workers[local_rank];
    *out = (struct outcome_worker){.local_rank = local_rank,
                                   .rank = a->world.base_global_rank + local_rank,
                                   .role_rank = a->world.base_role_rank + local_rank,
                                   .pid = worker->pid,
                                   .started_us = worker->started_wall_us,
                                   .ended_us = worker->ended_wall_us,
                                   .has_ended = worker->ended,
                                   .wait_status = worker->wait_status,
                                   .stopped_by_launcher = worker->stopped_by_us,
                                   .oom_killed = worker->oom_killed,
                                   .timer_expired = worker->timer_expired,
                                   .stuck = worker->stuck,
                                   .core_dumped = worker->core_dumped};
}

/* What only failures have; `status` holds the words of each, terminated. */
static void fill_failure(const struct report_entry *entry, const struct agent_failure_text *text, struct buf *status,
                         struct outcome_worker *out) {
    out->failed_first = entry->failed_first;
    out->error_file = entry->error_file;
    out->error_json = text->record.json;
    out->message = entry->message;
    out->timestamp_s = entry->time_s;
    buf_clear(status);
    if (report_describe_status(entry, status) == MUSTER_OK && buf_append(status, "", 1) == MUSTER_OK) {
        out->status = strdup((const char *)buf_bytes(status));
    }
}

static void fill_workers(const struct agent *a, const struct agent_failures *failures, struct outcome_worker *workers) {
    struct buf status;
    buf_init(&status, 4096);
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        fill_worker(a, i, &workers[i]);
    }
    for (size_t i = 0; i < failures->count; i++) {
        fill_failure(&failures->entries[i], &failures->texts[i], &status, &workers[failures->entries[i].local_rank]);
    }
    buf_done(&status);
}

/* Of this node's workers, or another node's, which is put into `remote`. NULL: no worker failed for good. */
static const struct outcome_worker *find_root(const struct agent *a, const struct agent_failures *failures,
                                              const struct outcome_worker *workers, struct outcome_worker *remote,
                                              const char **host) {
    const struct rdzv_cause *cause = agent_cause_remote(a);
    if (cause != NULL) {
        *remote = (struct outcome_worker){.rank = cause->rank,
                                          .local_rank = cause->local_rank,
                                          .pid = cause->pid,
                                          .wait_status = cause->wait_status,
                                          .timestamp_s = cause->time_s,
                                          .status = cause->how};
        *host = cause->host;
        return remote;
    }
    if (failures->count == 0) {
        return NULL;
    }
    const struct report report = {.entries = failures->entries, .count = failures->count};
    const struct report_entry *root = &failures->entries[report_root(&report)];
    /* Another node was the first to say that the job has failed, and this node's worker was the first to fail. */
    bool is_first = a->machine.outcome == AGENT_OUTCOME_RDZV_LOST && !root->stopped_by_us;
    return a->machine.outcome == AGENT_OUTCOME_FAILED || is_first ? &workers[root->local_rank] : NULL;
}

static int write_file(const struct agent *a, const struct agent_failures *failures, struct outcome_worker *workers) {
    bool began = workers != NULL;
    int number = a->machine.outcome == AGENT_OUTCOME_SIGNALLED ? a->machine.signal_number : 0;
    struct outcome_end end = {.result = result_of(a->machine.outcome),
                              .has_exit_code = true,
                              .exit_code = a->exit_signal ? -a->exit_signal : a->exit_code,
                              .signal_number = number,
                              .message = a->end_message[0] != '\0' ? a->end_message : NULL,
                              .ended_us = clock_realtime_us()};
    char own_host[REPORT_HOST_SIZE];
    struct outcome_worker remote;
    struct buf job, text;
    report_host(own_host);
    end.root_host = own_host;
    if (began) {
        fill_workers(a, failures, workers);
        end.root = find_root(a, failures, workers, &remote, &end.root_host);
    }
    buf_init(&job, OUTCOME_BYTES_MAX);
    buf_init(&text, OUTCOME_BYTES_MAX);
    int rc = format_job(a, &job);
    if (rc == MUSTER_OK) {
        rc = outcome_format((const char *)buf_bytes(&job), &end, workers, began ? a->config->nproc : 0, &text);
    }
    rc = rc == MUSTER_OK ? outcome_write(a->config->outcome_path, &text) : rc;
    buf_done(&job);
    buf_done(&text);
    return rc;
}

static int write_with(const struct agent *a, bool has_workers) {
    struct outcome_worker *workers = NULL;
    struct agent_failures failures = {0};
    if (has_workers && !(workers = calloc(a->config->nproc, sizeof *workers))) {
        return status_fail(MUSTER_ENOMEM, "no memory to write the outcome");
    }
    if (has_workers) {
        agent_failures_collect(a, &failures);
    }
    int rc = write_file(a, &failures, workers);
    for (uint32_t i = 0; workers && i < a->config->nproc; i++) {
        free((char *)(uintptr_t)workers[i].status);
    }
    free(workers);
    agent_failures_done(&failures);
    return rc;
}

/* Where memory or disk are too small for the workers, with their errors, the job alone may be short enough. The
 * guardian writes nothing in either case: it would tell of a launcher that was killed. */
void agent_outcome_file_write(const struct agent *a) {
    bool began = a->machine.world_count > 0;
    if (!a->writes_outcome) {
        return;
    }
    int rc = write_with(a, began);
    if (rc != MUSTER_OK) {
        log_error("%s", muster_detail());
    }
    if (rc != MUSTER_OK && began && write_with(a, false) == MUSTER_OK) {
        log_warning("the outcome is there, without its workers");
    }
    if (a->guardian) {
        keep(a, "", "");
    }
}

void agent_refuse(const struct launch_config *config, const char *why) {
    struct agent a = {.config = config, .exit_code = 1, .started_wall_us = clock_realtime_us()};
    (void)str_copy(a.end_message, sizeof a.end_message, why);
    if (agent_outcome_file_prepare(&a) != MUSTER_OK) {
        log_error("%s", muster_detail());
    }
    agent_outcome_file_write(&a);
}
