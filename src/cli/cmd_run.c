/* `muster run`: command line to configuration to agent. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/help.h"
#include "cli/log_stderr.h"
#include "cli/run_config.h"
#include "cli/run_scheduler.h"

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

static int run_options(struct options *options, const char *program) {
    char executable[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", executable, sizeof executable - 1);
    executable[n > 0 ? n : 0] = '\0';
    struct run_machine machine = {
        .lookup = process_variable,
        .root = "",
        .executable = n > 0 ? executable : NULL,
    };
    struct launch_config config;
    launch_config_init(&config);
    int code = CLI_EXIT_FAILURE;
    struct run_scheduler scheduler; /* `options` points into it */
    int rc = run_scheduler_apply(options, &machine, &scheduler);
    rc = rc ? rc : run_config_build(options, &machine, &config);
    forget_secret();
    if (rc == 0) {
        code = agent_run(&config, log_stderr_print);
    } else {
        cli_error(program, false, muster_detail()[0] ? muster_detail() : muster_strerror(rc));
    }
    launch_config_done(&config);
    return code;
}

int cmd_run(int argc, char **argv, const char *program) {
    struct options options;
    log_stderr_install(getenv("LOGLEVEL"));
    switch (options_parse(argc - 1, argv + 1, process_variable, NULL, &options)) {
    case OPTIONS_OK:
        return run_options(&options, program);
    case OPTIONS_HELP:
        return help_print(help_run, program);
    case OPTIONS_VERSION:
        return cli_print("muster " MUSTER_VERSION "\n");
    case OPTIONS_USAGE:
        cli_error(program, true, muster_detail());
        return CLI_EXIT_USAGE;
    case OPTIONS_INVALID:
        cli_error(program, false, muster_detail());
        return CLI_EXIT_FAILURE;
    }
    return CLI_EXIT_FAILURE;
}
