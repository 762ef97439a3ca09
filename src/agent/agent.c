/* The shell around the agent's machine: feeds it the loop's events (dispatch.h) and carries out its actions. What the
 * actions mean for workers is in agent_workers.c, what is told to people in agent_outcome.c; agent_guardian.c hears the
 * guardian, agent_signals.c signals. */
#include "agent/agent.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/launch/numa.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/descriptors.h"
#include "net/event_loop.h"

enum {
    SPARE_EVENTS = 64, /* beside one per worker, that can be pending at once */
    /* Of the launcher without its workers' streams: 24 were counted, without connections that ask for memory. */
    OWN_DESCRIPTORS = 32 + HELD_CONNECTIONS_MAX,
    /* Of those that are left, memory that is held may take one in so many: streams come and go as well. */
    HELD_SHARE = 2,
};

static void on_timer(uv_timer_t *timer);

/* What workers and others may take is counted without the time that this node was away: they may have been, too. */
static void start_timer(struct agent *a, int64_t ms) {
    a->timer_deadline_ms = loop_clock_now_ms(&a->clock, &a->loop) + ms;
    (void)uv_timer_start(&a->timer, on_timer, (uint64_t)ms, 0);
}

static void on_timer(uv_timer_t *timer) {
    enum { LISTEN_MS = 1000 }; /* for the ends of workers that came meanwhile, and of those that go on now */
    struct agent *a = timer->data;
    int64_t left_ms = loop_clock_left_ms(&a->clock, &a->loop, a->timer_deadline_ms, LISTEN_MS);
    if (left_ms > 0) {
        (void)uv_timer_start(timer, on_timer, (uint64_t)left_ms, 0);
        return;
    }
    agent_feed(a, AGENT_EVENT_DEADLINE, 0);
}

static void on_waiting(uv_timer_t *timer) {
    const struct agent *a = timer->data;
    log_warning("%s", a->config->waits_because);
}

/* Once, with the rendezvous' own first line that says who is missing. */
static void start_waiting(struct agent *a) {
    enum { WAITING_MS = 5000 };
    if (a->config->waits_because != NULL && a->world.group_world_size == 0) {
        (void)uv_timer_start(&a->waiting_timer, on_waiting, WAITING_MS, 0);
    }
}

static void on_cause(void *ctx) {
    agent_feed(ctx, AGENT_EVENT_DRAINED, 0);
}

static void on_drained(void *ctx) {
    agent_cause_await(ctx, on_cause);
}

static void on_barrier_done(void *ctx) {
    agent_feed(ctx, AGENT_EVENT_BARRIER_DONE, 0);
}

static void on_closed(void *ctx) {
    agent_feed(ctx, AGENT_EVENT_CLOSED, 0);
}

static void finish(struct agent *a, int exit_code, int exit_signal) {
    agent_dispatch_stop(&a->dispatch);
    a->exit_code = exit_code;
    a->exit_signal = exit_signal;
    agent_events_end(a);
    agent_outcome_end(a);
    uv_stop(&a->loop);
}

static void on_step(void *ctx, enum agent_state before, const struct agent_event *event) {
    const struct agent *a = ctx;
    log_debug("agent: %s on %s -> %s", agent_state_name(before), agent_event_name(event->kind),
              agent_state_name(a->machine.state));
}

_Static_assert(AGENT_QUIET_MS >= GUARDIAN_QUIET_MS, "who is told to end has all of the time for it");

static void tell_restart(const struct agent *a, bool is_now) {
    if (is_now && a->machine.outcome == AGENT_OUTCOME_RESTART_FAILURE) {
        agent_outcome_restarting(a);
    }
}

