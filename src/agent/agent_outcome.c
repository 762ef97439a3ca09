/* What the agent tells people when a worker or the job has ended: log lines, the failure report, and the error file
 * of whoever started the launcher. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/report/circumstances.h"
#include "agent/report/error_file.h"
#include "agent/report/last_call.h"
#include "agent/report/report.h"
#include "agent/report/report_text.h"
#include "agent/report/signal_name.h"
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
    struct last_call call;
    last_call_read(logs_error_file(a->logs, local_rank), &call);
    if (call.text[0] != '\0') {
        log_error("rank %u: its last call on a process group: %s", a->world.base_global_rank + local_rank, call.text);
    }
    if (a->config->survivors_continue && a->machine.state == AGENT_STATE_RUNNING) {
        log_warning("rank %u has failed; %u of %u workers of this node go on (--survivors=continue)",
                    a->world.base_global_rank + local_rank, a->machine.running_count, a->config->nproc);
    }
}

/* "rank 1 (pid 123): killed by SIGKILL (Killed)", of the worker that failed first; "" where none of this node has. */
static void describe_first_failure(const struct agent *a, struct buf *out) {
    struct agent_failures failures;
    agent_failures_collect(a, &failures);
    if (failures.count > 0) {
        const struct report report = {.entries = failures.entries, .count = failures.count};
        const struct report_entry *root = &failures.entries[report_root(&report)];
        if (buf_printf(out, "rank %u (pid %lld): ", root->rank, (long long)root->pid) != MUSTER_OK ||
            report_describe_status(root, out) != MUSTER_OK) {
            buf_clear(out);
        }
    }
    agent_failures_done(&failures);
}

void agent_outcome_restarting(const struct agent *a) {
    enum { BYTES_MAX = 4096 };
    struct buf first;
    buf_init(&first, BYTES_MAX);
    describe_first_failure(a, &first);
    int len = (int)first.len;
    const char *cause = len > 0 ? (const char *)buf_bytes(&first) : "";
    if (a->machine.job_counts) { /* which says so on all nodes */
        log_info("[%s] Worker group FAILED: %.*s. The job decides whether it is restarted (%u of %u restarts used)",
                 a->config->role, len, cause, a->machine.restart_count, a->machine.max_restarts);
    } else {
        log_warning("[%s] Worker group FAILED: %.*s. Restart %u of %u", a->config->role, len, cause,
                    a->machine.restart_count, a->machine.max_restarts);
    }
    buf_done(&first);
}

void agent_outcome_pausing(const struct agent *a, int64_t pause_ms) {
    log_warning("[%s] restarting in %.1f s: %u attempts have failed one after the other, the last after %.1f s "
                "(--restart-backoff)",
                a->config->role, (double)pause_ms / 1000, a->machine.backoff.young_count,
                (double)a->machine.backoff.last_lived_ms / 1000);
}

enum { RANKS_NAMED_MAX = 32 };

