/* The shell around the agent's machine, in virtual time; see sim_agent.h. */
#include "sim_agent.h"

#include <assert.h>
#include <signal.h>
#include <string.h>

#include "base/str.h"
#include "rendezvous/round/local_id.h"

enum { GONE_MS = 1, DRAINED_MS = 1 };

/* Instead of rendezvous/round/local_id.c: there, one process is one agent. */
uint32_t rdzv_next_local_id(void) {
    return sim_kernel.current->rdzv_count++;
}

static void feed(struct sim_agent *agent, enum agent_event_kind kind, int number) {
    struct agent_event event = {
        .kind = kind, .number = number, .now_ms = (int64_t)uv_now(sim_loop_uv(agent->host->loop))};
    if (!agent_dispatch_feed(&agent->dispatch, event)) {
        sim_violated("an agent's events pile up");
    }
}

/* ---- workers ---- */

static void on_work(uv_timer_t *timer);

static void watch_workers(struct sim_agent *agent) {
    uint64_t first_ms = UINT64_MAX, now_ms = uv_now(sim_loop_uv(agent->host->loop));
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        const struct sim_worker *worker = &agent->workers[i];
        first_ms = worker->runs && worker->end_ms < first_ms ? worker->end_ms : first_ms;
    }
    if (first_ms == UINT64_MAX) {
        (void)uv_timer_stop(&agent->work_timer);
    } else {
        (void)uv_timer_start(&agent->work_timer, on_work, first_ms > now_ms ? first_ms - now_ms : 0, 0);
    }
}

static void tell_cause(struct sim_agent *agent) {
    uint64_t now_ms = uv_now(sim_loop_uv(agent->host->loop));
    agent->cause.age_us = (int64_t)(now_ms - agent->cause_ms) * 1000;
    rdzv_worker_failed(agent->rdzv, &agent->cause);
}

/* As agent_cause_finish(): the last words, when its workers have ended. */
static void finish_cause(struct sim_agent *agent) {
    if (agent->has_cause) {
        agent->has_cause = false;
        agent->cause.is_told = true;
        agent->cause.is_final |= agent->machine.outcome == AGENT_OUTCOME_FAILED;
        tell_cause(agent);
    }
}

/* As agent_worker_ended(). */
static void end_worker(struct sim_agent *agent, struct sim_worker *worker) {
    bool failed = worker->is_told || worker->work.fails;
    bool is_stopped = worker->is_told || agent->machine.state == AGENT_STATE_KILLING;
    worker->runs = false;
    feed(agent, failed ? AGENT_EVENT_WORKER_FAILED : AGENT_EVENT_WORKER_SUCCEEDED, 0);
    if (failed && !is_stopped && agent->rdzv && !agent->has_cause) {
        agent->cause = (struct rdzv_cause){.rank = agent->world.base_global_rank + (uint32_t)(worker - agent->workers),
                                           .pid = 1,
                                           .wait_status = 1 << 8,
                                           .is_final = agent->machine.outcome == AGENT_OUTCOME_FAILED,
                                           .how = "a worker has failed"};
        agent->cause_ms = uv_now(sim_loop_uv(agent->host->loop));
        agent->has_cause = true;
        tell_cause(agent);
    }
}

static void on_work(uv_timer_t *timer) {
    struct sim_agent *agent = timer->data;
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct sim_worker *worker = &agent->workers[i];
        if (worker->runs && worker->end_ms <= uv_now(timer->loop)) {
            end_worker(agent, worker);
        }
    }
    watch_workers(agent);
}

static void start_workers(struct sim_agent *agent) {
    uint64_t now_ms = uv_now(sim_loop_uv(agent->host->loop));
    agent->has_cause = false;
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct sim_work work = agent->callbacks->work(agent->ctx, agent);
        agent->workers[i] = (struct sim_worker){.work = work, .end_ms = now_ms + (uint64_t)work.run_ms, .runs = true};
    }
    watch_workers(agent);
    agent->callbacks->on_start(agent->ctx, agent);
}

