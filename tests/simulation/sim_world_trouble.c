/* What goes wrong in a simulated job, drawn before it begins, so that both backends meet the same. All of it has passed
 * when the calm begins. */
#include "sim_world_impl.h"

enum {
    TROUBLES_A_NODE = 2,
    SERVER_SPARED_OF = 4,
    RARE_OF = 4,
    BACK_MS_MAX = 15000,
    LASTS_MS_MAX = 30000,
    KEEP_ALIVE_S = 120 /* net/socket.c */
};

/* A token: which trouble, which host, how long. */
static uint64_t token_of(enum trouble kind, uint64_t host, int64_t lasts_us) {
    return (uint64_t)kind << 56 | host << 40 | (uint64_t)lasts_us;
}

static void restart_later(struct sim_world *world, uint64_t index) {
    int64_t at_us = sim_kernel.now_us + sim_random_between(&world->work[index], 1, BACK_MS_MAX) * SIM_MS;
    if (!sim_random_one_in(&world->work[index], 4)) {
        sim_post(at_us, sim_world_start, world, index);
    }
}

static void on_power(void *subject, uint64_t index) {
    struct sim_world *world = subject;
    sim_trouble_return(&sim_kernel.hosts[index]);
    restart_later(world, index);
}

void sim_world_end_process(struct sim_world *world, uint64_t index, bool silently) {
    struct sim_agent *agent = &world->agents[index];
    struct sim_host *host = &sim_kernel.hosts[index];
    if (agent->runs && !agent->has_ended) {
        sim_judge_death(&world->judge, agent, silently);
        if (silently) {
            sim_trouble_vanish(host);
        } else {
            sim_trouble_kill(host);
        }
        sim_kernel.buries = true;
        sim_agent_clear(agent);
        sim_kernel.buries = false;
        if (!silently) {
            restart_later(world, index);
        }
    } else if (silently && !agent->runs) {
        sim_trouble_vanish(host);
    }
}

static void vanish(struct sim_world *world, uint64_t index, int64_t lasts_us) {
    if (!sim_kernel.hosts[index].is_up || (world->agents[index].runs && world->agents[index].has_ended)) {
        return;
    }
    sim_world_end_process(world, index, true);
    sim_post(sim_kernel.now_us + lasts_us, on_power, world, index);
}

static void block(struct sim_world *world, uint64_t from, uint64_t to, int64_t lasts_us) {
    sim_trouble_block(&sim_kernel.hosts[from], &sim_kernel.hosts[to], sim_kernel.now_us + lasts_us);
    sim_judge_disturbed(&world->judge, &sim_kernel.hosts[from], sim_kernel.now_us + lasts_us);
    sim_judge_disturbed(&world->judge, &sim_kernel.hosts[to], sim_kernel.now_us + lasts_us);
}

static void block_all(struct sim_world *world, enum trouble kind, uint64_t index, int64_t lasts_us) {
    for (uint64_t other = 0; other < world->node_count; other++) {
        if (other == index) {
            continue;
        }
        if (kind != TROUBLE_MUTE) {
            block(world, other, index, lasts_us);
        }
        if (kind != TROUBLE_DEAFEN) {
            block(world, index, other, lasts_us);
        }
    }
}

static void split(struct sim_world *world, uint64_t first, int64_t lasts_us) {
    for (uint64_t a = 0; a < world->node_count; a++) {
        for (uint64_t b = 0; b < world->node_count; b++) {
            if ((a < first) != (b < first)) {
                block(world, a, b, lasts_us);
            }
        }
    }
}

/* Its process gets no time until then, or until a later end that was set before. */
static void stall(struct sim_host *host, int64_t until_us) {
    if (host->stalled_until_us <= sim_kernel.now_us) {
        host->stalled_since_us = sim_kernel.now_us;
    }
    host->stalled_until_us = until_us > host->stalled_until_us ? until_us : host->stalled_until_us;
}

