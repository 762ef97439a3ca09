/* For the matrix of collectives: cases drawn from a seed, what each rank gives in them, and whether what it got is
 * right. A naive reference of its own: integers in 64 bits, floats in double with a bound on the error, moved data by
 * the bit. */
#ifndef COMM_MATRIX_TEST_SUPPORT_H
#define COMM_MATRIX_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

enum { MATRIX_RANKS_MAX = 8 };

enum matrix_operation {
    MATRIX_ALL_REDUCE,
    MATRIX_REDUCE,
    MATRIX_REDUCE_SCATTER,
    MATRIX_SCAN,
    MATRIX_EXSCAN,
    MATRIX_BROADCAST, /* from here on data is moved, not reduced */
    MATRIX_ALL_GATHER,
    MATRIX_GATHER,
    MATRIX_SCATTER,
    MATRIX_ALL_TO_ALL,
    MATRIX_OPERATIONS
};

/* Equal on all ranks. */
struct matrix_case {
    enum matrix_operation operation;
    enum muster_type type;
    enum muster_reduction reduction;
    uint32_t size, root;
    bool has_counts;
    size_t count;                                      /* of a block */
    size_t counts[MATRIX_RANKS_MAX][MATRIX_RANKS_MAX]; /* [a][b]: from a to b; blocks elsewhere: [any][block] */
    uint64_t seed;                                     /* of the data */
    bool drops_nans; /* the least of a number and a NaN is the number, as NCCL has it. matrix_draw() sets it to false */
};

/* Advances *random, which is not 0. */
uint64_t matrix_random(uint64_t *random);

/* The number of triples (operation, type, reduction) that exist, and a case of one of them, other things drawn; the
 * larger buffer has at most bytes_max bytes. */
size_t matrix_triple_count(void);
void matrix_draw(uint64_t *random, size_t triple, uint32_t size, size_t bytes_max, struct matrix_case *out);

/* Elements of the send and of the receive buffer of a rank (0: not used there), and before block `block` of the larger
 * one. */
size_t matrix_send_count(const struct matrix_case *c, uint32_t rank);
size_t matrix_receive_count(const struct matrix_case *c, uint32_t rank);
size_t matrix_begin(const struct matrix_case *c, uint32_t block);

/* What `rank` gives. */
void matrix_fill(const struct matrix_case *c, uint32_t rank, void *send);
/* NULL if `receive` is what the rank must get, else what is wrong (in static memory). */
const char *matrix_check(const struct matrix_case *c, uint32_t rank, const void *receive);
/* "all_reduce of 17 float32, sum, 3 ranks" into static memory. */
const char *matrix_describe(const struct matrix_case *c);

#endif