static void perform(void *ctx, const struct agent_action *action) {
    struct agent *a = ctx;
    switch (action->kind) {
    case AGENT_ACTION_JOIN:
        a->join_started_ns = clock_monotonic_ns();
        tell_restart(a, a->machine.pause_ms == 0); /* else before the pause */
        agent_cause_finish(a);
        start_waiting(a);
        rdzv_join(a->rdzv);
        return;
    case AGENT_ACTION_START_WORKERS:
        agent_workers_start(a);
        return;
    case AGENT_ACTION_TELL_PREEMPTION:
        agent_preempt_tell(a, (uint64_t)action->number);
        return;
    case AGENT_ACTION_REQUEST_STOP:
        agent_preempt_request(a, (uint64_t)action->number);
        return;
    case AGENT_ACTION_SIGNAL_WORKERS:
        agent_workers_signal(a, (int)action->number);
        return;
    case AGENT_ACTION_START_TIMER:
        start_timer(a, action->number);
        return;
    case AGENT_ACTION_STOP_TIMER:
        (void)uv_timer_stop(&a->timer);
        return;
    case AGENT_ACTION_PAUSE:
        tell_restart(a, true);
        agent_outcome_pausing(a, action->number);
        start_timer(a, action->number);
        return;
    case AGENT_ACTION_DISMISS:
        a->spares_detached = a->config->leaves_detached && getpid() != 1; /* a container ends with its process 1 */
        agent_guardian_ordered(a, guardian_dismiss(a->guardian, a->spares_detached));
        return;
    case AGENT_ACTION_KILL_ALL:
        (void)agent_mpi_cancel(a);
        agent_guardian_ordered(a, guardian_kill_all(a->guardian));
        return;
    case AGENT_ACTION_DRAIN_LOGS:
        logs_drain(a->logs, a->spares_detached, on_drained, a);
        return;
    case AGENT_ACTION_AWAIT_CAUSE:
        agent_cause_await(a, on_cause);
        return;
    case AGENT_ACTION_REPORT:
        rdzv_cause_reported(a->rdzv);
        agent_outcome_report(a);
        return;
    case AGENT_ACTION_ENTER_BARRIER:
        agent_outcome_survivors(a);
        rdzv_exit_barrier(a->rdzv, a->machine.outcome == AGENT_OUTCOME_SUCCESS, on_barrier_done);
        return;
    case AGENT_ACTION_CLOSE_JOB:
    case AGENT_ACTION_LEAVE_JOB:
        rdzv_shutdown(a->rdzv, action->kind == AGENT_ACTION_CLOSE_JOB, on_closed);
        return;
    case AGENT_ACTION_EXIT:
        finish(a, (int)action->number, 0);
        return;
    case AGENT_ACTION_EXIT_BY_SIGNAL:
        finish(a, 1, (int)action->number);
        return;
    case AGENT_ACTION_COUNT:
        break;
    }
    assert(!"no such action");
}

static const struct agent_dispatch_callbacks dispatch_callbacks = {.perform = perform, .on_step = on_step};

/* Where the rendezvous counts restarts, its numbers hold on all nodes, whatever each was started with. */
static void take_job_restarts(struct agent *a) {
    const struct rdzv_world *world = &a->world;
    if (!world->job_counts_restarts) {
        return;
    }
    if (world->max_restarts != a->machine.max_restarts) {
        log_warning(
            "this job allows %u restarts, as the node that serves the rendezvous says; --max-restarts=%u of this "
            "node is ignored",
            world->max_restarts, a->config->max_restarts);
    }
    agent_machine_set_job_restarts(&a->machine, world->restart_count, world->max_restarts);
}

static void on_world(void *ctx, const struct rdzv_world *world) {
    struct agent *a = ctx;
    a->world = *world;
    (void)uv_timer_stop(&a->waiting_timer);
    if (!str_copy(a->master_addr_text, sizeof a->master_addr_text, world->master_addr)) {
        log_error("the master address of round %llu is longer than %d bytes", (unsigned long long)world->round,
                  NET_HOST_MAX - 1);
        agent_feed(a, AGENT_EVENT_RDZV_FAILED, 0);
        return;
    }
    a->world.master_addr = a->master_addr_text;
    take_job_restarts(a);
    log_info("Rendezvous complete: round %llu, group_rank=%u of %u, ranks %u..%u of %u, master %s:%u, restart_count=%u",
             (unsigned long long)world->round, world->group_rank, world->group_world_size, world->base_global_rank,
             world->base_global_rank + a->config->nproc - 1, world->global_world_size, a->master_addr_text,
             world->master_port, agent_machine_restart_count(&a->machine));
    agent_outcome_file_keep(a);
    agent_events_world(a); /* before the workers' */
    agent_feed(a, AGENT_EVENT_WORLD, 0);
}

static void on_change(void *ctx, enum rdzv_change change, const char *why) {
    struct agent *a = ctx;
    if (a->machine.state == AGENT_STATE_RUNNING) {
        log_warning("%s; %s", why,
                    a->config->survivors_continue ? "this node's workers go on (--survivors=continue)"
                                                  : "forming the world again");
    }
    if (change == RDZV_NODE_LEFT) {
        agent_lost_tell_node(a, why);
    }
    agent_feed(a, change == RDZV_CUT_OFF ? AGENT_EVENT_CUT_OFF : AGENT_EVENT_WORLD_CHANGED, 0);
}

static void on_stop(void *ctx, uint64_t grace_ms, const char *why) {
    log_warning("the job stops before its end: %s", why);
    agent_feed(ctx, AGENT_EVENT_STOP, grace_ms > INT32_MAX ? INT32_MAX : (int)grace_ms);
}

static void on_spare(void *ctx) {
    agent_preload_begin_spare(ctx);
}

static void on_spare_released(void *ctx) {
    struct agent *a = ctx;
    log_warning("this node was not needed: the job has succeeded while it was a spare");
    agent_feed(a, AGENT_EVENT_SPARE_RELEASED, 0);
}

