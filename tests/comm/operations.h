/* Every operation of muster/collective.h as one function of a group, for programs that do something to it meanwhile. */
#ifndef TESTS_COMM_OPERATIONS_H
#define TESTS_COMM_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/collective.h>

enum { OPERATION_COUNT = 18, OPERATION_RANKS_MAX = 5 };

/* What an operation works on: `count` floats from each rank for each other one. */
struct operands {
    struct muster_group *group;
    float *send, *receive; /* rank count * count each */
    size_t count;
    uint32_t root;
    bool with_handle;
    int64_t timeout_ms; /* of the monitored barrier */
};

struct operation {
    const char *name; /* as in sentences */
    int (*run)(const struct operands *operands);
};
extern const struct operation operations[OPERATION_COUNT];

/* Buffers from muster_alloc() where `is_shared`, else from malloc(). */
int operands_allocate(struct operands *operands, bool is_shared);
void operands_free(struct operands *operands, bool is_shared);

#endif
