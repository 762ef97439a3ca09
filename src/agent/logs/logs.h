/* The workers' output: which file, pipe or console each stream of each worker goes to, and the log folders.
 *
 * Layout (docs/logs.md): <log dir>/<run id>_<8 random>/attempt_<restarts>/<local rank>/{stdout.log,stderr.log,
 * error.json}. While it exists, the program's own lines on stderr (base/log.h) take their turn with the workers'.
 * SIGPIPE and SIGXFSZ must be ignored in this process (and put back in the workers). */
#ifndef AGENT_LOGS_H
#define AGENT_LOGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "agent/launch/launch.h"

struct logs;

/* Makes the run directory. `config` is borrowed until logs_close(); descriptors 1 and 2 must stay as they are. The
 * detail says what to do: log_dir is a file, cannot be written, disk full. MUSTER_EINVAL, MUSTER_ESYSTEM,
 * MUSTER_ENOMEM. */
int logs_create(uv_loop_t *loop, const struct launch_config *config, struct logs **out);

/* Descriptors that the open streams and files of all workers of an attempt take, one or two more while one is opened
 * included. */
size_t logs_descriptor_count(const struct launch_config *config);

/* Before the workers of an attempt are opened; those of the last attempt must have been drained. When this
 * restart count was begun before (a change of members), its directory is kept as attempt_<n>.round_<old round>. */
int logs_attempt_begin(struct logs *logs, uint32_t restart_count, uint64_t round);

/* Descriptors for a worker's stdout and stderr, close-on-exec; -1 = inherit the agent's own. They stay open until
 * logs_worker_opened(). */
int logs_worker_open(struct logs *logs, uint32_t local_rank, uint32_t global_rank, int *stdout_fd, int *stderr_fd);

/* The worker has its copies (or could not be started): closes the descriptors given out for it. */
void logs_worker_opened(struct logs *logs, uint32_t local_rank);

/* TORCHELASTIC_ERROR_FILE of the worker in this attempt; "" when there is none. Valid until the next attempt. */
const char *logs_error_file(const struct logs *logs, uint32_t local_rank);

/* The workers of this attempt are gone: reads their pipes to the end and flushes, then calls `done` from the loop.
 * writers_live: processes of theirs are left alone, and may write on. They are read until they end, from logs_close()
 * on by a process of its own (read_on.h). */
void logs_drain(struct logs *logs, bool writers_live, void (*done)(void *ctx), void *ctx);

/* The agent was told to end: a console that takes nothing no longer holds up logs_drain() (2 s). */
void logs_hurry(struct logs *logs);

/* After the drain, before printing to stdout or stderr oneself: completes a worker's unfinished last line there. */
void logs_finish_lines(struct logs *logs);

/* The last config->stderr_tail_lines lines of a worker's stderr in this attempt, as text; returns its length, 0 when
 * nothing is known. Call after the drain. Bytes are as the worker wrote them, NULs included. */
size_t logs_stderr_tail(const struct logs *logs, uint32_t local_rank, char *out, size_t size);

/* Its lines of stdout stand among them, since both streams are one. */
bool logs_tail_has_stdout(const struct logs *logs, uint32_t local_rank);

/* More than any tail, terminator included. */
#define LOGS_TAIL_SIZE (16 * 1024 + 1)

/* The run directory, or "" (for messages). */
const char *logs_run_directory(const struct logs *logs);

/* The directory that was made for this run because none was given, with LOGS_LEVELS of others in it; NULL: none. */
const char *logs_made_directory(const struct logs *logs);

/* Stops and frees, waiting for a slow console to take what is left, as relay_close() does; handles close during later
 * turns of the loop. Directories that were made for the default log_dir and
 * hold nothing are removed. NULL accepted. */
void logs_close(struct logs *logs);

#endif
