/* The failure report: torchelastic's summary in torchelastic's layout, and below each entry what it lacks: how the
 * process ended in words, and the last lines of its stderr.
 *
 * Formatting only: everything comes in, text comes out (TZ decides how times are shown). */
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct report_entry { /* one worker that ended badly; strings are borrowed */
    uint32_t rank, local_rank;
    int64_t pid;
    int wait_status;    /* as from waitpid */
    uint64_t order;     /* of death; smaller died first */
    int64_t time_s;     /* wall time of the error (its file says it) or of the end */
    bool stopped_by_us; /* told to end by the launcher before it ended */
    bool oom_killed;
    bool stuck;             /* it hung in the kernel, and for that the launcher stopped the group */
    bool timer_expired;     /* the launcher killed it because its watchdog timer had run out */
    const char *error_file; /* path, or NULL when the worker wrote none */
    const char *message;    /* from the error file, or NULL */
    bool message_is_traceback;
    const char *error_file_problem; /* the file is there but cannot be used: why; or NULL */
    const char *last_call;          /* on a process group of libmuster (agent/last_call.h), or NULL */
    const char *stderr_tail;        /* or NULL */
    size_t stderr_tail_bytes;
};

struct report {
    const char *name; /* of the program */
    const char *host;
    const struct report_entry *entries;
    size_t count; /* > 0 */
    bool plain;   /* torchelastic's lines alone */
};

/* Failures whose stderr is quoted; those of further workers say the same or stand in log files. */
#define REPORT_TAILS_MAX 8
/* Longest line of stderr and longest message quoted. */
#define REPORT_LINE_BYTES_MAX 2000
#define REPORT_MESSAGE_BYTES_MAX ((size_t)64 * 1024)

/* Index of the root cause: of the workers that the launcher had not stopped, the one that ended first; of all, if it
 * had stopped them all. */
size_t report_root(const struct report *report);

/* Appends the report from its first border to the last, newline included. Entries are numbered in the order of their
 * ends; those that the launcher stopped come after those that failed by themselves, by rank. MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int report_format(const struct report *report, struct buf *out);

/* "SIGTERM", or NULL for numbers without a name (torchelastic's names, which are Python's). */
const char *report_signal_name(int signal_number);

/* torchelastic's exit code: the code, or minus the signal. */
int report_exit_code(int wait_status);

/* How a process ended, as a clause: "exited with code 3", "killed by SIGSEGV (Segmentation fault), core dumped". */
int report_describe_status(const struct report_entry *entry, struct buf *out);

/* The host's own name (no name server is asked), or "localhost". */
#define REPORT_HOST_SIZE 256
void report_host(char out[REPORT_HOST_SIZE]);

#endif
