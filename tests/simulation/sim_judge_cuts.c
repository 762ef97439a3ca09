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

static void check_rank(const struct sim_judge *judge, const struct sim_agent *agent, uint32_t rank) {
    for (size_t i = 0; i < judge->agent_count; i++) {
        const struct sim_agent *other = &judge->players[i];
        if (other == agent || !runs_rank(other, rank) || was_away(judge, other->host)) {
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

void sim_judge_bad_end(struct sim_judge *judge) {
    if (costs_nothing(judge)) {
        sim_violated("a cut shorter than hold has ended an agent badly");
    }
}
