/* What to launch: the command line, checked and with defaults applied. Filled by cli/, read by the agent. */
#ifndef AGENT_LAUNCH_H
#define AGENT_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/rdzv.h"

#define LAUNCH_WORKERS_MAX 4096 /* workers of one agent */

enum launch_stream {
    LAUNCH_STREAM_NONE = 0,
    LAUNCH_STREAM_STDOUT = 1,
    LAUNCH_STREAM_STDERR = 2,
    LAUNCH_STREAM_BOTH = 3
};
enum launch_numa {
    LAUNCH_NUMA_NONE,
    LAUNCH_NUMA_NODE,
    LAUNCH_NUMA_SOCKET,
    LAUNCH_NUMA_EXCLUSIVE,
    LAUNCH_NUMA_CORE_COMPLEX
};
enum launch_mpi { LAUNCH_MPI_NONE, LAUNCH_MPI_AUTO, LAUNCH_MPI_PMI1, LAUNCH_MPI_PMIX };
enum launch_events { LAUNCH_EVENTS_NULL, LAUNCH_EVENTS_CONSOLE };

/* --redirects / --tee: one value for all ranks, or a map in which unnamed ranks are 0. */
struct launch_stream_map {
    uint8_t by_rank[10]; /* enum launch_stream; torchrun's maps know single-digit ranks */
    uint8_t all;         /* used when !is_map */
    bool is_map;
};

struct launch_strings { /* owned array of owned strings */
    char **items;
    size_t count;
};

/* All strings but waits_because are owned by the struct and freed by launch_config_done(). NULL where "not given". */
struct launch_config {
    struct rdzv_options rdzv; /* its strings point into this struct */
    char *backend_name;       /* as the user wrote it, for events */
    char *run_id;
    char *endpoint;
    char *local_addr;
    char *not_given;            /* rdzv_options.not_given */
    struct secret_text *secret; /* of launch_secret_create() */
    char *role;
    const char *waits_because; /* said once the first world is long in coming: a sentence, borrowed; NULL: none */
    uint32_t nproc;
    uint32_t max_restarts;
    bool has_spares;           /* --spares, ours: nodes without a place have a preload server */
    char *preload;             /* --preload, ours: modules, with commas between them; NULL: workers are no forks */
    bool leaves_detached;      /* --detached=leave, ours: processes with a session of their own outlive a success */
    bool survivors_continue;   /* --survivors=continue, ours: workers go on when others fail */
    double monitor_interval_s; /* accepted; an upper bound, nothing polls */
    enum launch_events events;
    struct launch_strings command; /* argv of a worker: interpreter and all; ${local_rank} not yet substituted */
    bool is_python;                /* it is PYTHON -u [-m] NAME ARGUMENT...: a fork of a preload server can become it */
    bool is_native;                /* it is a program of its own, not Python and nothing that may start it */
    char *program_path;            /* where its file is, if it is not; NULL */
    char *title;                   /* name in the failure report */
    char *outcome_path;            /* --outcome, ours; NULL: none */
    char *entry_point;             /* base name of the program, for events */
    char *log_dir;                 /* NULL: a fresh directory under the temp dir; "/dev/null": no files */
    struct launch_stream_map redirects;
    struct launch_stream_map tee;
    const char *log_prefix; /* template of console lines' prefix, borrowed; NULL or "": the variable's, or torchrun's */
    bool merge_logs;        /* --merge-logs, ours: whole prefixed lines on the console, no files */
    uint32_t stderr_tail_lines; /* --stderr-tail, ours: lines of a failed worker's stderr kept for the report */
    bool local_ranks_filtered;
    uint32_t *local_ranks_filter; /* owned; ranks whose console output is shown */
    size_t local_ranks_filter_count;
    struct launch_strings duplicate_stdout_filters;
    struct launch_strings duplicate_stderr_filters;
    enum launch_numa numa;
    enum launch_mpi mpi;     /* --mpi, ours: how programs of MPI among the workers learn who they are */
    char *signals_to_handle; /* "SIGTERM,SIGINT,SIGHUP,SIGQUIT" */
    bool signals_given;      /* by the user: each of them is handled, whatever it was before */
    uint64_t shutdown_timeout_ms;
    uint64_t restart_backoff_ms; /* --restart-backoff, ours: the longest pause before a restart; 0: none */
    int preempt_signal;          /* --preempt-signal, ours: says that this node will be taken away; 0: none does */
    bool preempt_term_now;       /* --preempt-term=now, ours */
    uint64_t preempt_grace_ms;   /* and how long it has then; at most INT32_MAX */
    bool virtual_local_rank;
    bool omp_defaulted; /* OMP_NUM_THREADS=1 is to be added to the workers' environment */
};

/* Appends a copy of `text`; behind the last item there is always a NULL that is not counted. MUSTER_ENOMEM. */
int launch_strings_append(struct launch_strings *strings, const char *text);

/* Frees the items and the array; leaves an empty list. */
void launch_strings_done(struct launch_strings *strings);

void launch_config_init(struct launch_config *config);
void launch_config_done(struct launch_config *config);

/* Room for the job's secret that no child process gets a copy of, and no core dump. NULL: no memory. */
struct secret_text *launch_secret_create(void);
/* Wipes and frees; NULL accepted. */
void launch_secret_free(struct secret_text *secret);

#endif
