/* The life of a simulated job; see sim_world.h. Troubles are drawn and made in sim_world_trouble.c. */
#include "sim_world.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/str.h"
#include "sim_memory.h"
#include "sim_world_impl.h"

enum {
    ENDPOINTS_MAX = 3,
    END_AFTER_CALM_S = 1500,
    HURRY_MS = 2000,
    WATCHED_S = 120, /* in which heartbeats show whether they get through */
    NODES_DRAWN_MAX = 6,
    SLOW_US = 1000,
    WINDOW_OF_SLOW_BYTES = 16384
};

/* What each backend keeps to so far (docs/simulation.md). Muster's with one endpoint and with several. */
enum judged { JUDGED_C10D, JUDGED_STATIC, JUDGED_MUSTER, JUDGED_MUSTER_LIST, JUDGED_COUNT };

static const struct sim_judge_promises promises[JUDGED_COUNT] = {
    [JUDGED_C10D] = {.one_of_a_rank = false, .ends = false, .cuts = false, .resets = false},
    [JUDGED_STATIC] = {.one_of_a_rank = false, .ends = false, .cuts = true, .resets = true},
    [JUDGED_MUSTER] = {.one_of_a_rank = true, .ends = true, .cuts = true, .resets = true},
    [JUDGED_MUSTER_LIST] = {.one_of_a_rank = true, .ends = true, .cuts = false, .resets = false},
};

static struct sim_judge_promises promises_of(const struct sim_world *world) {
    enum judged judged = world->options.backend == RDZV_BACKEND_C10D     ? JUDGED_C10D
                         : world->options.backend == RDZV_BACKEND_STATIC ? JUDGED_STATIC
                         : world->endpoint_count > 1                     ? JUDGED_MUSTER_LIST
                                                                         : JUDGED_MUSTER;
    const struct sim_judge_promises all = {.one_of_a_rank = true, .ends = true, .cuts = true, .resets = true};
    return world->options.is_strict ? all : promises[judged];
}

/* ---- options ---- */

static const char *const role_names[SIM_JUDGE_ROLE_COUNT] = {"trainer", "reader"};

static void draw_network(struct sim_world *world, struct sim_network *out) {
    static const int64_t delays_us[] = {50, 200, 1000, 5000, 30000};
    static const size_t windows[] = {512, 4096, 65536, 262144};
    struct sim_random *random = &world->random;
    *out = (struct sim_network){.delay_us = 50, .window_bytes = 262144};
    if (world->is_calm) {
        out->delay_us = world->options.delay_us > 0 ? world->options.delay_us : out->delay_us;
        return;
    }
    out->delay_us = delays_us[sim_random_below(random, 5)];
    out->jitter_us = sim_random_between(random, 0, 4 * out->delay_us);
    out->late_one_in = sim_random_one_in(random, 2) ? 0 : (uint32_t)sim_random_between(random, 20, 500);
    out->splits = !sim_random_one_in(random, 4);
    out->ghost_one_in = sim_random_one_in(random, 4) ? 8 : 0;
    out->window_bytes = windows[sim_random_below(random, 4)];
    if (out->delay_us > SLOW_US && out->window_bytes < WINDOW_OF_SLOW_BYTES) { /* a state would take seconds */
        out->window_bytes = WINDOW_OF_SLOW_BYTES;
    }
}

static void draw_conf(struct sim_world *world, struct rdzv_conf *conf) {
    struct sim_random *random = &world->random;
    rdzv_conf_init(conf);
    if (world->is_calm) {
        conf->keep_alive_max_attempt = world->options.beats > 0 ? world->options.beats : conf->keep_alive_max_attempt;
        return;
    }
    conf->join_timeout_ms = (uint64_t)sim_random_between(random, 20, 120) * 1000;
    conf->last_call_timeout_ms = (uint64_t)sim_random_between(random, 1, 10) * 1000;
    conf->last_call_given = sim_random_one_in(random, 4);
    conf->close_timeout_ms = (uint64_t)sim_random_between(random, 5, 30) * 1000;
    conf->keep_alive_interval_ms = (uint64_t)sim_random_between(random, 1, 5) * 1000;
    conf->keep_alive_max_attempt = (uint32_t)sim_random_between(random, 2, 4);
    conf->read_timeout_ms = (uint64_t)sim_random_between(random, 10, 60) * 1000;
    if (sim_random_one_in(random, 8)) {
        conf->max_membership_changes = (uint32_t)sim_random_below(random, 4);
    }
    if (sim_random_one_in(random, 8)) {
        conf->restart_window_ms = (uint64_t)sim_random_between(random, 1, 60) * 1000;
    }
}

