/* Starting the workers of an attempt and recording how each of them ended. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/guardian/reaper_proc.h"
#include "agent/launch/environment.h"
#include "agent/report/report.h"
#include "agent/report/signal_name.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

static int spawn(struct agent *a, uint32_t local_rank, const struct launch_strings *argv,
                 const struct launch_strings *envp, int stdout_fd, int stderr_fd) {
    struct guardian_spawn how = {.argv = (const char *const *)argv->items,
                                 .envp = (const char *const *)envp->items,
                                 .stdout_fd = stdout_fd,
                                 .stderr_fd = stderr_fd,
                                 .cpus = a->cpu_sets ? &a->cpu_sets[local_rank] : NULL,
                                 .cpus_bytes = sizeof(cpu_set_t),
                                 .is_preloaded = a->preloads,
                                 .given_fd = agent_mpi_fd(a, local_rank)};
    return guardian_spawn(a->guardian, local_rank, &how);
}

struct environment_worker agent_worker_environment(const struct agent *a, uint32_t local_rank) {
    return (struct environment_worker){.local_rank = local_rank,
                                       .restart_count = agent_machine_restart_count(&a->machine),
                                       .error_file = logs_error_file(a->logs, local_rank),
                                       .timer_file = a->watchdog ? watchdog_path(a->watchdog) : NULL,
                                       .stop_path = a->stop_path,
                                       .held_socket = a->held ? held_socket_name(a->held) : NULL,
                                       .mpi = agent_mpi_variables(a, local_rank),
                                       .failed_by = a->failed_by[0] != '\0' ? a->failed_by : NULL};
}

static int start_worker(struct agent *a, uint32_t local_rank) {
    struct launch_strings argv = {0};
    struct launch_strings envp = {0};
    int stdout_fd = -1;
    int stderr_fd = -1;
    /* First: the environment names the error file, which is known from then on. */
    int rc = logs_worker_open(a->logs, local_rank, a->world.base_global_rank + local_rank, &stdout_fd, &stderr_fd);
    if (rc != MUSTER_OK) {
        return rc;
    }
    agent_outcome_file_keep_error_file(a, local_rank);
    struct environment_worker worker = agent_worker_environment(a, local_rank);
    rc = environment_command(a->config, local_rank, &argv);
    if (rc == MUSTER_OK) {
        rc = environment_build(a->config, &a->world, &worker, (const char *const *)environ, &envp);
    }
    a->workers[local_rank].started_wall_us = clock_realtime_us(); /* it may have ended before its start is told */
    if (rc == MUSTER_OK) {
        rc = spawn(a, local_rank, &argv, &envp, stdout_fd, stderr_fd);
    }
    logs_worker_opened(a->logs, local_rank);
    launch_strings_done(&argv);
    launch_strings_done(&envp);
    return rc;
}

static void tell_held(const struct agent *a) {
    enum { MIB = 1 << 20 };
    uint64_t bytes = 0;
    size_t count = a->held ? held_count(a->held, &bytes) : 0;
    if (count > 0) {
        log_info("%zu piece%s of memory, %llu MiB, of earlier workers %s held for these", count, str_plural(count),
                 (unsigned long long)(bytes / MIB), count == 1 ? "is" : "are");
    }
}

static void start_all(struct agent *a) {
    int rc = logs_attempt_begin(a->logs, agent_machine_restart_count(&a->machine), a->world.round);
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        rc = rc == MUSTER_OK ? start_worker(a, i) : rc;
        if (rc == MUSTER_ECLOSED) {
            return; /* the guardian has died: what that means for these workers is told next */
        }
        if (rc != MUSTER_OK) {
            agent_worker_not_started(a, i, muster_detail());
        }
    }
}

static void refuse_all(struct agent *a, const char *why) {
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        agent_worker_not_started(a, i, why);
    }
}

void agent_worker_skipped(struct agent *a, uint32_t local_rank) {
    a->workers[local_rank].ended = true;
    agent_feed(a, AGENT_EVENT_WORKER_SUCCEEDED, (int)local_rank);
}

static void skip_all(struct agent *a) {
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        agent_worker_skipped(a, i);
    }
}

void agent_workers_start(struct agent *a) {
    agent_failures_own(a, a->failed_by); /* while it is known what those before have done */
    a->starts++;
    memset(a->workers, 0, a->config->nproc * sizeof *a->workers);
    a->signalled_at_ns = a->signalled_wall_us = 0;
    a->has_told_cause = false;
    agent_lost_forget(a);
    (void)uv_timer_stop(&a->cause_timer);
    if (a->watchdog != NULL) {
        watchdog_reset(a->watchdog);
    }
    tell_held(a);
    a->guardian_losses = 0;
    a->preload_deaths = 0;
    if (a->config->mpi != LAUNCH_MPI_NONE) {
        static const struct agent_mpi_answers answers = {start_all, skip_all, refuse_all};
        agent_mpi_begin(a, &answers);
    } else {
        start_all(a);
    }
}

void agent_worker_spawned(struct agent *a, uint32_t local_rank, pid_t pid) {
    a->workers[local_rank].pid = pid;
    agent_events_worker_started(a, local_rank);
    log_info("worker started: local_rank %u, rank %u, pid %d", local_rank, a->world.base_global_rank + local_rank, pid);
}

