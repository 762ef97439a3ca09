/* Jobs whose hosts cannot reach each other for a while (--cuts): in one half nothing else goes wrong, and each cut is
 * over before `hold`; in the other one cuts last as long as they like, hosts come in the place of those that are cut
 * off, and more goes wrong meanwhile. */
#include "sim_world_impl.h"

enum {
    LATE_MAX = 2,
    HOLD_S_MIN = 20,
    HOLD_S_SHORT_MAX = 60,
    HOLD_S_MAX = 180,
    FIRST_S_MIN = 15, /* by then the first world is there, as a rule */
    FIRST_S_MAX = 30,
    BETWEEN_MS = 40000,
    AFTERWARDS_S = 30,
    LATE_WITHIN_S = 60,
    STATIC_TIMEOUT_S_MIN = 60,
    STATIC_TIMEOUT_S_MAX = 300,
    FAST_PPM_MAX = 10000,
    RESENT_AFTER_S = 120, /* sim_tcp.c */
    MISHAPS_MAX = 4,
    SHORT_STALL_PART = 40,
    STALL_MS_MAX = 30000,
    WORK_MORE_MS = 2000,
    QUICK_MS = 20,
    FOLLOWS_OF = 3,
    FLAP_MS_MAX = 500
};

#define FOR_EVER_US (100000 * SIM_S) /* longer than any job here lasts */

static int64_t silence_us(const struct sim_world *world) {
    return (int64_t)(world->conf.keep_alive_interval_ms * world->conf.keep_alive_max_attempt) * SIM_MS;
}

/* With several endpoints the first world waits for so long for those who may have been in another one, where not all
 * come that the job can have (docs/rendezvous.md). */
static int64_t first_wait_us(const struct sim_world *world) {
    bool waits = world->endpoint_count > 1 && world->node_count > world->min_nodes;
    return waits ? 2 * silence_us(world) + world->stop_timeout_ms * SIM_MS : 0;
}

/* A silent node keeps its place for so long, where the others need it. */
static int64_t held_us(const struct sim_world *world) {
    int64_t hold_us = world->cuts.hold_ms * SIM_MS;
    return hold_us > silence_us(world) ? hold_us : silence_us(world);
}

static uint64_t all_hosts(const struct sim_world *world) {
    return (1ull << world->node_count) - 1;
}

static size_t first_count(const struct sim_world *world) {
    return world->node_count - world->cuts.late_count;
}

/* ---- the job ---- */

void sim_world_draw_late(struct sim_world *world) {
    struct sim_random random = sim_random_of(world->options.seed, 'l');
    struct sim_cuts *cuts = &world->cuts;
    cuts->are_short = sim_random_one_in(&random, 2);
    cuts->late_count = cuts->are_short ? 0 : (size_t)sim_random_below(&random, LATE_MAX + 1);
    world->node_count += cuts->late_count;
}

/* All are needed, or some go on without others, or there are spares. */
static void draw_shape(struct sim_world *world, struct sim_random *random) {
    enum { FIXED, ELASTIC, WITH_SPARES, SHAPE_COUNT };
    uint32_t count = (uint32_t)first_count(world);
    uint64_t shape = world->cuts.are_short || world->options.backend == RDZV_BACKEND_STATIC
                         ? FIXED
                         : sim_random_below(random, SHAPE_COUNT);
    world->min_nodes = world->max_nodes = count;
    if (shape == WITH_SPARES && count > 1) {
        world->max_nodes = (uint32_t)sim_random_between(random, 1, count - 1);
        world->min_nodes = world->max_nodes;
    }
    if (shape != FIXED && (shape == ELASTIC || sim_random_one_in(random, 2))) {
        world->min_nodes = (uint32_t)sim_random_between(random, 1, world->max_nodes);
    }
}

