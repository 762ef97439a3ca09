/* `muster run`: command line to configuration to agent. */
#include <limits.h>
#include <muster/version.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/command/cli.h"
#include "cli/command/completion.h"
#include "cli/command/help.h"
#include "cli/command/log_stderr.h"
#include "cli/command/lookalike.h"
#include "cli/run/run_config.h"
#include "cli/run/run_scheduler.h"
#include "net/host_name.h"

static const char *process_variable(void *ctx, const char *name) {
    (void)ctx;
    return getenv(name);
}

/* Once it has been read: workers do not inherit it, and it is no longer to be seen in /proc/PID/environ. */
static void forget_secret(void) {
    char *value = getenv("MUSTER_SECRET");
    if (value) {
        explicit_bzero(value, strlen(value));
        (void)unsetenv("MUSTER_SECRET");
    }
}

/* Said before anything waits for itself. */
static int check_loopback(const struct launch_config *config) {
    static const char text[] = "the loopback interface of this machine (or of this network namespace) is down, so "
                               "nothing here reaches 127.0.0.1: \"ip link set lo up\" brings it up";
    if (!net_loopback_is_down()) {
        return MUSTER_OK;
    }
    if (config->rdzv.standalone) {
        return status_fail(MUSTER_ECONNECT, "%s", text);
    }
    log_warning("%s", text);
    return MUSTER_OK;
}

enum { WHY_SIZE = 2 * MUSTER_DETAIL_MAX };

/* What is wrong, and what may be the cause of it in the first `count` words of the line. */
static void explain(int rc, int count, char *const *words, char why[WHY_SIZE]) {
    char note[MUSTER_DETAIL_MAX];
    const char *detail = muster_detail()[0] ? muster_detail() : muster_strerror(rc);
    bool noted = lookalike_find(count, words, note, sizeof note);
    (void)str_format(why, WHY_SIZE, "%s%s%s", detail, noted ? "; note: " : "", noted ? note : "");
}

static int fail_line(const char *program, bool usage, int count, char *const *words) {
    char why[WHY_SIZE];
    explain(MUSTER_EINVAL, count, words, why);
    cli_error(program, usage, why);
    return usage ? CLI_EXIT_USAGE : CLI_EXIT_FAILURE;
}

/* `words`: those that have been parsed. */
static int run_options(struct options *options, const char *program, char *const *words) {
    char executable[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", executable, sizeof executable - 1);
    executable[n > 0 ? n : 0] = '\0';
    struct run_machine machine = {
        .lookup = process_variable,
        .root = "",
        .executable = n > 0 ? executable : NULL,
        .called_as = program_invocation_name,
        .is_torchrun = strcmp(program, "torchrun") == 0,
        .has_terminal = isatty(STDIN_FILENO) == 1,
        .look = starter_look,
    };
    struct launch_config config;
    launch_config_init(&config);
    int code = CLI_EXIT_FAILURE;
    struct run_scheduler scheduler; /* `options` points into it */
    int rc = run_config_take_outcome(options, &config);
    rc = rc ? rc : run_scheduler_apply(options, &machine, &scheduler);
    config.waits_because = rc == 0 && scheduler.waits_because[0] != '\0' ? scheduler.waits_because : NULL;
    rc = rc ? rc : run_config_build(options, &machine, &config);
    forget_secret();
    rc = rc ? rc : check_loopback(&config);
    if (rc == 0) {
        code = agent_run(&config, log_stderr_print);
    } else {
        char why[WHY_SIZE], detail[MUSTER_DETAIL_MAX];
        (void)str_copy(detail, sizeof detail, muster_detail()[0] ? muster_detail() : muster_strerror(rc));
        explain(rc, (int)(options->script_args - words), words, why);
        cli_error(program, false, why);
        agent_refuse(&config, detail);
    }
    launch_config_done(&config);
    return code;
}

int cmd_run_as(int argc, char **argv, const char *program) {
    struct options options;
    log_stderr_install(getenv("LOGLEVEL"));
    switch (options_parse(argc - 1, argv + 1, process_variable, NULL, &options)) {
    case OPTIONS_OK:
        return run_options(&options, program, argv + 1);
    case OPTIONS_HELP:
        return help_print(help_run, program);
    case OPTIONS_VERSION:
        return cli_print("muster " MUSTER_VERSION_TEXT "\n");
    case OPTIONS_COMPLETION:
        return completion_print(options.values[OPTION_PRINT_COMPLETION].text, program);
    case OPTIONS_USAGE:
        return fail_line(program, true, argc - 1, argv + 1);
    case OPTIONS_INVALID:
        return fail_line(program, false, argc - 1, argv + 1);
    }
    return CLI_EXIT_FAILURE;
}
