/* The preload server of this node: a Python process that has imported what the workers need, and forks them
 * (launch/preload_server.py runs in it, guardian/guardian_preload.h has the protocol). With --preload it is started
 * with the agent, and on a spare node when the node learns that it is one: it has imported before it is needed.
 *
 * The server leaves out modules that it cannot fork. The guardian starts each worker as usual where the server cannot,
 * and gives up imports without progress. What stands in the way is said here, once. A server that dies is replaced, a
 * few times between two starts of workers; one that ends because a module's file has changed is replaced without
 * counting. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/guardian/guardian_preload.h"
#include "agent/launch/environment.h"
#include "agent/launch/preload_server.h"
#include "base/log.h"
#include "base/status.h"

enum { DEATHS_MAX = 3, HEAD_ITEMS = 2 /* of the command: interpreter, -u */, SLOW_MS = 10 * 1000 };

/* What a spare node imports if nobody has said it: PyTorch, where it is installed. */
#define SPARE_VARIABLE "MUSTER_WARM_IMPORTS"
#define SPARE_MODULES "torch?"

static const char *modules_of(const struct agent *a) {
    const char *of_spare = getenv(SPARE_VARIABLE);
    return a->config->preload ? a->config->preload : of_spare ? of_spare : SPARE_MODULES;
}

/* Variables that only a worker has, each with a comma after it: a module that reads one of them cannot be preloaded.
 * Of several workers each has a LOCAL_RANK of its own. */
#define AND_COMMA(name) name ","
#define OF_A_WORLD ENVIRONMENT_OF_A_WORLD(AND_COMMA)

/* The interpreter with the server's program in the place of the worker's, whose name and arguments follow. */
static int build_command(const struct agent *a, struct launch_strings *out) {
    struct launch_strings own = {0};
    int rc = environment_command(a->config, 0, &own);
    for (size_t i = 0; rc == MUSTER_OK && i < own.count; i++) {
        if (i == HEAD_ITEMS) {
            rc = launch_strings_append(out, "-c");
            rc = rc == MUSTER_OK ? launch_strings_append(out, preload_server_program) : rc;
            rc = rc == MUSTER_OK ? launch_strings_append(out, modules_of(a)) : rc;
            const char *only_workers = a->config->nproc > 1 ? OF_A_WORLD "LOCAL_RANK" : OF_A_WORLD;
            rc = rc == MUSTER_OK ? launch_strings_append(out, only_workers) : rc;
        }
        rc = rc == MUSTER_OK ? launch_strings_append(out, own.items[i]) : rc;
    }
    launch_strings_done(&own);
    return rc;
}

/* With one worker the server is bound as that will be: libraries count their processors when they are imported. */
static int order(struct agent *a, const struct launch_strings *argv, const struct launch_strings *envp) {
    const struct guardian_spawn how = {.argv = (const char *const *)argv->items,
                                       .envp = (const char *const *)envp->items,
                                       .stdout_fd = -1,
                                       .stderr_fd = -1,
                                       .cpus = a->cpu_sets && a->config->nproc == 1 ? a->cpu_sets : NULL,
                                       .cpus_bytes = sizeof(cpu_set_t)};
    return guardian_preload(a->guardian, &how);
}

static void on_slow(uv_timer_t *timer) {
    struct agent *a = timer->data;
    log_warning(
        "--preload: the server has imported %s for %d s, and goes on; workers start when it is ready, or when no "
        "other module has been begun for " GUARDIAN_PRELOAD_TIMEOUT_VARIABLE " (%d s by itself)",
        modules_of(a), SLOW_MS / 1000, GUARDIAN_PRELOAD_IMPORT_S);
}

