/* The agent's decisions: a table of states x events whose cells return actions. Pure: no clock, process, socket
 * or allocation in here, so every cell is tested and a run can be replayed.
 *
 * One node's life: JOINING (rendezvous) -> RUNNING -> STOPPING (told to end, until a deadline) -> KILLING (no
 * process of the group may be left) -> DRAINING (logs) and then, by what the stop was for, JOINING again
 * [after a PAUSING] or [BARRIER ->] CLOSING -> DONE. */
#ifndef AGENT_MACHINE_H
#define AGENT_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/policy/backoff.h"

#define AGENT_STATE_TABLE(X)                                                                                           \
    X(JOINING)  /* waiting for the rendezvous to hand out a world */                                                   \
    X(RUNNING)  /* workers were started and are to go on */                                                            \
    X(STOPPING) /* workers were signalled; leaders still running */                                                    \
    X(ENDING)   /* all workers are done; processes that they left behind are ending, until a deadline */               \
    X(KILLING)  /* SIGKILL for whatever is left, descendants included */                                               \
    X(DRAINING) /* no process left; the logs are being read to their end */                                            \
    X(PAUSING)  /* attempts fail young: a pause before this node joins again */                                        \
    X(BARRIER)  /* this node is done; waiting for the other nodes to end too */                                        \
    X(CLOSING)  /* saying good-bye to the rendezvous */                                                                \
    X(DONE)

#define AGENT_EVENT_TABLE(X)                                                                                           \
    X(WORLD)          /* rendezvous complete */                                                                        \
    X(WORLD_CHANGED)  /* a node waits or has left: the world must be formed again */                                   \
    X(CUT_OFF)        /* so it has been already, maybe: the workers of this one have no time left */                   \
    X(SPARE_RELEASED) /* this spare node was not needed */                                                             \
    X(RDZV_FAILED)                                                                                                     \
    X(WORKER_SUCCEEDED)                                                                                                \
    X(WORKER_FAILED)                                                                                                   \
    X(WORKER_STUCK) /* a worker hangs in the kernel and will not come back */                                          \
    X(SPAWN_FAILED) /* a worker could not be started: a mistake that a restart does not mend */                        \
    X(LINGERING)    /* after the end of all workers: processes that they left behind were told to end */               \
    X(GONE)         /* the group's last process has ended */                                                           \
    X(DRAINED)                                                                                                         \
    X(BARRIER_DONE)                                                                                                    \
    X(CLOSED)                                                                                                          \
    X(SIGNAL)            /* a handled signal; number in the event */                                                   \
    X(PREEMPT)           /* this node will be taken away; number: milliseconds until then */                           \
    X(STOP)              /* so will another, or this one: the whole job stops; number: as above */                     \
    X(DEADLINE)          /* the timer of START_TIMER */                                                                \
    X(GUARDIAN_LOST)     /* and no other one can be made */                                                            \
    X(GUARDIAN_REPLACED) /* with another one, after the end of all that it held; the ends of its workers follow */

#define AGENT_OUTCOME_TABLE(X)                                                                                         \
    X(NONE)                                                                                                            \
    X(SUCCESS)                                                                                                         \
    X(RESTART_FAILURE) /* consumes one of max_restarts; where the job counts, it decides */                            \
    X(RESTART_CHANGE)  /* consumes none */                                                                             \
    X(FAILED)                                                                                                          \
    X(NOT_STARTED)                                                                                                     \
    X(RDZV_LOST)                                                                                                       \
    X(SIGNALLED)                                                                                                       \
    X(PREEMPTED) /* stopped before its end, with time for a snapshot */                                                \
    X(SPARE)                                                                                                           \
    X(UNSUPERVISED) /* the guardian process died, and there is no other one */

#define AGENT_ACTION_TABLE(X)                                                                                          \
    X(JOIN)                                                                                                            \
    X(START_WORKERS)                                                                                                   \
    X(TELL_PREEMPTION) /* the other nodes; number: milliseconds */                                                     \
    X(REQUEST_STOP)    /* of this node's workers, at a point on which all agree; number: milliseconds they have */     \
    X(SIGNAL_WORKERS)  /* number: the signal */                                                                        \
    X(START_TIMER)     /* number: milliseconds from now */                                                             \
    X(STOP_TIMER)                                                                                                      \
    X(PAUSE)   /* say that the restart waits, and START_TIMER; number: milliseconds */                                 \
    X(DISMISS) /* whatever is left after all workers have ended well: GONE when it has ended */                        \
    X(KILL_ALL)                                                                                                        \
    X(DRAIN_LOGS)                                                                                                      \
    X(AWAIT_CAUSE) /* of the end of the job, where another node has said only a part of it; DRAINED follows */         \
    X(REPORT)      /* print the failure report */                                                                      \
    X(ENTER_BARRIER)                                                                                                   \
    X(CLOSE_JOB)      /* end the rendezvous for every node */                                                          \
    X(LEAVE_JOB)      /* withdraw this node; the others carry on */                                                    \
    X(EXIT)           /* number: the launcher's exit code */                                                           \
    X(EXIT_BY_SIGNAL) /* number: die of this signal, as torchrun does before its first workers */

