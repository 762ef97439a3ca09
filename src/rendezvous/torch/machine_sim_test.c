/* A seeded cluster of rendezvous machines on one compare-and-set store, in virtual time: nodes start, fail, leave, are
 * killed, stop for a while; messages take their time. Whatever happens, views of a round never share a rank or have a
 * hole; and when the trouble ends, all who live end in one round of at most max_nodes, the rest as spares. If too few
 * live for a round, members of the last one stay in it as long as it lists the silent ones.
 *
 * Usage: machine_sim_test [SEED [RUNS]]; a failure prints the seed that replays it. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/torch/machine.h"

enum { NODES_MAX = 14, EVENTS_MAX = 4096, TROUBLE_MS = 90000, CALM_MS = 120000, RUNS = 300, JOIN_TIMEOUT_MS = 600000 };

enum sim_kind {
    SIM_START,
    SIM_TIMER,
    SIM_CAS,
    SIM_READ,
    SIM_REPLY,
    SIM_WATCH,
    SIM_JOIN,
    SIM_REMOVE_DEAD,
    SIM_WORKER_FAILS,
    SIM_KILL,
    SIM_LEAVE
};

struct sim_event {
    int64_t at_ms;
    uint64_t order; /* ties are broken by age */
    enum sim_kind kind;
    int node;
    uint64_t life;           /* events of an earlier life or wake-up are dropped */
    struct rdzv_state state; /* CAS: what to store. REPLY, WATCH: what is stored */
    uint64_t token;
};

struct sim_node {
    struct rdzv_machine machine;
    bool alive;
    bool silent_death; /* the store does not notice */
    uint64_t life;
    uint64_t wake;  /* number of the timer that counts */
    uint64_t token; /* version adopted last */
    uint64_t watch_from;
    bool watching;
    int64_t paused_until_ms;
    int64_t skew_us;
    int started; /* times: part of the pid */
    bool over;
};

struct sim {
    uint64_t seed;
    uint64_t random;
    int64_t now_ms;
    int64_t trouble_ms;
    uint64_t order;
    struct sim_event *queue; /* unordered: EVENTS_MAX are few */
    size_t queued;
    struct rdzv_state stored;
    uint64_t version;
    struct sim_node nodes[NODES_MAX];
    struct rdzv_settings settings;
    int changes;
};

static void fail(const struct sim *sim, const char *what) {
    (void)fprintf(stderr, "FAILED at %" PRId64 " ms: %s\nreplay: machine_sim_test %" PRIu64 " 1\n", sim->now_ms, what,
                  sim->seed);
    exit(1);
}