void sim_world_draw_cut_job(struct sim_world *world) {
    struct sim_random random = sim_random_of(world->options.seed, 'h');
    struct sim_cuts *cuts = &world->cuts;
    int64_t longest_s = sim_random_one_in(&random, 4) ? HOLD_S_MAX : HOLD_S_SHORT_MAX;
    cuts->hold_ms = sim_random_between(&random, HOLD_S_MIN, longest_s) * 1000;
    world->conf.hold_timeout_ms = (uint64_t)cuts->hold_ms;
    world->conf.static_timeout_ms =
        (uint64_t)sim_random_between(&random, STATIC_TIMEOUT_S_MIN, STATIC_TIMEOUT_S_MAX) * 1000;
    if (sim_random_one_in(&random, 2)) { /* else a newcomer may not wait for so long */
        world->conf.join_timeout_ms += (uint64_t)cuts->hold_ms;
    }
    world->conf.join_timeout_ms += (uint64_t)((2 * silence_us(world)) / SIM_MS + world->stop_timeout_ms);
    if (cuts->are_short) {
        world->max_restarts = 0;
        world->conf.max_membership_changes = RDZV_UNLIMITED;
    }
    draw_shape(world, &random);
    cuts->slow_ms = sim_random_one_in(&random, 2) ? QUICK_MS : WORK_MORE_MS;
}

/* They run until the calm; who comes to work afterwards has little left. */
struct sim_work sim_world_cut_work(struct sim_world *world, uint32_t index) {
    struct sim_random *random = &world->work[index];
    int64_t left_us = world->calm_us > sim_kernel.now_us ? world->calm_us - sim_kernel.now_us : 0;
    struct sim_work work = {.run_ms = left_us / SIM_MS + sim_random_between(random, 100, WORK_MORE_MS),
                            .stop_ms = sim_random_between(random, 1, world->cuts.slow_ms)};
    if (sim_random_one_in(random, 16)) {
        work.stop_ms = INT64_MAX;
    }
    return work;
}

/* ---- cuts ---- */

static bool is_one(uint64_t hosts) {
    return (hosts & (hosts - 1)) == 0;
}

static void disturbed(struct sim_world *world, uint64_t hosts, int64_t until_us) {
    for (size_t i = 0; i < world->node_count; i++) {
        if (hosts >> i & 1) {
            sim_judge_disturbed(&world->judge, &sim_kernel.hosts[i], until_us);
        }
    }
}

static void block(const struct sim_world *world, uint64_t from, uint64_t to, int64_t until_us) {
    for (size_t a = 0; a < world->node_count; a++) {
        for (size_t b = 0; b < world->node_count; b++) {
            if (a != b && (from >> a & 1) && (to >> b & 1)) {
                sim_trouble_block(&sim_kernel.hosts[a], &sim_kernel.hosts[b], until_us);
            }
        }
    }
}

static void on_cut_off(void *subject, uint64_t host) {
    struct sim_world *world = subject;
    for (size_t i = 0; i < world->node_count; i++) {
        if (host >> i & 1) {
            sim_judge_cut_off(&world->judge, &world->agents[i]);
        }
    }
}

static void on_cut(void *subject, uint64_t token) {
    struct sim_world *world = subject;
    const struct sim_cut *cut = &world->cuts.list[token];
    int64_t until_us = sim_kernel.now_us + cut->lasts_us;
    int64_t resent_us = cut->lasts_us < RESENT_AFTER_S * SIM_S ? cut->lasts_us : RESENT_AFTER_S * SIM_S;
    sim_trace("cut from hosts %llx to %llx%s for %lld us", (unsigned long long)cut->from, (unsigned long long)cut->to,
              cut->is_mutual ? " and back" : "", (long long)cut->lasts_us);
    block(world, cut->from, cut->to, until_us);
    if (cut->is_mutual) {
        block(world, cut->to, cut->from, until_us);
    }
    disturbed(world, cut->from | cut->to, until_us + (sim_kernel.network.backs_off ? resent_us : 0));
    bool is_around = is_one(cut->from) && (cut->from | cut->to) == all_hosts(world) && cut->is_mutual;
    if (is_around && cut->lasts_us > held_us(world)) {
        sim_post(sim_kernel.now_us + held_us(world), on_cut_off, world, cut->from);
    }
}

