/* Checks of the run options beyond their form; see run_config.h. Rendezvous, command and devices have their own
 * files. */
#include "cli/run/run_config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/report/signal_name.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/suggest.h"
#include "cli/run/run_command.h"
#include "cli/run/run_devices.h"
#include "cli/run/run_rdzv.h"

#define SHUTDOWN_TIMEOUT_DEFAULT_S 30

static const char *text_of(const struct options *options, enum option_id id) {
    return options->values[id].text;
}

static int set_text(char **out, const char *text) {
    *out = strdup(text);
    return *out ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the configuration");
}

/* Logs. */

static bool is_stream_digit(char c) {
    return c >= '0' && c <= '3';
}

int run_stream_map_parse(const char *name, const char *text, struct launch_stream_map *out) {
    *out = (struct launch_stream_map){0};
    if (is_stream_digit(text[0]) && text[1] == '\0') {
        out->all = (uint8_t)(text[0] - '0');
        return 0;
    }
    out->is_map = true;
    for (const char *p = text; isdigit((unsigned char)p[0]) && p[1] == ':' && is_stream_digit(p[2]); p += 4) {
        out->by_rank[p[0] - '0'] = (uint8_t)(p[2] - '0');
        if (p[3] == '\0') {
            return 0;
        }
        if (p[3] != ',') {
            break;
        }
    }
    return status_fail(MUSTER_EINVAL,
                       "%s=%.100s does not match: one digit (0 none, 1 stdout, 2 stderr, 3 both) or a list of "
                       "RANK:DIGIT for local ranks 0 to 9, such as 0:3,1:2",
                       name, text);
}

int run_filters_parse(const char *text, struct launch_strings *out) {
    char *item = malloc(strlen(text) + 1);
    size_t n = 0;
    int rc = 0;
    if (item == NULL) {
        return status_fail(MUSTER_ENOMEM, "no memory for the line filters");
    }
    for (const char *p = text; rc == 0; p++) {
        bool doubled = p[0] == ',' && p[1] == ',';
        if (*p == '\0' || (*p == ',' && !doubled)) {
            item[n] = '\0';
            rc = launch_strings_append(out, item);
            n = 0;
            if (*p == '\0') {
                break;
            }
            continue;
        }
        item[n++] = *p;
        p += doubled;
    }
    free(item);
    return rc;
}

static int parse_ranks_filter(const char *text, struct launch_config *out) {
    size_t most = 1;
    for (const char *p = text; *p != '\0'; p++) {
        most += *p == ',';
    }
    if (text[0] == '\0') {
        return 0;
    }
    out->local_ranks_filtered = true;
    out->local_ranks_filter = calloc(most, sizeof *out->local_ranks_filter);
    char *copy = strdup(text), *rest = copy;
    int rc = 0;
    if (out->local_ranks_filter == NULL || copy == NULL) {
        free(copy);
        return status_fail(MUSTER_ENOMEM, "no memory for the rank filter");
    }
    for (const char *item; rc == 0 && (item = strsep(&rest, ",")) != NULL;) {
        int64_t rank = 0;
        if (!options_parse_integer(item, &rank)) {
            rc = status_fail(MUSTER_EINVAL,
                             "--local-ranks-filter must be a comma-separated list of integers e.g. "
                             "--local-ranks-filter=0,1,2; '%.100s' is not one",
                             text);
        } else if (rank >= 0 && rank < LAUNCH_WORKERS_MAX) { /* others match no worker */
            out->local_ranks_filter[out->local_ranks_filter_count++] = (uint32_t)rank;
        }
    }
    free(copy);
    return rc;
}

static int check_log_dir(const char *text, struct launch_config *out) {
    struct stat info;
    if (text == NULL || text[0] == '\0') {
        return 0;
    }
    bool exists = stat(text, &info) == 0;
    if (!exists && errno != ENOENT) {
        return status_fail_errno(errno, "--log-dir=%.300s cannot be used", text);
    }
    if (exists && strcmp(text, "/dev/null") != 0 && !S_ISDIR(info.st_mode)) {
        return status_fail(MUSTER_EINVAL,
                           "log_dir: %.300s is a file; --log-dir takes a folder, which is made if need be", text);
    }
    return set_text(&out->log_dir, text);
}

static int check_logs_specs(const char *text) {
    if (text == NULL || strcmp(text, "default") == 0) {
        return 0;
    }
    return status_fail(MUSTER_EINVAL,
                       "Could not find entrypoint under 'torchrun.logs_specs[%.100s]' key: Python plug-ins cannot be "
                       "loaded here; only --logs-specs=default is known",
                       text);
}

