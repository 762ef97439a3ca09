/* Muster's reductions as operations of MPI; see mpi_operations.h. */
#include "comm/mpi/mpi_operations.h"

#include "comm/reduce/reduce.h"

/* MPI tells an operation neither its type in words that we could read, nor which operation it is: one function each. */
#define OURS_FUNCTION(type, reduction)                                                                                 \
    static void type##_##reduction(void *in, void *inout, int *count, void *ignored) {                                 \
        (void)ignored;                                                                                                 \
        reduce_pair(type, reduction, inout, in, inout, (size_t)*count);                                                \
    }
#define OURS_FUNCTIONS(type, value, bytes, text)                                                                       \
    OURS_FUNCTION(type, MUSTER_OP_SUM)                                                                                 \
    OURS_FUNCTION(type, MUSTER_OP_PRODUCT)                                                                             \
    OURS_FUNCTION(type, MUSTER_OP_MIN)                                                                                 \
    OURS_FUNCTION(type, MUSTER_OP_MAX)
MUSTER_TYPE_TABLE(OURS_FUNCTIONS)
#undef OURS_FUNCTIONS
#undef OURS_FUNCTION

/* The operations on bits are MPI's with every type that has them. */
static mpi_function *const ours[MUSTER_TYPE_COUNT][MUSTER_REDUCTION_COUNT] = {
#define OURS_ROW(type, value, bytes, text)                                                                             \
    [type] = {[MUSTER_OP_SUM] = type##_MUSTER_OP_SUM,                                                                  \
              [MUSTER_OP_PRODUCT] = type##_MUSTER_OP_PRODUCT,                                                          \
              [MUSTER_OP_MIN] = type##_MUSTER_OP_MIN,                                                                  \
              [MUSTER_OP_MAX] = type##_MUSTER_OP_MAX},
    MUSTER_TYPE_TABLE(OURS_ROW)
#undef OURS_ROW
};

/* Handles of a process's one MPI; written once, before any group uses them. 0: MPI's own does. */
static mpi_handle handles[MUSTER_TYPE_COUNT][MUSTER_REDUCTION_COUNT];

/* Of -0 and +0, and of two NaNs, the one on the left stays, with its bits: MPI may not swap the sides, or ranks would
 * have different bits. */
static bool is_commutative(enum muster_type type, enum muster_reduction reduction) {
    bool is_float = type >= MUSTER_FLOAT16 && type <= MUSTER_FLOAT64;
    return !is_float || (reduction != MUSTER_OP_MIN && reduction != MUSTER_OP_MAX);
}

static int make(const struct mpi *mpi, enum muster_type type, enum muster_reduction reduction) {
    mpi_handle *handle = &handles[type][reduction];
    if (!ours[type][reduction] || *handle || mpi_reduces(mpi, type, reduction)) {
        return 0;
    }
    int error = mpi->calls->op_create(mpi, ours[type][reduction], is_commutative(type, reduction), handle);
    return error ? mpi_fail(mpi, error, "MPI_Op_create") : 0;
}

int mpi_operations_make(const struct mpi *mpi) {
    int code = 0;
    for (unsigned type = 0; code == 0 && type < MUSTER_TYPE_COUNT; type++) {
        for (unsigned reduction = 0; code == 0 && reduction < MUSTER_REDUCTION_COUNT; reduction++) {
            code = make(mpi, (enum muster_type)type, (enum muster_reduction)reduction);
        }
    }
    return code;
}

struct mpi_operation mpi_operation_of(const struct mpi *mpi, enum muster_type type, enum muster_reduction reduction) {
    enum muster_reduction carried_out = reduction == MUSTER_OP_AVERAGE ? MUSTER_OP_SUM : reduction;
    mpi_handle handle = handles[type][carried_out];
    return handle ? (struct mpi_operation){handle, true} : (struct mpi_operation){mpi->ops[carried_out], false};
}

mpi_handle mpi_type_of(const struct mpi *mpi, enum muster_type type) {
    return mpi->types[type] ? mpi->types[type] : mpi->types[MUSTER_UINT16];
}