bool sim_agent_runs_worker(const struct sim_agent *agent, uint32_t index) {
    const struct sim_worker *worker = &agent->workers[index];
    uint64_t now_ms = (uint64_t)(sim_monotonic_us(agent->host) / SIM_MS);
    return agent->runs && index < agent->worker_count && worker->runs && worker->end_ms > now_ms;
}

static void signal_workers(struct sim_agent *agent) {
    uint64_t now_ms = uv_now(sim_loop_uv(agent->host->loop));
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct sim_worker *worker = &agent->workers[i];
        if (worker->runs && !worker->is_told) {
            worker->is_told = true;
            worker->end_ms = worker->work.stop_ms == INT64_MAX ? UINT64_MAX : now_ms + (uint64_t)worker->work.stop_ms;
        }
    }
    watch_workers(agent);
}

/* To stop at a point on which they agree: they save what they have, and end well. */
static void ask_workers(struct sim_agent *agent) {
    uint64_t now_ms = uv_now(sim_loop_uv(agent->host->loop));
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct sim_worker *worker = &agent->workers[i];
        if (worker->runs && worker->work.stop_ms != INT64_MAX &&
            worker->end_ms > now_ms + (uint64_t)worker->work.stop_ms) {
            worker->end_ms = now_ms + (uint64_t)worker->work.stop_ms;
            worker->work.fails = false;
        }
    }
    watch_workers(agent);
}

void sim_agent_fail(struct sim_agent *agent) {
    sim_kernel.current = agent->host;
    agent->workers[0].work.fails = true;
    agent->workers[0].end_ms = 0;
    watch_workers(agent);
}

void sim_agent_hurry(struct sim_agent *agent, int64_t within_ms) {
    uint64_t last_ms = uv_now(sim_loop_uv(agent->host->loop)) + (uint64_t)within_ms;
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        struct sim_worker *worker = &agent->workers[i];
        if (worker->runs && !worker->is_told) {
            worker->work.fails = false;
            worker->end_ms = worker->end_ms < last_ms ? worker->end_ms : last_ms;
        }
    }
    watch_workers(agent);
}

/* ---- actions ---- */

static void on_cause(void *ctx) {
    feed(ctx, AGENT_EVENT_DRAINED, 0);
}

/* As agent_cause_await(). */
static void await_cause(struct sim_agent *agent) {
    enum agent_outcome outcome = agent->machine.outcome;
    if (outcome == AGENT_OUTCOME_FAILED || outcome == AGENT_OUTCOME_RDZV_LOST) {
        finish_cause(agent);
        rdzv_await_cause(agent->rdzv, on_cause);
    } else {
        on_cause(agent);
    }
}

static void on_awaited(uv_timer_t *timer) {
    struct sim_agent *agent = timer->data;
    if (agent->awaited == AGENT_EVENT_DRAINED) {
        await_cause(agent);
    } else {
        feed(agent, agent->awaited, 0);
    }
}

static void await(struct sim_agent *agent, enum agent_event_kind kind, uint64_t ms) {
    agent->awaited = kind;
    (void)uv_timer_start(&agent->wait_timer, on_awaited, ms, 0);
}

static void kill_workers(struct sim_agent *agent) {
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        agent->workers[i].runs = false;
    }
    watch_workers(agent);
    await(agent, AGENT_EVENT_GONE, GONE_MS);
}

static void on_deadline(uv_timer_t *timer) {
    feed(timer->data, AGENT_EVENT_DEADLINE, 0);
}

static void on_barrier_done(void *ctx) {
    feed(ctx, AGENT_EVENT_BARRIER_DONE, 0);
}

static void on_closed(void *ctx) {
    feed(ctx, AGENT_EVENT_CLOSED, 0);
}

