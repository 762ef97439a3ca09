/* What the agent tells people when a worker or the job has ended: log lines, the failure report, and the error file
 * of whoever started the launcher. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/error_file.h"
#include "agent/last_call.h"
#include "agent/report.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

/* Largest report: the tails and tracebacks that are quoted are bounded, an entry without them is below 1 KiB. */
static size_t report_bytes_max(size_t entries) {
    return (size_t)REPORT_TAILS_MAX * (LOGS_TAIL_SIZE * 4 + REPORT_MESSAGE_BYTES_MAX * 2) +
           entries * (4096 + REPORT_MESSAGE_BYTES_MAX);
}

void agent_outcome_worker_failed(const struct agent *a, uint32_t local_rank) {
    const struct agent_worker *worker = &a->workers[local_rank];
    log_error("failed (exitcode: %d) local_rank: %u (pid: %d) of binary: %s", report_exit_code(worker->wait_status),
              local_rank, worker->pid, a->config->command.items[0]);
    char call[LAST_CALL_SIZE];
    if (last_call_describe(logs_error_file(a->logs, local_rank), call)) {
        log_error("rank %u: its last call on a process group: %s", a->world.base_global_rank + local_rank, call);
    }
    if (a->config->survivors_continue && a->machine.state == AGENT_STATE_RUNNING) {
        log_warning("rank %u has failed; %u of %u workers of this node go on (--survivors=continue)",
                    a->world.base_global_rank + local_rank, a->machine.running_count, a->config->nproc);
    }
}

void agent_outcome_stopping(const struct agent *a) {
    if (a->machine.outcome == AGENT_OUTCOME_RESTART_FAILURE && a->machine.job_counts) {
        log_info("[%s] Worker group FAILED; the job decides whether it is restarted (%u of %u failures charged so far)",
                 a->config->role, a->machine.restart_count, a->machine.max_restarts);
    } else if (a->machine.outcome == AGENT_OUTCOME_RESTART_FAILURE) {
        log_info("[%s] Worker group FAILED. %u/%u attempts left; will restart worker group", a->config->role,
                 a->machine.restarts_left, a->machine.max_restarts);
    }
}

/* What belongs to an entry and must live until the report is printed. */
struct entry_text {
    struct error_record record;
    char problem[256];
    char last_call[LAST_CALL_SIZE];
    char *tail;
};

static bool ended_badly(const struct agent_worker *worker) {
    return worker->pid != 0 && worker->ended && worker->wait_status != 0;
}

enum { RANKS_NAMED_MAX = 32 };

void agent_outcome_survivors(const struct agent *a) {
    char ranks[RANKS_NAMED_MAX * 12 + 32] = "";
    uint32_t failed = 0;
    for (uint32_t i = 0; a->machine.outcome == AGENT_OUTCOME_SUCCESS && i < a->config->nproc; i++) {
        if (ended_badly(&a->workers[i]) && failed++ < RANKS_NAMED_MAX) {
            size_t used = strlen(ranks);
            (void)str_format(ranks + used, sizeof ranks - used, "%s%u", failed > 1 ? ", " : "",
                             a->world.base_global_rank + i);
        }
    }
    if (failed > RANKS_NAMED_MAX) {
        size_t used = strlen(ranks);
        (void)str_format(ranks + used, sizeof ranks - used, " and %u more", failed - RANKS_NAMED_MAX);
    }
    if (failed > 0) {
        log_warning("the job has ended well on this node without %u of its %u workers: failed %s %s", failed,
                    a->config->nproc, failed == 1 ? "rank" : "ranks", ranks);
    }
}

static void read_error_file(const struct agent *a, uint32_t local_rank, struct report_entry *entry,
                            struct entry_text *text) {
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
    entry->message = text->record.message;
    entry->message_is_traceback = text->record.is_traceback;
    if (text->record.time_s > 0) {
        entry->time_s = text->record.time_s;
    }
}

static void fill_entry(const struct agent *a, uint32_t local_rank, struct report_entry *entry,
                       struct entry_text *text) {
    const struct agent_worker *worker = &a->workers[local_rank];
    *entry = (struct report_entry){.rank = a->world.base_global_rank + local_rank,
                                   .local_rank = local_rank,
                                   .pid = worker->pid,
                                   .wait_status = worker->wait_status,
                                   .order = worker->order,
                                   .time_s = worker->ended_wall_us / CLOCK_US_PER_S,
                                   .stopped_by_us = worker->stopped_by_us,
                                   .oom_killed = worker->oom_killed,
                                   .timer_expired = worker->timer_expired,
                                   .stuck = worker->stuck};
    read_error_file(a, local_rank, entry, text);
    entry->last_call =
        last_call_describe(logs_error_file(a->logs, local_rank), text->last_call) ? text->last_call : NULL;
    text->tail = malloc(LOGS_TAIL_SIZE);
    if (text->tail != NULL) {
        entry->stderr_tail_bytes = logs_stderr_tail(a->logs, local_rank, text->tail, LOGS_TAIL_SIZE);
        entry->stderr_tail = entry->stderr_tail_bytes > 0 ? text->tail : NULL;
    }
}

