/* A job's agents and its coordinator in one process, in virtual time: nodes come, fail, join anew, are done, leave,
 * crash half-way through anything, lose their connections. A judge that keeps its own account looks on after every
 * event; when the trouble ends, everybody who lives must come to an end.
 *
 * Usage: coordinator_sim_test [SEED [COUNT [trace]]]; a failure prints the seed and the step that replay it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_sim_test_support.h"

enum { SEEDS = 10000, TROUBLE_MS = 60000, END_MS = 1200000, LAST_CALL_MS = 3000 };

/* ---- agents ---- */

static void draw_nature(struct sim *sim, size_t index) {
    struct sim_node *node = &sim->nodes[index];
    node->nature = (struct judge_nature){.topology = sim->has_topology ? (int)(index % 3) * 9 + 1 : 0,
                                         .host = (int)index * 7,
                                         .role = (int)index % 2,
                                         .pid = (int64_t)node->life + 98,
                                         .identity = sim_draw(sim, UINT64_MAX),
                                         .workers = 1 + (uint32_t)sim_draw(sim, 4)};
}

/* Something that goes wrong, whatever the agent is doing by then. */
static void draw_trouble(struct sim *sim, size_t index) {
    static const enum sim_kind troubles[] = {SIM_LEAVE, SIM_CRASH, SIM_CRASH, SIM_BREAK, SIM_BREAK};
    if (!sim->calm && sim_draw(sim, 5) == 0) {
        sim_post(sim, sim_draw_ms(sim, 6000), troubles[sim_draw(sim, sizeof troubles / sizeof *troubles)], index);
    }
}

static void start(struct sim *sim, size_t index) {
    struct sim_node *node = &sim->nodes[index];
    node->life++;
    node->last_round = 0;
    node->charges = (struct coordinator_charges){0};
    draw_nature(sim, index);
    sim_connect(sim, index);
    draw_trouble(sim, index);
    if (sim_draw(sim, 4) == 0) {
        sim_post(sim, sim_draw_ms(sim, 4000), SIM_REPEAT, index);
    }
}

static void end_agent(struct sim *sim, size_t index, bool silently) {
    struct sim_node *node = &sim->nodes[index];
    struct coordinator_view view;
    sim_hang_up(sim, node, silently);
    node->state = SIM_ABSENT;
    node->life++;
    coordinator_look(sim->coordinator, &view);
    bool again = view.phase == COORDINATOR_OVER ? sim_draw(sim, 8) == 0 : sim->calm || sim_draw(sim, 4) > 0;
    if (again) {
        sim_post(sim, sim_draw_ms(sim, 10000), SIM_START, index);
    }
}

static void run_workers(struct sim *sim, size_t index, const struct coordinator_world *world) {
    static const enum sim_kind fates[] = {SIM_FAIL, SIM_FAIL, SIM_FAIL, SIM_REJOIN, SIM_FINISH, SIM_FINISH};
    struct sim_node *node = &sim->nodes[index];
    if (node->state != SIM_WAITS || world->round <= node->last_round) {
        sim_violated(sim, "an agent is told a world that it did not wait for");
    }
    node->state = SIM_RUNS;
    node->last_round = world->round;
    node->charges = world->charges;
    if (sim->calm) {
        sim_post(sim, sim_draw_ms(sim, 8000), SIM_FINISH, index);
    } else if (sim_draw(sim, 10) < 6) {
        sim_post(sim, sim_draw_ms(sim, 8000), fates[sim_draw(sim, sizeof fates / sizeof *fates)], index);
    }
    if (!sim->calm && sim_draw(sim, 200) == 0) {
        sim_post(sim, sim_draw_ms(sim, 4000), SIM_CLOSE, index);
    }
    draw_trouble(sim, index);
}

static void stop_workers(struct sim *sim, size_t index) {
    sim->nodes[index].state = SIM_STOPS;
    sim_post(sim, sim_draw_ms(sim, 1500), SIM_STOPPED, index);
}

static void hear_change(struct sim *sim, size_t index) {
    if (sim->nodes[index].state == SIM_RUNS) {
        stop_workers(sim, index);
    } else if (sim->nodes[index].state == SIM_IS_DONE) {
        end_agent(sim, index, false);
    }
}