/* Some hosts, at least one; not all of them, if there are more. */
static uint64_t draw_some(struct sim_random *random, uint64_t all) {
    uint64_t some = 0;
    while (some == 0 || (some == all && !is_one(all))) {
        some = sim_random_next(random) & all;
    }
    return some;
}

static uint64_t draw_one(struct sim_random *random, size_t count) {
    return 1ull << sim_random_below(random, count);
}

/* Of hosts that come late as well. */
static void draw_way(const struct sim_world *world, struct sim_random *random, struct sim_cut *cut) {
    enum { AROUND, MUTE, DEAF, PAIR, HALVES, SOME, KIND_COUNT };
    uint64_t all = all_hosts(world), one = draw_one(random, first_count(world));
    cut->is_mutual = true;
    switch (sim_random_below(random, KIND_COUNT)) {
    case MUTE:
        cut->is_mutual = false;
        cut->from = one;
        cut->to = all & ~one;
        return;
    case DEAF:
        cut->is_mutual = false;
        cut->from = all & ~one;
        cut->to = one;
        return;
    case PAIR:
        cut->is_mutual = !sim_random_one_in(random, 2);
        cut->from = one;
        cut->to = draw_one(random, world->node_count);
        cut->to = cut->to == one ? draw_some(random, all & ~one) : cut->to;
        return;
    case HALVES:
        cut->is_mutual = !sim_random_one_in(random, 3);
        cut->from = draw_some(random, all);
        cut->to = all & ~cut->from;
        return;
    case SOME:
        cut->is_mutual = !sim_random_one_in(random, 2);
        cut->from = draw_some(random, all);
        cut->to = draw_some(random, is_one(cut->from) ? all & ~cut->from : all);
        return;
    default:
        cut->from = one;
        cut->to = all & ~one;
        return;
    }
}

/* `hold` counts from the last sign of life that was answered, and the one that is cut off ends its workers an eighth
 * earlier. Before the cut an interval may have passed, and one more until the next sign of life after it, which is
 * answered when a new connection is made. */
static int64_t longest_short_us(const struct sim_world *world) {
    const struct sim_network *network = &sim_kernel.network;
    int64_t hold_us = held_us(world);
    int64_t interval_us = (int64_t)world->conf.keep_alive_interval_ms * SIM_MS;
    int64_t left_us = hold_us - hold_us / 8 - 2 * interval_us - 2 * SIM_S;
    return left_us - 20 * (network->delay_us + network->jitter_us);
}

static int64_t draw_length_us(const struct sim_world *world, struct sim_random *random, bool is_last) {
    static const int64_t lengths_s[] = {5, 20, 36, 90};
    int64_t hold_us = world->cuts.hold_ms * SIM_MS, longest_us = longest_short_us(world);
    if (world->cuts.are_short) {
        return longest_us > SIM_S ? sim_random_between(random, SIM_S / 10, longest_us) : SIM_S;
    }
    if (is_last && sim_random_one_in(random, 4)) {
        return FOR_EVER_US;
    }
    switch (sim_random_below(random, 4)) {
    case 0:
        return sim_random_between(random, silence_us(world) / 4, 2 * silence_us(world));
    case 1:
        return sim_random_between(random, hold_us / 2, 3 * (hold_us / 2));
    default:
        return lengths_s[sim_random_below(random, sizeof lengths_s / sizeof *lengths_s)] * SIM_S;
    }
}

/* The same ways once more, so soon that little more than what was held back gets through in between. Or one direction
 * after the other, so that what was held back arrives and is not answered. */
static void follow(struct sim_random *random, struct sim_cut *cut, struct sim_cut *before) {
    int64_t end_us = before->at_us + before->lasts_us;
    bool turns = sim_random_one_in(random, 2);
    cut->at_us = turns ? sim_random_between(random, end_us - before->lasts_us / 2, end_us)
                       : end_us + sim_random_between(random, 1, FLAP_MS_MAX) * SIM_MS;
    before->is_mutual = before->is_mutual && !turns;
    cut->is_mutual = before->is_mutual;
    cut->from = turns ? before->to : before->from;
    cut->to = turns ? before->from : before->to;
}