/* Connections on which nobody sends are found to be dead when keep-alive gives them up. */
static void forget(struct sim_world *world, uint64_t index, bool refuses) {
    const struct sim_host *host = &sim_kernel.hosts[index];
    for (uint64_t other = 0; other < world->node_count; other++) {
        if (other != index) {
            sim_trouble_forget(host, &sim_kernel.hosts[other], refuses);
        }
    }
    sim_judge_disturbed(&world->judge, host, sim_kernel.now_us + KEEP_ALIVE_S * SIM_S);
    world->judge.agents[index].was_reset = world->judge.agents[index].is_unheard = true;
}

static void end_workers(struct sim_agent *agent, enum trouble kind) {
    if (!agent->runs || agent->has_ended || agent->machine.state != AGENT_STATE_RUNNING ||
        agent->host->stalled_until_us > sim_kernel.now_us) {
        return;
    }
    if (kind == TROUBLE_FAIL) {
        sim_agent_fail(agent);
    } else {
        sim_kernel.current = agent->host;
        sim_agent_hurry(agent, 1);
    }
}

static void on_trouble(void *subject, uint64_t token) {
    struct sim_world *world = subject;
    enum trouble kind = (enum trouble)(token >> 56);
    uint64_t index = token >> 40 & 0xffff;
    int64_t lasts_us = (int64_t)(token & 0xffffffffff);
    struct sim_host *host = &sim_kernel.hosts[index];
    struct sim_agent *agent = &world->agents[index];
    sim_trace("trouble %d at host %u for %lld us", (int)kind, host->index, (long long)lasts_us);
    world->judge.had_trouble = true;
    switch (kind) {
    case TROUBLE_KILL:
        sim_world_end_process(world, index, false);
        break;
    case TROUBLE_VANISH:
        vanish(world, index, lasts_us);
        break;
    case TROUBLE_STALL:
        stall(host, sim_kernel.now_us + lasts_us);
        sim_judge_disturbed(&world->judge, host, host->stalled_until_us);
        break;
    case TROUBLE_ISOLATE:
    case TROUBLE_DEAFEN:
    case TROUBLE_MUTE:
        block_all(world, kind, index, lasts_us);
        break;
    case TROUBLE_CUT:
        block(world, index, (index + 1) % world->node_count, lasts_us);
        block(world, (index + 1) % world->node_count, index, lasts_us);
        break;
    case TROUBLE_SPLIT:
        split(world, index, lasts_us);
        break;
    case TROUBLE_RESET:
        sim_judge_reset(&world->judge, host);
        sim_trouble_reset(host, (uint64_t)lasts_us);
        break;
    case TROUBLE_CLOCK:
        host->wall_offset_us += lasts_us - LASTS_MS_MAX / 2 * SIM_MS;
        break;
    case TROUBLE_SIGNAL:
        if (agent->runs && !agent->has_ended && host->stalled_until_us <= sim_kernel.now_us) {
            sim_agent_signal(agent);
        }
        break;
    case TROUBLE_PREEMPT:
        if (agent->runs && !agent->has_ended && host->stalled_until_us <= sim_kernel.now_us) {
            sim_agent_preempt(agent, (uint64_t)(lasts_us / SIM_MS));
        }
        break;
    case TROUBLE_FORGET:
    case TROUBLE_REFUSE:
        forget(world, index, kind == TROUBLE_REFUSE);
        break;
    case TROUBLE_FAIL:
    case TROUBLE_SUCCEED:
        end_workers(agent, kind);
        break;
    }
}

void sim_world_post_trouble(struct sim_world *world, int64_t at_us, enum trouble kind, uint64_t host,
                            int64_t lasts_us) {
    sim_post(at_us, on_trouble, world, token_of(kind, host, lasts_us));
}

