/* One case of `muster bench`: buffers of one operation and size, filled, called and checked through the public calls of
 * libmuster. */
#ifndef CLI_BENCH_CALL_H
#define CLI_BENCH_CALL_H

#include <muster/group.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/bench/bench_plan.h"

struct bench_case {
    struct muster_group *group; /* borrowed */
    enum bench_operation operation;
    enum muster_type type;
    enum muster_reduction reduction;
    uint32_t root;
    uint64_t count;       /* elements of a block */
    bool is_in_place;     /* where the results go: into the buffer that is sent, or into another */
    void *first, *second; /* borrowed; each of bench_bytes(operation, count) */
};

/* Puts into the buffers what is sent and, where results go, something else. */
void bench_case_fill(const struct bench_case *c);

/* Runs the operation once, blocking. */
int bench_case_call(const struct bench_case *c);

/* How many elements of this rank's results are wrong, after one call on buffers just filled. */
uint64_t bench_case_wrong(const struct bench_case *c);

#endif
