/* The command that every worker runs: interpreter, flags, script, arguments; checked so far as it can be before
 * anything is started. */
#ifndef CLI_RUN_COMMAND_H
#define CLI_RUN_COMMAND_H

#include "agent/launch/launch.h"
#include "cli/run/run_machine.h"

/* Fills config->command, title and entry_point. Looks at files, starts nothing. MUSTER_EINVAL, MUSTER_ENOENT,
 * MUSTER_ENOMEM, with a sentence that says what to do. */
int run_command_build(const struct options *options, const struct run_machine *machine, struct launch_config *config);

/* The Python program for workers, malloc'd: PYTHON_EXEC, else the virtual environment that this program is installed
 * in, else the active one (VIRTUAL_ENV), else python3 or python in PATH. NULL with a detail. */
char *run_command_interpreter(const struct run_machine *machine);

/* Full path of a program, malloc'd, by the rules of execvp(). NULL (without a detail) when there is none. */
char *run_command_search(const struct run_machine *machine, const char *name);

#endif
