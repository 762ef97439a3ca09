/* The agent's private state, shared by the agent_*.c files and nobody else.
 *
 * agent.c        creates, carries out the machine's actions, tears down
 * agent_feed.c   feeds events to the machine
 * agent_guardian.c  hears what the guardian says, and makes another one when it was lost
 * agent_workers.c  starts workers, records how they ended
 * agent_cause.c    tells the other nodes which worker failed, and knows which of theirs did
 * agent_lost.c     with --survivors=continue: tells workers that wait for a lost one
 * agent_outcome.c  says what happened: log lines, failure report, error file of the parent
 * agent_failures.c  what is known of workers that ended badly
 * agent_outcome_file.c  writes the outcome for programs (--outcome)
 * agent_events.c   tells it to --event-log-handler
 * agent_timers.c   the file timer
 * agent_preload.c  the process that has imported what workers need, and forks them
 * agent_mpi.c      the process that serves MPI's programs; agent_mpi_ranks.c: what it says of workers
 * agent_preempt.c  the signal that announces the end of this node, and what workers are asked then */
#ifndef AGENT_AGENT_IMPL_H
#define AGENT_AGENT_IMPL_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "agent/agent.h"
#include "agent/dispatch.h"
#include "agent/guardian/guardian.h"
#include "agent/held/held.h"
#include "agent/launch/environment.h"
#include "agent/launch/launch.h"
#include "agent/logs/logs.h"
#include "agent/report/error_file.h"
#include "agent/report/last_call.h"
#include "agent/report/own_failure.h"
#include "agent/report/report.h"
#include "agent/watchdog/watchdog.h"
#include "net/loop_clock.h"
#include "rendezvous/rdzv.h"

/* Signals that --signals-to-handle can name. */
#define AGENT_SIGNALS_MAX 32

enum { AGENT_WORKER_STATE_UNKNOWN = '?' };

/* Under which the guardian knows the MPI server; no worker's. */
#define AGENT_MPI_ID UINT32_MAX

struct agent_worker {
    pid_t pid; /* 0 until started */
    bool ended;
    bool stopped_by_us; /* ended after the launcher had told it to */
    bool oom_killed;
    uint32_t cpu_limit_s; /* it had used up so much processor time; 0: not */
    bool timer_expired;   /* killed by the watchdog */
    bool stuck;           /* hangs in the kernel: why the group was stopped */
    bool core_dumped;
    bool guardian_lost; /* killed because the guardian was */
    bool is_untold;     /* of its end the machine does not know yet */
    bool mpi_left;      /* has closed its connection to the MPI server when it should not: ends, or has failed */
    bool mpi_failed;    /* by what its MPI did: exits with this code, in this way (a clause; NULL: as the code says) */
    int mpi_code;
    const char *mpi_how;
    int wait_status;
    uint64_t order; /* of death, over the whole life of the agent */
    int64_t started_wall_us, ended_wall_us;
    int64_t ended_at_ns;              /* monotonic */
    char state_at_stop;               /* as /proc had it when the first one failed, or unknown; 0: it had ended */
    int64_t uninterruptible_since_ns; /* 0: it is not, or nobody looks */
};

struct agent {
    const struct launch_config *config;
    agent_print_fn *print;
    uv_loop_t loop;
    bool loop_ready;
    struct agent_machine machine;
    struct agent_dispatch dispatch; /* no event is lost: each source sends a bounded number */
    int exit_code;
    int exit_signal; /* die of this one instead of exiting */