/* Returns when the last one is over. */
static int64_t draw_list(struct sim_world *world, struct sim_random *random) {
    struct sim_cuts *cuts = &world->cuts;
    int64_t at_us = first_wait_us(world) + sim_random_between(random, FIRST_S_MIN * 1000, FIRST_S_MAX * 1000) * SIM_MS;
    int64_t end_us = at_us;
    cuts->count = (size_t)sim_random_between(random, 1, cuts->are_short ? 2 : 3);
    for (size_t i = 0; i < cuts->count; i++) {
        struct sim_cut *cut = &cuts->list[i];
        *cut = (struct sim_cut){.at_us = at_us, .lasts_us = draw_length_us(world, random, i + 1 == cuts->count)};
        if (i > 0 && !cuts->are_short && sim_random_one_in(random, FOLLOWS_OF)) {
            follow(random, cut, &cuts->list[i - 1]);
        } else {
            draw_way(world, random, cut);
        }
        sim_post(cut->at_us, on_cut, world, i);
        bool is_for_ever = cut->lasts_us == FOR_EVER_US;
        int64_t over_us =
            cut->at_us + (is_for_ever ? sim_random_between(random, SIM_S, 2 * cuts->hold_ms * SIM_MS) : cut->lasts_us);
        end_us = over_us > end_us ? over_us : end_us;
        at_us = end_us + (cuts->are_short ? cuts->hold_ms * SIM_MS : 0) +
                sim_random_between(random, 0, BETWEEN_MS) * SIM_MS;
        if (!cuts->are_short && sim_random_one_in(random, 4)) { /* two at a time */
            at_us = sim_random_between(random, cut->at_us, end_us);
        }
    }
    return end_us;
}

/* ---- what else happens ---- */

/* In the middle of a cut, as a rule. */
static int64_t draw_moment_us(const struct sim_world *world, struct sim_random *random) {
    const struct sim_cuts *cuts = &world->cuts;
    const struct sim_cut *cut = &cuts->list[sim_random_below(random, cuts->count)];
    int64_t latest_us = world->calm_us - AFTERWARDS_S * SIM_S, end_us = cut->at_us + cut->lasts_us;
    end_us = end_us < latest_us ? end_us : latest_us;
    if (sim_random_one_in(random, 4)) {
        return sim_random_between(random, cuts->list[0].at_us, latest_us);
    }
    return sim_random_between(random, cut->at_us, end_us > cut->at_us ? end_us : cut->at_us);
}

static uint64_t host_of(uint64_t hosts, struct sim_random *random, size_t count) {
    for (;;) {
        uint64_t host = sim_random_below(random, count);
        if (hosts >> host & 1) {
            return host;
        }
    }
}

/* It has the line of a node that is cut off, over static its rank; of rank 0 nobody can take the place. */
static void draw_newcomers(struct sim_world *world, struct sim_random *random) {
    const struct sim_cuts *cuts = &world->cuts;
    uint64_t first = (1ull << first_count(world)) - 1;
    for (size_t i = first_count(world); i < world->node_count; i++) {
        const struct sim_cut *cut = &cuts->list[sim_random_below(random, cuts->count)];
        uint64_t ends = (cut->from | cut->to) & first, side = (cut->from & 1) ? cut->to & first : cut->from & first;
        uint64_t likely = side & ~1ull ? side & ~1ull : ends & ~1ull;
        uint64_t place = likely ? host_of(likely, random, first_count(world)) : first_count(world) - 1;
        int64_t lasts_us = cut->lasts_us < LATE_WITHIN_S * SIM_S ? cut->lasts_us : LATE_WITHIN_S * SIM_S;
        world->node_ranks[i] = (uint32_t)place;
        world->workers[i] = world->workers[place];
        world->roles[i] = world->roles[place];
        sim_post(cut->at_us + sim_random_between(random, 0, lasts_us), sim_world_start, world, i);
    }
}