void agent_outcome_survivors(const struct agent *a) {
    char ranks[RANKS_NAMED_MAX * 12 + 32] = "";
    uint32_t failed = 0;
    for (uint32_t i = 0; a->machine.outcome == AGENT_OUTCOME_SUCCESS && i < a->config->nproc; i++) {
        if (agent_worker_ended_badly(&a->workers[i]) && failed++ < RANKS_NAMED_MAX) {
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

static void name_lingerer(const struct guardian_lingerer *lingerer) {
    struct buf command;
    char owner[32] = "";
    buf_init(&command, 1024);
    int bytes = report_text_clean(&command, lingerer->command, strnlen(lingerer->command, GUARDIAN_COMMAND_BYTES),
                                  GUARDIAN_COMMAND_BYTES) == MUSTER_OK
                    ? (int)command.len
                    : 0;
    const char *text = (const char *)buf_bytes(&command);
    if (lingerer->rank >= 0) {
        (void)str_format(owner, sizeof owner, " of rank %d", lingerer->rank);
    }
    if (lingerer->spared) {
        log_warning("pid %d%s runs on after the job: %.*s (--detached=stop would end it)", lingerer->pid, owner, bytes,
                    text);
    } else {
        log_warning("  pid %d%s: %.*s", lingerer->pid, owner, bytes, text);
    }
    buf_done(&command);
}

/* Why those with a session of their own are not spared, or how to be. */
static const char *describe_sparing(const struct agent *a) {
    return a->spares_detached ? " (a session of its own, as by setsid, would spare a process)"
           : getpid() == 1    ? " (the launcher is process 1: nothing outlives it in its container)"
                              : " (--detached=leave spares those with a session of their own)";
}

void agent_outcome_lingering(const struct agent *a, const struct guardian_lingering *lingering) {
    uint32_t told = 0;
    if (lingering->count > 0) {
        log_warning("the workers have ended well, and %u process%s that they started still run%s: SIGTERM now, SIGKILL "
                    "in %llu s%s",
                    lingering->count, lingering->count == 1 ? "" : "es", lingering->count == 1 ? "s" : "",
                    (unsigned long long)(a->config->shutdown_timeout_ms / 1000), describe_sparing(a));
    }
    for (uint32_t i = 0; i < lingering->named_count && i < GUARDIAN_LINGERING_MAX; i++) {
        if (lingering->count == 0 || !lingering->named[i].spared) {
            name_lingerer(&lingering->named[i]);
            told++;
        }
    }
    uint32_t all = lingering->count > 0 ? lingering->count : lingering->spared_count;
    if (told < all) {
        log_warning("%s%u more", lingering->count > 0 ? "  " : "", all - told);
    }
}

static const char torch_error_line[] = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";

static void print_report(const struct agent *a, const struct report *report) {
    struct buf out;
    buf_init(&out, report_bytes_max(report->count));
    int rc = report->native && !report->plain
                 ? buf_printf(&out, "muster run: %s has failed; the root cause stands at the end of this report\n",
                              report->name)
                 /* The line by which tools that read torchrun's output find the report. */
                 : buf_append(&out, torch_error_line, sizeof torch_error_line - 1);
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

/* Where the rendezvous is lost and no worker has failed by itself, none is to blame. */
static bool blames_nobody(const struct agent *a, const struct agent_failures *failures) {
    const struct report report = {.entries = failures->entries, .count = failures->count};
    return failures->count == 0 ||
           (a->machine.outcome == AGENT_OUTCOME_RDZV_LOST && failures->entries[report_root(&report)].stopped_by_us);
}

/* The failure of another node comes first. */
static void add_remote(struct agent_failures *failures, const struct rdzv_cause *cause) {
    if (failures->entries != NULL) {
        failures->entries[failures->count++] = agent_cause_entry(cause);
    }
}

void agent_outcome_report(const struct agent *a) {
    const struct rdzv_cause *remote = agent_cause_remote(a);
    struct agent_failures failures;
    agent_failures_collect(a, &failures);
    size_t own = failures.count;
    if (remote != NULL) {
        add_remote(&failures, remote);
    }
    if (!blames_nobody(a, &failures)) {
        char host[REPORT_HOST_SIZE], circumstances[CIRCUMSTANCES_SIZE];
        report_host(host);
        circumstances_describe(logs_run_directory(a->logs), circumstances);
        if (remote == NULL && a->rdzv != NULL && rdzv_lost(a->rdzv)[0] != '\0') {
            size_t used = strlen(circumstances);
            (void)str_format(circumstances + used, sizeof circumstances - used, "%s\n", rdzv_lost(a->rdzv));
        }
        struct report report = {.name = a->config->title,
                                .host = host,
                                .entries = failures.entries,
                                .count = failures.count,
                                .circumstances = circumstances,
                                .started_us = a->workers[0].started_wall_us,
                                .native = a->config->is_native,
                                .peers = failures.peers,
                                .peer_count = failures.peers ? a->config->nproc : 0,
                                .plain = a->config->stderr_tail_lines == 0};
        logs_finish_lines(a->logs);
        print_report(a, &report);
        propagate(&failures.entries[report_root(&report)]);
    }
    failures.count = own;
    agent_failures_done(&failures);
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
        bad += agent_worker_ended_badly(&a->workers[i]);
    }
    if (bad > 0) {
        log_warning("%u of %u workers of this node did not exit with 0 when they were asked to stop", bad,
                    a->config->nproc);
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
        log_error("%s (%s); %s", text, signal_name(a->machine.signal_number),
                  a->starts > 0 ? "this node's workers have ended and it has left the job"
                                : "this node has left the job before any worker was started here");
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
