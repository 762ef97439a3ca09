/* Schedules: who sends which part of which buffer to whom, step by step, to carry out a collective over messages.
 * Functions of (operation, rank, size, counts, root, algorithm) alone, so that they can be checked for every size
 * without a network. Pure.
 *
 * A step's actions may all be under way at once; the next step begins when they are done. Offsets and counts are
 * elements. Reductions name their operand order, so that every rank gets the same bits. */
#ifndef COMM_SCHEDULE_H
#define COMM_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "comm/call.h"

/* Sources of the methods stand at their implementations. */
#define SCHEDULE_ALGORITHM_TABLE(X)                                                                                    \
    X(SCHEDULE_FLAT, 1, "flat")                                                                                        \
    X(SCHEDULE_BINOMIAL, 2, "binomial")                                                                                \
    X(SCHEDULE_RECURSIVE_DOUBLING, 3, "recursive doubling")                                                            \
    X(SCHEDULE_RABENSEIFNER, 4, "rabenseifner")                                                                        \
    X(SCHEDULE_RING, 5, "ring")                                                                                        \
    X(SCHEDULE_DISSEMINATION, 6, "dissemination")                                                                      \
    X(SCHEDULE_PAIRWISE, 7, "pairwise")

enum schedule_algorithm {
#define SCHEDULE_ALGORITHM_ENUM(name, value, text) name = (value),
    SCHEDULE_ALGORITHM_TABLE(SCHEDULE_ALGORITHM_ENUM)
#undef SCHEDULE_ALGORITHM_ENUM
};

enum schedule_buffer { SCHEDULE_SEND, SCHEDULE_RECEIVE, SCHEDULE_SCRATCH };

enum schedule_kind {
    SCHEDULE_DO_SEND,           /* `at` -> peer */
    SCHEDULE_DO_RECEIVE,        /* peer -> `at` */
    SCHEDULE_DO_RECEIVE_REDUCE, /* at = at op incoming (incoming_first: incoming op at) */
    SCHEDULE_DO_COPY,           /* from -> at, local; runs after the messages of its step */
    SCHEDULE_DO_REDUCE          /* at = at op from, local; likewise */
};

struct schedule_place {
    enum schedule_buffer buffer;
    size_t offset;
};

struct schedule_action {
    enum schedule_kind kind;
    uint32_t step; /* rising */
    uint32_t peer;
    struct schedule_place at, from;
    size_t count;
    int incoming_first;
};

/* Called for each action, in order. Return nonzero to stop (it becomes the result). */
typedef int schedule_sink(void *context, const struct schedule_action *action);

/* Elements of scratch that the schedule uses on this rank. */
size_t schedule_scratch_count(const struct comm_call *call, enum schedule_algorithm algorithm, uint32_t rank,
                              uint32_t size);

/* MUSTER_EINVAL if the operation has no such algorithm. AVERAGE is scheduled as a sum; the executor finishes it. */
int schedule_generate(const struct comm_call *call, enum schedule_algorithm algorithm, uint32_t rank, uint32_t size,
                      schedule_sink *sink, void *context);

#endif
