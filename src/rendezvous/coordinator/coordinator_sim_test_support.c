/* Virtual time and the network of the coordinator's simulation; see the header. */
#include "rendezvous/coordinator/coordinator_sim_test_support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const kind_names[] = {
#define SIM_EVENT_NAME(name) #name,
    SIM_EVENT_TABLE(SIM_EVENT_NAME)
#undef SIM_EVENT_NAME
};

const char *sim_kind_name(enum sim_kind kind) {
    return kind_names[kind];
}

void sim_violated(const struct sim *sim, const char *what) {
    (void)fprintf(stderr,
                  "FAILED at step %" PRIu64 ", %" PRId64 " ms: %s\nreplay: coordinator_sim_test %" PRIu64 " 1 trace\n",
                  sim->step, sim->now_ms, what, sim->seed);
    exit(1);
}

/* splitmix64 */
uint64_t sim_draw(struct sim *sim, uint64_t below) {
    uint64_t z = (sim->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

int64_t sim_draw_ms(struct sim *sim, int64_t below) {
    return (int64_t)sim_draw(sim, (uint64_t)below);
}

/* ---- events ---- */

static bool is_before(const struct sim_event *a, const struct sim_event *b) {
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

void sim_post_at(struct sim *sim, int64_t at_ms, enum sim_kind kind, size_t index, uint64_t token,
                 const struct coordinator_message *message) {
    if (sim->event_count == SIM_EVENTS_MAX) {
        sim_violated(sim, "the event queue overflows");
    }
    struct sim_event event = {.at_ms = at_ms, .order = sim->order++, .kind = kind, .index = index, .token = token};
    if (message) {
        event.message = *message;
    }
    size_t i = sim->event_count++;
    for (; i > 0 && is_before(&event, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        sim->heap[i] = sim->heap[(i - 1) / 2];
    }
    sim->heap[i] = event;
}

bool sim_next_event(struct sim *sim, struct sim_event *out) {
    if (sim->event_count == 0) {
        return false;
    }
    *out = sim->heap[0];
    const struct sim_event last = sim->heap[--sim->event_count];
    size_t i = 0;
    for (size_t child = 1; child < sim->event_count; child = 2 * i + 1) {
        child += child + 1 < sim->event_count && is_before(&sim->heap[child + 1], &sim->heap[child]);
        if (!is_before(&sim->heap[child], &last)) {
            break;
        }
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = last;
    return true;
}

void sim_post(struct sim *sim, int64_t delay_ms, enum sim_kind kind, size_t node) {
    sim_post_at(sim, sim->now_ms + delay_ms, kind, node, sim->nodes[node].life, NULL);
}

/* ---- the network ---- */

static int64_t latency(struct sim *sim) {
    return sim_draw(sim, 20) == 0 ? sim_draw_ms(sim, (int64_t)20 * sim->delay_ms) : sim_draw_ms(sim, sim->delay_ms);
}

static int64_t arrival(struct sim *sim, int64_t *last_ms) {
    int64_t at_ms = sim->now_ms + latency(sim);
    *last_ms = at_ms > *last_ms ? at_ms : *last_ms;
    return *last_ms;
}

void sim_on_send(void *ctx, void *session, const struct coordinator_message *message) {
    struct sim *sim = ctx;
    struct sim_connection *c = session;
    size_t index = (size_t)(c - sim->connections);
    if (sim->trace) {
        (void)printf("%8" PRId64 "   connection %zu of node %zu is told %s %.*s\n", sim->now_ms, index, c->node,
                     coordinator_kind_name(message->kind), (int)message->text.len, (const char *)message->text.data);
    }
    judge_told(&sim->judge, index, message);
    sim_post_at(sim, arrival(sim, &c->to_agent_ms), SIM_TO_AGENT, index, 0, message);
}

void sim_say(struct sim *sim, struct sim_node *node, enum coordinator_kind kind) {
    struct sim_connection *c = &sim->connections[node->connection];
    struct coordinator_message message = {.kind = kind};
    message.node.last_round = node->last_round;
    message.node.charges = node->charges;
    sim_post_at(sim, arrival(sim, &c->to_host_ms), SIM_TO_HOST, node->connection, 0, &message);
}

void sim_hang_up(struct sim *sim, struct sim_node *node, bool silently) {
    struct sim_connection *c = &sim->connections[node->connection];
    if (!c->agent_has_closed) {
        c->agent_has_closed = true;
        int64_t at_ms = arrival(sim, &c->to_host_ms) + (silently ? sim_draw_ms(sim, 20000) : 0);
        sim_post_at(sim, at_ms, SIM_HOST_LOST, node->connection, 0, NULL);
    }
}

void sim_break(struct sim *sim, size_t connection) {
    struct sim_connection *c = &sim->connections[connection];
    if (!c->broken) {
        c->broken = true;
        sim_post_at(sim, sim->now_ms + sim_draw_ms(sim, 5000), SIM_HOST_LOST, connection, 0, NULL);
        sim_post_at(sim, sim->now_ms + sim_draw_ms(sim, 5000), SIM_AGENT_LOST, connection, 0, NULL);
    }
}

static void write_hello(const struct sim *sim, struct sim_connection *c) {
    (void)snprintf(c->addr, sizeof c->addr, "host%d", c->nature.host);
    (void)snprintf(c->topology, sizeof c->topology, "rack%d/", c->nature.topology);
    c->hello = (struct coordinator_node){.run_id = kv_slice_text("sim"),
                                         .addr = kv_slice_text(c->addr),
                                         .role = kv_slice_text(c->nature.role ? "reader" : "trainer"),
                                         .topology = kv_slice_text(c->topology),
                                         .pid = c->nature.pid,
                                         .identity = {c->nature.identity, 0},
                                         .min_nodes = sim->min_nodes,
                                         .max_nodes = sim->max_nodes,
                                         .local_world_size = c->nature.workers,
                                         .store_port = 1};
}

void sim_connect(struct sim *sim, size_t on) {
    struct sim_node *node = &sim->nodes[on];
    if (sim->connection_count == JUDGE_CONNECTIONS_MAX) {
        sim_violated(sim, "nodes connect without end");
    }
    node->connection = sim->connection_count++;
    struct sim_connection *c = &sim->connections[node->connection];
    *c = (struct sim_connection){.node = on, .nature = node->nature};
    write_hello(sim, c);
    node->state = SIM_WAITS;
    sim_say(sim, node, COORDINATOR_JOIN);
}