/* Of the host that serves the rendezvous the job depends: it is spared in most seeds. */
void sim_world_draw_troubles(struct sim_world *world) {
    struct sim_random *random = &world->random;
    uint64_t count = sim_random_below(random, world->node_count * TROUBLES_A_NODE + 1);
    bool spares_server = !sim_random_one_in(random, SERVER_SPARED_OF) && world->endpoint_count == 1;
    for (uint64_t i = 0; i < count; i++) {
        enum trouble kind = (enum trouble)sim_random_below(random, TROUBLE_KIND_COUNT);
        uint64_t host = sim_random_below(random, world->node_count);
        int64_t at_us = sim_random_between(random, 0, world->calm_us);
        int64_t lasts_us = sim_random_between(random, 1, LASTS_MS_MAX) * SIM_MS;
        if (kind >= TROUBLE_SIGNAL && !sim_random_one_in(random, RARE_OF)) { /* they end the job, or a part of it */
            continue;
        }
        bool is_short = sim_random_one_in(random, 2);
        lasts_us = is_short ? lasts_us / 20 : lasts_us;
        if (host == 0 && spares_server && kind <= TROUBLE_VANISH) {
            continue;
        }
        if (kind != TROUBLE_RESET && kind != TROUBLE_CLOCK && at_us + lasts_us > world->calm_us) {
            lasts_us = world->calm_us - at_us;
        }
        sim_post(at_us, on_trouble, world, token_of(kind, host, lasts_us));
    }
}

/* One node or two are taken away, and what can go wrong while the job stops. A stream of its own: with or without it, a
 * seed meets the same other troubles. */
void sim_world_draw_preemption(struct sim_world *world) {
    static const enum trouble kinds[] = {TROUBLE_KILL,    TROUBLE_VANISH, TROUBLE_STALL,
                                         TROUBLE_ISOLATE, TROUBLE_SPLIT,  TROUBLE_RESET};
    struct sim_random random = sim_random_of(world->options.seed, 'p');
    int64_t at_us = sim_random_between(&random, world->calm_us / 4, 3 * (world->calm_us / 4));
    int64_t grace_us = sim_random_between(&random, SIM_S, world->calm_us - at_us);
    uint64_t first = sim_random_below(&random, world->node_count),
             second = sim_random_below(&random, world->node_count);
    sim_post(at_us, on_trouble, world, token_of(TROUBLE_PREEMPT, first, grace_us));
    if (second != first && sim_random_one_in(&random, 2)) {
        int64_t later_us = at_us + (sim_random_one_in(&random, 2) ? sim_random_between(&random, 0, grace_us) : 0);
        sim_post(later_us, on_trouble, world, token_of(TROUBLE_PREEMPT, second, grace_us));
    }
    for (uint64_t count = sim_random_below(&random, 3); count > 0; count--) {
        enum trouble kind = kinds[sim_random_below(&random, sizeof kinds / sizeof *kinds)];
        uint64_t host = sim_random_one_in(&random, 2) ? first : sim_random_below(&random, world->node_count);
        int64_t when_us = at_us + sim_random_between(&random, -SIM_S, grace_us);
        int64_t lasts_us = sim_random_between(&random, 0, world->calm_us - when_us);
        if (world->endpoint_count > 1 || host > 0 || kind > TROUBLE_VANISH) {
            sim_post(when_us, on_trouble, world, token_of(kind, host, lasts_us));
        }
    }
}

/* ---- pauses alone ---- */

/* A token: which host, whether its network stands still as well, how long. */
static void on_pause(void *subject, uint64_t token) {
    struct sim_world *world = subject;
    uint64_t index = token >> 48;
    bool is_whole = (token >> 47 & 1) != 0;
    int64_t until_us = sim_kernel.now_us + (int64_t)(token & 0x7fffffffffff);
    struct sim_host *host = &sim_kernel.hosts[index];
    sim_trace("host %u is paused for %lld us", host->index, (long long)(until_us - sim_kernel.now_us));
    stall(host, until_us);
    sim_judge_disturbed(&world->judge, host, host->stalled_until_us);
    world->judge.was_paused = true;
    for (uint64_t other = 0; is_whole && other < world->node_count; other++) {
        if (other != index) {
            sim_trouble_block(host, &sim_kernel.hosts[other], until_us);
            sim_trouble_block(&sim_kernel.hosts[other], host, until_us);
        }
    }
}

