/* The log folders of torchrun's layout, the prefix of console lines, and which way each stream takes. */
#ifndef AGENT_LOGS_LAYOUT_H
#define AGENT_LOGS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/launch/launch.h"

enum logs_stream { LOGS_STDOUT = 0, LOGS_STDERR = 1 };

/* Where one stream of one worker goes. Nothing set: it is inherited. */
struct logs_route {
    bool into_file;   /* redirect: the worker writes the file itself */
    bool into_null;   /* hidden, and of no further use */
    bool with_stderr; /* stdout takes stderr's pipe, so that the order of their lines is kept */
    bool into_pipe;   /* through the relay: */
    bool pipe_to_file;
    bool pipe_to_console;
    bool pipe_prefixed; /* by whole lines with a prefix; otherwise unchanged */
    bool pipe_keeps_tail;
};

/* The agent's own stdout and stderr. */
struct logs_consoles {
    bool stderr_is_terminal;
    bool are_one; /* relay_sink_is_same() */
};

/* Decides it. */
struct logs_route logs_route_of(const struct launch_config *config, enum logs_stream stream, uint32_t local_rank,
                                const struct logs_consoles *consoles);

/* No files at all: --log-dir /dev/null. */
bool logs_without_files(const struct launch_config *config);

/* Makes the run directory. `*made_base`: the fresh temporary directory above it when config->log_dir is NULL, else
 * NULL. Both malloc'd, the caller frees. MUSTER_EINVAL (log_dir is a file), MUSTER_ESYSTEM, MUSTER_ENOMEM. */
int logs_layout_create_run(const struct launch_config *config, char **run_directory, char **made_base);

/* Makes attempt_<restart_count> and `nproc` rank directories in it, moving what is there to
 * attempt_<n>.round_<old_round>. *attempt_directory is malloc'd. */
int logs_layout_create_attempt(const char *run_directory, uint32_t restart_count, uint64_t old_round, uint32_t nproc,
                               char **attempt_directory);

/* Directories below the one made for a run: run, attempt, rank. */
#define LOGS_LEVELS 3

/* Removes the directories of `base` that hold nothing, and `base` itself if none is left. Without memory and, for what
 * is in `run_directory` by the names of its first `attempts` attempts, without a descriptor. */
void logs_layout_remove_empty(const char *base, const char *run_directory, uint32_t attempts, uint32_t nproc);

/* Longest prefix; what a template makes beyond that is cut. */
#define LOGS_PREFIX_SIZE 1024

/* "[<role><local rank>]:", or `template` (NULL or "": none) with ${role_name}, ${rank} and ${local_rank} filled in the
 * way Python's string.Template does it: $name and ${name}, "$$" is "$", unknown names stay. */
void logs_prefix(const char *template, const char *role, uint32_t global_rank, uint32_t local_rank,
                 char out[LOGS_PREFIX_SIZE]);

#endif