/* Of rank 0's worker, local rank 0 of the node that is asked. */
static void tell_engine(void *ctx, char out[RDZV_ENGINE_MAX]) {
    const struct agent *a = ctx;
    _Static_assert(RDZV_ENGINE_MAX >= CALL_RECORD_ENGINE_BYTES, "what the record says can be told");
    if (a->workers[0].pid > 0 && !a->workers[0].ended) {
        last_call_engine(logs_error_file(a->logs, 0), out);
    }
}

/* What people search logs for, and torchrun's logs have. */
static const char *torchruns_name(int status) {
    return status == MUSTER_ETIMEOUT                                ? "RendezvousTimeoutError: "
           : status == MUSTER_ECLOSED                               ? "RendezvousClosedError: "
           : status == MUSTER_ECONNECT || status == MUSTER_ERESOLVE ? "RendezvousConnectionError: "
                                                                    : "";
}

static void on_rdzv_failed(void *ctx, int status, const char *why) {
    struct agent *a = ctx;
    if (a->machine.state == AGENT_STATE_RUNNING && a->config->survivors_continue) {
        log_warning("rendezvous: %s (%s); this node's workers go on (--survivors=continue)", why,
                    muster_strerror(status));
    } else if (a->machine.state <= AGENT_STATE_STOPPING || a->machine.outcome == AGENT_OUTCOME_RESTART_FAILURE) {
        (void)str_format(a->end_message, sizeof a->end_message, "%s", why);
        log_error("rendezvous: %s%s (%s)", torchruns_name(status), why, muster_strerror(status));
    } else {
        log_info("rendezvous, while ending: %s (%s)", why, muster_strerror(status));
    }
    agent_feed(a, AGENT_EVENT_RDZV_FAILED, 0);
}

static const struct rdzv_callbacks rdzv_callbacks = {
    .on_world = on_world,
    .on_change = on_change,
    .on_stop = on_stop,
    .on_spare = on_spare,
    .on_spare_released = on_spare_released,
    .engine = tell_engine,
    .on_failed = on_rdzv_failed,
};

static int plan_binding(struct agent *a) {
    if (a->config->numa == LAUNCH_NUMA_NONE) {
        return MUSTER_OK;
    }
    a->cpu_sets = calloc(a->config->nproc, sizeof *a->cpu_sets);
    if (a->cpu_sets == NULL) {
        return status_fail(MUSTER_ENOMEM, "no memory for the CPU sets of %u workers", a->config->nproc);
    }
    return numa_plan(a->config->numa, a->config->nproc, a->cpu_sets);
}

/* A job that does without it is worth more than none. */
static void create_held(struct agent *a) {
    if (held_create(&a->loop, a->held_names_max, &a->held) != MUSTER_OK) {
        log_warning("memory of the workers cannot be held for when they are started again: %s", muster_detail());
    }
}

static int create_parts(struct agent *a) {
    /* Signals before the guardian: what is ignored when it is forked stays ignored in the workers, and what the agent
     * handles is not. The guardian before the rest: it is a fork of this process, and the smaller that still is the
     * better. */
    agent_signals_watch(a);
    int rc = agent_preempt_prepare(a);
    rc = rc == MUSTER_OK ? agent_guardian_create(a) : rc;
    rc = rc == MUSTER_OK ? agent_preempt_watch(a) : rc;
    descriptors_raise(); /* not the guardian's, whose limit is the workers' */
    if (rc == MUSTER_OK) {
        rc = plan_binding(a);
    }
    if (rc == MUSTER_OK) {
        rc = logs_create(&a->loop, a->config, &a->logs);
    }
    if (rc == MUSTER_OK) {
        rc = agent_timers_create(a);
    }
    if (rc == MUSTER_OK) {
        agent_stuck_create(a);
        create_held(a);
        agent_outcome_file_keep(a);
        agent_guardian_inform(a);
        agent_preload_begin(a);
    }
    if (rc == MUSTER_OK) {
        rc = rdzv_create(&a->loop, &a->config->rdzv, &rdzv_callbacks, a, &a->rdzv);
    }
    if (a->config->secret) { /* the rendezvous has its own */
        explicit_bzero(a->config->secret, sizeof *a->config->secret);
    }
    return rc;
}

/* Told before anything is begun: libuv aborts without descriptors, and a store that cannot accept only looks slow. */
static int check_descriptors(const struct launch_config *config, size_t *out_left) {
    size_t needed = OWN_DESCRIPTORS + logs_descriptor_count(config), limit = descriptors_limit();
    needed += config->mpi != LAUNCH_MPI_NONE ? config->nproc : 0; /* sockets, until their workers have started */
    if (needed <= limit) {
        *out_left = limit - needed;
        return MUSTER_OK;
    }
    return status_fail(MUSTER_ELIMIT,
                       "%u worker%s about %zu open files in the launcher, and %zu are allowed; raise the limit "
                       "(ulimit -Hn), start fewer workers with --nproc-per-node, or have fewer streams pass through "
                       "the launcher (--tee, --merge-logs, --stderr-tail=0)",
                       config->nproc, config->nproc == 1 ? " needs" : "s need", needed, limit);
}

