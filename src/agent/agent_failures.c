/* The workers of this node that ended badly, with all that is known of each: for the report and for the outcome. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/agent_impl.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

bool agent_worker_ended_badly(const struct agent_worker *worker) {
    return worker->pid != 0 && worker->ended && worker->wait_status != 0;
}

/* The file's own time is finer than what is in it, which is in whole seconds; where the two disagree (a copy, a file
 * server with another clock) the end of that second is meant. */
static int64_t error_time_us(const char *path, int64_t told_s, int64_t ended_us) {
    struct stat seen;
    int64_t told_us = told_s * CLOCK_US_PER_S + CLOCK_US_PER_S - 1, time_us = told_us;
    if (stat(path, &seen) == 0) {
        int64_t made_us = seen.st_mtim.tv_sec * CLOCK_US_PER_S + seen.st_mtim.tv_nsec / 1000;
        bool agrees = told_s == 0 || (made_us > told_us - 2 * CLOCK_US_PER_S && made_us < told_us + CLOCK_US_PER_S);
        time_us = agrees ? made_us : told_us;
    }
    return time_us < ended_us ? time_us : ended_us;
}

static void read_error_file(const struct agent *a, uint32_t local_rank, struct report_entry *entry,
                            struct agent_failure_text *text) {
    const char *path = logs_error_file(a->logs, local_rank);
    int rc = path[0] == '\0' ? MUSTER_ENOENT : error_file_read(path, &text->record);
    if (rc == MUSTER_ENOENT) {
        return;
    }
    entry->error_file = path;
    if (rc != MUSTER_OK) {
        (void)str_format(text->problem, sizeof text->problem, "%s", muster_detail());
        entry->error_file_problem = text->problem;
        return;
    }
    entry->error_us = error_time_us(path, text->record.time_s, entry->ended_us);
    entry->message = text->record.message;
    entry->message_is_traceback = text->record.is_traceback;
    if (text->record.time_s > 0) {
        entry->time_s = text->record.time_s;
    }
}

/* One that crashes by itself after such a call is none. */
static bool is_victim(int wait_status, const struct last_call *call) {
    bool gave_up = WIFEXITED(wait_status) || (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGABRT);
    return gave_up && call->was_bereft;
}

static void fill_entry(const struct agent *a, uint32_t local_rank, struct report_entry *entry,
                       struct agent_failure_text *text) {
    const struct agent_worker *worker = &a->workers[local_rank];
    *entry = (struct report_entry){.rank = a->world.base_global_rank + local_rank,
                                   .local_rank = local_rank,
                                   .pid = worker->pid,
                                   .wait_status = worker->wait_status,
                                   .order = worker->order,
                                   .time_s = worker->ended_wall_us / CLOCK_US_PER_S,
                                   .ended_us = worker->ended_wall_us,
                                   .stopped_by_us = worker->stopped_by_us,
                                   .oom_killed = worker->oom_killed,
                                   .cpu_limit_s = worker->cpu_limit_s,
                                   .timer_expired = worker->timer_expired,
                                   .guardian_lost = worker->guardian_lost,
                                   .stuck = worker->stuck,
                                   .status = worker->mpi_how};
    last_call_read(logs_error_file(a->logs, local_rank), &text->last_call);
    entry->last_call = text->last_call.text[0] != '\0' ? text->last_call.text : NULL;
    entry->is_victim = is_victim(worker->wait_status, &text->last_call);
    entry->early_us = worker->stopped_by_us ? 0 : rdzv_cause_early_ms(worker->wait_status) * 1000;
    read_error_file(a, local_rank, entry, text);
    entry->failed_first = worker->stopped_by_us && entry->error_us != 0 && entry->error_us < a->signalled_wall_us;
    entry->stopped_by_us = worker->stopped_by_us && !entry->failed_first;
    text->tail = malloc(LOGS_TAIL_SIZE);
    if (text->tail != NULL) {
        entry->stderr_tail_bytes = logs_stderr_tail(a->logs, local_rank, text->tail, LOGS_TAIL_SIZE);
        entry->stderr_tail = entry->stderr_tail_bytes > 0 ? text->tail : NULL;
        entry->tail_has_stdout = logs_tail_has_stdout(a->logs, local_rank);
    }
}

static enum report_peer_state peer_state(const struct agent_worker *worker) {
    if (worker->state_at_stop == 0) {
        return worker->ended && worker->pid != 0 && worker->wait_status == 0 ? REPORT_PEER_ENDED_WELL
                                                                             : REPORT_PEER_OTHER;
    }
    return worker->state_at_stop == 'T'   ? REPORT_PEER_STOPPED
           : worker->state_at_stop == 't' ? REPORT_PEER_TRACED
           : worker->state_at_stop == 'D' ? REPORT_PEER_UNINTERRUPTIBLE
                                          : REPORT_PEER_OTHER;
}

static void fill_peers(const struct agent *a, struct report_peer *peers) {
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        peers[i] = (struct report_peer){.rank = a->world.base_global_rank + i,
                                        .state = peer_state(&a->workers[i]),
                                        .ended_us = a->workers[i].ended_wall_us};
    }
}

/* Of those for which there is no memory nothing is told. */
void agent_failures_collect(const struct agent *a, struct agent_failures *out) {
    *out = (struct agent_failures){.entries = calloc(a->config->nproc + 1, sizeof *out->entries),
                                   .texts = calloc(a->config->nproc, sizeof *out->texts),
                                   .peers = calloc(a->config->nproc, sizeof *out->peers)};
    if (out->peers != NULL) {
        fill_peers(a, out->peers);
    }
    for (uint32_t i = 0; out->entries != NULL && out->texts != NULL && i < a->config->nproc; i++) {
        if (agent_worker_ended_badly(&a->workers[i])) {
            fill_entry(a, i, &out->entries[out->count], &out->texts[out->count]);
            out->count++;
        }
    }
}

void agent_failures_done(struct agent_failures *failures) {
    for (size_t i = 0; i < failures->count; i++) {
        error_record_done(&failures->texts[i].record);
        free(failures->texts[i].tail);
    }
    free(failures->entries);
    free(failures->texts);
    free(failures->peers);
    *failures = (struct agent_failures){0};
}

void agent_failures_own(const struct agent *a, char out[OWN_FAILURE_SIZE]) {
    struct agent_failures failures;
    out[0] = '\0';
    if (logs_error_file(a->logs, 0)[0] == '\0') {
        return; /* workers cannot leave word that another rank's end was why */
    }
    agent_failures_collect(a, &failures);
    if (failures.count > 0) {
        const struct report report = {.entries = failures.entries, .count = failures.count};
        own_failure_describe(&failures.entries[report_root(&report)], a->starts, out);
    }
    agent_failures_done(&failures);
}