/* Said once: the ranks after the first would only repeat it. */
static bool first_not_started(const struct agent *a) {
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        if (a->workers[i].ended && a->workers[i].pid == 0) {
            return false;
        }
    }
    return true;
}

void agent_worker_not_started(struct agent *a, uint32_t local_rank, const char *why) {
    if (first_not_started(a)) {
        (void)str_format(a->end_message, sizeof a->end_message, "worker of local_rank %u was not started: %s",
                         local_rank, why);
        log_error("%s", a->end_message);
    }
    a->workers[local_rank].ended = true;
    agent_feed(a, AGENT_EVENT_SPAWN_FAILED, (int)local_rank);
    agent_cause_tell_not_started(a, local_rank, why);
}

/* Before the signal changes them. A few thousand files at most, read once. Only the report of a job that ends tells
 * them, so a restart does not wait for them. */
static void note_states(struct agent *a) {
    bool is_reported = a->machine.outcome != AGENT_OUTCOME_RESTART_FAILURE || a->machine.job_counts;
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        struct agent_worker *worker = &a->workers[i];
        bool is_running = worker->pid != 0 && !worker->ended;
        char state = is_running && is_reported ? reaper_proc_state(worker->pid) : AGENT_WORKER_STATE_UNKNOWN;
        worker->state_at_stop = is_running ? state : '\0';
    }
}

void agent_workers_signal(struct agent *a, int signal_number) {
    if (a->signalled_at_ns == 0) {
        note_states(a);
        a->signalled_at_ns = clock_monotonic_ns();
        a->signalled_wall_us = clock_realtime_us();
    }
    if (agent_mpi_cancel(a)) {
        skip_all(a);
        return;
    }
    /* First the signal, then the words: whoever reads them may be slow. */
    if (guardian_signal(a->guardian, signal_number) != MUSTER_OK) {
        log_error("cannot signal the workers: %s", muster_detail());
    }
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        if (a->workers[i].pid != 0 && !a->workers[i].ended) {
            log_warning("Sending process %d closing signal %s", a->workers[i].pid, signal_name(signal_number));
        }
    }
}

/* The launcher made it end in this way. While the others of this node or job are stopped for a failure, SIGKILL comes
 * from somebody else until the launcher sends it: that worker may be the one because of which they fail. */
static bool is_ours(const struct agent *a, const struct guardian_exit *exit) {
    enum agent_outcome why = a->machine.outcome;
    bool after_failure =
        why == AGENT_OUTCOME_FAILED || why == AGENT_OUTCOME_RESTART_FAILURE || why == AGENT_OUTCOME_RDZV_LOST;
    bool by_kill = WIFSIGNALED(exit->wait_status) && WTERMSIG(exit->wait_status) == SIGKILL;
    bool told = a->signalled_at_ns != 0 && exit->at_ns >= a->signalled_at_ns;
    return a->machine.state == AGENT_STATE_KILLING || (told && !(after_failure && by_kill));
}

static void note_end(struct agent *a, const struct guardian_exit *exit) {
    struct agent_worker *worker = &a->workers[exit->id];
    worker->ended = true;
    if (a->watchdog != NULL) {
        watchdog_forget(a->watchdog, exit->pid);
    }
    worker->pid = exit->pid;
    worker->wait_status = exit->wait_status;
    worker->order = exit->order;
    worker->oom_killed = exit->oom_killed;
    worker->cpu_limit_s = exit->cpu_limit_s;
    worker->core_dumped = exit->core_dumped;
    worker->ended_at_ns = exit->at_ns;
    worker->ended_wall_us = clock_realtime_at_us(exit->at_ns);
    worker->stopped_by_us = exit->wait_status != 0 && is_ours(a, exit);
}

void agent_worker_lost(struct agent *a, uint32_t local_rank, int wait_status) {
    struct agent_worker *worker = &a->workers[local_rank];
    const struct guardian_exit exit = {.id = local_rank,
                                       .pid = worker->pid,
                                       .wait_status = worker->pid != 0 ? wait_status : 0, /* else: was it started? */
                                       .at_ns = clock_monotonic_ns(),
                                       .order = UINT64_MAX - a->config->nproc + local_rank}; /* after all it has told */
    note_end(a, &exit);
    worker->guardian_lost = WIFSIGNALED(exit.wait_status) && WTERMSIG(exit.wait_status) == SIGKILL;
    worker->is_untold = true;
}

void agent_worker_ended(struct agent *a, const struct guardian_exit *exit) {
    const struct agent_worker *worker = &a->workers[exit->id];
    struct guardian_exit end = *exit;
    end.wait_status = agent_mpi_end_of(a, exit->id, exit->wait_status);
    note_end(a, &end);
    bool failed = end.wait_status != 0;
    agent_feed(a, failed ? AGENT_EVENT_WORKER_FAILED : AGENT_EVENT_WORKER_SUCCEEDED, (int)exit->id);
    if (failed && !worker->stopped_by_us) {
        agent_outcome_worker_failed(a, exit->id);
        agent_lost_tell_worker(a, exit->id);
        if (!a->config->survivors_continue) {
            agent_cause_tell(a); /* stopping this node's other workers may take long */
        }
    }
}
