/* The numbers that ranks send, and what their reductions must give; see mpi_check.h. */
#include <stdlib.h>
#include <string.h>

#include "mpi_check.h"

#define SIGNED_TYPES(X)                                                                                                \
    X(MUSTER_INT8, int8_t) X(MUSTER_INT16, int16_t) X(MUSTER_INT32, int32_t) X(MUSTER_INT64, int64_t)
#define UNSIGNED_TYPES(X)                                                                                              \
    X(MUSTER_UINT8, uint8_t) X(MUSTER_UINT16, uint16_t) X(MUSTER_UINT32, uint32_t) X(MUSTER_UINT64, uint64_t)
#define FLOAT_TYPES(X) X(MUSTER_FLOAT32, float) X(MUSTER_FLOAT64, double)

static bool is_float(enum muster_type type) {
    return type == MUSTER_FLOAT32 || type == MUSTER_FLOAT64;
}

bool check_has_type(const struct check *check, enum muster_type type) {
    bool is_ours_alone = type == MUSTER_FLOAT16 || type == MUSTER_BFLOAT16;
    check_that(check, (check->mpi->types[type] == 0) == is_ours_alone, "type %s", muster_type_name(type));
    return !is_ours_alone;
}

bool check_has_op(const struct check *check, enum muster_type type, enum muster_reduction op) {
    bool is_ours_alone = op == MUSTER_OP_AVERAGE;
    check_that(check, (check->mpi->ops[op] == 0) == is_ours_alone, "operation %s", muster_reduction_name(op));
    return !is_ours_alone && !(is_float(type) && op >= MUSTER_OP_BIT_AND);
}

/* -3 ... 3 without 0, but sums of 8 ranks and products of 4 fit int8. */
static int64_t signed_number(size_t i, int rank) {
    int64_t size = 1 + (int64_t)((i + (size_t)rank) % 3);
    return (i / 3 + (size_t)rank) % 2 == 0 ? size : -size;
}

/* In the lower half of the type, since some MPIs compare unsigned numbers as signed ones (mpi_reduces.c). */
static uint64_t unsigned_number(size_t i, int rank) {
    return 1 + (i * 5 + (size_t)rank * 3) % 11;
}

/* Quarters: no integer, exact in sums and products. */
static double float_number(size_t i, int rank) {
    return 0.25 * (double)signed_number(i, rank);
}

void check_fill(enum muster_type type, void *buffer, size_t first, size_t count, int rank) {
#define FILL(value, c_type, number)                                                                                    \
    case value:                                                                                                        \
        for (size_t i = 0; i < count; i++) {                                                                           \
            ((c_type *)buffer)[i] = (c_type)number(first + i, rank);                                                   \
        }                                                                                                              \
        break;
#define FILL_SIGNED(value, c_type) FILL(value, c_type, signed_number)
#define FILL_UNSIGNED(value, c_type) FILL(value, c_type, unsigned_number)
#define FILL_FLOAT(value, c_type) FILL(value, c_type, float_number)
    switch ((int)type) {
        SIGNED_TYPES(FILL_SIGNED)
        UNSIGNED_TYPES(FILL_UNSIGNED)
        FLOAT_TYPES(FILL_FLOAT)
    default:
        abort();
    }
}

/* Integers wrap around in 64 bits, and are cut to the type afterwards. */
#define INTEGER_FUNCTION(value, c_type)                                                                                \
    static c_type reduce_##c_type(enum muster_reduction op, c_type a, c_type b) {                                      \
        switch ((int)op) {                                                                                             \
        case MUSTER_OP_SUM:                                                                                            \
            return (c_type)((uint64_t)a + (uint64_t)b);                                                                \
        case MUSTER_OP_PRODUCT:                                                                                        \
            return (c_type)((uint64_t)a * (uint64_t)b);                                                                \
        case MUSTER_OP_MIN:                                                                                            \
            return a < b ? a : b;                                                                                      \
        case MUSTER_OP_MAX:                                                                                            \
            return a > b ? a : b;                                                                                      \
        case MUSTER_OP_BIT_AND:                                                                                        \
            return (c_type)(a & b);                                                                                    \
        case MUSTER_OP_BIT_OR:                                                                                         \
            return (c_type)(a | b);                                                                                    \
        case MUSTER_OP_BIT_XOR:                                                                                        \
            return (c_type)(a ^ b);                                                                                    \
        default:                                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    }
#define FLOAT_FUNCTION(value, c_type)                                                                                  \
    static c_type reduce_##c_type(enum muster_reduction op, c_type a, c_type b) {                                      \
        switch ((int)op) {                                                                                             \
        case MUSTER_OP_SUM:                                                                                            \
            return a + b;                                                                                              \
        case MUSTER_OP_PRODUCT:                                                                                        \
            return a * b;                                                                                              \
        case MUSTER_OP_MIN:                                                                                            \
            return a < b ? a : b;                                                                                      \
        case MUSTER_OP_MAX:                                                                                            \
            return a > b ? a : b;                                                                                      \
        default:                                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    }
SIGNED_TYPES(INTEGER_FUNCTION)
UNSIGNED_TYPES(INTEGER_FUNCTION)
FLOAT_TYPES(FLOAT_FUNCTION)

static void reduce(enum muster_type type, enum muster_reduction op, const void *in, void *inout, size_t count) {
#define REDUCE(value, c_type)                                                                                          \
    case value:                                                                                                        \
        for (size_t i = 0; i < count; i++) {                                                                           \
            ((c_type *)inout)[i] = reduce_##c_type(op, ((c_type *)inout)[i], ((const c_type *)in)[i]);                 \
        }                                                                                                              \
        break;
    switch ((int)type) {
        SIGNED_TYPES(REDUCE)
        UNSIGNED_TYPES(REDUCE)
        FLOAT_TYPES(REDUCE)
    default:
        abort();
    }
}

void check_fill_highest(enum muster_type type, void *buffer, size_t count) {
#define HIGHEST(value, c_type)                                                                                         \
    case value:                                                                                                        \
        for (size_t i = 0; i < count; i++) {                                                                           \
            bool is_signed = (c_type)-1 < (c_type)1;                                                                   \
            ((c_type *)buffer)[i] = (c_type)(UINT64_MAX >> (64 - 8 * sizeof(c_type) + is_signed));                     \
        }                                                                                                              \
        break;
    switch ((int)type) {
        SIGNED_TYPES(HIGHEST)
        UNSIGNED_TYPES(HIGHEST)
    default:
        abort();
    }
}

void check_combine(enum muster_type type, enum muster_reduction op, const void *in, void *inout, size_t count) {
    reduce(type, op, in, inout, count);
}

void check_reduce(enum muster_type type, enum muster_reduction op, void *buffer, size_t first, size_t count, int from,
                  int to) {
    void *other = malloc(count * muster_type_bytes(type) + 1);
    if (!other) {
        abort();
    }
    check_fill(type, buffer, first, count, from);
    for (int rank = from + 1; rank < to; rank++) {
        check_fill(type, other, first, count, rank);
        reduce(type, op, other, buffer, count);
    }
    free(other);
}