static int build_logs(const struct options *options, struct launch_config *out) {
    const char *stdout_filters = text_of(options, OPTION_DUPLICATE_STDOUT_FILTERS);
    const char *stderr_filters = text_of(options, OPTION_DUPLICATE_STDERR_FILTERS);
    int rc = parse_ranks_filter(text_of(options, OPTION_LOCAL_RANKS_FILTER), out);
    rc = rc ? rc : check_logs_specs(text_of(options, OPTION_LOGS_SPECS));
    rc = rc ? rc : check_log_dir(text_of(options, OPTION_LOG_DIR), out);
    rc = rc ? rc : run_stream_map_parse("--redirects", text_of(options, OPTION_REDIRECTS), &out->redirects);
    rc = rc ? rc : run_stream_map_parse("--tee", text_of(options, OPTION_TEE), &out->tee);
    out->log_prefix = text_of(options, OPTION_LOG_LINE_PREFIX_TEMPLATE);
    if (rc == 0 && stdout_filters != NULL) {
        rc = run_filters_parse(stdout_filters, &out->duplicate_stdout_filters);
    }
    if (rc == 0 && stderr_filters != NULL) {
        rc = run_filters_parse(stderr_filters, &out->duplicate_stderr_filters);
    }
    out->merge_logs = options->values[OPTION_MERGE_LOGS].on;
    return rc;
}

/* Failures and the end. */

static int check_restarts(const struct options *options, struct launch_config *out) {
    int64_t restarts = options->values[OPTION_MAX_RESTARTS].integer;
    if (restarts < 0) {
        return status_fail(MUSTER_EINVAL, "max_restarts must be >= 0, but --max-restarts=%" PRId64, restarts);
    }
    out->max_restarts = restarts > INT32_MAX ? INT32_MAX : (uint32_t)restarts;
    out->rdzv.max_restarts = out->max_restarts;
    return 0;
}

static int check_interval(const struct options *options, struct launch_config *out) {
    double interval = options->values[OPTION_MONITOR_INTERVAL].real;
    if (!(interval > 0) || !isfinite(interval)) {
        return status_fail(MUSTER_EINVAL, "--monitor-interval=%.100s: a number of seconds above 0 is expected",
                           text_of(options, OPTION_MONITOR_INTERVAL));
    }
    out->monitor_interval_s = interval;
    return 0;
}

static int check_tail(const struct options *options, struct launch_config *out) {
    int64_t lines = options->values[OPTION_STDERR_TAIL].integer;
    if (lines < 0 || lines > RUN_STDERR_TAIL_MAX) {
        return status_fail(MUSTER_EINVAL, "--stderr-tail=%" PRId64 ": 0 to %d lines can be kept", lines,
                           RUN_STDERR_TAIL_MAX);
    }
    out->stderr_tail_lines = (uint32_t)lines;
    return 0;
}