static const char torch_error_line[] = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";

static void print_report(const struct agent *a, const struct report *report) {
    struct buf out;
    buf_init(&out, report_bytes_max(report->count));
    /* The line by which tools that read torchrun's output find the report. */
    int rc = buf_append(&out, torch_error_line, sizeof torch_error_line - 1);
    if (rc == MUSTER_OK) {
        rc = report_format(report, &out);
    }
    if (rc == MUSTER_OK) {
        a->print((const char *)buf_bytes(&out), out.len);
    } else {
        log_error("the failure report cannot be put together: %s", muster_detail());
    }
    buf_done(&out);
}

/* A launcher started by another launcher hands the root cause's file up. */
static void propagate(const struct report_entry *root) {
    const char *own = getenv("TORCHELASTIC_ERROR_FILE");
    if (own == NULL || own[0] == '\0' || root->error_file == NULL || root->error_file_problem != NULL) {
        return;
    }
    if (error_file_propagate(root->error_file, report_exit_code(root->wait_status), own) != MUSTER_OK) {
        log_warning("the error file could not be passed on to %s: %s", own, muster_detail());
    }
}

void agent_outcome_report(const struct agent *a) {
    size_t count = 0;
    struct report_entry *entries = calloc(a->config->nproc, sizeof *entries);
    struct entry_text *texts = calloc(a->config->nproc, sizeof *texts);
    for (uint32_t i = 0; entries != NULL && texts != NULL && i < a->config->nproc; i++) {
        if (ended_badly(&a->workers[i])) {
            fill_entry(a, i, &entries[count], &texts[count]);
            count++;
        }
    }
    if (count > 0) {
        char host[REPORT_HOST_SIZE];
        report_host(host);
        struct report report = {.name = a->config->title,
                                .host = host,
                                .entries = entries,
                                .count = count,
                                .plain = a->config->stderr_tail_lines == 0};
        logs_finish_lines(a->logs);
        print_report(a, &report);
        propagate(&entries[report_root(&report)]);
    }
    for (size_t i = 0; i < count; i++) {
        error_record_done(&texts[i].record);
        free(texts[i].tail);
    }
    free(entries);
    free(texts);
}

/* An end that no worker caused is recorded for whoever started the launcher. */
static void write_own_error(const char *message) {
    const char *own = getenv("TORCHELASTIC_ERROR_FILE");
    if (own != NULL && own[0] != '\0' &&
        error_file_write(own, message, "", clock_realtime_us() / CLOCK_US_PER_S) != MUSTER_OK) {
        log_warning("the error file %s cannot be written: %s", own, muster_detail());
    }
}

static void tell_preempted(const struct agent *a) {
    uint32_t bad = 0;
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        bad += ended_badly(&a->workers[i]);
    }
    if (bad > 0) {
        log_warning("%u of %u workers of this node did not end by themselves, with 0, when they were asked to stop",
                    bad, a->config->nproc);
    }
    log_warning(
        "the job has stopped before its end, since a node is taken away: exit code %d. Started again, it goes on "
        "from its last snapshot",
        AGENT_EXIT_PREEMPTED);
}

void agent_outcome_end(const struct agent *a) {
    char text[128];
    switch (a->machine.outcome) {
    case AGENT_OUTCOME_SIGNALLED:
        (void)str_format(text, sizeof text, "SignalException: Process %d got signal: %d", (int)getpid(),
                         a->machine.signal_number);
        log_error("%s (SIG%s); this node's workers have ended and it has left the job", text,
                  sigabbrev_np(a->machine.signal_number));
        write_own_error(text);
        return;
    case AGENT_OUTCOME_PREEMPTED:
        tell_preempted(a);
        return;
    case AGENT_OUTCOME_RDZV_LOST:
        write_own_error("RendezvousError: the rendezvous could not go on; the launcher's log says why");
        return;
    case AGENT_OUTCOME_NOT_STARTED:
        write_own_error("a worker could not be started; the launcher's log says why");
        return;
    case AGENT_OUTCOME_UNSUPERVISED:
        write_own_error("the process that holds the workers died");
        return;
    default:
        return;
    }
}