/* Over c10d every node writes its heartbeat into the one state, one after the other: in an interval there must be time
 * for a round trip of each. Where there is none, nodes take each other for dead for ever; that is no network for those
 * settings (docs/known-bugs.md). */
static void fit_heartbeats(struct sim_world *world, const struct sim_network *network) {
    uint64_t round_trip_us = (uint64_t)(2 * network->delay_us + network->jitter_us); /* in the mean */
    uint64_t needed_ms = world->node_count * round_trip_us / 1000;
    while (world->options.backend == RDZV_BACKEND_C10D && world->conf.keep_alive_interval_ms < needed_ms) {
        world->conf.keep_alive_interval_ms += 1000;
    }
}

static void draw_nodes(struct sim_world *world) {
    struct sim_random *random = &world->random;
    for (size_t i = 0; i < world->node_count; i++) {
        world->workers[i] = world->is_calm ? 1 : (uint32_t)sim_random_between(random, 1, SIM_WORKERS_MAX);
        world->roles[i] = world->is_calm ? 0 : (int)sim_random_below(random, SIM_JUDGE_ROLE_COUNT);
    }
}

static bool is_static(const struct sim_world *world) {
    return world->options.backend == RDZV_BACKEND_STATIC;
}

static void draw_options(struct sim_world *world) {
    struct sim_random *random = &world->random;
    bool calm = world->is_calm;
    uint32_t count = (uint32_t)world->node_count;
    world->max_nodes = calm || sim_random_one_in(random, 2) ? count : (uint32_t)sim_random_between(random, 1, count);
    world->min_nodes =
        sim_random_one_in(random, 3) ? world->max_nodes : (uint32_t)sim_random_between(random, 1, world->max_nodes);
    if (calm) {
        world->min_nodes = world->options.measure >= SIM_MEASURE_DEATH ? count - 1 : count;
    }
    world->max_restarts = calm ? 3 : (uint32_t)sim_random_below(random, 4);
    world->stop_timeout_ms = calm ? 30000 : sim_random_between(random, 0, 5) * 1000;
    world->calm_us = calm ? 0 : sim_random_between(random, 5, 60) * SIM_S;
    world->has_topology = !calm && sim_random_one_in(random, 2);
    draw_conf(world, &world->conf);
    if (is_static(world)) { /* the numbers are fixed */
        world->min_nodes = world->max_nodes = count;
    }
    if (world->options.pauses) { /* nobody can do without anybody, and all take part */
        world->min_nodes = world->max_nodes = count;
        world->conf.max_membership_changes = RDZV_UNLIMITED;
        world->max_restarts = 0;
    }
    if (world->options.cuts) {
        sim_world_draw_cut_job(world);
    }
    draw_nodes(world);
}

/* A stream of its own: what else is drawn for a seed does not depend on it. */
static void draw_endpoints(struct sim_world *world) {
    struct sim_random random = sim_random_of(world->options.seed, 'e');
    uint32_t drawn = world->is_calm || sim_random_one_in(&random, 2) ? 1 : ENDPOINTS_MAX;
    uint32_t wanted = world->options.endpoint_count ? world->options.endpoint_count : drawn;
    uint32_t first_count = (uint32_t)(world->node_count - world->cuts.late_count);
    wanted = wanted > first_count ? first_count : wanted;
    world->endpoint_count = world->options.backend == RDZV_BACKEND_MUSTER ? wanted : 1;
}

/* In a third of the jobs; the others are what they were before there were pauses. */
static int64_t draw_backoff_ms(const struct sim_world *world) {
    struct sim_random random = sim_random_of(world->options.seed, 'b');
    return sim_random_below(&random, 3) == 0 ? 2000 : 0;
}

static struct sim_agent_options options_of(const struct sim_world *world, size_t index, char topology[32]) {
    static const char *const endpoints[ENDPOINTS_MAX] = {"10.0.0.1:29400", "10.0.0.1:29400,10.0.0.2:29400",
                                                         "10.0.0.1:29400,10.0.0.2:29400,10.0.0.3:29400"};
    struct sim_agent_options options = {.rdzv = {.backend = world->options.backend,
                                                 .run_id = "sim",
                                                 .host_name = "", /* nothing is looked up */
                                                 .endpoint = endpoints[world->endpoint_count - 1],
                                                 .role = role_names[world->roles[index]],
                                                 .min_nodes = world->min_nodes,
                                                 .max_nodes = world->max_nodes,
                                                 .node_rank = is_static(world) ? world->node_ranks[index] : 0,
                                                 .local_world_size = world->workers[index],
                                                 .share_store = true,
                                                 .max_restarts = world->max_restarts,
                                                 .limits_spares = world->endpoint_count > 1,
                                                 .max_spares = (uint32_t)world->node_count - world->max_nodes,
                                                 .stop_timeout_ms = (uint64_t)world->stop_timeout_ms,
                                                 .conf = world->conf},
                                        .max_restarts = world->max_restarts,
                                        .stop_timeout_ms = world->stop_timeout_ms,
                                        .backoff_max_ms = draw_backoff_ms(world)};
    if (world->has_topology) {
        (void)str_format(topology, 32, "switch%zu", index % 2);
        (void)str_copy(options.rdzv.conf.topology, sizeof options.rdzv.conf.topology, topology);
    }
    return options;
}