static int check_shutdown_timeout(const struct options *options, const struct run_machine *machine,
                                  struct launch_config *out) {
    const struct option_value *value = &options->values[OPTION_SHUTDOWN_TIMEOUT];
    const char *variable = run_machine_variable(machine, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    int64_t seconds = SHUTDOWN_TIMEOUT_DEFAULT_S;
    if (value->text != NULL) {
        seconds = value->integer;
        if (seconds < 0) {
            return status_fail(MUSTER_EINVAL,
                               "shutdown_timeout must be non-negative, got %" PRId64 " from --shutdown-timeout",
                               seconds);
        }
    } else if (variable != NULL && !options_parse_integer(variable, &seconds)) {
        return status_fail(MUSTER_EINVAL,
                           "environment variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT is '%.100s'; a whole number of seconds "
                           "is expected",
                           variable);
    }
    if (seconds < 0) {
        log_warning("TORCH_ELASTIC_SHUTDOWN_TIMEOUT is negative: workers get no time before SIGKILL");
        seconds = 0;
    }
    seconds = seconds > RUN_SECONDS_MAX ? RUN_SECONDS_MAX : seconds;
    out->shutdown_timeout_ms = out->rdzv.stop_timeout_ms = (uint64_t)seconds * 1000;
    return 0;
}

int run_config_take_outcome(const struct options *options, struct launch_config *out) {
    const char *path = text_of(options, OPTION_OUTCOME);
    return path != NULL && path[0] != '\0' ? set_text(&out->outcome_path, path) : 0;
}

static int check_detached(const struct options *options, struct launch_config *out) {
    const char *text = text_of(options, OPTION_DETACHED);
    out->leaves_detached = strcmp(text, "leave") == 0;
    return out->leaves_detached || strcmp(text, "stop") == 0
               ? 0
               : status_fail(MUSTER_EINVAL, "--detached=%.100s: stop or leave is expected", text);
}

static int check_backoff(const struct options *options, struct launch_config *out) {
    double seconds = options->values[OPTION_RESTART_BACKOFF].real;
    if (!(seconds >= 0 && seconds <= RUN_RESTART_BACKOFF_S_MAX)) {
        return status_fail(MUSTER_EINVAL, "--restart-backoff=%.100s: 0 (no pause) to %d seconds are possible",
                           text_of(options, OPTION_RESTART_BACKOFF), RUN_RESTART_BACKOFF_S_MAX);
    }
    out->restart_backoff_ms = (uint64_t)(seconds * 1000);
    return 0;
}

static int check_preempt(const struct options *options, struct launch_config *out) {
    const char *name = text_of(options, OPTION_PREEMPT_SIGNAL);
    int64_t grace_s = options->values[OPTION_PREEMPT_GRACE].integer;
    if (grace_s < 1 || grace_s > RUN_PREEMPT_GRACE_S_MAX) {
        return status_fail(MUSTER_EINVAL, "--preempt-grace=%" PRId64 ": 1 to %d seconds are possible", grace_s,
                           RUN_PREEMPT_GRACE_S_MAX);
    }
    out->preempt_grace_ms = (uint64_t)grace_s * 1000;
    const char *when = text_of(options, OPTION_PREEMPT_TERM);
    out->preempt_term_now = strcmp(when, "now") == 0;
    if (!out->preempt_term_now && strcmp(when, "half") != 0) {
        return status_fail(MUSTER_EINVAL, "--preempt-term=%.100s: half or now is expected", when);
    }
    out->preempt_signal = signal_from_name(name, strlen(name));
    if (out->preempt_signal == SIGKILL || out->preempt_signal == SIGSTOP || out->preempt_signal == SIGCHLD ||
        (out->preempt_signal == 0 && strcmp(name, "none") != 0)) {
        return status_fail(
            MUSTER_EINVAL,
            "--preempt-signal=%.100s: a signal that can be handled, such as SIGUSR1, or none is expected", name);
    }
    return 0;
}

static int check_events(const struct options *options, struct launch_config *out) {
    static const char *const names[] = {"null", "console", "dynamic_rendezvous"};
    const char *text = text_of(options, OPTION_EVENT_LOG_HANDLER);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) == 0) {
            out->events = i == 1 ? LAUNCH_EVENTS_CONSOLE : LAUNCH_EVENTS_NULL;
            return 0;
        }
    }
    const char *nearest = suggest_nearest(text, names, sizeof names / sizeof *names);
    return status_fail(MUSTER_EINVAL, "--event-log-handler='%.100s' is not known; null or console is expected%s%s%s",
                       text, nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static enum launch_numa numa_mode(const char *text) {
    static const char *const names[] = {"", "node", "socket", "exclusive", "core-complex"};
    for (size_t i = 1; text != NULL && i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) == 0) {
            return (enum launch_numa)i;
        }
    }
    return LAUNCH_NUMA_NONE;
}

/* Python's libraries would each take every processor. A program of its own gets the variable, as from torchrun, but no
 * warning: few of them have OpenMP. */
static void default_omp(const struct run_machine *machine, struct launch_config *out) {
    if (out->nproc <= 1 || run_machine_variable(machine, "OMP_NUM_THREADS") != NULL) {
        return;
    }
    out->omp_defaulted = true;
    if (out->is_native) {
        log_info("OMP_NUM_THREADS is not set: each of the %" PRIu32 " workers gets OMP_NUM_THREADS=1", out->nproc);
    } else {
        log_warning("\n*****************************************\n"
                    "OMP_NUM_THREADS is not set: each of the %" PRIu32
                    " workers gets OMP_NUM_THREADS=1, so that they do "
                    "not compete for the processors. Set it to what suits your application.\n"
                    "*****************************************",
                    out->nproc);
    }
}

/* The value may come from the environment, where the parser, as argparse, does not look at choices. */
static int check_survivors(const struct options *options, struct launch_config *out) {
    const char *text = text_of(options, OPTION_SURVIVORS);
    out->survivors_continue = strcmp(text, "continue") == 0;
    out->rdzv.survivors_continue = out->survivors_continue;
    if (!out->survivors_continue && strcmp(text, "stop") != 0) {
        return status_fail(MUSTER_EINVAL, "--survivors=%.100s: stop or continue is expected", text);
    }
    if (out->survivors_continue && rdzv_has_coordinator(out->rdzv.backend) && out->rdzv.max_nodes > 1) {
        return status_fail(MUSTER_EINVAL,
                           "--survivors=continue with several nodes needs --rdzv-backend=c10d or static: the "
                           "coordinator of muster and etcd-v3 ends a round when a node is lost");
    }
    return 0;
}

