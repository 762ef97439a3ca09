/* One simulated job from a seed: its nodes and options, the network, what goes wrong and when, until the last process
 * has ended. */
#ifndef SIMULATION_SIM_WORLD_H
#define SIMULATION_SIM_WORLD_H

#include "rendezvous/rdzv.h"

/* For measuring: nothing goes wrong but one thing, a second after the first world. */
enum sim_measure {
    SIM_MEASURE_NOT,
    SIM_MEASURE_FIRST_WORLD,
    SIM_MEASURE_FAILURE,
    SIM_MEASURE_DEATH,
    SIM_MEASURE_SERVER
};

struct sim_world_options {
    uint64_t seed;
    enum rdzv_backend backend;
    uint32_t node_count;     /* 0: drawn, 2 to 6 */
    uint32_t endpoint_count; /* of muster, on the first hosts; 0: drawn, 1 or 3 */
    enum sim_measure measure;
    int64_t delay_us; /* when measuring: one way of the network; 0: 50 */
    uint32_t beats;   /* when measuring: keep_alive_max_attempt; 0: as it is */
    bool preempts;    /* nodes are taken away */
    bool pauses;      /* nothing goes wrong but this: hosts get no time for a while */
    bool cuts;        /* hosts cannot reach each other for a while, and what else goes wrong then */
    bool is_strict;   /* what a backend does not keep to yet is judged as well */
    bool traces;
};

struct sim_world_result {
    const char *violation; /* NULL: none. Static */
    int64_t end_us;        /* of virtual time */
    uint64_t events, sends, bytes, connections;
    unsigned round_count;
    uint32_t node_count;
    struct sim_world_figures {
        int64_t virtual_us; /* from the first start, or from the failure, to the last rank of the world */
        double real_s;
        uint64_t sends, bytes;
    } first, next;
};

void sim_world_run(const struct sim_world_options *options, struct sim_world_result *out);

#endif