static int64_t draw_stall_us(const struct sim_world *world, struct sim_random *random, int64_t at_us) {
    int64_t longest_us =
        world->calm_us - at_us < STALL_MS_MAX * SIM_MS ? world->calm_us - at_us : STALL_MS_MAX * SIM_MS;
    bool is_short = world->cuts.are_short || sim_random_one_in(random, 2);
    return is_short ? silence_us(world) / SHORT_STALL_PART : sim_random_between(random, 1, longest_us);
}

/* Of the host that serves the rendezvous alone, the job depends: it is spared as a rule. */
static void draw_mishaps(struct sim_world *world, struct sim_random *random) {
    static const enum trouble kinds[] = {TROUBLE_KILL,    TROUBLE_VANISH, TROUBLE_STALL, TROUBLE_RESET,
                                         TROUBLE_FORGET,  TROUBLE_REFUSE, TROUBLE_FAIL,  TROUBLE_FAIL,
                                         TROUBLE_SUCCEED, TROUBLE_SIGNAL};
    bool spares_server = world->endpoint_count == 1 && !sim_random_one_in(random, 4);
    for (uint64_t count = sim_random_below(random, MISHAPS_MAX); count > 0; count--) {
        enum trouble kind = kinds[sim_random_below(random, sizeof kinds / sizeof *kinds)];
        uint64_t host = sim_random_below(random, world->node_count);
        int64_t at_us = draw_moment_us(world, random);
        int64_t lasts_us = kind == TROUBLE_STALL ? draw_stall_us(world, random, at_us)
                                                 : sim_random_between(random, 1, STALL_MS_MAX) * SIM_MS;
        if (host > 0 || !spares_server || kind > TROUBLE_VANISH) {
            sim_world_post_trouble(world, at_us, kind, host, lasts_us);
        }
    }
}

/* A node that is done early, a pause that nobody notices, connections that break. */
static void draw_trifles(struct sim_world *world, struct sim_random *random) {
    static const enum trouble breaks[] = {TROUBLE_RESET, TROUBLE_FORGET, TROUBLE_REFUSE};
    uint64_t host = sim_random_below(random, world->node_count);
    if (sim_random_one_in(random, 4)) {
        sim_world_post_trouble(world, draw_moment_us(world, random), TROUBLE_SUCCEED, host, 1);
    }
    if (sim_random_one_in(random, 4)) {
        int64_t at_us = draw_moment_us(world, random);
        sim_world_post_trouble(world, at_us, TROUBLE_STALL, host, draw_stall_us(world, random, at_us));
    }
    if (sim_random_one_in(random, 4)) {
        world->judge.has_short_cuts = false;
        sim_world_post_trouble(world, draw_moment_us(world, random), breaks[sim_random_below(random, 3)], host,
                               sim_random_between(random, 1, STALL_MS_MAX) * SIM_MS);
    }
}

void sim_world_draw_cuts(struct sim_world *world) {
    struct sim_random random = sim_random_of(world->options.seed, 'c');
    struct sim_cuts *cuts = &world->cuts;
    sim_kernel.network.backs_off = !sim_random_one_in(&random, 4);
    if (sim_random_one_in(&random, 2)) {
        for (size_t i = 0; i < world->node_count; i++) {
            sim_kernel.hosts[i].fast_ppm = sim_random_between(&random, -FAST_PPM_MAX, FAST_PPM_MAX);
        }
    }
    world->calm_us = draw_list(world, &random) + silence_us(world) + AFTERWARDS_S * SIM_S;
    world->judge.has_short_cuts = world->judge.has_short_resets = cuts->are_short;
    if (cuts->are_short) {
        draw_trifles(world, &random);
    } else {
        draw_newcomers(world, &random);
        draw_mishaps(world, &random);
    }
    sim_trace("%s cuts, hold %lld ms, silence %lld ms, %u to %u nodes, %zu come late, calm at %lld us",
              cuts->are_short ? "short" : "any", (long long)cuts->hold_ms, (long long)(silence_us(world) / SIM_MS),
              world->min_nodes, world->max_nodes, cuts->late_count, (long long)world->calm_us);
}