/* ---- agents ---- */

static struct sim_work draw_work(void *ctx, struct sim_agent *agent) {
    struct sim_world *world = ctx;
    struct sim_random *random = &world->work[agent->host->index];
    if (world->is_calm) {
        return (struct sim_work){.run_ms = 1000000, .stop_ms = 1};
    }
    if (world->options.cuts) {
        return sim_world_cut_work(world, agent->host->index);
    }
    bool calm = sim_kernel.now_us >= world->calm_us;
    struct sim_work work = {.run_ms = calm ? sim_random_between(random, 100, HURRY_MS)
                                           : sim_random_between(random, 100, 20000),
                            .fails = !calm && sim_random_one_in(random, 8),
                            .stop_ms = sim_random_between(random, 1, 2000)};
    if (sim_random_one_in(random, 16)) {
        work.stop_ms = INT64_MAX;
    }
    work.fails = work.fails && !world->options.pauses;
    return work;
}

static double real_s(void) {
    struct timespec now;
    (void)__real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- measuring ---- */

static struct sim_world_figures figures_now(void) {
    return (struct sim_world_figures){.virtual_us = sim_kernel.now_us,
                                      .real_s = real_s(),
                                      .sends = sim_kernel.counts.sends,
                                      .bytes = sim_kernel.counts.bytes};
}

static struct sim_world_figures figures_since(const struct sim_world_figures *base) {
    struct sim_world_figures now = figures_now();
    return (struct sim_world_figures){.virtual_us = now.virtual_us - base->virtual_us,
                                      .real_s = now.real_s - base->real_s,
                                      .sends = now.sends - base->sends,
                                      .bytes = now.bytes - base->bytes};
}

static void on_measured_trouble(void *subject, uint64_t index) {
    struct sim_world *world = subject;
    world->base = figures_now();
    if (world->options.measure >= SIM_MEASURE_DEATH) {
        sim_world_end_process(world, index, false);
    } else {
        sim_agent_fail(&world->agents[index]);
    }
}

/* One of the two worlds that are measured is complete. */
static void note_world(struct sim_world *world) {
    struct sim_world_result *result = world->result;
    const struct sim_judge_round *last = &world->judge.rounds[world->judge.round_count - 1];
    if (last->told_count < last->world.group_world_size) {
        return;
    }
    if (world->judge.round_count > 1) {
        result->next = figures_since(&world->base);
        return;
    }
    result->first = figures_since(&world->base);
    if (world->options.measure != SIM_MEASURE_FIRST_WORLD) {
        bool is_watched = world->options.delay_us > 0 || world->options.beats > 0;
        int64_t after_us = (is_watched ? WATCHED_S : 1) * SIM_S;
        sim_post(sim_kernel.now_us + after_us, on_measured_trouble, world,
                 world->options.measure == SIM_MEASURE_SERVER ? 0 : world->node_count / 2);
    }
}

static bool is_measured(const struct sim_world *world) {
    bool first = world->options.measure == SIM_MEASURE_FIRST_WORLD;
    return world->is_calm && (first ? world->result->first.sends : world->result->next.sends) > 0;
}

static void on_world(void *ctx, struct sim_agent *agent, const struct rdzv_world *told) {
    struct sim_world *world = ctx;
    sim_judge_world(&world->judge, agent, told);
    if (world->is_calm) {
        note_world(world);
    }
}

static void on_start(void *ctx, struct sim_agent *agent) {
    struct sim_world *world = ctx;
    sim_judge_workers(&world->judge, agent);
}

static void on_step(void *ctx, struct sim_agent *agent, enum agent_state before, const struct agent_event *event) {
    struct sim_world *world = ctx;
    sim_judge_step(&world->judge, agent, before, event);
}

/* Its turn is over by now: its process can go. */
static void on_gone(void *subject, uint64_t index) {
    struct sim_world *world = subject;
    sim_agent_clear(&world->agents[index]);
}

static void on_report(void *ctx, struct sim_agent *agent) {
    struct sim_world *world = ctx;
    sim_judge_report(&world->judge, agent);
}

static void on_exit_of(void *ctx, struct sim_agent *agent, int code) {
    struct sim_world *world = ctx;
    sim_trace("agent %u: exits with %d (%s)", agent->host->index, code, agent_outcome_name(agent->machine.outcome));
    sim_judge_exit(&world->judge, agent, code);
    sim_post(sim_kernel.now_us, on_gone, world, agent->host->index);
}

static const struct sim_agent_callbacks callbacks = {.work = draw_work,
                                                     .on_world = on_world,
                                                     .on_start = on_start,
                                                     .on_step = on_step,
                                                     .on_report = on_report,
                                                     .on_exit = on_exit_of};

void sim_world_start(void *subject, uint64_t index) {
    struct sim_world *world = subject;
    struct sim_host *host = &sim_kernel.hosts[index];
    char topology[32];
    if (world->agents[index].runs || !host->is_up) {
        return;
    }
    struct sim_agent_options options = options_of(world, index, topology);
    sim_agent_start(&world->agents[index], host, &options, &callbacks, world);
    sim_judge_start(&world->judge, &world->agents[index]);
}

/* ---- the end of the troubles ---- */

static void on_calm(void *subject, uint64_t token) {
    struct sim_world *world = subject;
    (void)token;
    sim_trace("calm");
    for (size_t i = 0; i < world->node_count; i++) {
        struct sim_agent *agent = &world->agents[i];
        if (agent->runs) {
            sim_kernel.current = agent->host;
            sim_agent_hurry(agent, HURRY_MS);
        }
    }
}

/* ---- a whole life ---- */

static void take_rooms(struct sim_world *world) {
    world->agents = sim_memory_take(world->node_count * sizeof *world->agents);
    world->work = sim_memory_take(world->node_count * sizeof *world->work);
    world->workers = sim_memory_take(world->node_count * sizeof *world->workers);
    world->roles = sim_memory_take(world->node_count * sizeof *world->roles);
    world->node_ranks = sim_memory_take(world->node_count * sizeof *world->node_ranks);
    for (size_t i = 0; i < world->node_count; i++) {
        world->node_ranks[i] = (uint32_t)i;
        world->work[i] = sim_random_of(world->options.seed, 1000000 + i);
    }
}

static void give_rooms(struct sim_world *world) {
    sim_memory_give(world->agents);
    sim_memory_give(world->work);
    sim_memory_give(world->workers);
    sim_memory_give(world->roles);
    sim_memory_give(world->node_ranks);
}

static void set_judge(struct sim_world *world) {
    const struct rdzv_conf *conf = &world->conf;
    int64_t delay_us = sim_kernel.network.delay_us + sim_kernel.network.jitter_us;
    delay_us = sim_kernel.network.late_one_in ? 4 * delay_us + SIM_S / 5 : delay_us;
    world->judge = (struct sim_judge){
        .promises = promises_of(world),
        .server_count = world->endpoint_count,
        .is_c10d = world->options.backend == RDZV_BACKEND_C10D,
        .is_static = is_static(world),
        .has_pauses = world->options.pauses,
        .takes_places = world->cuts.late_count > 0,
        .min_nodes = world->min_nodes,
        .max_nodes = world->max_nodes,
        .max_restarts = world->max_restarts,
        .limits_changes = conf->max_membership_changes != RDZV_UNLIMITED,
        .has_window = conf->restart_window_ms > 0,
        .patience_us = (int64_t)(conf->keep_alive_interval_ms * conf->keep_alive_max_attempt) * SIM_MS,
        .stop_us = world->stop_timeout_ms * SIM_MS + 2 * SIM_S + 40 * delay_us,
        .silence_us = (int64_t)(conf->keep_alive_interval_ms * (conf->keep_alive_max_attempt + 2)) * SIM_MS,
        .notice_us = 3 * SIM_S + 40 * delay_us,
        .workers = world->workers,
        .roles = world->roles,
    };
    if (world->endpoint_count > 1) { /* where the job is served may have to be found out first */
        world->judge.silence_us *= 3;
    }
    /* Over c10d nobody hears of a failure before the node has stopped its workers and joins again, and a state that
     * cannot be watched is looked at once a second. */
    if (world->options.backend == RDZV_BACKEND_C10D) {
        world->judge.silence_us += (int64_t)conf->read_timeout_ms * SIM_MS;
        world->judge.notice_us += world->stop_timeout_ms * SIM_MS + 2 * SIM_S + 100 * delay_us;
    }
    sim_judge_begin(&world->judge, world->agents, world->node_count);
}

/* A sign of life and its answer are too slow when the next one, which goes with that answer or when it is due, is not
 * answered before an agent's patience ends, an eighth earlier than the silence that the settings allow. One of the two
 * ways takes half of that, then. */
static int64_t slow_us_of(const struct rdzv_conf *conf) {
    int64_t silence_ms = (int64_t)conf->keep_alive_interval_ms * conf->keep_alive_max_attempt;
    int64_t patience_ms = silence_ms - silence_ms / 8, interval_ms = (int64_t)conf->keep_alive_interval_ms;
    interval_ms = interval_ms < silence_ms / 2 ? interval_ms : silence_ms / 2;
    int64_t answer_ms = interval_ms < patience_ms / 2 ? patience_ms / 2 : patience_ms - interval_ms;
    return answer_ms * SIM_MS / 2;
}

/* With several endpoints a lease is not moved on by a pause: an agent has one interval for the answer afterwards. The
 * other hosts go on a moment later, and one of the two ways may take half of what is left. */
static int64_t slow_after_pause_us_of(const struct rdzv_conf *conf) {
    return ((int64_t)conf->keep_alive_interval_ms - SIM_WORLD_MOMENT_MS) * SIM_MS / 2;
}

static void begin(struct sim_world *world) {
    const struct sim_world_options *options = &world->options;
    struct sim_network network;
    world->random = sim_random_of(options->seed, 'w');
    world->node_count =
        options->node_count ? options->node_count : (size_t)sim_random_between(&world->random, 2, NODES_DRAWN_MAX);
    if (options->cuts) {
        sim_world_draw_late(world);
    }
    take_rooms(world);
    draw_options(world);
    draw_endpoints(world);
    draw_network(world, &network);
    fit_heartbeats(world, &network);
    network.slow_us = slow_us_of(&world->conf);
    if (options->pauses && world->endpoint_count > 1 && slow_after_pause_us_of(&world->conf) < network.slow_us) {
        network.slow_us = slow_after_pause_us_of(&world->conf);
    }
    sim_kernel_begin(options->seed, world->node_count, &network);
    set_judge(world);
    for (size_t i = 0; i < world->node_count - world->cuts.late_count; i++) {
        int64_t at_us = world->is_calm ? (int64_t)i : sim_random_between(&world->random, 0, 8000) * SIM_MS;
        sim_post(at_us, sim_world_start, world, i);
    }
    if (options->pauses || options->cuts) {
        options->cuts ? sim_world_draw_cuts(world) : sim_world_draw_pauses(world);
        sim_post(world->calm_us, on_calm, world, 0);
    } else if (!world->is_calm) {
        sim_world_draw_troubles(world);
        if (options->preempts) {
            sim_world_draw_preemption(world);
        }
        sim_post(world->calm_us, on_calm, world, 0);
    }
    world->base = figures_now();
}

/* Whoever still runs is ended, so that nothing is left for the next world. */
static void end(struct sim_world *world) {
    sim_kernel.buries = true;
    for (size_t i = 0; i < world->node_count; i++) {
        if (world->agents[i].runs) {
            sim_trouble_kill(world->agents[i].host);
            sim_agent_clear(&world->agents[i]);
        }
    }
    sim_kernel.buries = false;
}

void sim_world_run(const struct sim_world_options *options, struct sim_world_result *out) {
    struct sim_world world = {.options = *options, .result = out, .is_calm = options->measure != SIM_MEASURE_NOT};
    *out = (struct sim_world_result){0};
    sim_kernel.traces = options->traces;
    begin(&world);
    int64_t until_us = world.is_calm ? INT64_MAX : world.calm_us + END_AFTER_CALM_S * SIM_S;
    while (!sim_kernel.violation && !is_measured(&world) && sim_step(until_us)) {
    }
    if (!sim_kernel.violation && !world.is_calm) {
        sim_judge_end(&world.judge);
    }
    out->violation = sim_kernel.violation;
    out->end_us = sim_kernel.now_us;
    out->events = sim_kernel.counts.events;
    out->sends = sim_kernel.counts.sends;
    out->bytes = sim_kernel.counts.bytes;
    out->connections = sim_kernel.counts.connections;
    out->round_count = (unsigned)world.judge.round_count;
    out->node_count = (uint32_t)world.node_count;
    end(&world);
    sim_judge_done(&world.judge);
    sim_kernel_end();
    give_rooms(&world);
}
