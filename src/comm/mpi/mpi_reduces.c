/* Which reductions can be left to MPI; see mpi_library.h. Pure. */
#include "comm/mpi/mpi_library.h"

bool mpi_reduces(const struct mpi *mpi, enum muster_type type, enum muster_reduction op) {
    bool is_signed = type == MUSTER_INT8 || type == MUSTER_INT16 || type == MUSTER_INT32 || type == MUSTER_INT64;
    if (mpi->types[type] == 0 || mpi->ops[op] == 0) {
        return false;
    }
    if (op == MUSTER_OP_MIN || op == MUSTER_OP_MAX) {
        return is_signed;
    }
    if (type == MUSTER_FLOAT32 || type == MUSTER_FLOAT64) {
        return op == MUSTER_OP_SUM || op == MUSTER_OP_PRODUCT;
    }
    return !(mpi->abi == MPI_ABI_OPEN_MPI && op == MUSTER_OP_SUM && muster_type_bytes(type) < 4);
}
