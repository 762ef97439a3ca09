/* The failure report: torchelastic's summary in torchelastic's layout, and below each entry what it lacks: how the
 * process ended in words, and the last lines of its stderr.
 *
 * Formatting only: everything comes in, text comes out (TZ decides how times are shown). */
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/report/wait_status.h"
#include "base/buf.h"

struct report_entry { /* one worker that ended badly; strings are borrowed */
    uint32_t rank, local_rank;
    int64_t pid;
    int wait_status;    /* as from waitpid */
    uint64_t order;     /* of death; smaller died first */
    int64_t time_s;     /* wall time of the error (its file says it) or of the end */
    int64_t ended_us;   /* wall time of the end */
    int64_t error_us;   /* when its error file was written; 0: none was */
    bool stopped_by_us; /* told to end by the launcher before it failed */
    int64_t early_us;   /* its peers may have noticed its end so much before that */
    bool is_victim;     /* it has said that it fails because another rank is gone */
    bool failed_first;  /* it was told to end, and had written its error file before that */
    bool oom_killed;
    uint32_t cpu_limit_s;   /* it was killed when it had used so much processor time; 0: not */
    bool stuck;             /* it hung in the kernel, and for that the launcher stopped the group */
    bool timer_expired;     /* the launcher killed it because its watchdog timer had run out */
    bool guardian_lost;     /* it was killed because the launcher's guardian process was */
    const char *error_file; /* path, or NULL when the worker wrote none */
    const char *message;    /* from the error file, or NULL */
    bool message_is_traceback;
    const char *error_file_problem; /* the file is there but cannot be used: why; or NULL */
    const char *last_call;          /* on a process group of libmuster (agent/report/last_call.h), or NULL */
    const char *stderr_tail;        /* or NULL */
    size_t stderr_tail_bytes;
    bool tail_has_stdout; /* both streams were one */
    const char *host;     /* of a worker of another node, by whose failure the job ends; NULL: the report's */
    const char *status;   /* how it ended, as a clause, where that is known otherwise than by wait_status; or NULL */
};

/* What a worker did when the first one failed. */
enum report_peer_state {
    REPORT_PEER_OTHER,
    REPORT_PEER_ENDED_WELL,
    REPORT_PEER_STOPPED,
    REPORT_PEER_TRACED,
    REPORT_PEER_UNINTERRUPTIBLE,
};

struct report_peer {
    uint32_t rank;
    enum report_peer_state state;
    int64_t ended_us; /* ENDED_WELL */
};

struct report {
    const char *name; /* of the program */
    const char *host;
    const struct report_entry *entries;
    size_t count;                    /* > 0 */
    const struct report_peer *peers; /* all workers of the node; may be NULL with a count of 0 */
    size_t peer_count;
    int64_t started_us;        /* wall time at which the attempt's workers were started; 0: unknown */
    const char *circumstances; /* lines, or NULL */
    bool native;               /* the workers are no Python: what would say how to get a traceback there is left out */
    bool plain;                /* torchelastic's lines alone */
};

/* Failures whose stderr is quoted; those of further workers say the same or stand in log files. */
#define REPORT_TAILS_MAX 8
/* Longest line of stderr and longest message quoted. */
#define REPORT_LINE_BYTES_MAX 2000
#define REPORT_MESSAGE_BYTES_MAX ((size_t)64 * 1024)

/* Index of the root cause: another node's worker; else of the workers that the launcher had not stopped, the one that
 * failed first, by the times of error files and the order of deaths (report_order.c), and is no victim if one is none;
 * of all, if it had stopped them all. */
size_t report_root(const struct report *report);

/* Appends the report from its first border to the last, newline included. Entries are numbered in the order of their
 * ends; those that the launcher stopped come after those that failed by themselves, by rank. MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int report_format(const struct report *report, struct buf *out);

/* How a process ended, as a clause: "exited with code 3", "killed by SIGSEGV (Segmentation fault), core dumped". */
int report_describe_status(const struct report_entry *entry, struct buf *out);

/* The host's own name (no name server is asked), or "localhost". */
#define REPORT_HOST_SIZE 256
void report_host(char out[REPORT_HOST_SIZE]);

#endif
