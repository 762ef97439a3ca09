/* For tests of the rendezvous machine: one on a virtual clock, and a store that is a state. */
#ifndef RENDEZVOUS_MACHINE_TEST_SUPPORT_H
#define RENDEZVOUS_MACHINE_TEST_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/torch/machine.h"

#define WALL_US INT64_C(1772600767000000) /* when a test begins */
#define SECOND_US INT64_C(1000000)

struct fixture {
    struct rdzv_machine machine;
    struct rdzv_now now;
    struct rdzv_state stored;
    struct rdzv_actions actions;
};

extern const struct rdzv_settings settings;

struct rdzv_node node(const char *addr);
void begin(struct fixture *f, const struct rdzv_settings *with);
int setup(void **state);
int teardown(void **state);
void pass_ms(struct fixture *f, int64_t ms);
/* Puts a node into the stored state with a heartbeat of `age_s` seconds ago. */
void put_aged(struct fixture *f, const char *addr, unsigned lists, int64_t age_s);
void put(struct fixture *f, const char *addr, unsigned lists);
void drop(struct fixture *f, const char *addr);
void event(struct fixture *f, enum rdzv_event e);
/* Hands the stored state to the machine. */
void sync_state(struct fixture *f);
/* The machine's write reaches the store, and its outcome the machine. */
void commit(struct fixture *f);
void assert_list(struct fixture *f, const char *addr, unsigned lists);
void assert_turn(const struct fixture *f, bool write, enum rdzv_verdict verdict);
/* A member of complete round 4 of {a, self}, joined and settled. */
void become_member(struct fixture *f);

#endif
