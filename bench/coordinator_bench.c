/* What a round costs the coordinator of the native rendezvous: coordinator_bench [NODES], 100000 if left out.
 *
 * Rows: 1/100, 1/10 and all of NODES. Columns, in milliseconds of CPU time: all join until the first world is told; one
 * fails and the others are told; all join again until the second world is told; all go. Messages are counted, not sent:
 * the network's share is not in here. Nodes join in a mixed order; their labels and addresses are of usual length. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator.h"

/* STRIDE is a prime: it visits every node once, in a mixed order (unless NODES is a multiple of it). */
enum { NODES = 100000, STRIDE = 7919 };

struct bench_node {
    struct coordinator_node hello;
    struct coordinator_member *member;
    char addr[32], topology[32];
};

struct counts {
    uint64_t worlds, changes;
};

static void on_send(void *ctx, void *session, const struct coordinator_message *message) {
    struct counts *counts = ctx;
    struct bench_node *node = session;
    if (message->kind == COORDINATOR_WORLD) {
        counts->worlds++;
        node->hello.last_round = message->world.round;
    } else if (message->kind == COORDINATOR_CHANGE) {
        counts->changes++;
    }
}

static double now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void describe(struct bench_node *node, size_t i, size_t count) {
    (void)snprintf(node->addr, sizeof node->addr, "10.%zu.%zu.%zu", i >> 16, (i >> 8) & 255, i & 255);
    (void)snprintf(node->topology, sizeof node->topology, "switch%zu/rack%zu", i / 1024, i / 32 % 32);
    node->hello = (struct coordinator_node){.run_id = kv_slice_text("bench"),
                                            .addr = kv_slice_text(node->addr),
                                            .role = kv_slice_text("default"),
                                            .topology = kv_slice_text(node->topology),
                                            .pid = 4711,
                                            .identity = {i * UINT64_C(0x9e3779b97f4a7c15), i},
                                            .min_nodes = (uint32_t)count,
                                            .max_nodes = (uint32_t)count,
                                            .local_world_size = 8,
                                            .store_port = 29500};
}

static void join_all(struct coordinator *coordinator, struct bench_node *nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct bench_node *node = &nodes[i * STRIDE % count];
        node->member = coordinator_join(coordinator, node->member, node, &node->hello, 0);
    }
}

static int measure(struct bench_node *nodes, size_t count) {
    struct counts counts = {0};
    struct coordinator *coordinator = NULL;
    struct coordinator_settings settings = {.run_id = "bench",
                                            .min_nodes = (uint32_t)count,
                                            .max_nodes = (uint32_t)count,
                                            .last_call_timeout_ms = 30000,
                                            .hash_seed = {1, 2}};
    if (coordinator_create(&settings, on_send, &counts, &coordinator) != MUSTER_OK) {
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        nodes[i] = (struct bench_node){.member = NULL};
        describe(&nodes[i], i, count);
    }
    double begin = now_ms();
    join_all(coordinator, nodes, count);
    double joined = now_ms();
    const struct coordinator_failure failure = {.why = kv_slice_text("a worker has died")};
    coordinator_failed(coordinator, nodes[0].member, &failure, 0);
    double told = now_ms();
    join_all(coordinator, nodes, count);
    double again = now_ms();
    for (size_t i = 0; i < count; i++) {
        coordinator_gone(coordinator, nodes[i].member, kv_slice_text(""), 0);
    }
    double gone = now_ms();
    coordinator_free(coordinator);
    (void)printf("%8zu %12.2f %12.2f %12.2f %12.2f\n", count, joined - begin, told - joined, again - told,
                 gone - again);
    return counts.worlds == 2 * count && counts.changes >= count - 1 ? 0 : 1;
}

int main(int argc, char **argv) {
    size_t count = argc > 1 ? strtoull(argv[1], NULL, 10) : NODES;
    if (count < 100 || count > COORDINATOR_NODES_MAX) {
        (void)fprintf(stderr, "coordinator_bench: NODES is 100 to %zu\n", COORDINATOR_NODES_MAX);
        return 2;
    }
    struct bench_node *nodes = calloc(count, sizeof *nodes);
    if (!nodes) {
        return 1;
    }
    int rc = 0;
    (void)printf("%8s %12s %12s %12s %12s\n", "nodes", "join", "failure", "join again", "go");
    for (size_t part = 100; part > 0 && rc == 0; part /= 10) {
        rc = measure(nodes, count / part);
    }
    free(nodes);
    return rc;
}