static void end(struct sim_agent *agent, int code) {
    agent->has_ended = true;
    agent_dispatch_stop(&agent->dispatch);
    agent->callbacks->on_exit(agent->ctx, agent, code);
}

static void on_step(void *ctx, enum agent_state before, const struct agent_event *event) {
    struct sim_agent *agent = ctx;
    sim_trace("agent %u: %s on %s -> %s (%s)", agent->host->index, agent_state_name(before),
              agent_event_name(event->kind), agent_state_name(agent->machine.state),
              agent_outcome_name(agent->machine.outcome));
    agent->callbacks->on_step(agent->ctx, agent, before, event);
}

static void perform(void *ctx, const struct agent_action *action) {
    struct sim_agent *agent = ctx;
    switch (action->kind) {
    case AGENT_ACTION_JOIN:
        finish_cause(agent);
        rdzv_join(agent->rdzv);
        return;
    case AGENT_ACTION_START_WORKERS:
        start_workers(agent);
        return;
    case AGENT_ACTION_TELL_PREEMPTION:
        (void)rdzv_preempt(agent->rdzv, (uint64_t)action->number, "the scheduler");
        return;
    case AGENT_ACTION_REQUEST_STOP:
        ask_workers(agent);
        return;
    case AGENT_ACTION_SIGNAL_WORKERS:
        signal_workers(agent);
        return;
    case AGENT_ACTION_START_TIMER:
    case AGENT_ACTION_PAUSE:
        (void)uv_timer_start(&agent->stop_timer, on_deadline, (uint64_t)action->number, 0);
        return;
    case AGENT_ACTION_STOP_TIMER:
        (void)uv_timer_stop(&agent->stop_timer);
        return;
    case AGENT_ACTION_DISMISS:
        await(agent, AGENT_EVENT_GONE, GONE_MS);
        return;
    case AGENT_ACTION_KILL_ALL:
        kill_workers(agent);
        return;
    case AGENT_ACTION_DRAIN_LOGS:
    case AGENT_ACTION_AWAIT_CAUSE:
        await(agent, AGENT_EVENT_DRAINED, DRAINED_MS);
        return;
    case AGENT_ACTION_REPORT:
        rdzv_cause_reported(agent->rdzv);
        agent->callbacks->on_report(agent->ctx, agent);
        return;
    case AGENT_ACTION_ENTER_BARRIER:
        rdzv_exit_barrier(agent->rdzv, agent->machine.outcome == AGENT_OUTCOME_SUCCESS, on_barrier_done);
        return;
    case AGENT_ACTION_CLOSE_JOB:
    case AGENT_ACTION_LEAVE_JOB:
        rdzv_shutdown(agent->rdzv, action->kind == AGENT_ACTION_CLOSE_JOB, on_closed);
        return;
    case AGENT_ACTION_EXIT:
    case AGENT_ACTION_EXIT_BY_SIGNAL:
        end(agent, action->kind == AGENT_ACTION_EXIT ? (int)action->number : 1);
        return;
    case AGENT_ACTION_COUNT:
        break;
    }
    assert(!"no such action");
}

static const struct agent_dispatch_callbacks dispatch_callbacks = {.perform = perform, .on_step = on_step};

/* ---- what the rendezvous says ---- */

static void on_world(void *ctx, const struct rdzv_world *world) {
    struct sim_agent *agent = ctx;
    sim_trace("agent %u: round %llu, rank %u of %u", agent->host->index, (unsigned long long)world->round,
              world->group_rank, world->group_world_size);
    agent->world = *world;
    agent->world.master_addr = NULL;
    if (world->job_counts_restarts) {
        agent_machine_set_job_restarts(&agent->machine, world->restart_count, world->max_restarts);
    }
    agent->callbacks->on_world(agent->ctx, agent, world);
    feed(agent, AGENT_EVENT_WORLD, 0);
}