static void hear(struct sim *sim, size_t index, const struct coordinator_message *message) {
    struct sim_node *node = &sim->nodes[index];
    switch (message->kind) {
    case COORDINATOR_WORLD:
        run_workers(sim, index, &message->world);
        break;
    case COORDINATOR_CHANGE:
        hear_change(sim, index);
        break;
    case COORDINATOR_ALL_DONE:
    case COORDINATOR_CLOSED:
        end_agent(sim, index, false);
        break;
    case COORDINATOR_REFUSED:
        if (message->status == MUSTER_ECONNECT) {
            sim_hang_up(sim, node, false);
            sim_post(sim, 500 + sim_draw_ms(sim, 1000), SIM_CONNECT, index);
        } else {
            end_agent(sim, index, false);
        }
        break;
    default:
        break; /* SPARE: waits */
    }
}

/* What an agent does when its own time has come. */
static void act(struct sim *sim, size_t index, enum sim_kind kind) {
    struct sim_node *node = &sim->nodes[index];
    bool runs = node->state == SIM_RUNS;
    if (kind == SIM_FAIL && runs) {
        sim_say(sim, node, COORDINATOR_FAILED);
        stop_workers(sim, index);
    } else if ((kind == SIM_REJOIN && runs) || (kind == SIM_STOPPED && node->state == SIM_STOPS) ||
               (kind == SIM_REPEAT && node->state == SIM_WAITS)) {
        node->state = SIM_WAITS;
        sim_say(sim, node, COORDINATOR_JOIN);
        if (kind != SIM_REPEAT && sim_draw(sim, 4) == 0) {
            sim_post(sim, sim_draw_ms(sim, 2000), SIM_REPEAT, index);
        }
    } else if (kind == SIM_FINISH && runs) {
        sim_say(sim, node, COORDINATOR_DONE);
        node->state = SIM_IS_DONE;
    } else if (kind == SIM_CLOSE || kind == SIM_LEAVE) {
        sim_say(sim, node, kind == SIM_CLOSE ? COORDINATOR_CLOSE : COORDINATOR_LEAVE);
        end_agent(sim, index, false);
    } else if (kind == SIM_CRASH) {
        end_agent(sim, index, sim_draw(sim, 2) == 0);
    } else if (kind == SIM_BREAK) {
        sim_break(sim, node->connection);
    } else if (kind == SIM_CONNECT) {
        sim_connect(sim, index);
    }
}

/* An agent whose connection has ended comes back over another one, as the same agent; unless it has nothing more to
 * say. */
static void lose_host(struct sim *sim, size_t index) {
    struct sim_node *node = &sim->nodes[index];
    sim->connections[node->connection].agent_has_closed = true;
    if (node->state == SIM_IS_DONE) {
        end_agent(sim, index, false);
    } else {
        node->state = SIM_STOPS;
        node->life++; /* what was to come for its workers does not */
        sim_post(sim, sim_draw_ms(sim, 1000), SIM_CONNECT, index);
        draw_trouble(sim, index);
    }
}

/* ---- the coordinator's side ---- */

static void host_joins(struct sim *sim, size_t index, const struct coordinator_node *node) {
    struct sim_connection *c = &sim->connections[index];
    c->hello.last_round = node->last_round;
    c->hello.charges = node->charges;
    judge_joins(&sim->judge, index, &c->nature, node->last_round);
    c->member = coordinator_join(sim->coordinator, c->member, c, &c->hello, sim->now_ms);
    c->host_has_lost = !c->member; /* refused: the connection ends */
}

static void host_loses(struct sim *sim, size_t index, bool has_left) {
    struct sim_connection *c = &sim->connections[index];
    c->host_has_lost = true;
    if (c->member) {
        judge_goes(&sim->judge, index, has_left);
        if (has_left) {
            coordinator_leave(sim->coordinator, c->member, kv_slice_text("so it was drawn"), sim->now_ms);
        } else {
            coordinator_gone(sim->coordinator, c->member, kv_slice_text(""), sim->now_ms);
        }
        c->member = NULL;
    }
}