static void start(struct agent *a) {
    struct launch_strings argv = {0}, envp = {0};
    struct environment_worker worker = agent_worker_environment(a, 0);
    int rc = build_command(a, &argv);
    if (rc == MUSTER_OK) {
        rc = environment_build_early(a->config, &worker, (const char *const *)environ, &envp);
    }
    rc = rc == MUSTER_OK ? order(a, &argv, &envp) : rc;
    a->preloads = rc == MUSTER_OK;
    a->preload_is_ready = false;
    if (rc == MUSTER_OK) {
        (void)uv_timer_start(&a->preload_timer, on_slow, SLOW_MS, 0);
    } else {
        log_warning("--preload: no server can be started: %s; workers are started as usual", muster_detail());
    }
    launch_strings_done(&argv);
    launch_strings_done(&envp);
}

/* The kernel reads it in the background. */
static void read_ahead(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
        (void)close(fd);
    }
}

static void check_timeout(void) {
    const char *text = getenv(GUARDIAN_PRELOAD_TIMEOUT_VARIABLE);
    int64_t unused_ns;
    if (!guardian_preload_timeout(text, &unused_ns)) {
        log_warning(GUARDIAN_PRELOAD_TIMEOUT_VARIABLE
                    " is '%.50s', which is not a number of seconds from 0 to %d: it is %d",
                    text, GUARDIAN_PRELOAD_TIMEOUT_MAX_S, GUARDIAN_PRELOAD_IMPORT_S);
    }
}

void agent_preload_begin(struct agent *a) {
    if (a->config->preload && !a->preloads) {
        check_timeout();
        start(a);
    }
}

void agent_preload_begin_spare(struct agent *a) {
    const struct launch_config *config = a->config;
    if (!config->has_spares || a->preloads) {
        return;
    }
    if (config->is_python) {
        start(a);
    } else if (config->program_path) {
        read_ahead(config->program_path);
    }
}

/* Workers may still be started: then another server is worth its while. */
static bool is_wanted(const struct agent *a) {
    return a->machine.state == AGENT_STATE_JOINING || a->machine.state == AGENT_STATE_RUNNING ||
           a->machine.outcome == AGENT_OUTCOME_RESTART_FAILURE;
}

static void on_ended(struct agent *a, const struct guardian_preload_news *news) {
    int status = news->wait_status;
    bool is_orderly = a->preload_is_ready && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool was_serving = a->preloads;
    a->preloads = false;
    (void)uv_timer_stop(&a->preload_timer);
    if (!was_serving || !is_wanted(a)) {
        return;
    }
    a->preload_deaths += !is_orderly;
    if (is_orderly) {
        start(a);
    } else if (a->preload_deaths <= DEATHS_MAX) {
        log_warning("--preload: the server (pid %d) has died: starting another one", news->pid);
        start(a);
    } else {
        log_warning("--preload: the server (pid %d) has died, as %d before it: workers are started as usual", news->pid,
                    DEATHS_MAX);
    }
}

void agent_preload_told(struct agent *a, const struct guardian_preload_news *news) {
    switch ((enum guardian_preload_kind)news->kind) {
    case GUARDIAN_PRELOAD_READY:
        (void)uv_timer_stop(&a->preload_timer);
        a->preload_is_ready = true;
        log_info("the preload server (pid %d) is ready: %s", news->pid, news->text);
        return;
    case GUARDIAN_PRELOAD_REFUSED:
        (void)uv_timer_stop(&a->preload_timer);
        a->preloads = false;
        log_warning("--preload: %s; workers are started as usual", news->text);
        return;
    case GUARDIAN_PRELOAD_LEFT_OUT:
        log_warning("--preload: %s", news->text);
        return;
    case GUARDIAN_PRELOAD_ENDED:
        on_ended(a, news);
        return;
    case GUARDIAN_PRELOAD_AS_USUAL:
        if (a->preload_told_starts != a->starts) { /* once an attempt */
            a->preload_told_starts = a->starts;
            log_warning("--preload: local_rank %u is started as usual: %s", news->id, news->text);
        }
        return;
    }
}

void agent_preload_lost(struct agent *a) {
    bool was_serving = a->preloads;
    a->preloads = false;
    (void)uv_timer_stop(&a->preload_timer);
    if (was_serving) {
        start(a);
    }
}