/* splitmix64 */
static uint64_t rnd(struct sim *sim, uint64_t below) {
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static struct rdzv_now now_of(const struct sim *sim, const struct sim_node *node) {
    return (struct rdzv_now){.monotonic_ms = sim->now_ms,
                             .real_ms = sim->now_ms,
                             .wall_us = INT64_C(1772600767000000) + sim->now_ms * 1000 + node->skew_us};
}

static void copy_state(struct rdzv_state *to, const struct rdzv_state *from) {
    rdzv_state_init(to);
    if (rdzv_state_copy(to, from) != 0) {
        abort();
    }
}

static struct sim_event *post(struct sim *sim, int64_t delay_ms, enum sim_kind kind, int node) {
    if (sim->queued == EVENTS_MAX) {
        fail(sim, "the event queue overflows");
    }
    struct sim_event *e = &sim->queue[sim->queued++];
    *e = (struct sim_event){.at_ms = sim->now_ms + delay_ms,
                            .order = sim->order++,
                            .kind = kind,
                            .node = node,
                            .life = node >= 0 ? sim->nodes[node].life : 0};
    rdzv_state_init(&e->state);
    return e;
}

static int64_t latency(struct sim *sim) {
    return (int64_t)(rnd(sim, 20) == 0 ? rnd(sim, 400) : rnd(sim, 5));
}

/* ---- what must hold ---- */

static void check_view(const struct sim *sim, const struct rdzv_machine *m) {
    size_t count = rdzv_state_count(&m->state, RDZV_PARTICIPANT);
    bool taken[NODES_MAX * 8] = {false};
    if (count < m->settings.min_nodes || count > m->settings.max_nodes) {
        fail(sim, "a world has the wrong size");
    }
    for (size_t i = 0; i < m->state.member_count; i++) {
        const struct rdzv_member *at = &m->state.members[i];
        if (!(at->lists & RDZV_PARTICIPANT)) {
            continue;
        }
        if (at->rank < 0 || at->rank >= (int64_t)count || taken[at->rank]) {
            fail(sim, "ranks are not dense and unique");
        }
        taken[at->rank] = true;
    }
}

/* Members of one round never hold one rank twice. */
static void check_against_others(const struct sim *sim, int joined) {
    const struct rdzv_machine *m = &sim->nodes[joined].machine;
    const struct rdzv_member *self = rdzv_state_find(&m->state, &m->self);
    for (int i = 0; i < NODES_MAX; i++) {
        const struct rdzv_machine *other = &sim->nodes[i].machine;
        if (i == joined || !sim->nodes[i].alive || other->phase != RDZV_PHASE_MEMBER ||
            other->joined_round != m->joined_round || other->told) {
            continue;
        }
        const struct rdzv_member *theirs = rdzv_state_find(&other->state, &other->self);
        if (theirs && self && (theirs->lists & RDZV_PARTICIPANT) && theirs->rank == self->rank) {
            fail(sim, "two nodes of a round have one rank");
        }
    }
}

/* Too few live for a world. Members of the last one then keep the place of those that died in silence: their workers
 * have not been stopped for that. Returns how many members there have to be. */
static size_t members_without_a_world(const struct sim *sim) {
    size_t living = 0;
    size_t participants = 0;
    for (size_t i = 0; i < sim->stored.member_count; i++) {
        const struct rdzv_member *at = &sim->stored.members[i];
        bool lives = false;
        for (int k = 0; k < NODES_MAX; k++) {
            lives |= sim->nodes[k].alive && rdzv_node_compare(&sim->nodes[k].machine.self, &at->node) == 0;
        }
        participants += (at->lists & RDZV_PARTICIPANT) != 0;
        living += lives && (at->lists & RDZV_PARTICIPANT);
    }
    return sim->stored.complete && participants >= sim->settings.min_nodes ? living : 0;
}

static void check_calm(const struct sim *sim) {
    size_t living = 0;
    size_t members = 0;
    size_t spares = 0;
    for (int i = 0; i < NODES_MAX; i++) {
        const struct sim_node *n = &sim->nodes[i];
        if (!n->alive) {
            continue;
        }
        const struct rdzv_machine *m = &n->machine;
        living++;
        members += m->phase == RDZV_PHASE_MEMBER && !m->told && m->joined_round == sim->stored.round &&
                   m->joined_count == rdzv_state_count(&sim->stored, RDZV_PARTICIPANT);
        spares += rdzv_state_is(&sim->stored, &m->self, RDZV_SPARE);
    }
    size_t max = sim->settings.max_nodes;
    bool is_world = living >= sim->settings.min_nodes;
    size_t expected = !is_world ? members_without_a_world(sim) : living < max ? living : max;
    if (members != expected || (is_world && members > 0 && spares != living - members)) {
        (void)fprintf(stderr, "%zu living, %zu members (expected %zu), %zu spares, round %" PRId64 " complete %d\n",
                      living, members, expected, spares, sim->stored.round, sim->stored.complete);
        fail(sim, "the living did not find together");
    }
    for (size_t i = 0; is_world && members > 0 && i < sim->stored.member_count; i++) {
        const struct rdzv_member *at = &sim->stored.members[i];
        bool found = !(at->lists & RDZV_LISTED);
        for (int k = 0; k < NODES_MAX; k++) {
            found |= sim->nodes[k].alive && rdzv_node_compare(&sim->nodes[k].machine.self, &at->node) == 0;
        }
        if (!found) {
            fail(sim, "a dead node is still listed");
        }
    }
}

/* ---- the store ---- */

static void tell_watchers(struct sim *sim) {
    for (int i = 0; i < NODES_MAX; i++) {
        struct sim_node *n = &sim->nodes[i];
        if (!n->alive || !n->watching || n->watch_from == sim->version) {
            continue;
        }
        n->watching = false;
        struct sim_event *e = post(sim, latency(sim), SIM_WATCH, i);
        copy_state(&e->state, &sim->stored);
        e->token = sim->version;
    }
}

static void store(struct sim *sim, const struct rdzv_state *state) {
    if (rdzv_state_copy(&sim->stored, state) != 0) {
        abort();
    }
    sim->version++;
    tell_watchers(sim);
}

static void reply(struct sim *sim, int node) {
    struct sim_event *e = post(sim, latency(sim), SIM_REPLY, node);
    copy_state(&e->state, &sim->stored);
    e->token = sim->version;
}

/* ---- agents ---- */

static void act(struct sim *sim, int index, const struct rdzv_actions *actions);

static void step(struct sim *sim, int index, enum rdzv_event event) {
    struct rdzv_actions actions;
    struct sim_node *n = &sim->nodes[index];
    rdzv_step(&n->machine, event, now_of(sim, n), &actions);
    act(sim, index, &actions);
}

static void adopt(struct sim *sim, int index, struct rdzv_state *state, uint64_t token) {
    struct sim_node *n = &sim->nodes[index];
    n->token = token;
    if (rdzv_machine_adopt(&n->machine, state) != 0) {
        abort();
    }
    step(sim, index, RDZV_EVENT_SYNCED);
    if (!n->watching) {
        n->watching = true;
        n->watch_from = n->token;
        tell_watchers(sim);
    }
}

static void die(struct sim *sim, int index) {
    struct sim_node *n = &sim->nodes[index];
    n->alive = false;
    n->watching = false;
    if (!n->silent_death) {
        struct sim_event *e = post(sim, latency(sim), SIM_REMOVE_DEAD, -1);
        e->node = index;
        if (rdzv_state_reserve(&e->state, 1) != 0) {
            abort();
        }
        rdzv_state_insert(&e->state, &n->machine.self)->lists = RDZV_WAITING;
    }
    n->life++;
    if (sim->now_ms < sim->trouble_ms) {
        post(sim, (int64_t)rnd(sim, 20000), SIM_START, index)->life = n->life;
    }
}

static void act(struct sim *sim, int index, const struct rdzv_actions *actions) {
    struct sim_node *n = &sim->nodes[index];
    if (actions->write) {
        struct sim_event *e = post(sim, latency(sim), SIM_CAS, index);
        copy_state(&e->state, &n->machine.state);
        e->token = n->token;
    } else if (actions->read) {
        (void)post(sim, latency(sim), SIM_READ, index);
    }
    n->wake++;
    if (actions->wake_ms != INT64_MAX) {
        int64_t delay = actions->wake_ms - sim->now_ms;
        struct sim_event *e = post(sim, delay > 0 ? delay : 0, SIM_TIMER, index);
        e->token = n->wake;
    }
    switch (actions->verdict) {
    case RDZV_VERDICT_JOINED:
        check_view(sim, &n->machine);
        check_against_others(sim, index);
        sim->changes++;
        if (sim->now_ms < sim->trouble_ms) {
            int64_t later = (int64_t)rnd(sim, 30000);
            uint64_t fate = rnd(sim, 6);
            (void)post(sim, later,
                       fate == 0   ? SIM_KILL
                       : fate == 1 ? SIM_LEAVE
                       : fate == 2 ? SIM_WORKER_FAILS
                                   : SIM_TIMER,
                       index);
        }
        break;
    case RDZV_VERDICT_NODE_LEFT:
    case RDZV_VERDICT_NODE_ARRIVED:
    case RDZV_VERDICT_CUT_OFF:
        (void)post(sim, (int64_t)rnd(sim, 300), SIM_JOIN, index); /* workers are being stopped */
        break;
    case RDZV_VERDICT_DONE:
    case RDZV_VERDICT_GIVEN_UP:
        die(sim, index);
        break;
    case RDZV_VERDICT_TAKEN:
        if (sim->settings.max_nodes > 1) {
            fail(sim, "a node is refused a place that it may wait for");
        }
        die(sim, index);
        break;
    case RDZV_VERDICT_TIMEOUT:
    case RDZV_VERDICT_CLOSED:
    case RDZV_VERDICT_SPARE_RELEASED:
        fail(sim, "nobody closed the rendezvous or ran out of time");
        break;
    case RDZV_VERDICT_NONE:
        break;
    }
}

static void start(struct sim *sim, int index) {
    struct sim_node *n = &sim->nodes[index];
    rdzv_machine_done(&n->machine);
    struct rdzv_node self = {.pid = 100 + n->started++};
    (void)snprintf(self.addr, sizeof self.addr, "node%d", index);
    rdzv_machine_init(&n->machine, &sim->settings, &self);
    n->alive = true;
    n->silent_death = rnd(sim, 3) == 0;
    n->skew_us = (int64_t)rnd(sim, 4000000) - 2000000;
    n->paused_until_ms = 0;
    step(sim, index, RDZV_EVENT_JOIN);
    (void)post(sim, latency(sim), SIM_READ, index);
}

/* ---- the loop ---- */

static void handle(struct sim *sim, struct sim_event *e) {
    struct sim_node *n = &sim->nodes[e->node];
    if (e->kind == SIM_REMOVE_DEAD) {
        struct rdzv_state next;
        copy_state(&next, &sim->stored);
        if (rdzv_state_remove_dead(&next, &e->state.members[0].node, sim->settings.min_nodes)) {
            store(sim, &next);
        }
        rdzv_state_done(&next);
        return;
    }
    if (e->life != n->life) {
        return;
    }
    switch (e->kind) {
    case SIM_START:
        start(sim, e->node);
        break;
    case SIM_CAS:
        if (e->token == sim->version) {
            store(sim, &e->state);
        }
        reply(sim, e->node);
        break;
    case SIM_READ:
        reply(sim, e->node);
        break;
    case SIM_REPLY:
        adopt(sim, e->node, &e->state, e->token);
        break;
    case SIM_WATCH:
        /* Dropped while a write is out: its reply is newer. */
        if (!n->machine.writing && e->token > n->token) {
            adopt(sim, e->node, &e->state, e->token);
        }
        if (!n->watching) {
            n->watching = true;
            n->watch_from = n->token;
            tell_watchers(sim);
        }
        break;
    case SIM_TIMER:
        if (e->token == n->wake) {
            step(sim, e->node, RDZV_EVENT_TIMER);
        } else if (e->token == 0 && rnd(sim, 3) == 0) {
            n->paused_until_ms = sim->now_ms + (int64_t)rnd(sim, 25000);
        }
        break;
    case SIM_JOIN:
        step(sim, e->node, RDZV_EVENT_JOIN);
        break;
    case SIM_WORKER_FAILS:
        if (n->machine.phase == RDZV_PHASE_MEMBER && !n->machine.told) {
            n->machine.told = RDZV_VERDICT_NODE_LEFT;
            (void)post(sim, (int64_t)rnd(sim, 100), SIM_JOIN, e->node);
        }
        break;
    case SIM_KILL:
        die(sim, e->node);
        break;
    case SIM_LEAVE:
        if (n->machine.phase == RDZV_PHASE_MEMBER && !n->machine.told) {
            step(sim, e->node, RDZV_EVENT_LEAVE);
        }
        break;
    case SIM_REMOVE_DEAD:
        break;
    }
}

/* Takes the earliest event; a stopped process gets its events when it goes on. */
static bool next_event(struct sim *sim, struct sim_event *out) {
    size_t best = sim->queued;
    for (size_t i = 0; i < sim->queued; i++) {
        struct sim_event *e = &sim->queue[i];
        bool of_agent = e->kind == SIM_REPLY || e->kind == SIM_WATCH || e->kind == SIM_TIMER || e->kind == SIM_JOIN;
        if (of_agent && e->at_ms < sim->nodes[e->node].paused_until_ms) {
            e->at_ms = sim->nodes[e->node].paused_until_ms;
        }
        if (best == sim->queued || e->at_ms < sim->queue[best].at_ms ||
            (e->at_ms == sim->queue[best].at_ms && e->order < sim->queue[best].order)) {
            best = i;
        }
    }
    if (best == sim->queued) {
        return false;
    }
    *out = sim->queue[best];
    sim->queue[best] = sim->queue[--sim->queued];
    return true;
}

static int run(uint64_t seed) {
    struct sim *sim = calloc(1, sizeof *sim);
    if (!sim || !(sim->queue = calloc(EVENTS_MAX, sizeof *sim->queue))) {
        abort();
    }
    sim->seed = sim->random = seed;
    sim->trouble_ms = TROUBLE_MS;
    rdzv_state_init(&sim->stored);
    uint32_t max = 1 + (uint32_t)rnd(sim, 8);
    sim->settings = (struct rdzv_settings){.min_nodes = 1 + (uint32_t)rnd(sim, max),
                                           .max_nodes = max,
                                           .join_timeout_ms = JOIN_TIMEOUT_MS,
                                           .last_call_timeout_ms = 5000,
                                           .last_call_given = rnd(sim, 4) == 0,
                                           .close_timeout_ms = 30000,
                                           .keep_alive_interval_ms = 5000,
                                           .expiry_ms = 15000};
    int nodes = 1 + (int)rnd(sim, NODES_MAX);
    for (int i = 0; i < nodes; i++) {
        sim->nodes[i].life = 1;
        (void)post(sim, (int64_t)rnd(sim, 10000), SIM_START, i);
    }
    struct sim_event e;
    while (next_event(sim, &e) && e.at_ms <= TROUBLE_MS + CALM_MS) {
        sim->now_ms = e.at_ms > sim->now_ms ? e.at_ms : sim->now_ms;
        handle(sim, &e);
        rdzv_state_done(&e.state);
    }
    rdzv_state_done(&e.state);
    check_calm(sim);
    for (int i = 0; i < NODES_MAX; i++) {
        rdzv_machine_done(&sim->nodes[i].machine);
    }
    for (size_t i = 0; i < sim->queued; i++) {
        rdzv_state_done(&sim->queue[i].state);
    }
    rdzv_state_done(&sim->stored);
    int changes = sim->changes;
    free(sim->queue);
    free(sim);
    return changes;
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int runs = argc > 2 ? (int)strtol(argv[2], NULL, 10) : RUNS;
    long joined = 0;
    (void)printf("seeds %" PRIu64 " to %" PRIu64 "\n", seed, seed + (uint64_t)runs - 1);
    for (int i = 0; i < runs; i++) {
        joined += run(seed + (uint64_t)i);
    }
    (void)printf("%d clusters, %ld joins, every invariant held\n", runs, joined);
    return joined > 0 ? 0 : 1;
}