static void host_hears(struct sim *sim, size_t index, const struct coordinator_message *message) {
    static const struct kv_slice why = {.data = (const uint8_t *)"so it was drawn", .len = 15};
    const struct coordinator_failure failure = {.why = why};
    struct sim_connection *c = &sim->connections[index];
    if (message->kind == COORDINATOR_JOIN) {
        host_joins(sim, index, &message->node);
        return;
    }
    if (!c->member) {
        return;
    }
    judge_says(&sim->judge, index, message->kind);
    if (message->kind == COORDINATOR_FAILED) {
        coordinator_failed(sim->coordinator, c->member, &failure, sim->now_ms);
    } else if (message->kind == COORDINATOR_DONE) {
        coordinator_done(sim->coordinator, c->member, sim->now_ms);
    } else if (message->kind == COORDINATOR_CLOSE) {
        coordinator_close(sim->coordinator, c->member, why, true);
    } else if (message->kind == COORDINATOR_LEAVE) {
        host_loses(sim, index, true);
    }
}

/* ---- the loop ---- */

static void be_calm(struct sim *sim) {
    sim->calm = true;
    for (size_t i = 0; i < sim->node_count; i++) {
        if (sim->nodes[i].state == SIM_ABSENT) {
            sim_post(sim, sim_draw_ms(sim, 10000), SIM_START, i);
        } else {
            sim_post(sim, sim_draw_ms(sim, 20000), SIM_FINISH, i);
        }
    }
}

static bool is_trouble(enum sim_kind kind) {
    return kind == SIM_LEAVE || kind == SIM_CRASH || kind == SIM_BREAK || kind == SIM_CLOSE || kind == SIM_FAIL ||
           kind == SIM_REJOIN;
}

static void handle_agent(struct sim *sim, const struct sim_event *e) {
    const struct sim_node *node = &sim->nodes[e->index];
    if (e->kind == SIM_START && node->state == SIM_ABSENT) {
        start(sim, e->index);
    } else if (e->kind != SIM_START && e->token == node->life && node->state != SIM_ABSENT &&
               !(sim->calm && is_trouble(e->kind))) {
        act(sim, e->index, e->kind);
    }
}

static void handle_connection(struct sim *sim, const struct sim_event *e) {
    struct sim_connection *c = &sim->connections[e->index];
    if (e->kind == SIM_TO_HOST && !c->broken && !c->host_has_lost) {
        host_hears(sim, e->index, &e->message);
    } else if (e->kind == SIM_HOST_LOST && !c->host_has_lost) {
        host_loses(sim, e->index, false);
    } else if (e->kind == SIM_TO_AGENT && !c->broken && !c->agent_has_closed) {
        hear(sim, c->node, &e->message);
    } else if (e->kind == SIM_AGENT_LOST && !c->agent_has_closed) {
        lose_host(sim, c->node);
    }
}

static void handle(struct sim *sim, const struct sim_event *e) {
    if (sim->trace) {
        (void)printf("%8" PRId64 " %s %zu %s\n", sim->now_ms, sim_kind_name(e->kind), e->index,
                     e->kind == SIM_TO_HOST || e->kind == SIM_TO_AGENT ? coordinator_kind_name(e->message.kind) : "");
    }
    switch (e->kind) {
    case SIM_CALM:
        be_calm(sim);
        break;
    case SIM_TICK:
        if (e->token == sim->wake_token) {
            coordinator_tick(sim->coordinator, sim->now_ms);
        }
        break;
    case SIM_TO_AGENT:
    case SIM_TO_HOST:
    case SIM_AGENT_LOST:
    case SIM_HOST_LOST:
        handle_connection(sim, e);
        break;
    default:
        handle_agent(sim, e);
        break;
    }
}

/* The judge's word on the event, and the coordinator's alarm clock. */
static void look(struct sim *sim) {
    struct coordinator_view view;
    coordinator_look(sim->coordinator, &view);
    judge_check(&sim->judge, &view, sim->now_ms);
    if (sim->judge.violation) {
        sim_violated(sim, sim->judge.violation);
    }
    int64_t wake_ms = coordinator_wake_ms(sim->coordinator);
    if (wake_ms != sim->wake_ms) {
        sim->wake_ms = wake_ms;
        sim->wake_token++;
        if (wake_ms != INT64_MAX) {
            sim_post_at(sim, wake_ms, SIM_TICK, 0, sim->wake_token, NULL);
        }
    }
}

static void check_end(struct sim *sim) {
    struct coordinator_view view;
    coordinator_look(sim->coordinator, &view);
    for (size_t i = 0; i < sim->node_count; i++) {
        if (sim->nodes[i].state != SIM_ABSENT) {
            sim_violated(sim, "somebody waits for ever");
        }
    }
    if (view.phase != COORDINATOR_OVER || view.member_count > 0) {
        sim_violated(sim, "the job does not end");
    }
}

