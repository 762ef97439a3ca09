/* What must hold of workers while hosts cannot reach each other; see sim_judge.h. */
#include "sim_judge.h"

enum { RESERVE_PART = 20 };

/* Its agent got no time for so long that it could not end its workers before others took their places: an eighth of the
 * silence is left for that, and for clocks of different speed. When it wakes it gives its workers the time to stop that
 * they always have. */
static bool was_away(const struct sim_judge *judge, const struct sim_host *host) {
    int64_t now_us = sim_kernel.now_us;
    int64_t end_us = host->stalled_until_us < now_us ? host->stalled_until_us : now_us;
    bool is_recent = host->stalled_until_us > now_us - judge->patience_us - judge->stop_us;
    return host->stalled_until_us > 0 && is_recent &&
           end_us - host->stalled_since_us > judge->patience_us / RESERVE_PART;
}

static bool runs_rank(const struct sim_agent *agent, uint32_t rank) {
    uint32_t first = agent->world.base_global_rank;
    return rank >= first && rank - first < agent->worker_count && sim_agent_runs_worker(agent, rank - first);
}

/* Where one host alone can serve a job, the job is over when that process has ended. What the next one serves is
 * another job, which knows nothing of workers that are cut off. */
static bool is_another_job(const struct sim_judge *judge, const struct sim_agent *one, const struct sim_agent *other) {
    int server = judge->agents[one->host->index].server, others = judge->agents[other->host->index].server;
    return judge->server_count == 1 && server != 0 && others != 0 && server != others;
}

static void check_rank(const struct sim_judge *judge, const struct sim_agent *agent, uint32_t rank) {
    for (size_t i = 0; i < judge->agent_count; i++) {
        const struct sim_agent *other = &judge->players[i];
        if (other == agent || !runs_rank(other, rank) || was_away(judge, other->host) ||
            is_another_job(judge, agent, other)) {
            continue;
        }
        sim_trace("agents %u and %u both run a worker of rank %u", agent->host->index, other->host->index, rank);
        sim_violated(other->machine.state == AGENT_STATE_RUNNING
                         ? "two workers of one rank run at the same time"
                         : "a worker is started while another one of its rank is being stopped");
    }
}

static bool costs_nothing(const struct sim_judge *judge) {
    return (judge->has_short_cuts && judge->promises.cuts) || (judge->has_short_resets && judge->promises.resets);
}

void sim_judge_workers(struct sim_judge *judge, const struct sim_agent *agent) {
    for (uint32_t i = 0; judge->promises.one_of_a_rank && i < agent->worker_count; i++) {
        check_rank(judge, agent, agent->world.base_global_rank + i);
    }
    if (agent->machine.world_count > 1 && costs_nothing(judge)) {
        sim_violated("a cut shorter than hold has cost a restart");
    }
}

/* Who serves the rendezvous is never cut off from it. Where a node is done, it may have been the one that served. */
void sim_judge_cut_off(struct sim_judge *judge, const struct sim_agent *agent) {
    bool is_working = agent->runs && !agent->has_ended && agent->machine.state == AGENT_STATE_RUNNING;
    if (!judge->promises.ends || !is_working || judge->any_done || agent->world.group_world_size < 2 ||
        (uint32_t)judge->agents[agent->host->index].server >> 16 == agent->host->index ||
        was_away(judge, agent->host)) {
        return;
    }
    for (uint32_t i = 0; i < agent->worker_count; i++) {
        if (sim_agent_runs_worker(agent, i)) {
            sim_trace("agent %u still runs its workers", agent->host->index);
            sim_violated("a node that is cut off has not ended its workers in time");
        }
    }
}

void sim_judge_bad_end(struct sim_judge *judge) {
    if (costs_nothing(judge)) {
        sim_violated("a cut shorter than hold has ended an agent badly");
    }
}
