/* The outcome of one launcher as JSON (docs/formats/outcome.md), for programs: what --outcome writes. Formatting and
 * the atomic write alone; the agent says what there is to tell, or the guardian if the agent could not. */
#ifndef AGENT_REPORT_OUTCOME_H
#define AGENT_REPORT_OUTCOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

#define OUTCOME_VERSION 1
#define OUTCOME_PATH_MAX 4096
/* Of one file: that of 4096 workers with a long error each. */
#define OUTCOME_BYTES_MAX ((size_t)512 << 20)

struct outcome_job { /* strings are borrowed; NULL becomes null */
    const char *run_id, *name, *entry_point, *role, *backend, *host;
    int64_t launcher_pid;
    int64_t started_us;
    bool has_world; /* the next five, of the last world */
    uint32_t group_rank, group_world_size, world_size;
    uint64_t round;
    uint32_t restarts, max_restarts;
};

struct outcome_worker {
    uint32_t local_rank, rank, role_rank;
    int64_t pid; /* 0: it was not started */
    int64_t started_us, ended_us;
    bool has_ended;
    int wait_status;
    bool failed_first; /* its error came before the launcher told it to end */
    bool stopped_by_launcher, oom_killed, timer_expired, stuck, core_dumped;
    const char *error_file; /* path of one that was written, or NULL */
    const char *error_json; /* what is in it, JSON; or NULL */
    const char *message;    /* from it; or NULL */
    int64_t timestamp_s;    /* of the error; 0: that of the end */
    const char *status;     /* how it ended, in words; or NULL */
};

struct outcome_end {
    const char *result; /* "success"; see docs/formats/outcome.md */
    bool has_exit_code;
    int exit_code;     /* of the launcher; minus the signal that it dies of */
    int signal_number; /* that ended the job; 0: none */
    const char *message;
    int64_t ended_us;
    const struct outcome_worker *root; /* one of the workers, or of another node's, or NULL */
    const char *root_host;             /* of its node */
};

/* The job alone, without braces: it can be kept, and followed by the rest later. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int outcome_format_job(const struct outcome_job *job, struct buf *out);

/* The whole file, `job` being what outcome_format_job() appended, with a terminator. Errors as above. */
int outcome_format(const char *job, const struct outcome_end *end, const struct outcome_worker *workers, size_t count,
                   struct buf *out);

/* Published (base/file.h): a reader meets the old file or the new one, whole, after a crash of the machine, too. What
 * is no regular file (a FIFO, /dev/stdout), or is this process's stdout or stderr, is written to directly; a reader
 * that takes nothing for OUTCOME_PATIENCE_MS is given up. MUSTER_ESYSTEM. */
int outcome_write(const char *path, const struct buf *text);
#define OUTCOME_PATIENCE_MS 10000

/* Before a job: can the file be written? Removes that of an earlier job; MUSTER_EINVAL if a file is in its place that
 * is none. MUSTER_ESYSTEM, MUSTER_ENOMEM. */
int outcome_prepare(const char *path);

#endif