/* Most jobs have no limits; the others, few charges. */
static struct coordinator_limits draw_limits(struct sim *sim) {
    struct coordinator_limits limits = {.window_ms = sim_draw(sim, 2) == 0 ? 0 : 1000 + sim_draw_ms(sim, 30000)};
    for (size_t i = 0; i < COORDINATOR_CHARGE_COUNT; i++) {
        limits.is_limited[i] = sim_draw(sim, 4) == 0;
        limits.allowed[i] = (uint32_t)sim_draw(sim, 6);
    }
    return limits;
}

static void begin(struct sim *sim) {
    bool big = sim_draw(sim, 16) == 0;
    sim->max_nodes = 1 + (uint32_t)sim_draw(sim, big ? 40 : 8);
    sim->min_nodes = 1 + (uint32_t)sim_draw(sim, sim->max_nodes);
    sim->node_count = sim->min_nodes + sim_draw(sim, sim->max_nodes - sim->min_nodes + (big ? 8 : 4));
    sim->delay_ms = 1 + (int)sim_draw(sim, 200);
    sim->has_topology = sim_draw(sim, 2) == 0;
    sim->wake_ms = INT64_MAX;
    struct coordinator_settings settings = {.run_id = "sim",
                                            .min_nodes = sim->min_nodes,
                                            .max_nodes = sim->max_nodes,
                                            .last_call_timeout_ms = LAST_CALL_MS,
                                            .last_call_given = sim_draw(sim, 4) == 0,
                                            .limits = draw_limits(sim),
                                            .limits_spares = sim_draw(sim, 4) == 0,
                                            .max_spares = (uint32_t)sim_draw(sim, 3)};
    sim->judge = (struct judge){.min_nodes = sim->min_nodes,
                                .max_nodes = sim->max_nodes,
                                .last_call_timeout_ms = LAST_CALL_MS,
                                .last_call_given = settings.last_call_given,
                                .limits = settings.limits,
                                .limits_spares = settings.limits_spares,
                                .max_spares = settings.max_spares,
                                .enough_since_ms = INT64_MAX};
    if (coordinator_create(&settings, sim_on_send, sim, &sim->coordinator) != MUSTER_OK) {
        abort();
    }
    for (size_t i = 0; i < sim->node_count; i++) {
        sim_post(sim, sim_draw_ms(sim, 10000), SIM_START, i);
    }
    sim_post_at(sim, TROUBLE_MS, SIM_CALM, 0, 0, NULL);
}

struct totals {
    uint64_t events, rounds, connections;
    unsigned messages_most;
};

static void run(struct sim *sim, uint64_t seed, struct totals *totals) {
    struct sim_event event;
    sim->seed = sim->random = seed;
    begin(sim);
    while (sim_next_event(sim, &event) && event.at_ms <= END_MS) {
        sim->now_ms = sim->judge.now_ms = event.at_ms;
        sim->step++;
        handle(sim, &event);
        look(sim);
    }
    check_end(sim);
    totals->events += sim->step;
    totals->rounds += sim->judge.round;
    totals->connections += sim->connection_count;
    if (sim->judge.messages_most > totals->messages_most) {
        totals->messages_most = sim->judge.messages_most;
    }
    coordinator_free(sim->coordinator);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : SEEDS;
    struct totals totals = {0};
    struct sim *sim = calloc(1, sizeof *sim);
    struct sim_event *heap = calloc(SIM_EVENTS_MAX, sizeof *heap);
    struct sim_connection *connections = calloc(JUDGE_CONNECTIONS_MAX, sizeof *connections);
    if (!sim || !heap || !connections) {
        abort();
    }
    (void)printf("seeds %" PRIu64 " to %" PRIu64 "\n", seed, seed + count - 1);
    for (uint64_t i = 0; i < count; i++) {
        *sim = (struct sim){.heap = heap, .connections = connections, .trace = argc > 3};
        run(sim, seed + i, &totals);
    }
    (void)printf("%" PRIu64 " jobs, %" PRIu64 " events, %" PRIu64 " rounds, %" PRIu64
                 " connections, at most %u messages a member and round: every invariant held\n",
                 count, totals.events, totals.rounds, totals.connections, totals.messages_most);
    free(connections);
    free(heap);
    free(sim);
    return totals.rounds > 0 ? 0 : 1;
}
