/* What the guardian says, and what becomes of its loss: the workers have died with it, so their attempt has failed, and
 * another guardian takes its place (docs/adr/0019-guardian-replaced.md). */
#include <errno.h>
#include <signal.h>
#include <stddef.h>

#include "agent/agent_impl.h"
#include "agent/logs/logs_layout.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

/* Guardians that are lost without workers cost the job no restart, so there is an end of them. */
enum { LOSSES_MAX = 8 };

/* ---- in good order ---- */

static void on_spawned(void *ctx, uint32_t id, pid_t pid) {
    if (id == AGENT_MPI_ID) {
        agent_mpi_spawned(ctx, pid);
        return;
    }
    agent_worker_spawned(ctx, id, pid);
}

static void on_spawn_failed(void *ctx, uint32_t id, int error_number, const char *why) {
    if (id == AGENT_MPI_ID) {
        agent_mpi_not_started(ctx, why);
    } else if (error_number == ECANCELED) {
        agent_worker_skipped(ctx, id);
    } else {
        agent_worker_not_started(ctx, id, why);
    }
}

static void on_worker_exit(void *ctx, const struct guardian_exit *exit) {
    if (exit->id == AGENT_MPI_ID) {
        agent_mpi_ended(ctx, exit->wait_status);
        return;
    }
    agent_worker_ended(ctx, exit);
}

static void on_preload(void *ctx, const struct guardian_preload_news *news) {
    agent_preload_told(ctx, news);
}

static void on_lingering(void *ctx, const struct guardian_lingering *lingering) {
    struct agent *a = ctx;
    agent_outcome_lingering(a, lingering);
    if (lingering->count > 0) {
        agent_feed(a, AGENT_EVENT_LINGERING, (int)lingering->count);
    }
}

static void on_gone(void *ctx) {
    agent_feed(ctx, AGENT_EVENT_GONE, 0);
}

/* ---- its loss ---- */

static void on_orphan(void *ctx, pid_t pid, int wait_status) {
    struct agent *a = ctx;
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        if (a->workers[i].pid == pid && !a->workers[i].ended) {
            agent_worker_lost(a, i, wait_status);
        }
    }
}

/* False: there is none, and there will be none. */
static bool replace(struct agent *a) {
    if (++a->guardian_losses > LOSSES_MAX) {
        log_error("%u guardian processes have died, one after the other, before workers could be started",
                  a->guardian_losses);
        return false;
    }
    if (guardian_replace(&a->guardian) != MUSTER_OK) {
        log_error("no other guardian process can take its place: %s", muster_detail());
        return false;
    }
    log_warning("another guardian process (pid %d) has taken its place%s", (int)guardian_pid(a->guardian),
                a->machine.state == AGENT_STATE_RUNNING ? "; this node's workers have died with the lost one" : "");
    agent_outcome_file_keep(a);
    agent_guardian_inform(a);
    agent_preload_lost(a);
    return true;
}

/* As if each had ended by itself: restarts are counted, and the job goes on or ends, as after any failure. */
static void tell_ends(struct agent *a) {
    bool is_known = false; /* of one at least how it ended, and that the launcher did not tell it to */
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        struct agent_worker *worker = &a->workers[i];
        if (worker->is_untold) {
            bool ended_well = worker->pid != 0 && worker->wait_status == 0;
            worker->is_untold = false;
            agent_lost_tell_worker(a, i);
            is_known = is_known || (worker->wait_status != 0 && !worker->stopped_by_us);
            agent_feed(a, ended_well ? AGENT_EVENT_WORKER_SUCCEEDED : AGENT_EVENT_WORKER_FAILED, (int)i);
        }
    }
    if (is_known && !a->config->survivors_continue) {
        agent_cause_tell(a);
    } else if (!is_known && a->machine.outcome == AGENT_OUTCOME_FAILED) {
        (void)str_copy(a->end_message, sizeof a->end_message,
                       "the guardian process was killed while it started workers");
    }
}

/* Those that were asked for and not started yet, too. */
static void lose_the_rest(struct agent *a) {
    enum agent_state state = a->machine.state;
    bool has_workers = state == AGENT_STATE_RUNNING || state == AGENT_STATE_STOPPING || state == AGENT_STATE_KILLING;
    for (uint32_t i = 0; has_workers && i < a->config->nproc; i++) {
        if (!a->workers[i].ended) {
            agent_worker_lost(a, i, SIGKILL);
        }
    }
}

static void on_lost(void *ctx) {
    struct agent *a = ctx;
    agent_mpi_lost(a);
    lose_the_rest(a);
    if (!replace(a)) {
        agent_feed(a, AGENT_EVENT_GUARDIAN_LOST, 0);
        return;
    }
    agent_feed(a, AGENT_EVENT_GUARDIAN_REPLACED, 0);
    tell_ends(a);
}

/* ---- what the agent asks of it ---- */

int agent_guardian_create(struct agent *a) {
    static const struct guardian_callbacks callbacks = {
        .on_spawned = on_spawned,
        .on_spawn_failed = on_spawn_failed,
        .on_exit = on_worker_exit,
        .on_lingering = on_lingering,
        .on_gone = on_gone,
        .on_lost = on_lost,
        .on_orphan = on_orphan,
        .on_preload = on_preload,
    };
    return guardian_create(&a->loop, &callbacks, a, &a->guardian);
}

/* For it to clear away. Not being able to say so is no reason to end. */
void agent_guardian_inform(struct agent *a) {
    const char *folder = logs_made_directory(a->logs);
    int rc = folder != NULL ? guardian_clear_leftover(a->guardian, folder, LOGS_LEVELS) : MUSTER_OK;
    if (a->stop_path != NULL) {
        rc = rc == MUSTER_OK ? guardian_clear_leftover(a->guardian, a->stop_path, 1) : rc;
    }
    if (a->watchdog != NULL) {
        rc = rc == MUSTER_OK ? guardian_clear_leftover(a->guardian, watchdog_path(a->watchdog), 0) : rc;
    }
    if (rc != MUSTER_OK) {
        log_info("%s", muster_detail());
    }
}

void agent_guardian_ordered(struct agent *a, int status) {
    /* Of one that has died the loop tells next, and that stands for the answer. */
    if (status != MUSTER_OK && status != MUSTER_ECLOSED) {
        log_error("cannot reach the guardian process: %s", muster_detail());
        agent_feed(a, AGENT_EVENT_GUARDIAN_LOST, 0);
    }
}