static void pause_host(struct sim_world *world, uint64_t index, int64_t at_us, int64_t lasts_us, bool is_whole) {
    sim_post(at_us, on_pause, world, index << 48 | (uint64_t)is_whole << 47 | (uint64_t)lasts_us);
}

/* One agent alone. Over c10d the others cannot do without it, and wait, as long as they do not need its store. A
 * coordinator gives it up when it is silent. Members give up a coordinator an eighth earlier than that, counted from
 * when they sent what it has answered last. The next sign of life is sent an interval later, and may find the host just
 * paused; its answer comes a round trip after the pause. */
static int64_t longest_alone_ms(const struct sim_world *world) {
    const struct rdzv_conf *conf = &world->conf;
    const struct sim_network *network = &sim_kernel.network;
    int64_t interval_ms = (int64_t)conf->keep_alive_interval_ms;
    int64_t silence_ms = interval_ms * conf->keep_alive_max_attempt;
    int64_t round_trip_ms = 2 * (network->delay_us + network->jitter_us) / SIM_MS;
    int64_t coordinator_ms = silence_ms - silence_ms / 8 - interval_ms - round_trip_ms - SIM_WORLD_MOMENT_MS;
    int64_t member_ms = silence_ms - interval_ms - interval_ms / 2;
    if (world->options.backend == RDZV_BACKEND_C10D) {
        return (int64_t)conf->read_timeout_ms / 2;
    }
    return coordinator_ms < member_ms ? coordinator_ms : member_ms;
}

/* A small window stands for the kernel's buffers on both ends. What an agent says last is in those of the real kernel
 * when it exits, also while the host of the store is away: they hold more than a state and the word that it is done. */
static void widen_window(void) {
    enum { LAST_WORDS_BYTES = 16384 };
    size_t *window = &sim_kernel.network.window_bytes;
    *window = *window < LAST_WORDS_BYTES ? LAST_WORDS_BYTES : *window;
}

/* All hosts at once, for up to a minute: their agents alone, or all that is on them, as of virtual machines; they go on
 * within a moment. Or one of them. No worker is started again, and all end well. */
void sim_world_draw_pauses(struct sim_world *world) {
    enum { PAUSES_MAX = 4, PAUSE_MS_MIN = 100, PAUSE_MS_MAX = 60000, STARTED_S = 10, BETWEEN_MS = 20000 };
    struct sim_random random = sim_random_of(world->options.seed, 'a');
    bool is_one = sim_random_one_in(&random, 4);
    int64_t at_us = sim_random_between(&random, STARTED_S, 3 * STARTED_S) * SIM_S;
    uint64_t first = is_one ? sim_random_below(&random, world->node_count) : 0;
    uint64_t end = is_one ? first + 1 : world->node_count;
    int64_t longest_ms = is_one ? longest_alone_ms(world) : PAUSE_MS_MAX;
    int64_t silence_us = (int64_t)(world->conf.keep_alive_interval_ms * world->conf.keep_alive_max_attempt) * SIM_MS;
    if (is_one && first == 0 && world->options.backend == RDZV_BACKEND_C10D) {
        widen_window();
    }
    for (int64_t count = sim_random_between(&random, 1, PAUSES_MAX); count > 0; count--) {
        int64_t lasts_us = sim_random_between(&random, PAUSE_MS_MIN, longest_ms) * SIM_MS;
        bool is_whole = sim_random_one_in(&random, 2);
        for (uint64_t i = first; i < end; i++) {
            pause_host(world, i, at_us, lasts_us + sim_random_between(&random, 0, SIM_WORLD_MOMENT_MS) * SIM_MS,
                       is_whole);
        }
        at_us += lasts_us + sim_random_between(&random, 0, BETWEEN_MS) * SIM_MS + (is_one ? silence_us : 0);
    }
    world->calm_us = at_us > world->calm_us ? at_us : world->calm_us;
}