    struct guardian *guardian;
    uint32_t guardian_losses; /* since workers were started last */
    struct logs *logs;
    struct rdzv *rdzv;
    struct watchdog *watchdog;     /* NULL: not enabled */
    struct kv_client *lost_client; /* agent_lost.c: to the workers' store, while it tells; else NULL */
    bool has_told_lost;            /* in this attempt */
    struct held *held;             /* memory of the workers; NULL: cannot be held here */
    size_t held_names_max;
    uv_timer_t timer;
    int64_t timer_deadline_ms; /* of `timer`, by the clock */
    struct loop_clock clock;
    uv_timer_t cause_timer;           /* until the last words of a worker that failed are told */
    bool has_told_cause;              /* in this attempt */
    char failed_by[OWN_FAILURE_SIZE]; /* how the program made the workers before fail, on this node; or "" */
    uint32_t starts;                  /* of all workers together */
    uv_timer_t waiting_timer;         /* says why there should be other nodes; idle when that is sure */
    uv_timer_t stuck_timer;           /* looks for workers that hang in the kernel; idle when not asked for */
    double stuck_timeout_s;
    uv_signal_t signals[AGENT_SIGNALS_MAX];
    size_t signal_count;
    bool preloads;                /* a preload server is there, or being started */
    bool preload_is_ready;        /* it has imported */
    uint32_t preload_deaths;      /* since workers were started last: servers that have not ended in good order */
    uint32_t preload_told_starts; /* `starts` when it was said last that a worker is started as usual */
    uv_timer_t preload_timer;     /* says that the imports take long */
    const struct agent_mpi_answers *mpi_answers;
    struct agent_mpi *mpi; /* this attempt's MPI server; NULL: there is none */
    bool mpi_lacks_pmix;   /* PMIx's library has failed in one: it is not tried again */
    uv_signal_t preempt_signal;
    bool watches_preempt_signal;
    char *stop_path; /* MUSTER_STOP_PATH of the workers; NULL: nobody can ask them to stop */

    struct rdzv_world world; /* master_addr points to master_addr_text */
    char master_addr_text[NET_HOST_MAX];
    struct agent_worker *workers; /* config->nproc of them */
    cpu_set_t *cpu_sets;          /* --numa-binding: one a worker; NULL without */
    int64_t signalled_at_ns;      /* when this attempt's workers were told to end; 0: not */
    int64_t signalled_wall_us;
    int64_t started_wall_us;
    bool spares_detached;  /* processes of the workers may run on */
    bool writes_outcome;   /* --outcome, and nothing of somebody else stands in its place */
    char end_message[512]; /* why the job ended, if that was no worker; for the outcome */
    int64_t join_started_ns;
};

/* agent_feed.c */
void agent_feed(struct agent *a, enum agent_event_kind kind, int number);

/* agent_guardian.c */
int agent_guardian_create(struct agent *a);
/* What it is to know, should this process be killed. */
void agent_guardian_inform(struct agent *a);
/* What an order to the guardian has come to, whose answer the machine waits for. */
void agent_guardian_ordered(struct agent *a, int status);

/* agent_workers.c */
void agent_workers_start(struct agent *a);
void agent_workers_signal(struct agent *a, int signal_number);
struct environment_worker agent_worker_environment(const struct agent *a, uint32_t local_rank);
void agent_worker_spawned(struct agent *a, uint32_t local_rank, pid_t pid);
void agent_worker_not_started(struct agent *a, uint32_t local_rank, const char *why);
/* It was told to end before it was started. */
void agent_worker_skipped(struct agent *a, uint32_t local_rank);
void agent_worker_ended(struct agent *a, const struct guardian_exit *exit);
/* With the guardian. Nobody is told yet. */
void agent_worker_lost(struct agent *a, uint32_t local_rank, int wait_status);

/* agent_mpi.c: --mpi */
/* What becomes of the workers that wait for the MPI server. */
struct agent_mpi_answers {
    void (*start)(struct agent *a);                   /* it has said what each of them is to know */
    void (*skip)(struct agent *a);                    /* they are to end, as if they had done nothing */
    void (*refuse)(struct agent *a, const char *why); /* they cannot be started */
};

/* Starts the attempt's server; one of `answers` follows, unless agent_mpi_cancel() comes before. */
void agent_mpi_begin(struct agent *a, const struct agent_mpi_answers *answers);
/* Workers are waiting for it. They will not be started: true if that is so, and it is not for long. */
bool agent_mpi_cancel(struct agent *a);
/* For the worker's environment, and its descriptor, which is borrowed. NULL and 0 without --mpi. */
const struct launch_strings *agent_mpi_variables(const struct agent *a, uint32_t local_rank);
int agent_mpi_fd(const struct agent *a, uint32_t local_rank);
/* How a worker has ended that ended with `wait_status`: badly, if it has called MPI_Abort(), or has left others alone
 * in MPI (agent_mpi_ranks.c). */
int agent_mpi_end_of(struct agent *a, uint32_t local_rank, int wait_status);
/* What the guardian says of it. */
void agent_mpi_spawned(struct agent *a, pid_t pid);
void agent_mpi_not_started(struct agent *a, const char *why);
void agent_mpi_ended(struct agent *a, int wait_status);
/* It has died with the guardian; or this is the end of the agent. */
void agent_mpi_lost(struct agent *a);

