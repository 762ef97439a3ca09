/* For schedule_test.c: a simulator that carries out the schedules of all ranks of a call at once.
 *
 * Elements are symbols: an input is (rank, position), a reduction of two a node that remembers both. Equal symbols mean
 * the same operands in the same order, hence the same bits of any type. Sends end only when they are received, in
 * random order, so that what could lock up does. What is wrong fails the test that runs. */
#ifndef COMM_SCHEDULE_SIMULATOR_TEST_SUPPORT_H
#define COMM_SCHEDULE_SIMULATOR_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/schedule/schedule.h"

enum { SIMULATOR_SIZE_MAX = 64 };

typedef uint32_t symbol; /* elements of the simulated calls, MUSTER_INT32 by name */

#define SYMBOL_NOTHING UINT32_C(0x7fffffff)

/* Element `position` of the send buffer of a rank. */
symbol symbol_input(uint32_t rank, size_t position);
/* A bit for each rank whose input is in it; and the position that all those inputs have. */
uint64_t symbol_ranks(symbol s);
uint32_t symbol_position(symbol s);
/* Are the inputs in it in the order of ranks? */
bool symbol_is_ordered(symbol s);

struct rank {
    struct comm_call call;
    symbol *memory, *scratch; /* owned */
    symbol *send, *receive;   /* in memory */
    size_t send_count, receive_count, scratch_count, memory_count;
    struct schedule_action *actions; /* owned */
    size_t action_count, action_room;
    size_t next;    /* first action of the step under way */
    size_t end;     /* first of the next step */
    bool *finished; /* owned: messages of the step under way */
    size_t left;    /* of them */
    size_t sent_count, received_count;
};

struct world {
    uint32_t size;
    enum schedule_algorithm algorithm;
    struct rank ranks[SIMULATOR_SIZE_MAX];
    uint32_t step_count; /* with messages */
    const char *doing;   /* what is simulated, for messages */
};

/* The one that is simulated. */
extern struct world world;

void world_begin(uint32_t size, enum schedule_algorithm algorithm, const char *doing);
/* Scratch and actions of a rank whose call and memory are there; checks each step for races. */
void world_schedule(struct rank *rank, uint32_t number);
/* Carries out everything. */
void world_run(void);
void world_free(void);

#endif