static void on_change(void *ctx, enum rdzv_change change, const char *why) {
    struct sim_agent *agent = ctx;
    sim_trace("agent %u: change: %s", agent->host->index, why);
    feed(agent, change == RDZV_CUT_OFF ? AGENT_EVENT_CUT_OFF : AGENT_EVENT_WORLD_CHANGED, 0);
}

static void on_stop(void *ctx, uint64_t grace_ms, const char *why) {
    struct sim_agent *agent = ctx;
    sim_trace("agent %u: the job stops: %s", agent->host->index, why);
    feed(agent, AGENT_EVENT_STOP, (int)grace_ms);
}

static void on_spare_released(void *ctx) {
    feed(ctx, AGENT_EVENT_SPARE_RELEASED, 0);
}

static void on_failed(void *ctx, int status, const char *why) {
    struct sim_agent *agent = ctx;
    sim_trace("agent %u: rendezvous failed: %s", agent->host->index, why);
    agent->failed_status = status;
    (void)str_copy(agent->failed_why, sizeof agent->failed_why, why);
    feed(agent, AGENT_EVENT_RDZV_FAILED, 0);
}

static const struct rdzv_callbacks rdzv_callbacks = {.on_world = on_world,
                                                     .on_change = on_change,
                                                     .on_stop = on_stop,
                                                     .on_spare_released = on_spare_released,
                                                     .on_failed = on_failed};

/* ---- life ---- */

void sim_agent_start(struct sim_agent *agent, struct sim_host *host, const struct sim_agent_options *options,
                     const struct sim_agent_callbacks *callbacks, void *ctx) {
    uint32_t life = agent->life + 1;
    sim_kernel.current = host;
    sim_host_boot(host);
    *agent = (struct sim_agent){.host = host,
                                .callbacks = callbacks,
                                .ctx = ctx,
                                .life = life,
                                .runs = true,
                                .worker_count = options->rdzv.local_world_size};
    sim_trace("agent %u: starts (life %u)", host->index, life);
    uv_loop_t *loop = sim_loop_uv(host->loop);
    uv_timer_t *timers[] = {&agent->stop_timer, &agent->work_timer, &agent->wait_timer};
    for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
        (void)uv_timer_init(loop, timers[i]);
        timers[i]->data = agent;
    }
    agent_machine_init(&agent->machine, agent->worker_count, options->max_restarts, options->stop_timeout_ms,
                       options->rdzv.survivors_continue);
    agent_machine_set_backoff(&agent->machine, options->backoff_max_ms);
    if (agent_dispatch_init(&agent->dispatch, &agent->machine, SIM_AGENT_EVENTS_MAX, &dispatch_callbacks, agent) != 0 ||
        rdzv_create(loop, &options->rdzv, &rdzv_callbacks, agent, &agent->rdzv) != 0) {
        sim_violated("a rendezvous cannot be made");
        return;
    }
    agent_dispatch_start(&agent->dispatch);
}

void sim_agent_signal(struct sim_agent *agent) {
    sim_kernel.current = agent->host;
    feed(agent, AGENT_EVENT_SIGNAL, SIGTERM);
}

void sim_agent_preempt(struct sim_agent *agent, uint64_t grace_ms) {
    sim_kernel.current = agent->host;
    feed(agent, AGENT_EVENT_PREEMPT, (int)grace_ms);
}

void sim_agent_clear(struct sim_agent *agent) {
    sim_kernel.current = agent->host;
    rdzv_free(agent->rdzv);
    agent_dispatch_done(&agent->dispatch);
    uv_close((uv_handle_t *)&agent->stop_timer, NULL);
    uv_close((uv_handle_t *)&agent->work_timer, NULL);
    uv_close((uv_handle_t *)&agent->wait_timer, NULL);
    sim_loop_end(agent->host->loop);
    agent->rdzv = NULL;
    agent->runs = false;
    if (agent->host->files) {
        sim_violated("a process has ended with open files");
        sim_trouble_kill(agent->host);
    }
}
