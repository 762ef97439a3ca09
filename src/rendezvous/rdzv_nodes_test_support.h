/* Several rendezvous objects on one loop, over real sockets, and a client to look into their stores with. */
#ifndef RENDEZVOUS_RDZV_NODES_TEST_SUPPORT_H
#define RENDEZVOUS_RDZV_NODES_TEST_SUPPORT_H

#include "net/endpoint.h"
#include "rendezvous/rdzv.h"
#include "store/client/kv_client.h"

enum { NODES_MAX = 4 };

struct node {
    struct rdzv *rdzv;
    struct rdzv_world world;
    char master_addr[NET_HOST_MAX];
    int worlds;
    int changes;
    enum rdzv_change change;
    char why[1024];
    int stops;
    bool spare_released;
    int failed; /* status, 0: not */
    bool barrier_done;
    bool shut_down;
    bool rejoin; /* as an agent does on a change */
    unsigned local_id;
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t patience;
    bool out_of_patience;
    int64_t patience_ends_ns;
    struct node nodes[NODES_MAX];
    uint16_t port;
    int held; /* a socket that keeps others from the port */
    char endpoint[64];
    struct rdzv_options options;
};

bool node_in_world(const struct node *n, uint32_t size);
typedef bool nodes_predicate(const struct fixture *f);

/* Of c10d, for two nodes at a free port. */
int nodes_setup(void **state);
int nodes_teardown(void **state);
extern const struct rdzv_callbacks nodes_callbacks;
/* Node i joins, with the fixture's options as they are now. */
void nodes_start(struct fixture *f, int i);
/* Its process ends without a word. */
void nodes_vanish(struct fixture *f, int i);
void nodes_on_barrier(void *ctx);
void nodes_on_shutdown(void *ctx);

/* Fails the test after twenty seconds. */
void nodes_run_until(struct fixture *f, nodes_predicate *done);
/* out_of_patience is set then; who asks for it stops the timer. */
void nodes_be_patient(struct fixture *f);
nodes_predicate nodes_one_alone, nodes_two_together, nodes_three_together, nodes_first_failed, nodes_second_failed;
/* Nodes 0 and 1, of a world of up to max_nodes. */
void nodes_form_pair(struct fixture *f, uint32_t max_nodes);
/* Checks ranks, sizes and master of nodes first..last, which are all of one world. */
void nodes_assert_one_world(const struct fixture *f, int first, int last);

struct probe {
    struct kv_client *client;
    int64_t present; /* -1: no answer yet */
    int state;       /* 1: not heard */
};

void probe_open(struct fixture *f, struct probe *p, uint16_t port);
bool probe_has(struct fixture *f, struct probe *p, const char *key);

#endif