/* Other nodes may have stopped their workers already and wait for this one, for their join time-out at most. */
static int64_t backoff_max_ms(const struct launch_config *config) {
    uint64_t bearable_ms = config->rdzv.conf.join_timeout_ms / 2;
    bool alone = config->rdzv.max_nodes == 1;
    return (int64_t)(alone || config->restart_backoff_ms < bearable_ms ? config->restart_backoff_ms : bearable_ms);
}

static int agent_init(struct agent *a, const struct launch_config *config, agent_print_fn *print) {
    *a = (struct agent){.config = config, .print = print, .exit_code = 1, .started_wall_us = clock_realtime_us()};
    int rc = agent_outcome_file_prepare(a);
    size_t left = 0;
    rc = rc == MUSTER_OK ? check_descriptors(config, &left) : rc;
    if (rc != MUSTER_OK) {
        return rc;
    }
    a->held_names_max = left / HELD_SHARE;
    rc = event_loop_init(&a->loop);
    if (rc != MUSTER_OK) {
        return rc;
    }
    a->loop_ready = true;
    (void)uv_timer_init(&a->loop, &a->timer);
    a->timer.data = a;
    loop_clock_start(&a->clock, &a->loop);
    (void)uv_timer_init(&a->loop, &a->waiting_timer);
    a->waiting_timer.data = a;
    (void)uv_timer_init(&a->loop, &a->stuck_timer);
    (void)uv_timer_init(&a->loop, &a->preload_timer);
    a->preload_timer.data = a;
    (void)uv_timer_init(&a->loop, &a->cause_timer);
    a->cause_timer.data = a;
    rc = agent_dispatch_init(&a->dispatch, &a->machine, (size_t)config->nproc + SPARE_EVENTS, &dispatch_callbacks, a);
    if (rc != MUSTER_OK) {
        return rc;
    }
    a->workers = calloc(config->nproc, sizeof *a->workers);
    if (a->workers == NULL) {
        return status_fail(MUSTER_ENOMEM, "no memory for an agent of %u workers", config->nproc);
    }
    agent_machine_init(&a->machine, config->nproc, config->max_restarts, (int64_t)config->shutdown_timeout_ms,
                       config->survivors_continue);
    agent_machine_set_backoff(&a->machine, backoff_max_ms(config));
    agent_machine_set_preempt_term_now(&a->machine, config->preempt_term_now);
    return create_parts(a);
}

static void loop_done(struct agent *a) {
    agent_mpi_lost(a);
    agent_lost_forget(a);
    rdzv_free(a->rdzv);
    watchdog_close(a->watchdog);
    held_close(a->held);
    logs_close(a->logs);
    guardian_close(a->guardian);
    agent_preempt_close(a);
    for (size_t i = 0; i < a->signal_count; i++) {
        uv_close((uv_handle_t *)&a->signals[i], NULL);
    }
    loop_clock_close(&a->clock, NULL);
    uv_close((uv_handle_t *)&a->timer, NULL);
    uv_close((uv_handle_t *)&a->waiting_timer, NULL);
    uv_close((uv_handle_t *)&a->stuck_timer, NULL);
    uv_close((uv_handle_t *)&a->cause_timer, NULL);
    uv_close((uv_handle_t *)&a->preload_timer, NULL);
    (void)uv_run(&a->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&a->loop);
}

/* Also for a half-built agent. */
static void agent_done(struct agent *a) {
    if (a->loop_ready) {
        loop_done(a);
    }
    agent_dispatch_done(&a->dispatch);
    free(a->workers);
    free(a->cpu_sets);
}

int agent_run(const struct launch_config *config, agent_print_fn *print) {
    struct agent a;
    int rc = agent_init(&a, config, print);
    if (rc != MUSTER_OK) {
        log_error("%s", muster_detail());
        (void)str_copy(a.end_message, sizeof a.end_message, muster_detail());
        a.exit_code = 1;
    } else {
        agent_dispatch_start(&a.dispatch);
        if (!a.dispatch.is_stopped) {
            (void)uv_run(&a.loop, UV_RUN_DEFAULT);
        }
    }
    agent_outcome_file_write(&a);
    int exit_code = a.exit_code;
    int exit_signal = a.exit_signal;
    agent_done(&a);
    if (exit_signal != 0) {
        (void)signal(exit_signal, SIG_DFL);
        (void)raise(exit_signal);
    }
    return exit_code;
}
