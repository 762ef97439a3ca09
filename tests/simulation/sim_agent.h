/* A simulated agent: the real rendezvous (rdzv.h) and the real decisions (agent/policy/machine.h, agent/dispatch.h),
 * with workers that are only dates: they run, succeed, fail, end when they are told to or do not, all in virtual time.
 */
#ifndef SIMULATION_SIM_AGENT_H
#define SIMULATION_SIM_AGENT_H

#include <muster/status.h>

#include "agent/dispatch.h"
#include "rendezvous/rdzv.h"
#include "sim_kernel.h"

enum { SIM_WORKERS_MAX = 4, SIM_AGENT_EVENTS_MAX = 32 };

/* What becomes of one worker of one attempt. */
struct sim_work {
    int64_t run_ms;  /* until it ends by itself */
    bool fails;      /* then */
    int64_t stop_ms; /* from the signal to its end; INT64_MAX: only killing helps */
};

struct sim_worker {
    struct sim_work work;
    uint64_t end_ms; /* on the loop's clock */
    bool runs, is_told;
};

struct sim_agent;

/* What the world is told and asked. */
struct sim_agent_callbacks {
    struct sim_work (*work)(void *ctx, struct sim_agent *agent);
    void (*on_world)(void *ctx, struct sim_agent *agent, const struct rdzv_world *world);
    /* Its workers have been started. */
    void (*on_start)(void *ctx, struct sim_agent *agent);
    /* A transition has been made: agent->machine has changed. */
    void (*on_step)(void *ctx, struct sim_agent *agent, enum agent_state before, const struct agent_event *event);
    /* It reports what the job has failed of, as its rendezvous knows it. */
    void (*on_report)(void *ctx, struct sim_agent *agent);
    /* It will be no more: sim_agent_clear() from a later event. */
    void (*on_exit)(void *ctx, struct sim_agent *agent, int code);
};

struct sim_agent_options {
    struct rdzv_options rdzv;
    uint32_t max_restarts;
    int64_t stop_timeout_ms;
    int64_t backoff_max_ms;
};

struct sim_agent {
    struct sim_host *host;
    const struct sim_agent_callbacks *callbacks;
    void *ctx;
    uint32_t life;        /* how many processes it has been */
    bool runs, has_ended; /* ended: it no longer does anything, and is to be cleared */
    struct rdzv *rdzv;
    struct agent_machine machine;
    struct agent_dispatch dispatch;
    uv_timer_t stop_timer, work_timer, wait_timer;
    enum agent_event_kind awaited; /* by wait_timer */
    uint32_t worker_count;
    struct sim_worker workers[SIM_WORKERS_MAX];
    struct rdzv_world world; /* without its text */
    int failed_status;       /* of the rendezvous; 0: has not */
    char failed_why[MUSTER_DETAIL_MAX];
    struct rdzv_cause cause; /* of this attempt, on this node */
    uint64_t cause_ms;       /* when that worker died */
    bool has_cause;          /* and its last words are still to be told */
    unsigned failures;       /* attempts that a worker of its own has ended, in this life */
};

/* A process begins: *agent is zero, or one that was cleared. */
void sim_agent_start(struct sim_agent *agent, struct sim_host *host, const struct sim_agent_options *options,
                     const struct sim_agent_callbacks *callbacks, void *ctx);
void sim_agent_signal(struct sim_agent *agent);                     /* SIGTERM */
void sim_agent_preempt(struct sim_agent *agent, uint64_t grace_ms); /* its node will be taken away */
void sim_agent_fail(struct sim_agent *agent);                       /* its first worker does */
/* Has it not come to its end? Its agent may learn of that later. */
bool sim_agent_runs_worker(const struct sim_agent *agent, uint32_t index);
/* Its workers end well within `within_ms`, if they run. */
void sim_agent_hurry(struct sim_agent *agent, int64_t within_ms);
/* After its process has ended, has been killed, or has vanished with its host (its files are closed already then). */
void sim_agent_clear(struct sim_agent *agent);

#endif