/* "" on the command line: --mpi alone. A variable that is empty says nothing. */
static int check_mpi(const struct options *options, struct launch_config *out) {
    static const struct {
        const char *word;
        enum launch_mpi mode;
    } modes[] = {
        {"auto", LAUNCH_MPI_AUTO}, {"pmi1", LAUNCH_MPI_PMI1}, {"pmix", LAUNCH_MPI_PMIX}, {"none", LAUNCH_MPI_NONE}};
    const char *text = text_of(options, OPTION_MPI);
    if (text[0] == '\0') {
        text = options->values[OPTION_MPI].source == OPTION_FROM_COMMAND_LINE ? "auto" : "none";
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(text, modes[i].word) == 0) {
            out->mpi = modes[i].mode;
            return 0;
        }
    }
    return status_fail(MUSTER_EINVAL, "--mpi=%.100s: auto, pmi1, pmix or none is expected", text);
}

/* When not given: as many as come. */
static int check_spares(const struct options *options, struct launch_config *out) {
    const char *text = text_of(options, OPTION_SPARES);
    int64_t spares = 0;
    if (text == NULL || text[0] == '\0') {
        return 0;
    }
    if (!options_parse_integer(text, &spares) || spares < 0 || spares > RUN_SPARES_MAX) {
        return status_fail(MUSTER_EINVAL, "--spares=%.40s: a number of nodes from 0 to %u is expected", text,
                           RUN_SPARES_MAX);
    }
    if (!rdzv_has_coordinator(out->rdzv.backend)) {
        return status_fail(
            MUSTER_EINVAL,
            "--spares needs --rdzv-backend=muster or etcd-v3; with c10d every node beyond the maximum of --nnodes "
            "waits");
    }
    out->rdzv.limits_spares = true;
    out->rdzv.max_spares = (uint32_t)spares;
    out->has_spares = spares > 0;
    return 0;
}

/* Of Python: letters, digits and underscores, with dots between; beyond ASCII it is for Python to judge. */
static bool is_module_list(const char *text) {
    static const char others[] = "_.,? ";
    for (; *text != '\0'; text++) {
        bool is_plain = isalnum((unsigned char)*text) || (unsigned char)*text >= 0x80;
        if (!is_plain && strchr(others, *text) == NULL) {
            return false;
        }
    }
    return true;
}

/* A variable may hold for every job of a machine; an option is about this one. */
static int check_preload(const struct options *options, struct launch_config *out) {
    const char *text = text_of(options, OPTION_PRELOAD);
    if (text == NULL || text[0] == '\0') {
        return 0;
    }
    if (!is_module_list(text)) {
        return status_fail(MUSTER_EINVAL, "--preload=%.100s: names of modules with commas between them are expected",
                           text);
    }
    if (out->is_python) {
        return set_text(&out->preload, text);
    }
    return options->values[OPTION_PRELOAD].source == OPTION_FROM_COMMAND_LINE
               ? status_fail(MUSTER_EINVAL,
                             "--preload is for Python programs that are started as a script or with -m; "
                             "'%.100s' is none",
                             options->script)
               : 0;
}

/* A variable that is set and empty is no "not given", as with torchrun: its name must be told. */
static int parse_nproc(const struct options *options, const struct run_machine *machine, struct launch_config *out) {
    const struct option_value *value = &options->values[OPTION_NPROC_PER_NODE];
    int rc = run_nproc_parse(machine, value->text, &out->nproc);
    return rc != 0 && value->source == OPTION_FROM_ENVIRONMENT ? status_prefix(rc, "PET_NPROC_PER_NODE") : rc;
}

int run_config_build(const struct options *options, const struct run_machine *machine, struct launch_config *out) {
    int rc = run_rdzv_build(options, machine, out);
    rc = rc ? rc : check_restarts(options, out);
    rc = rc ? rc : parse_nproc(options, machine, out);
    rc = rc ? rc : check_interval(options, out);
    rc = rc ? rc : check_shutdown_timeout(options, machine, out);
    rc = rc ? rc : check_backoff(options, out);
    rc = rc ? rc : check_detached(options, out);
    rc = rc ? rc : check_survivors(options, out);
    rc = rc ? rc : check_preempt(options, out);
    rc = rc ? rc : check_spares(options, out);
    rc = rc ? rc : check_events(options, out);
    rc = rc ? rc : check_tail(options, out);
    rc = rc ? rc : build_logs(options, out);
    rc = rc ? rc : set_text(&out->signals_to_handle, text_of(options, OPTION_SIGNALS_TO_HANDLE));
    rc = rc ? rc : run_command_build(options, machine, out);
    rc = rc ? rc : check_preload(options, out);
    rc = rc ? rc : check_mpi(options, out);
    if (rc == 0) {
        out->rdzv.local_world_size = out->nproc;
        out->signals_given = options->values[OPTION_SIGNALS_TO_HANDLE].source != OPTION_FROM_DEFAULT;
        out->numa = numa_mode(text_of(options, OPTION_NUMA_BINDING));
        out->virtual_local_rank = options->values[OPTION_VIRTUAL_LOCAL_RANK].on;
        default_omp(machine, out);
    }
    return rc;
}