#define AGENT_ENUM_STATE(name) AGENT_STATE_##name,
#define AGENT_ENUM_EVENT(name) AGENT_EVENT_##name,
#define AGENT_ENUM_OUTCOME(name) AGENT_OUTCOME_##name,
#define AGENT_ENUM_ACTION(name) AGENT_ACTION_##name,
enum agent_state { AGENT_STATE_TABLE(AGENT_ENUM_STATE) AGENT_STATE_COUNT };
enum agent_event_kind { AGENT_EVENT_TABLE(AGENT_ENUM_EVENT) AGENT_EVENT_COUNT };
enum agent_outcome { AGENT_OUTCOME_TABLE(AGENT_ENUM_OUTCOME) AGENT_OUTCOME_COUNT };
enum agent_action_kind { AGENT_ACTION_TABLE(AGENT_ENUM_ACTION) AGENT_ACTION_COUNT };

struct agent_event {
    enum agent_event_kind kind;
    int number;     /* SIGNAL: the signal; PREEMPT, STOP: milliseconds */
    int64_t now_ms; /* when it came, by a clock that never goes back */
};

struct agent_action {
    enum agent_action_kind kind;
    int64_t number;
};

#define AGENT_EXIT_PREEMPTED                                                                                           \
    75 /* of a launcher whose job was stopped to be started again: EX_TEMPFAIL (sysexits.h)                            \
        */

#define AGENT_QUIET_MS 200 /* from DISMISS until whoever is left is told to end */

/* More actions than any cell returns. */
#define AGENT_ACTIONS_MAX 6

struct agent_actions {
    struct agent_action list[AGENT_ACTIONS_MAX];
    size_t count;
};

struct agent_machine {
    enum agent_state state;
    enum agent_outcome outcome; /* why the group is being stopped */
    uint32_t worker_count;
    uint32_t running_count; /* leaders that have not ended in this attempt */
    uint32_t restarts_left;
    uint32_t restart_count;
    uint32_t max_restarts;
    bool job_counts;      /* restarts, for all nodes: this one asks for each of them */
    uint32_t world_count; /* worlds entered so far */
    int64_t stop_timeout_ms;
    int64_t preempt_rest_ms; /* while workers have only been asked to stop: from the signal that follows to SIGKILL */
    struct agent_backoff backoff;
    int64_t attempt_started_ms;
    int64_t pause_ms;        /* before the next attempt, as it was decided when this one failed */
    bool preempt_term_now;   /* SIGTERM with the request to stop, not at half of the time */
    int signal_number;       /* the first handled signal, 0 when none came */
    bool stops_everywhere;   /* the other nodes stop as well */
    bool any_failed;         /* in this attempt */
    bool survivors_continue; /* a failure, and what becomes of other nodes, does not stop the workers */
    bool any_succeeded;      /* in this attempt */
    bool rdzv_lost;          /* while workers that go on were running: no restart can follow */
};

/* worker_count > 0. stop_timeout_ms: between asking workers to end and SIGKILL; 0 = no wait. survivors_continue:
 * workers outlive those that fail; the attempt has succeeded if one of them ends well. */
void agent_machine_init(struct agent_machine *m, uint32_t worker_count, uint32_t max_restarts, int64_t stop_timeout_ms,
                        bool survivors_continue);

/* Workers whose node will be taken away get SIGTERM at once, and all of the time that is left to end by it. */
void agent_machine_set_preempt_term_now(struct agent_machine *m, bool now);

/* The longest pause before a restart (backoff.h); 0, as after agent_machine_init(): none. */
void agent_machine_set_backoff(struct agent_machine *m, int64_t max_ms);

/* The first actions of a life. */
void agent_machine_start(struct agent_machine *m, struct agent_actions *out);

/* Applies one event; `out` is overwritten. Events that mean nothing in the current state change nothing. */
void agent_machine_step(struct agent_machine *m, const struct agent_event *event, struct agent_actions *out);

/* The rendezvous counts restarts, for the whole job: as of the world that is about to be entered. From the first world
 * on, or never. */
void agent_machine_set_job_restarts(struct agent_machine *m, uint32_t restart_count, uint32_t max_restarts);

/* TORCHELASTIC_RESTART_COUNT: restarts consumed by failures. */
uint32_t agent_machine_restart_count(const struct agent_machine *m);

const char *agent_state_name(enum agent_state state);
const char *agent_event_name(enum agent_event_kind kind);
const char *agent_outcome_name(enum agent_outcome outcome);
const char *agent_action_name(enum agent_action_kind kind);

#endif
