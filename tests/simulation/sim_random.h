/* The simulation's own random numbers (splitmix64, Steele, Lea and Flood 2014): one stream a purpose, so that what is
 * drawn for the network changes nothing in what is drawn for the job. */
#ifndef SIMULATION_SIM_RANDOM_H
#define SIMULATION_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct sim_random {
    uint64_t state;
};

static inline uint64_t sim_random_next(struct sim_random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0 to bound - 1; bound > 0. */
static inline uint64_t sim_random_below(struct sim_random *random, uint64_t bound) {
    return sim_random_next(random) % bound;
}

/* low to high, both included. */
static inline int64_t sim_random_between(struct sim_random *random, int64_t low, int64_t high) {
    return low + (int64_t)sim_random_below(random, (uint64_t)(high - low) + 1);
}

static inline bool sim_random_one_in(struct sim_random *random, uint64_t count) {
    return sim_random_below(random, count) == 0;
}

static inline struct sim_random sim_random_of(uint64_t seed, uint64_t purpose) {
    struct sim_random random = {.state = seed * 0x2545f4914f6cdd1du + purpose};
    random.state = sim_random_next(&random);
    return random;
}

#endif