/* agent_preload.c */
/* Starts the preload server, if the job has one. */
void agent_preload_begin(struct agent *a);
/* This node is a spare one: what its workers need is made ready. */
void agent_preload_begin_spare(struct agent *a);
/* What the guardian says of it. */
void agent_preload_told(struct agent *a, const struct guardian_preload_news *news);
/* It has died with the guardian; there is another one. */
void agent_preload_lost(struct agent *a);

/* agent_cause.c */
/* A worker has failed by itself: the other nodes hear of it, once an attempt, and of its last words a little later. */
void agent_cause_tell(struct agent *a);
/* The round ends: last words that have not been told yet are told now, since in the next round they would be that one's
 * failure. */
void agent_cause_finish(struct agent *a);
void agent_cause_tell_not_started(struct agent *a, uint32_t local_rank, const char *why);
/* The failure by which the job ends, if it is another node's; else NULL. */
const struct rdzv_cause *agent_cause_remote(const struct agent *a);
struct report_entry agent_cause_entry(const struct rdzv_cause *cause); /* its strings are borrowed */
/* `done` when all is known that a report of it can say; at once, as a rule. */
void agent_cause_await(struct agent *a, void (*done)(void *ctx));

/* agent_lost.c */
/* A node of this world, or a worker of this node, is lost. Ignored if survivors do not go on. why: a sentence. */
void agent_lost_tell_node(struct agent *a, const char *why);
void agent_lost_tell_worker(struct agent *a, uint32_t local_rank);
/* There are other workers now, or none any more. */
void agent_lost_forget(struct agent *a);

/* agent_outcome.c */
void agent_outcome_worker_failed(const struct agent *a, uint32_t local_rank);
void agent_outcome_restarting(const struct agent *a);
void agent_outcome_pausing(const struct agent *a, int64_t pause_ms);
/* Says that the job has ended well without some of the workers, if so. */
void agent_outcome_survivors(const struct agent *a);
/* Processes that workers left behind when they ended well. */
void agent_outcome_lingering(const struct agent *a, const struct guardian_lingering *lingering);
/* This node waits for the others to end. */
void agent_outcome_report(const struct agent *a);
void agent_outcome_end(const struct agent *a);

/* agent_failures.c */
/* What belongs to an entry of the report and lives as long. */
struct agent_failure_text {
    struct error_record record;
    char problem[256];
    struct last_call last_call;
    char *tail;
};

struct agent_failures {
    struct report_entry *entries;
    struct agent_failure_text *texts;
    size_t count;
    struct report_peer *peers; /* all workers, config->nproc of them; NULL: no memory */
};

bool agent_worker_ended_badly(const struct agent_worker *worker);
void agent_failures_collect(const struct agent *a, struct agent_failures *out);
void agent_failures_done(struct agent_failures *failures);
/* How the program made this attempt fail, on this node; or "". For the workers of the next one. */
void agent_failures_own(const struct agent *a, char out[OWN_FAILURE_SIZE]);

/* agent_outcome_file.c: --outcome */
/* Before anything is begun: the file of an earlier job goes away. */
int agent_outcome_file_prepare(struct agent *a);
/* From here on the guardian writes it if this process is killed: again at each world. */
void agent_outcome_file_keep(const struct agent *a);
/* And where this worker's error file will be, after that. */
void agent_outcome_file_keep_error_file(const struct agent *a, uint32_t local_rank);
void agent_outcome_file_write(const struct agent *a);

/* agent_signals.c */
void agent_signals_watch(struct agent *a);

/* agent_preempt.c */
/* Before the guardian is made: workers begin with the notice ignored (but for SIGTERM, which stops them), since some
 * schedulers send it to every process. */
int agent_preempt_prepare(struct agent *a);
int agent_preempt_watch(struct agent *a); /* afterwards */
void agent_preempt_tell(struct agent *a, uint64_t grace_ms);
void agent_preempt_request(struct agent *a, uint64_t grace_ms);
void agent_preempt_close(struct agent *a);

/* agent_stuck.c */
void agent_stuck_create(struct agent *a);

/* agent_timers.c */
int agent_timers_create(struct agent *a);

/* agent_events.c */
void agent_events_world(const struct agent *a);
void agent_events_worker_started(const struct agent *a, uint32_t local_rank);
void agent_events_end(const struct agent *a);

#endif
