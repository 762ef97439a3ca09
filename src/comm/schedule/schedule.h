/* Schedules: who sends which part of which buffer to whom, step by step, to carry out a collective over messages.
 * Functions of (operation, rank, size, counts, root, algorithm, in place or not) alone, so that they can be checked for
 * every size without a network. Pure.
 *
 * A step's messages come first and may all be under way at once, in any order; its local actions (copy, reduce) run
 * after them, in the order given; the next step begins when they are done. No action of a step writes what a message of
 * the same step reads or writes. Offsets and counts are elements.
 *
 * A message has the same step number on both sides. Several messages from one rank to another in one step come in the
 * same order on both sides, with equal counts. Messages of count 0 are sent, too: who takes part can be heard of, and
 * calls that do not match are noticed.
 *
 * Reductions name their operand order: each element's tree of operands is a function of (operation, algorithm, size,
 * count, root), and either one rank alone computes it and the others copy, or all compute it in the same order. So
 * every rank gets the same bits. */
#ifndef COMM_SCHEDULE_H
#define COMM_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"

/* Sources of the methods stand at their implementations. Operations that have each:
 *   flat                all (barrier excepted)
 *   binomial            reduce, broadcast, gather, scatter
 *   recursive doubling  all_reduce, all_gather
 *   recursive halving   reduce_scatter
 *   rabenseifner        all_reduce
 *   ring                all_reduce, all_gather, reduce_scatter; reduce (then gathered), broadcast (scattered before)
 *   dissemination       barrier, monitored_barrier
 *   pairwise            all_to_all
 *   bruck               all_to_all with equal counts */
#define SCHEDULE_ALGORITHM_TABLE(X)                                                                                    \
    X(SCHEDULE_FLAT, 1, "flat")                                                                                        \
    X(SCHEDULE_BINOMIAL, 2, "binomial")                                                                                \
    X(SCHEDULE_RECURSIVE_DOUBLING, 3, "recursive doubling")                                                            \
    X(SCHEDULE_RABENSEIFNER, 4, "rabenseifner")                                                                        \
    X(SCHEDULE_RING, 5, "ring")                                                                                        \
    X(SCHEDULE_DISSEMINATION, 6, "dissemination")                                                                      \
    X(SCHEDULE_PAIRWISE, 7, "pairwise")                                                                                \
    X(SCHEDULE_RECURSIVE_HALVING, 8, "recursive halving")                                                              \
    X(SCHEDULE_BRUCK, 9, "bruck")

enum schedule_algorithm {
#define SCHEDULE_ALGORITHM_ENUM(name, value, text) name = (value),
    SCHEDULE_ALGORITHM_TABLE(SCHEDULE_ALGORITHM_ENUM)
#undef SCHEDULE_ALGORITHM_ENUM
        SCHEDULE_ALGORITHM_END
};

/* "ring" and so on, "unknown algorithm". */
const char *schedule_algorithm_name(enum schedule_algorithm algorithm);

/* SCHEDULE_SEND is only read, SCHEDULE_RECEIVE may be the same memory, wholly (all_reduce, reduce, all_to_all) or in
 * the blocks that muster/collective.h names. A broadcast has one buffer: SCHEDULE_RECEIVE, on the root too. */
enum schedule_buffer { SCHEDULE_SEND, SCHEDULE_RECEIVE, SCHEDULE_SCRATCH };

enum schedule_kind {
    SCHEDULE_DO_SEND,           /* at -> peer */
    SCHEDULE_DO_RECEIVE,        /* peer -> at */
    SCHEDULE_DO_RECEIVE_REDUCE, /* at = from op incoming; incoming_first: at = incoming op from. `from` may be `at` */
    SCHEDULE_DO_COPY,           /* local: at = from */
    SCHEDULE_DO_REDUCE          /* local: at = at op from */
};

struct schedule_place {
    enum schedule_buffer buffer;
    size_t offset;
};

struct schedule_action {
    enum schedule_kind kind;
    uint32_t step; /* rising, from 0; a rank may have nothing to do in some */
    uint32_t peer; /* of messages */
    struct schedule_place at, from;
    size_t count;
    bool incoming_first;
};

/* Called for each action, in order. Return nonzero to stop (it becomes the result). */
typedef int schedule_sink(void *context, const struct schedule_action *action);

/* Has the operation this algorithm? `has_counts`: with counts per rank. */
bool schedule_is_defined(enum comm_operation operation, bool has_counts, enum schedule_algorithm algorithm);

/* Elements of scratch up to which the action reaches: a rank needs as many as the action that reaches furthest. */
size_t schedule_action_scratch(const struct schedule_action *action);

/* MUSTER_EINVAL if the operation has no such algorithm. AVERAGE is scheduled as a sum; the executor finishes it. The
 * call's buffers are not touched, only compared: is it in place? Allocates nothing. */
int schedule_generate(const struct comm_call *call, enum schedule_algorithm algorithm, uint32_t rank, uint32_t size,
                      schedule_sink *sink, void *context);

#endif
