/* The reductions that MPI lacks, or has otherwise than Muster promises (mpi_reduces()), as operations of ours. */
#ifndef COMM_MPI_MPI_OPERATIONS_H
#define COMM_MPI_MPI_OPERATIONS_H

#include <stdbool.h>

#include <muster/types.h>

#include "comm/mpi/mpi_library.h"

struct mpi_operation {
    mpi_handle handle; /* of an average: that of the sum */
    bool is_ours;      /* counts must fit an int */
};

/* Makes ours; once a process, after MPI has begun. What mpi_fail() returns. */
int mpi_operations_make(const struct mpi *mpi);
/* For a type with a reduction that it has (reduce_is_defined()). */
struct mpi_operation mpi_operation_of(const struct mpi *mpi, enum muster_type type, enum muster_reduction reduction);
/* What the elements are for MPI: 16-bit floats are as long as integers of 16 bits, and more it need not know. */
mpi_handle mpi_type_of(const struct mpi *mpi, enum muster_type type);

#endif
